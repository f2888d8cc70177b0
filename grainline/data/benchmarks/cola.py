"""COLA, multi-object part: items of two images and two captions.

    cola:COLA_multiobjects_matching_benchmark.json?images=DIR

Ray et al., arXiv 2305.03689. The file is a JSON list of rows [url, caption, url, caption]: two images, each
with the caption that describes it. An image has the file name of its URL. An image of several rows is one
record with all its captions; `items` holds the rows.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from grainline.data.formats.checked import brief_json, strings
from grainline.data.formats.common import name_of
from grainline.data.formats.listed import Entry, ListedImages
from grainline.data.formats.plain import data_error
from grainline.data.record import Record

ROW = "[url, caption, url, caption]"


class Item(NamedTuple):
    """Two images and their captions: caption i describes image i."""

    images: tuple[str, str]  # keys
    captions: tuple[str, str]


class Cola(ListedImages):
    """The images of a file of items, each at its first place in the file. Raises UserError."""

    form = f"a file of items: a list of rows {ROW}"

    @staticmethod
    def recognises(content: Any) -> bool:
        rows = content if isinstance(content, list) else []
        return any(isinstance(row, list) for row in rows) and not any(isinstance(row, dict) for row in rows)

    def parse(self, content: Any) -> list[Entry]:
        urls: dict[str, str] = {}  # file name -> URL
        rows = enumerate(content, 1)
        self.items = tuple(_item(row, f"row {number} of {self._file}", urls) for number, row in rows)
        captions: dict[str, dict[str, None]] = {}  # a dict keeps the order, and each caption once
        for item in self.items:
            for key, caption in zip(*item, strict=True):
                captions.setdefault(key, {})[caption] = None
        return [Entry(Record(key, b"", tuple(texts)), (key,)) for key, texts in captions.items()]

    def parts(self) -> Iterator[str | int]:
        return (part for item in self.items for part in (*item.images, *item.captions))


def _item(row: Any, where: str, urls: dict[str, str]) -> Item:
    texts = strings(row)
    if not isinstance(row, list) or len(row) != 4 or len(texts) != 4:
        raise data_error(f"{where} is {brief_json(row)}, not {ROW}, four texts")
    for url in texts[::2]:
        name = name_of(url)
        if not name:
            raise data_error(f"{where}: {url} has no file name, by which its image would be found")
        if urls.setdefault(name, url) != url:
            raise data_error(f"{where}: {url} and {urls[name]} have one file name")
    return Item((name_of(texts[0]), name_of(texts[2])), (texts[1], texts[3]))
