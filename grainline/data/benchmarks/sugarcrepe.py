"""SugarCrepe: captions of COCO and foils that read as well as they do.

    sugarcrepe:replace_obj.json?images=DIR

Hsieh et al., arXiv 2306.14610. Each file is one kind of foil, which its name says: a JSON object of items
with filename, caption and negative_caption. DIR holds the pictures of COCO val2017, or is the folder above.
"""

import os
from typing import Any

from grainline.data.benchmarks.contests import Foiled, Row, items_of, one_text, whole_item
from grainline.data.formats.common import split_query
from grainline.data.formats.plain import HELP, load_json
from grainline.data.record import Foil
from grainline.errors import UserError

SUGARCREPE = "sugarcrepe"
FIELDS = ("filename", "caption", "negative_caption")


class SugarCrepe(Foiled):
    """The pictures of one file of SugarCrepe. Raises UserError."""

    benchmark = SUGARCREPE

    def __init__(self, path: str, images: str | None = None, data: Any = None) -> None:
        file, options = split_query(path, ("images",))
        data = load_json(file) if data is None else data
        if not is_sugarcrepe(data):
            raise UserError(f"{file} is not a file of SugarCrepe: items with {', '.join(FIELDS)}; {HELP}")
        kind = os.path.splitext(os.path.basename(file))[0]
        rows = [_row(item, kind, f"item {name} of {file}") for name, item in data.items()]
        super().__init__(path, file, images or options.get("images"), rows)

    def _places(self, name: str) -> list[str]:
        return [*super()._places(name), os.path.join(self._root, "val2017", name)]


def is_sugarcrepe(data: Any) -> bool:
    """Whether parsed JSON has the form of the files of SugarCrepe; its items may still be wrong."""
    return items_of(data, FIELDS)


def _row(item: Any, kind: str, where: str) -> Row:
    item = whole_item(item, FIELDS, where)
    fields = ("filename", "negative_caption", "caption")
    name, foil, true = (one_text(item[field], field, where) for field in fields)
    return Row(name, Foil(foil, true, kind))
