"""FG-OVD: regions with one right and several wrong descriptions.

    fg-ovd:3_attributes.json?images=DIR    as its authors published it
    easy.jsonl, with --images DIR          as FG-CLIP (arXiv 2505.05071) published it, an object a line

Bianchi et al., arXiv 2311.17518. Each file holds one difficulty: images[] with id and file_name,
annotations[] with a box, the category that is right and those that are wrong, categories[] with a description
as name. A record is an image with its regions, whose foils are of the kind that the name of the file says;
it has no caption. DIR is the folder of COCO's images: the one above val2017 and train2017, or the one that
they are all in.
"""

import os
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from grainline.data.decode import image_size
from grainline.data.formats.checked import Extent, Fields, Id, Side, Text, around, checked, has_rows
from grainline.data.formats.common import FileSource, digest, divide, read_image, require_images, split_query
from grainline.data.formats.plain import HELP, load_json
from grainline.data.formats.table import Row, Table, first_fields, read_rows
from grainline.data.record import CORRUPT_REGION, CORRUPT_ROW, CorruptSample, Foil, Record, Region
from grainline.errors import UserError

DIFFICULTY = {
    "1_attributes": "hard",
    "2_attributes": "medium",
    "3_attributes": "easy",
    "shuffled_negatives": "trivial",
}
"""What the benchmark calls its files; the others are known by what is wrong, such as `transparency`."""

FIELDS = {
    "images": ("id", "file_name", "width", "height"),
    "annotations": ("id", "image_id", "bbox", "category_id", "neg_category_ids"),
    "categories": ("id", "name"),
}


class _Image(Fields):
    id: Id
    file_name: Text
    width: Side
    height: Side


class _Category(Fields):
    id: Id
    name: Text


class _Annotation(Fields):
    id: Id
    image_id: Id
    bbox: Extent
    category_id: Id
    neg_category_ids: Annotated[tuple[Id, ...], Field(min_length=1)]


class _Line(Fields):
    img_path: Text
    bbox: Extent
    pos_expression: tuple[Text]
    neg_expression: Annotated[tuple[Text, ...], Field(min_length=1)]


class _AnnotatedImage(NamedTuple):
    name: str
    size: tuple[int, int]  # width and height, which the boxes go by
    regions: list[Region]
    error: str = ""  # what is wrong with the row; its place in the file is then the name


class FgOvd(FileSource):
    """The images of a file that have regions, in its order. Raises UserError."""

    images_by_path = True

    @staticmethod
    def recognises(content: Any) -> bool:
        """Whether parsed JSON has the form of FG-OVD's files; its rows may still be wrong."""
        return _is_annotations(content) or FgOvdLines.recognises(content)

    def __init__(self, path: str, images: str | None = None, data: Any = None) -> None:
        file, options = split_query(path, ("images",))
        data = load_json(file) if data is None else data
        if not _is_annotations(data):
            form = "; ".join(f"{name}[] with {', '.join(fields)}" for name, fields in FIELDS.items())
            raise UserError(f"{file} is not a file of FG-OVD: {form}; {HELP}")
        self.path = path
        self._file = file
        self._root = images or options.get("images") or os.path.dirname(os.path.abspath(file))
        stem = os.path.splitext(os.path.basename(file))[0]
        self.difficulty = DIFFICULTY.get(stem, stem)
        self._images = _read(data, file, self.difficulty)
        names = [image.name for image in self._images if not image.error]
        require_images([self._places(name) for name in names], file, self._root)

    def _places(self, name: str) -> list[str]:
        return [os.path.join(self._root, place) for place in (name, os.path.basename(name))]

    @classmethod
    def open(cls, path: str, images: str | None = None, size: int | None = None) -> FileSource:  # noqa: ARG003
        """Either form of the benchmark, by the suffix of the file."""
        return FgOvdLines(path, images) if divide(path)[0].endswith(".jsonl") else cls(path, images)

    @classmethod
    def from_content(cls, path: str, images: str | None, content: Any) -> FileSource:
        """Either form of the benchmark, by its content."""
        lines = FgOvdLines.recognises(content)
        return FgOvdLines(path, images, content) if lines else cls(path, images, content)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> Record:
        name, size, regions, error = self._images[index]
        where = f"{self._file}: {name}"
        if error:
            raise CorruptSample(CORRUPT_ROW, f"{where} ({error})")
        record = Record(name, read_image(self._places(name), where), (), regions=tuple(regions))
        actual = image_size(record)
        if actual != size:
            sizes = f"{actual[0]} x {actual[1]} pixels, its boxes are for {size[0]} x {size[1]}"
            raise CorruptSample(CORRUPT_REGION, f"{where} ({sizes})")
        return record

    def keys(self) -> Iterable[str]:
        """The file names of the images."""
        return (image.name for image in self._images)

    def fingerprint(self) -> str:
        """sha256 over names, boxes and texts; images are not looked at, so their content does not count."""
        parts: list[str | int] = [self.difficulty]
        for name, _, regions, _ in self._images:
            parts += [name, len(regions)]
            for region in regions:
                parts += [str(region.box), region.phrase, *(foil.text for foil in region.foils)]
        return digest(parts)


class FgOvdLines(Table):
    """FG-OVD as JSON Lines: img_path, bbox (left, top, width, height), pos_expression, neg_expression.

    The lines of one image become one record. Their kind is the name of the file: easy, medium, hard, trivial.
    """

    which = ", the folder that the paths of the file begin in"

    @staticmethod
    def recognises(content: Any) -> bool:
        """Whether the first sound row of a file has the form of FG-OVD as JSON Lines."""
        first = first_fields(content)
        return all(name in first for name in _Line.model_fields)

    def __init__(self, path: str, images: str | None = None, rows: Sequence[Row] | None = None) -> None:
        file, _ = split_query(path, ("root",))
        rows = read_rows(file) if rows is None else rows
        if not self.recognises(rows):
            raise UserError(
                f"{file} is not FG-OVD as JSON Lines: rows with {', '.join(_Line.model_fields)}; {HELP}"
            )
        kind = os.path.splitext(os.path.basename(file))[0]
        super().__init__(path, images, [_line(row, kind) for row in rows])


def _line(row: Row, kind: str) -> Row:
    """The row in the names of `common`; one of another form is corrupt."""
    if row.error:
        return row
    try:
        one = _Line.of(row.fields)
    except ValueError as error:
        return Row(row.number, {}, str(error))
    foils = [{"text": text, "kind": kind} for text in one.neg_expression]
    region = {"phrase": one.pos_expression[0], "box": list(around(one.bbox)), "foils": foils}
    return row._replace(fields={"image": one.img_path, "caption": "", "regions": [region]})


def _is_annotations(content: Any) -> bool:
    return all(has_rows(content, name, fields) for name, fields in FIELDS.items())


def _read(data: dict[str, Any], file: str, difficulty: str) -> list[_AnnotatedImage]:
    """Images with their regions, in the order of the file; each row that is wrong stands for itself.

    Raises UserError where no row is right.
    """
    broken: list[_AnnotatedImage] = []
    rows: dict[str, list[Any]] = {}
    for name, kind in (("categories", _Category), ("images", _Image), ("annotations", _Annotation)):
        checked_rows = list(checked(kind, data[name], name))
        rows[name] = [(place, row) for place, row, _ in checked_rows if row is not None]
        broken += [
            _AnnotatedImage(place, (0, 0), [], wrong) for place, row, wrong in checked_rows if row is None
        ]
    names = {row.id: row.name for _, row in rows["categories"]}
    images = {
        row.id: _AnnotatedImage(row.file_name, (row.width, row.height), []) for _, row in rows["images"]
    }
    for place, row in rows["annotations"]:
        unknown = [number for number in (row.category_id, *row.neg_category_ids) if number not in names]
        if row.image_id not in images or unknown:
            wrong = f"category {unknown[0]}" if unknown else f"image {row.image_id}"
            broken.append(_AnnotatedImage(place, (0, 0), [], f"{wrong} is not listed, or wrong there"))
            continue
        phrase = names[row.category_id]
        foils = tuple(Foil(names[number], phrase, difficulty) for number in row.neg_category_ids)
        images[row.image_id].regions.append(Region(phrase, around(row.bbox), foils=foils))
    used = [image for image in images.values() if image.regions]
    if not used:
        raise UserError(f"{file}: {broken[0].name} ({broken[0].error}), and no region is right; {HELP}")
    return used + broken
