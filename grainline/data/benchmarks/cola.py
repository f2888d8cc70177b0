"""COLA, multi-object part: items of two images and two captions.

    cola:COLA_multiobjects_matching_benchmark.json?images=DIR

Ray et al., arXiv 2305.03689. The file is a JSON list of rows [url, caption, url, caption]: two images, each
with the caption that describes it. An image is found by the file name of its URL. An image of
several rows is one record with all its captions; `items` holds the rows.
"""

import os
from collections.abc import Iterable
from typing import Any, NamedTuple

from grainline.data.formats.checked import brief_json, strings
from grainline.data.formats.common import FileSource, digest, name_of, read_image, require_images, split_query
from grainline.data.formats.plain import HELP, load_json
from grainline.data.record import Record
from grainline.errors import UserError

ROW = "[url, caption, url, caption]"


class Item(NamedTuple):
    """Two images and their captions: caption i describes image i."""

    images: tuple[str, str]  # keys
    captions: tuple[str, str]


class Cola(FileSource):
    """The images of a file of items, in the order in which they first stand there. Raises UserError."""

    images_by_path = True

    @staticmethod
    def recognises(content: Any) -> bool:
        """Whether parsed JSON has the form of a file of items; its rows may still be wrong."""
        rows = content if isinstance(content, list) else []
        return any(isinstance(row, list) for row in rows) and not any(isinstance(row, dict) for row in rows)

    def __init__(self, path: str, images: str | None = None, data: Any = None) -> None:
        file, options = split_query(path, ("images",))
        data = load_json(file) if data is None else data
        if not self.recognises(data):
            raise UserError(f"{file} is not a file of items: a list of rows {ROW}; {HELP}")
        self.path = path
        self._file = file
        self._root = images or options.get("images") or os.path.dirname(os.path.abspath(file))
        urls: dict[str, str] = {}  # file name -> URL
        self.items = tuple(_item(row, f"row {number} of {file}", urls) for number, row in enumerate(data, 1))
        captions: dict[str, dict[str, None]] = {}  # a dict keeps the order, and each caption once
        for item in self.items:
            for key, caption in zip(*item, strict=True):
                captions.setdefault(key, {})[caption] = None
        self._records = [(key, tuple(texts)) for key, texts in captions.items()]
        require_images([[self._place(key)] for key in captions], file, self._root)

    def _place(self, key: str) -> str:
        return os.path.join(self._root, key)

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Record:
        key, captions = self._records[index]
        return Record(key, read_image([self._place(key)], f"{self._file}: {key}"), captions)

    def keys(self) -> Iterable[str]:
        """The file names of the images."""
        return (key for key, _ in self._records)

    def fingerprint(self) -> str:
        """sha256 over the rows; images are not looked at, so their sizes do not count."""
        return digest(part for item in self.items for part in (*item.images, *item.captions))


def _item(row: Any, where: str, urls: dict[str, str]) -> Item:
    texts = strings(row)
    if not isinstance(row, list) or len(row) != 4 or len(texts) != 4:
        raise UserError(f"{where} is {brief_json(row)}, not {ROW}, four texts; {HELP}")
    for url in texts[::2]:
        name = name_of(url)
        if not name:
            raise UserError(f"{where}: {url} has no file name, by which its image would be found; {HELP}")
        if urls.setdefault(name, url) != url:
            raise UserError(
                f"{where}: {url} and {urls[name]} have one file name, by which both would be found; {HELP}"
            )
    return Item((name_of(texts[0]), name_of(texts[2])), (texts[1], texts[3]))
