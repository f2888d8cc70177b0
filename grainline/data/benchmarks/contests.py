"""What the benchmarks of pairs share: a right pair of picture and text against a wrong one.

Either the text differs, and the wrong one is a foil of its record; or the picture does, and a `Contest` names
both by their places in the source.
"""

import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from grainline.data.formats.checked import shown, strings
from grainline.data.formats.common import FileSource, digest, read_picture, require_pictures, some
from grainline.data.formats.joined import Joined
from grainline.data.formats.plain import HELP
from grainline.data.record import Foil, Record, Source
from grainline.data.scenes.source import Scenes
from grainline.errors import UserError

DRAWN, OWN = "scenes", "own data"  # what sources are called that are no benchmark


class Contest(NamedTuple):
    """A text, the picture that it is true of, and one that it is false of."""

    text: str
    right: int  # place in the source
    wrong: int
    kind: str  # what of the text the wrong picture lacks


class Origin(NamedTuple):
    """Records that come from one file."""

    start: int  # place of the first of them
    benchmark: str
    contests: tuple[Contest, ...]  # by places in the whole source


class Benchmark(FileSource):
    """Abstract: the pictures of a benchmark of pairs."""

    benchmark: str
    contests: tuple[Contest, ...] = ()


class Row(NamedTuple):
    """A picture with a true text and a foil."""

    picture: str  # its file name, or where it lies below its folder
    foil: Foil


class Foiled(Benchmark):
    """Abstract: pictures whose true texts have foils, in the order in which they first stand in the file.

    The captions of a record are its true texts.
    """

    def __init__(self, path: str, file: str, root: str | None, rows: Sequence[Row]) -> None:
        self.path = path
        self._file = file
        self._root = root or os.path.dirname(os.path.abspath(file))
        foils: dict[str, list[Foil]] = {}
        for row in rows:
            foils.setdefault(row.picture, []).append(row.foil)
        self.pictures = [(name, tuple(found)) for name, found in foils.items()]
        require_pictures([self._places(name) for name in foils], file, self._root)

    def _places(self, name: str) -> list[str]:
        return [os.path.join(self._root, place) for place in dict.fromkeys((name, os.path.basename(name)))]

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> Record:
        name, foils = self.pictures[index]
        true = tuple(dict.fromkeys(foil.true for foil in foils))
        return Record(name, read_picture(self._places(name), f"{self._file}: {name}"), true, foils=foils)

    def keys(self) -> Iterable[str]:
        """The file names of the pictures."""
        return (name for name, _ in self.pictures)

    def fingerprint(self) -> str:
        """sha256 over names and texts; pictures are not looked at, so their sizes do not count."""
        parts: list[str | int] = [self.benchmark]
        for name, foils in self.pictures:
            parts += [name, len(foils), *(part for foil in foils for part in foil)]
        return digest(parts)


def items_of(data: Any, fields: Sequence[str]) -> bool:
    """Whether parsed JSON is an object of items, of which one has these fields."""
    rows = data.values() if isinstance(data, dict) else ()
    return any(isinstance(row, dict) and all(name in row for name in fields) for row in rows)


def whole_item(item: Any, fields: Sequence[str], where: str) -> dict[str, Any]:
    """An item with all its fields. Raises UserError."""
    missing = [name for name in fields if not isinstance(item, dict) or name not in item]
    if missing:
        raise UserError(f"{where} is {shown(item)}, without {some(missing)}; {HELP}")
    return dict(item)


def one_text(value: Any, field: str, where: str) -> str:
    """The text of a field. Raises UserError where there is none, or several."""
    found = strings(value) if isinstance(value, str) else []
    if not found:
        raise UserError(f"{where}: {field} is {shown(value)}, not a text; {HELP}")
    return found[0]


def origins(source: Source) -> list[Origin]:
    """Which records come from which benchmark, in their order."""
    return _from(source, 0)


def _from(source: Source, start: int) -> list[Origin]:
    if isinstance(source, Joined):
        found = []
        for one in source.sources:
            found += _from(one, start)
            start += len(one)
        return found
    if not isinstance(source, Benchmark):
        return [Origin(start, DRAWN if isinstance(source, Scenes) else OWN, ())]
    moved = (c._replace(right=c.right + start, wrong=c.wrong + start) for c in source.contests)
    return [Origin(start, source.benchmark, tuple(moved))]
