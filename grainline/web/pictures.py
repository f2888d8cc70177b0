"""Pictures that come in, checked before they are decoded, and pictures that go out, made small and plain."""

import io

from PIL import Image

from grainline.data.decode import FORMATS, decode
from grainline.data.record import Damaged, Record
from grainline.errors import UserError
from grainline.model import Model

QUALITY = 88


class Refused(Exception):
    """A picture that is not taken; `status` is that of HTTP."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


def taken(data: bytes, model: Model, pixels: int) -> Image.Image:
    """The square that a model sees of a picture that was sent. Raises Refused.

    pixels  the most that the picture may have: known from its header, before anything is decoded
    """
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as picture:
            width, height = picture.size
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        width = height = pixels  # Pillow will not say how large it is
    except Exception:
        raise Refused(415, f"this is no picture; allowed are {', '.join(FORMATS)}") from None
    if width * height > pixels:
        raise Refused(413, f"the picture is too large; at most {pixels:,} pixels are allowed")
    try:
        return model.seen(data)
    except UserError as error:
        raise Refused(415, str(error)) from None


def shown(data: bytes, side: int) -> bytes:
    """A picture as a JPEG whose longer side has at most `side` pixels, upright, without its metadata.

    Raises Damaged.
    """
    picture = decode(Record("picture", data, ()), draft=side)
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    try:
        picture.save(out, "JPEG", quality=QUALITY)
    except OSError as error:
        raise Damaged("damaged image", str(error)) from error
    return out.getvalue()
