"""Phrases labelled by hand, and how found ones are compared with them.

phrases_real.jsonl holds 100 sentences, 50 of OpenStax captions and 50 of IIW-400, drawn by a seed and
labelled before any rule was written: key, offsets of the sentence in its caption, sha256 of the sentence, and
the spans (kind, start, end inside the sentence) that grainline.data.phrases.patterns finds in it if every
word is tagged right. Every second one is held out: rules are never tuned on it. The sentences are not here.
"""

import hashlib
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from grainline.data.phrases.lexicon import CLASS
from grainline.data.phrases.patterns import Phrase

REAL = Path(__file__).parent / "phrases_real.jsonl"


class Labelled(NamedTuple):
    """A sentence and its true phrases."""

    half: str  # "tune" or "held"
    text: str
    phrases: list[Phrase]


def labelled(data: Path) -> list[Labelled]:
    """The sentences that are labelled, read from the data sets; a caption that is another one is an error."""
    rows = [json.loads(line) for line in REAL.read_text().splitlines()]
    captions = _openstax(data / "openstax", {row["key"] for row in rows}) | _iiw(
        data / "benchmarks/imageinwords"
    )
    results = []
    for row in rows:
        text = captions[row["key"]][row["start"] : row["end"]]
        assert hashlib.sha256(text.encode()).hexdigest()[:16] == row["sha256"], row["key"]
        results.append(Labelled(row["half"], text, [Phrase(*span) for span in row["spans"]]))
    return results


def _openstax(folder: Path, keys: set[str]) -> dict[str, str]:
    results = {}
    for path in sorted(folder.glob("train-*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                if member.name.removesuffix(".json") in keys:
                    file = tar.extractfile(member)
                    assert file is not None
                    results[member.name.removesuffix(".json")] = json.load(file)["caption"]
    return results


def _iiw(folder: Path) -> dict[str, str]:
    lines = (folder / "IIW-400/data.jsonl").read_text().splitlines()
    return {row["image/key"]: row["IIW"] for row in map(json.loads, lines)}


def head(text: str, phrase: Phrase) -> tuple[str, int]:
    """What phrases with the same head have in common: kind and the place of a word.

    Of a noun phrase that is its last word before a preposition, of all else its first word.
    """
    place = phrase.start
    if phrase.kind == "noun":
        for word in text[phrase.start : phrase.end].split():
            if CLASS.get(word.lower()) == "I" and place > phrase.start:
                break
            head = text.index(word, place)
            place = head + len(word)
        place = head
    return phrase.kind, place


def agreement(
    text: str, result: Sequence[Phrase], true: Sequence[Phrase], exact: bool
) -> tuple[int, int, int]:
    """How many phrases are found and true, found, and true: by their spans, or only by their heads."""
    if exact:
        return len(set(result) & set(true)), len(set(result)), len(set(true))
    a, b = {head(text, phrase) for phrase in result}, {head(text, phrase) for phrase in true}
    return len(a & b), len(a), len(b)
