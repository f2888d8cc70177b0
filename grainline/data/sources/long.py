"""What the benchmarks of retrieval with long captions share: pictures with one long text each.

A source gives the texts as they stand in its files. What a protocol makes of them, and how many it reads, is
said in grainline.evaluate.long. A picture has one text: where a file names it again, its first text stands.
"""

import os
from collections.abc import Iterable
from typing import NamedTuple

from grainline.data.causes import DAMAGED_ROW, MISSING_CAPTION
from grainline.data.record import Damaged, Record
from grainline.data.sources.common import FileSource, digest, read_picture, require_pictures
from grainline.data.sources.plain import HELP
from grainline.errors import UserError


class Pair(NamedTuple):
    """A picture and its text, or why there is none."""

    key: str
    places: tuple[str, ...]  # below the root, where the picture may lie
    text: str  # as the file has it, blanks and line breaks included
    short: str = ""  # a caption that the text begins with, where the file has one
    damage: str = ""


class LongCaptions(FileSource):
    """Abstract: pictures with one long text each."""

    benchmark: str  # the name of the set; "" for another part of it than the one that is measured on

    def __init__(self, path: str, file: str, root: str, pairs: Iterable[Pair]) -> None:
        self.path = path
        self._file = file
        self._root = root
        listed = list(pairs)
        first = {pair.key: pair for pair in reversed(listed)}  # the last one set is the first in the file
        self.pairs = tuple(pair for pair in listed if first[pair.key] is pair)
        again = len(listed) - len(self.pairs)
        if again:
            self.remarks = (f"{again} texts beyond the first of their picture are left out",)
        if not any(pair.text.strip() for pair in self.pairs):
            raise UserError(f"{file} has no text in any of its {len(self.pairs)} rows; {HELP}")
        places = [self._places(pair) for pair in self.pairs if not pair.damage]
        require_pictures(places, file, root, f", the folder of the pictures of {type(self).__name__}")

    def _places(self, pair: Pair) -> list[str]:
        return [os.path.join(self._root, place) for place in pair.places]

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Record:
        pair = self.pairs[index]
        record = self.record(index, pair.text)
        return record._replace(captions=(pair.short,), long=record.captions[0]) if pair.short else record

    def record(self, index: int, text: str) -> Record:
        """The record at a position with this text instead of its own. Raises Damaged."""
        pair = self.pairs[index]
        where = f"{self._file}: {pair.key}"
        if pair.damage:
            raise Damaged(DAMAGED_ROW, f"{where} ({pair.damage})")
        if not text.strip():
            raise Damaged(MISSING_CAPTION, where)
        return Record(pair.key, read_picture(self._places(pair), where), (text.strip(),))

    def keys(self) -> Iterable[str]:
        """The names of the pictures."""
        return (pair.key for pair in self.pairs)

    def fingerprint(self) -> str:
        """sha256 over names and texts; pictures are not looked at, so their sizes do not count."""
        return digest(part for pair in self.pairs for part in (pair.key, pair.text))
