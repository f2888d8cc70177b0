"""Features of a frozen image encoder: `data.features: auto` of a recipe.

Training then neither decodes images nor runs the encoder. features.npy [N * V, 1 + L, W] float16 has of each
of the V views of an image the summary, then its L image tokens (0 without --tokens), at the encoder's width.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grainline.data.cache import CachedRows, Kind, Views, make, place, write_once
from grainline.data.lines import Progress, Written
from grainline.data.record import Cause, CorruptSample, Record, Source
from grainline.data.transforms import DRAWS, Crop, EvalTransform, ImageInput
from grainline.errors import UserError

FEATURES = Kind("features", "features 1", "features.npy", np.float16)


def make_features(
    source: Source,
    encode: Callable[[Tensor], Tensor],
    out: Path,
    views: Views,
    *,
    encoder: str,
    kind: Kind = FEATURES,
    one_each: bool = False,
    progress: Progress | None = None,
) -> Written:
    """Write the features of all images of a source, as `make` does.

    encode   [n, 3, S, S] uint8 -> [n, 1 + L, W]
    encoder  fingerprint of its settings and weights

    Raises UserError also for features that half precision cannot hold.
    """
    size = views.transform.size
    parts, width = encode(views.transform(np.zeros((size, size, 3), np.uint8))[None]).shape[1:]

    def halved(pixels: Tensor) -> Tensor:
        half = encode(pixels).half()
        if not bool(half.isfinite().all()):
            raise UserError("the image encoder gives numbers above 65504, or none, so they cannot be kept")
        return half

    settings: dict[str, Any] = {"encoder": encoder, "tokens": parts - 1, "width": width}
    if views.number > 1 and views.crop is not None:
        settings |= {"views": views.number, "crop": views.crop.model_dump(mode="json")}
    options: Any = {"row": (parts, width), "settings": settings, "one_each": one_each, "progress": progress}
    return make(kind, source, halved, out, views, **options)


class CachedFeatures(CachedRows, Crop):
    """The cached features of images in place of a crop; no image is decoded."""

    def __init__(
        self,
        folder: Path,
        source: Source,
        transform: EvalTransform,
        encoder: str,
        *,
        tokens: bool,
        kind: Kind = FEATURES,
    ) -> None:
        """
        encoder  fingerprint of the image encoder that training begins with
        tokens   whether the loss reads image tokens; else only summaries are read

        Raises UserError where the folder was made from other data or with another encoder.
        """
        super().__init__(kind, folder, source, transform, {"encoder": encoder})
        settings = self.manifest["settings"]
        self.open((1 + settings["tokens"], settings["width"]))
        self.tokens = tokens

    def __call__(self, image: ImageInput, rng: Random, where: str = "image") -> Tensor:  # noqa: ARG002
        """No pixels. `features` takes the random numbers."""
        return torch.empty(3, 0, 0, dtype=torch.uint8)

    def features(self, index: int, record: Record, rng: Random) -> Tensor:
        """[1 + L, W] half precision, [1, W] without tokens, of one view of the record at a position.

        Raises CorruptSample for an image without features, and UserError for the features of another image.
        """
        draws = [rng.random() for _ in range(DRAWS)]
        if not self.keys[index]:
            raise CorruptSample(Cause.CORRUPT_IMAGE, f"{record.key} (it has no features in {self.folder})")
        view, first = int(draws[0] * self.views), None if self.tokens else 1
        row = self.row(index, record.key, first, view, self.kind.content(record))
        return torch.from_numpy(row.astype(np.float16))


def cached_features(
    source: Source,
    views: Views,
    encode: Callable[[Tensor], Tensor],
    encoder: str,
    *,
    tokens: bool,
    one_each: bool,
) -> CachedFeatures:
    """The features of all images, computed where the cache of training lacks them.

    tokens  whether `encode` gives image tokens; the others as for `make_features`
    """
    square = views.transform
    crop = views.crop.model_dump(mode="json") if views.crop is not None and views.number > 1 else None
    form = square.size, square.resize, square.filter.name, square.larger, *(square.square.patches or ())
    for wider in dict.fromkeys((True, tokens)):  # features with tokens serve those who read summaries alone
        kind, out = place(FEATURES, source, "images", encoder, wider, views.number, crop, *form)
        if out.is_dir():
            break
    write = partial(make_features, source, encode, out, views, encoder=encoder, kind=kind, one_each=one_each)
    write_once(out, lambda step: write(progress=step), len(source))
    return CachedFeatures(out, source, square, encoder, tokens=tokens, kind=kind)
