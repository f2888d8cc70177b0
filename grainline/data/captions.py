"""Captions as strings: cleaning as CLIP does it, and splitting into sentences.

The splitter decides at every run of `.`, `!`, `?` or an ellipsis, by the text before and after it. A decision
reads only the sentence so far and the next word, so that splitting a sentence again changes nothing.

Where captions are ambiguous:
  - a quotation or a bracket that opens inside a sentence is never split;
  - "word. word" and "Word. word" are breaks, because many sets of captions are lower-cased; a capital
    alone does not make a word of three letters or more an abbreviation;
  - a break in the line is a blank, unless the next line is empty or starts with a list marker;
  - a mark of a list ("1.", "B.") stays with its item; colons and semicolons never end a sentence.

The rules are English. They also know the full stops of Chinese, Japanese, Arabic, Urdu and Hindi, and the
usual abbreviations of German, French and Spanish that are no English words.
"""
# ruff: noqa: RUF001 (typographic quotation marks, dashes and full-width marks are what this file is about)

import html
import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby, pairwise
from random import Random
from typing import Literal, NamedTuple

import ftfy

Mode = Literal["rules", "period_space", "every_period"]

_CUTS = {"period_space": re.compile(r"\. "), "every_period": re.compile(r"\.|\n|</s>")}


def crop_words(text: str, probability: float, rng: Random) -> str:
    """The text, or with a probability a run of its words, of random length and place."""
    words = text.split()
    if not probability or rng.random() >= probability or len(words) < 2:
        return text
    number = rng.randint(1, len(words))
    start = rng.randrange(len(words) - number + 1)
    return " ".join(words[start : start + number])


class Sentence(NamedTuple):
    """A piece of a text and where it stands: text[start:end] is the piece."""

    text: str
    start: int
    end: int


# Anything that ftfy leaves alone: printable ASCII without "&", and the blanks that end up as one space.
_PLAIN = re.compile(r"[ -%'-~\t\n\f\r]*").fullmatch


def clean(text: str) -> str:
    """The text as CLIP cleans it: ftfy, HTML entities read twice, each run of blanks one space.

    CLIP also lowers the case; here the tokenizer does that, because sentences are found by their capitals.

    >>> clean("  caf&amp;eacute;\\n  \\u201cGreen\\u201d &amp; \\uff11 cup ")
    'café "Green" & 1 cup'
    """
    if _PLAIN(text) is None:
        text = html.unescape(html.unescape(ftfy.fix_text(text)))
    return " ".join(text.split())


_LETTER = re.compile(r"[^\W\d_]")


def in_other_script(text: str) -> bool:
    """Whether most letters are of other alphabets than the Latin one."""
    letters = [] if text.isascii() else _LETTER.findall(text)
    return sum(letter > "\u024f" for letter in letters) * 2 > len(letters)


LONG = 100  # characters; repeated pieces of a shorter text stay
_REPEATED = [re.compile(rf"(.{{{least},20}}?)\1{{2,}}") for least in (10, 5, 3)]


def remove_repetitions(text: str) -> str:
    """The text on one line without its repetitions, as beta-CLIP's published code cleans generated captions.

    In a text of more than 100 characters, a piece of 10 (then 5, then 3) to 20 characters that stands three
    times or more in a row is reduced to one. Then, in any text, equal words in a row are reduced to one.

    >>> remove_repetitions("a very very red\\nred car")
    'a very red car'
    >>> remove_repetitions("y" * 120 + " ok")
    'yyyy ok'
    """
    text = text.replace("\n", " ")
    if len(text) > LONG:
        for pattern in _REPEATED:
            text = pattern.sub(r"\1", text, count=10)
    return " ".join(word for word, _ in groupby(text.split()))


def sentences(text: str, mode: Mode = "rules") -> list[Sentence]:
    """The sentences of a text in order, with their places in it. A blank text has none.

    rules         our own rules (top of this file); no character but blanks is ever lost
    period_space  text.split(". "), as Long-CLIP and HiMo-CLIP do it: the periods between pieces vanish
    every_period  at every period, break in the line and "</s>", which vanish, as DreamLIP and FLAIR do it

    Pieces are stripped and empty ones dropped in every mode.

    >>> [s.text for s in sentences("Dr. Wu (left) sits 3.5 m away. It rains!The sky is grey")]
    ['Dr. Wu (left) sits 3.5 m away.', 'It rains!', 'The sky is grey']
    >>> [s.text for s in sentences("Dr. Wu sits. It rains.", "period_space")]
    ['Dr', 'Wu sits', 'It rains.']
    """
    if mode == "rules":
        return _by_rules(text)
    pieces, start = [], 0
    cuts = [separator.span() for separator in _CUTS[mode].finditer(text)]
    for end, behind in [*cuts, (len(text), len(text))]:
        piece = text[start:end].strip()
        if piece:
            first = text.index(piece, start)
            pieces.append(Sentence(piece, first, first + len(piece)))
        start = behind
    return pieces


def split_sentences(text: str, splitter: Mode = "rules") -> list[str]:
    """The sentences of a text, without their places; those of the latest texts are remembered."""
    return list(_pieces(text, splitter))


@lru_cache(maxsize=256)  # a training sample asks for the sentences of one text several times
def _pieces(text: str, splitter: Mode) -> tuple[str, ...]:
    return tuple(sentence.text for sentence in sentences(text, splitter))


def without_first(pieces: Sequence[str]) -> Sequence[str]:
    """The sentences behind the first, which often sums up the others; a single sentence stays."""
    return pieces[1:] or pieces


def joined(pieces: Sequence[str], mode: Mode) -> str:
    """Sentences that a mode found, as one text again."""
    return (" " if mode == "rules" else ". ").join(pieces)


# --- rules: where a sentence could end ---

_CLOSERS = "\"'”’»›)]}*"
_CANDIDATE = re.compile(  # no group is repeated possessively: Python before 3.11.5 matches these wrongly
    r"""(?=[\n.!?…。！？؟۔।॥"“(\[hw])(?:  # nothing else begins a candidate: looked at first, for speed
      (?P<paragraph> \n [^\S\n]*+ \n )
    | (?P<item> \n \s*+ (?= (?: [-*•‣–] | \(?\d{1,3}[.)] | \(?[a-zA-Z][.)] ) \s ) )
    | (?P<address> (?: https?:// | www\. ) \S* [\w/] )
    | (?P<enclosed> (?<!\w)"(?=\S) [^"\n]{0,300} (?<=\S)"(?!\w) | “ [^”\n]{0,300} ”
                  | \( [^()\n]{0,300} (?<![.!?][ ]\w)\) | \[ [^\[\]\n]{0,300} \] )
    | (?P<stop> (?<![.!?…])(?<![.!?…][ ]) [.!?…]++ (?: [ ]++ [.!?…]++ )* (?![ ]*[.!?…])  # whole runs
                ["'”’»›)\]}*]*+ (?![a-z0-9_/])
      | [。！？؟۔।॥] [。！？؟۔।॥!?]*+ ["'”’»)」』]*+ )
    )""",
    re.VERBOSE,
)
_TAIL = re.compile(r"[.!?…]++[\"'”’»›)\]}*]++$")  # of a quotation or a bracket that ends as a sentence does
_WORD_BEFORE = re.compile(r"[^\W_](?:[\w'’&-]|\.(?=\w))*$")
_WORD = re.compile(r"\w+")
_VOWEL = re.compile(r"[aeiouyà-öø-ÿ]")
_MARKER = re.compile(r"\d{1,3}|[A-Za-z]|[ivx]{2,4}|[IVX]{2,4}")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Abbreviations, by what comes after them.
_TITLES = _words("mr mrs ms messrs prof rev hon gov sen gen capt cpt lt cmdr sgt cpl")  # a name
_NUMBERED = _words("no nos nr fig figs eq eqs vol vols ch chap sec sect pp pg ref refs")  # a number, a letter
_INNER = _words("e.g i.e eg ie cf viz vs approx ca c.f resp incl esp var dept est")  # more of the sentence
_EITHER = _words(  # a new sentence, if it starts with one of the usual words
    """st dr mt ft ave blvd rd hwy inc ltd co corp bros llc jr sr rep pres col maj ph.d m.d b.a m.a b.sc
    m.sc u.s u.k u.n e.u d.c l.a n.y al sp spp subsp ed eds trans jan feb mar apr jun jul aug sep sept
    oct nov dec"""
)
_FREE = _words("etc a.m p.m b.c a.d b.c.e c.e")  # a new sentence, if it starts with a capital
# Units, if a number stands before them.
_UNITS = _words("in ft yd mi fl oz lb lbs pt qt gal kg mg cm mm km hr hrs min mins sec secs sq cu deg")
_COARSE = _words("ft yd lb lbs hr hrs min mins deg")  # a finer one may follow: 5 ft. 3 in.
_ZONES = _words("EST EDT CST CDT MST MDT PST PDT ET CT PT GMT UTC BST CET Eastern Central Pacific")
_DOMAINS = _words("Com Org Net Edu Gov Io Js Py")
_STARTERS = _words(
    """The A An I It Its This That These Those There Here He She They We You His Her Their Our In On At By
    To From With Under Above Behind Below Near Next Both Each One Two Three Some Many Several Most All
    Another Other Others While When As If For After Before Also And But Or So Not Then Now Beside
    Between Beneath Overall Text Figure Image What Why How Where Which Is Are Does Do Due During Since
    Everyone People Similarly Labels"""
)
_LABELS = _words(  # a single letter after one of these is no initial of a name
    """figure fig panel part image picture photo photograph plate label labeled labelled lettered point
    vitamin type group section letter step table map class box option line side row column grade plan
    hepatitis diagram graph area region is are and or as to"""
)
_SHORTENED = _words(  # abbreviations if they start with a capital; in small letters many are words
    """Univ Inst Acad Assoc Soc Hosp Intl Natl Suppl Calif Ala Ariz Colo Conn Del Fla Ill Ind Mass Mich Minn
    Miss Neb Okla Ore Penn Tenn Tex Wash Wis Wyo Mon Tue Tues Wed Thu Thur Thurs Fri"""
)
_ABBREVIATIONS = _TITLES | _NUMBERED | _INNER | _EITHER | _FREE


# Abbreviations of German, French and Spanish after which a sentence goes on; none is an English word.
_FOREIGN = _words(
    """abb bspw bzgl bzw evtl exkl ggf inkl jh jhdt mrd sog vgl zzgl mme mlle mmes mlles env sra sres srta dra
    dña ud uds pág págs núm aprox avda gral"""
)
_ORDINALS = _words(  # German words behind the number of a day, a century, a floor
    "Januar Februar März Mai Juni Juli Oktober Dezember Jahrhundert Jahrhunderts Jh Stock Stockwerk Etage"
)
_BEFORE_ORDINALS = _words("vom zum beim dem der im")
_WIDE = re.compile(r"[\u300a-\u300f\u3040-\u30ff\u3400-\u9fff]")  # Japanese and Chinese have no blanks


class _Stop(NamedTuple):
    """A lone period with a blank after it, and what decides whether a sentence ends there."""

    word: str  # before it; "" if a blank or a bracket stands there
    opens: bool  # the word is the first of its sentence
    before: str  # the word before that, in small letters
    closers: str  # quotation marks and brackets after the period
    first: str  # character of what follows
    after: str  # the word that follows; "" if it is no word
    mark: str  # the character after that word


def _by_rules(text: str) -> list[Sentence]:
    starts: list[int] = []
    start = position = _skip_blanks(text, 0)
    while match := _CANDIDATE.search(text, position):
        position = match.end()
        if match.lastgroup == "enclosed" and match.start() == start:
            position = start + 1  # a caption that is one quotation still has its sentences
        elif _ends(text, start, match):
            after = _skip_blanks(text, position)
            if _WORD.search(text, start, position) and _WORD.search(text, after):
                starts.append(start)
                start = position = after
    starts += [start] if start < len(text) else []
    pieces = [(first, text[first:end].rstrip()) for first, end in pairwise([*starts, len(text)])]
    return [Sentence(piece, first, first + len(piece)) for first, piece in pieces]


def _skip_blanks(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position


def _ends(text: str, start: int, match: re.Match[str]) -> bool:
    """Whether the sentence that began at start ends with this match."""
    kind = match.lastgroup
    if kind in ("paragraph", "item"):
        return True
    run = match if kind == "stop" else _TAIL.search(text, *match.span()) if kind == "enclosed" else None
    after = _skip_blanks(text, match.end())
    if run is None or after == len(text):
        return False
    marks = run.group().rstrip(_CLOSERS + "」』")
    closers = run.group()[len(marks) :]
    first = text[after]
    if marks[0] in "。！？؟۔।॥":
        return not (closers and first == "と")  # the Japanese "says": 「待て。」と言う
    if first in ",;:)]}”»" or (first in "-–—" and marks == "."):
        return False
    if after == match.end():
        return _ends_without_blank(text, start, run.start(), after, marks)
    if marks == ".":
        return _ends_at_period(_period(text, start, run.start(), after, closers))
    return not first.islower() or not (closers or marks[-1] in ".…")


def _ends_without_blank(text: str, start: int, dot: int, after: int, marks: str) -> bool:
    """blue.It: the blank is missing, if a word of small letters with a capital follows."""
    second = text[after + 1 : after + 2]
    if text[after] in "¿¡":
        return True
    if _WIDE.match(text, after) and after == dot + len(marks):  # no quotation before "he says"
        return marks[-1] in "!?" or (marks == "." and _WIDE.match(text, dot - 1) is not None)
    if not text[after].isupper() or second.isupper() or second.isdigit() or second == ".":
        return False
    if marks != ".":
        return True
    word = _word_before(text, start, dot)
    following = _WORD.match(text, after)
    domain = following is not None and following.group() in _DOMAINS
    return not (len(word) == 1 or "." in word or word.lower() in _ABBREVIATIONS or domain)


def _word_before(text: str, start: int, end: int) -> str:
    match = _WORD_BEFORE.search(text, max(start, end - 24), end)
    return match.group() if match else ""


def _period(text: str, start: int, dot: int, after: int, closers: str) -> _Stop:
    word = _word_before(text, start, dot)
    begin = dot - len(word)
    following = _WORD.match(text, after)
    name = following.group() if following else ""
    last = text[max(start, begin - 24) : begin].split()[-1:] if len(word) < 5 else []
    before, end = "".join(last).strip("\"'(“[").lower(), after + len(name)
    return _Stop(word, begin == start, before, closers, text[after], name, text[end : end + 1])


def _ends_at_period(stop: _Stop) -> bool:
    word = stop.word
    if not word:
        return not (stop.closers and stop.first.islower())
    if stop.opens and not stop.closers and _MARKER.fullmatch(word):
        return False
    if _foreign(stop):
        return False
    if stop.first.islower():
        return not stop.closers and _ordinary(stop)
    if stop.first.isdigit():
        known = word.lower() in _ABBREVIATIONS or (word in _COARSE and stop.before[-1:].isdigit())
        return not known and (len(word) > 1 or _letter_ends(stop))
    return _ends_before_capital(stop)


def _foreign(stop: _Stop) -> bool:
    """A period inside a German, French or Spanish sentence: Hr. Müller, am 3. Oktober, p. ex., EE. UU."""
    word, small = stop.word, stop.word.lower()
    if word.isdigit():
        return len(word) < 3 and (stop.after in _ORDINALS or stop.before in _BEFORE_ORDINALS)
    pair = (stop.before, small) == ("p.", "ex") or (word, stop.after) == ("EE", "UU")
    street = len(word) > 5 and word.endswith("str") and stop.first.isdigit()
    shortened = small in _FOREIGN and word[1:].islower()
    return shortened or pair or street or word in ("Hr", "Fr") or (small == "usw" and stop.first.islower())


def _ordinary(stop: _Stop) -> bool:
    """A word that is no abbreviation, as far as a small letter after it allows to say."""
    word, small = stop.word, stop.word.lower()
    if word.isdigit():
        return True
    unit = word in _UNITS and stop.before[-1:].isdigit()
    known = small in _ABBREVIATIONS or word in _SHORTENED or "." in word or unit
    # Frisbee. dog, but no NASA. and Ph. d
    capital = len(word) > 2 and word[0].isupper() and word[1:].islower()
    usual = capital or (len(word) > 1 and word.islower())
    return usual and not known and _VOWEL.search(small) is not None


def _ends_before_capital(stop: _Stop) -> bool:
    word = stop.word.lower()
    initial = len(stop.after) == 1 and stop.mark == "."
    starter = (stop.after in _STARTERS and not initial) or (len(stop.after) == 1 and stop.mark == ")")
    initials = "." in word and all(len(part) == 1 and part.isalpha() for part in word.split("."))
    if word in _ABBREVIATIONS and (stop.first in "([" or ")" in stop.closers):
        return False
    if word in _TITLES or word in _INNER:
        return False
    if word in _NUMBERED:
        return len(stop.after) > 1 and (starter or word == "no")
    if word in _FREE:
        return stop.after not in _ZONES
    if word in _EITHER or initials:
        return starter
    return len(word) > 1 or starter or (_letter_ends(stop) and not initial)


def _letter_ends(stop: _Stop) -> bool:
    """Whether a single letter or digit before the period is the name of a thing: "panel B. Cells divide"."""
    return stop.word.isdigit() or stop.before in _LABELS or stop.before[-1:].isdigit()
