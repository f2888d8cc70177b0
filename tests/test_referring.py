"""Referring segmentation against loops: thresholds, overlaps, outcomes, metrics, expressions of scenes."""

import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from indexes import tiny_model
from PIL import Image
from test_intervals import interval
from test_scenes import fits
from test_scenes import read as understood

from grainline.data.formats.parsed import run_lengths
from grainline.data.open_source import open_source
from grainline.data.record import Record
from grainline.data.scenes.source import Scenes
from grainline.errors import UserError
from grainline.evaluation.encode import Encodings
from grainline.evaluation.result import Result
from grainline.evaluation.statistics import wilson
from grainline.evaluation.suite import Settings
from grainline.evaluation.suites.referring import BOX, WHOLE, ReferringSuite, centred_box, overlap
from grainline.model import Model
from grainline.nn.upsample import BINS, otsu_mask, thresholds, unit_range

SCENES = "scenes:dev?count=3&size=40"


def measure(model: Model, source: Any, batch: int = 2, max_corrupt: float = 0.0) -> tuple[Encodings, Result]:
    suite, settings = ReferringSuite(), Settings(resamples=50, batch_size=batch, max_corrupt=max_corrupt)
    data = suite.encode(model, source, settings)
    return data, suite.measure(model.method, data, settings)


# From heat to a mask


def slow_threshold(values: Sequence[float]) -> float:
    """Every threshold tried, with exact fractions."""
    low, high = min(values), max(values)
    if low == high:
        return 1.0
    bins = [next(k for k in range(BINS) if (v - low) / (high - low) <= (k + 1) / BINS) for v in values]
    best, got = Fraction(0), 1.0
    for k in range(BINS - 1):
        below, above = [b for b in bins if b <= k], [b for b in bins if b > k]
        if below and above:
            apart = Fraction(sum(below), len(below)) - Fraction(sum(above), len(above))
            between = Fraction(len(below) * len(above), len(bins) ** 2) * apart**2
            if between > best:  # not >=: the lowest of equals
                best, got = between, (k + 1) / BINS
    return got


def test_otsus_threshold_is_that_of_brute_force() -> None:
    generator = torch.Generator().manual_seed(0)
    maps = torch.cat(
        [
            torch.randn(3, 5, 7, generator=generator),
            torch.randn(2, 5, 7, generator=generator).round(decimals=1),
            torch.softmax(4 * torch.randn(2, 35, generator=generator), 1).view(2, 5, 7),  # a distribution
            torch.linspace(-1, 0, 35).view(1, 5, 7),
        ]
    )
    got = thresholds(unit_range(maps))
    # in float64 on both sides: what lies at an edge must not depend on how it was stretched
    assert got.tolist() == [slow_threshold(one.double().flatten().tolist()) for one in maps]
    assert len(set(got.tolist())) > 4
    alone = torch.cat([thresholds(unit_range(one[None])) for one in maps])
    assert torch.equal(alone, got), "maps know nothing of each other"


def test_a_map_that_is_the_same_everywhere_marks_nothing() -> None:
    flat = torch.full((2, 3, 4), -0.7)
    flat[1, 0, 0] = 0.5
    assert thresholds(unit_range(flat))[0] == 1
    assert otsu_mask(flat).sum((1, 2)).tolist() == [0, 1]


def test_overlaps_and_the_box_are_those_of_loops() -> None:
    a, b = torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(2)) > 0.5
    both, either = overlap(a, b)
    for n in range(3):
        pixels = [(a[n, y, x].item(), b[n, y, x].item()) for y in range(4) for x in range(5)]
        assert both[n] == sum(p and q for p, q in pixels)
        assert either[n] == sum(p or q for p, q in pixels)
    for height, width in ((4, 6), (5, 7), (6, 9), (1, 1), (40, 30)):
        slowly = [
            [
                height / 4 < y + 0.5 < 3 * height / 4 and width / 4 < x + 0.5 < 3 * width / 4
                for x in range(width)
            ]
            for y in range(height)
        ]
        assert centred_box(height, width).tolist() == slowly


# Outcomes


def slow_outcomes(model: Model, source: Any) -> list[tuple[int, int, int, int]]:
    """Image, region, intersection and union, one text and one pixel at a time."""
    out = []
    side = model.method.size
    for n in range(len(source)):
        record = source[n]
        image = record.image if isinstance(record.image, Image.Image) else Image.open(Path(record.key))
        pressed = image.convert("RGB").resize((side, side), Image.Resampling.BICUBIC)
        for k, region in enumerate(record.regions):
            if region.mask is None or not region.mask.any():
                continue
            images, texts = model.encode(images=[pressed]), model.encode(texts=[region.phrase])
            with torch.no_grad():
                heat = model.method.heat(images, texts)
            grid = heat.view(1, 1, *(model.method.grid or ()))
            spread = F.interpolate(grid, size=region.mask.shape, mode="bilinear", align_corners=False)[0, 0]
            values = spread.double().flatten().tolist()
            cut, low, high = slow_threshold(values), min(values), max(values)
            ours = [high > low and (value - low) / (high - low) > cut for value in values]
            true = region.mask.flatten().tolist()
            both = sum(p and q for p, q in zip(ours, true, strict=True))
            out.append((n, k, both, sum(p or q for p, q in zip(ours, true, strict=True))))
    return out


def expected(source: Any) -> Any:
    """The first two expressions of each image: the loop is slow."""

    class First:
        path = source.path

        def __len__(self) -> int:
            return len(source)

        def __getitem__(self, index: int) -> Record:
            record = source[index]
            return record._replace(regions=record.regions[1:3])

        def fingerprint(self) -> str:
            return "first"

    return First()


@pytest.mark.parametrize("method", ["clip", "maxsim", "beta_clip"])
def test_outcomes_are_those_of_a_loop(method: str) -> None:
    model, source = tiny_model(method), expected(Scenes(SCENES).with_expressions())
    data, result = measure(model, source)
    wanted = slow_outcomes(model, source)
    named = result.queries
    scores = named["scores"]
    got = zip(named["image"], named["region"], scores["intersection"], scores["union"], strict=True)
    assert list(got) == wanted
    assert [one.text for one in data.collected["referring"].expressions] == [
        source[n].regions[k].phrase for n, k, *_ in wanted
    ]
    assert data.images.tokens.shape[1] == 0, "no tokens are kept"
    for i, (n, k, _, _) in enumerate(wanted):
        mask = source[n].regions[k].mask
        assert named["trivial"][WHOLE]["intersection"][i] == mask.sum()
        assert named["trivial"][WHOLE]["union"][i] == mask.size
        box = np.zeros_like(mask)
        box[10:30, 10:30] = True
        assert named["trivial"][BOX]["intersection"][i] == (mask & box).sum()
        assert named["trivial"][BOX]["union"][i] == (mask | box).sum()


def rows_file(folder: Path, rows: Sequence[dict[str, Any]], size: tuple[int, int] = (32, 12)) -> Any:
    """Images wider than high, with regions."""
    for i, row in enumerate(rows):
        pixels = np.random.default_rng(i).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / row["image"])
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return open_source(str(folder / "rows.jsonl"))


def test_the_whole_image_is_scored_whatever_the_model_crops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model("clip")
    assert model.transform.resize == "crop"
    mask = np.zeros((12, 32), bool)
    mask[2:9, :5] = True  # left of the middle square
    regions = [{"phrase": "a red dog", "mask": run_lengths(mask)}, {"phrase": "a cat"}]
    regions += [{"phrase": "a dog", "mask": run_lengths(~mask & False)}]
    source = rows_file(tmp_path, [{"image": "a.png", "caption": "A dog.", "regions": regions}])
    _, result = measure(model, source)
    monkeypatch.chdir(tmp_path)
    ((_, _, both, either),) = slow_outcomes(model, source)
    assert result.queries["scores"] == {"intersection": [both], "union": [either]}
    assert result.notes[:2] == (
        "1 regions have no mask and were skipped",
        "1 regions have a mask without a pixel and were skipped",
    )
    assert (result.data["expressions"], result.data["texts"]) == (1, 1)
    assert model.transform.resize == "crop", "the model itself is left alone"
    assert model.pressed().transform.resize == "squash"
    assert model.pressed().transform.filter == model.transform.filter


def test_a_mask_of_another_size_is_damage(tmp_path: Path) -> None:
    good, bad = ({"phrase": "a dog", "mask": {"size": [12, w], "counts": [5, 12 * w - 5]}} for w in (32, 31))
    rows = [{"image": f"{name}.png", "caption": "A dog.", "regions": [good]} for name in "abc"]
    rows[1]["regions"] = [good, bad]
    data, result = measure(tiny_model("clip"), rows_file(tmp_path, rows), max_corrupt=0.5)
    assert data.damaged == {"corrupt region": 1}
    assert "b.png (32 x 12 pixels, a mask has 31 x 12)" in data.damaged_first[0]
    assert (data.keys, result.queries["image"]) == (("a.png", "c.png"), [0, 1])
    assert len(data.images.vector) == len(data.strings) == 2


def test_equal_files_are_one_image_and_cut_texts_count_once(tmp_path: Path) -> None:
    mask = run_lengths(np.eye(12, 32, dtype=bool))
    long = "a red dog runs on sand and grass " * 9
    regions = [{"phrase": long, "mask": mask}, {"phrase": "a cat", "mask": mask}]
    rows = [{"image": f"{name}.png", "caption": "A dog.", "regions": regions} for name in "abc"]
    rows_file(tmp_path, rows)
    (tmp_path / "c.png").write_bytes((tmp_path / "a.png").read_bytes())
    source = open_source(str(tmp_path / "rows.jsonl"))
    for batch in (1, 2, 64):
        _, result = measure(tiny_model("clip"), source, batch)
        assert result.queries["image"] == [0, 0, 1, 1, 0, 0]
        assert result.data["cut_texts"] == 1


def test_a_map_without_shape_is_counted() -> None:
    model = tiny_model("clip")
    model.method.heat = lambda images, _: torch.zeros(images.tokens.shape[:2])  # type: ignore[method-assign]
    _, result = measure(model, Scenes(SCENES))
    number = result.data["expressions"]
    assert result.metric("mIoU").value == 0
    assert f"{number} maps are the same everywhere, so their masks are empty" in result.notes
    model.method.heat = lambda images, _: torch.full(images.tokens.shape[:2], torch.nan)  # type: ignore[method-assign]
    with pytest.raises(UserError, match="scores are not a number"):
        measure(model, Scenes(SCENES))


# Metrics


def test_metrics_are_means_over_expressions_sums_and_shares() -> None:
    one = {"intersection": [5, 1, 0, 10], "union": [10, 4, 7, 10]}
    trivial = {
        WHOLE: {"intersection": [5, 4, 7, 10], "union": [20, 20, 20, 20]},
        BOX: {"intersection": [0, 2, 0, 4], "union": [9, 8, 7, 11]},
    }
    query = {"image": [0, 0, 1, 2], "scores": one, "trivial": trivial}
    settings = Settings(resamples=200)
    cells = ReferringSuite().metrics([query], settings)
    names = ("mIoU", "cumulative IoU", "IoU > 0.5")
    assert list(cells) == [f"{name}{of}" for of in ("", ", whole image", ", centred box") for name in names]
    iou = np.array([0.5, 0.25, 0, 1])
    assert cells["mIoU"].value == pytest.approx(1.75 / 4)
    assert cells["cumulative IoU"].value == pytest.approx(16 / 31)
    assert cells["IoU > 0.5"].value == 1 / 4, "one half is not more than one half"
    assert cells["IoU > 0.5"].wilson == wilson(1, 4)[1:]
    assert cells["mIoU, whole image"].value == pytest.approx((5 + 4 + 7 + 10) / 80)
    assert cells["cumulative IoU, centred box"].value == pytest.approx(6 / 35)
    assert {cell.chance for cell in cells.values()} == {None}
    image = np.array(query["image"])
    ends = interval(iou, image, resamples=200)
    assert np.quantile(cells["mIoU"].samples, [0.025, 0.975]) == pytest.approx(ends[1:])

    def ratio(values: np.ndarray) -> float:
        return values[:, 0].sum() / values[:, 1].sum()

    both = np.stack([one["intersection"], one["union"]], 1)
    ends = interval(both, image, ratio, resamples=200)
    assert np.quantile(cells["cumulative IoU"].samples, [0.025, 0.975]) == pytest.approx(ends[1:])


# Expressions of scenes


def test_expressions_of_scenes_name_exactly_one_object_and_mask_it() -> None:
    source = Scenes("scenes:dev?count=300&size=48").with_expressions()
    assert isinstance(source, Scenes)
    number = left_out = sentences = 0
    for i in (*range(20), 156, 278):  # those two have a phrase that fits two objects
        record, scene, labels, named = source[i], source.scene(i), source.labels(i), source.description(i)
        words = [region.phrase.lower() for region in record.regions]
        assert len(words) == len(set(words))
        for region in record.regions:
            said = understood(region.phrase)
            (k,) = [k for k, thing in enumerate(scene.things) if fits(thing, said)]
            assert region.mask is not None
            assert np.array_equal(region.mask, labels == k + 1)
            assert region.span is not None
            assert record.long is not None
            assert record.long[region.span[1] : region.span[2]] == region.phrase
            sentences += region.phrase.endswith(".")
            number += 1
        for mention in named.mentions:
            text = named.long[mention.start : mention.end]
            sole = sum(fits(thing, understood(text)) for thing in scene.things) == 1
            assert (text.lower() in words) == sole
            left_out += not sole
    assert number > 200
    assert left_out == 2
    assert sentences > 100


# What is refused, the command and the page


def test_what_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    model = tiny_model("clip")
    plain = rows_file(tmp_path, [{"image": "a.png", "caption": "A dog."}])
    with pytest.raises(UserError, match=r"^no region of .* has a mask; expressions are measured with masks"):
        measure(model, plain)
    model.method.towers.image.grid = None
    with pytest.raises(UserError, match=r"^the image tokens of clip have no places in the image"):
        measure(model, plain)
