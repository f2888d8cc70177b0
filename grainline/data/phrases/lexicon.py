"""The words that `rules` knows: the closed classes of English, irregular verbs, common adjectives and verbs.

Nouns stand here only where their ending would mislead. A class is one letter, as in context.py: D determiner,
P possessive, O pronoun, M number, A adjective, B adverb, I preposition or particle, C and/or, S what opens a
clause, X auxiliary, T not, E a word of place that is noun and adjective ("left").
"""
# ruff: noqa: RUF001 (contractions are also written with a typographic apostrophe)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CLASSES = {
    "D": """a an the this these those each every another some any no all both either neither such several
        many enough""",
    "P": "my your his her its our their whose",
    "O": """i you he she it we they me him them us myself yourself himself herself itself ourselves
        themselves something someone somebody anything anyone everything everyone everybody nothing none
        nobody others mine yours hers ours theirs""",
    "M": """one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
        seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand
        million billion zero""",
    "A": """few other same own first second third fourth fifth sixth seventh eighth ninth tenth last next
        more most much less least fewer various different similar certain whole entire main only single
        double upper lower inner outer far close adjacent due red orange yellow green blue purple pink black
        white grey gray brown beige slight golden silver maroon teal turquoise crimson scarlet violet tan
        navy cyan magenta multicolored multicoloured dark bright pale deep dull vivid colorful colourful big
        small large little tiny huge tall short long wide narrow thick thin broad high low great giant old
        new young ancient modern round flat curved straight oval sharp smooth rough soft hard heavy open full
        empty clean dirty wet dry hot cold warm cool clear plain bare strong fresh early late happy sad
        visible available able good bad better best worse worst larger smaller taller shorter longer bigger
        older younger newer brighter darker lighter higher thicker thinner wider largest smallest tallest
        shortest longest biggest identical separate several real true false rich poor free safe likely loose
        tight quick slow loud quiet rare raw ripe wooden woolen horizontal vertical diagonal parallel central
        outdoor indoor overall""",
    "B": """very quite rather too also just so then however almost nearly still already again always never
        often sometimes perhaps maybe even ever here there now once twice away together apart aside ahead
        instead else thus therefore hence yet soon well halfway overhead nearby elsewhere everywhere
        somewhere indoors outdoors upstairs downstairs alike altogether otherwise likewise moreover
        furthermore meanwhile approximately about sideways forth straightaway afterwards far-off""",
    "I": """of in on at by for from with without within into onto to toward towards against along alongside
        across around round about above below over under beneath underneath behind beside besides between
        beyond among amongst amid near inside outside up down out off through throughout past via per during
        before after until since despite except upon atop opposite aboard versus like unlike than as aloft""",
    "C": "and or but nor &",
    "S": """that which who whom what when where while whereas because although though if unless whether why
        how whenever wherever""",
    "X": """is are was were be been being am has have had do does did can could may might must shall should
        will would cannot isn't aren't wasn't weren't hasn't haven't hadn't doesn't don't didn't can't
        couldn't won't wouldn't shouldn't isn’t aren’t wasn’t weren’t hasn’t haven’t doesn’t don’t didn’t
        can’t""",
    "T": "not",
    "E": "left right top bottom front back middle center centre",
}
CLASS = {word: letter for letter, text in reversed(_CLASSES.items()) for word in text.split()}

BE = _words("is are was were be been being am isn't aren't wasn't weren't isn’t aren’t wasn’t weren’t")
MODAL = _words(
    """do does did can could may might must shall should will would cannot doesn't don't didn't can't
    couldn't won't wouldn't shouldn't doesn’t don’t didn’t can’t"""
)
LINKING = _words(
    """look looks looked appear appears appeared seem seems seemed become becomes became remain remains"""
)
SINGULAR = _words("a an this each every another one")  # what a plural cannot follow
PLURALS = _words("men women children people feet teeth mice geese police cattle")  # plurals without -s
PARTICLES = _words("up down out off over")  # a preposition even where nothing follows
SUBJECTS = _words("i you we they who which that")  # before the plain form of a verb
INITIALS = _words("mr mrs ms dr st mt prof jr sr lt gen capt sgt gov rev pres hon")  # with a period in a name

# Irregular verbs: plain form, past, participle; "-" where a form is also a common noun or adjective.
_IRREGULAR = """
arise arose arisen|bear bore borne|beat - beaten|become became become|begin began begun|bend bent bent
bind bound bound|bite bit bitten|blow blew blown|break broke broken|bring brought brought|build built built
burst - -|buy bought bought|catch caught caught|choose chose chosen|cling clung clung|come came come
creep crept crept|deal dealt dealt|dig dug dug|draw drew drawn|drink drank drunk|drive drove driven
eat ate eaten|fall fell fallen|feed fed fed|feel - -|fight fought fought|find found found|fly flew flown
forget forgot forgotten|give gave given|go went gone|grow grew grown|hang hung hung|hear heard heard
hide hid hidden|hold held held|keep kept kept|kneel knelt knelt|know knew known|lay laid laid|lead led led
lean leant leant|leave - -|lend lent lent|let - -|lie lay lain|lose lost lost|light lit lit|make made made
mean meant meant|meet met met|pay paid paid|put put put|ride rode ridden|ring rang rung|rise rose risen
run ran run|say said said|see - seen|seek sought sought|sell sold sold|send sent sent|set set set
sew sewed sewn|shake shook shaken|shine shone shone|shoot shot shot|show showed shown|shut shut shut
sing sang sung|sink sank sunk|sit sat sat|sleep slept slept|slide slid slid|speak spoke spoken
spend spent spent|spin spun spun|split split split|spread spread spread|stand stood stood|steal stole stolen
stick stuck stuck|strike struck struck|swim swam swum|swing swung swung|take took taken|teach taught taught
tear tore torn|tell told told|think thought thought|throw threw thrown|understand understood understood
wear wore worn|weave wove woven|wind wound wound|write wrote written
"""
_VERBS = [line.split() for line in _IRREGULAR.replace("|", "\n").strip().splitlines()]
PLAIN_VERBS = frozenset(verb[0] for verb in _VERBS)
# The third person: "stands". Those that are as often plural nouns are left to the sentence.
THIRD_VERBS = frozenset(
    base + ("es" if base.endswith(("s", "o", "ch", "sh")) else "s") for base, _, _ in _VERBS
).union({"flies"}) - _words("flys bears drinks fights rings sets splits winds feeds tears")
REGULAR = _words(
    """appear seem remain look contain depict include consist belong resemble extend surround represent
    describe illustrate indicate connect reveal provide suggest emphasize identify occur exist receive carry
    follow enter"""
)  # frequent in captions, and no nouns
PLAIN_VERBS |= REGULAR
THIRD_VERBS |= {word[:-1] + "ies" if word[-2:] in ("ry", "fy") else word + "s" for word in REGULAR}
PARTICIPLES = frozenset(verb[2] for verb in _VERBS) - _words("- set spread bound shot")
PASTS = frozenset(verb[1] for verb in _VERBS) - PARTICIPLES - _words("- bore lay saw set shot bit wound")

# Words that look like forms of verbs and are not.
NO_ING = _words(
    """building ceiling clothing painting evening morning railing lighting wedding bedding siding lettering
    flooring thing something anything everything nothing during setting writing drawing carving covering
    heading engraving etching king ring wing string spring swing sling offspring shilling sterling herring
    earring duckling stocking awning opening lightning marking furnishing"""
)
NO_ED = _words(
    """red bed shed sled seed weed reed feed speed indeed need deed steed hundred sacred naked wicked
    rugged"""
)
NO_LY = _words(
    """family fly lily belly jelly ally bully rally monopoly anomaly assembly butterfly supply reply dolly
    trolley holly"""
)
LY_ADJECTIVES = _words(
    """friendly lovely lonely likely ugly silly early daily elderly curly lively costly holy hilly wooly
    orderly only"""
)

# The stop words of spaCy's English pipelines, because phrases made of nothing else are left out by the paper.
STOP = _words(
    """a about above across after afterwards again against all almost alone along already also although
    always am among amongst amount an and another any anyhow anyone anything anyway anywhere are around as at
    back be became because become becomes becoming been before beforehand behind being below beside besides
    between beyond both bottom but by ca call can cannot could did do does doing done down due during each
    eight either eleven else elsewhere empty enough even ever every everyone everything everywhere except few
    fifteen fifty first five for former formerly forty four from front full further get give go had has have
    he hence her here hereafter hereby herein hereupon hers herself him himself his how however hundred i if
    in indeed into is it its itself just keep last latter latterly least less made make many may me meanwhile
    might mine more moreover most mostly move much must my myself name namely neither never nevertheless next
    nine no nobody none noone nor not nothing now nowhere of off often on once one only onto or other others
    otherwise our ours ourselves out over own part per perhaps please put quite rather re really regarding
    same say see seem seemed seeming seems serious several she should show side since six sixty so some
    somehow someone something sometime sometimes somewhere still such take ten than that the their them
    themselves then thence there thereafter thereby therefore therein thereupon these they third this those
    though three through throughout thru thus to together too top toward towards twelve twenty two under
    unless until up upon us used using various very via was we well were what whatever when whence whenever
    where whereafter whereas whereby wherein whereupon wherever whether which while whither who whoever whole
    whom whose why will with within without would yet you your yours yourself yourselves n't 'd 'll 'm 're 's
    've"""
)

# German, French and Spanish; a text with more of these than of STOP is not English.
FOREIGN = _words(
    """der das und ein eine einen einem einer ist sind auf mit von dem den im zu le les la une est sont dans
    sur avec et du des au aux il elle qui el los las un una está en con y del de que por"""
)
