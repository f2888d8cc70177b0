"""VALSE: captions and foils of six linguistic phenomena.

    valse:actant-swap.json?images=DIR

Parcalabescu et al., arXiv 2112.07566. Each file is one piece: a JSON object of items with image_file,
caption, foil and mturk, the votes of three people. As its authors do, only items are kept of which two people
at least chose the caption. The kind is the name of the file. DIR holds the pictures of the piece: those of
COCO, SWiG, VisDial or Visual7W.
"""

import os
from typing import Any

from grainline.data.benchmarks.contests import Foiled, Row, items_of, one_text, whole_item
from grainline.data.formats.checked import shown
from grainline.data.formats.common import split_query
from grainline.data.formats.plain import HELP, load_json
from grainline.data.record import Foil
from grainline.errors import UserError

VALSE = "valse"
FIELDS = ("image_file", "caption", "foil", "mturk")
VOTES = 2  # of three


class Valse(Foiled):
    """The pictures of one piece of VALSE. Raises UserError."""

    benchmark = VALSE

    def __init__(self, path: str, images: str | None = None, data: Any = None) -> None:
        file, options = split_query(path, ("images",))
        data = load_json(file) if data is None else data
        if not is_valse(data):
            raise UserError(f"{file} is not a piece of VALSE: items with {', '.join(FIELDS)}; {HELP}")
        kind = os.path.splitext(os.path.basename(file))[0]
        valid = {name: item for name, item in data.items() if _votes(item, f"item {name} of {file}") >= VOTES}
        if not valid:
            raise UserError(f"{file}: no item of {len(data)} has {VOTES} votes for its caption; {HELP}")
        rows = [_row(item, kind, f"item {name} of {file}") for name, item in valid.items()]
        super().__init__(path, file, images or options.get("images"), rows)
        left = len(data) - len(valid)
        if left:
            self.remarks = (
                f"{left} of {len(data)} items are left out: fewer than {VOTES} people chose their caption",
            )


def is_valse(data: Any) -> bool:
    """Whether parsed JSON has the form of a piece of VALSE; its items may still be wrong."""
    return items_of(data, FIELDS)


def _votes(item: Any, where: str) -> int:
    mturk = whole_item(item, FIELDS, where)["mturk"]
    votes = mturk.get("caption") if isinstance(mturk, dict) else None
    if not isinstance(votes, int):
        raise UserError(f"{where}: mturk is {shown(mturk)}, without votes for the caption; {HELP}")
    return votes


def _row(item: dict[str, Any], kind: str, where: str) -> Row:
    name, foil, true = (one_text(item[field], field, where) for field in ("image_file", "foil", "caption"))
    return Row(name, Foil(foil, true, kind))
