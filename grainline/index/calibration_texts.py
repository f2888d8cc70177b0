"""Calibration texts (null texts): texts that describe images outside the index.

The best score of a query says little by itself: some texts score high with all images. An index therefore
stores the scores of null texts with all its images (`calibration.py` uses them):
  texts   whole captions, or lines of a file
  asides  one sentence of each text, apart
  spans   a few sentences of each text that include its aside: queries are often shorter than captions

A null text whose own image is in the index, found by the hash of its bytes, does not see that image.

Where the source of the texts has images, some of them are encoded too: what a text and its aside score with
their own image says how well the model tells true sentences (`with_image_scores`). They are not
part of the index.
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
from grainline.data.record import CorruptSample, Record, Source
from grainline.errors import UserError
from grainline.files import Corrupt, write_text
from grainline.index.store import (
    NPY,
    NULL_SENTENCES,
    NULL_SPANS,
    NULL_TEXTS,
    Column,
    Part,
    check_part,
    new_part,
    save_array,
    seal_of,
)
from grainline.model import Model
from grainline.types import Encoded, rows, vectors_only

MAX_TEXTS = 1_000  # texts, at most
MAX_IMAGES = 256  # of them, whose own images are encoded too, at most
SPAN_LENGTHS = (2, 3, 4, 6)  # sentences of a span, in turn
DEFAULT_SOURCE = f"scenes:dev?count={MAX_TEXTS}&seed=1618"
FILE = "texts.json"
FIELDS = ("vector", "tokens", "mask", "item", "image")  # of Encoded: all that scores read

T = TypeVar("T")


class CalibrationTexts(NamedTuple):
    """Texts that describe other images, with what was made of each of them."""

    source: str
    texts: tuple[str, ...]  # [Q]
    image_hashes: tuple[str, ...]  # [Q] sha256 of the image that a text describes, "" if not known
    sentences: tuple[str, ...]  # [Q] one sentence of each
    spans: tuple[str, ...]  # [Q] a few sentences, the aside among them
    counts: tuple[int, ...]  # [Q] sentences of a text
    span_counts: tuple[int, ...]  # [Q] sentences of a span
    places: tuple[int, ...]  # [Q] where a text stands in the source
    image_scores: tuple[
        tuple[float, float] | None, ...
    ] = ()  # [Q] scores of text and aside with the own image; or ()


def gather_texts(path: str | None) -> CalibrationTexts:
    """The null texts of a source with captions, of a .txt file with one text a line, or drawn ones."""
    where = path or DEFAULT_SOURCE
    captions = (
        [(line, "", place) for place, line in enumerate(read_lines(where))]
        if where.endswith(".txt")
        else _captions(open_source(where, size=32), where)  # nobody looks at the images of drawn scenes here
    )
    split = [(one, [s.text for s in sentences(one[0])]) for one in captions]
    split = _evenly([one for one in split if one[1]], MAX_TEXTS)
    if len(split) < 20:
        raise UserError(f"{where} holds {len(split)} texts; how sure a search is needs 20 of them at least")
    parts = [part for _, part in split]
    spans = [_span(parts, i, SPAN_LENGTHS[i % len(SPAN_LENGTHS)]) for i in range(len(parts))]
    return CalibrationTexts(
        where,
        tuple(text for (text, _, _), _ in split),
        tuple(owner for (_, owner, _), _ in split),
        tuple(part[_sentence_place(i, part)] for i, part in enumerate(parts)),
        tuple(" ".join(span) for span in spans),
        tuple(map(len, parts)),
        tuple(map(len, spans)),
        tuple(place for (_, _, place), _ in split),
    )


def _sentence_place(number: int, part: Sequence[str]) -> int:
    """Which sentence of a text is its aside."""
    return number % len(part)


def _span(parts: Sequence[Sequence[str]], number: int, count: int) -> list[str]:
    """So many sentences of a text, its aside among them; a short text goes on with asides of the next."""
    part = parts[number]
    place = _sentence_place(number, part)
    start = max(0, min(place - count // 2, len(part) - count))
    span = list(part[start : start + count])
    for i in range(count - len(span)):
        other = (number + 1 + i) % len(parts)
        span.append(parts[other][_sentence_place(other, parts[other])])
    return span


def encode_calibration(model: Model, texts: CalibrationTexts) -> dict[str, Encoded]:
    """Texts, asides and spans as the method compares them, in float32.

    A method whose score is a product of vectors needs no more than these.
    """
    by_name = {NULL_TEXTS: texts.texts, NULL_SENTENCES: texts.sentences, NULL_SPANS: texts.spans}
    encoded = {name: model.encode(texts=texts) for name, texts in by_name.items()}
    return encoded if model.method.pairwise else {name: vectors_only(one) for name, one in encoded.items()}


@torch.no_grad()
def with_image_scores(
    model: Model, texts: CalibrationTexts, encoded: Mapping[str, Encoded]
) -> CalibrationTexts:
    """The texts with what they and their asides score with their own images.

    At most OWN of them, evenly spread; none where there is no image that the model can read.
    """
    scores: list[tuple[float, float] | None] = [None] * len(texts.texts)
    if texts.source.endswith(".txt") or model.method.reads_descriptions:
        return texts
    source = open_source(texts.source, size=min(max(32, model.method.size), 2048))  # as scenes allow
    if any(isinstance(part, TextsAlone) for part in parts_of(source)):
        return texts  # there are no images of them
    subset = np.linspace(0, len(scores) - 1, min(MAX_IMAGES, len(scores))).astype(int)
    for start in range(0, len(subset), model.batch):
        numbers, images = [], []
        for number in subset[start : start + model.batch].tolist():
            try:
                images.append(model.cropped(source[texts.places[number]].image))
            except (CorruptSample, UserError):
                continue
            numbers.append(number)
        if images:
            encoded_images, which = model.encode(images=images), torch.tensor(numbers)
            pairs = [
                model.method.score(encoded_images, rows(encoded[name], which)).diagonal()
                for name in (NULL_TEXTS, NULL_SENTENCES)
            ]
            for number, pair in zip(numbers, torch.stack(pairs, 1).double().tolist(), strict=True):
                scores[number] = tuple(pair)
    return texts._replace(image_scores=tuple(scores))


def write_calibration(target: Path, texts: CalibrationTexts, encoded: Mapping[str, Encoded]) -> Part:
    """Write the texts as a sealed folder, and encoded. OSError leaves nothing."""
    with new_part(target, {"texts": len(texts.texts)}) as folder:
        write_text(folder / FILE, json.dumps(texts._asdict(), indent=1) + "\n")
        for name, one in encoded.items():
            for field in FIELDS:
                save_array(folder / f"{name}-{field}.npy", getattr(one, field).cpu().numpy())
    return Part(target.name, seal_of(target), len(texts.texts))


def read_encoded(target: Path, part: Part) -> dict[str, Encoded]:
    """The encoded texts that `write_calibration` wrote. Raises Corrupt, and UserError for damage."""
    sealed = check_part(target, part)
    out = {}
    for name in (NULL_TEXTS, NULL_SENTENCES, NULL_SPANS):
        arrays = [Column(target / f"{name}-{field}{NPY}", sealed).whole() for field in FIELDS]
        out[name] = Encoded(*(torch.from_numpy(array.copy()) for array in arrays))
    return out


def read_calibration(target: Path) -> CalibrationTexts:
    """Read what `write_calibration` wrote; raises Corrupt."""
    try:
        values = json.loads((target / FILE).read_text(encoding="utf-8"))
        source = values.pop("source")
        return CalibrationTexts(source, **{name: tuple(value) for name, value in values.items()})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise Corrupt(f"the null texts cannot be read ({error})") from None


def _captions(source: Source, where: str) -> list[tuple[str, str, int]]:
    """Texts of a source with the hashes of their images and their places; damaged samples are left out."""
    captions: list[tuple[str, str, int]] = []
    step = max(1, len(source) // (2 * MAX_TEXTS))
    for i in range(0, len(source), step):
        try:
            record = source[i]
        except CorruptSample:
            continue
        if record.whole.strip():
            captions.append((record.whole, _image_hash(record), i))
    if not captions:
        raise UserError(
            f"no captions in {where}; --calibration-texts wants a source with captions, or a .txt file of "
            f"texts"
        )
    return captions


def _image_hash(record: Record) -> str:
    return "" if isinstance(record.image, Image.Image) else hashlib.sha256(record.image).hexdigest()


def _evenly(values: list[T], most: int) -> list[T]:
    """At most so many of them, evenly spread."""
    if len(values) <= most:
        return values
    return [values[i * len(values) // most] for i in range(most)]
