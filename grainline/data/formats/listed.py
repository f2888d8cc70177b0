"""Sources whose images are files that one file of annotations lists: their base class, COCO and Flickr."""

import os
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

from grainline.data.decode import image_size
from grainline.data.formats.common import (
    FileSource,
    digest,
    read_image,
    require_images,
    split_query,
    stem_of,
)
from grainline.data.formats.parsed import (
    Fields,
    Id,
    Side,
    Text,
    Words,
    checked,
    data_error,
    load_json,
    read_text,
    strings,
)
from grainline.data.formats.storage import Range, absolute, fetch, is_remote, join
from grainline.data.record import Cause, CorruptSample, Record
from grainline.errors import UserError, shorten_words


class Entry(NamedTuple):
    """An image that the file lists, or a row of the file that is wrong."""

    record: Record  # without the image; the key of a wrong row is its place in the file
    places: tuple[str, ...] = ()  # below the folder of the images, where the image may lie
    size: tuple[int, int] | None = None  # width and height that boxes or masks are for
    where: str = ""  # its place in the file, for an error; otherwise the key says it
    fault: tuple[str, str] | None = None  # why it cannot be used: cause, and place in the file


def wrong_row(place: str, error: str) -> Entry:
    """An entry for a row that cannot be used."""
    return Entry(Record(place, b"", ()), fault=(Cause.CORRUPT_ROW, f"{place} ({error})"))


def no_text(file: str, what: str, entries: Iterable["Entry"]) -> UserError:
    """The error for a file without a text that can be used; it names the first fault."""
    faults = (f" that can be used; the first fault: {': '.join(x.fault)}" for x in entries if x.fault)
    return data_error(f"{file} has no text in any {what}{next(faults, '')}")


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
        self._file, self._query = split_query(path, self.options)
        content = self.load() if content is None else content
        if self.form and not self.accepts(content):
            raise data_error(f"{self._file} is not {self.form}")
        self._root = images or self._query.get("images") or self.folder()
        self.entries = self.parse(content)
        places = [self._paths(entry) for entry in self.entries if entry.places]
        require_images(places, self._file, self._root, self.which)

    def load(self) -> Any:
        """The content of the file."""
        return load_json(self._file)

    def accepts(self, content: Any) -> bool:
        """Whether the content has the right form."""
        return self.recognises(content)

    def folder(self) -> str:
        """The folder of the images, where none is named."""
        return os.path.dirname(absolute(self._file))

    @abstractmethod
    def parse(self, content: Any) -> list[Entry]:
        """The images, and rows that are wrong. Raises UserError."""

    @abstractmethod
    def parts(self) -> Iterable[str | int]:
        """The values that the fingerprint is made of."""

    def choose_splits(self, present: Iterable[str], default: str) -> list[str]:
        """The splits that a path names, by commas. UserError for one that is not among `present`."""
        splits, counts = self._query.get("split", default).split(","), Counter(present)
        unknown = [name for name in splits if name not in counts]
        if unknown:
            has = ", ".join(f"{name} ({number})" for name, number in sorted(counts.items())) or "no valid row"
            raise data_error(f"{self._file} has no split {unknown[0]}: it has {has}")
        return splits

    def _paths(self, entry: Entry) -> list[str]:
        return [join(self._root, place) for place in dict.fromkeys(entry.places)]

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
            raise CorruptSample(Cause.CORRUPT_REGION, f"{where} ({sizes})")
        return record

    def prefetch(self, indices: Sequence[int]) -> None:
        if is_remote(self._root):
            fetch(Range(path) for i in indices for path in self._paths(self.entries[i])[:1])

    def keys(self) -> Iterable[str]:
        return (entry.record.key for entry in self.entries)

    def fingerprint(self) -> str:
        """sha256 over names and texts; images are not read."""
        return digest(self.parts())


# Captions of COCO and Flickr: the two files of COCO are two protocols, so two sources.
#
#     coco-karpathy:dataset_coco.json?images=DIR&split=test   Karpathy's split, also of Flickr8k and 30k
#     coco-val2017:captions_val2017.json?images=DIR           the official annotation file
#     flickr-tokens:results_20130124.token?images=DIR         all 31,783 images of Flickr30k
#
# All take the first five captions of an image, as the field does: in the order of the file, by annotation id
# for the official one of COCO. `left_out` counts the others.

CAPTIONS = 5


class _KarpathyImage(Fields):
    filename: Text
    filepath: Words | None = None
    split: Text
    sentences: tuple[dict[str, Any], ...]


class _Image(Fields):
    id: Id
    file_name: Text


class SizedImage(_Image):
    """An image as COCO's files list it, with its size in pixels."""

    width: Side
    height: Side


class _Note(Fields):
    id: Id
    image_id: Id
    caption: Words


class _Coco(ListedImages):
    """Abstract: images with their first captions."""

    @abstractmethod
    def images(self, content: Any) -> list[Entry]:
        """The images with all their captions, and the rows that are wrong."""

    def parse(self, content: Any) -> list[Entry]:
        entries = self.images(content)
        self.left_out = sum(len(entry.record.captions[CAPTIONS:]) for entry in entries)
        if self.left_out:
            others = f"beyond the first {CAPTIONS} of their image"
            self.remarks = (f"{self.left_out} captions {others} are left out",)
        if not any(entry.record.captions for entry in entries):
            raise no_text(self._file, f"of its {len(entries)} images", entries)
        records = [entry.record._replace(captions=entry.record.captions[:CAPTIONS]) for entry in entries]
        return [entry._replace(record=record) for entry, record in zip(entries, records, strict=True)]

    def parts(self) -> Iterator[str | int]:
        for record in (entry.record for entry in self.entries):
            yield from (record.key, len(record.captions))
            yield from record.captions


class CocoKarpathy(_Coco):
    """One split of Karpathy's file: images[] with filename, filepath?, split, sentences[].raw."""

    form = "Karpathy's file: images[] with filename, split and sentences"
    options = ("images", "split")
    lists: ClassVar = {"images": ("filename", "split", "sentences")}

    def images(self, content: Any) -> list[Entry]:
        rows = list(checked(_KarpathyImage, content["images"], "images"))
        wanted = self.choose_splits((image.split for _, image, _ in rows if image), "test")
        entries = []
        for place, image, wrong in rows:
            if image is None:
                entries.append(wrong_row(place, wrong))
            elif image.split in wanted:
                # DIR may be the folder above val2014 and train2014, or the one that the image is in
                name, folder = image.filename, image.filepath
                places = (os.path.join(folder, name), name) if folder else (name,)
                entries.append(_entry(places, strings([one.get("raw") for one in image.sentences])))
        return entries


class CocoVal2017(_Coco):
    """An official file: images[] with id and file_name, annotations[] with id, image_id and caption."""

    form = "a caption file of COCO: images[] and annotations[] with captions"
    lists: ClassVar = {"images": ("id", "file_name"), "annotations": ("id", "image_id", "caption")}

    def images(self, content: Any) -> list[Entry]:
        captions: dict[int | str, list[str]] = {}  # of each image
        rows: list[Any] = []
        for place, image, wrong in checked(_Image, content["images"], "images"):
            if image is None or image.id in captions:
                wrong = f"another image has its id {image.id}" if image else wrong
                rows.append(wrong_row(place, wrong))
            else:
                captions[image.id] = []
                rows.append(image)
        notes: list[_Note] = []
        for place, note, wrong in checked(_Note, content["annotations"], "annotations"):
            if note and note.image_id in captions:
                notes.append(note)
            else:
                wrong = f"image {note.image_id} is not listed, or wrong there" if note else wrong
                rows.append(wrong_row(place, wrong))
        for note in sorted(notes, key=lambda note: (isinstance(note.id, str), note.id)):
            captions[note.image_id].extend(strings(note.caption))
        # DIR may be the folder of the images, or the one above it, named as in captions_val2017.json
        year = stem_of(self._file).removeprefix("captions_")
        for i, row in enumerate(rows):
            if isinstance(row, _Image):
                places = row.file_name, os.path.join(year, row.file_name)
                rows[i] = _entry(places, captions[row.id])
        return rows


class FlickrTokens(_Coco):
    """The token file of Flickr30k or Flickr8k: lines of NAME#NUMBER, a tab and a caption."""

    form = "a token file of Flickr: lines of NAME.jpg#NUMBER, a tab and a caption"

    def load(self) -> list[tuple[int, str, re.Match[str] | None]]:
        lines = enumerate(read_text(self._file).split("\n"), 1)
        return [(number, line, _TOKEN(line)) for number, line in lines if line.strip()]

    def accepts(self, content: Any) -> bool:
        return any(match for _, _, match in content)

    def images(self, content: Any) -> list[Entry]:
        captions: dict[str, list[str]] = {}
        rows: list[Entry] = []
        for number, line, match in content:
            if match:
                captions.setdefault(match[1], []).extend(strings(match[2]))
            else:
                rows.append(wrong_row(f"line {number}", f"{shorten_words(line)}, not NAME#NUMBER and a tab"))
        return [_entry((name,), captions[name]) for name in captions] + rows


_TOKEN = re.compile(r"([^\t]+)#\d+\t(.*)").fullmatch


def _entry(places: tuple[str, ...], captions: list[str]) -> Entry:
    fault = None if captions else (Cause.MISSING_CAPTION, places[0])
    return Entry(Record(places[0], b"", tuple(captions)), places, fault=fault)
