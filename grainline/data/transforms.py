"""Squares of pixels from images of any size: random crops for training, one fixed crop for evaluation.

Training is fast: a JPEG is decoded at the smallest scale that still covers the crop, then resized by torch on
uint8 (within 1/255 of Pillow on average). Evaluation is exact: full decoding and Pillow's bicubic filter, as
in published numbers. Both return uint8; encoders normalise, because mean and std belong to the weights.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from random import Random
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from pydantic import Field, model_validator
from torch import Tensor

from grainline.config import Config
from grainline.data.decode import Patches, Square, decode, image_size
from grainline.data.record import Record

ImageInput = bytes | Image.Image | np.ndarray
"""An encoded file, a PIL image of any mode, or [H, W, 3] uint8."""


class Box(NamedTuple):
    """A rectangle in whole pixels; right and bottom are excluded."""

    left: int
    top: int
    right: int
    bottom: int


DRAWS = 7  # random numbers that every crop takes


class Crop(ABC):
    """Abstract: how training makes a square of an image."""

    @abstractmethod
    def __call__(self, image: ImageInput, rng: Random, where: str = "image") -> Tensor:
        """[3, size, size] uint8; [3, 0, 0] where cached features replace the image.

        Raises CorruptSample, which names `where`. Every call takes DRAWS numbers from rng; where there are
        features, `features` takes them.
        """

    def regions(self, index: int, key: str) -> Tensor | None:  # noqa: ARG002
        """[size, size] int64 superpixels of the record at a position; None without a cache."""
        return None

    def features(self, index: int, record: Record, rng: Random) -> Tensor | None:  # noqa: ARG002
        """[1 + L, W] of the record at a position; None without a cache. Raises CorruptSample."""
        return None


class CropConfig(Config):
    """Random crops of training images. No flips by default, because captions say left and right."""

    scale: tuple[float, float] = (0.8, 1.0)  # share of the area that a crop keeps, uniform
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # width / height, uniform in its logarithm
    flip: bool = False  # mirror half of the images
    jitter: float = Field(0.0, ge=0, le=1)  # brightness and contrast are each times 1 - jitter to 1 + jitter

    @model_validator(mode="after")
    def _ordered(self) -> "CropConfig":
        for name, (low, high), most in (("scale", self.scale, 1), ("ratio", self.ratio, 100)):
            if not 0 < low <= high <= most:
                limits = f"in order, above 0, at most {most}"
                raise ValueError(f"{name} {(low, high)} must be two numbers {limits}")
        return self


class TrainTransform(Crop):
    """A random crop, resized to a square of side `size`, or to the patches of its shape.

    A crop that must be wider or higher than the image is cut to the nearest ratio instead.
    """

    def __init__(self, size: int, cfg: CropConfig | None = None, patches: Patches | None = None) -> None:
        self.size, self.cfg, self.patches = size, cfg or CropConfig(), patches

    def __call__(self, image: ImageInput, rng: Random, where: str = "image") -> Tensor:
        # as many random numbers whatever the settings: an option changes no other crop
        draws = [float(rng.random()) for _ in range(DRAWS)]
        if isinstance(image, np.ndarray):
            height, width = image.shape[:2]
        else:
            width, height = image_size(Record(where, image, ()))
        box = crop_box(width, height, self.cfg.scale, self.cfg.ratio, draws[:4])
        pixels = _crop_pixels(image, where, box, (width, height), self.size)
        if self.cfg.flip and draws[4] < 0.5:
            pixels = pixels[:, ::-1]
        sides, patches = (self.size, self.size), self.patches
        if patches is not None:
            sides = patches.sides((box.right - box.left, box.bottom - box.top))[::-1]
        out = resize(pixels, sides)
        if self.cfg.jitter:
            brightness, contrast = (1 + self.cfg.jitter * (2 * draw - 1) for draw in draws[5:])
            out = adjust(out, brightness, contrast)
        return out if patches is None else in_rows(out, patches)


class EvalTransform:
    """The square of an image in evaluation, always the same, exactly as Pillow resizes.

    resize  "crop": short side to `size`, then the middle (CLIP); "squash": all of it to size x size (SigLIP)
    filter  one of Pillow's, by its name in lower case
    margin  the image is resized to so many times `size` first, and the middle cut out
    patches  of a model that reads images of any shape; the square only shows the image
    """

    def __init__(
        self,
        size: int,
        resize: Literal["squash", "crop"] = "crop",
        filter: str = "bicubic",
        margin: float = 1,
        patches: Patches | None = None,
    ) -> None:
        self.size, self.resize, self.larger = size, resize, round(size * margin)
        self.filter = Image.Resampling[filter.upper()]
        self.square = Square(size, self.larger, resize == "squash", self.filter, patches)

    def __call__(self, image: ImageInput, where: str = "image") -> Tensor:
        """[3, size, size] uint8, or patches in rows. Raises CorruptSample, which names `where`."""
        if isinstance(image, np.ndarray):
            image = Image.fromarray(image)
        patches = self.square.patches
        square = self.square.cut(decode(Record(where, image, ())), rim=patches is not None)
        pixels = torch.from_numpy(np.array(square)).permute(2, 0, 1).contiguous()
        return pixels if patches is None else in_rows(pixels, patches)

    def pressed(self) -> "EvalTransform":
        """The same filter, over the whole image."""
        return EvalTransform(self.size, "squash", self.filter.name, patches=self.square.patches)

    def place(
        self, box: tuple[float, float, float, float], image: tuple[int, int]
    ) -> tuple[float, float, float, float]:
        """A box of an image, of this width and height, in pixels of the square; it may reach over the rim."""
        width, height, left, top = self.square.layout(image)
        across, down = width / image[0], height / image[1]
        return box[0] * across - left, box[1] * down - top, box[2] * across - left, box[3] * down - top


class SameTransform(Crop):
    """The square of evaluation in place of a random crop."""

    def __init__(self, transform: EvalTransform, label: Callable[[int, str], Tensor] | None = None) -> None:
        """label: the cached superpixels of a record, by its position and key (`data.superpixels`)"""
        self.transform, self.label = transform, label

    def __call__(self, image: ImageInput, rng: Random, where: str = "image") -> Tensor:
        for _ in range(DRAWS):
            rng.random()
        return self.transform(image, where)

    def regions(self, index: int, key: str) -> Tensor | None:
        return None if self.label is None else self.label(index, key)


def crop_box(
    width: int, height: int, scale: tuple[float, float], ratio: tuple[float, float], draws: list[float]
) -> Box:
    """The crop that four numbers in [0, 1) determine: area, ratio, and place from left and top."""
    area = width * height * (scale[0] + (scale[1] - scale[0]) * draws[0])
    low, high = max(ratio[0], area / height**2), min(ratio[1], width**2 / area)  # ratios that fit inside
    if low <= high:
        shape = low * (high / low) ** draws[1]
        wide, tall = (area * shape) ** 0.5, (area / shape) ** 0.5
    else:
        shape = min(max(width / height, ratio[0]), ratio[1])
        wide, tall = min(width, height * shape), min(height, width / shape)
    w, h = (min(max(round(side), 1), limit) for side, limit in ((wide, width), (tall, height)))
    left, top = int((width - w + 1) * draws[2]), int((height - h + 1) * draws[3])
    return Box(left, top, left + w, top + h)


def draft_side(width: int, height: int, box: Box, size: int) -> int | None:
    """The `draft` of `decode` that leaves the crop `size` pixels each way; None for the whole image."""
    side = min(box.right - box.left, box.bottom - box.top)
    parts = max((part for part in (1, 2, 4, 8) if side // part >= size), default=1)
    return None if parts == 1 else min(width, height) // parts


def in_rows(pixels: Tensor, patches: Patches) -> Tensor:
    """[3, H, W] uint8 of whole patches -> [3, 1 + L, p * p], as `Images.pixels` has them."""
    side, (height, width) = patches.side, pixels.shape[1:]
    shape = height // side, width // side
    rows = pixels.view(3, shape[0], side, shape[1], side).transpose(2, 3).reshape(3, -1, side * side)
    out = pixels.new_zeros(3, 1 + patches.max_num_patches[-1], side * side)
    out[:, 0, :4] = torch.tensor([digit for number in shape for digit in divmod(number, 256)])
    out[:, 1 : 1 + rows.shape[1]] = rows
    return out


def resize(pixels: np.ndarray, sides: tuple[int, int]) -> Tensor:
    """[h, w, 3] uint8 -> [3, *sides] uint8, bicubic with antialiasing."""
    batch = torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1)[None]  # channels last in memory
    if batch.shape[2:] != sides:
        batch = F.interpolate(batch, sides, mode="bicubic", antialias=True)
    return batch[0].contiguous()


def adjust(square: Tensor, brightness: float, contrast: float) -> Tensor:
    """Contrast around the image's mean, then brightness; [3, H, W] uint8 both ways."""
    values = square.numpy()
    mean = values.mean()
    table = ((np.arange(256) - mean) * contrast + mean) * brightness
    return torch.from_numpy(np.take(np.round(table.clip(0, 255)).astype(np.uint8), values))


def _crop_pixels(image: ImageInput, where: str, box: Box, full: tuple[int, int], size: int) -> np.ndarray:
    """Pixels [h, w, 3] of the box, from an image decoded no larger than needed."""
    if isinstance(image, np.ndarray):
        return image[box.top : box.bottom, box.left : box.right]
    decoded = decode(Record(where, image, ()), draft_side(*full, box, size))
    across, down = decoded.width / full[0], decoded.height / full[1]
    left, top = round(box.left * across), round(box.top * down)
    right = min(left + round((box.right - box.left) * across), decoded.width)
    bottom = min(top + round((box.bottom - box.top) * down), decoded.height)
    return np.array(np.asarray(decoded)[top:bottom, left:right])  # a copy: torch wants to own what it reads
