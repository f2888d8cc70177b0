"""Scenes as files: WebDataset tars that any reader of KEY.png and KEY.json understands.

    KEY.png        the image
    KEY.json       captions, long, foils {text, true, kind}, regions {phrase, span, box, mask, thing},
                   things (the attributes of every object), background
    KEY.masks.png  palette image, pixel = thing + 1, 0 for the background

A mask is a run-length code down the columns, {size: [height, width], counts: [zeros, ones, zeros, ...]}.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from grainline.data.decode import as_png
from grainline.data.formats.masks import run_lengths
from grainline.data.pack import write_shard
from grainline.data.scenes.draw import COLOUR
from grainline.data.scenes.source import Scenes, regions
from grainline.errors import UserError


def export(source: Scenes, out: Path, samples_per_shard: int = 1000) -> list[Path]:
    """Write all scenes of a source as `SPLIT-000000.tar`, `SPLIT-000001.tar`, ... into a folder.

    Equal sources give equal bytes. A tar gets its name when it is complete. Raises UserError when the folder
    already holds tars of this split, or cannot be written.
    """
    if samples_per_shard < 1:
        raise UserError(f"{samples_per_shard} samples per shard: it must be at least 1")
    try:
        out.mkdir(parents=True, exist_ok=True)
        existing = sorted(out.glob(f"{source.split}-*.tar"))
        if existing:
            raise UserError(
                f"{out} already holds {existing[0].name}: name an empty folder, or delete the old tars"
            )
        paths = []
        for number, start in enumerate(range(0, len(source), samples_per_shard)):
            rows = range(start, min(start + samples_per_shard, len(source)))
            paths.append(out / f"{source.split}-{number:06d}.tar")
            write_shard(paths[-1], (file for index in rows for file in _members(source, index)))
        return paths
    except OSError as error:
        raise UserError(
            f"cannot write scenes to {out} ({error.strerror or error}): name a writable folder"
        ) from error


def _members(source: Scenes, index: int) -> list[tuple[str, bytes]]:
    record, labels = source[index], source.labels(index)
    assert isinstance(record.image, Image.Image)
    palette = Image.fromarray(labels)
    palette.putpalette([255, 255, 255, *(part for colour in COLOUR.values() for part in colour)])
    text = json.dumps(_facts(source, index, labels), ensure_ascii=False)
    return [
        (f"{record.key}.png", as_png(record.image)),
        (f"{record.key}.json", text.encode()),
        (f"{record.key}.masks.png", as_png(palette)),
    ]


def _facts(source: Scenes, index: int, labels: np.ndarray) -> dict[str, Any]:
    scene, description = source.scene(index), source.description(index)
    codes = [run_lengths(labels == k + 1) for k in range(len(scene.things))]
    phrases = zip(regions(description, labels), (m.thing for m in description.mentions), strict=True)
    return {
        "captions": [description.short],
        "long": description.long,
        "foils": [foil._asdict() for foil in description.foils],
        "regions": [
            {"phrase": r.phrase, "span": r.span, "box": r.box, "mask": codes[thing], "thing": thing}
            for r, thing in phrases
        ],
        "things": [{**thing._asdict(), "position": thing.position} for thing in scene.things],
        "background": scene.background._asdict(),
    }
