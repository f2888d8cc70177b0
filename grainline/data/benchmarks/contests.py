"""Benchmarks of pairs, a right pair of image and text against a wrong one: FOIL-COCO, SugarCrepe, VALSE.

Either the text differs, and the wrong one is a foil of its record; or the image does, and a `Contest` names
both by their places in the source.
"""

import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import Field, StrictBool

from grainline.data.formats.checked import Fields, Id, brief_json, checked, has_rows, strings
from grainline.data.formats.joined import Joined
from grainline.data.formats.listed import Entry, ListedImages
from grainline.data.formats.plain import HELP
from grainline.data.record import Foil, Record, Source
from grainline.data.scenes.source import Scenes
from grainline.errors import UserError, some

SCENES, OTHER_DATA = "scenes", "own data"  # names of sources that are no benchmark


class Contest(NamedTuple):
    """A text, the image that it is true of, and one that it is false of."""

    text: str
    right: int  # place in the source
    wrong: int
    kind: str  # what of the text the wrong image lacks


class Origin(NamedTuple):
    """Records that come from one file."""

    start: int  # place of the first of them
    benchmark: str
    contests: tuple[Contest, ...]  # by places in the whole source


class Benchmark(ListedImages):
    """Abstract: the images of a benchmark of pairs."""

    benchmark: ClassVar[str]
    contests: tuple[Contest, ...] = ()


class Foiled(Benchmark):
    """Abstract: images whose true texts have foils, in the order in which they first stand in the file.

    The captions of a record are its true texts.
    """

    @abstractmethod
    def pairs(self, content: Any) -> Iterable[tuple[str, Foil]]:
        """Each foil with its image: the name of a file, or where it lies below the folder of the images."""

    def subfolder(self, name: str) -> str:
        """Where the image may lie too."""
        return os.path.basename(name)

    def parse(self, content: Any) -> list[Entry]:
        by_image: dict[str, list[Foil]] = {}
        for name, foil in self.pairs(content):
            by_image.setdefault(name, []).append(foil)
        entries = []
        for name, foils in by_image.items():
            true = tuple(dict.fromkeys(foil.true for foil in foils))
            places = (name, os.path.basename(name), self.subfolder(name))
            entries.append(Entry(Record(name, b"", true, foils=tuple(foils)), places))
        return entries

    def parts(self) -> Iterator[str | int]:
        yield self.benchmark
        for entry in self.entries:
            foils = entry.record.foils
            yield entry.record.key
            yield len(foils)
            yield from (part for foil in foils for part in foil)


def require_fields(item: Any, fields: Sequence[str], where: str) -> None:
    """Raise UserError for an item that lacks a field."""
    missing = [name for name in fields if not isinstance(item, dict) or name not in item]
    if missing:
        raise UserError(f"{where} is {brief_json(item)}, without {some(missing)}; {HELP}")


def one_text(value: Any, field: str, where: str) -> str:
    """The text of a field. Raises UserError where there is none, or several."""
    texts = strings(value) if isinstance(value, str) else []
    if not texts:
        raise UserError(f"{where}: {field} is {brief_json(value)}, not a text; {HELP}")
    return texts[0]


def origins(source: Source, start: int = 0) -> list[Origin]:
    """Which records come from which benchmark, in their order.

    start  place of the first record
    """
    if isinstance(source, Joined):
        parts = []
        for one in source.sources:
            parts += origins(one, start)
            start += len(one)
        return parts
    if not isinstance(source, Benchmark):
        return [Origin(start, SCENES if isinstance(source, Scenes) else OTHER_DATA, ())]
    moved = (c._replace(right=c.right + start, wrong=c.wrong + start) for c in source.contests)
    return [Origin(start, source.benchmark, tuple(moved))]


# FOIL-COCO: captions of COCO and the same with one noun replaced.
#
#     foil-coco:foilv1.0_test_2017.json?images=DIR
#
# Shekhar et al., arXiv 1705.01359. annotations[] with id, image_id, caption, foil (whether it is the false
# one), target_word and foil_word; a foil has the id of the caption that it was made from. The images are
# those of COCO val2014 (train2014 for the training file): DIR holds them, or is the folder above.

FOIL_COCO = "foil-coco"
NOUN = "noun"


class _Annotation(Fields):
    id: Id
    image_id: Any
    caption: Any
    foil: StrictBool


class _Image(Fields):
    id: Id
    file_name: Annotated[str, Field(pattern="^COCO_[^_]*_")]


class FoilCoco(Foiled):
    """The images of a file of FOIL-COCO. Raises UserError."""

    benchmark = FOIL_COCO
    form = f"a file of FOIL-COCO: annotations[] with {', '.join(_Annotation.model_fields)}"

    @staticmethod
    def recognises(content: Any) -> bool:
        """Whether parsed JSON has the form of the files of FOIL-COCO; its rows may still be wrong."""
        return has_rows(content, "annotations", tuple(_Annotation.model_fields))

    def subfolder(self, name: str) -> str:
        """COCO_val2014_1.jpg may lie in val2014."""
        return os.path.join(name.split("_")[1], name)

    def pairs(self, content: Any) -> Iterator[tuple[str, Foil]]:
        rows: dict[bool, list[_Annotation]] = {True: [], False: []}  # by whether they are foils
        for place, row, wrong in checked(_Annotation, content["annotations"], "annotations"):
            if row is None:
                raise UserError(f"{place} of {self._file}: {wrong}; {HELP}")
            rows[row.foil].append(row)
        true = {row.id: row for row in rows[False]}
        paired = [row for row in rows[True] if row.id in true]
        if not paired:
            number = len(rows[True])
            raise UserError(f"{self._file}: none of {number} foils has the id of a true caption; {HELP}")
        unpaired = len(rows[True]) - len(paired)
        if unpaired:
            self.remarks = (f"{unpaired} foils without a caption of their id are left out",)
        images = content.get("images")
        listed = checked(_Image, images if isinstance(images, list) else (), "images")
        names = {image.id: image.file_name for _, image, _ in listed if image}
        return (self._pair(true[row.id], row, names) for row in paired)

    def _pair(self, true: _Annotation, false: _Annotation, names: dict[Any, str]) -> tuple[str, Foil]:
        where, number = f"annotation {true.id} of {self._file}", true.image_id
        if false.image_id != number:
            both = f"image {brief_json(false.image_id)}, the caption of {brief_json(number)}"
            raise UserError(f"{where}: its foil is of {both}; {HELP}")
        if not isinstance(number, int) and not (isinstance(number, str) and number in names):
            raise UserError(
                f"{where}: image_id is {brief_json(number)}, not the number of an image of COCO; {HELP}"
            )
        foil, caption = (one_text(row.caption, "caption", where) for row in (false, true))
        return names.get(number) or f"COCO_val2014_{number:012}.jpg", Foil(foil, caption, NOUN)


class _Items(Foiled):
    """Abstract: a JSON object of items; the name of the file is the kind of its foils."""

    fields: ClassVar[tuple[str, ...]]  # those of the image, the caption and the foil, then others

    @classmethod
    def recognises(cls, content: Any) -> bool:
        """Whether parsed JSON is an object of items, of which one has these fields."""
        rows = content.values() if isinstance(content, dict) else ()
        return any(isinstance(row, dict) and all(name in row for name in cls.fields) for row in rows)

    def pairs(self, content: Any) -> list[tuple[str, Foil]]:
        kind = os.path.splitext(os.path.basename(self._file))[0]
        pairs = []
        for name, item in content.items():
            where = f"item {name} of {self._file}"
            require_fields(item, self.fields, where)
            if self.usable(item, where):
                image, true, foil = (one_text(item[field], field, where) for field in self.fields[:3])
                pairs.append((image, Foil(foil, true, kind)))
        return pairs

    def usable(self, item: dict[str, Any], where: str) -> bool:  # noqa: ARG002
        """Whether the benchmark has the item. Raises UserError."""
        return True


# SugarCrepe: captions of COCO and foils that read as well as they do.
#
#     sugarcrepe:replace_obj.json?images=DIR
#
# Hsieh et al., arXiv 2306.14610. The name of a file is the kind of its foils: a JSON object of items
# with filename, caption and negative_caption. DIR holds the images of COCO val2017, or is the folder above.

SUGARCREPE = "sugarcrepe"


class SugarCrepe(_Items):
    """The images of one file of SugarCrepe. Raises UserError."""

    benchmark = SUGARCREPE
    fields = ("filename", "caption", "negative_caption")
    form = f"a file of SugarCrepe: items with {', '.join(fields)}"

    def subfolder(self, name: str) -> str:
        """COCO's own folder."""
        return os.path.join("val2017", name)


# VALSE: captions and foils of six linguistic phenomena.
#
#     valse:actant-swap.json?images=DIR
#
# Parcalabescu et al., arXiv 2112.07566. Each file is one piece: a JSON object of items with image_file,
# caption, foil and mturk, the votes of three people. As its authors do, items count only if
# two people at least chose the caption. The kind is the name of the file. DIR holds the images of the piece:
# those of COCO, SWiG, VisDial or Visual7W.

VALSE = "valse"
VOTES = 2  # of three


class Valse(_Items):
    """The images of one piece of VALSE. Raises UserError."""

    benchmark = VALSE
    fields = ("image_file", "caption", "foil", "mturk")
    form = f"a piece of VALSE: items with {', '.join(fields)}"

    def pairs(self, content: Any) -> list[tuple[str, Foil]]:
        pairs = super().pairs(content)
        if not pairs:
            raise UserError(
                f"{self._file}: no item of {len(content)} has {VOTES} votes for its caption; {HELP}"
            )
        number = len(content) - len(pairs)
        if number:
            reason = f"fewer than {VOTES} people chose their caption"
            self.remarks = (f"{number} of {len(content)} items are left out: {reason}",)
        return pairs

    def usable(self, item: dict[str, Any], where: str) -> bool:
        """Whether enough people chose the caption."""
        mturk = item["mturk"]
        votes = mturk.get("caption") if isinstance(mturk, dict) else None
        if not isinstance(votes, int):
            raise UserError(f"{where}: mturk is {brief_json(mturk)}, without votes for the caption; {HELP}")
        return votes >= VOTES
