"""Regions with one right and several wrong descriptions, as the benchmark FG-OVD has them.

    fg-ovd:3_attributes.json?images=DIR    as its authors published it
    easy.jsonl, with --images DIR          as FG-CLIP (arXiv 2505.05071) published it, an object a line

Bianchi et al., arXiv 2311.17518. Each file holds one difficulty: images[] with id and file_name,
annotations[] with a box, the category that is right and those that are wrong, categories[] with a description
as name. A record is a picture with its regions, whose foils are of the kind that the name of the file says;
it has no caption. DIR is the folder of COCO's pictures: the one above val2017 and train2017, or the one that
they are all in.
"""

import math
import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from grainline.data.causes import DAMAGED_REGION
from grainline.data.decode import picture_size
from grainline.data.record import Damaged, Foil, Record, Region
from grainline.data.sources.common import (
    HELP,
    FileSource,
    digest,
    load_json,
    read_picture,
    require_pictures,
    split_query,
    strings,
)
from grainline.data.sources.table import Row, Table, read_rows
from grainline.errors import UserError

DIFFICULTY = {
    "1_attributes": "hard",
    "2_attributes": "medium",
    "3_attributes": "easy",
    "shuffled_negatives": "trivial",
}
"""What the benchmark calls its files; the others are known by what is wrong, such as `transparency`."""

LINE = ("img_path", "bbox", "pos_expression", "neg_expression")  # fields of a line
FIELDS = {
    "images": ("id", "file_name", "width", "height"),
    "annotations": ("id", "image_id", "bbox", "category_id", "neg_category_ids"),
    "categories": ("id", "name"),
}


class _Picture(NamedTuple):
    name: str
    size: tuple[int, int]  # width and height, which the boxes go by
    regions: list[Region]


class FgOvd(FileSource):
    """The pictures of a file that have regions, in its order. Raises UserError."""

    def __init__(self, path: str, images: str | None = None, data: Any = None) -> None:
        file, options = split_query(path, ("images",))
        data = load_json(file) if data is None else data
        if not is_fgovd(data):
            told = "; ".join(f"{name}[] with {', '.join(fields)}" for name, fields in FIELDS.items())
            raise UserError(f"{file} is not a file of FG-OVD: {told}; {HELP}")
        self.path = path
        self._file = file
        self._root = images or options.get("images") or os.path.dirname(os.path.abspath(file))
        stem = os.path.splitext(os.path.basename(file))[0]
        self.difficulty = DIFFICULTY.get(stem, stem)
        self._pictures = _read(data, file, self.difficulty)
        require_pictures([self._places(picture.name) for picture in self._pictures], file, self._root)

    def _places(self, name: str) -> list[str]:
        return [os.path.join(self._root, place) for place in (name, os.path.basename(name))]

    def __len__(self) -> int:
        return len(self._pictures)

    def __getitem__(self, index: int) -> Record:
        name, size, regions = self._pictures[index]
        where = f"{self._file}: {name}"
        record = Record(name, read_picture(self._places(name), where), (), regions=tuple(regions))
        found = picture_size(record)
        if found != size:
            told = f"{found[0]} x {found[1]} pixels, its boxes are for {size[0]} x {size[1]}"
            raise Damaged(DAMAGED_REGION, f"{where} ({told})")
        return record

    def keys(self) -> Iterable[str]:
        """The file names of the pictures."""
        return (picture.name for picture in self._pictures)

    def fingerprint(self) -> str:
        """sha256 over names, boxes and texts; pictures are not looked at, so their content does not count."""
        parts: list[str | int] = [self.difficulty]
        for name, _, regions in self._pictures:
            parts += [name, len(regions)]
            for region in regions:
                parts += [str(region.box), region.phrase, *(foil.text for foil in region.foils)]
        return digest(parts)


class FgOvdLines(Table):
    """FG-OVD as JSON Lines: img_path, bbox (left, top, width, height), pos_expression, neg_expression.

    The lines of one image become one record. Their kind is the name of the file: easy, medium, hard, trivial.
    """

    which = ", the folder that the paths of the file begin in"

    def __init__(self, path: str, images: str | None = None, rows: Sequence[Row] | None = None) -> None:
        file, _ = split_query(path, ("root",))
        rows = read_rows(file) if rows is None else rows
        if not is_fgovd_lines(rows):
            raise UserError(f"{file} is not FG-OVD as JSON Lines: rows with {', '.join(LINE)}; {HELP}")
        kind = os.path.splitext(os.path.basename(file))[0]
        super().__init__(path, images, [_line(row, kind, file) for row in rows])


def is_fgovd_lines(rows: Sequence[Row]) -> bool:
    """Whether the first sound row of a file has the form of FG-OVD as JSON Lines."""
    first = next((row.fields for row in rows if not row.error), {})
    return all(name in first for name in LINE)


def _line(row: Row, kind: str, file: str) -> Row:
    """The row in the names of `common`; one of another form is damaged."""
    if row.error:
        return row
    right, wrong = (strings(row.fields.get(name)) for name in LINE[2:])
    if len(right) != 1 or not wrong:
        return Row(row.number, {}, "pos_expression must be one text, and neg_expression one or more")
    try:
        box = _box(row.fields.get("bbox"), f"row {row.number} of {file}")
    except UserError as error:
        return Row(row.number, {}, str(error))
    foils = [{"text": text, "kind": kind} for text in wrong]
    region = {"phrase": right[0], "box": list(box), "foils": foils}
    return row._replace(fields={"image": row.fields.get("img_path"), "caption": "", "regions": [region]})


def is_fgovd(data: Any) -> bool:
    """Whether parsed JSON has the form of FG-OVD's files; its boxes and numbers may still be wrong."""
    return isinstance(data, dict) and all(_every(data.get(name), fields) for name, fields in FIELDS.items())


def _every(rows: Any, fields: tuple[str, ...]) -> bool:
    return (
        isinstance(rows, list)
        and bool(rows)
        and all(isinstance(row, dict) and all(field in row for field in fields) for row in rows)
    )


def _read(data: dict[str, Any], file: str, difficulty: str) -> list[_Picture]:
    """Pictures with their regions, in the order of the file. Raises UserError."""
    names = {row["id"]: text for row in data["categories"] for text in strings(row["name"])}
    pictures = {
        row["id"]: _Picture(str(row["file_name"]), (row["width"], row["height"]), [])
        for row in data["images"]
    }
    for row in data["annotations"]:
        where = f"annotation {row['id']} of {file}"
        if row["image_id"] not in pictures:
            raise UserError(f"{where}: picture {row['image_id']} is not listed; {HELP}")
        phrase = _name(names, row["category_id"], where)
        wrong = row["neg_category_ids"]
        if not isinstance(wrong, list) or not wrong:
            raise UserError(f"{where}: neg_category_ids is {wrong}, not a list with a category; {HELP}")
        foils = tuple(Foil(_name(names, number, where), phrase, difficulty) for number in wrong)
        pictures[row["image_id"]].regions.append(Region(phrase, _box(row["bbox"], where), foils=foils))
    return [picture for picture in pictures.values() if picture.regions]


def _name(names: dict[Any, str], number: Any, where: str) -> str:
    if number not in names:
        raise UserError(f"{where}: category {number} is not listed or has no name; {HELP}")
    return names[number]


def _box(value: Any, where: str) -> tuple[float, float, float, float]:
    """Left, top, right, bottom from left, top, width, height."""
    try:
        left, top, width, height = map(float, value)
    except (TypeError, ValueError):
        left = top = width = height = math.nan
    if not (math.isfinite(left + top) and 0 < width < math.inf and 0 < height < math.inf):
        raise UserError(f"{where}: bbox is {value}, not [left, top, width, height] in pixels; {HELP}")
    return left, top, left + width, top + height
