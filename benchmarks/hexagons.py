"""Boards of hexagonal tiles with the instructions that people drew them by, as a tar for `--suite referring`.

    python -m benchmarks.hexagons $GRAINLINE_DATA/hexagons/dev.jsonl hexagons.tar

Lachmy et al., "Draw Me a Flower", TACL 2022. An image is the last board of a procedure. Each instruction is
an expression; its mask covers the tiles that its step coloured, where the last board still has their colour.
"""

import argparse
import io
import json
import math
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

ROWS, COLUMNS, RADIUS = 10, 18, 12  # pixels from the middle of a tile to a corner
NAMES = "white", "#191919", "#f5d200", "#199632", "#dc1e23", "#1e50dc", "#7d28a5", "#fa820a"
HALF = RADIUS * math.sqrt(3) / 2  # of the height of a tile; every second column stands half a tile lower
SIZE = math.ceil((1.5 * COLUMNS + 0.5) * RADIUS), math.ceil((2 * ROWS + 1) * HALF)


def corners(tile: int) -> list[tuple[float, float]]:
    """The corners of a tile, in pixels. tile: its place, row by row"""
    row, column = divmod(tile, COLUMNS)
    x, y = RADIUS * (1 + 1.5 * column), HALF * (2 * row + 1 + column % 2)
    angles = [math.pi / 3 * k for k in range(6)]
    return [(x + RADIUS * math.cos(angle), y + RADIUS * math.sin(angle)) for angle in angles]


def painted(tiles: np.ndarray) -> np.ndarray:
    """The mask of some tiles: [H, W] bool. tiles: [180] bool"""
    image = Image.new("1", SIZE)
    for tile in np.flatnonzero(tiles):
        ImageDraw.Draw(image).polygon(corners(int(tile)), fill=1)
    return np.asarray(image)


def board(colours: np.ndarray) -> Image.Image:
    """A board as an image. colours: [180], from 0 to 7"""
    image = Image.new("RGB", SIZE, "#e1e1e1")
    for tile, colour in enumerate(colours):
        ImageDraw.Draw(image).polygon(corners(tile), fill=NAMES[colour], outline="#aaaaaa")
    return image


def fields(procedure: dict[str, Any]) -> tuple[Image.Image, dict[str, Any]]:
    """The last board of a procedure, and its caption and regions."""
    texts = [text for _, text, _ in procedure["drawing_procedure"][1:]]
    boards = np.array([colours for *_, colours in procedure["drawing_procedure"]])
    regions = []
    for text, old, new in zip(texts, boards, boards[1:], strict=False):
        mask = painted((new != old) & (new > 0) & (new == boards[-1]))
        if mask.any():
            down, across = np.nonzero(mask)
            box = [int(across.min()), int(down.min()), int(across.max()) + 1, int(down.max()) + 1]
            ends = np.flatnonzero(np.diff(mask.ravel("F"), prepend=0, append=0))  # of runs down the columns
            counts = np.diff(ends, prepend=0, append=mask.size).tolist()
            regions.append({"phrase": text, "box": box, "mask": {"size": mask.shape, "counts": counts}})
    return board(boards[-1]), {"caption": " ".join(texts), "regions": regions}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    with tarfile.open(args.out, "w") as tar:
        for line in args.file.read_text(encoding="utf-8").splitlines():
            procedure = json.loads(line)
            image, texts = fields(procedure)
            png = io.BytesIO()
            image.save(png, "png")
            for kind, data in (("png", png.getvalue()), ("json", json.dumps(texts).encode())):
                member = tarfile.TarInfo(f"hexagons-{procedure['index']:03d}.{kind}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


if __name__ == "__main__":
    main()
