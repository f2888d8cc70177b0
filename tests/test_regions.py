"""Regions and their texts against loops in float64: files of FG-OVD, foils of scenes, boxes, the metrics."""

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from indexes import saved, tiny_model
from make import SEGMENTS
from PIL import Image
from test_intervals import interval
from test_roi import slow
from test_scenes import fits
from test_scenes import read as understood

from grainline.data.benchmarks.phrase_regions import FgOvd, FgOvdLines
from grainline.data.decode import decode
from grainline.data.open_source import open_source
from grainline.data.record import CorruptSample, Foil, Region, keys_of
from grainline.data.scenes.source import Scenes
from grainline.data.scenes.world import is_compose_pair
from grainline.errors import UserError
from grainline.evaluation.encode import Encodings
from grainline.evaluation.examples import Evaluation
from grainline.evaluation.result import Result
from grainline.evaluation.statistics import wilson
from grainline.evaluation.suite import Settings
from grainline.evaluation.suites.fgovd import TEXTS, FgOvdSuite, margins, question_scores, ranks_of
from grainline.loading import load
from grainline.model import Model

COLOURS = ("red", "blue", "green", "wet")


def content(boxes: Sequence[tuple[str, Sequence[float]]], foils: int = 3) -> dict[str, Any]:
    """A file of FG-OVD: each box in an image of that name, 60 x 40 pixels, with texts of its own."""
    names = list(dict.fromkeys(name for name, _ in boxes))
    step = foils + 1
    return {
        "images": [
            {"id": 70 + i, "file_name": f"val2017/{name}", "width": 60, "height": 40}
            for i, name in enumerate(names)
        ],
        "annotations": [
            {
                "id": i,
                "image_id": 70 + names.index(name),
                "bbox": list(box),
                "category_id": 500 + step * i,
                "neg_category_ids": [500 + step * i + k for k in range(1, step)],
            }
            for i, (name, box) in enumerate(boxes)
        ],
        "categories": [
            {"id": 500 + step * i + k, "name": f"A {COLOURS[k]} cup, number {i}."}
            for i in range(len(boxes))
            for k in range(step)
        ],
    }


def drawn(folder: Path, names: Sequence[str], size: tuple[int, int] = (60, 40)) -> Path:
    folder.mkdir(exist_ok=True)
    for i, name in enumerate(names):
        pixels = np.random.default_rng(i).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / name)
    return folder


BOXES = [
    ("a.png", (22.0, 8.0, 20.0, 24.0)),
    ("a.png", (0.0, 0.0, 9.0, 9.0)),  # left of the middle square
    ("b.png", (5.0, 4.0, 30.5, 12.25)),  # reaches over its rim
    ("c.png", (30.0, 10.0, 2.0, 2.0)),  # smaller than a patch
    ("c.png", (10.0, 0.0, 40.0, 40.0)),  # the middle square
]


def opened(
    folder: Path, boxes: Sequence[tuple[str, Sequence[float]]] = BOXES, name: str = "1_attributes"
) -> FgOvd:
    (folder / f"{name}.json").write_text(json.dumps(content(boxes)))
    drawn(folder / "images", sorted({name for name, _ in boxes}))
    source = open_source(str(folder / f"{name}.json"), images=str(folder / "images"))
    assert isinstance(source, FgOvd)
    return source


def measure(model: Model, source: Any) -> tuple[Encodings, Result]:
    suite = FgOvdSuite()
    shared = Settings(resamples=50, batch_size=2, max_corrupt=0.5)
    data = suite.encode(model, source, shared)
    return data, suite.measure(model.method, data, shared)


# Sources


def test_a_file_gives_boxes_texts_and_its_difficulty(tmp_path: Path) -> None:
    source = opened(tmp_path)
    assert [record.key for record in source] == list(source.keys()) == [f"val2017/{x}.png" for x in "abc"]
    first = source[0]
    assert first.captions == ()
    assert [region.box for region in first.regions] == [(22, 8, 42, 32), (0, 0, 9, 9)]
    assert first.regions[1].phrase == "A red cup, number 1."
    assert first.regions[1].foils == tuple(
        Foil(f"A {word} cup, number 1.", "A red cup, number 1.", "hard") for word in ("blue", "green", "wet")
    )
    named = {
        "2_attributes": "medium",
        "3_attributes": "easy",
        "shuffled_negatives": "trivial",
        "color": "color",
    }
    got = [opened(tmp_path, name=name) for name in named]
    assert [one.difficulty for one in got] == list(named.values())
    assert len({one.fingerprint() for one in got}) == 4
    other = opened(tmp_path, [("a.png", (22.0, 8.0, 20.0, 25.0)), *BOXES[1:]])
    assert other.fingerprint() != source.fingerprint()
    assert open_source(f"fg-ovd:{tmp_path}/1_attributes.json?images={tmp_path}/images")[1].regions


@pytest.mark.parametrize(
    ("change", "place", "message"),
    [
        (lambda x: x["annotations"][0].update(image_id=1), "annotations[0]", "image 1 is not listed"),
        (lambda x: x["annotations"][1].update(category_id=1), "annotations[1]", "category 1 is not listed"),
        (lambda x: x["annotations"][2].update(bbox=[1, 2, 3]), "annotations[2]", "[1, 2, 3]: too short"),
        (lambda x: x["annotations"][2].update(bbox=[1, 2, 1e999, 3]), "annotations[2]", "bbox.2 is Infinity"),
        (lambda x: x["annotations"][0].update(id={}), "annotations[0]", "id is an object: an id is a number"),
        (lambda x: x["categories"][0].pop("name"), "categories[0]", "no name"),
        (lambda x: x["images"].append({"id": [9], "file_name": "x"}), "images[3]", "id is [9]: an id is"),
    ],
)
def test_a_wrong_row_is_damage_and_leaves_the_others(
    change: Any, place: str, message: str, tmp_path: Path
) -> None:
    data = content(BOXES)
    change(data)
    (tmp_path / "color.json").write_text(json.dumps(data))
    names = {name for name, _ in BOXES}
    source = open_source(f"fg-ovd:{tmp_path}/color.json", images=str(drawn(tmp_path / "x", sorted(names))))
    sound = [key for key in keys_of(source) if "[" not in key]
    assert sound
    for index, key in enumerate(keys_of(source)):
        if key not in sound:
            with pytest.raises(CorruptSample, match="corrupt row"):
                source[index]
        else:
            assert source[index].regions
    at = list(keys_of(source)).index(place)
    with pytest.raises(CorruptSample, match=rf"color.json: {re.escape(place)} \(.*{re.escape(message)}"):
        source[at]


def test_images_that_are_missing_or_of_another_size_are_named(tmp_path: Path) -> None:
    source = opened(tmp_path)
    drawn(tmp_path / "images", ["b.png"], (30, 20))
    with pytest.raises(
        CorruptSample, match=r"corrupt region: .*val2017/b.png \(30 x 20 pixels, its boxes are for 60 x 40"
    ):
        source[1]
    (tmp_path / "images/c.png").unlink()
    with pytest.raises(CorruptSample, match=r"missing image: .*val2017/c.png"):
        source[2]
    with pytest.raises(
        UserError, match=r"^none of the 3 images of .* is under .*: say where they lie with --im"
    ):
        open_source(str(tmp_path / "1_attributes.json"))
    below = drawn(tmp_path / "coco", []) / "val2017"
    assert open_source(str(tmp_path / "1_attributes.json"), images=str(drawn(below, ["a.png"]).parent))[0]


@pytest.mark.parametrize(
    ("name", "kind", "images", "regions", "chance"),
    [("3_attributes", "easy", 853, 1299, 1 / 11), ("transparency", "transparency", 230, 409, 0.3214)],
)
def test_the_official_files_are_as_they_are_described(
    name: str, kind: str, images: int, regions: int, chance: float, shared_data: Path, tmp_path: Path
) -> None:
    path = shared_data / f"benchmarks/fg-ovd/{name}.json"
    if not path.is_file():
        pytest.skip(f"no {path}")
    with pytest.raises(UserError, match=rf"^none of the {images} images of .*{name}.json is under"):
        open_source(str(path), images=str(tmp_path))
    names = [image["file_name"] for image in json.loads(path.read_text())["images"]]
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / Path(names[0]).name).write_bytes(b"")
    source = open_source(str(path), images=str(tmp_path / "one"))
    assert isinstance(source, FgOvd)
    assert source.difficulty == kind
    assert len(source) == len(set(source.keys())) == images
    got = [region for entry in source.entries for region in entry.record.regions]
    assert len(got) == regions
    assert sum(1 / (1 + len(region.foils)) for region in got) / regions == pytest.approx(chance, abs=1e-4)
    assert all(
        len({foil.text for foil in region.foils} | {region.phrase}) == 1 + len(region.foils) for region in got
    )
    assert {foil.kind for region in got for foil in region.foils} == {kind}


def line(box: Sequence[float], number: int = 0, name: str = "a.png") -> dict[str, Any]:
    """A line of FG-OVD as JSON Lines."""
    wrong = [f"A {word} cup, number {number}." for word in COLOURS[1:]]
    right = [f"A red cup, number {number}."]
    return {
        "img_path": f"val2017/{name}",
        "bbox": list(box),
        "pos_expression": right,
        "neg_expression": wrong,
    }


def test_json_lines_say_the_same_as_the_file_of_the_authors(tmp_path: Path) -> None:
    source = opened(tmp_path, name="3_attributes")
    lines = [line(box, i, name) for i, (name, box) in enumerate(BOXES)]
    file = tmp_path / "easy.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in lines))
    drawn(tmp_path / "coco", [])
    drawn(tmp_path / "coco/val2017", ["a.png", "b.png", "c.png"])
    for path in (str(file), f"fg-ovd-lines:{file}"):
        got = open_source(path, images=str(tmp_path / "coco"))
        assert isinstance(got, FgOvdLines)
        assert list(got.keys()) == list(source.keys())
        assert [record.regions for record in got] == [record.regions for record in source]
    _, one = measure(tiny_model("clip"), source)
    _, two = measure(tiny_model("clip"), open_source(str(file), images=str(tmp_path / "coco")))
    assert one.metrics == two.metrics
    wrong = [{**lines[0], "bbox": [1, 2, 0, 3]}, {**lines[1], "pos_expression": ["a", "b"]}, lines[2]]
    file.write_text("".join(json.dumps(one) + "\n" for one in wrong))
    broken = open_source(str(file), images=str(tmp_path / "coco"))
    for i, said in enumerate((r"row 1 \(.*bbox is \[1, 2, 0, 3\]", r"row 2 \(pos_expression is")):
        with pytest.raises(CorruptSample, match=said):
            broken[i]
    assert broken[2].regions == (source[1].regions[0],)


def segmented_model(method: str) -> Model:
    own = ["heads=2", "composer.depth=1", "composer.heads=2"] if method == "caft" else []
    return tiny_model(method, values=SEGMENTS, changes=["image.superpixels.iterations=1", *own])


def segment_points(places: np.ndarray, number: int, box: Sequence[float], side: int) -> np.ndarray:
    """The points of a fine lattice over the box in each segment."""
    fine = 16
    points = np.zeros(number)
    step = side / len(places) / fine
    for y in np.arange(step / 2, side, step):
        for x in np.arange(step / 2, side, step):
            if box[0] <= x < box[2] and box[1] <= y < box[3]:
                points[places[int(y * len(places) / side), int(x * len(places) / side)]] += 1
    return points


def slow_pool(pool: Any, part: torch.Tensor, tokens: torch.Tensor, share: list[float]) -> torch.Tensor:
    """The tokens [L, D], there in part, as a part of a text [D] pools them, head by head."""
    query = pool.to_query(pool.norm_query(part)).chunk(pool.heads)
    keys, values = pool.to_key(pool.norm_key(tokens)), pool.to_value(pool.norm_value(tokens))
    out = []
    for head, q in enumerate(query):
        key, value = (x.chunk(pool.heads, -1)[head] for x in (keys, values))
        weight = [s * math.exp(float(k @ q) / len(q) ** 0.5) for k, s in zip(key, share, strict=True)]
        out.append(sum(w * v for w, v in zip(weight, value, strict=True)) / (1 + sum(weight)))
    return pool.to_out(torch.cat(out))


@pytest.mark.parametrize("method", ["caft", "flair", "caft on patches"])
@torch.no_grad()
def test_segments_are_scored_by_their_pixels_in_a_box(method: str, tmp_path: Path) -> None:
    boxes = [
        ("a.png", (15.0, 0.0, 30.0, 20.0)),
        ("b.png", (3.75, 10.0, 15.0, 7.5)),
        ("c.png", (7.5, 5.0, 45.0, 30.0)),
    ]
    name, *patches = method.split(" on ")
    model = (
        tiny_model(name, changes=["heads=2", "composer.depth=1", "composer.heads=2"])
        if patches
        else segmented_model(name)
    )
    source = opened(tmp_path, boxes)
    data, result = measure(model, source)
    regions, side, pool = data.collected["fg-ovd"], model.method.size, getattr(model.method, "pool", None)
    assert (model.method.grid is None) == (not patches)
    images = model.pressed().encode(images=[decode(record) for record in source])
    scores, number = question_scores(regions), images.tokens.shape[1]
    for i, of in enumerate(regions.image.tolist()):
        grid = model.method.grid
        places = np.arange(grid[0] * grid[1]).reshape(grid) if grid else images.places[of].numpy()  # type: ignore[index]
        inside = segment_points(places, number, regions.box[i].tolist(), side)
        if model.method.tokens_in_text_space:
            wanted = inside @ images.tokens[of].numpy() / inside.sum()
            np.testing.assert_allclose(regions.vector[i].numpy(), wanted / np.linalg.norm(wanted), atol=2e-5)
            continue
        whole = segment_points(places, number, (0, 0, side, side), side)
        share = (inside / np.maximum(whole, 1)).tolist()
        question = next(q for q in regions.questions if q.region == i)
        texts = model.encode(texts=[regions.texts.strings[t] for t in question.texts])
        for j, score in enumerate(scores[regions.questions.index(question)].tolist()):
            parts = texts.tokens[j][texts.mask[j]]
            views = torch.stack([slow_pool(pool, p, images.tokens[of], share) for p in parts])
            assert score == pytest.approx(float(torch.cosine_similarity(views, parts).mean()), abs=1e-5)
    assert result.metric("accuracy").queries == len(boxes)


def test_a_clip_is_measured_by_the_values_of_its_patches_without_training(tmp_path: Path) -> None:
    model = saved(tiny_model("clip", changes=["image.pool=class"]), tmp_path / "model")
    plain, values = load(model), load(model, patches="values")
    assert values.description.config.image.patches == "values"  # type: ignore[attr-defined]
    images = [np.full((8, 8, 3), 9, np.uint8)]
    one, two = (x.encode(images=[Image.fromarray(images[0])]) for x in (plain, values))
    torch.testing.assert_close(one.vector, two.vector, msg="the summary is the same")
    assert not torch.allclose(one.tokens, two.tokens)
    with pytest.raises(UserError, match=r"--patches: .*image.patches"):
        load(model, patches="keys")


def test_regions_of_a_json_row_have_foils_of_their_own(tmp_path: Path) -> None:
    drawn(tmp_path, ["a.png"])
    region = {"phrase": "a red cup", "box": [1, 2, 3, 4], "foils": [{"text": "a blue cup", "kind": "colour"}]}
    row = {"image": "a.png", "caption": "A cup.", "regions": [region]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    got = open_source(str(tmp_path / "rows.jsonl"))[0].regions
    assert got == (Region("a red cup", (1, 2, 3, 4), foils=(Foil("a blue cup", "a red cup", "colour"),)),)
    wrong = {**row, "regions": [{**region, "foils": ["a blue cup"]}], "image": "b.png"}
    (tmp_path / "rows.jsonl").write_text(f"{json.dumps(row)}\n{json.dumps(wrong)}\n")
    with pytest.raises(
        CorruptSample, match=r"row 2 \(regions.0.foils.0 is \"a blue cup\": it must be an object"
    ):
        open_source(str(tmp_path / "rows.jsonl"))[1]


SLOT = {"colour": "colour", "size": "size", "pattern": "pattern", "noun": "shape"}


@pytest.mark.parametrize("split", ["dev", "compose"])
def test_foils_of_a_phrase_are_false_of_its_object_in_one_thing_and_hold_every_other_value(
    split: str,
) -> None:
    plain, source = (
        Scenes(f"scenes:{split}?count=8&size=32&regions=1"),
        Scenes(f"scenes:{split}?count=8&size=32&regions=2"),
    )
    for i in range(8):
        record, stated, scene = source[i], source.description(i), source.scene(i)
        bare = plain[i]
        assert [r._replace(foils=(), mask=None) for r in record.regions] == [
            r._replace(mask=None) for r in bare.regions
        ]
        assert not any(region.foils for region in bare.regions)
        for region, mention in zip(record.regions, stated.mentions, strict=True):
            thing, said = scene.things[mention.thing], understood(region.phrase)
            kinds: dict[str, list[str]] = {}
            for foil in region.foils:
                assert foil.true == region.phrase
                slot, wrong = SLOT[foil.kind], understood(foil.text)
                assert {name for name in said if wrong[name] != said[name]} == {slot}
                assert not fits(thing, wrong)
                assert foil.text[0].isupper() == region.phrase[0].isupper()
                assert not re.search(r"\b(a [aeio]|an [^aeiouh])", foil.text.lower())
                kinds.setdefault(foil.kind, []).append(wrong[slot])
                if split == "dev" and foil.kind in ("colour", "noun"):
                    pair = (
                        (wrong["shape"], thing.colour)
                        if foil.kind == "noun"
                        else (thing.shape, wrong["colour"])
                    )
                    assert not is_compose_pair(*pair)
            assert {SLOT[kind] for kind in kinds} == set(said)
            full = {"colour": 7, "size": 2, "pattern": 4, "noun": 11}
            for kind, values in kinds.items():
                assert len(values) == len(set(values)) <= full[kind]
                assert split == "dev" or len(values) == full[kind]


# Boxes


# The suite


def slow_scores(model: Model, source: Any) -> list[tuple[str, int, list[float]]]:
    """Kind, image and cosines of every question, the right text first, region by region."""
    out = []
    rows, columns = model.method.grid  # type: ignore[misc]
    for n, record in enumerate(source):
        pixels = np.asarray(Image.open(source._root + "/" + Path(record.key).name))
        image = Image.fromarray(pixels)
        tokens = model.pressed().encode(images=[image]).tokens[0].detach().view(1, rows, columns, -1)
        side = model.method.size
        for region in record.regions:
            assert region.box is not None
            across, down = ([x * side / z for x in region.box[k::2]] for k, z in enumerate((60, 40)))
            box = torch.tensor([[across[0], down[0], across[1], down[1]]], dtype=torch.float64)
            scale = (rows / side, columns / side)
            feature = slow(tokens, box, torch.tensor([0]), scale)[0]
            texts = [region.phrase, *(foil.text for foil in region.foils)]
            vectors = model.encode(texts=texts).vector.detach().double().numpy()
            cosine = vectors @ feature / np.linalg.norm(feature)
            out.append((region.foils[0].kind, n, cosine.tolist()))
    return out


@pytest.mark.parametrize("method", ["clip", "maxsim"])
def test_outcomes_are_those_of_a_loop_in_float64(method: str, tmp_path: Path) -> None:
    model, source = tiny_model(method), opened(tmp_path)
    data, result = measure(model, source)
    wanted = slow_scores(model, source)
    got = question_scores(data.collected["fg-ovd"])
    assert len(got) == len(wanted) == 5
    for score, (_, _, slowly) in zip(got, wanted, strict=True):
        assert score.tolist() == pytest.approx(slowly, abs=1e-5)
    queries = result.queries
    assert queries["rank"] == [1 + sum(x >= one[0] for x in one[1:]) for _, _, one in wanted]
    assert queries["image"] == [n for _, n, _ in wanted] == [0, 0, 1, 2, 2]
    assert queries["foils"] == [3] * 5
    lead = [one[0] - max(one[1:]) for _, _, one in wanted]
    assert margins(got) == pytest.approx(lead, abs=1e-5)
    assert (result.data["regions"], result.protocol) == (5, "fg-ovd")
    assert not any("missing caption" in note for note in result.notes)
    assert result.data["texts"] == 20
    assert data.images.tokens.shape[1] == 0, "tokens are not kept"


def test_metrics_count_ties_as_wrong_and_draw_images() -> None:
    scores = [[0.5, 0.1], [0.4, 0.4, 0.1], [0.1, 0.2, 0.1], [0.3, 0.1, 0.2], [0.9, 0.0, 0.1, 0.2]]
    rank, tied = ranks_of([torch.tensor(one) for one in scores])
    assert rank.tolist() == [1, 2, 3, 1, 1]
    assert tied.tolist() == [False, True, False, False, False]
    image, foils = [0, 0, 1, 1, 2], [1, 2, 2, 2, 3]
    stated = {"kind": ["trivial", "hard", "noun", "hard", "hard"], "image": image, "foils": foils}
    query = {**stated, "rank": rank.tolist(), "tied": tied.int().tolist()}
    suite, settings = FgOvdSuite(), Settings(resamples=200)
    cells = suite.metrics([query], settings)
    assert list(cells) == [
        f"{name}{of}" for of in ("", ", hard", ", trivial", ", noun") for name in ("accuracy", "mean rank")
    ]
    every, ranked = cells["accuracy"], cells["mean rank"]
    assert (every.value, every.queries, every.ties) == (0.6, 5, 1)
    assert every.chance == pytest.approx((1 / 2 + 3 * 1 / 3 + 1 / 4) / 5)
    assert (ranked.value, ranked.unit) == (1.6, "rank")
    assert ranked.chance == pytest.approx((1.5 + 3 * 2 + 2.5) / 5)
    assert every.wilson == wilson(3, 5)[1:]
    right = np.array([1, 0, 0, 1, 1], float)
    ends = interval(right, np.array(image), resamples=200)
    assert np.quantile(every.samples, [0.025, 0.975]) == pytest.approx(ends[1:])
    assert (cells["accuracy, hard"].value, cells["accuracy, hard"].ties) == (2 / 3, 1)


def test_what_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    model = tiny_model("clip")
    plain = drawn(tmp_path / "plain", ["a.png"])
    (plain / "a.txt").write_text("A cup.")
    with pytest.raises(
        UserError, match=r"^no region of .*plain has a box and foils; regions that are measured"
    ):
        measure(model, open_source(str(plain)))
    outside = opened(tmp_path, [("a.png", (70.0, 0.0, 9.0, 9.0))])
    with pytest.raises(UserError, match=r"^all 1 regions of .* lie outside their images"):
        measure(model, outside)
    source = opened(tmp_path)
    model.method.towers.image.grid = None
    with pytest.raises(UserError, match=r"^the image tokens of clip have no places, so it has no features"):
        measure(model, source)


def test_a_region_without_a_box_is_counted(tmp_path: Path) -> None:
    drawn(tmp_path, ["a.png", "b.png"])
    foils = [{"text": "a blue cup", "kind": "colour"}]
    regions = [
        {"phrase": "a red cup", "foils": foils},
        {"phrase": "a red cup", "box": [20, 1, 30, 9], "foils": foils},
    ]
    regions += [{"phrase": "a red cup", "box": [20, 1, 30, 9]}]  # has no foils and asks nothing
    own = [{"text": "a green cup", "kind": "colour"}]  # is no foil of its own phrase
    regions += [{"phrase": "a green cup", "box": [20, 1, 30, 9], "foils": own}]
    rows = [
        {"image": f"{name}.png", "caption": "A cup.", "regions": got}
        for name, got in (("a", regions), ("b", regions[:2]))
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data, result = measure(tiny_model("clip"), open_source(str(tmp_path / "rows.jsonl")))
    assert (result.data["regions"], result.data["boxless"]) == (2, 2)
    assert "2 regions have no box and were skipped" in result.notes
    assert (result.queries["region"], result.queries["image"]) == ([0, 1], [0, 1])
    assert len(data.collected["fg-ovd"].vector) == len(data.collected["fg-ovd"].box) == 2


# Pages and images


def test_regions_are_shown_from_the_most_wrong_and_the_most_right() -> None:
    model, source = tiny_model("clip"), Scenes("scenes:dev?count=5&size=40").with_foils()
    data, result = measure(model, source)
    regions = data.collected["fg-ovd"]
    scores, image = question_scores(regions), np.array(result.queries["image"])
    margin = margins(scores).tolist()
    worst, best = (part.cases for part in FgOvdSuite().cases(Evaluation(model, source, data, result), 4))
    for cases, sign in ((worst, 1), (best, -1)):
        order: list[int] = []
        for i in sorted(range(len(margin)), key=lambda i: sign * margin[i]):
            order += [i] * (image[i] not in image[order])
        for one, place in zip(cases, order, strict=False):
            question, look = regions.questions[place], one.look
            assert look is not None
            assert (one.right, one.title.endswith(f"by {abs(margin[place]):.3f}")) == (
                margin[place] > 0,
                True,
            )
            texts = [regions.texts.strings[i] for i in question.texts]
            by_text = dict(zip(texts, scores[place].tolist(), strict=True))
            listed = [text.score for text in look.sentences]
            assert listed == [by_text[text.text] for text in look.sentences] == sorted(listed, reverse=True)
            others = sorted(by_text[text] for text in texts[1:])[::-1][: TEXTS - 1]
            assert [text.score for text in look.sentences if text.role == "foil"] == others
            assert look.box == tuple(regions.box[question.region].tolist())
            assert look.heat is not None
            assert look.heat.shape == (len(listed), 8, 8)
