"""Benchmarks of retrieval with long captions, in the files that their authors give out (docs/data.md).

An image has one text, the first one in the file, unchanged; evaluation/suites/long_retrieval.py applies the
protocols.
"""

import os
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from grainline.data.formats.common import IMAGE_SUFFIXES
from grainline.data.formats.folder import suffix
from grainline.data.formats.listed import Entry, ListedImages, no_text, wrong_row
from grainline.data.formats.parsed import data_error, elements, load_json, printable, read_text, strings
from grainline.data.formats.storage import Range, absolute, fetch, is_folder, names_in
from grainline.data.formats.table import Row, Table, first_fields, json_rows
from grainline.data.record import Cause, CorruptSample, Record
from grainline.errors import UserError, stop_if_unreachable


class LongCaptions(ListedImages):
    """Abstract: images with one long text each."""

    benchmark: str  # the name of the set; "" for another part of it than the field measures on

    @abstractmethod
    def rows(self, content: Any) -> Iterable[Entry]:
        """Each image with its text as `long`, and a caption that it begins with, where the file has one."""

    def parse(self, content: Any) -> list[Entry]:
        listed = list(self.rows(content))
        first: dict[str, Entry] = {}
        for row in listed:
            first.setdefault(row.record.key, row)
        entries = list(first.values())
        if again := len(listed) - len(entries):
            self.remarks = (f"{again} texts beyond the first of their image are left out",)
        if not any(strings(row.record.long) for row in entries):
            raise no_text(self._file, f"of its {len(entries)} rows", entries)
        self.which = f", the folder of the images of {type(self).__name__}"
        return entries

    def text(self, index: int, part: str = "") -> str:  # noqa: ARG002 - of sets whose texts have parts
        """The text at a position as the file has it, blanks and line breaks included.

        part  a field of the file, where the text is made of several; "": the whole text
        """
        return self.entries[index].record.long or ""

    def __getitem__(self, index: int) -> Record:
        captions, record = self.entries[index].record.captions, self.record(index, self.text(index))
        return record._replace(captions=captions, long=record.captions[0]) if captions else record

    def record(self, index: int, text: str) -> Record:
        """The record at a position with this text instead of its own. Raises CorruptSample."""
        entry = self.entries[index]
        if not strings(text) and not entry.fault:
            raise CorruptSample(Cause.MISSING_CAPTION, f"{self._file}: {entry.record.key}")
        return super().__getitem__(index)._replace(captions=(text.strip(),), long=None)

    def parts(self) -> Iterator[str | int]:
        return (part for i, key in enumerate(self.keys()) for part in (key, self.text(i)))


DCI_FIELDS = ("image", "short_caption", "extra_caption")
DOCCI_FIELDS = ("example_id", "split", "image_file", "description")
URBAN_FIELDS = {"image_id", "image", "caption"}
PARTS = {"aar_": "IIW-400", "test_": "DOCCI_Test", "sa_": "DCI_Test"}  # of ImageInWords, by names of images

_NUMBER = re.compile(r"\d+\.(jpg|txt)").fullmatch


class DCI(LongCaptions):
    """Densely Captioned Images, all splits: the folder of the archive, or one that holds its JSON files."""

    benchmark = "dci"
    form = f"DCI: it holds no JSON files of DCI with {', '.join(DCI_FIELDS)}, nor complete/ or annotations/"

    @staticmethod
    def recognises_path(path: str) -> bool:
        return dci_folder(path) is not None

    def load(self) -> str | None:
        self._inside = dci_folder(self._file)
        return self._inside

    def accepts(self, content: Any) -> bool:
        return content is not None

    def folder(self) -> str:
        return os.path.join(os.path.dirname(absolute(self._inside or "")), "photos")

    def rows(self, content: Any) -> Iterator[Entry]:
        """Short and extra caption are two lines, as the class of the authors joins them."""
        self._extra: dict[str, str] = {}
        names = _names(content, "json")
        fetch(Range(os.path.join(content, name)) for name in names)
        for name in names:
            fields = _json(os.path.join(content, name))
            if not _has_texts(fields, DCI_FIELDS) or not fields["image"].strip():
                yield wrong_row(name, f"no JSON with {', '.join(DCI_FIELDS)}")
                continue
            image, short, extra = (printable(fields[field]) for field in DCI_FIELDS)
            self._extra.setdefault(image.strip(), extra)
            if extra.strip():
                yield _entry(image, f"{short}\n{extra}", short.strip())
            else:
                yield _entry(image, short)

    def text(self, index: int, part: str = "") -> str:
        return self._extra.get(self.entries[index].record.key, "") if part else super().text(index)


class DOCCI(LongCaptions):
    """The descriptions of one split or several."""

    options = ("images", "split")
    form = f"DOCCI: rows with {', '.join(DOCCI_FIELDS)}"
    load = Table.load

    @classmethod
    def recognises(cls, content: Any) -> bool:
        return _has_texts(first_fields(content), DOCCI_FIELDS)

    def rows(self, content: Any) -> list[Entry]:
        splits = (str(row.fields.get("split")) for row in content if not row.error)
        wanted = self.choose_splits(splits, "test")
        self.benchmark = {("test",): "docci", ("qual_test", "test"): "goal-docci"}.get((*sorted(wanted),), "")
        selected = [row for row in content if row.error or row.fields.get("split") in wanted]
        return [_of_row(row, "image_file", "description") for row in selected]


class Urban1k(LongCaptions):
    """The folder of Long-CLIP, or one JSON file with all captions."""

    benchmark = "urban-1k"
    form = "Urban-1k: a folder with caption/NUMBER.txt, or annotations[] of caption, image, image_id"

    @classmethod
    def recognises(cls, content: Any) -> bool:
        rows = content.get("annotations") if isinstance(content, dict) and len(content) == 1 else None
        objects = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        return any(row.keys() == URBAN_FIELDS and _NUMBER(str(row["image"])) for row in objects)

    @staticmethod
    def recognises_path(path: str) -> bool:
        folders = [os.path.join(path, name) for name in ("caption", "image")]
        if not all(map(is_folder, folders)):
            return False
        texts, images = (names_in(folder) for folder in folders)
        return bool(texts and images) and all(map(_NUMBER, [*texts, *images]))

    def load(self) -> Any:
        if not is_folder(self._file):
            return load_json(self._file)
        folder = os.path.join(self._file, "caption")
        return _names(folder, "txt") if is_folder(folder) else []

    def accepts(self, content: Any) -> bool:
        return bool(content) if is_folder(self._file) else self.recognises(content)

    def folder(self) -> str:
        return os.path.join(self._file, "image") if is_folder(self._file) else super().folder()

    def rows(self, content: Any) -> Iterator[Entry]:
        if isinstance(content, dict):
            for row in json_rows(self._file, content["annotations"]):
                yield _of_row(row, "image", "caption")
            return
        fetch(Range(os.path.join(self._file, "caption", name)) for name in content)
        for name in content:
            image = os.path.splitext(name)[0] + ".jpg"
            try:
                yield _entry(image, printable(read_text(os.path.join(self._file, "caption", name))))
            except UserError as error:
                stop_if_unreachable(error)
                yield wrong_row(image, str(error))


class ShareGPT4V(LongCaptions):
    """Rows of two turns, of which the second is the text. `rows` stops after so many: the file is large."""

    benchmark = "sharegpt4v"
    options = ("images", "rows")
    form = "ShareGPT4V: a list of rows with image and conversations"

    @staticmethod
    def recognises_path(path: str) -> bool:
        try:
            first = next(elements(path), None)
        except UserError:
            return False
        return isinstance(first, dict) and not _of_turns(first, 1).fault

    def load(self) -> Iterator[Any]:
        return elements(self._file)

    def accepts(self, content: Any) -> bool:  # noqa: ARG002
        return self.recognises_path(self._file)

    def rows(self, content: Any) -> Iterator[Entry]:
        limit = self._query.get("rows", "")
        if limit and not (re.fullmatch("[0-9]{1,18}", limit) and int(limit)):
            raise data_error(f"rows={limit} in {self.path}: a number of rows from 1 on")
        rows = islice(content, int(limit) if limit else None)
        return (_of_turns(row, number) for number, row in enumerate(rows, 1))


class IIW(LongCaptions):
    """One file of ImageInWords; the benchmark is three of them, joined."""

    benchmark = "iiw"
    form = "ImageInWords: rows with IIW and image or image/key"
    load = Table.load

    @classmethod
    def recognises(cls, content: Any) -> bool:
        first = first_fields(content)
        return any(_has_texts(first, ("IIW", name)) for name in ("image/key", "image"))

    def rows(self, content: Any) -> Iterator[Entry]:
        """Two of the three files name images without a suffix, and each part has a folder of its own."""
        field = "image/key" if "image/key" in first_fields(content) else "image"
        for row in content:
            entry = _of_row(row, field, "IIW")
            name = entry.record.key
            name += "" if suffix(name) in IMAGE_SUFFIXES else ".jpg"
            folders = [folder for start, folder in PARTS.items() if name.startswith(start)]
            places = (name, *(os.path.join(folder, name) for folder in folders))
            yield entry if entry.fault else entry._replace(places=places)


class Rows(LongCaptions):
    """A table with an image and its text in each row, told from others by the names of its images."""

    form = "Long-DCI, nor DCI or DOCCI of GOAL: rows with filepath and title, or with filename and caption"
    load = Table.load

    @classmethod
    def recognises(cls, content: Any) -> bool:
        return bool(_set_of_rows(content))

    def rows(self, content: Any) -> Iterator[Entry]:
        """The folders of GOAL's files are those of its authors, so the name of an image is its place."""
        self.benchmark = _set_of_rows(content)
        image, text, _ = SETS_OF_ROWS[self.benchmark]
        for row in content:
            entry = _of_row(row, image, text)
            name = os.path.basename(entry.record.key)
            yield entry if entry.fault else _entry(name, entry.record.long or "")


SETS_OF_ROWS = {  # by set: the columns, image and text, and the images
    "long-dci": ("filepath", "title", r"sa_\d+\.jpg"),
    "goal-dci": ("filename", "caption", r".*/sa_\d+\.jpg"),
    "goal-docci": ("filename", "caption", r".*/(qual_)?test_\d{5}\.jpg"),
}


def _set_of_rows(content: Any) -> str:
    """The set of SETS_OF_ROWS that rows are; "" for others."""
    first = first_fields(content)
    for name, (image, text, pattern) in SETS_OF_ROWS.items():
        if first.keys() == {image, text} and re.fullmatch(pattern, str(first[image])):
            return name
    return ""


def dci_folder(path: str) -> str | None:
    """The folder that holds the JSON files of DCI: complete/ or annotations/ in the archive, or this one."""
    for folder in (os.path.join(path, "complete"), os.path.join(path, "annotations"), path):
        names = _names(folder, "json") if is_folder(folder) else []
        if names and _has_texts(_json(os.path.join(folder, names[0])), DCI_FIELDS):
            return folder
    return None


def _has_texts(fields: Any, names: Sequence[str]) -> bool:
    return isinstance(fields, Mapping) and all(isinstance(fields.get(name), str) for name in names)


def _json(file: str) -> Any:
    try:
        return load_json(file)
    except UserError as error:
        stop_if_unreachable(error)
        return None


def _names(folder: str, kind: str) -> list[str]:
    """The files of a kind in a folder; numbers stand in their order."""
    names = [name for name in names_in(folder) if name.endswith(f".{kind}") and not name.startswith(".")]
    return sorted(names, key=lambda name: (len(name), name) if _NUMBER(name) else (0, name))


def _entry(image: str, text: str, short: str = "") -> Entry:
    image = image.strip()
    return Entry(Record(image, b"", (short,) if short else (), text), (image,))


def _of_row(row: Row, image: str, text: str) -> Entry:
    name, value = row.fields.get(image), row.fields.get(text)
    if row.error or not isinstance(name, str) or not name.strip():
        return wrong_row(f"row {row.number}", row.error or f"no {image}")
    return _entry(name, printable(value) if isinstance(value, str) else "")


def _of_turns(row: Any, number: int) -> Entry:
    fields = row if isinstance(row, dict) else {}
    turns = fields.get("conversations")
    if not isinstance(turns, list) or len(turns) < 2 or not _has_texts(turns[1], ("value",)):
        return wrong_row(f"row {number}", "no second turn in conversations")
    return _of_row(Row(number, {"image": fields.get("image"), "text": turns[1]["value"]}), "image", "text")


# HiMo-Docci: images of DOCCI with captions cut into cumulative subtexts (HiMo-CLIP, arXiv 2511.06653). The
# file, himo_docci_data.json, is JSON Lines: img_path, caption (the subtexts), raw_caption (the caption of the
# record). Subtexts are stripped, else unchanged: one is not always the exact beginning of the next, nor
# is the last always the whole caption.

HIMO_FIELDS = {"img_path": str, "caption": list, "raw_caption": str}


class HimoDocci(Table):
    """A table whose rows say their subtexts."""

    form = f"HiMo-Docci: rows with {', '.join(HIMO_FIELDS)}"
    options = ("root",)
    which = ", the folder of the images of DOCCI"

    @classmethod
    def recognises(cls, content: Any) -> bool:
        return _is_himo_row(first_fields(content))

    def parse(self, content: Sequence[Row]) -> list[Entry]:
        return super().parse([_himo_row(row) for row in content])


def _is_himo_row(fields: Mapping[str, Any]) -> bool:
    return all(isinstance(fields.get(name), kind) for name, kind in HIMO_FIELDS.items())


def _himo_row(row: Row) -> Row:
    """The row in the names of `common`; one of another form is corrupt."""
    if row.error:
        return row
    if not _is_himo_row(row.fields):
        return Row(row.number, {}, f"no {', '.join(HIMO_FIELDS)}")
    image, subtexts, caption = (row.fields[name] for name in HIMO_FIELDS)
    return row._replace(fields={"image": image, "caption": caption, "subtexts": subtexts})
