"""Phrases by rule: words of closed classes, the endings of the others, and their neighbours. Nothing to download.

Every word gets one letter (the classes of words.py and those below), first from the word alone, then, where
that leaves a choice, from what stands before and after it. Noun chunks are a regular expression over the
letters. What the rules assume where English leaves it open:
  - a word without a telling ending is a noun, after a form of "to be" without a determiner an adjective;
  - a word in -s after a noun is the verb of its clause if the clause has none yet and what follows can follow a
    verb, else a plural;
  - a word in -ing or -ed after a noun opens a clause of its own ("a man wearing"), before a noun it describes
    it ("the rising sun").
"""

import re
from typing import NamedTuple

from grainline.data.captions import sentences
from grainline.data.phrases import words
from grainline.data.phrases.base import Phrase, Tagged, Token
from grainline.data.phrases.patterns import extract

# Letters beside those of words.py: N noun, R name, V verb, K the 's of a possessive, Q quotation mark,
# "," comma, "." other mark. Open until the neighbours decide: n plain, s in -s, g in -ing, d in -ed.
OPEN = "nsgd"
NAMEABLE = frozenset("nsgdNRAE")  # what can follow a word that describes it

POS = {
    **{"D": "DET", "P": "PRON", "O": "PRON", "M": "NUM", "A": "ADJ", "B": "ADV", "I": "ADP", "C": "CCONJ"},
    **{"S": "SCONJ", "X": "AUX", "T": "PART", "N": "NOUN", "R": "PROPN", "V": "VERB", "K": "PART"},
    **{"Q": "PUNCT", ",": "PUNCT", ".": "PUNCT"},
}

_TITLES = "|".join(sorted(words.INITIALS))
_TOKEN = re.compile(
    rf"""(?i:\b(?:{_TITLES}))\.(?=\s+[A-Z])   # Mt. Wilson
    | \b[A-Z]\.(?=\s*[A-Z])                   # Susan B. Anthony
    | \d[\d,.]*\d(?![\w-]) | ['’]s\b
    | \w+ (?: [-/]\w+ | ['’](?!s\b)\w+ )* | \S""",
    re.VERBOSE,
)
_WORD = re.compile(r"\w")
_NUMBER = re.compile(r"[\d,.]+(?:st|nd|rd|th|s)?$")
_ADJECTIVE = re.compile(
    r"""(?:[^aeiou]ous|eous|ious|ful|less|able|ible|ish|ical|[a-z]{3}ic|[a-z]{2}tural|[a-z]{2}tive|[a-z]{2}sive|[a-z]{3}ary
    |[a-z]{2}cular|[a-z]{3}like|[a-z]{2}tal|[a-z]{3}nal|[a-z]{3}ial|[a-z]{2}ular|[a-z]{2}rior|[a-z]{3}est)$""",
    re.VERBOSE,
)
_NO_ADJECTIVE = re.compile(r"(?:fabric|music|traffic|public|logic|topic|graphic|mosaic|forest|harvest|request|"
                           r"vegetable|table|fable|cable|dish|fish|radish|material|native|locomotive|metal|portal|"
                           r"medal|pedal|hospital|crystal|capital|canal|signal|journal|arsenal|terminal|dial|"
                           r"trial|aerial|interior|exterior|diary|library|glossary|primary|detective|captive)$")  # fmt: skip


class Word(NamedTuple):
    """A token before its neighbours are asked."""

    text: str
    low: str
    start: int
    end: int


class Rules:
    """The built-in provider."""

    name = "rules 1"

    def phrases(self, text: str) -> list[Phrase]:
        """As `Provider.phrases`.

        >>> text = "Two men lean against a wall on the left of the old house."
        >>> [text[p.start : p.end] for p in Rules().phrases(text)]
        ['Two men', 'a wall on the left of', 'the old house', 'lean against', 'on the left of']
        """
        return extract(tagged(text))


def tagged(text: str) -> Tagged:
    """The tokens and noun chunks of all sentences of a text."""
    tokens: list[Token] = []
    chunks: list[tuple[int, int]] = []
    for sentence in sentences(text):
        found = [
            Word(m.group(), m.group().lower(), sentence.start + m.start(), sentence.start + m.end())
            for m in _TOKEN.finditer(sentence.text)
        ]
        letters = "".join(Sentence(found).letters)
        first = len(tokens)
        tokens += [Token(w.text, w.start, w.end, _pos(w, letter)) for w, letter in zip(found, letters, strict=True)]
        chunks += [(first + m.start(), first + m.end()) for m in CHUNK.finditer(letters)]
    return Tagged(tokens, chunks)


def _pos(word: Word, letter: str) -> str:
    return "NOUN" if letter == "E" else POS[letter]


# Words that describe, with commas or "and" between them; behind "is" they are joined by "and" alone, because
# "is full, and white bags" are two phrases. Then the noun, with numbers inside names, and what it possesses.
_ONE = r"B*[AME]"
_MANY = rf"(?:{_ONE}(?:(?:,C?|C)?{_ONE})*)?"
_FEW = rf"(?:{_ONE}(?:C?{_ONE})*)?"
_NOUN = r"(?:[NR]+(?:M[NR]+)*E?|E)"
_OPENED = rf"[DP]+(?:Q(?:[NRAM]+Q(?=[AMNR]))?)?{_MANY}"  # the, the "EXIT" (sign)
CHUNK = re.compile(rf"(?:{_OPENED}|(?<!X){_MANY}|{_FEW}){_NOUN}(?:K{_MANY}{_NOUN})*")


class Sentence:
    """The letters of one sentence, decided from left to right."""

    def __init__(self, found: list[Word]) -> None:
        self.words = found
        self.letters = [alone(word, i == 0) for i, word in enumerate(found)]
        self.finite = False  # whether the clause has its verb
        self.outer: list[bool] = []  # the same of the clauses around it
        for i in range(len(found)):
            self.letters[i] = self.decided(i)
            self.follow(i)

    def at(self, i: int) -> str:
        """The letter at a place; "." outside the sentence."""
        return self.letters[i] if 0 <= i < len(self.letters) else "."

    def low(self, i: int) -> str:
        """The word at a place in small letters."""
        return self.words[i].low if 0 <= i < len(self.words) else ""

    def follow(self, i: int) -> None:
        """Keep account of clauses."""
        letter = self.letters[i]
        if letter == "S":
            self.outer.append(self.finite)
            self.finite = False
        elif letter == "," and self.outer:
            self.finite = self.outer.pop()
        elif letter == "C" and self.at(i - 1) == "," and self.letters[:i].count(",") == 1:
            self.finite = False  # ", and": a clause of its own, unless other commas make it a list
        elif letter == "." and self.low(i) in ".;:!?":
            self.outer, self.finite = [], False
        elif letter == "X":
            self.finite = True
        elif letter == "V" and not self.low(i).endswith("ing"):
            self.finite = self.finite or not self.reduced(i)

    def reduced(self, i: int) -> bool:
        """A participle right after its noun: the clause still waits for its verb."""
        return self.low(i).endswith("ed") or self.low(i) in words.PARTICIPLES or self.at(i - 1) in "CX,."

    def decided(self, i: int) -> str:
        """The letter of a word, given all before it and the open letters behind it."""
        letter = self.letters[i]
        if letter in _DECIDE:
            return _DECIDE[letter](self, i)
        return letter

    # --- words of closed classes that have two of them ---

    def determiner(self, i: int) -> str:
        """that, this, one of them, all: before a noun, or alone."""
        if self.low(i) in ("a", "an", "the"):
            return "D"
        return "D" if self.at(i + 1) in "nsgdNRAMEDPBQ" else "O"

    def clause(self, i: int) -> str:
        """that: before a noun that no noun stands before, a determiner."""
        if self.low(i) == "that" and self.at(i - 1) not in "NREVOs" and self.at(i + 1) in "nsNRAI":
            return "D" if self.at(i + 1) != "I" else "O"
        return "S"

    def preposition(self, i: int) -> str:
        """Adverbs where nothing follows them; "to" before a plain verb; "as" before a clause."""
        low, after = self.low(i), self.at(i + 1)
        if low == "to" and self.infinitive(i + 1):
            return "T"
        if low == "as" and (after == "O" or self.low(i + 1) in ("well", "if")):
            return "S" if after == "O" else "B"
        if after in ".," and low not in words.PARTICIPLES and low not in words.PARTICLES:
            return "B"
        return "I"

    def infinitive(self, i: int) -> bool:
        if self.low(i) in words.BE or self.low(i) in ("have", "do"):
            return True
        return self.at(i) == "n" and (self.low(i) in words.PLAIN_VERBS or self.at(i + 1) in "DPO")

    def auxiliary(self, i: int) -> str:
        """the can: a noun behind its determiner."""
        return "N" if self.at(i - 1) == "D" and self.low(i) in ("can", "will", "might", "must") else "X"

    def adverb(self, i: int) -> str:
        return "A" if self.low(i) in words.LY_ADJECTIVES else "B"

    def adjective(self, i: int) -> str:
        """An adjective without a noun behind its determiner is one itself: "the tallest", "in white"."""
        before, after = self.at(i - 1), self.at(i + 1)
        if after in "nsgdNRAMEBC," or self.low(i) in ("next", "close", "far", "due", "other", "same", "few"):
            return "A"
        j = i - 1
        while self.at(j) in "AM":
            j -= 1
        opened = self.at(j) in "DP" and not (self.at(j - 1) == "X" and self.low(i).endswith("est"))
        return "N" if opened or (before == "I" and after in ".I") else "A"

    def place(self, i: int) -> str:
        """left, top: a noun after what describes it, an adverb after a verb."""
        if self.at(i - 1) in "DPAMIE" or self.at(i + 1) in "nsNRAE":
            return "E"
        return "B" if self.at(i - 1) in "VBX" else "N"

    # --- open words ---

    def plain(self, i: int) -> str:
        """A noun, unless something asks for a verb or an adjective."""
        low, before, after = self.low(i), self.at(i - 1), self.at(i + 1)
        j = i - 1 - (before == "B")  # "can clearly see"
        if self.low(j) in words.MODAL or before == "T":
            return "V"
        if low in words.PASTS and before in "NROSBEC," and self.at(i + 1) not in "nsN":
            return "V"
        if after in "AE" and self.at(i + 2) in NAMEABLE and before in "DPAMICKX,.BQ":
            return "A"  # "a light blue band"
        if "-" in low and (after in NAMEABLE or (after == "," and before in "DA,")):
            return "A"
        if self.low(j) in words.SUBJECTS and (after in "DPOIBMTnsAVR" or low in words.PLAIN_VERBS):
            return "V"
        if before == "O" and low in words.PLAIN_VERBS:
            return "V"
        if (self.low(j) in words.BE or self.low(j) in words.LINKING) and after not in "nsNRK":
            return "N" if after == "I" and self.low(i + 1) == "of" else "A"
        if before == "C" and self.at(i - 2) == "A" and after in ".,IC" and self.predicate(i - 2):
            return "A"
        asked = after in "DPOIBM." or low in words.PLAIN_VERBS
        if self.plural_subject(j) and not self.finite and asked and not self.later(i):
            return "V"
        if before == "C" and after in "DPIOB" and (low in words.PLAIN_VERBS or self.at(i - 2) == "V"):
            return "V"
        return "N"

    def plural_subject(self, i: int) -> bool:
        return self.at(i) in "NR" and self.low(i).endswith("s") and not self.low(i).endswith("ss")

    def predicate(self, i: int) -> bool:
        """Whether an adjective stands alone behind a form of "to be"."""
        while self.at(i) in "AB":
            i -= 1
        return self.low(i) in words.BE or self.low(i) in words.LINKING

    def third(self, i: int) -> str:
        """In -s: a plural, or the verb of the clause."""
        before, after, verb = self.at(i - 1), self.at(i + 1), self.low(i) in words.THIRD_VERBS
        if before in "DPAMITKVXQ" or (before == "." and i < 2):
            return "N"
        if before == "O" or self.low(i - 1) in ("which", "that", "who") or (before == "S" and after in "DPO"):
            return "V"
        if before == "B" and self.at(i - 2) in "NROSE":
            before = "N"
        if before == "C":
            return "V" if (verb and after in "DPIOBAVM.nds") or (self.finite and after in "DPO") else "N"
        if before == ",":
            return "V" if verb and after in "DPIOB" else "N"
        if before not in "NREO" or after not in "DPOIBMVAECSTdgns.R":
            return "N"
        return self.verb_of(i, verb)

    def verb_of(self, i: int, verb: bool) -> str:
        """A word in -s behind a noun: does the clause need it?"""
        after = self.at(i + 1)
        singular = self.low(self.opening(i)) in words.SINGULAR
        if self.later(i) and not verb:
            return "N"
        if self.finite and not verb and not (singular and after in "DPO"):
            return "N"
        if verb:
            return "V" if after != "." or not self.finite else "N"
        if self.at(self.opening(i) - 1) == "I" and self.at(self.opening(i)) not in "DP" and after not in "DPO":
            return "N"
        return "V" if after in "DPOIBMT" or (singular and after in "ARnsd") or after in "Rg" else "N"

    def opening(self, i: int) -> int:
        """Where the noun phrase before a place begins."""
        j = i - 1
        while self.at(j - 1) in "NRAMDPKEB" and j > 0:
            j -= 1
            if self.at(j) in "DP":
                break
        return j

    def later(self, i: int) -> bool:
        """Whether a sure verb follows in the clause."""
        for j in range(i + 1, len(self.words)):
            letter = self.letters[j]
            if letter in "S;" or (letter == "." and self.low(j) not in "()") or letter == ",":
                return False
            if letter == "X" or (letter == "s" and self.low(j) in words.THIRD_VERBS and self.at(j + 1) in "DPIBO"):
                return letter != "X" or self.at(j - 1) not in "CS"
        return False

    def doing(self, i: int) -> str:
        """In -ing."""
        before, after = self.at(i - 1), self.at(i + 1)
        if "-" in self.words[i].text:
            return "A"
        if before in "DPAMKE":
            return "A" if after in NAMEABLE else "N"
        if before in "IC,.T" and after in "nsNRAd":
            return "A" if before in "IC" and after in "nsN" and not self.low(i - 1) == "by" else "V"
        if before == "I":
            return "V" if after in "DPORMB" else "N"
        return "V"

    def done(self, i: int) -> str:
        """In -ed and other participles."""
        before, after = self.at(i - 1), self.at(i + 1)
        if "-" in self.words[i].text:
            return "A"
        if before in "DPMK" or (before in "A" and not self.predicate(i - 1)):
            return "A" if after in NAMEABLE or after in ",BI" else "N"
        if before in "XTOS":
            return "V"
        if before in "NRE" and after in "nsN":
            inside = self.at(self.opening(i)) in "DPA" and after == "n" and self.at(i + 2) not in "DPO"
            return "A" if inside and self.finite else "V"
        if before in ".,ICQ" and after in "nsNRA":
            return "A"
        if before == "B" and after in "nsNA":
            return "A" if self.at(i - 2) not in "NRXOE" else "V"
        return "V"


def alone(word: Word, first: bool) -> str:
    """The letter of a word by itself: its class, or one of the open letters."""
    text, low = word.text, word.low
    if low in ("'s", "’s"):
        return "K"
    if not _WORD.match(text):
        return "," if text == "," else "Q" if text in "\"“”‘’'`«»" else "C" if text == "&" else "."
    if _NUMBER.match(text):
        return "M"
    if text == "A" and not first:
        return "D"
    letter = words.CLASS.get(low)
    if letter is not None:
        return letter
    if text[0].isupper() and not first:
        return "R"
    return _by_ending(low)


def _by_ending(low: str) -> str:
    if low.endswith("ly") and low not in words.NO_LY:
        return "B"
    if low.endswith(("ward", "wards", "wise")):
        return "B"
    if low.endswith("ing") and low not in words.NO_ING and re.search(r"[aeiouy]", low[:-3]):
        return "g"
    if low in words.PARTICIPLES or (low.endswith("ed") and low not in words.NO_ED and len(low) > 4):
        return "d"
    if low.endswith("s") and not low.endswith(("ss", "us", "is")):
        return "s"
    if (_ADJECTIVE.search(low) and not _NO_ADJECTIVE.search(low)) or (low.endswith("y") and low[-3:-1] in _DOUBLED):
        return "A"
    return "n"


_DOUBLED = frozenset({"nn", "zz", "gg", "ff", "dd", "ud", "ss", "sh", "ow", "rt", "sp", "ck", "az", "ck", "ok"})
_DECIDE = {
    "D": Sentence.determiner,
    "S": Sentence.clause,
    "I": Sentence.preposition,
    "B": Sentence.adverb,
    "A": Sentence.adjective,
    "E": Sentence.place,
    "n": Sentence.plain,
    "s": Sentence.third,
    "X": Sentence.auxiliary,
    "g": Sentence.doing,
    "d": Sentence.done,
}
