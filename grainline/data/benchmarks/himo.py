"""HiMo-Docci: pictures of DOCCI with captions cut into cumulative subtexts (HiMo-CLIP, arXiv 2511.06653).

    himo_docci_data.json   JSON Lines in spite of its name: img_path, caption (the subtexts), raw_caption

The caption of a record is `raw_caption`. Its subtexts are kept as they stand, but for blanks at their ends:
some put other marks where they were cut, so they are not always exact beginnings of the next, nor is the last
always the whole caption.
"""

from collections.abc import Sequence
from typing import Any

from grainline.data.formats.common import split_query
from grainline.data.formats.plain import HELP
from grainline.data.formats.table import Row, Table, read_rows
from grainline.errors import UserError

FIELDS = {"img_path": str, "caption": list, "raw_caption": str}


class HimoDocci(Table):
    """A table whose rows say their subtexts."""

    which = ", the folder of the pictures of DOCCI"

    def __init__(self, path: str, images: str | None = None, rows: Sequence[Row] | None = None) -> None:
        file, _ = split_query(path, ("root",))
        rows = read_rows(file) if rows is None else rows
        if not is_himo(rows):
            raise UserError(f"{file} is not HiMo-Docci: rows with {', '.join(FIELDS)}; {HELP}")
        super().__init__(path, images, [_renamed(row) for row in rows])


def is_himo(rows: Sequence[Row]) -> bool:
    """Whether the first sound row of a file has the form of HiMo-Docci."""
    first = next((row.fields for row in rows if not row.error), {})
    return _fits(first)


def _fits(fields: Any) -> bool:
    return all(isinstance(fields.get(name), kind) for name, kind in FIELDS.items())


def _renamed(row: Row) -> Row:
    """The row in the names of `common`; one of another form is damaged."""
    if row.error:
        return row
    if not _fits(row.fields):
        return Row(row.number, {}, f"no {', '.join(FIELDS)}")
    image, subtexts, caption = (row.fields[name] for name in FIELDS)
    return row._replace(fields={"image": image, "caption": caption, "subtexts": subtexts})
