"""Superpixels made once: what is stored comes back in training, and nothing that does not fit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runs import call
from test_dataset import TOKENIZER
from test_pack import Listed
from torch import Tensor

from grainline.data.batches import collate
from grainline.data.cache import SUPERPIXELS, CachedSuperpixels, Views, digest, make
from grainline.data.dataset import Draw, TrainSet
from grainline.data.open_source import open_source
from grainline.data.record import Cause, Record
from grainline.data.texts import TextsConfig
from grainline.data.transforms import EvalTransform, SameTransform, TrainTransform
from grainline.errors import UserError
from grainline.nn.superpixels import kmeans, neighbour_of, square_grid

SCENES = "scenes:dev?count=5"
SETTINGS = {"kind": "kmeans", "cell": 16, "compactness": 10.0, "iterations": 10}


def segment(pixels: Tensor) -> Tensor:
    return kmeans(pixels, 16)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grainline.data.cache.BATCH", 2)


def command(out: Path, *more: str) -> int:
    return call("data", "superpixels", SCENES, "--out", str(out), "--size", "64", *more)


def make_superpixels(source: Any, segment: Any, out: Path, *, size: int, settings: Any) -> Any:
    """Write the superpixels of a source as `write_superpixels` does, by another function."""

    def neighbours(pixels: Tensor) -> Tensor:
        return neighbour_of(segment(pixels), settings["cell"]).to(torch.uint8)

    views = Views(EvalTransform(size))
    return make(SUPERPIXELS, source, neighbours, out, views, row=(size, size), settings=settings)


def stored(folder: Path, source: Any, size: int = 64, **changes: Any) -> CachedSuperpixels:
    return CachedSuperpixels(folder, source, EvalTransform(size), SETTINGS | changes)


@pytest.mark.usefixtures("small_batches")
def test_training_sees_the_superpixels_of_its_own_squares(tmp_path: Path) -> None:
    out = tmp_path / "maps"
    assert command(out) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["maps"]
    assert sorted(path.name for path in out.iterdir()) == ["keys.npy", "neighbours.npy", "superpixels.json"]
    codes = np.load(out / "neighbours.npy", mmap_mode="r")
    assert codes.dtype == np.uint8
    assert codes.max() <= 8
    source = open_source(SCENES, size=64)
    crop = SameTransform(EvalTransform(64), stored(out, source).label)
    data = TrainSet(source, TOKENIZER, crop, TextsConfig(), context=16, seed=0)
    batch = collate([data[Draw(0, 0, 4)], data[Draw(1, 0, 1)]])
    assert batch.images.regions is not None
    assert batch.images.regions.dtype == torch.int64
    assert torch.equal(batch.images.regions, segment(batch.images.pixels))
    assert not torch.equal(batch.images.regions, square_grid(batch.images.pixels, 16))
    plain = TrainSet(source, TOKENIZER, TrainTransform(64), TextsConfig(), context=16, seed=0)
    assert collate([plain[Draw(0, 0, 4)]]).images.regions is None


def test_records_without_an_image_are_left_out_and_reported(tmp_path: Path) -> None:
    image = open_source(SCENES, size=64)[0].image
    listed = Listed([Record("a", image, ("A.",)), Cause.MISSING_CAPTION, Record("c", image, ("C.",))])
    made = make_superpixels(listed, segment, tmp_path / "maps", size=64, settings=SETTINGS)
    assert (made.counts, made.skipped) == ({"image": 2}, {"without an image": 1})
    actual = stored(tmp_path / "maps", listed)
    pixels = EvalTransform(64)(image)[None]
    assert torch.equal(actual.label(2, "c"), segment(pixels)[0])
    with pytest.raises(UserError, match="b has no superpixels"):
        actual.label(1, "b")
    with pytest.raises(UserError, match="a has the superpixels of another image"):
        actual.label(2, "a")
    assert digest("a") != digest("c")


def test_maps_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "maps"
    source = open_source(SCENES, size=64)
    make_superpixels(source, segment, out, size=64, settings=SETTINGS)
    with pytest.raises(UserError, match="images of 64 pixels, and the model sees 32"):
        stored(out, source, 32)
    with pytest.raises(UserError, match=r"cell 16, .* and the model has .*cell 8"):
        stored(out, source, cell=8)
    with pytest.raises(UserError, match="other data"):
        stored(out, open_source("scenes:dev?count=6", size=64))
    with pytest.raises(UserError, match="other squares"):
        CachedSuperpixels(out, source, EvalTransform(64, "squash"), SETTINGS)
    with pytest.raises(UserError, match="holds no superpixels"):
        stored(tmp_path, source)
    np.save(out / "keys.npy", np.zeros(3, np.uint64))
    with pytest.raises(UserError, match=r"\(3,\), not \(5,\)"):
        stored(out, source)
    (out / "neighbours.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(UserError, match="cannot be read"):
        stored(out, source)
