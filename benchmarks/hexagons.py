"""Boards of hexagonal tiles with the instructions that people drew them by, as a tar for `--suite referring`.

    python -m benchmarks.hexagons $GRAINLINE_DATA/hexagons/dev.jsonl hexagons.tar

Lachmy et al., "Draw Me a Flower", TACL 2022. An image is the last board of a procedure. Each instruction is
an expression; its mask covers the tiles that its step coloured, where the last board still has their colour.
"""

import argparse
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from grainline.data.decode import as_png, decode
from grainline.data.pack import fields_of, write_shard
from grainline.data.record import Record, Region

ROWS, COLUMNS, RADIUS = 10, 18, 12  # pixels from the middle of a tile to a corner
COLOURS = "white", "#191919", "#f5d200", "#199632", "#dc1e23", "#1e50dc", "#7d28a5", "#fa820a"
HALF = RADIUS * math.sqrt(3) / 2  # of the height of a tile; every second column stands half a tile lower
SIZE = math.ceil((1.5 * COLUMNS + 0.5) * RADIUS), math.ceil((2 * ROWS + 1) * HALF)


def corners(tile: int) -> list[tuple[float, float]]:
    """The corners of a tile, in pixels. tile: its place, row by row"""
    row, column = divmod(tile, COLUMNS)
    x, y = RADIUS * (1 + 1.5 * column), HALF * (2 * row + 1 + column % 2)
    angles = [math.pi / 3 * k for k in range(6)]
    return [(x + RADIUS * math.cos(angle), y + RADIUS * math.sin(angle)) for angle in angles]


def mask_of(tiles: np.ndarray) -> np.ndarray:
    """The mask of some tiles: [H, W] bool. tiles: [180] bool"""
    image = Image.new("1", SIZE)
    for tile in np.flatnonzero(tiles):
        ImageDraw.Draw(image).polygon(corners(int(tile)), fill=1)
    return np.asarray(image)


def board(colours: np.ndarray) -> Image.Image:
    """A board as an image. colours: [180], from 0 to 7"""
    image = Image.new("RGB", SIZE, "#e1e1e1")
    for tile, colour in enumerate(colours):
        ImageDraw.Draw(image).polygon(corners(tile), fill=COLOURS[colour], outline="#aaaaaa")
    return image


def record_of(procedure: dict[str, Any]) -> Record:
    """The last board of a procedure with its instructions; the mask of each is [H, W] bool."""
    texts = [text for _, text, _ in procedure["drawing_procedure"][1:]]
    boards = np.array([colours for *_, colours in procedure["drawing_procedure"]])
    regions = []
    for text, old, new in zip(texts, boards, boards[1:], strict=False):
        mask = mask_of((new != old) & (new > 0) & (new == boards[-1]))
        if mask.any():
            regions.append(Region(text, mask=mask))
    key = f"hexagons-{procedure['index']:03d}"
    return Record(key, board(boards[-1]), (" ".join(texts),), regions=tuple(regions))


def files(lines: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """The members of the tar: an image and its texts of each procedure."""
    for record in (record_of(json.loads(line)) for line in lines):
        yield f"{record.key}.png", as_png(decode(record))
        yield f"{record.key}.json", json.dumps(fields_of(record)).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    write_shard(args.out, files(args.file.read_text(encoding="utf-8").splitlines()))


if __name__ == "__main__":
    main()
