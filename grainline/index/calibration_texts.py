"""The texts that an index is calibrated by: they describe other images, and none of its own.

The best score of a query says little by itself: some texts score high with everything. An index therefore
stores what texts that describe other images score with every image of the index (`calibration.py` says how
that is used):
  texts   whole captions, or lines of a file
  asides  one sentence of each text, apart
  spans   a few sentences of each text that include its aside: queries are often shorter than captions

A null text whose own image is in the index, found by the hash of its bytes, does not see that image.

Where the source of the texts has images, some of them are encoded too: what a text and its aside score with
their own image says how well the model tells true sentences (`with_own`). They are not part of the index.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from PIL import Image

from grainline.data.captions import sentences
from grainline.data.formats.joined import parts_of
from grainline.data.formats.plain import read_lines
from grainline.data.formats.texts_alone import TextsAlone
from grainline.data.open_source import open_source
from grainline.data.record import Damaged, Record, Source
from grainline.errors import UserError
from grainline.files import Corrupt, write_text
from grainline.index.segment import ASIDES, NULL, SPANNED, check_part, save_array
from grainline.index.store import NPY, Column, Part, new_part, seal_of
from grainline.model import Model
from grainline.types import Encoded, rows, vectors_only

TEXTS = 1_000  # texts, at most
OWN = 256  # of them, whose own images are encoded too, at most
SPANS = (2, 3, 4, 6)  # sentences of a span, in turn
DRAWN = f"scenes:dev?count={TEXTS}&seed=1618"
FILE = "texts.json"
FIELDS = ("vector", "tokens", "mask", "item", "image")  # of Encoded: all that scores read

T = TypeVar("T")


class NullTexts(NamedTuple):
    """Texts that describe other images, with what was made of each of them."""

    source: str
    texts: tuple[str, ...]  # [Q]
    owners: tuple[str, ...]  # [Q] sha256 of the image that a text describes, "" if not known
    asides: tuple[str, ...]  # [Q] one sentence of each
    spans: tuple[str, ...]  # [Q] a few sentences, the aside among them
    counts: tuple[int, ...]  # [Q] sentences of a text
    span_counts: tuple[int, ...]  # [Q] sentences of a span
    places: tuple[int, ...]  # [Q] where a text stands in the source
    own: tuple[tuple[float, float] | None, ...] = ()  # [Q] scores of text and aside with the own image; or ()


def gather_texts(path: str | None) -> NullTexts:
    """The null texts of a source with captions, of a .txt file with one text a line, or drawn ones."""
    where = path or DRAWN
    found = (
        [(line, "", place) for place, line in enumerate(read_lines(where))]
        if where.endswith(".txt")
        else _captions(open_source(where, size=32), where)  # nobody looks at the images of drawn scenes here
    )
    split = [(one, [s.text for s in sentences(one[0])]) for one in found]
    split = _spread([one for one in split if one[1]], TEXTS)
    if len(split) < 20:
        raise UserError(f"{where} holds {len(split)} texts; how sure a search is needs 20 of them at least")
    parts = [said for _, said in split]
    spans = [_span(parts, i, SPANS[i % len(SPANS)]) for i in range(len(parts))]
    return NullTexts(
        where,
        tuple(text for (text, _, _), _ in split),
        tuple(owner for (_, owner, _), _ in split),
        tuple(said[_turn(i, said)] for i, said in enumerate(parts)),
        tuple(" ".join(span) for span in spans),
        tuple(map(len, parts)),
        tuple(map(len, spans)),
        tuple(place for (_, _, place), _ in split),
    )


def _turn(number: int, said: Sequence[str]) -> int:
    """Which sentence of a text is its aside."""
    return number % len(said)


def _span(parts: Sequence[Sequence[str]], number: int, count: int) -> list[str]:
    """So many sentences of a text, its aside among them; a short text goes on with asides of the next."""
    said = parts[number]
    turn = _turn(number, said)
    start = max(0, min(turn - count // 2, len(said) - count))
    span = list(said[start : start + count])
    for i in range(count - len(span)):
        other = (number + 1 + i) % len(parts)
        span.append(parts[other][_turn(other, parts[other])])
    return span


def encode_null(model: Model, null: NullTexts) -> dict[str, Encoded]:
    """Texts, asides and spans as the method compares them, in float32.

    A method whose score is a product of vectors needs no more than these.
    """
    said = {NULL: null.texts, ASIDES: null.asides, SPANNED: null.spans}
    found = {name: model.encode(texts=texts) for name, texts in said.items()}
    return found if model.method.pairwise else {name: vectors_only(one) for name, one in found.items()}


@torch.no_grad()
def with_own(model: Model, null: NullTexts, encoded: Mapping[str, Encoded]) -> NullTexts:
    """The texts with what they and their asides score with their own images.

    At most OWN of them, evenly spread; none where there is no image that the model can read.
    """
    own: list[tuple[float, float] | None] = [None] * len(null.texts)
    if null.source.endswith(".txt") or model.method.describes:
        return null
    source = open_source(null.source, size=min(max(32, model.method.size), 2048))  # as scenes allow
    if any(isinstance(part, TextsAlone) for part in parts_of(source)):
        return null  # there are no images of them
    chosen = np.linspace(0, len(own) - 1, min(OWN, len(own))).astype(int)
    for start in range(0, len(chosen), model.batch):
        numbers, images = [], []
        for number in chosen[start : start + model.batch].tolist():
            try:
                images.append(model.seen(source[null.places[number]].image))
            except (Damaged, UserError):
                continue
            numbers.append(number)
        if images:
            seen, which = model.encode(images=images), torch.tensor(numbers)
            both = [
                model.method.score(seen, rows(encoded[name], which)).diagonal() for name in (NULL, ASIDES)
            ]
            for number, pair in zip(numbers, torch.stack(both, 1).double().tolist(), strict=True):
                own[number] = tuple(pair)
    return null._replace(own=tuple(own))


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
    for name in (NULL, ASIDES, SPANNED):
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


def _captions(source: Source, where: str) -> list[tuple[str, str, int]]:
    """Texts of a source with the hashes of their images and their places; damaged samples are left out."""
    found: list[tuple[str, str, int]] = []
    step = max(1, len(source) // (2 * TEXTS))
    for i in range(0, len(source), step):
        try:
            record = source[i]
        except Damaged:
            continue
        if record.whole.strip():
            found.append((record.whole, _owner(record), i))
    if not found:
        raise UserError(
            f"no captions in {where}; --null wants a source with captions, or a .txt file of texts"
        )
    return found


def _owner(record: Record) -> str:
    return "" if isinstance(record.image, Image.Image) else hashlib.sha256(record.image).hexdigest()


def _spread(values: list[T], most: int) -> list[T]:
    """At most so many of them, evenly spread."""
    if len(values) <= most:
        return values
    return [values[i * len(values) // most] for i in range(most)]
