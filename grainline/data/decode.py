"""Decodes the bytes of a record into an RGB image. Raises CorruptSample("corrupt image").

It handles EXIF orientation, palettes, CMYK, 16 bits and floats (by their range, `_eight_bits`), transparency
(over white), animations (first frame), and refuses images that are too large or too thin. HEIC and AVIF need
a decoder that not every installation has; without it the cause of the CorruptSample names the extra.
"""

import io
import math
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError, features

from grainline.data.record import Cause, CorruptSample, Record

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
"""What is always read, whatever a file is called. Pillow knows more, and starts Ghostscript for EPS."""

NEEDS_DECODER = "{} image without its decoder (pip install 'grainline[heic]')"
"""The cause of a HEIC or AVIF that this installation cannot decode."""

_BRANDS = {
    **dict.fromkeys((b"avif", b"avis"), "AVIF"),
    **dict.fromkeys((b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1"), "HEIC"),
}

MAX_PIXELS = 89_478_485
"""Larger images are refused: 2**30 / 12, where Pillow starts to warn of decompression bombs."""

THINNEST = 200
"""Thinner images are refused: grown until their short side fits, they would fill the memory."""

# Pillow would warn of what `_open` refuses. Appended: a filter that somebody has set wins.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning, append=True)

_ORIENTATION, _PHOTOMETRIC = 0x0112, 0x0106  # tags of EXIF and TIFF
_TURNS = "FLIP_LEFT_RIGHT ROTATE_180 FLIP_TOP_BOTTOM TRANSPOSE ROTATE_270 TRANSVERSE ROTATE_90"
_UPRIGHT = {i: Image.Transpose[name] for i, name in enumerate(_TURNS.split(), 2)}


class Patches(NamedTuple):
    """How SigLIP 2 NaFlex reads an image: in its own shape, as whole patches, as many as fit."""

    side: int  # of a patch
    max_num_patches: tuple[int, ...]  # of several numbers the first that holds an image in its own size

    def sides(self, image: tuple[int, int]) -> tuple[int, int]:
        """Width and height of an image, resized: by bisection of the scale, as transformers does it."""
        own = math.prod(side // self.side for side in image)
        limit = next((number for number in self.max_num_patches if number >= own), self.max_num_patches[-1])

        def scaled(scale: float) -> tuple[int, int]:
            width, height = (self.side * max(1, math.ceil(side * scale / self.side)) for side in image)
            return width, height

        low, high = 1e-6, 100.0
        while high - low >= 1e-5:
            middle = (low + high) / 2
            fits = math.prod(scaled(middle)) <= limit * self.side**2
            low, high = (middle, high) if fits else (low, middle)
        return scaled(low)


class Square(NamedTuple):
    """The square that a model reads of an image: the image is resized, and the middle cut out."""

    size: int  # its side
    larger: int  # the side to which the image is resized; 0: it keeps its size
    squash: bool  # the whole image becomes a square; else its short side is resized to `larger`
    filter: int  # of Pillow
    patches: Patches | None = None  # the model reads the whole image in its shape; the square shows it

    def layout(self, image: tuple[int, int]) -> tuple[int, int, int, int]:
        """Width and height of the resized image, and the left and upper edge of the square in it."""
        larger = self.larger or min(image)
        width, height = (larger if self.squash else int(larger * side / min(image)) for side in image)
        return width, height, round((width - self.size) / 2), round((height - self.size) / 2)

    def cut(self, image: Image.Image, *, rim: bool = False) -> Image.Image:
        """The square of an image; with a rim, what reads the same: one of side `larger`, or whole patches."""
        if rim and self.patches is not None:
            return image.resize(self.patches.sides(image.size), Image.Resampling(self.filter))
        if image.size == (self.size, self.size) and self.larger == self.size:
            return image
        width, height, left, top = self.layout(image.size)
        side = self.larger if rim and self.larger else self.size
        more = round((side - self.size) / 2)
        box = left - more, top - more, left - more + side, top - more + side
        return image.resize((width, height), Image.Resampling(self.filter)).crop(box)


def decode(record: Record, draft: int | None = None) -> Image.Image:
    """The image of a record in mode RGB, upright, loaded into memory. Raises CorruptSample("corrupt image").

    draft  decode a JPEG at 1/2, 1/4 or 1/8 of its size, with at least so many pixels on the short side
    """
    with _opened(record) as image:
        if draft is not None and isinstance(record.image, bytes):
            image.draft(None, (draft, draft))
        deep = ";16" in str(getattr(image, "tile", "")) and image.mode[0] != "I"
        deep = deep and image.format in ("PNG", "TIFF")
        image.load()
        turn = _UPRIGHT.get(_orientation(image))  # after loading, in which Pillow turns a TIFF itself
        out = _rgb(image if turn is None else image.transpose(turn))
        out.info.clear()  # else whoever decodes it again would turn it again
        if deep:  # Pillow keeps the upper 8 bits of colours
            top = np.asarray(image.convert("RGB")).max()  # without transparency; that beside black draws
            if top < 16 and not (top == 0 < np.asarray(out).max()):
                raise ValueError("16 bits of which 12 at most are used; scale them to 8 or all 16")
        return out


def as_png(image: Image.Image) -> bytes:
    """An image as a PNG file."""
    data = io.BytesIO()
    image.save(data, "png")
    return data.getvalue()


def image_size(record: Record) -> tuple[int, int]:
    """Width and height of the upright image in pixels, from its header alone. Raises CorruptSample."""
    with _opened(record) as image:
        if _orientation(image) < 5:
            return image.size
        tags = getattr(image, "tag_v2", None)  # of a TIFF, whose `size` some versions of Pillow turn
        return (image.height, image.width) if tags is None else (tags[257], tags[256])


def kind_of(data: bytes) -> str:
    """ "HEIC" or "AVIF" by the brands at the start of the file (ISO/IEC 23008-12), "" for anything else.

    >>> kind_of(b"....ftypheic...."), kind_of(b"\\0\\0\\0\\x14ftypmif1\\0\\0\\0\\0avif"), kind_of(b"GIF89a")
    ('HEIC', 'AVIF', '')
    """
    if data[4:8] != b"ftyp":
        return ""
    major, length = data[8:12], int.from_bytes(data[:4], "big")
    others = [data[i : i + 4] for i in range(16, min(length, 256), 4)]
    if major in (b"mif1", b"msf1") and {b"avif", b"avis"} & set(others):
        return "AVIF"
    return _BRANDS.get(major, "")


def decodable(kind: str) -> bool:
    """Whether HEIC or AVIF can be decoded here. pillow_heif is loaded with the first HEIC."""
    if kind == "AVIF":
        return bool(features.check("avif"))  # Pillow 11.3 and later; the extra asks for it
    with suppress(ImportError):
        from pillow_heif import register_heif_opener

        register_heif_opener()
        return True
    return False


def formats_of(key: str, data: bytes) -> tuple[str, ...]:
    """The formats to try on a file, as Pillow names them. CorruptSample(NEEDS_DECODER) without a decoder."""
    kind = kind_of(data)
    if kind and not decodable(kind):
        raise CorruptSample(NEEDS_DECODER.format(kind), key)
    return ("HEIF" if kind == "HEIC" else kind,) if kind else FORMATS


def now_decodable(cause: str) -> bool:
    """Whether an image that could not be used for this cause may be decoded now: its decoder is installed."""
    return any(cause == NEEDS_DECODER.format(kind) and decodable(kind) for kind in ("HEIC", "AVIF"))


@contextmanager
def _opened(record: Record) -> Iterator[Image.Image]:
    """The image of a record, its header read. Errors inside the block are CorruptSample too."""
    key, data = record.key, record.image
    formats = formats_of(key, data) if isinstance(data, bytes) else ()
    # Decoders meet arbitrary bytes here and fail in every way there is (SyntaxError, struct.error, ...).
    try:
        with (
            Image.open(io.BytesIO(data), formats=formats) if isinstance(data, bytes) else nullcontext(data)
        ) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise ValueError(f"{width} x {height} pixels, more than {MAX_PIXELS}")
            if max(width, height, 1) > THINNEST * min(width, height):
                raise ValueError(f"{width} x {height} pixels, thinner than 1 to {THINNEST}")
            yield image
    except Exception as error:
        unknown = isinstance(error, UnidentifiedImageError)
        why = f"none of {', '.join(formats)}" if unknown else _first_line(error)
        raise CorruptSample(Cause.CORRUPT_IMAGE, f"{key} ({why})") from error


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1 to 8. An image whose EXIF is unreadable counts as upright."""
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except Exception:
        return 1
    return value if value in _UPRIGHT else 1


def _rgb(image: Image.Image) -> Image.Image:
    """Always a new image, so that the caller may change or close it."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image.copy()
    if image.mode == "F" or image.mode.startswith("I"):
        return Image.fromarray(_eight_bits(image)).convert("RGB")
    if "transparency" in image.info or image.mode in ("RGBA", "RGBa", "LA", "La", "PA"):
        layer = image.convert("RGBA")
        ground = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        return Image.alpha_composite(ground, layer).convert("RGB")
    return image.convert("RGB")


def _eight_bits(image: Image.Image) -> np.ndarray:
    """Grey values of more than 8 bits, or floats, as [H, W] uint8: the smallest known range that holds all of
    them becomes 0..255. ValueError where there is none.

    Ranges are 0..255, 0..4095 (12 bits) and 0..65535, of floats also 0..1 and -1..1. Floats a little outside
    of 0..1 are refused: they may be highlights of this range as well as a dark image of another one.
    """
    pixels, floats = np.asarray(image), image.mode == "F"
    low, high, slack = float(pixels.min()), float(pixels.max()), 1e-3 * floats
    ranges = [(0, 1), (-1, 1)] * floats + [(0, 255), (0, 4095), (0, 65535)]
    fits = [(a, b) for a, b in ranges if a - b * slack <= low and high <= b * (1 + slack)]
    unclear = floats and high < 16 and (-0.25 < low < -slack or high > 1 + slack)
    if not fits or unclear:
        known = ", ".join(f"{a}..{b}" for a, b in ranges)
        raise ValueError(f"grey values from {low:.9g} to {high:.9g}; scale them to one of {known}")
    start, end = fits[0]
    grey = np.round((pixels.astype(np.float64) - start).clip(0, end - start) * (255 / (end - start)))
    if getattr(image, "tag_v2", {}).get(_PHOTOMETRIC) == 0:  # of a TIFF: 0 is white
        grey = 255 - grey
    grey[pixels == image.info.get("transparency", -2)] = 255
    return grey.astype(np.uint8)


def _first_line(error: Exception) -> str:
    """The message of a decoder without the address of the buffer, so that equal runs write equal logs.

    >>> _first_line(ValueError("cannot read <_io.BytesIO object at 0x7f00>"))
    'cannot read'
    """
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return re.sub(r" <[^<>]* at 0x[0-9a-f]+>", "", line)
