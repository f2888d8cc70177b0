"""Benchmarks of phrases and their regions: Flickr30k Entities and FG-OVD."""

import copy
import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from grainline.data.formats.common import FileSource, digest, read_image, require_images, split_query, stem_of
from grainline.data.formats.listed import Entry, ListedImages, SizedImage, no_text, wrong_row
from grainline.data.formats.parsed import (
    HELP,
    Extent,
    Fields,
    Id,
    Pixels,
    Text,
    around,
    checked,
    data_error,
    read_lines,
    read_text,
)
from grainline.data.formats.storage import Range, fetch, is_file, is_folder, matches, read_plain
from grainline.data.formats.table import Row, Table, first_fields
from grainline.data.record import Box, Cause, CorruptSample, Foil, Record, Region
from grainline.errors import UserError, some

# Flickr30k Entities: captions of Flickr30k with the noun phrases in them, by their official files.
# Plummer et al., arXiv 1505.04870. DIR is the folder of the release:
#     Sentences/ID.txt    the captions of an image, one a line:
#                         [/EN#283585/people Two people] are [/EN#0/notvisual outside] .
#     Annotations/ID.xml  boxes of entities by their numbers, where they were unpacked
#     train.txt, val.txt, test.txt   the images of each split
#
# A record is an image ID.jpg with its captions, and a region for every bracket, those of number 0
# ("notvisual") and those without a box included; its span is its place in a caption. The box of a
# region is the smallest around all boxes of its entity. Without `images` captions can be read alone.

SENTENCES, ANNOTATIONS = "Sentences", "Annotations"
_OPENED = re.compile(r"\[/EN#(\d+)((?:/[^\s/\[\]]+)+)$")


class _Sides(Fields):
    """A box of an annotation; its pixels count from 1."""

    xmin: Pixels
    ymin: Pixels
    xmax: Pixels
    ymax: Pixels


Marked = tuple[str, int, int]  # number of the entity, and where its words stand in the caption


class Entities(FileSource):
    """The images of some splits, in the order of their lists. Raises UserError."""

    images_by_path = True

    def __init__(self, path: str, images: str | None = None) -> None:
        self._home, options = split_query(path, ("split", "images"))
        self.path = path
        if not is_folder(os.path.join(self._home, SENTENCES)):
            raise data_error(f"{self._home} holds no folder {SENTENCES}, as Flickr30k Entities has")
        self._names = _listed(self._home, options.get("split", "val").split(","))
        folder = os.path.join(self._home, SENTENCES)
        texts = [os.path.join(folder, f"{name}.txt") for name in self._names]
        fetch(map(Range, texts))
        self._sentences = [_captions(text) for text in texts]
        if all(isinstance(captions, CorruptSample) for captions in self._sentences):
            raise data_error(f"no caption of {self._home} can be used, the first for {self._sentences[0]}")
        self._root = images or options.get("images")
        self._with_images = True
        if self._root is not None:
            require_images([[self._place(name)] for name in self._names], self._home, self._root)

    def _place(self, name: str) -> str:
        return os.path.join(self._root or "", f"{name}.jpg")

    def prefetch(self, indices: Sequence[int]) -> None:
        fetch(Range(self._place(self._names[i])) for i in indices if self._root is not None)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> Record:
        name, captions = self._names[index], self._sentences[index]
        if isinstance(captions, CorruptSample):
            raise CorruptSample(captions.cause, captions.where)
        image, boxes = b"", {}
        if self._with_images:
            if self._root is None:
                why = "say where with --images DIR"
                raise CorruptSample(Cause.MISSING_IMAGE, f"{name}.jpg of {self._home} ({why})")
            boxes = self._boxes(name)
            image = read_image([self._place(name)], f"{self._home}: {name}")
        regions = tuple(
            Region(text[start:end], boxes.get(number), span=(f"captions.{i}", start, end))
            for i, (text, marked) in enumerate(captions)
            for number, start, end in marked
        )
        return Record(f"{name}.jpg", image, tuple(text for text, _ in captions), regions=regions)

    def _boxes(self, name: str) -> dict[str, Box]:
        """The box of every entity that has one; none where annotations were not unpacked."""
        file = os.path.join(self._home, ANNOTATIONS, f"{name}.xml")
        if not is_file(file):
            return {}
        entity_boxes: dict[str, list[Box]] = {}
        try:
            for thing in ElementTree.fromstring(read_plain(file)).iter("object"):
                box = thing.find("bndbox")
                if box is None:
                    continue
                sides = _Sides.of({side.tag: side.text for side in box})
                pixels = (sides.xmin - 1, sides.ymin - 1, sides.xmax, sides.ymax)
                for number in thing.iter("name"):
                    entity_boxes.setdefault(str(number.text).strip(), []).append(pixels)
        except (ElementTree.ParseError, ValueError, OSError) as error:
            raise CorruptSample(Cause.CORRUPT_REGION, f"{file} ({error})") from error
        corners = {number: [*zip(*boxes, strict=True)] for number, boxes in entity_boxes.items()}
        return {k: (min(c[0]), min(c[1]), max(c[2]), max(c[3])) for k, c in corners.items()}

    def texts_only(self) -> "Entities":
        """The same captions and phrases, with images of no bytes and without boxes."""
        other = copy.copy(self)
        other._with_images = False
        return other

    def keys(self) -> Iterable[str]:
        return (f"{name}.jpg" for name in self._names)

    def fingerprint(self) -> str:
        """sha256 over names, captions and phrases; neither images nor boxes count."""
        parts: list[str | int] = []
        for name, captions in zip(self._names, self._sentences, strict=True):
            parts += [name, len(captions)] if isinstance(captions, list) else [name, captions.cause]
            for text, marked in captions if isinstance(captions, list) else ():
                parts += [text, len(marked), *(x for one in marked for x in one)]
        return digest(parts)


def _captions(file: str) -> list[tuple[str, list[Marked]]] | CorruptSample:
    """The captions of an image, or why there are none."""
    try:
        lines = enumerate(read_text(file).split("\n"), 1)
        captions = [read_sentence(line, f"line {number} of {file}") for number, line in lines if line.strip()]
    except UserError as error:
        return CorruptSample(Cause.CORRUPT_TEXT, str(error).removesuffix(f"; {HELP}"))
    return captions or CorruptSample(Cause.MISSING_CAPTION, file)


def read_sentence(line: str, where: str) -> tuple[str, list[Marked]]:
    """A caption without its brackets, words parted by one blank, and what stood in them.

    Raises UserError for brackets that are not of the form.

    >>> read_sentence("[/EN#7/people/other Two men] walk [/EN#0/notvisual outside] .", "line 1")
    ('Two men walk outside .', [('7', 0, 7), ('0', 13, 20)])
    """
    words: list[str] = []
    marked: list[Marked] = []
    number, start, end = None, 0, 0
    for word in line.split():
        opened = _OPENED.match(word)
        if opened and number is None:
            number, start = opened[1], end
            continue
        closed = number is not None and word.endswith("]")
        bare = word[:-1] if closed else word
        if "[/EN#" in word or (closed and end == start and not bare):
            raise data_error(f"{where} has a bracket that is not [/EN#NUMBER/TYPE words] at {word[:40]!r}")
        if bare:
            words.append(bare)
            end += len(bare) + 1
        if closed and number is not None:
            marked.append((number, start, end - 1))
            number = None
    if number is not None:
        raise data_error(f"{where} has a bracket that does not close, of {number}")
    return " ".join(words), marked


def _listed(home: str, splits: list[str]) -> list[str]:
    """The names of the images of some splits. Raises UserError for a split, or captions, not there."""
    names: list[str] = []
    for split in splits:
        file = os.path.join(home, f"{split}.txt")
        if not is_file(file):
            lists = ", ".join(sorted(stem_of(one) for one in matches(os.path.join(home, "*.txt")))) or "none"
            raise data_error(f"{home} has no list {split}.txt for split {split}: it has {lists}")
        names += [name.removesuffix(".jpg") for name in read_lines(file)]
    missing = [name for name in names if not is_file(os.path.join(home, SENTENCES, f"{name}.txt"))]
    if missing:
        raise data_error(f"{home}/{SENTENCES} has no captions of {some(missing)} of split {','.join(splits)}")
    if len(set(names)) < len(names):
        twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
        raise data_error(f"split {','.join(splits)} of {home} names {some(twice)} more than once")
    return names


# FG-OVD: regions with one right and several wrong descriptions.
#
#     fg-ovd:3_attributes.json?images=DIR    as its authors published it
#     easy.jsonl, with --images DIR          as FG-CLIP (arXiv 2505.05071) published it, an object a line
#
# Bianchi et al., arXiv 2311.17518. Each file holds one difficulty: images[] with id and file_name,
# annotations[] with a box, the right category and wrong ones, categories[] with a description as name. A
# record is an image with its regions, whose foils are of the kind that the file is named after; it has no
# caption. DIR is the folder of COCO's images: that above val2017 and train2017, or the one that all are in.

# what the benchmark calls its files; the others are known by what is wrong: `transparency`
DIFFICULTY = {"1_attributes": "hard", "2_attributes": "medium", "3_attributes": "easy"}
DIFFICULTY["shuffled_negatives"] = "trivial"


class _Category(Fields):
    id: Id
    name: Text


class _Annotation(Fields):
    id: Id
    image_id: Id
    bbox: Extent
    category_id: Id
    neg_category_ids: Annotated[tuple[Id, ...], Field(min_length=1)]


MODELS: dict[str, type[Fields]] = {"categories": _Category, "images": SizedImage, "annotations": _Annotation}


class _Line(Fields):
    img_path: Text
    bbox: Extent
    pos_expression: tuple[Text]
    neg_expression: Annotated[tuple[Text, ...], Field(min_length=1)]


class FgOvd(ListedImages):
    """The images of a file that have regions, in its order. Raises UserError."""

    lists: ClassVar = {name: tuple(model.model_fields) for name, model in MODELS.items()}
    form = "a file of FG-OVD: " + "; ".join(f"{name}[] with {', '.join(x)}" for name, x in lists.items())

    def parse(self, content: Any) -> list[Entry]:
        """The images with their regions, in the order of the file, then each row that is wrong."""
        stem = stem_of(self._file)
        self.difficulty = DIFFICULTY.get(stem, stem)
        rows: dict[str, list[tuple[str, Any, str]]] = {
            name: list(checked(model, content[name], name)) for name, model in MODELS.items()
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
        for image in (image for image in images.values() if regions[image.id]):
            name = image.file_name
            record = Record(name, b"", (), regions=tuple(regions[image.id]))
            entries.append(Entry(record, (name, os.path.basename(name)), (image.width, image.height)))
        if not entries:
            raise no_text(self._file, "region", wrong)
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

    @classmethod
    def recognises(cls, content: Any) -> bool:
        return _Line.model_fields.keys() <= first_fields(content).keys()

    def parse(self, content: Sequence[Row]) -> list[Entry]:
        return super().parse([_line(row, stem_of(self._file)) for row in content])


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
