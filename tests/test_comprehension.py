"""Referring expressions by choice among boxes, against loops: sums, gradients, choices, files, pages."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from indexes import CONDITIONED, tiny_model
from PIL import Image
from test_refcoco import SIZE, release

from grainline.data.benchmarks.refcoco import Proposals
from grainline.data.open_source import open_source
from grainline.data.record import Boxed, boxes_of
from grainline.data.scenes.source import Scenes
from grainline.errors import UserError
from grainline.evaluation.encode import Encodings
from grainline.evaluation.examples import Evaluation
from grainline.evaluation.result import Result
from grainline.evaluation.statistics import wilson
from grainline.evaluation.suite import Settings, variant
from grainline.evaluation.suites.comprehension import (
    CENTRED,
    GRADIENT,
    MAPS,
    ComprehensionOptions,
    ComprehensionSuite,
    choose,
    maps,
)
from grainline.evaluation.suites.gradient_maps import gradient_heat
from grainline.evaluation.suites.regions import HEAT, box_iou, box_scores, box_sums
from grainline.methods.heat import on_pixels
from grainline.model import Model
from grainline.nn.upsample import unit_range
from grainline.types import Encoded

SCENES = "scenes:dev?count=3&size=40"
PAIRWISE = {
    "maxsim": (),
    "flair": (),
    "beta_clip": (CONDITIONED,),
    "caft": (CONDITIONED, "composer.heads=2", "heads=2"),
}


def measure(
    model: Model, source: Any, boxes: Path | None = None, batch: int = 4, max_corrupt: float = 0.0
) -> tuple[Encodings, Result]:
    suite = ComprehensionSuite(ComprehensionOptions(proposals=None if boxes is None else str(boxes)))
    settings = Settings(resamples=50, batch_size=batch, max_corrupt=max_corrupt)
    data = suite.encode(model, source, settings)
    result = suite.measure(model.method, data, settings)
    about = result.settings | {"model": "a/b", "method": model.description.method}
    return data, result._replace(settings=about)


# Boxes


def slow_sum(image: np.ndarray, box: tuple[float, ...]) -> float:
    left, top, right, bottom = box
    height, width = image.shape
    image = image.astype(np.float64)
    inside = [
        image[y, x]
        for y in range(height)
        for x in range(width)
        if left <= x + 0.5 < right and top <= y + 0.5 < bottom
    ]
    return float(np.sum(inside))


def test_sums_in_boxes_are_those_of_a_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    got = torch.rand(2, 7, 9, generator=generator)
    corner = torch.rand(20, 2, generator=generator) * torch.tensor([8.0, 6.0])
    side = torch.rand(20, 2, generator=generator) * 4
    boxes = torch.cat([corner, corner + side], 1)
    edges = torch.tensor([[0.5, 0.5, 2.5, 1.5], [0.0, 0, 9, 7], [-3.0, -1, 20, 30], [8.6, 6.6, 9, 7]])
    boxes = torch.cat([boxes, edges])
    sums = box_sums(got, boxes)
    for e in range(2):
        for b, box in enumerate(boxes.tolist()):
            assert sums[e, b] == pytest.approx(slow_sum(got[e].numpy(), tuple(box)), abs=1e-9)
    assert sums[0, 20] == pytest.approx(float(got[0, 0, :2].sum())), "the centre on the left edge is inside"


def test_scores_of_boxes_are_those_of_the_paper() -> None:
    image = torch.zeros(1, 4, 4)
    image[0, :2, :2], image[0, 2:, 2:] = 1.0, 0.5
    boxes = torch.tensor([[0.0, 0, 2, 2], [0.0, 0, 4, 4], [2.0, 2, 4, 4]])
    assert box_scores(image, boxes)[0].tolist() == [2.0, 1.5, 1.0]


def test_overlaps_of_boxes_are_those_of_a_loop() -> None:
    generator = torch.Generator().manual_seed(1)
    low = torch.rand(12, 2, generator=generator)
    boxes = torch.cat([low, low + 0.1 + torch.rand(12, 2, generator=generator)], 1)
    got = box_iou(boxes[:5], boxes)
    for i, (a, b, c, d) in enumerate(boxes[:5].tolist()):
        for j, (e, f, g, h) in enumerate(boxes.tolist()):
            wide, tall = max(0.0, min(c, g) - max(a, e)), max(0.0, min(d, h) - max(b, f))
            whole = (c - a) * (d - b) + (g - e) * (h - f) - wide * tall
            assert got[i, j] == pytest.approx(wide * tall / whole)


def test_the_highest_score_chooses_and_a_wrong_box_wins_ties() -> None:
    right = torch.tensor([True, False, False])
    assert choose(torch.tensor([3.0, 1.0, 2.0]), right) == (0, True, False, pytest.approx(1 / 3))
    assert choose(torch.tensor([1.0, 1.0, 2.0]), right)[:3] == (2, False, False)
    assert choose(torch.tensor([2.0, 1.0, 2.0]), right)[:3] == (2, False, True)
    assert choose(torch.zeros(3), right) == (1, False, True, 0.0)
    assert choose(torch.ones(2), torch.tensor([False, False])) == (0, False, False, -1.0)
    assert choose(torch.zeros(0), torch.zeros(0).bool()) == (-1, False, False, -1.0)
    assert choose(torch.ones(1), torch.tensor([True])) == (0, True, False, 1.0)


# Gradients


def slow_slope(model: Model, image: Encoded, text: Encoded, step: float = 1e-3) -> torch.Tensor:
    """dS / d tokens by differences, one number after the other, in double precision: [L, D]"""
    out = torch.zeros_like(image.tokens[0])
    for place in range(image.tokens.shape[1]):
        for c in range(image.tokens.shape[2]):
            both = []
            for sign in (1, -1):
                moved = image.tokens.clone()
                moved[0, place, c] += sign * step
                with torch.no_grad():
                    both.append(float(model.method.score(image._replace(tokens=moved), text)))
            out[place, c] = (both[0] - both[1]) / (2 * step)
    return out


def double(x: Encoded) -> Encoded:
    return x._replace(vector=x.vector.double(), tokens=x.tokens.double())


@pytest.mark.parametrize("method", PAIRWISE)
def test_gradient_maps_are_those_of_differences(method: str) -> None:
    model = tiny_model(method, changes=PAIRWISE[method])
    model.method.double()
    raw = [Scenes(SCENES)[i].image for i in range(2)]
    images = double(model.encode(images=raw))
    texts = double(model.encode(texts=["a red dog runs.", "the green house on sand"]))
    got = gradient_heat(model.method, images, texts)
    for i in range(2):
        one = [Encoded(*(None if f is None else f[i : i + 1] for f in x[:5])) for x in (images, texts)]
        value, slope = one[0].tokens[0], slow_slope(model, *one)
        mean = value.mean(0)
        for p in range(len(value)):
            plain = sum(float(value[p, c] * slope[p, c]) for c in range(value.shape[1]))
            centred = sum(float((value[p, c] - mean[c]) * slope[p, c]) for c in range(value.shape[1]))
            assert got[0][i, p] == pytest.approx(max(0.0, plain), abs=2e-5)
            assert got[1][i, p] == pytest.approx(max(0.0, centred), abs=2e-5)
    assert (got[1] > 1e-4).any()
    square = method != "maxsim"  # the others bring tokens to one length before they score
    assert (got[0] == 0).all() == square


def test_gradients_know_no_other_pair_no_mask_and_leave_no_trace() -> None:
    model = tiny_model("maxsim")
    images = model.encode(images=[Scenes(SCENES)[i].image for i in range(3)])
    texts = model.encode(texts=["a red dog", "a cat. a bird sleeps.", "sand"])
    mask = images.mask.clone()
    mask[:, -1] = False
    images = images._replace(mask=mask)
    every = gradient_heat(model.method, images, texts)
    assert (every[0][:, -1] == 0).all()
    assert (every[1][:, -1] == 0).all()
    for i in range(3):
        one = [Encoded(*(None if f is None else f[i : i + 1] for f in x[:5])) for x in (images, texts)]
        assert torch.equal(gradient_heat(model.method, *one)[0][0], every[0][i])
    assert not every[0].requires_grad
    assert all(p.grad is None for p in model.method.parameters())
    with torch.no_grad():
        assert torch.equal(gradient_heat(model.method, images, texts)[0], every[0])
    loud = images._replace(tokens=images.tokens.masked_fill(~mask[..., None], 50.0))
    assert torch.allclose(gradient_heat(model.method, loud, texts)[1], every[1], atol=1e-6)
    with pytest.raises(ValueError, match="scores of vectors"):
        gradient_heat(tiny_model("clip").method, images, texts)


# Outcomes


def slow_outcomes(model: Model, source: Any, offered: Any) -> dict[str, list[tuple[int, bool]]]:
    """For each map what every expression chose and whether that is right, one pixel at a time."""
    out: dict[str, list[tuple[int, bool]]] = {GRADIENT: [], HEAT: [], CENTRED: []}
    side = model.method.size
    for n in range(len(source)):
        record = source[n]
        pressed = record.image.convert("RGB").resize((side, side), Image.Resampling.BICUBIC)
        images = model.encode(images=[pressed])
        for region in record.regions:
            texts = model.encode(texts=[region.phrase.lower()])
            both = gradient_heat(model.method, images, texts)
            with torch.no_grad():
                heat = model.method.heat(images, texts)
            for name, tokens in ((GRADIENT, both[0]), (CENTRED, both[1]), (HEAT, heat)):
                spread = on_pixels(model.method, images, tokens, record.image.size[::-1])
                spread = (unit_range(spread) if name == HEAT else spread)[0]
                boxes = offered(n)
                score = [
                    slow_sum(spread.numpy(), box) / ((box[2] - box[0]) * (box[3] - box[1])) ** 0.5
                    for box in boxes
                ]
                iou = box_iou(torch.tensor([region.box]), torch.tensor(boxes))[0]
                best = max(score)
                top = [b for b, s in enumerate(score) if s >= best - 1e-9]
                wrong = [b for b in top if iou[b] <= 0.5]
                out[name].append(((wrong or top)[0], not wrong))
    return out


@pytest.mark.parametrize("batch", [1, 64])
def test_choices_on_scenes_are_those_of_a_loop(batch: int) -> None:
    model, source = tiny_model("maxsim"), Scenes(SCENES)
    data, result = measure(model, source, batch=batch)
    made = variant(source, "with_expressions")
    assert isinstance(made, Scenes)
    expected = slow_outcomes(model, made, made.boxes)
    named = result.queries
    assert set(named["scores"]) == {GRADIENT, CENTRED, HEAT}
    for name, outcomes in named["scores"].items():
        right = [bool(x) for x in outcomes["right"]]
        assert list(zip(outcomes["chosen"], right, strict=True)) == expected[name]
        metric = result.metric(f"box accuracy, {MAPS[name]}")
        assert metric.value == pytest.approx(100 * np.mean(right))
        assert metric.wilson == tuple(100 * end for end in wilson(sum(right), len(right))[1:])
    number = [len(made.boxes(n)) for n in range(3)]
    assert named["boxes"] == [number[n] for n in named["image"]]
    assert all(len(made.scene(n).things) >= number[n] for n in range(3))
    for n, record in enumerate(made[i] for i in range(3)):
        assert {region.box for region in record.regions} <= set(made.boxes(n))
    assert result.metric("box accuracy, heat").chance == pytest.approx(
        100 * np.mean(np.array(named["fitting"]) / np.array(named["boxes"]))
    )
    assert result.settings["offered"] == {"boxes": "ground truth"}
    assert data.images.tokens.shape[1] == 0, "no tokens are kept"
    largest = [int(np.argmax([(c - a) * (d - b) for a, b, c, d in made.boxes(n)])) for n in named["image"]]
    assert named["trivial"]["chosen"] == largest


def test_methods_of_vectors_have_heat_alone_and_others_say_what_is_left_out() -> None:
    _, result = measure(tiny_model("clip"), Scenes("scenes:dev?count=2&size=40"))
    assert set(result.queries["scores"]) == {HEAT}
    assert any("read vectors and no image tokens" in note for note in result.notes)
    _, result = measure(tiny_model("flair"), Scenes("scenes:dev?count=2&size=40"))
    assert set(result.queries["scores"]) == {CENTRED, HEAT}
    assert any("do not depend on the lengths of image tokens" in note for note in result.notes)


def test_expressions_are_read_in_lower_case_and_flat_maps_choose_nothing() -> None:
    model = tiny_model("clip")
    data, _ = measure(model, Scenes(SCENES))
    assert all(one.text == one.text.lower() for one in data.collected["comprehension"].expressions)
    model.method.heat = lambda images, _: torch.full(images.tokens.shape[:2], -0.5)  # type: ignore[method-assign]
    _, result = measure(model, Scenes(SCENES))
    metric = result.metric("box accuracy, heat")
    assert metric.value == 0
    assert metric.ties == metric.queries
    assert f"{metric.queries} maps by heat are the same everywhere and choose nothing" in result.notes
    model.method.heat = lambda images, _: torch.full(images.tokens.shape[:2], torch.nan)  # type: ignore[method-assign]
    with pytest.raises(UserError, match="scores are not a number"):
        measure(model, Scenes(SCENES))


# Proposals


def detections(folder: Path, content: Any) -> Path:
    path = folder / "boxes.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("form", ["by id", "by name", "rows", "rows of boxes", "scored"])
def test_detections_are_read_in_every_form(form: str, tmp_path: Path) -> None:
    boxes = [[1, 2, 3, 4], [0, 0, 5.5, 6], [1, 2, 3, 4]]
    name = "COCO_train2014_000000000012.jpg"
    content = {
        "by id": {"12": boxes, "9": []},
        "by name": {name: boxes},
        "rows": [{"image_id": 12, "box": box, "score": 0.5} for box in boxes],
        "rows of boxes": [{"file_name": name, "bbox": box} for box in boxes],
        "scored": {"12": [{"bbox": box, "score": 1} for box in boxes]},
    }[form]
    got = Proposals(str(detections(tmp_path, content)))
    for key in (name, f"train2014/{name}", f"set/train2014/{name}"):
        assert got.of(key) == ((1, 2, 4, 6), (0, 0, 5.5, 6))
    assert got.of("COCO_train2014_000000000013.jpg") == ()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"1": [[0, 0, 0, 5]]}, "box is [0, 0, 0, 5]: a box is left, top, width, height; expected"),
        ({"1": [{"score": 1}]}, "boxes[0]: no image_id and no file_name, or no box; expected"),
        ({"1": [[0, 0, float("inf"), 1]]}, "box.2 is Infinity: "),
        ([], "holds no boxes"),
        ("text", "holds no boxes"),
    ],
)
def test_wrong_detections_are_one_line(content: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        Proposals(str(detections(tmp_path, content)))
    assert said in str(error.value)


def test_refcoco_chooses_among_annotations_or_detections(tmp_path: Path) -> None:
    release(tmp_path)
    file = tmp_path / "instances.json"
    instances = json.loads(file.read_text())
    sides = {900: [1, 1, 10, 12], 901: [0, 0, 18, 15], 902: [3, 2, 9, 9], 903: [0, 0, 4, 4]}
    for note in instances["annotations"]:
        note["bbox"] = sides.get(note["id"], [2, 2, 6, 6])
    instances["annotations"].append({"id": 99, "image_id": 1, "segmentation": [], "bbox": [15, 10, 4, 4]})
    file.write_text(json.dumps(instances))
    source = open_source(f"refcoco:{tmp_path}")
    assert isinstance(source, Boxed)
    assert boxes_of(source, 0, source[0]) == ((1, 1, 11, 13), (0, 0, 18, 15), (15, 10, 19, 14))
    data, result = measure(tiny_model("maxsim"), source)
    assert [one.target for one in data.collected["comprehension"].expressions[:3:2]] == [
        (1, 1, 11, 13),
        (0, 0, 18, 15),
    ]
    assert result.queries["boxes"] == [3, 3, 3, 3, 1]
    assert result.queries["fitting"] == [1, 1, 1, 1, 1]
    assert result.metric("box accuracy, heat").chance == pytest.approx(20 * (4 / 3 + 1))
    boxes = detections(tmp_path, {"1": [[1, 1, 10, 11], [30, 30, 5, 5], [8, 8, 40, 40]]})
    data, result = measure(tiny_model("maxsim"), source, boxes)
    assert data.collected["comprehension"].expressions[0].boxes == ((1, 1, 11, 12), (8, 8, *map(float, SIZE)))
    assert result.queries["boxes"] == [2, 2, 2, 2, 0]
    assert result.queries["fitting"] == [1, 1, 0, 0, 0]
    assert result.metric("a right box among them").value == pytest.approx(40)
    assert result.settings["offered"]["boxes"] == str(boxes)
    assert "1 expressions are about images without a box to choose, and count as wrong" in result.notes
    assert "1 boxes have no pixel in their image and were left out" in result.notes
    none = detections(tmp_path, {"77": [[1, 1, 10, 11]]})
    with pytest.raises(UserError, match=r"boxes\.json names no image of .*: it must say image_id"):
        measure(tiny_model("maxsim"), source, none)
    instances["annotations"][0].pop("bbox")
    file.write_text(json.dumps(instances))
    with pytest.raises(UserError, match=r"an annotation of COCO_train2014_1\.png has no image_id or no bbox"):
        measure(tiny_model("maxsim"), open_source(f"refcoco:{tmp_path}"))


# Metrics


def test_metrics_are_shares_of_expressions_and_draw_images() -> None:
    def outcomes(right: list[int], tied: list[int]) -> dict[str, list[int]]:
        return {"chosen": right, "right": right, "tied": tied}

    query = {
        "image": [0, 0, 1, 2],
        "boxes": [4, 4, 2, 0],
        "fitting": [1, 2, 0, 0],
        "scores": {HEAT: outcomes([1, 0, 0, 0], [0, 1, 0, 0])},
        "trivial": outcomes([1, 1, 0, 0], [0, 0, 0, 0]),
    }
    cells = ComprehensionSuite().metrics([query], Settings(resamples=100))
    heat = cells["box accuracy, heat"]
    assert (heat.value, heat.ties, heat.queries) == (0.25, 1, 4)
    assert heat.chance == pytest.approx((1 / 4 + 2 / 4) / 4)
    assert heat.wilson == wilson(1, 4)[1:]
    assert cells["box accuracy, largest box"].value == 0.5
    assert cells["a right box among them"].value == 0.5
    assert cells["a right box among them"].chance is None


# What is refused, the command and the page


def test_choices_are_shown_from_both_ends_with_their_boxes() -> None:
    model, source = tiny_model("maxsim"), Scenes("scenes:dev?count=4&size=40")
    data, result = measure(model, source)
    on = Evaluation(model, source, data, result)
    worst, best = (part.cases for part in ComprehensionSuite().cases(on, 3))
    lead = [one.by_map[GRADIENT].lead for one in data.collected["comprehension"].expressions]
    assert (worst[0].right, best[0].right) == (min(lead) > 0, max(lead) > 0)
    side = model.method.size
    expressions = {(one.image, one.text): one for one in data.collected["comprehension"].expressions}
    for shown in (*worst, *best):
        assert shown.look is not None
        row = data.keys.index(shown.detail.split(", ")[1])
        one = expressions[row, shown.look.sentences[0].text]
        choice, scale = one.by_map[GRADIENT], side / 40
        assert shown.look.box == pytest.approx([x * scale for x in one.target])
        assert shown.look.prediction == pytest.approx([x * scale for x in one.boxes[choice.box]])
        assert len(one.boxes) == len(shown.look.candidates)
        assert shown.right == choice.right == (float(shown.title.split()[-2]) > 50) or choice.tied
        pressed = model.pressed()
        images, texts = pressed.encode(images=[source[row].image]), pressed.encode(texts=[one.text])
        expected = maps(model, images, texts, (side, side))[GRADIENT]
        assert shown.look.heat is not None
        np.testing.assert_allclose(shown.look.heat, expected - expected.mean(), atol=1e-5)
