"""From the bytes of a record to an RGB image. Raises CorruptSample("corrupt image").

It handles EXIF orientation, palettes, CMYK, 16 bits and floats, transparency (over white), animations (first
frame), and refuses images that are too large or too thin. HEIC and AVIF, which phones write, need a decoder
that not every installation has; without it the cause of the CorruptSample names the extra.
"""

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError, features

from grainline.data.record import CORRUPT_IMAGE, CorruptSample, Record

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


class Square(NamedTuple):
    """The square that a model reads of an image: the image is resized, and the middle cut out."""

    size: int  # its side
    larger: int  # the side to which the image is resized
    squash: bool  # the whole image becomes a square; else its short side is resized to `larger`
    filter: int  # of Pillow

    def layout(self, image: tuple[int, int]) -> tuple[int, int, int, int]:
        """Width and height of the resized image, and the left and upper edge of the square in it."""
        width, height = (
            self.larger if self.squash else int(self.larger * side / min(image)) for side in image
        )
        return width, height, round((width - self.size) / 2), round((height - self.size) / 2)

    def cut(self, image: Image.Image, *, rim: bool = False) -> Image.Image:
        """The square of an image; with a rim, a square of side `larger` whose own square is the same."""
        if image.size == (self.size, self.size) and self.larger == self.size:
            return image
        width, height, left, top = self.layout(image.size)
        side, more = (self.larger, round((self.larger - self.size) / 2)) if rim else (self.size, 0)
        box = left - more, top - more, left - more + side, top - more + side
        return image.resize((width, height), Image.Resampling(self.filter)).crop(box)


def decode(record: Record, draft: int | None = None) -> Image.Image:
    """The image of a record in mode RGB, upright, loaded into memory. Raises CorruptSample("corrupt image").

    draft  decode a JPEG at 1/2, 1/4 or 1/8 of its size, with at least so many pixels on the short side

    >>> image = decode(Record("a", as_png(Image.new("RGBA", (3, 2), (255, 0, 0, 0))), ("Nothing.",)))
    >>> image.mode, image.size, image.getpixel((0, 0))
    ('RGB', (3, 2), (255, 255, 255))
    """
    if isinstance(record.image, Image.Image):
        return _rgb(record.image)
    with _opened(record.key, record.image) as image:
        if draft is not None:
            image.draft(None, (draft, draft))
        turn = _UPRIGHT.get(_orientation(image))
        image.load()
        return _rgb(image if turn is None else image.transpose(turn))


def as_png(image: Image.Image) -> bytes:
    """An image as a PNG file."""
    data = io.BytesIO()
    image.save(data, "png")
    return data.getvalue()


def image_size(record: Record) -> tuple[int, int]:
    """Width and height of the upright image in pixels, from its header alone. Raises CorruptSample."""
    if isinstance(record.image, Image.Image):
        return record.image.size
    with _opened(record.key, record.image) as image:
        width, height = image.size
        return (height, width) if _orientation(image) >= 5 else (width, height)


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
    if not kind:
        return FORMATS
    if not decodable(kind):
        raise CorruptSample(NEEDS_DECODER.format(kind), key)
    return ("HEIF" if kind == "HEIC" else kind,)


def now_decodable(cause: str) -> bool:
    """Whether an image that could not be used for this cause may be decoded now: its decoder is installed."""
    return any(cause == NEEDS_DECODER.format(kind) and decodable(kind) for kind in ("HEIC", "AVIF"))


@contextmanager
def _opened(key: str, data: bytes) -> Iterator[Image.Image]:
    """An image file, its header read. Errors inside the block are CorruptSample too."""
    formats = formats_of(key, data)
    # Decoders meet arbitrary bytes here and fail in every way there is (SyntaxError, struct.error, ...).
    try:
        with Image.open(io.BytesIO(data), formats=formats) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise ValueError(f"{width} x {height} pixels, more than {MAX_PIXELS}")
            if max(width, height) > THINNEST * min(width, height):
                raise ValueError(f"{width} x {height} pixels, thinner than 1 to {THINNEST}")
            yield image
    except Exception as error:
        unknown = isinstance(error, UnidentifiedImageError)
        why = f"none of {', '.join(formats)}" if unknown else _first_line(error)
        raise CorruptSample(CORRUPT_IMAGE, f"{key} ({why})") from error


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
        return Image.fromarray(_eight_bits(np.asarray(image))).convert("RGB")
    if "transparency" in image.info or image.mode in ("RGBA", "RGBa", "LA", "La", "PA"):
        layer = image.convert("RGBA")
        ground = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        return Image.alpha_composite(ground, layer).convert("RGB")
    return image.convert("RGB")


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
    """The message of a decoder without the address of the buffer, so that equal runs write equal logs.

    >>> _first_line(ValueError("cannot read <_io.BytesIO object at 0x7f00>"))
    'cannot read'
    """
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return re.sub(r" <[^<>]* at 0x[0-9a-f]+>", "", line)
