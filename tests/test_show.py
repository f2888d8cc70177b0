"""Segments with borders, where texts look on one scale, and the command `show`, against loops."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from indexes import photo, saved, tiny_model
from make import SEGMENTS, TINY
from PIL import Image
from runs import call, complaint
from test_viz import EVIL, Page

from grainline.data.texts import balanced_chunks
from grainline.data.transforms import Box
from grainline.encoders.cast import segments
from grainline.errors import UserError
from grainline.evaluation.examples import attention_of
from grainline.evaluation.show import check_texts
from grainline.evaluation.show_panels import (
    TIMES,
    Photo,
    attention_maps,
    end_of_scale,
    segment_panels,
    segmentations,
)
from grainline.methods.base import parts_of
from grainline.methods.caft import CAFT
from grainline.model import Model
from grainline.report.heatmap import borders, enlarged, mean_colours, overlay
from grainline.types import Images

Capture = pytest.CaptureFixture[str]
CAFT_CHANGES = ("heads=2", "composer.depth=1", "composer.heads=2")
ALL = Box(0, 0, 8, 8)
LONG = "A red dog runs. The cat sleeps. A blue bird. Sand, grass. The house is green."


def segmenting(seed: int = 0) -> Model:
    return tiny_model("caft", seed, SEGMENTS, CAFT_CHANGES)


def square(model: Model, folder: Path, seed: int = 0) -> Image.Image:
    return model.cropped(photo(folder / f"{seed}.png", seed))


def whole(views: Image.Image, folder: Path) -> Photo:
    """A square as an image that is read whole."""
    views.save(folder / "square.png")
    return Photo(str(folder / "square.png"), views, views, ALL)


# Segments


def slow_line(label: np.ndarray, y: int, x: int, width: int) -> bool:
    """Whether a window of width + 1 pixels around a pixel, with more of them behind it, has two segments."""
    height, wide = label.shape
    around = range(-(width // 2), width - width // 2 + 1)
    views = {
        label[min(max(y + dy, 0), height - 1), min(max(x + dx, 0), wide - 1)]
        for dy in around
        for dx in around
    }
    return len(views) > 1


def test_borders_and_colours_are_those_of_loops() -> None:
    rng = np.random.default_rng(0)
    label = enlarged(rng.integers(0, 4, (3, 3)), 12)
    for width in range(5):
        slowly = [[slow_line(label, y, x, width) for x in range(12)] for y in range(12)]
        assert borders(label, width).tolist() == slowly
    one = np.array([[0, 0, 0, 0, 1, 1, 1, 1]] * 8)
    assert [int(borders(one, width)[0].sum()) for width in range(5)] == [0, 1, 2, 3, 4]
    pixels = rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)
    got = mean_colours(pixels, label)
    for y in range(12):
        for x in range(12):
            ours = pixels[label == label[y, x]].astype(np.float64)
            assert np.abs(got[y, x] - ours.mean(0)).max() <= 0.5


def test_segmentations_are_nested_and_the_stage_that_is_read_is_what_places_say(tmp_path: Path) -> None:
    model = segmenting()
    views = square(model, tmp_path)
    maps = segmentations(model, views)
    assert [len(np.unique(one)) for one in maps] == [16, 6, 4, 2]
    for finer, coarser in pairwise(maps):
        assert all(len(np.unique(coarser[finer == k])) == 1 for k in np.unique(finer))
    method = model.method
    assert isinstance(method, CAFT)
    places = model.encode(images=[views]).places
    assert places is not None
    assert np.array_equal(maps[1], places[0])
    pixels = torch.from_numpy(np.array(views)).permute(2, 0, 1)[None]
    with torch.no_grad():
        own = segments(method.towers.image(pixels))
        regions = method.towers.segmentations(Images(pixels, torch.zeros(1).long(), own[0].flip(2)))
    assert torch.equal(regions[0], own[0].flip(2)), "superpixels that are there are not made again"
    assert segmentations(tiny_model("caft", changes=CAFT_CHANGES), views) == []
    assert segmentations(tiny_model("clip"), views) == []


# Where texts look


@pytest.mark.parametrize("values", [TINY, SEGMENTS], ids=["patches", "segments"])
def test_each_part_looks_as_it_would_alone(values: dict[str, object], tmp_path: Path) -> None:
    model = tiny_model("caft", 0, values, CAFT_CHANGES)
    views = square(model, tmp_path)
    (got,) = attention_maps(model, views, [LONG], ALL, (8, 8))
    method = model.method
    assert isinstance(method, CAFT)
    words = balanced_chunks(LONG, 4, method.chunking)
    assert [part.words for part, _ in got] == words
    images = model.encode(images=[views])
    for part, heat in got:
        alone = method.attention(images, model.encode(texts=[part.words]))[0, 0].detach()
        whole = method.attention(images, model.encode(texts=[LONG]))[0, words.index(part.words)]
        assert torch.allclose(part.weight, whole.detach(), atol=1e-6)
        assert part.weight.sum() == pytest.approx(1, abs=1e-5)
        assert part.empty == pytest.approx(1 - float(part.weight[:-1].sum()), abs=1e-5)
        assert torch.allclose(part.weight, alone, atol=1e-5) == (part is not got[0][0]), (
            "that is two sentences"
        )
        if images.places is not None:
            slowly = [[float(part.weight[int(images.places[0, y, x])]) for x in range(8)] for y in range(8)]
            np.testing.assert_allclose(heat, slowly, atol=1e-6)


def test_a_part_that_a_short_text_repeats_is_shown_once_and_means_of_chunks_are_whole_texts(
    tmp_path: Path,
) -> None:
    model = segmenting()
    images = model.encode(images=[square(model, tmp_path)])
    named = model.encode(texts=["A red dog. The cat."])
    ((first, second),) = attention_of(model.method, images, named, ["A red dog. The cat."])
    assert [first.words, second.words] == ["A red dog", "The cat."]
    averaged = tiny_model("flair", changes=("heads=2", "chunks=2")).method
    assert parts_of(averaged, LONG, 1) == [LONG]
    assert parts_of(tiny_model("flair").method, LONG, 1) == [LONG]


def test_all_maps_of_a_figure_are_on_one_scale(tmp_path: Path) -> None:
    model = segmenting()
    views = square(model, tmp_path)
    limit = end_of_scale(model, views)
    assert limit == min(1, TIMES / 6) == 1
    for end in (limit, 0.2):
        texts = [LONG, "The cat sleeps."]
        rows = segment_panels(model, whole(views, tmp_path), texts, end).rows
        stages, *got = (row.panels for row in rows)
        assert [len(row) for row in (stages, *got)] == [5, 4, 1]
        assert [panel.words[:4] for panel in got[0]] == ["1.1 ", "1.2 ", "1.3 ", "1.4 "]
        assert got[1][0].words == "2  The cat sleeps."
        parts = [one for text in attention_maps(model, views, texts, ALL, (8, 8)) for one in text]
        for panel, (part, heat) in zip([*got[0], *got[1]], parts, strict=True):
            assert panel.below == f"empty slot {part.empty:.2f}"
            drawn = np.asarray(overlay(views, heat, end))
            assert np.array_equal(np.asarray(panel.image), drawn)
    assert [panel.words for panel in stages] == [
        "the image",
        "16 superpixels",
        "6 segments",
        "4 segments",
        "2 segments",
    ]


# The figure, the page and the command


def run(folder: Path, model: Model, *given: object) -> Sequence[object]:
    place = folder / "model"
    if not place.exists():
        saved(model, place)
    return ("show", place, photo(folder / "a.png", 1), photo(folder / "b.png", 2), *given)


def tall(png: Path) -> int:
    with Image.open(png) as figure:
        return figure.height


def test_the_command_writes_a_figure_and_a_page(tmp_path: Path, capsys: Capture) -> None:
    model, png, html = segmenting(), tmp_path / "x.png", tmp_path / "x.html"
    given = run(tmp_path, model, "--text", LONG, EVIL, "--out", png, "--out", html)
    assert call(*given) == 0
    assert capsys.readouterr().out.count("written: ") == 2
    words = Page(html.read_text()).words
    for part in (
        "16 superpixels",
        "2 segments",
        "1.4 ",
        "empty slot 0.",
        "full orange 1 or more",
        "sum to 1",
    ):
        assert part in words
    assert "longer than the model reads" in words
    large = tall(png)
    assert call(*run(tmp_path, model, "--out", png)) == 0
    assert tall(png) < large
    assert call(*run(tmp_path, model, "--text", LONG, "--scale", "0.05", "--out", html)) == 0
    assert "full orange 0.05" in Page(html.read_text()).words


def test_what_cannot_be_shown_is_one_line(tmp_path: Path, capsys: Capture) -> None:
    model = segmenting()
    out = ("--out", tmp_path / "x.html")
    assert complaint(capsys, *run(tmp_path, model)).endswith("give --out FILE.png, --out FILE.html or both")
    for wrong in ("0", "1.5"):
        said = complaint(capsys, *run(tmp_path, model, *out, "--text", "a", "--scale", wrong))
        assert f"--scale is {wrong}; it is a weight above 0" in said
    assert "goes with --text" in complaint(capsys, *run(tmp_path, model, *out, "--scale", "0.5"))
    assert "--text number 2 has no words" in complaint(
        capsys, *run(tmp_path, model, *out, "--text", "a", " ")
    )
    with pytest.raises(UserError, match=r"^this flair sees patches, not segments; give --text"):
        check_texts(tiny_model("flair", changes=("heads=2",)), [])
    (tmp_path / "c.png").write_text("no image")
    assert "cannot be used: corrupt image" in complaint(
        capsys, "show", tmp_path / "model", tmp_path / "c.png", *out
    )
    assert not (tmp_path / "x.html").exists()
