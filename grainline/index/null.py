"""How sure is an answer? What queries score that have nothing to find.

The best score of a query says little by itself: some texts score high with everything. An index therefore
keeps texts that describe other pictures, and what each of them scores with every picture of the index.
In four steps:
  1. the scores of a query are standardised: minus their mean, over their spread, both over a background of
     at most 256 pictures of the index, the same ones for every query;
  2. the standardised best score of each null text is what a query without a match reaches;
  3. `chance` is the share of null texts that reach the score of the hit: (1 + reached) / (1 + texts);
  4. a hit is sure where its chance is at most the level: of queries without a match, at most that share is
     called sure, if they are like the null texts.

A query of one sentence is judged by null texts of one sentence, since fewer sentences mean wilder scores.
A null text whose own picture is in the index, found by the hash of its bytes, does not see that picture.

A picture as the query is judged by its score as it stands: 1 means the same in every index, and a copy, which
no mean and spread may turn into something less, reaches it. The null values are what pictures of the index
score with their nearest neighbours, so `chance` says how many of them have one that is as near.

The level holds as well as the null texts are many: with n of them the true share of false alarms at the level
0.05 has a spread of sqrt(0.05 * 0.95 / n) between sets of null texts, 1.1 points for 400 and 0.7 for 1,000.

A sentence of a query is judged apart, in the picture that was found: its chance is the share of pairs of a
null sentence and a background picture that score at least as high. Sentences of different kinds score at
different levels, so every score is first taken relative to the TOP best scores of its sentence over the
background: what a picture gives it that shows it, or nearly so. Mean and spread, as in step 1, tell true
sentences from false ones less well (`benchmarks/bench_calibration.py`).
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from grainline.data.captions import sentences
from grainline.data.record import Damaged, Record, Source
from grainline.data.sources import open_source
from grainline.data.sources.plain import read_lines
from grainline.errors import UserError
from grainline.files import Corrupt, write_text
from grainline.index.folder import NPY, Part, new_part, seal_of
from grainline.index.pages import Column
from grainline.index.segment import ASIDES, NULL, check_part, save_array
from grainline.model import Model
from grainline.types import Encoded, vectors_only

TEXTS = 1_000  # texts, and single sentences, that are kept, at most
BACKGROUND = 256
SAME = 1e-5  # from 1: closer vectors are of one picture; encoding it again moves them by 2e-7
FEWEST = 16  # pictures that a mean and a spread need
TOP = 0.1  # share of the background that says what a sentence scores where it is shown
DRAWN = f"scenes:dev?count={TEXTS}&size=32&seed=1618"
FILE = "texts.json"
FIELDS = ("vector", "tokens", "mask", "item", "image")  # of Encoded: all that scores read


class NullTexts(NamedTuple):
    """Texts that describe other pictures."""

    source: str
    texts: tuple[str, ...]  # [Q]
    owners: tuple[str, ...]  # [Q] sha256 of the picture that a text describes, "" if not known
    asides: tuple[str, ...]  # [P] single sentences
    aside_owners: tuple[str, ...]  # [P]


def gather_texts(path: str | None) -> NullTexts:
    """The null texts of a source with captions, of a .txt file with one text a line, or drawn ones."""
    where = path or DRAWN
    pairs = (
        [(line, "") for line in read_lines(where)]
        if where.endswith(".txt")
        else _captions(open_source(where, size=None), where)
    )
    texts = _spread(pairs, TEXTS)
    single = [
        (said[0][i % len(said[0])].text, said[1])
        for i, said in enumerate((sentences(text), owner) for text, owner in texts)
        if said[0]
    ]
    single = _spread(list(dict.fromkeys(single)), TEXTS)
    if len(texts) < 20:
        raise UserError(f"{where} holds {len(texts)} texts; how sure a search is needs 20 of them at least")
    return NullTexts(
        where,
        tuple(text for text, _ in texts),
        tuple(owner for _, owner in texts),
        tuple(text for text, _ in single),
        tuple(owner for _, owner in single),
    )


def encode_null(model: Model, null: NullTexts) -> dict[str, Encoded]:
    """The null texts and single sentences as the method compares them, in float32.

    A method whose score is a product of vectors needs no more than these.
    """
    found = {NULL: model.encode(texts=null.texts), ASIDES: model.encode(texts=null.asides)}
    return found if model.method.pairwise else {name: vectors_only(one) for name, one in found.items()}


def write_null(target: Path, null: NullTexts, encoded: Mapping[str, Encoded]) -> Part:
    """Write the texts as a sealed folder, and encoded. OSError leaves nothing."""
    with new_part(target, {"texts": len(null.texts)}) as folder:
        write_text(folder / FILE, json.dumps(null._asdict(), indent=1) + "\n")
        for name, one in encoded.items():
            for field in FIELDS:
                save_array(folder / f"{name}-{field}.npy", getattr(one, field).cpu().numpy())
    return Part(target.name, seal_of(target), len(null.texts))


def read_encoded(target: Path, part: Part) -> dict[str, Encoded]:
    """The encoded texts that `write_null` wrote. Raises Corrupt, and UserError for damage."""
    sealed = check_part(target, part)
    out = {}
    for name in (NULL, ASIDES):
        arrays = [Column(target / f"{name}-{field}{NPY}", sealed).whole() for field in FIELDS]
        out[name] = Encoded(*(torch.from_numpy(array.copy()) for array in arrays))
    return out


def read_null(target: Path) -> NullTexts:
    """Read what `write_null` wrote; raises Corrupt."""
    try:
        values = json.loads((target / FILE).read_text(encoding="utf-8"))
        source = values.pop("source")
        return NullTexts(source, **{name: tuple(value) for name, value in values.items()})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise Corrupt(f"the null texts cannot be read ({error})") from None


class Standard(NamedTuple):
    """Mean and spread of the scores of some queries over the background."""

    mean: np.ndarray  # [Q]
    spread: np.ndarray  # [Q]

    def apply(self, score: np.ndarray) -> np.ndarray:
        """score  [K, Q]"""
        standard: np.ndarray = (score - self.mean) / self.spread
        return standard


def background(hashes: Sequence[str]) -> np.ndarray:
    """Which rows are the background: [B], those whose hashes are smallest, whatever order they stand in."""
    return np.argsort(np.array(hashes), kind="stable")[:BACKGROUND]


def standard(score: np.ndarray, seen: np.ndarray | None = None) -> Standard:
    """Mean and spread of each query; of too few pictures 0 and 1, which leaves scores as they are.

    score  [B, Q] of the background
    seen   [B, Q] bool, scores that count; all if None
    """
    if len(score) < FEWEST:
        return Standard(np.zeros(score.shape[1]), np.ones(score.shape[1]))
    hidden = np.zeros(score.shape, bool) if seen is None else ~seen
    kept = np.ma.masked_array(score.astype(np.float64), hidden)
    return Standard(kept.mean(0).filled(0.0), np.maximum(kept.std(0).filled(1.0), 1e-6))


def shown(score: np.ndarray, seen: np.ndarray | None = None) -> np.ndarray:
    """What each sentence scores where it is shown, or nearly so: [P]

    The mean of the TOP best scores, of two pictures at least; 0 for too few pictures, which leaves scores as
    they are.

    score  [B, P] of the background
    seen   [B, P] bool, scores that count; all if None

    >>> shown(np.arange(20.0)[:, None]).tolist()
    [18.5]
    """
    if len(score) < FEWEST:
        return np.zeros(score.shape[1])
    counted = score if seen is None else np.where(seen, score, -np.inf)
    number = max(2, round(TOP * len(score)))
    best: np.ndarray = np.partition(counted.astype(np.float64), -number, axis=0)[-number:].mean(0)
    return best


def best_scores(blocks: Iterable[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """The best score of each null text: [Q]

    blocks  scores [K, Q] of some pictures, and [K, Q] bool, whose own picture each is
    """
    best = []
    for score, own in blocks:
        if len(score):
            seen = score.astype(np.promote_types(score.dtype, np.float32))  # numpy is slow at float16
            seen[own] = -np.inf
            best.append(seen.max(0))
    top: np.ndarray = np.max(best, axis=0).astype(np.float64)
    return top


def chance(null: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Share of the sorted null values that reach each value: (1 + reached) / (1 + number).

    >>> chance(np.array([1.0, 2.0, 3.0]), np.array([0.0, 2.0, 9.0])).tolist()
    [1.0, 0.75, 0.25]
    """
    reached = len(null) - np.searchsorted(null, value, side="left")
    share: np.ndarray = (1 + reached) / (1 + len(null))
    return share


def owned(hashes: Sequence[str], owners: Sequence[str]) -> np.ndarray:
    """Which picture a text describes: [N, Q] bool."""
    columns: dict[str, list[int]] = {}
    for column, owner in enumerate(owners):
        if owner:
            columns.setdefault(owner, []).append(column)
    out = np.zeros((len(hashes), len(owners)), dtype=bool)
    for row, sha256 in enumerate(hashes):
        if sha256 in columns:
            out[row, columns[sha256]] = True
    return out


def _captions(source: Source, where: str) -> list[tuple[str, str]]:
    """Texts of a source with the hashes of their pictures; damaged samples are passed over."""
    found: list[tuple[str, str]] = []
    step = max(1, len(source) // (2 * TEXTS))
    for i in range(0, len(source), step):
        try:
            record = source[i]
        except Damaged:
            continue
        if record.whole.strip():
            found.append((record.whole, _owner(record)))
    if not found:
        raise UserError(
            f"no captions in {where}; --null wants a source with captions, or a .txt file of texts"
        )
    return found


def _owner(record: Record) -> str:
    return "" if isinstance(record.image, Image.Image) else hashlib.sha256(record.image).hexdigest()


def _spread(values: list[tuple[str, str]], most: int) -> list[tuple[str, str]]:
    """At most so many of them, evenly spread."""
    if len(values) <= most:
        return values
    return [values[i * len(values) // most] for i in range(most)]
