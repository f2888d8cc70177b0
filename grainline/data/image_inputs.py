"""Images as callers give them, one or several: paths, bytes, PIL images, and arrays of pixels.

Nothing is guessed from a shape: a numpy array is [H, W, 3] or [H, W] as PIL and OpenCV have it (RGB), a torch
tensor [3, H, W] as torch has it. One more dimension in front makes several images. Arrays are uint8 or floats
in 0..1: other ranges, which `decode` knows of files, might be those of a normalised tensor. A PIL
image with an EXIF orientation is turned upright, as its file is.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from grainline.data.decode import decode
from grainline.data.descriptions import Described
from grainline.data.formats.plain import read_plain
from grainline.data.record import CorruptSample, Record
from grainline.errors import UserError

ImageLike = str | Path | bytes | Image.Image | np.ndarray | Tensor | Described
ONE = str, Path, bytes, Image.Image, Described

FORMS = "a path, the bytes of a file, a PIL image, a numpy array [H, W, 3] or a torch tensor [3, H, W]"


def is_one_image(inputs: Any) -> bool:
    """Whether this is a single image; otherwise it is several.

    >>> is_one_image("a.jpg"), is_one_image(np.zeros((4, 4, 3))), is_one_image(["a.jpg"])
    (True, True, False)
    """
    if isinstance(inputs, np.ndarray | Tensor):
        return inputs.ndim in (2, 3) and not _holds_objects(inputs)
    return isinstance(inputs, ONE)


def are_images(inputs: Any) -> bool:
    """Whether inputs are plainly images, or plainly texts. UserError where they may be either."""
    some = inputs if isinstance(inputs, list | tuple) else [inputs]
    names = [one for one in some if isinstance(one, str)]
    if len(names) == len(some) > 0:
        if not any(os.path.isfile(x) or re.search(r"\.[A-Za-z]{3,4}$|^\S*/\S*$", x) for x in names):
            return False
        if all(map(os.path.isfile, names)):
            return True
    elif isinstance(inputs, (list, tuple, np.ndarray, Tensor, *ONE)) and not _holds_objects(inputs):
        return True
    what = repr(names[0] if names else inputs)[:60]
    raise UserError(f"{what} may be an image or a text: write images=[...] or texts=[...]")


def several(inputs: Any, what: str) -> Iterable[Any]:
    """The inputs one by one. Raises UserError for what has no order or cannot be iterated over.

    what  "image" or "text", for the message
    """
    if isinstance(inputs, np.ndarray) and _holds_objects(inputs):
        return inputs.ravel().tolist()  # strings, as pandas gives them
    if isinstance(inputs, Mapping | AbstractSet) or not isinstance(inputs, Iterable):
        raise UserError(f"give one {what}, a list or an iterator; this is of type {type(inputs).__name__}")
    return inputs


def count_of(inputs: Any) -> int:
    """How many there are; 0 where only reading them tells."""
    return len(inputs) if isinstance(inputs, Sequence | np.ndarray | Tensor) else 0


def open_image(image: ImageLike) -> bytes | Image.Image:
    """The bytes of an image file, or an image in memory. Raises UserError for anything else."""
    if isinstance(image, bytes | Image.Image):
        return image
    if isinstance(image, np.ndarray | Tensor):
        return _from_pixels(image)
    if not isinstance(image, str | Path):
        raise UserError(f"an image is {FORMS}; this one is of type {type(image).__name__}")
    try:
        return read_plain(image)
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"image {image} cannot be read: {why}") from None


def original(image: ImageLike) -> Image.Image:
    """An image whole, in RGB, upright. Raises UserError for what is no image."""
    if isinstance(image, Described):
        return original(image.image)
    name = str(image) if isinstance(image, str | Path) else "image"
    try:
        return decode(Record(name, open_image(image), ()))
    except CorruptSample as error:
        raise UserError(f"{error.where} cannot be used: {error.cause}; give an image file") from None


def _holds_objects(inputs: Any) -> bool:
    return isinstance(inputs, np.ndarray) and inputs.dtype.kind in "OUS"


def _from_pixels(image: np.ndarray | Tensor) -> Image.Image:
    """An image from uint8 in 0..255 or floats in 0..1."""
    form = f"{type(image).__name__} {image.dtype} {list(image.shape)}"
    if isinstance(image, Tensor):
        pixels = image.detach().cpu().float().numpy() if image.is_floating_point() else image.cpu().numpy()
        pixels = pixels.transpose(1, 2, 0) if pixels.ndim == 3 else pixels
    else:
        pixels = image
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if not (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (3, 4))) or 0 in pixels.shape:
        raise UserError(f"an image is {FORMS}; this one is a {form}")
    if pixels.dtype.kind == "f":
        if not (np.isfinite(pixels).all() and pixels.min() >= 0 and pixels.max() <= 1):
            raise UserError(f"floats of an image lie in 0..1, not normalised; this {form} has others")
        pixels = np.round(pixels * 255).astype(np.uint8)
    elif pixels.dtype != np.uint8:
        raise UserError(f"pixels are uint8 in 0..255 or floats in 0..1; this image is a {form}")
    return Image.fromarray(np.ascontiguousarray(pixels))
