"""The base of sources whose images are files that one file of annotations lists: COCO and the benchmarks."""

import os
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, NamedTuple

from grainline.data.decode import image_size
from grainline.data.formats.common import FileSource, digest, read_image, require_images, split_query
from grainline.data.formats.plain import data_error, load_json
from grainline.data.record import CORRUPT_REGION, CORRUPT_ROW, CorruptSample, Record


class Entry(NamedTuple):
    """An image that the file lists, or a row of the file that is wrong."""

    record: Record  # without the image; the key of a wrong row is its place in the file
    places: tuple[str, ...] = ()  # below the folder of the images, where the image may lie
    size: tuple[int, int] | None = None  # width and height that boxes or masks are for
    where: str = ""  # its place in the file, for an error; otherwise the key says it
    fault: tuple[str, str] | None = None  # why it cannot be used: cause, and place in the file


def wrong_row(place: str, error: str) -> Entry:
    """An entry for a row that cannot be used."""
    return Entry(Record(place, b"", ()), fault=(CORRUPT_ROW, f"{place} ({error})"))


class ListedImages(FileSource):
    """Abstract: the images of a file, in its order. Raises UserError for a file of another form.

    The folder of the images is `images`, or what `?images=DIR` names, or else that of the file.
    """

    images_by_path = True
    form: ClassVar[str]  # for an error: "a file of FOIL-COCO: annotations[] with ..."; "" accepts all
    options: ClassVar[tuple[str, ...]] = ("images",)
    which: str = ""  # added to an error about the folder of the images
    sized: ClassVar[str] = "boxes"  # what `Entry.size` is for

    def __init__(self, path: str, images: str | None = None, content: Any = None) -> None:
        """content: the parsed file, where it has been read already"""
        self.path = path
        place, self._given = split_query(path, self.options)
        self._file = self.find(place)
        content = self.load() if content is None else content
        if self.form and not self.accepts(content):
            raise data_error(f"{self._file} is not {self.form}")
        self._root = images or self._given.get("images") or self.folder()
        self.entries = self.parse(content)
        places = [self._paths(entry) for entry in self.entries if entry.places]
        require_images(places, self._file, self._root, self.which)

    def find(self, place: str) -> str:
        """The file that a path means."""
        return place

    def load(self) -> Any:
        """The content of the file."""
        return load_json(self._file)

    def accepts(self, content: Any) -> bool:
        """Whether the content has the right form."""
        return self.recognises(content)

    def folder(self) -> str:
        """The folder of the images, where none is named."""
        return os.path.dirname(os.path.abspath(self._file))

    @abstractmethod
    def parse(self, content: Any) -> list[Entry]:
        """The images, and rows that are wrong. Raises UserError."""

    @abstractmethod
    def parts(self) -> Iterator[str | int]:
        """What the fingerprint is made of."""

    def _paths(self, entry: Entry) -> list[str]:
        return [os.path.join(self._root, place) for place in dict.fromkeys(entry.places)]

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> Record:
        record, _, size, place, fault = entry = self.entries[index]
        if fault:
            raise CorruptSample(fault[0], f"{self._file}: {fault[1]}")
        where = f"{self._file}: {place or record.key}"
        record = record._replace(image=read_image(self._paths(entry), where))
        if size is not None and (actual := image_size(record)) != size:
            sizes = f"{actual[0]} x {actual[1]} pixels, its {self.sized} are for {size[0]} x {size[1]}"
            raise CorruptSample(CORRUPT_REGION, f"{where} ({sizes})")
        return record

    def keys(self) -> Iterable[str]:
        return (entry.record.key for entry in self.entries)

    def fingerprint(self) -> str:
        """sha256 over names and texts; images are not read."""
        return digest(self.parts())


def choose_splits(counts: Counter[str], names: str, file: str) -> list[str]:
    """The splits that a path names, by commas. Raises UserError for one that the file does not have."""
    splits = names.split(",")
    unknown = [name for name in splits if name not in counts]
    if unknown:
        has = ", ".join(f"{name} ({number})" for name, number in sorted(counts.items()))
        raise data_error(f"{file} has no split {unknown[0]}: it has {has}")
    return splits
