"""Benchmarks of retrieval with long captions, each read from the files that its authors give out.

densely_captioned_images/      DCI: a folder of JSON files, one a picture: image, short_caption, extra_caption
docci_descriptions.jsonlines   DOCCI: example_id, split, image_file, description; split=test unless told
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
    read_picture,
    require_pictures,
    split_query,
)
from grainline.data.formats.plain import HELP, elements, load_json, read_text
from grainline.data.formats.table import Row, json_rows, read_rows
from grainline.data.record import DAMAGED_ROW, MISSING_CAPTION, Damaged, Record
from grainline.errors import UserError

# What the benchmarks of retrieval with long captions share: pictures with one long text each.
#
# A source gives the texts as they stand in its files. What a protocol makes of them, and how many it reads,
# is said in grainline.evaluation.collectors.long. A picture has one text: where a file names it again, its
# first text stands.


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


DCI_FIELDS = ("image", "short_caption", "extra_caption")
DOCCI_FIELDS = ("example_id", "split", "image_file", "description")
URBAN_FIELDS = {"image_id", "image", "caption"}
PARTS = {"aar_": "IIW-400", "test_": "DOCCI_Test", "sa_": "DCI_Test"}  # of ImageInWords, by names of pictures

_NUMBER = re.compile(r"\d+\.(jpg|txt)").fullmatch


class DCI(LongCaptions):
    """Densely Captioned Images, all splits: the folder of the archive, or one that holds its JSON files."""

    benchmark = "dci"

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

    def __init__(self, path: str, images: str | None = None, rows: Sequence[Row] | None = None) -> None:
        file, options = split_query(path, ("images", "split"))
        rows = read_rows(file) if rows is None else rows
        if not is_docci(rows):
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
        kept = [row for row in rows if row.error or row.fields.get("split") in wanted]
        pairs = (_pair(row, "image_file", "description") for row in kept)
        super().__init__(path, file, images or options.get("images") or _beside(file), pairs)


class Urban1k(LongCaptions):
    """The folder of Long-CLIP, or one JSON file with all captions."""

    benchmark = "urban-1k"

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
            if not is_urban(data):
                fields = ", ".join(sorted(URBAN_FIELDS))
                raise UserError(f"{file} is not Urban-1k: annotations[] of {fields}; {HELP}")
            rows = json_rows(file, data["annotations"])
            pairs = [_pair(row, "image", "caption") for row in rows]
            root = root or _beside(file)
        super().__init__(path, file, root, pairs)


class ShareGPT4V(LongCaptions):
    """Rows of two turns, of which the second is the text. `rows` stops after so many: the file is large."""

    benchmark = "sharegpt4v"

    def __init__(self, path: str, images: str | None = None) -> None:
        file, options = split_query(path, ("images", "rows"))
        if not is_sharegpt4v(file):
            raise UserError(f"{file} is not ShareGPT4V: a list of rows with image and conversations; {HELP}")
        most = options.get("rows", "")
        if most and not (most.isdecimal() and int(most)):
            raise UserError(f"rows={most} in {path}: a number of rows from 1 on; {HELP}")
        found = islice(elements(file), int(most) if most else None)
        pairs = (_turns(row, number) for number, row in enumerate(found, 1))
        super().__init__(path, file, images or options.get("images") or _beside(file), pairs)


class IIW(LongCaptions):
    """One file of ImageInWords; the benchmark is three of them, joined."""

    benchmark = "iiw"

    def __init__(self, path: str, images: str | None = None, rows: Sequence[Row] | None = None) -> None:
        file, options = split_query(path, ("images",))
        rows = read_rows(file) if rows is None else rows
        if not is_iiw(rows):
            raise UserError(f"{file} is not ImageInWords: rows with IIW and image or image/key; {HELP}")
        name = "image/key" if "image/key" in _first(rows) else "image"
        pairs = (_in_part(_pair(row, name, "IIW")) for row in rows)
        super().__init__(path, file, images or options.get("images") or _beside(file), pairs)


def dci_folder(path: str) -> str | None:
    """The folder that holds the JSON files of DCI: complete/ or annotations/ in the archive, or this one."""
    for folder in (os.path.join(path, "complete"), os.path.join(path, "annotations"), path):
        names = _names(folder, "json") if os.path.isdir(folder) else []
        if names and _texts(_json(os.path.join(folder, names[0])), DCI_FIELDS):
            return folder
    return None


def is_urban_folder(path: str) -> bool:
    """Whether a folder has the form of Urban-1k: numbered texts in caption/, numbered pictures in image/."""
    folders = [os.path.join(path, name) for name in ("caption", "image")]
    if not all(map(os.path.isdir, folders)):
        return False
    texts, pictures = (os.listdir(folder) for folder in folders)
    return bool(texts and pictures) and all(map(_NUMBER, [*texts, *pictures]))


def is_urban(data: Any) -> bool:
    """Whether parsed JSON has the form of the file of Urban-1k."""
    rows = data.get("annotations") if isinstance(data, dict) and len(data) == 1 else None
    return isinstance(rows, list) and any(
        isinstance(row, dict) and row.keys() == URBAN_FIELDS and _NUMBER(str(row["image"])) for row in rows
    )


def is_docci(rows: Sequence[Row]) -> bool:
    """Whether the first sound row of a file has the form of DOCCI."""
    return _texts(_first(rows), DOCCI_FIELDS)


def is_iiw(rows: Sequence[Row]) -> bool:
    """Whether the first sound row of a file has the form of ImageInWords."""
    first = _first(rows)
    return _texts(first, ("IIW",)) and (_texts(first, ("image/key",)) or _texts(first, ("image",)))


def is_sharegpt4v(file: str) -> bool:
    """Whether the first row of a file has the form of ShareGPT4V; no more of it is read."""
    try:
        first = next(elements(file), None)
    except UserError:
        return False
    return isinstance(first, dict) and not _turns(first, 1).damage


def _first(rows: Sequence[Row]) -> dict[str, Any]:
    return dict(next((row.fields for row in rows if not row.error), {}))


def _texts(fields: Any, names: Sequence[str]) -> bool:
    return isinstance(fields, dict) and all(isinstance(fields.get(name), str) for name in names)


def _json(file: str) -> Any:
    try:
        return load_json(file)
    except UserError:
        return None


def _names(folder: str, kind: str) -> list[str]:
    """The files of a kind in a folder; numbers stand in their order."""
    found = [name for name in os.listdir(folder) if name.endswith(f".{kind}") and not name.startswith(".")]
    return sorted(found, key=lambda name: (len(name), name) if _NUMBER(name) else (0, name))


def _beside(file: str) -> str:
    return os.path.dirname(os.path.abspath(file))


def _pair(row: Row, image: str, text: str) -> Pair:
    name = row.fields.get(image)
    if row.error or not isinstance(name, str) or not name.strip():
        return Pair(f"row {row.number}", (), "", damage=row.error or f"no {image}")
    value = row.fields.get(text)
    return Pair(name.strip(), (name.strip(),), printable(value) if isinstance(value, str) else "")


def _in_part(pair: Pair) -> Pair:
    """The places of a picture of ImageInWords; two of its three files name pictures without a suffix."""
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
        return Pair(name, (), "", damage=f"no JSON with {', '.join(DCI_FIELDS)}")
    image, short, extra = (printable(fields[field]) for field in DCI_FIELDS)
    text = f"{short}\n{extra}" if extra.strip() else short
    return Pair(image.strip(), (image.strip(),), text, short.strip() if extra.strip() else "")


def _text_file(folder: str, name: str) -> Pair:
    picture = os.path.splitext(name)[0] + ".jpg"
    try:
        return Pair(picture, (picture,), printable(read_text(os.path.join(folder, name))))
    except UserError as error:
        return Pair(picture, (picture,), "", damage=str(error))


def _turns(row: Any, number: int) -> Pair:
    fields = row if isinstance(row, dict) else {}
    turns = fields.get("conversations")
    if not isinstance(turns, list) or len(turns) < 2 or not _texts(turns[1], ("value",)):
        return Pair(f"row {number}", (), "", damage="no second turn in conversations")
    return _pair(Row(number, {"image": fields.get("image"), "text": turns[1]["value"]}), "image", "text")
