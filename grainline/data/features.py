"""What a frozen image encoder makes of a whole source, made once: `grainline data features`, and
`data.features` of a recipe, which then neither decodes pictures nor runs the encoder in training.

A folder as `data/kept.py` has it: features.npy [N, 1 + L, W] float16, the summary of each picture and behind
it its L image tokens, where they were asked for (L is 0 elsewhere), at the encoder's own width W.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from grainline.data import kept
from grainline.data.causes import DAMAGED_IMAGE
from grainline.data.kept import Kind, Made, Stored
from grainline.data.record import Damaged, Source
from grainline.data.transforms import DRAWS, Draws, EvalTransform, Picture
from grainline.errors import UserError

KIND = Kind("features", "features 1", "features.npy", np.float16)


def make(
    source: Source,
    encode: Callable[[Tensor], Tensor],
    out: Path,
    transform: EvalTransform,
    *,
    encoder: str,
    row: tuple[int, int],
    progress: Callable[[int, int], None] | None = None,
) -> Made:
    """Write the features of all pictures of a source, or what is missing of them, as `kept.make` does.

    encode   [n, 3, S, S] uint8 -> [n, 1 + L, W]
    encoder  fingerprint of its settings and weights
    row      (1 + L, W)

    Raises UserError for features that half precision cannot hold, too.
    """

    def halved(pixels: Tensor) -> Tensor:
        half = encode(pixels).half()
        if not bool(half.isfinite().all()):
            raise UserError("the image encoder gives numbers above 65504, or none, so they cannot be kept")
        return half

    settings = {"encoder": encoder, "tokens": row[0] - 1, "width": row[1]}
    return kept.make(KIND, source, halved, out, transform, row=row, settings=settings, progress=progress)


class KeptFeatures:
    """In the place of a crop: no pixels, and the features of a picture. Draws what a crop would draw."""

    def __init__(
        self, folder: Path, source: Source, transform: EvalTransform, encoder: str, *, tokens: bool
    ) -> None:
        """
        transform  how the model makes a square of a picture
        encoder    fingerprint of the image encoder that training begins with
        tokens     whether the loss reads image tokens; else only summaries are read

        Raises UserError where the folder was made from other data, with another encoder or without tokens.
        """
        self.stored = Stored(KIND, folder, source, transform, {"encoder": encoder})
        held = self.stored.found["settings"]
        if tokens and not held["tokens"]:
            raise UserError(
                f"data.features: those in {folder} are summaries alone, and this method learns from image "
                f"tokens; {KIND.again} --tokens"
            )
        self.stored.open((1 + held["tokens"], held["width"]))
        self.rows = slice(None) if tokens else slice(1)

    def __call__(self, _image: Picture, rng: Draws, _where: str = "picture") -> Tensor:
        """[3, 0, 0]: nothing is decoded."""
        for _ in range(DRAWS):
            rng.random()
        return torch.empty(3, 0, 0, dtype=torch.uint8)

    def regions(self, _index: int, _key: str) -> None:
        """No superpixels: the encoder has read them already."""

    def features(self, index: int, key: str) -> Tensor:
        """[1 + L, W] half precision, [1, W] without tokens, of the record at a position.

        Raises Damaged for a picture that could not be used when they were made, and UserError where they are
        those of another picture.
        """
        if self.stored.lacks(index):
            raise Damaged(DAMAGED_IMAGE, f"{key} (it has no features in {self.stored.folder})")
        return torch.from_numpy(self.stored.row(index, key)[self.rows].astype(np.float16))
