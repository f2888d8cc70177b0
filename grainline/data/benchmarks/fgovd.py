"""FG-OVD: regions with one right and several wrong descriptions.

    fg-ovd:3_attributes.json?images=DIR    as its authors published it
    easy.jsonl, with --images DIR          as FG-CLIP (arXiv 2505.05071) published it, an object a line

Bianchi et al., arXiv 2311.17518. Each file holds one difficulty: images[] with id and file_name,
annotations[] with a box, the category that is right and those that are wrong, categories[] with a description
as name. A record is an image with its regions, whose foils are of the kind that the file is named after;
it has no caption. DIR is the folder of COCO's images: the one above val2017 and train2017, or the one that
they are all in.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from grainline.data.formats.checked import Extent, Fields, Id, Text, around, checked, has_rows
from grainline.data.formats.listed import Entry, ListedImages, SizedImage, wrong_row
from grainline.data.formats.plain import data_error
from grainline.data.formats.table import Row, Table, first_fields
from grainline.data.record import Foil, Record, Region

DIFFICULTY = {
    "1_attributes": "hard",
    "2_attributes": "medium",
    "3_attributes": "easy",
    "shuffled_negatives": "trivial",
}
"""What the benchmark calls its files; the others are known by what is wrong, such as `transparency`."""


class _Category(Fields):
    id: Id
    name: Text


class _Annotation(Fields):
    id: Id
    image_id: Id
    bbox: Extent
    category_id: Id
    neg_category_ids: Annotated[tuple[Id, ...], Field(min_length=1)]


MODELS: dict[str, type[Fields]] = {"images": SizedImage, "annotations": _Annotation, "categories": _Category}


class _Line(Fields):
    img_path: Text
    bbox: Extent
    pos_expression: tuple[Text]
    neg_expression: Annotated[tuple[Text, ...], Field(min_length=1)]


class FgOvd(ListedImages):
    """The images of a file that have regions, in its order. Raises UserError."""

    form = "a file of FG-OVD: " + "; ".join(
        f"{name}[] with {', '.join(model.model_fields)}" for name, model in MODELS.items()
    )

    @staticmethod
    def recognises(content: Any) -> bool:
        return all(has_rows(content, name, tuple(model.model_fields)) for name, model in MODELS.items())

    def parse(self, content: Any) -> list[Entry]:
        """The images with their regions, in the order of the file, then each row that is wrong."""
        stem = Path(self._file).stem
        self.difficulty = DIFFICULTY.get(stem, stem)
        rows: dict[str, list[tuple[str, Any, str]]] = {
            name: list(checked(MODELS[name], content[name], name))
            for name in ("categories", "images", "annotations")
        }
        wrong = [wrong_row(place, error) for part in rows.values() for place, row, error in part if not row]
        phrases = {row.id: row.name for _, row, _ in rows["categories"] if row}
        images = {row.id: row for _, row, _ in rows["images"] if row}
        regions: dict[int | str, list[Region]] = {number: [] for number in images}
        for place, row, _ in rows["annotations"]:
            if not row:
                continue
            unknown = [number for number in (row.category_id, *row.neg_category_ids) if number not in phrases]
            if row.image_id not in images or unknown:
                which = f"category {unknown[0]}" if unknown else f"image {row.image_id}"
                wrong.append(wrong_row(place, f"{which} is not listed, or wrong there"))
                continue
            phrase = phrases[row.category_id]
            foils = tuple(Foil(phrases[number], phrase, self.difficulty) for number in row.neg_category_ids)
            regions[row.image_id].append(Region(phrase, around(row.bbox), foils=foils))
        entries = []
        for image in images.values():
            name, used = image.file_name, tuple(regions[image.id])
            if used:
                record = Record(name, b"", (), regions=used)
                entries.append(Entry(record, (name, os.path.basename(name)), (image.width, image.height)))
        if not entries:
            first = wrong[0].fault[1] if wrong[0].fault else ""
            raise data_error(f"{self._file}: {first}, and no region is right")
        return entries + wrong

    def parts(self) -> Iterator[str | int]:
        yield self.difficulty
        for entry in self.entries:
            yield from (entry.record.key, len(entry.record.regions))
            for region in entry.record.regions:
                yield from (str(region.box), region.phrase, *(foil.text for foil in region.foils))


class FgOvdLines(Table):
    """FG-OVD as JSON Lines: img_path, bbox (left, top, width, height), pos_expression, neg_expression.

    The lines of one image become one record. Their kind is the name of the file: easy, medium, hard, trivial.
    """

    form = f"FG-OVD as JSON Lines: rows with {', '.join(_Line.model_fields)}"
    options = ("root",)
    which = ", the folder that the paths of the file begin in"

    @staticmethod
    def recognises(content: Any) -> bool:
        first = first_fields(content)
        return all(name in first for name in _Line.model_fields)

    def parse(self, content: Sequence[Row]) -> list[Entry]:
        return super().parse([_line(row, Path(self._file).stem) for row in content])


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
