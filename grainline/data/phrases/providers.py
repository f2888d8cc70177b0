"""Providers by name: `rules`, `spacy:PIPELINE`, or a file that `grainline data phrases` wrote."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any, get_args

import numpy as np

from grainline.data import lines
from grainline.data.captions import in_other_script, sentences
from grainline.data.phrases import lexicon
from grainline.data.phrases.context import Sentence, Word
from grainline.data.phrases.patterns import Kind, Phrase, Provider, Tagged, Token, extract
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
    """Whether the rules can read a text: mostly Latin letters, few German, French or Spanish articles."""
    if in_other_script(text):
        return False
    words = re.findall(r"\w+", text.lower())
    foreign = sum(word in lexicon.FOREIGN for word in words)
    usual = lexicon.STOP - lexicon.FOREIGN
    return foreign < 2 or foreign <= sum(word in usual for word in words)


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
        start, matches = sentence.start, _TOKEN.finditer(sentence.text)
        words = [Word(m.group(), m.group().lower(), start + m.start(), start + m.end()) for m in matches]
        letters = "".join(Sentence(words).letters)
        first = len(tokens)
        tokens += [Token(w.text, w.start, w.end, POS[x]) for w, x in zip(words, letters, strict=True)]
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


# Phrases of a file of JSON Lines, which `grainline data phrases` writes.
#
# The first line is a header; then there is one line for each record of the source, in its order:
#
#     {"grainline": "phrases 1", "provider": "rules 1", "source": "<fingerprint>"}
#     {"record": 0, "key": "a", "texts": {"<digest>": [["noun", 0, 5], ["relation", 9, 20]]}}
#     {"record": 1, "skipped": "missing-caption", "where": "b.json"}
#
# A text is identified by its digest, so that a changed caption is noticed; the file does not hold the words.
# Phrases are unfiltered.

FORMAT = "phrases 1"
AGAIN = "make it again with `grainline data phrases`"
_DIGEST = re.compile(rb'"([0-9a-f]{32})"\s*:\s*\[')


def digest(text: str) -> str:
    """The id of a text: 32 hexadecimal digits of its sha256."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class StoredPhrases:
    """A provider that looks texts up. Opening it reads the file once; 16 bytes a text stay in memory."""

    def __init__(self, path: Path) -> None:
        """Raises UserError where the file cannot be read or is no file of phrases."""
        self.path = path
        self.name = str(read_header(path)["provider"])
        digests, offsets = [], []
        with path.open("rb") as file:
            offset = len(file.readline())
            for line in file:
                halves = [int(match[1][:16], 16) for match in _DIGEST.finditer(line)]
                digests += halves
                offsets += [offset] * len(halves)
                offset += len(line)
        order = np.argsort(np.array(digests, dtype=np.uint64), kind="stable")
        self.digests = np.array(digests, dtype=np.uint64)[order]  # [texts] sorted, the first half of each
        self.offsets = np.array(offsets, dtype=np.int64)[order]  # [texts] where its line begins

    def phrases(self, text: str) -> list[Phrase]:
        """The phrases of a text in the file. Raises UserError for a text that the file does not know."""
        name, excerpt = digest(text), repr(text if len(text) < 60 else text[:60] + "...")
        half = np.uint64(int(name[:16], 16))
        first, end = (int(np.searchsorted(self.digests, half, side)) for side in ("left", "right"))
        for offset in map(int, self.offsets[first:end]):
            what = f"the line at byte {offset}"
            with self.path.open("rb") as file:
                file.seek(offset)
                line = file.readline()
            try:
                texts = dict(json.loads(line)["texts"])
                if name not in texts:
                    continue
                what = f"the phrases of {excerpt}"
                phrases = [Phrase(kind, start, end) for kind, start, end in texts[name]]
                for kind, start, end in phrases:
                    what = f"the phrase {[kind, start, end]} of {excerpt}"
                    numbers = isinstance(start, int) and isinstance(end, int)
                    if kind not in get_args(Kind) or not numbers or not 0 <= start < end <= len(text):
                        raise ValueError
                return phrases
            except (ValueError, KeyError, TypeError):
                raise UserError(f"{self.path}: {what} cannot be read; {AGAIN}") from None
        raise UserError(f"{self.path} has no phrases of the text {excerpt}: the data has changed; {AGAIN}")


def read_header(path: Path) -> dict[str, Any]:
    """The first line of a file of phrases; UserError where there is none."""
    return lines.read_header(path, FORMAT, {"provider", "source"}, AGAIN)


def open_provider(name: str) -> Provider:
    """The provider of that name. Raises UserError where there is none, or where it cannot be opened."""
    kind, _, rest = name.partition(":")
    if name == "rules":
        return Rules()
    if kind == "spacy" and rest:
        return Pipeline(rest)
    if name.endswith(".jsonl"):
        return StoredPhrases(Path(name))
    raise UserError(f"no provider of phrases {name!r}; there are rules, spacy:PIPELINE and FILE.jsonl")
