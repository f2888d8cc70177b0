"""Data as a Python program has them: a path or several, a source, or a list of images with their captions.

`open_data` is the one way from what a caller has to a source.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from grainline.data.formats.common import digest
from grainline.data.formats.plain import read_plain
from grainline.data.image_inputs import ImageLike, open_image
from grainline.data.open_source import open_sources
from grainline.data.record import MISSING_IMAGE, CorruptSample, Record, Source
from grainline.errors import UserError

FORM = 'a pair is (image, caption) or (image, [captions]), such as ("a.jpg", "A dog runs.")'


class ImageTextPairs:
    """Images in memory or by their paths, each with its captions. Fulfils grainline.data.record.Source.

    Pairs with the same path, or the same object, are captions of one image. Key: the path, else the number
    of the image, from 0.
    """

    def __init__(self, pairs: Iterable[Any], images: str | None = None, path: str = "") -> None:
        """
        pairs   (image, caption) or (image, [captions]); images as `Model.encode` takes them
        images  folder of the images, for relative paths
        path    the name of the data; "": how many pairs there are
        """
        rows: dict[Any, tuple[ImageLike, list[str]]] = {}
        number = 0
        for number, pair in enumerate(pairs, 1):
            if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
                raise UserError(f"pair {number} is of type {type(pair).__name__}; {FORM}")
            image, captions = pair
            texts = [captions] if isinstance(captions, str) else captions
            if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
                raise UserError(f"the captions of pair {number} are no strings; {FORM}")
            same = str(image) if isinstance(image, str | Path) else id(image)
            rows.setdefault(same, (image, []))[1].extend(texts)
        self.path = path or f"a list of {number:,} pairs"
        self._folder, self._rows = Path(images or ""), list(rows.values())

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Record:
        index = range(len(self))[index]
        return Record(self._key(index), self._image(index), tuple(self._rows[index][1]))

    def keys(self) -> list[str]:
        """The keys of all records in order."""
        return [self._key(i) for i in range(len(self))]

    def fingerprint(self) -> str:
        """sha256 over keys and captions."""
        return digest(part for i, key in enumerate(self.keys()) for part in (key, *self._rows[i][1]))

    def _key(self, index: int) -> str:
        image = self._rows[index][0]
        return str(image) if isinstance(image, str | Path) else str(index)

    def _image(self, index: int) -> bytes | Image.Image:
        image = self._rows[index][0]
        if not isinstance(image, str | Path):
            return open_image(image)
        try:
            return read_plain(self._folder / image)
        except (OSError, ValueError):  # ValueError: a path with a null character
            raise CorruptSample(MISSING_IMAGE, str(self._folder / image)) from None


def open_data(data: Any, *, images: str | None = None, size: int | None = None) -> Source:
    """The source of what a caller has: a path, several paths, a `Source`, or pairs of image and captions.

    images  folder of the images, for data that name them by path
    size    side of drawn images in pixels

    Raises UserError for anything else.
    """
    if isinstance(data, str | Path):
        data = [data]
    elif isinstance(data, Source):
        if images is not None:
            raise UserError("images goes with a path of data; a Source has opened its own")
        return data
    if not isinstance(data, Sequence):
        raise UserError(
            f"data is of type {type(data).__name__}; give a path, paths, a Source or a list of pairs"
        )
    if data and not all(isinstance(one, str | Path) for one in data):
        return ImageTextPairs(data, images)
    return open_sources([str(one) for one in data], images=images, size=size)
