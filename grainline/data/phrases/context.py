"""The class of each word, as a letter: by the word itself, then from left to right by its neighbours.

The letters are the classes of lexicon.py, and: N noun, R name, V verb, K the 's of a possessive, Q quotation
mark, "," comma, "." other mark. Open until the neighbours decide: n without a typical ending, s in -s, g in
-ing, d in -ed. Strings such as "DPO" are sets of letters. What the rules assume where English is ambiguous:
  - a word without a typical ending is a noun, behind a form of "to be" without a determiner an adjective;
  - a word in -s behind a noun is the verb of its clause if the clause has none yet and what follows can
    follow a verb, else a plural;
  - a word in -ing or -ed behind a noun opens a clause ("a man wearing"), before a noun it describes it.
"""

import re
from typing import NamedTuple

from grainline.data.phrases import lexicon

# ruff: noqa: RUF001 (typographic quotation marks are what this file is about)

NAMEABLE = frozenset("nsgdNRAE")  # what can follow a word that describes it

_WORD = re.compile(r"\w")
_NUMBER = re.compile(r"[\d,.]+(?:st|nd|rd|th|s)?$")
_ADJECTIVE = re.compile(
    r"""(?: [^aeiou]ous | eous | ious | ful | less | able | ible | ish | ical | ..like | ..[ts]ive | ..[uv]lar
    | ..tural | ..cular | ..tal | ...nal | ...ial | ...ic | ...ary | ..rior | ...est
    | (?: nn|zz|gg|ff|dd|ud|ss|sh|ow|rt|sp|ck|az|ok )y )$""",
    re.VERBOSE,
)
_NO_ADJECTIVE = re.compile(  # words with such an ending that are mostly names of things
    r"""(?: fabric|music|traffic|public|logic|topic|graphic|mosaic|forest|harvest|request|vegetable|table
    |fable|cable|dish|fish|radish|material|native|locomotive|metal|portal|medal|pedal|hospital|crystal
    |capital|canal|signal|journal|arsenal|terminal|dial|trial|aerial|interior|exterior|diary|library
    |glossary|primary|detective|captive )$""",
    re.VERBOSE,
)


class Word(NamedTuple):
    """A token of a sentence."""

    text: str
    low: str
    start: int
    end: int


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
    letter = lexicon.CLASS.get(low)
    if letter in ("A", None) and text[0].isupper() and not first:
        return "R"  # Dr. Brown, OPEN
    return letter or _by_ending(low)


def _by_ending(low: str) -> str:
    """The letter of a word of an open class."""
    if low.endswith(("ward", "wards", "wise")) or (low.endswith("ly") and low not in lexicon.NO_LY):
        return "B"
    if low.endswith("ing") and low not in lexicon.NO_ING and re.search(r"[aeiouy]", low[:-3]):
        return "g"
    if low in lexicon.PARTICIPLES or (low.endswith("ed") and low not in lexicon.NO_ED and len(low) > 3):
        return "d"
    if low.endswith("s") and not low.endswith(("ss", "us", "is")):
        return "s"
    return "A" if _ADJECTIVE.search(low) and not _NO_ADJECTIVE.search(low) else "n"


REACH = 60  # words that are searched backward or forward, so that time is linear in the length of the text


class Sentence:
    """The letters of one sentence, decided from left to right."""

    def __init__(self, words: list[Word]) -> None:
        self.words = words
        self.letters = [alone(word, i == 0) for i, word in enumerate(words)]
        self.finite = False  # whether the clause has its verb
        self.outer: list[bool] = []  # the same of the clauses around it
        self.commas = 0
        self.resumed = -1  # the comma that last ended a clause inside another
        for i in range(len(words)):
            self.letters[i] = self.decided(i)
            self.follow(i)

    def at(self, i: int) -> str:
        """The letter at a place; "." outside the sentence."""
        return self.letters[i] if 0 <= i < len(self.letters) else "."

    def low(self, i: int) -> str:
        """The word at a place in small letters."""
        return self.words[i].low if 0 <= i < len(self.words) else ""

    def back(self, i: int, over: str) -> int:
        """The place before a run of these letters that ends at i, or REACH words back."""
        first = i - REACH
        while i > first and self.at(i) in over:
            i -= 1
        return i

    def follow(self, i: int) -> None:
        """Keep account of clauses."""
        letter = self.letters[i]
        self.commas += letter == ","
        if letter == "S":
            self.outer.append(self.finite)
            self.finite = False
        elif letter == "," and self.outer:
            self.finite, self.resumed = self.outer.pop(), i
        elif letter == "C" and self.at(i - 1) == "," and self.commas == 1:
            self.finite = False  # ", and": a clause of its own, unless other commas make it a list
        elif letter == "." and self.low(i) in ".;:!?":
            self.outer, self.finite = [], False
        elif letter == "X":
            self.finite = True
        elif letter == "V" and not self.low(i).endswith("ing"):
            self.finite = self.finite or not self.reduced(i)

    def reduced(self, i: int) -> bool:
        """A participle right after its noun: the clause still waits for its verb."""
        return self.low(i).endswith("ed") or self.low(i) in lexicon.PARTICIPLES or self.at(i - 1) in "CX,."

    def decided(self, i: int) -> str:
        """The letter of a word, given all before it and the open letters behind it."""
        letter = self.letters[i]
        return _DECIDE[letter](self, i) if letter in _DECIDE else letter

    # --- words of closed classes that have two of them ---

    def determiner(self, i: int) -> str:
        """that, this, one of them, all: before a noun, or alone."""
        if self.low(i) == "a" and self.low(i - 1) == "(" and self.low(i + 1) == ")":
            return "R"
        if self.low(i) in ("a", "an", "the"):
            return "D"
        if self.low(i) in ("this", "that") and self.low(i + 1) in lexicon.THIRD_VERBS:
            return "O"
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
        if after in ".," and low not in lexicon.PARTICIPLES and low not in lexicon.PARTICLES:
            return "B"
        return "I"

    def infinitive(self, i: int) -> bool:
        """Whether the word behind "to" is a verb."""
        if self.low(i) in lexicon.BE or self.low(i) in ("have", "do"):
            return True
        return self.at(i) == "n" and (self.low(i) in lexicon.PLAIN_VERBS or self.at(i + 1) in "DPO")

    def auxiliary(self, i: int) -> str:
        """the can: a noun behind its determiner."""
        return "N" if self.at(i - 1) == "D" and self.low(i) in ("can", "will", "might", "must") else "X"

    def adverb(self, i: int) -> str:
        """Some in -ly describe nouns; "forward motion", "overhead light"."""
        low = self.low(i)
        noun = self.at(i + 1) in "nsNR" and (low.endswith("ward") or low in ("overhead", "nearby"))
        return "A" if noun or low in lexicon.LY_ADJECTIVES else "B"

    def adjective(self, i: int) -> str:
        """An adjective without a noun behind its determiner is one itself: "the tallest", "in white"."""
        before, after = self.at(i - 1), self.at(i + 1)
        if self.low(i) == "only" and after not in NAMEABLE:
            return "B"
        j = self.back(i - 1, "AM")
        if after == "," and self.at(i + 2) not in "AEngd":
            after = "."
        elif self.low(i + 1) in lexicon.THIRD_VERBS and self.at(j) in "DP" and self.at(i + 2) in "DPIBO":
            after = "V"  # "the square stands on"
        if after in "nsgdNRAMEBC," or self.low(i) in ("next", "close", "far", "due", "other", "same", "few"):
            return "A"
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
        j = i - 1 - (self.at(i - 1) == "B")  # "can clearly see"
        if self.ruled(i, j):
            return "V"
        if self.describes(i):
            return "A"
        if (self.low(j) in lexicon.BE or self.low(j) in lexicon.LINKING) and self.at(i + 1) not in "nsNRK":
            return "N" if self.low(i + 1) == "of" else "A"
        return "V" if self.wanted(i, j) else "N"

    def ruled(self, i: int, j: int) -> bool:
        """A verb for sure: behind "can", "to", "they", or irregular past. j: the word before, no adverb"""
        low, before, after = self.low(i), self.at(i - 1), self.at(i + 1)
        past = low in lexicon.PASTS and before in "NROSBEC," and after not in "nsN"
        object_does = before == "O" and low in lexicon.PLAIN_VERBS  # "making it appear"
        does = self.low(j) in lexicon.SUBJECTS and (after in "DPOIBMTnsVR" or low in lexicon.PLAIN_VERBS)
        return does or self.low(j) in lexicon.MODAL or before == "T" or past or object_does

    def describes(self, i: int) -> bool:
        """Before an adjective of the same noun, or joined to an adjective that stands alone."""
        low, before, after = self.low(i), self.at(i - 1), self.at(i + 1)
        formed = after in "AE" or (after == "d" and "-" in self.low(i + 1))
        if formed and self.at(i + 2) in NAMEABLE and before in "DPAMICKX,.BQ":
            return True  # "a light blue band"
        if "-" in low and (after in NAMEABLE or (after == "," and before in "DA,")):
            return True
        if before in "DPM" and after == "," and self.at(i + 2) == "A" and self.at(i + 3) in NAMEABLE:
            return True  # "two prominent, large buildings"
        return before == "C" and self.at(i - 2) == "A" and after in ".,IC" and self.predicate(i - 2)

    def wanted(self, i: int, j: int) -> bool:
        """A verb that the clause waits for: behind a plural, or joined to another verb."""
        low, after, subject = self.low(i), self.at(i + 1), self.low(j)
        verb_like = after in "DPOIBM." or low in lexicon.PLAIN_VERBS
        plural = (subject.endswith("s") and not subject.endswith("ss")) or subject in lexicon.PLURALS
        if self.at(j) in "NR" and plural and not self.finite and verb_like and not self.later(i):
            return True
        both = low in lexicon.PLAIN_VERBS and self.at(self.opening(i) - 1) == "C" and not self.finite
        if both and self.at(i - 1) in "NR" and after in "DPIOB":
            return True  # "a man and a woman sit on"
        joined = self.at(i - 1) == "C" and (low in lexicon.PLAIN_VERBS or self.at(i - 2) == "V")
        return joined and after in "DPIOB"

    def predicate(self, i: int) -> bool:
        """Whether an adjective stands alone behind a form of "to be"."""
        i = self.back(i, "AB")
        return self.low(i) in lexicon.BE or self.low(i) in lexicon.LINKING

    def third(self, i: int) -> str:
        """Tag of a word in -s: a plural, or the verb of the clause."""
        before, after, verb = self.at(i - 1), self.at(i + 1), self.low(i) in lexicon.THIRD_VERBS
        if before in "DPAMITKVX" or (before == "." and i < 2):
            return "N"
        if before == "O" or self.low(i - 1) in ("which", "that", "who") or (before == "S" and after in "DPO"):
            return "V"
        if before == "B" and self.at(i - 2) in "NROSEC":
            before = self.at(i - 2)
        if self.low(i - 1) == ")" or (before == "Q" and verb):
            before = "N"
        if before == "C":
            return "V" if (verb and after in "DPIOBAVM.nds") or (self.finite and after in "DPOR") else "N"
        if before == ",":
            waiting = self.resumed == i - 1 and not self.finite  # "the train, which is old, waits at"
            return "V" if (verb or waiting) and after in "DPIOB" else "N"
        if before not in "NREO" or after not in "DPOIBMVAECSTdgns.R":
            return "N"
        return self.verb_of(i, verb)

    def verb_of(self, i: int, verb: bool) -> str:
        """A word in -s behind a noun: does the clause need it?"""
        after = self.at(i + 1)
        start = self.opening(i)
        singular = self.low(start) in lexicon.SINGULAR
        if self.later(i) and not verb:
            return "N"
        if after == "E":
            return "N" if self.finite or self.at(i + 2) in NAMEABLE else "V"
        if after == ".":
            return "V" if (singular or verb) and not self.finite else "N"
        if self.finite and not verb and not (singular and after in "DPO"):
            return "N"
        if verb:
            return "V"
        if self.at(start - 1) == "I" and self.at(start) not in "DP" and after not in "DPO":
            return "N"  # "with pearl earrings"
        return "V" if after in "DPOIBMT" or (singular and after in "ARnsd") or after in "Rg" else "N"

    def opening(self, i: int) -> int:
        """The start of the noun phrase before a place: its determiner, if it has one."""
        j = self.back(i - 2, "NRAMKEB") + 1
        return j - 1 if self.at(j - 1) in "DP" else j

    def later(self, i: int) -> bool:
        """Whether a sure verb follows in the clause."""
        for j in range(i + 1, min(i + 1 + REACH, len(self.words))):
            letter = self.letters[j]
            if letter in "S," or (letter == "." and self.low(j) not in "()"):
                return False
            if letter == "X":
                return self.at(j - 1) not in "CS"
            if letter == "s" and self.low(j) in lexicon.THIRD_VERBS and self.at(j + 1) in "DPIBO":
                return True
        return False

    def doing(self, i: int) -> str:
        """Tag of a word in -ing."""
        before, after = self.at(i - 1), self.at(i + 1)
        if "-" in self.words[i].text:
            return "A"
        if before in "DPAMKE":
            return "A" if after in NAMEABLE else "V" if after in "DPO" else "N"
        if before in "IC,.T" and after in "nsNRAd":
            return "A" if before in "IC" and after in "nsN" and self.low(i - 1) != "by" else "V"
        if before == "I":
            return "V" if after in "DPORMB" else "N"
        return "V"

    def done(self, i: int) -> str:
        """Tag of a word in -ed, and of other participles."""
        before, after = self.at(i - 1), self.at(i + 1)
        if "-" in self.words[i].text:
            return "A"
        if before in "DPMK" or (before in "A" and not self.predicate(i - 1)):
            return "A" if after in NAMEABLE or after in ",BI" or self.at(i + 2) in "dA" else "N"
        if before in "XTOS":
            return "V"
        if before in "NRE" and after in "nsN":
            inside = self.at(self.opening(i)) in "DPA" and after == "n" and self.at(i + 2) not in "DPO"
            if inside and self.finite:
                self.letters[i - 1] = "A"  # "a snow covered lake"
                return "A"
            return "V"
        if before in ".,ICQ" and after in "nsNRA":
            return "A"
        if before == "B" and after in "nsNA":
            return "A" if self.at(i - 2) not in "NRXOE" else "V"
        return "V"


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
