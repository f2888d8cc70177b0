"""Benchmarks of pairs, a right pair of image and text against a wrong one: FOIL-COCO, SugarCrepe, VALSE.

Either the text differs, and the wrong one is a foil of its record; or the image does, and a `Contest` names
both by their places in the source.
"""

import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from grainline.data.formats.checked import brief_json, has_rows, strings
from grainline.data.formats.common import FileSource, digest, read_image, require_images, some, split_query
from grainline.data.formats.joined import Joined
from grainline.data.formats.plain import HELP, load_json
from grainline.data.record import Foil, Record, Source
from grainline.data.scenes.source import Scenes
from grainline.errors import UserError

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


class Benchmark(FileSource):
    """Abstract: the images of a benchmark of pairs."""

    images_by_path = True
    benchmark: str
    contests: tuple[Contest, ...] = ()


class Row(NamedTuple):
    """An image with a true text and a foil."""

    image: str  # its file name, or where it lies below its folder
    foil: Foil


class Foiled(Benchmark):
    """Abstract: images whose true texts have foils, in the order in which they first stand in the file.

    The captions of a record are its true texts.
    """

    def __init__(self, path: str, file: str, root: str | None, rows: Sequence[Row]) -> None:
        self.path = path
        self._file = file
        self._root = root or os.path.dirname(os.path.abspath(file))
        foils: dict[str, list[Foil]] = {}
        for row in rows:
            foils.setdefault(row.image, []).append(row.foil)
        self.images = [(name, tuple(image_foils)) for name, image_foils in foils.items()]
        require_images([self._places(name) for name in foils], file, self._root)

    def _places(self, name: str) -> list[str]:
        return [os.path.join(self._root, place) for place in dict.fromkeys((name, os.path.basename(name)))]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Record:
        name, foils = self.images[index]
        true = tuple(dict.fromkeys(foil.true for foil in foils))
        return Record(name, read_image(self._places(name), f"{self._file}: {name}"), true, foils=foils)

    def keys(self) -> Iterable[str]:
        """The file names of the images."""
        return (name for name, _ in self.images)

    def fingerprint(self) -> str:
        """sha256 over names and texts; images are not looked at, so their sizes do not count."""
        parts: list[str | int] = [self.benchmark]
        for name, foils in self.images:
            parts += [name, len(foils), *(part for foil in foils for part in foil)]
        return digest(parts)


def items_of(data: Any, fields: Sequence[str]) -> bool:
    """Whether parsed JSON is an object of items, of which one has these fields."""
    rows = data.values() if isinstance(data, dict) else ()
    return any(isinstance(row, dict) and all(name in row for name in fields) for row in rows)


def whole_item(item: Any, fields: Sequence[str], where: str) -> dict[str, Any]:
    """An item with all its fields. Raises UserError."""
    missing = [name for name in fields if not isinstance(item, dict) or name not in item]
    if missing:
        raise UserError(f"{where} is {brief_json(item)}, without {some(missing)}; {HELP}")
    return dict(item)


def one_text(value: Any, field: str, where: str) -> str:
    """The text of a field. Raises UserError where there is none, or several."""
    texts = strings(value) if isinstance(value, str) else []
    if not texts:
        raise UserError(f"{where}: {field} is {brief_json(value)}, not a text; {HELP}")
    return texts[0]


def origins(source: Source) -> list[Origin]:
    """Which records come from which benchmark, in their order."""
    return _from(source, 0)


def _from(source: Source, start: int) -> list[Origin]:
    if isinstance(source, Joined):
        parts = []
        for one in source.sources:
            parts += _from(one, start)
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
FOIL_COCO_FIELDS = ("id", "image_id", "caption", "foil")


class FoilCoco(Foiled):
    """The images of a file of FOIL-COCO. Raises UserError."""

    benchmark = FOIL_COCO

    @staticmethod
    def recognises(content: Any) -> bool:
        """Whether parsed JSON has the form of the files of FOIL-COCO; its rows may still be wrong."""
        return has_rows(content, "annotations", FOIL_COCO_FIELDS)

    def __init__(self, path: str, images: str | None = None, data: Any = None) -> None:
        file, options = split_query(path, ("images",))
        data = load_json(file) if data is None else data
        if not self.recognises(data):
            raise UserError(
                f"{file} is not a file of FOIL-COCO: annotations[] with {', '.join(FOIL_COCO_FIELDS)}; {HELP}"
            )
        for number, row in enumerate(data["annotations"]):
            where = f"annotations[{number}] of {file}"
            whole_item(row, FOIL_COCO_FIELDS, where)
            if not _is_id(row["id"]):
                raise UserError(f"{where}: id is {brief_json(row['id'])}, not a number or a text; {HELP}")
            if not isinstance(row["foil"], bool):
                raise UserError(f"{where}: foil is {brief_json(row['foil'])}, not true or false; {HELP}")
        true = {row["id"]: row for row in data["annotations"] if row["foil"] is False}
        false = [row for row in data["annotations"] if row["foil"] is True]
        paired = [row for row in false if row["id"] in true]
        if not paired:
            raise UserError(f"{file}: none of {len(false)} foils has the id of a true caption; {HELP}")
        names = _image_names(data)
        rows = [_foil_coco_row(true[row["id"]], row, names, file) for row in paired]
        super().__init__(path, file, images or options.get("images"), rows)
        alone = len(false) - len(paired)
        if alone:
            self.remarks = (f"{alone} foils without a caption of their id are left out",)

    def _places(self, name: str) -> list[str]:
        return [*super()._places(name), os.path.join(self._root, name.split("_")[1], name)]


def _image_names(data: dict[str, Any]) -> dict[Any, str]:
    """Number of an image to its file name, as far as the file lists them."""
    listed = data.get("images")
    return {
        row["id"]: row["file_name"]
        for row in (listed if isinstance(listed, list) else ())
        if isinstance(row, dict) and _is_id(row.get("id")) and _is_name(row.get("file_name"))
    }


def _is_id(value: Any) -> bool:
    return isinstance(value, int | str)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("COCO_") and value.count("_") > 1


def _foil_coco_row(true: dict[str, Any], false: dict[str, Any], names: dict[Any, str], file: str) -> Row:
    where = f"annotation {true['id']} of {file}"
    number = true["image_id"]
    if false["image_id"] != number:
        both = f"image {brief_json(false['image_id'])}, the caption of {brief_json(number)}"
        raise UserError(f"{where}: its foil is of {both}; {HELP}")
    if not isinstance(number, int) and not (isinstance(number, str) and number in names):
        raise UserError(
            f"{where}: image_id is {brief_json(number)}, not the number of an image of COCO; {HELP}"
        )
    name = names.get(number) or f"COCO_val2014_{number:012}.jpg"
    foil, caption = (one_text(row["caption"], "caption", where) for row in (false, true))
    return Row(name, Foil(foil, caption, NOUN))


# SugarCrepe: captions of COCO and foils that read as well as they do.
#
#     sugarcrepe:replace_obj.json?images=DIR
#
# Hsieh et al., arXiv 2306.14610. Each file is one kind of foil, which its name says: a JSON object of items
# with filename, caption and negative_caption. DIR holds the images of COCO val2017, or is the folder above.

SUGARCREPE = "sugarcrepe"
SUGARCREPE_FIELDS = ("filename", "caption", "negative_caption")


class SugarCrepe(Foiled):
    """The images of one file of SugarCrepe. Raises UserError."""

    benchmark = SUGARCREPE

    @staticmethod
    def recognises(content: Any) -> bool:
        """Whether parsed JSON has the form of the files of SugarCrepe; its items may still be wrong."""
        return items_of(content, SUGARCREPE_FIELDS)

    def __init__(self, path: str, images: str | None = None, data: Any = None) -> None:
        file, options = split_query(path, ("images",))
        data = load_json(file) if data is None else data
        if not self.recognises(data):
            raise UserError(
                f"{file} is not a file of SugarCrepe: items with {', '.join(SUGARCREPE_FIELDS)}; {HELP}"
            )
        kind = os.path.splitext(os.path.basename(file))[0]
        rows = [_sugarcrepe_row(item, kind, f"item {name} of {file}") for name, item in data.items()]
        super().__init__(path, file, images or options.get("images"), rows)

    def _places(self, name: str) -> list[str]:
        return [*super()._places(name), os.path.join(self._root, "val2017", name)]


def _sugarcrepe_row(item: Any, kind: str, where: str) -> Row:
    item = whole_item(item, SUGARCREPE_FIELDS, where)
    fields = ("filename", "negative_caption", "caption")
    name, foil, true = (one_text(item[field], field, where) for field in fields)
    return Row(name, Foil(foil, true, kind))


# VALSE: captions and foils of six linguistic phenomena.
#
#     valse:actant-swap.json?images=DIR
#
# Parcalabescu et al., arXiv 2112.07566. Each file is one piece: a JSON object of items with image_file,
# caption, foil and mturk, the votes of three people. As its authors do, only items are kept of which two
# people at least chose the caption. The kind is the name of the file. DIR holds the images of the piece:
# those of COCO, SWiG, VisDial or Visual7W.

VALSE = "valse"
VALSE_FIELDS = ("image_file", "caption", "foil", "mturk")
VOTES = 2  # of three


class Valse(Foiled):
    """The images of one piece of VALSE. Raises UserError."""

    benchmark = VALSE

    @staticmethod
    def recognises(content: Any) -> bool:
        """Whether parsed JSON has the form of a piece of VALSE; its items may still be wrong."""
        return items_of(content, VALSE_FIELDS)

    def __init__(self, path: str, images: str | None = None, data: Any = None) -> None:
        file, options = split_query(path, ("images",))
        data = load_json(file) if data is None else data
        if not self.recognises(data):
            raise UserError(f"{file} is not a piece of VALSE: items with {', '.join(VALSE_FIELDS)}; {HELP}")
        kind = os.path.splitext(os.path.basename(file))[0]
        valid = {name: item for name, item in data.items() if _votes(item, f"item {name} of {file}") >= VOTES}
        if not valid:
            raise UserError(f"{file}: no item of {len(data)} has {VOTES} votes for its caption; {HELP}")
        rows = [_valse_row(item, kind, f"item {name} of {file}") for name, item in valid.items()]
        super().__init__(path, file, images or options.get("images"), rows)
        left = len(data) - len(valid)
        if left:
            self.remarks = (
                f"{left} of {len(data)} items are left out: fewer than {VOTES} people chose their caption",
            )


def _votes(item: Any, where: str) -> int:
    mturk = whole_item(item, VALSE_FIELDS, where)["mturk"]
    votes = mturk.get("caption") if isinstance(mturk, dict) else None
    if not isinstance(votes, int):
        raise UserError(f"{where}: mturk is {brief_json(mturk)}, without votes for the caption; {HELP}")
    return votes


def _valse_row(item: dict[str, Any], kind: str, where: str) -> Row:
    name, foil, true = (one_text(item[field], field, where) for field in ("image_file", "foil", "caption"))
    return Row(name, Foil(foil, true, kind))
