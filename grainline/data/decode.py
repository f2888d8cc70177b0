"""From the bytes of a record to an RGB picture, or `Damaged("damaged image")`.

Handled here, so that nobody else has to think of it: EXIF orientation, palettes, CMYK, 16 bits and floats,
transparency (laid over white), animations (first frame), pictures too large or too thin to be honest.
"""

import io
import re
import warnings
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from grainline.data.record import DAMAGED_IMAGE, Damaged, Record

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
"""What is read, whatever a file is called. Pillow knows more, and starts Ghostscript for EPS."""

MAX_PIXELS = 89_478_485
"""Larger pictures are refused: 2**30 / 12, where Pillow starts to warn of decompression bombs."""

THINNEST = 200
"""Thinner pictures are refused: grown until their short side fits, they would fill the memory."""

# Pillow would warn of what `_open` refuses. Appended: a filter that somebody has set wins.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning, append=True)

_ORIENTATION = 0x0112  # the EXIF tag
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def decode(record: Record, draft: int | None = None) -> Image.Image:
    """The picture of a record in mode RGB, upright, with no file behind it.

    `draft` lets a JPEG be decoded at 1/2, 1/4 or 1/8 of its size, as long as its short side keeps at least
    that many pixels: several times faster, for pictures that are shrunk anyway. Other formats ignore it.
    Raises Damaged("damaged image").

    >>> from PIL import Image, UnidentifiedImageError
    >>> file = io.BytesIO()
    >>> Image.new("RGBA", (3, 2), (255, 0, 0, 0)).save(file, "png")
    >>> picture = decode(Record("a", file.getvalue(), ("Nothing.",)))
    >>> picture.mode, picture.size, picture.getpixel((0, 0))
    ('RGB', (3, 2), (255, 255, 255))
    """
    assert draft is None or draft > 0, draft
    if isinstance(record.image, Image.Image):
        return _rgb(record.image)
    try:
        # Decoders meet arbitrary bytes here and fail in every way there is (SyntaxError, struct.error, ...).
        with _open(record.image) as picture:
            if draft is not None:
                picture.draft(None, (draft, draft))
            return _rgb(_upright(picture))
    except Exception as error:
        raise Damaged(DAMAGED_IMAGE, f"{record.key} ({_first_line(error)})") from error


def as_png(image: Image.Image) -> bytes:
    """A picture as a PNG file."""
    data = io.BytesIO()
    image.save(data, "png")
    return data.getvalue()


def picture_size(record: Record) -> tuple[int, int]:
    """Width and height of the upright picture in pixels, from its header alone. Raises Damaged."""
    if isinstance(record.image, Image.Image):
        return record.image.size
    try:
        with _open(record.image) as picture:
            width, height = picture.size
            return (height, width) if _orientation(picture) >= 5 else (width, height)
    except Exception as error:
        raise Damaged(DAMAGED_IMAGE, f"{record.key} ({_first_line(error)})") from error


def _open(data: bytes) -> Image.Image:
    try:
        picture = Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError:
        raise ValueError(f"none of {', '.join(FORMATS)}") from None
    width, height = picture.size
    if width * height > MAX_PIXELS:
        picture.close()
        raise ValueError(f"{width} x {height} pixels, more than {MAX_PIXELS}")
    if max(width, height) > THINNEST * min(width, height):
        picture.close()
        raise ValueError(f"{width} x {height} pixels, thinner than 1 to {THINNEST}")
    return picture


def _orientation(picture: Image.Image) -> int:
    """The EXIF orientation, 1 to 8. A picture whose EXIF is unreadable counts as upright."""
    try:
        value = picture.getexif().get(_ORIENTATION, 1)
    except Exception:
        return 1
    return value if value in _UPRIGHT else 1


def _upright(picture: Image.Image) -> Image.Image:
    turn = _UPRIGHT.get(_orientation(picture))
    picture.load()
    return picture if turn is None else picture.transpose(turn)


def _rgb(picture: Image.Image) -> Image.Image:
    """Always a new picture, so that the caller may change or close it."""
    if picture.mode == "RGB" and "transparency" not in picture.info:
        return picture.copy()
    if picture.mode == "F" or picture.mode.startswith("I"):
        return Image.fromarray(_eight_bits(np.asarray(picture))).convert("RGB")
    if "transparency" in picture.info or picture.mode in ("RGBA", "RGBa", "LA", "La", "PA"):
        layer = picture.convert("RGBA")
        ground = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        return Image.alpha_composite(ground, layer).convert("RGB")
    return picture.convert("RGB")


def _eight_bits(values: np.ndarray) -> np.ndarray:
    """Grey values of 16 or 32 bits or floats as [H, W] uint8. Pillow's own conversion would clip at 255."""
    top: Any = 255
    if values.dtype.kind == "f":
        top = 1.0 if values.max(initial=0) <= 1 else 255
    elif values.dtype.itemsize == 2 or values.max(initial=0) > 255:
        top = 65535
    scaled = np.clip(np.nan_to_num(values.astype(np.float64)) / top, 0, 1)
    return np.round(scaled * 255).astype(np.uint8)


def _first_line(error: Exception) -> str:
    """What a decoder complained of, without the address of our buffer: equal runs write equal logs.

    >>> _first_line(ValueError("cannot read <_io.BytesIO object at 0x7f00>"))
    'cannot read'
    """
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return re.sub(r" <[^<>]* at 0x[0-9a-f]+>", "", line)
