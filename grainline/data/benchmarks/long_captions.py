"""Benchmarks of retrieval with long captions, each read from the files that its authors give out.

densely_captioned_images/      DCI: a folder of JSON files, one an image: image, short_caption, extra_caption
docci_descriptions.jsonlines   DOCCI: example_id, split, image_file, description; split=test by default
Urban1k/                       Urban-1k: caption/NUMBER.txt and image/NUMBER.jpg
annotations.json               Urban-1k as one file: annotations[] of image_id, image, caption
share-captioner_....json       ShareGPT4V: a list of rows with image and conversations
data.jsonl                     ImageInWords: IIW-400, DOCCI_Test, DCI_Test; rows with IIW
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

from grainline.data.formats.checked import printable
from grainline.data.formats.common import (
    IMAGE_SUFFIXES,
    FileSource,
    digest,
    read_image,
    require_images,
    split_query,
)
from grainline.data.formats.plain import HELP, elements, load_json, read_text
from grainline.data.formats.table import Row, Table, first_fields, json_rows, read_rows
from grainline.data.record import CORRUPT_ROW, MISSING_CAPTION, CorruptSample, Record
from grainline.errors import UserError

# A source gives the texts of its files unchanged; evaluation/suites/long_retrieval.py applies the protocols.
# An image has one text, the first one in the file.


class Pair(NamedTuple):
    """An image and its text, or why there is none."""

    key: str
    places: tuple[str, ...]  # below the root, where the image may lie
    text: str  # as the file has it, blanks and line breaks included
    short: str = ""  # a caption that the text begins with, where the file has one
    error: str = ""


class LongCaptions(FileSource):
    """Abstract: images with one long text each."""

    images_by_path = True
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
            self.remarks = (f"{again} texts beyond the first of their image are left out",)
        if not any(pair.text.strip() for pair in self.pairs):
            raise UserError(f"{file} has no text in any of its {len(self.pairs)} rows; {HELP}")
        places = [self._places(pair) for pair in self.pairs if not pair.error]
        require_images(places, file, root, f", the folder of the images of {type(self).__name__}")

    def _places(self, pair: Pair) -> list[str]:
        return [os.path.join(self._root, place) for place in pair.places]

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Record:
        pair = self.pairs[index]
        record = self.record(index, pair.text)
        return record._replace(captions=(pair.short,), long=record.captions[0]) if pair.short else record

    def record(self, index: int, text: str) -> Record:
        """The record at a position with this text instead of its own. Raises CorruptSample."""
        pair = self.pairs[index]
        where = f"{self._file}: {pair.key}"
        if pair.error:
            raise CorruptSample(CORRUPT_ROW, f"{where} ({pair.error})")
        if not text.strip():
            raise CorruptSample(MISSING_CAPTION, where)
        return Record(pair.key, read_image(self._places(pair), where), (text.strip(),))

    def keys(self) -> Iterable[str]:
        """The names of the images."""
        return (pair.key for pair in self.pairs)

    def fingerprint(self) -> str:
        """sha256 over names and texts; images are not looked at, so their sizes do not count."""
        return digest(part for pair in self.pairs for part in (pair.key, pair.text))


DCI_FIELDS = ("image", "short_caption", "extra_caption")
DOCCI_FIELDS = ("example_id", "split", "image_file", "description")
URBAN_FIELDS = {"image_id", "image", "caption"}
PARTS = {"aar_": "IIW-400", "test_": "DOCCI_Test", "sa_": "DCI_Test"}  # of ImageInWords, by names of images

_NUMBER = re.compile(r"\d+\.(jpg|txt)").fullmatch


class DCI(LongCaptions):
    """Densely Captioned Images, all splits: the folder of the archive, or one that holds its JSON files."""

    benchmark = "dci"

    @staticmethod
    def recognises_path(path: str) -> bool:
        """Whether a folder holds the JSON files of DCI."""
        return dci_folder(path) is not None

    def __init__(self, path: str, images: str | None = None) -> None:
        folder, options = split_query(path, ("images",))
        inside = dci_folder(folder)
        if inside is None:
            raise UserError(
                f"{folder} holds no JSON files of DCI, with {', '.join(DCI_FIELDS)}, nor do complete/ and"
                f" annotations/ in it; {HELP}"
            )
        names = _names(inside, "json")
        pairs = (_dci(os.path.join(inside, name), name) for name in names)
        root = (
            images
            or options.get("images")
            or os.path.join(os.path.dirname(os.path.abspath(inside)), "photos")
        )
        super().__init__(path, folder, root, pairs)


class DOCCI(LongCaptions):
    """The descriptions of one split or several."""

    @staticmethod
    def recognises(content: Any) -> bool:
        """Whether the first sound row of a file has the form of DOCCI."""
        return _texts(_first(content), DOCCI_FIELDS)

    def __init__(self, path: str, images: str | None = None, rows: Sequence[Row] | None = None) -> None:
        file, options = split_query(path, ("images", "split"))
        rows = read_rows(file) if rows is None else rows
        if not self.recognises(rows):
            raise UserError(f"{file} is not DOCCI: rows with {', '.join(DOCCI_FIELDS)}; {HELP}")
        splits = Counter(str(row.fields.get("split")) for row in rows if not row.error)
        wanted = options.get("split", "test").split(",")
        unknown = [name for name in wanted if name not in splits]
        if unknown:
            has = ", ".join(f"{name} ({number})" for name, number in sorted(splits.items()))
            raise UserError(
                f"{file} has no split {unknown[0]}: it has {has}; name one as ?split=NAME; {HELP}"
            )
        self.benchmark = "docci" if wanted == ["test"] else ""
        selected = [row for row in rows if row.error or row.fields.get("split") in wanted]
        pairs = (_pair(row, "image_file", "description") for row in selected)
        super().__init__(path, file, images or options.get("images") or _folder_of(file), pairs)


class Urban1k(LongCaptions):
    """The folder of Long-CLIP, or one JSON file with all captions."""

    benchmark = "urban-1k"

    @staticmethod
    def recognises(content: Any) -> bool:
        """Whether parsed JSON has the form of the file of Urban-1k."""
        rows = content.get("annotations") if isinstance(content, dict) and len(content) == 1 else None
        return isinstance(rows, list) and any(
            isinstance(row, dict) and row.keys() == URBAN_FIELDS and _NUMBER(str(row["image"]))
            for row in rows
        )

    @staticmethod
    def recognises_path(path: str) -> bool:
        """Whether a folder has the form of Urban-1k:

        numbered texts in caption/, numbered images in image/.
        """
        folders = [os.path.join(path, name) for name in ("caption", "image")]
        if not all(map(os.path.isdir, folders)):
            return False
        texts, images = (os.listdir(folder) for folder in folders)
        return bool(texts and images) and all(map(_NUMBER, [*texts, *images]))

    def __init__(self, path: str, images: str | None = None, data: Any = None) -> None:
        file, options = split_query(path, ("images",))
        root = images or options.get("images")
        if os.path.isdir(file):
            folder = os.path.join(file, "caption")
            if not os.path.isdir(folder) or not _names(folder, "txt"):
                raise UserError(f"{file} is not Urban-1k: it holds no caption/NUMBER.txt; {HELP}")
            pairs = [_text_file(folder, name) for name in _names(folder, "txt")]
            root = root or os.path.join(file, "image")
        else:
            data = load_json(file) if data is None else data
            if not self.recognises(data):
                fields = ", ".join(sorted(URBAN_FIELDS))
                raise UserError(f"{file} is not Urban-1k: annotations[] of {fields}; {HELP}")
            rows = json_rows(file, data["annotations"])
            pairs = [_pair(row, "image", "caption") for row in rows]
            root = root or _folder_of(file)
        super().__init__(path, file, root, pairs)


class ShareGPT4V(LongCaptions):
    """Rows of two turns, of which the second is the text. `rows` stops after so many: the file is large."""

    benchmark = "sharegpt4v"

    @staticmethod
    def recognises_path(path: str) -> bool:
        """Whether the first row of a path has the form of ShareGPT4V; no more of it is read."""
        try:
            first = next(elements(path), None)
        except UserError:
            return False
        return isinstance(first, dict) and not _turns(first, 1).error

    def __init__(self, path: str, images: str | None = None) -> None:
        file, options = split_query(path, ("images", "rows"))
        if not self.recognises_path(file):
            raise UserError(f"{file} is not ShareGPT4V: a list of rows with image and conversations; {HELP}")
        most = options.get("rows", "")
        if most and not (most.isdecimal() and int(most)):
            raise UserError(f"rows={most} in {path}: a number of rows from 1 on; {HELP}")
        rows = islice(elements(file), int(most) if most else None)
        pairs = (_turns(row, number) for number, row in enumerate(rows, 1))
        super().__init__(path, file, images or options.get("images") or _folder_of(file), pairs)


class IIW(LongCaptions):
    """One file of ImageInWords; the benchmark is three of them, joined."""

    benchmark = "iiw"

    @staticmethod
    def recognises(content: Any) -> bool:
        """Whether the first sound row of a file has the form of ImageInWords."""
        first = _first(content)
        return _texts(first, ("IIW",)) and (_texts(first, ("image/key",)) or _texts(first, ("image",)))

    def __init__(self, path: str, images: str | None = None, rows: Sequence[Row] | None = None) -> None:
        file, options = split_query(path, ("images",))
        rows = read_rows(file) if rows is None else rows
        if not self.recognises(rows):
            raise UserError(f"{file} is not ImageInWords: rows with IIW and image or image/key; {HELP}")
        name = "image/key" if "image/key" in _first(rows) else "image"
        pairs = (_in_part(_pair(row, name, "IIW")) for row in rows)
        super().__init__(path, file, images or options.get("images") or _folder_of(file), pairs)


def dci_folder(path: str) -> str | None:
    """The folder that holds the JSON files of DCI: complete/ or annotations/ in the archive, or this one."""
    for folder in (os.path.join(path, "complete"), os.path.join(path, "annotations"), path):
        names = _names(folder, "json") if os.path.isdir(folder) else []
        if names and _texts(_json(os.path.join(folder, names[0])), DCI_FIELDS):
            return folder
    return None


def _first(rows: Sequence[Row]) -> dict[str, Any]:
    return dict(first_fields(rows))


def _texts(fields: Any, names: Sequence[str]) -> bool:
    return isinstance(fields, dict) and all(isinstance(fields.get(name), str) for name in names)


def _json(file: str) -> Any:
    try:
        return load_json(file)
    except UserError:
        return None


def _names(folder: str, kind: str) -> list[str]:
    """The files of a kind in a folder; numbers stand in their order."""
    names = [name for name in os.listdir(folder) if name.endswith(f".{kind}") and not name.startswith(".")]
    return sorted(names, key=lambda name: (len(name), name) if _NUMBER(name) else (0, name))


def _folder_of(file: str) -> str:
    return os.path.dirname(os.path.abspath(file))


def _pair(row: Row, image: str, text: str) -> Pair:
    name = row.fields.get(image)
    if row.error or not isinstance(name, str) or not name.strip():
        return Pair(f"row {row.number}", (), "", error=row.error or f"no {image}")
    value = row.fields.get(text)
    return Pair(name.strip(), (name.strip(),), printable(value) if isinstance(value, str) else "")


def _in_part(pair: Pair) -> Pair:
    """The places of an image of ImageInWords; two of its three files name images without a suffix."""
    name = pair.key
    if not name.lower().endswith(tuple(f".{kind}" for kind in IMAGE_SUFFIXES)):
        name += ".jpg"
    parts = [part for start, part in PARTS.items() if name.startswith(start)]
    return (
        pair._replace(places=(name, *(os.path.join(part, name) for part in parts))) if pair.places else pair
    )


def _dci(file: str, name: str) -> Pair:
    """Short and extra caption in two lines, as the class of the authors puts them together."""
    fields = _json(file)
    if not _texts(fields, DCI_FIELDS) or not fields["image"].strip():
        return Pair(name, (), "", error=f"no JSON with {', '.join(DCI_FIELDS)}")
    image, short, extra = (printable(fields[field]) for field in DCI_FIELDS)
    text = f"{short}\n{extra}" if extra.strip() else short
    return Pair(image.strip(), (image.strip(),), text, short.strip() if extra.strip() else "")


def _text_file(folder: str, name: str) -> Pair:
    image = os.path.splitext(name)[0] + ".jpg"
    try:
        return Pair(image, (image,), printable(read_text(os.path.join(folder, name))))
    except UserError as error:
        return Pair(image, (image,), "", error=str(error))


def _turns(row: Any, number: int) -> Pair:
    fields = row if isinstance(row, dict) else {}
    turns = fields.get("conversations")
    if not isinstance(turns, list) or len(turns) < 2 or not _texts(turns[1], ("value",)):
        return Pair(f"row {number}", (), "", error="no second turn in conversations")
    return _pair(Row(number, {"image": fields.get("image"), "text": turns[1]["value"]}), "image", "text")


# HiMo-Docci: images of DOCCI with captions cut into cumulative subtexts (HiMo-CLIP, arXiv 2511.06653).
#
#     himo_docci_data.json   JSON Lines in spite of its name: img_path, caption (the subtexts), raw_caption
#
# The caption of a record is `raw_caption`. Its subtexts are unchanged but for
# blanks at their ends: they are not always exact beginnings of the next one, nor is the last always the whole
# caption.

HIMO_FIELDS = {"img_path": str, "caption": list, "raw_caption": str}


class HimoDocci(Table):
    """A table whose rows say their subtexts."""

    which = ", the folder of the images of DOCCI"

    @staticmethod
    def recognises(content: Any) -> bool:
        """Whether the first sound row of a file has the form of HiMo-Docci."""
        first = first_fields(content)
        return _is_himo_row(first)

    def __init__(self, path: str, images: str | None = None, rows: Sequence[Row] | None = None) -> None:
        file, _ = split_query(path, ("root",))
        rows = read_rows(file) if rows is None else rows
        if not self.recognises(rows):
            raise UserError(f"{file} is not HiMo-Docci: rows with {', '.join(HIMO_FIELDS)}; {HELP}")
        super().__init__(path, images, [_himo_row(row) for row in rows])


def _is_himo_row(fields: Any) -> bool:
    return all(isinstance(fields.get(name), kind) for name, kind in HIMO_FIELDS.items())


def _himo_row(row: Row) -> Row:
    """The row in the names of `common`; one of another form is corrupt."""
    if row.error:
        return row
    if not _is_himo_row(row.fields):
        return Row(row.number, {}, f"no {', '.join(HIMO_FIELDS)}")
    image, subtexts, caption = (row.fields[name] for name in HIMO_FIELDS)
    return row._replace(fields={"image": image, "caption": caption, "subtexts": subtexts})
