"""Images decoded in processes of their own, with a share for each address and a time limit.

A file of a hundred bytes can hold millions of pixels, or a thousand scans of them, and no decoder stops in
the middle. A process can be killed: when the time is over, or when nobody waits for its image any more. It
also leaves Python's lock to the server, and a decoder that crashes ends nothing else. This file loads no
torch, so a process starts in a fraction of a second.
"""

import asyncio
import io
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

from anyio import BrokenWorkerProcess, CapacityLimiter, to_process, to_thread
from PIL import Image
from starlette.exceptions import HTTPException

from grainline.data.decode import FORMATS, Square, decode, formats_of
from grainline.data.record import CorruptSample, Record

DECODERS = 2  # images that are decoded at a time, one of an address at least
SECONDS = 10.0  # for one image
QUALITY = 88  # of JPEGs


class Decoders:
    """Processes that decode images, in the order of requests; those of one address wait for each other."""

    def __init__(self, share: float) -> None:
        self.of_one = max(1, int(DECODERS * share))  # images of one address at a time
        self.all, self.processes = asyncio.Semaphore(DECODERS), CapacityLimiter(DECODERS)
        self.own: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()  # while it is in use

    async def run(self, client: str, read: Callable[[], bytes], work: Callable[..., Any], *args: Any) -> Any:
        """The result of `work`, of this file, for the bytes from `read`; killed when this is cancelled.

        Raises HTTPException.
        """
        own = self.own.setdefault(client, asyncio.Semaphore(self.of_one))
        async with own, self.all:
            data = await to_thread.run_sync(read)
            try:
                async with asyncio.timeout(SECONDS):
                    run = to_process.run_sync
                    return await run(work, data, *args, cancellable=True, limiter=self.processes)
            except TimeoutError:
                raise HTTPException(413, f"the image takes longer than {SECONDS:g} s to decode") from None
            except BrokenWorkerProcess:
                raise HTTPException(415, "the image ended its decoder") from None


def square_of(data: bytes, square: Square, pixels: int) -> Image.Image:
    """The square that a model reads of an image, with a rim. HTTPException for none or too many pixels."""
    try:
        with Image.open(io.BytesIO(data), formats=formats_of("the image", data)) as image:
            width, height = image.size
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        width = height = pixels  # Pillow will not say how large it is
    except CorruptSample as error:  # a HEIC or AVIF without its decoder
        raise HTTPException(415, f"this server cannot read it: {error.cause}") from None
    except Exception:
        raise HTTPException(415, f"this is no image; allowed are {', '.join(FORMATS)}") from None
    if width * height > pixels:
        raise HTTPException(413, f"the image is too large; at most {pixels:,} pixels are allowed")
    try:
        return square.cut(decode(Record("image", data, ())), rim=True)
    except CorruptSample as error:
        raise HTTPException(415, f"the image cannot be used: {error.where}") from None


def thumbnail(data: bytes, side: int) -> bytes:
    """An image as a JPEG whose longer side has at most `side` pixels, upright, without its metadata."""
    out = io.BytesIO()
    try:
        image = decode(Record("image", data, ()), draft=side)
        image.thumbnail((side, side), Image.Resampling.LANCZOS)
        image.save(out, "JPEG", quality=QUALITY)
    except (CorruptSample, OSError) as error:
        raise HTTPException(400, str(error)) from None
    return out.getvalue()
