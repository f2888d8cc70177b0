"""Providers by name: `rules`, `spacy:PIPELINE`, or a file that `grainline data phrases` wrote."""

import re
from pathlib import Path
from typing import Any

from grainline.data.captions import in_other_script, sentences
from grainline.data.phrases import lexicon
from grainline.data.phrases.context import Sentence, Word
from grainline.data.phrases.patterns import Phrase, Provider, Tagged, Token, extract
from grainline.data.phrases.stored import StoredPhrases
from grainline.errors import UserError

# Phrases by rule: each word gets one letter (context.py), and noun chunks are a regular expression over the
# letters. Nothing to download.
# ruff: noqa: RUF001 (typographic apostrophes)

POS = {
    **{"D": "DET", "P": "PRON", "O": "PRON", "M": "NUM", "A": "ADJ", "B": "ADV", "I": "ADP", "C": "CCONJ"},
    **{"S": "SCONJ", "X": "AUX", "T": "PART", "N": "NOUN", "R": "PROPN", "V": "VERB", "K": "PART"},
    **{"E": "NOUN", "Q": "PUNCT", ",": "PUNCT", ".": "PUNCT"},
}

_TITLES = "|".join(sorted(lexicon.INITIALS))
_TOKEN = re.compile(
    rf"""(?i:\b(?:{_TITLES}))\.(?=\s+[A-Z])   # Mt. Wilson
    | \b[A-Z]\.(?=\s*[A-Z])                   # Susan B. Anthony
    | \d[\d,.]*\d(?![\w-]) | ['’]s\b
    | \w+ (?: [-/]\w+ | ['’](?!s\b)\w+ )* | \S""",
    re.VERBOSE,
)
# Words that describe, with commas or "and" between them; behind "is" they are joined by "and" alone, because
# "is full, and white bags" are two phrases. Then the noun, with numbers inside names, and what it possesses.
_ONE = r"B*[AME]"
_MANY = rf"(?:{_ONE}(?:(?:,C?|C)?{_ONE})*)?"
_FEW = rf"(?:{_ONE}(?:C?{_ONE})*)?"
_NOUN = r"(?:[NR]+(?:M[NR]+)*E?|E)"
_OPENED = rf"[DP]+(?:Q(?:[NRAM]+Q(?=[AMNR]))?)?{_MANY}"  # the, the "EXIT" (sign)
CHUNK = re.compile(rf"(?:{_OPENED}|(?<!X){_MANY}|{_FEW}){_NOUN}(?:K{_MANY}{_NOUN})*")


def is_english(text: str) -> bool:
    """Whether the rules can read a text: mostly Latin letters, few German, French or Spanish articles.

    >>> is_english("Two dogs in Los Angeles"), is_english("Der Hund und das Kind"), is_english("两只狗")
    (True, False, False)
    """
    if in_other_script(text):
        return False
    words = re.findall(r"\w+", text.lower())
    foreign = sum(word in lexicon.FOREIGN for word in words)
    return foreign < 2 or foreign <= sum(
        word in lexicon.STOP for word in words if word not in lexicon.FOREIGN
    )


class Rules:
    """The built-in provider. A text that is not English has no phrases."""

    name = "rules 1"

    def phrases(self, text: str) -> list[Phrase]:
        """The phrases of a text, as `Provider.phrases` says.

        >>> text = "Two men lean against a wall on the left of the old house."
        >>> [text[p.start : p.end] for p in Rules().phrases(text)]
        ['Two men', 'a wall on the left of', 'the old house', 'lean against', 'on the left of']
        """
        return extract(tagged(text)) if is_english(text) else []


def tagged(text: str) -> Tagged:
    """The tokens and noun chunks of all sentences of a text."""
    tokens: list[Token] = []
    chunks: list[tuple[int, int]] = []
    for sentence in sentences(text):
        words = [
            Word(m.group(), m.group().lower(), sentence.start + m.start(), sentence.start + m.end())
            for m in _TOKEN.finditer(sentence.text)
        ]
        letters = "".join(Sentence(words).letters)
        first = len(tokens)
        tokens += [
            Token(w.text, w.start, w.end, POS[letter]) for w, letter in zip(words, letters, strict=True)
        ]
        chunks += [(first + m.start(), first + m.end()) for m in CHUNK.finditer(letters)]
    return Tagged(tokens, chunks)


# Phrases by an installed pipeline of spaCy (extra `text`): `spacy:en_core_web_sm` is what beta-CLIP used.
#
# spaCy tags, parses and finds the noun chunks; everything after that is patterns.py.


class Pipeline:
    """A provider around a pipeline of spaCy."""

    def __init__(self, pipeline: str) -> None:
        """
        pipeline  a name that spacy.load knows, or the folder of a pipeline

        Raises UserError without spaCy, without that pipeline, and where it has no tagger or no parser.
        """
        try:
            import spacy
        except ImportError:
            advice = "spaCy is not installed; pip install 'grainline[text]', or take the provider rules"
            raise UserError(f"provider spacy:{pipeline}: {advice}") from None
        try:
            self.nlp: Any = spacy.load(pipeline)
        except OSError as error:
            advice = f"install it with python -m spacy download {pipeline}"
            raise UserError(f"provider spacy:{pipeline}: no such pipeline ({error}); {advice}") from None
        probe = self.nlp("A cat sits on a mat.")
        missing = [what for what in ("POS", "DEP") if not probe.has_annotation(what)]
        if missing:
            raise UserError(f"provider spacy:{pipeline}: the pipeline gives no {' and no '.join(missing)}")
        self.name = f"spacy {self.nlp.meta['lang']}_{self.nlp.meta['name']} {self.nlp.meta['version']}"

    def phrases(self, text: str) -> list[Phrase]:
        """The phrases of a text, as `Provider.phrases` says."""
        return extract(tagged_by(self.nlp(text)))


def tagged_by(doc: Any) -> Tagged:
    """The tokens and noun chunks of a Doc of spaCy, without tokens of blanks."""
    words = [token for token in doc if token.pos_ != "SPACE"]
    place = {token.i: i for i, token in enumerate(words)}
    tokens = [Token(token.text, token.idx, token.idx + len(token.text), token.pos_) for token in words]
    chunks = []
    for chunk in doc.noun_chunks:
        inside = [place[i] for i in range(chunk.start, chunk.end) if i in place]
        if inside:
            chunks.append((inside[0], inside[-1] + 1))
    return Tagged(tokens, chunks)


def open_provider(name: str) -> Provider:
    """The provider of that name. Raises UserError where there is none, or where it cannot be opened.

    >>> open_provider("rules").name
    'rules 1'
    """
    kind, _, rest = name.partition(":")
    if name == "rules":
        return Rules()
    if kind == "spacy" and rest:
        return Pipeline(rest)
    if name.endswith(".jsonl"):
        return StoredPhrases(Path(name))
    raise UserError(f"no provider of phrases {name!r}; there are rules, spacy:PIPELINE and FILE.jsonl")
