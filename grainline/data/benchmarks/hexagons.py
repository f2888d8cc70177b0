"""Boards of coloured tiles with the instructions that people wrote to draw them: the data set Hexagons.

    hexagons:dev.jsonl

Lachmy et al., TACL 2022. A row is a procedure: steps of an instruction and the board after it, 180 digits
for 10 rows of 18 tiles. A record is the last board as an image, drawn here; its caption is all instructions.
Each instruction is a region: the tiles that its step painted, if the last board still has their colour.
"""

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

import numpy as np
from PIL import Image
from pydantic import Field

from grainline.data.formats.checked import Fields, brief_json, strings
from grainline.data.formats.common import FileSource, digest, split_query
from grainline.data.formats.plain import data_error
from grainline.data.formats.table import Row, first_fields, read_rows
from grainline.data.record import CORRUPT_ROW, CorruptSample, Record, Region

ROWS, COLUMNS = 10, 18
RADIUS = 12.0  # pixels from the middle of a tile to a corner of it
PROCEDURE = "drawing_procedure"
STEP = "[number, instruction, 180 digits from 0 to 7]"

COLOURS = np.array(
    [
        *((255, 255, 255), (25, 25, 25), (245, 210, 0), (25, 150, 50)),  # white, black, yellow, green
        *((220, 30, 35), (30, 80, 220), (125, 40, 165), (250, 130, 10)),  # red, blue, purple, orange
    ],
    np.uint8,
)
GROUND, EDGE = (225, 225, 225), (170, 170, 170)


Board = Annotated[
    tuple[Annotated[int, Field(ge=0, lt=len(COLOURS))], ...],
    Field(min_length=ROWS * COLUMNS, max_length=ROWS * COLUMNS),
]


class _Procedure(Fields):
    drawing_procedure: tuple[tuple[Any, Any, Board], ...]


class _Step(NamedTuple):
    text: str
    board: np.ndarray  # [180] uint8 behind it


class Hexagons(FileSource):
    """The procedures of a file, in its order. Raises UserError."""

    @staticmethod
    def recognises(content: Any) -> bool:
        first = first_fields(content)
        steps = first.get(PROCEDURE)
        return isinstance(steps, list) and bool(steps) and isinstance(steps[0], list)

    def __init__(self, path: str, images: str | None = None, rows: Sequence[Row] | None = None) -> None:
        file, _ = split_query(path, ())
        if images is not None:
            raise data_error(f"--images {images} does not go with {path}: boards are drawn; leave it out")
        self.path = path
        self._file = file
        self._rows = list(read_rows(file) if rows is None else rows)
        if not self.recognises(self._rows):
            raise data_error(f"{file} is not Hexagons: rows with {PROCEDURE}, a list of steps {STEP}")

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Record:
        row = self._rows[index]
        where = f"{self._file}, row {row.number}"
        if row.error:
            raise CorruptSample(CORRUPT_ROW, f"{where} ({row.error})")
        blank, *steps = _steps(row.fields.get(PROCEDURE), where)
        last, tiles = steps[-1].board, tile_map()
        regions, at, before = [], 0, blank.board
        for step in steps:
            painted = (step.board != before) & (step.board > 0) & (step.board == last)
            before = step.board
            if step.text and painted.any():
                mask = np.append(False, painted)[tiles]
                regions.append(Region(step.text, None, mask, ("captions.0", at, at + len(step.text))))
            at += len(step.text) + bool(step.text)
        caption = " ".join(step.text for step in steps if step.text)
        return Record(self._key(row), board_image(last), (caption,), regions=tuple(regions))

    def keys(self) -> Iterable[str]:
        """`hexagons-` and the index of the procedure, or the row where it has none."""
        return map(self._key, self._rows)

    def fingerprint(self) -> str:
        """sha256 over all procedures."""
        return digest(json.dumps(row.fields.get(PROCEDURE), sort_keys=True) for row in self._rows)

    @staticmethod
    def _key(row: Row) -> str:
        number = row.fields.get("index")
        return f"hexagons-{f'row-{row.number}' if number is None else brief_json(number).strip(chr(34))}"


def board_image(board: np.ndarray) -> Image.Image:
    """A board as an image. board: [180] uint8, colours of the tiles row by row"""
    tiles = tile_map()
    pixels = np.concatenate([[GROUND], COLOURS[board]]).astype(np.uint8)[tiles]
    edge = np.zeros_like(tiles, bool)
    edge[:, 1:] |= tiles[:, 1:] != tiles[:, :-1]
    edge[1:] |= tiles[1:] != tiles[:-1]
    pixels[edge] = EDGE
    return Image.fromarray(pixels)


@lru_cache(maxsize=1)
def tile_map() -> np.ndarray:
    """The tile of each pixel: [H, W] int64, 0 outside the board, else 1 + the place of the tile.

    Flat sides lie above and below; in every second column tiles stand half a tile lower.
    """
    half = RADIUS * 3**0.5 / 2  # of the height of a tile
    height, width = round((2 * ROWS + 1) * half), round((1.5 * COLUMNS + 0.5) * RADIUS)
    place = np.arange(ROWS * COLUMNS)
    row, column = place // COLUMNS, place % COLUMNS
    down = np.abs(np.arange(height)[:, None, None] + 0.5 - half * (2 * row + 1 + column % 2))
    across = np.abs(np.arange(width)[None, :, None] + 0.5 - RADIUS * (1 + 1.5 * column))
    distance = np.maximum(down, across * 3**0.5 / 2 + down / 2)  # of a hexagon, as |x| + |y| is of a diamond
    return np.where(distance.min(-1) <= half, 1 + distance.argmin(-1), 0)


def _steps(value: Any, where: str) -> list[_Step]:
    """The steps of a procedure, the blank board first. Raises CorruptSample."""
    try:
        procedure = _Procedure.of({PROCEDURE: value}).drawing_procedure
    except ValueError as error:
        raise CorruptSample(CORRUPT_ROW, f"{where} (a step is {STEP}: {error})") from None
    steps = [_Step(" ".join(strings(text)), np.array(board)) for _, text, board in procedure]
    if len(steps) < 2 or not any(step.text for step in steps[1:]):
        raise CorruptSample(CORRUPT_ROW, f"{where} (a procedure is a blank board and instructions)")
    return steps
