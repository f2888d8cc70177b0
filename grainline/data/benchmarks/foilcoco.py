"""FOIL-COCO: captions of COCO and the same with one noun replaced.

    foil-coco:foilv1.0_test_2017.json?images=DIR

Shekhar et al., arXiv 1705.01359. annotations[] with id, image_id, caption, foil (whether it is the false
one), target_word and foil_word; a foil has the id of the caption that it was made from. The pictures are
those of COCO val2014 (train2014 for the training file): DIR holds them, or is the folder above.
"""

import os
from typing import Any

from grainline.data.benchmarks.contests import Foiled, Row, one_text, whole_item
from grainline.data.formats.checked import has_rows, shown
from grainline.data.formats.common import split_query
from grainline.data.formats.plain import HELP, load_json
from grainline.data.record import Foil
from grainline.errors import UserError

FOIL_COCO = "foil-coco"
NOUN = "noun"
FIELDS = ("id", "image_id", "caption", "foil")


class FoilCoco(Foiled):
    """The pictures of a file of FOIL-COCO. Raises UserError."""

    benchmark = FOIL_COCO

    def __init__(self, path: str, images: str | None = None, data: Any = None) -> None:
        file, options = split_query(path, ("images",))
        data = load_json(file) if data is None else data
        if not is_foil_coco(data):
            raise UserError(
                f"{file} is not a file of FOIL-COCO: annotations[] with {', '.join(FIELDS)}; {HELP}"
            )
        for number, row in enumerate(data["annotations"]):
            where = f"annotations[{number}] of {file}"
            whole_item(row, FIELDS, where)
            if not _is_id(row["id"]):
                raise UserError(f"{where}: id is {shown(row['id'])}, not a number or a text; {HELP}")
            if not isinstance(row["foil"], bool):
                raise UserError(f"{where}: foil is {shown(row['foil'])}, not true or false; {HELP}")
        true = {row["id"]: row for row in data["annotations"] if row["foil"] is False}
        false = [row for row in data["annotations"] if row["foil"] is True]
        paired = [row for row in false if row["id"] in true]
        if not paired:
            raise UserError(f"{file}: none of {len(false)} foils has the id of a true caption; {HELP}")
        names = _names(data)
        rows = [_row(true[row["id"]], row, names, file) for row in paired]
        super().__init__(path, file, images or options.get("images"), rows)
        alone = len(false) - len(paired)
        if alone:
            self.remarks = (f"{alone} foils without a caption of their id are left out",)

    def _places(self, name: str) -> list[str]:
        return [*super()._places(name), os.path.join(self._root, name.split("_")[1], name)]


def is_foil_coco(data: Any) -> bool:
    """Whether parsed JSON has the form of the files of FOIL-COCO; its rows may still be wrong."""
    return has_rows(data, "annotations", FIELDS)


def _names(data: dict[str, Any]) -> dict[Any, str]:
    """Number of a picture to its file name, as far as the file lists them."""
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


def _row(true: dict[str, Any], false: dict[str, Any], names: dict[Any, str], file: str) -> Row:
    where = f"annotation {true['id']} of {file}"
    number = true["image_id"]
    if false["image_id"] != number:
        both = f"picture {shown(false['image_id'])}, the caption of {shown(number)}"
        raise UserError(f"{where}: its foil is of {both}; {HELP}")
    if not isinstance(number, int) and not (isinstance(number, str) and number in names):
        raise UserError(f"{where}: image_id is {shown(number)}, not the number of a picture of COCO; {HELP}")
    name = names.get(number) or f"COCO_val2014_{number:012}.jpg"
    foil, caption = (one_text(row["caption"], "caption", where) for row in (false, true))
    return Row(name, Foil(foil, caption, NOUN))
