"""A tiny model with its tokenizer, folders of small images, and what an index holds, as plain values."""

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from make import TINY
from PIL import Image

from grainline.build import Description, write_description
from grainline.config import Config, override, parse
from grainline.data.tokenizers.tokenizer import Tokenizer
from grainline.index.reader import IndexReader
from grainline.index.store import Row, read_manifest, write_manifest
from grainline.methods import method_class
from grainline.model import Model
from grainline.weights import save_weights

WORDS = ("red", "green", "blue", "dog", "cat", "bird", "runs", "sleeps", "sand", "grass", "tree", "house")
TEXTS = [
    f"A {a} {b} {c}. The {d} is {a}."
    for a in WORDS[:3]
    for b in WORDS[3:6]
    for c in WORDS[6:8]
    for d in WORDS[8:]
]
VOCAB = "text.vocab=540"


CONDITIONED = "scoring=conditioned"


def tiny_model(
    method: str = "maxsim", seed: int = 0, values: dict[str, Any] = TINY, changes: Sequence[str] = ()
) -> Model:
    """A model of random weights that reads images of 8 x 8."""
    config: Config = parse(method_class(method).config_class, override(values, [VOCAB, *changes]), "test")
    torch.manual_seed(seed)
    made = method_class(method)(config)  # type: ignore[call-arg]
    return Model(Description(method, config), made, Tokenizer.train(TEXTS, vocab=540))


def saved(model: Model, folder: Path) -> Path:
    """The model as a folder that `load` reads."""
    folder.mkdir(parents=True)
    write_description(folder, model.description)
    model.tokenizer.save(folder)
    save_weights(folder / "model.safetensors", model.method)
    return folder


def texts(folder: Path, number: int = 24) -> str:
    """A file of calibration texts."""
    path = folder / "null.txt"
    path.write_text("\n".join(TEXTS[:number]) + "\n")
    return str(path)


def photo(path: Path, seed: int) -> Path:
    """An image of random pixels, another one for each seed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (10, 12, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def photos(folder: Path, number: int) -> Path:
    """A folder of so many images, some of them in a folder below."""
    for i in range(number):
        photo(folder / ("" if i % 3 else "below") / f"{i:02}.png", i)
    return folder


def content(folder: Path) -> dict[str, tuple[Row, str]]:
    """Every live row by its path, with a digest of all that is stored for it. Checks every sha256."""
    opened = IndexReader(folder, thorough=True)
    out = {}
    for (number, line), row in zip(opened.locations.tolist(), opened.rows, strict=True):
        total = hashlib.sha256()
        for name, array in sorted(opened.segments[number].arrays.items()):
            total.update(name.encode() + np.ascontiguousarray(array[line]).tobytes())
        out[row.path] = (row, total.hexdigest())
    assert len(out) == len(opened), "an image stands in the index once"
    return out


def tree(folder: Path) -> dict[str, bytes]:
    """All files of an index but the lock, whose number is that of a process."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


def copied(made: Path, target: Path) -> Path:
    """A copy of images, and of the index as one of these."""
    shutil.copytree(made, target)
    manifest = read_manifest(target / "index")
    write_manifest(target / "index", manifest._replace(root=str((target / "photos").resolve())))
    return target
