"""Calibration texts: texts that describe images outside the index.

The best score of a query means little by itself: some texts score high with all images. An index therefore
stores the scores of calibration texts with all its images (`calibration.py` uses them): of whole captions,
or lines of a file, of one sentence of each, and of spans of a few sentences that include it, since queries
are often shorter than captions. A calibration text does not count for its own image, which the hash of its
bytes identifies.

Where the source of the texts has images, some of them are encoded too: the scores of a text and its sentence
with their own image say how well the model recognises true sentences. They are not part of the index.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from grainline.data.captions import sentences
from grainline.data.formats.joined import parts_of
from grainline.data.formats.parsed import read_lines
from grainline.data.formats.table import TextsAlone
from grainline.data.open_source import open_source
from grainline.data.other_texts import EVERYDAY, trained_on_scenes
from grainline.data.record import CorruptSample, Source
from grainline.errors import UserError
from grainline.files import Corrupt, read_plain, write_text
from grainline.index import store
from grainline.model import Model
from grainline.types import Encoded, rows, vectors_only

MAX_TEXTS = 1_000
MAX_IMAGES = 256  # of them, whose own images are encoded too
SPAN_LENGTHS = (2, 3, 4, 6)  # sentences of a span, in turn
SCENES = f"scenes:dev?count={MAX_TEXTS}&seed=1618"
PHOTOGRAPHS = "everyday.txt"
BUILT_IN = {  # what is used where no texts are given, in words
    SCENES: "texts of synthetic scenes",
    PHOTOGRAPHS: f"{len(EVERYDAY)} built-in descriptions of everyday photographs",
}
FILE = "texts.json"
FIELDS = ("vector", "tokens", "mask", "item", "image")  # of Encoded: all that scores read


class CalibrationTexts(NamedTuple):
    """Texts that describe other images; every field but `source` has one value a text."""

    source: str
    texts: tuple[str, ...]
    image_hashes: tuple[str, ...]  # sha256 of the image that a text describes, "" if not known
    sentences: tuple[str, ...]  # one sentence of each
    spans: tuple[str, ...]  # a few sentences, this one among them
    counts: tuple[int, ...]  # sentences of a text
    span_counts: tuple[int, ...]  # sentences of a span
    places: tuple[int, ...]  # of the texts in the source
    image_scores: tuple[tuple[float, float] | None, ...] = ()  # of text and sentence with the own image


def gather_texts(path: str | None, run: Path | None = None) -> CalibrationTexts:
    """Texts of a source with captions, of a .txt file with one text a line, or built-in ones.

    run  of the model: where it was trained on drawn scenes alone, the built-in ones are of such
    """
    where = path or (SCENES if trained_on_scenes(run) else PHOTOGRAPHS)
    if where.endswith(".txt"):
        captions = [(line, "", i) for i, line in enumerate(read_lines(where) if path else EVERYDAY)]
    else:
        captions = _captions(open_source(where, size=32, trust_code=True), where)
    split = [(*one, parts) for one in captions if (parts := [s.text for s in sentences(one[0])])]
    if len(split) > MAX_TEXTS:
        split = [split[i * len(split) // MAX_TEXTS] for i in range(MAX_TEXTS)]
    if len(split) < 20:
        raise UserError(f"{where} holds {len(split)} texts; how sure a search is needs 20 of them at least")
    texts, hashes, places, parts_of_texts = zip(*split, strict=True)
    own = [i % len(parts) for i, parts in enumerate(parts_of_texts)]  # place of the sentence of each
    singles = [parts[place] for parts, place in zip(parts_of_texts, own, strict=True)]
    spans = []
    for i, parts in enumerate(parts_of_texts):
        count = SPAN_LENGTHS[i % len(SPAN_LENGTHS)]
        start = max(0, min(own[i] - count // 2, len(parts) - count))
        span = parts[start : start + count]  # a short text goes on with the sentences of the next
        spans.append(span + [singles[(i + 1 + j) % len(singles)] for j in range(count - len(span))])
    return CalibrationTexts(
        where,
        texts,
        hashes,
        tuple(singles),
        tuple(" ".join(span) for span in spans),
        tuple(map(len, parts_of_texts)),
        tuple(map(len, spans)),
        places,
    )


def encode_calibration(model: Model, texts: CalibrationTexts) -> dict[str, Encoded]:
    """The texts, sentences and spans encoded, by name, float32; with tokens if the method is pairwise."""
    names = store.NULL_TEXTS, store.NULL_SENTENCES, store.NULL_SPANS
    by_name = zip(names, (texts.texts, texts.sentences, texts.spans), strict=True)
    encoded = {name: model.encode(texts=of) for name, of in by_name}
    return encoded if model.method.pairwise else {name: vectors_only(one) for name, one in encoded.items()}


@torch.no_grad()
def with_image_scores(
    model: Model, texts: CalibrationTexts, encoded: Mapping[str, Encoded]
) -> CalibrationTexts:
    """The texts with scores of themselves and their sentences with their own images.

    Of at most MAX_IMAGES texts, evenly spaced; of none where the model can read no image.
    """
    scores: list[tuple[float, float] | None] = [None] * len(texts.texts)
    if texts.source.endswith(".txt") or model.method.reads_descriptions:
        return texts
    size = min(max(32, model.method.size), 2048)  # as scenes allow
    source = open_source(texts.source, size=size, trust_code=True)
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
                for name in (store.NULL_TEXTS, store.NULL_SENTENCES)
            ]
            for number, pair in zip(numbers, torch.stack(pairs, 1).double().tolist(), strict=True):
                scores[number] = tuple(pair)
    return texts._replace(image_scores=tuple(scores))


def write_calibration(target: Path, texts: CalibrationTexts, encoded: Mapping[str, Encoded]) -> store.Part:
    """Write the texts, also encoded, as a sealed folder. OSError leaves nothing."""
    with store.new_part(target, {"texts": len(texts.texts)}) as folder:
        write_text(folder / FILE, json.dumps(texts._asdict(), indent=1) + "\n")
        for name, one in encoded.items():
            for field in FIELDS:
                store.save_array(folder / f"{name}-{field}{store.NPY}", getattr(one, field).cpu().numpy())
    return store.Part(target.name, store.seal_of(target), len(texts.texts))


def read_encoded(target: Path, part: store.Part) -> dict[str, Encoded]:
    """The encoded texts that `write_calibration` wrote. Raises Corrupt."""
    sealed = store.check_part(target, part)
    out = {}
    for name in (store.NULL_TEXTS, store.NULL_SENTENCES, store.NULL_SPANS):
        arrays = [store.Column(target / f"{name}-{field}{store.NPY}", sealed).whole() for field in FIELDS]
        out[name] = Encoded(*(torch.from_numpy(array.copy()) for array in arrays))
    return out


def read_calibration(target: Path) -> CalibrationTexts:
    """Read what `write_calibration` wrote; raises Corrupt."""
    try:
        values = json.loads(read_plain(target / FILE))
        source = values.pop("source")
        return CalibrationTexts(source, **{name: tuple(value) for name, value in values.items()})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise Corrupt(f"the calibration texts cannot be read ({error})") from None


def _captions(source: Source, where: str) -> list[tuple[str, str, int]]:
    """Texts of a source with hashes of their images and their places. Corrupt samples are left out."""
    captions: list[tuple[str, str, int]] = []
    for i in range(0, len(source), max(1, len(source) // (2 * MAX_TEXTS))):
        try:
            record = source[i]
        except CorruptSample:
            continue
        if record.whole.strip():
            image = b"" if isinstance(record.image, Image.Image) else record.image
            captions.append((record.whole, hashlib.sha256(image).hexdigest() if image else "", i))
    if not captions:
        raise UserError(f"no captions in {where}; name a source with captions, or a .txt file of texts")
    return captions
