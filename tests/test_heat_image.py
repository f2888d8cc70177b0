"""Heat and masks over whole images at their own resolution, other texts, and `show` for every method."""

import json
import re
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from indexes import TEXTS, saved, tiny_model
from PIL import Image
from runs import call
from test_viz import Page

from grainline.data.transforms import Box, EvalTransform
from grainline.evaluation.show_panels import Photo, heat_rows
from grainline.methods import METHODS
from grainline.methods.heat import heat_overlay, mask_of, over_image, read_area
from grainline.model import Model
from grainline.report.heatmap import FOR
from grainline.types import Encoded

Capture = pytest.CaptureFixture[str]
WIDE = (30, 20)


class Spot:
    """Stands in for the heat of a method: text 0 is on the upper left patch, the others are on nothing."""

    def __init__(self, strength: float) -> None:
        self.strength = strength

    def __call__(self, images: Encoded, texts: Encoded) -> torch.Tensor:
        heat = torch.zeros(len(texts.vector), images.tokens.shape[1])
        if len(texts.vector) < 16:
            heat[0, 0] = self.strength
        else:
            heat[torch.arange(len(heat)), torch.arange(len(heat)) % heat.shape[1]] = 0.1
        return heat


def spotted(strength: float) -> Model:
    model = tiny_model("clip")
    model.method.heat = Spot(strength)  # type: ignore[method-assign, assignment]
    return model


def photo(folder: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (WIDE[1], WIDE[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "wide.png")
    return folder / "wide.png"


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (64, 64), (90, 31)])
@pytest.mark.parametrize(
    "transform", [EvalTransform(64), EvalTransform(64, "squash"), EvalTransform(64, margin=1.5)]
)
def test_the_area_that_is_read_is_where_the_square_lies(
    transform: EvalTransform, size: tuple[int, int]
) -> None:
    area = read_area(transform, size)
    placed = transform.place(area, size)
    unit = max(64 / (area.right - area.left), 64 / (area.bottom - area.top))
    assert np.abs(np.array(placed) - (0, 0, 64, 64)).max() <= 2 * unit
    assert 0 <= area.left < area.right <= size[0]
    assert 0 <= area.top < area.bottom <= size[1]


def test_heat_lies_on_the_area_that_is_read_and_the_rest_is_dark(tmp_path: Path) -> None:
    model = spotted(5.0)
    path = photo(tmp_path)
    drawn = model.heat_image(path, "A dog.", null=TEXTS[:20])
    with Image.open(path) as opened:
        plain = np.asarray(opened.convert("RGB")).astype(int)
    pixels = np.asarray(drawn).astype(int)
    assert drawn.size == WIDE
    toward = np.abs(pixels - FOR).sum(2) <= np.abs(plain - FOR).sum(2)
    assert toward[:3, 5:9].all(), "orange begins where the square begins, in column 5"
    assert (pixels[15:, 21:24, 2] > pixels[15:, 21:24, 0]).mean() > 0.6, "blue where less"
    for outside in (pixels[:, :4], pixels[:, 26:]):
        assert (outside == outside[..., :1]).all(), "grey"
        assert outside.max() <= 0.3 * 255 + 1
    assert (pixels[:, 4] == 255).all(), "a thin line"
    assert [one.size for one in model.heat_image(path, ["A dog.", "A cat."], null=TEXTS[:20])] == [WIDE] * 2


def test_a_mask_is_what_stands_out_and_empty_where_nothing_does(tmp_path: Path) -> None:
    path = photo(tmp_path)
    mask = spotted(5.0).segment(path, "A dog.", null=TEXTS[:20])
    assert mask.shape == (WIDE[1], WIDE[0])
    assert mask.dtype == bool
    assert mask[:5, 5:10].all()
    assert not mask[:, :5].any()
    assert not mask[10:, 15:].any()
    assert not spotted(0.01).segment(path, "A dog.", null=TEXTS[:20]).any()
    assert spotted(5.0).segment(path, ["A dog.", "A cat."], null=TEXTS[:20]).shape == (2, WIDE[1], WIDE[0])
    low = np.full((4, 4), -3.0, np.float32)
    low[0] = 0.9
    assert not mask_of(low, Box(0, 0, 4, 4)).any()
    weak = np.full((4, 4), -3.0, np.float32)
    weak[0], weak[1] = 1.1, 0.3
    rows = mask_of(weak, Box(0, 0, 4, 4)).nonzero()[0].tolist()
    assert rows == [0] * 4, "0.3 is no contrast, whatever Otsu says"


@pytest.mark.parametrize(("rank", "weak"), [(26, True), (25, False)])
def test_a_run_near_chance_says_so_beside_its_heat(tmp_path: Path, rank: float, weak: bool) -> None:
    run = saved(tiny_model(), tmp_path / "run")
    metrics = {"text to image median rank": rank}
    line = {"kind": "validation", "step": 2, "images": 100, "metrics": metrics}
    (run / "log.jsonl").write_text(json.dumps(line) + "\n")
    image, said = str(photo(tmp_path)), f"near chance: .* at rank {rank} of 100"
    model = Model(tiny_model().description, tiny_model().method, tiny_model().tokenizer, run=run)
    for ask in (model.heat_image, model.segment):
        with pytest.warns(UserWarning, match=said) if weak else nullcontext() as warned:
            ask(image, "A red dog.")
        assert warned is None or Path(warned[0].filename) == Path(__file__)
    page = tmp_path / "show.html"
    assert call("show", run, image, "--text", "A red dog.", "--out", page) == 0
    assert bool(re.search(said, page.read_text())) == weak


def test_each_sentence_and_phrase_has_a_map_over_the_whole_image(tmp_path: Path) -> None:
    model, path = spotted(5.0), photo(tmp_path)
    with Image.open(path) as opened:
        image = opened.convert("RGB")
    area = read_area(model.transform, WIDE)
    one = Photo(str(path), image, model.cropped(path), area)
    first, second = heat_rows(model, one, ["A red dog runs. The cat sleeps."], model.encode(texts=TEXTS[:20]))
    assert [panel.words[:5] for panel in first.panels] == ["A red", "“A re"]
    assert second.panels[0].words == "The cat sleeps."
    assert "no contrast" not in first.panels[0].below
    assert all(panel.below.endswith(", no contrast") for panel in (*first.panels[1:], *second.panels))
    assert first.panels[0].alt == "heat of 'A red dog runs.': strongest at the upper left"
    encoded = model.encode(images=[path])
    flat = over_image(model.method, encoded, torch.zeros(4), area, WIDE)
    assert first.panels[1].image.tobytes() == heat_overlay(image, flat, area).tobytes()


@pytest.mark.parametrize("method", METHODS)
def test_every_method_shows_where_texts_are(method: str, tmp_path: Path, capsys: Capture) -> None:
    changes = {"caft": ("heads=2", "composer.depth=1", "composer.heads=2"), "flair": ("heads=2",)}
    changes |= {"tgt": ("text.groups=3", "text.later=1")}
    model = saved(tiny_model(method, changes=changes.get(method, ())), tmp_path / "model")
    (tmp_path / "dense.jsonl").write_text('{"image_id": "wide.png", "text": "A dog."}\n')
    png, html = tmp_path / "x.png", tmp_path / "x.html"
    more = ("--descriptions", tmp_path / "dense.jsonl") if method == "seps" else ()
    line = ("show", model, photo(tmp_path), "--text", "A red dog runs.", "--out", png, "--out", html, *more)
    assert call(*line) == 0, capsys.readouterr().err
    words = Page(html.read_text()).words
    assert "What is dark outside the line is not read by the model." in words
    weighs = method in ("caft", "flair")
    assert ("of photographs and of drawn scenes" in words) != weighs
    assert ("empty slot 0." in words) == weighs
    with Image.open(png) as figure:
        assert figure.width > 1000
