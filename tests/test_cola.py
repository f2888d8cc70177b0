"""Items of two images and two captions against loops in float64: the file, what is missing, the metric."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from readers import Reader
from test_intervals import interval

from grainline.data.benchmarks.contests import Cola
from grainline.data.open_source import open_source
from grainline.errors import UserError
from grainline.evaluation.compare import compare
from grainline.evaluation.encode import Encodings
from grainline.evaluation.result import Result
from grainline.evaluation.statistics import wilson
from grainline.evaluation.suite import Settings
from grainline.evaluation.suites.cola import MULTI, ColaSuite, connected, item_scores, items_file

SERVER = "https://example.org/vg"


def rows(number: int, images: int, seed: int = 0) -> list[list[str]]:
    """Items that draw on few images; an image may be described anew in each."""
    g = np.random.default_rng(seed)
    drawn = [g.choice(images, 2, replace=False) for _ in range(number)]
    return [
        [f"{SERVER}/{a}.png", f"thing {a} of {i % 3}", f"{SERVER}/{b}.png", f"thing {b} of {i % 3}"]
        for i, (a, b) in enumerate(drawn)
    ]


def painted(folder: Path, names: Sequence[str]) -> None:
    """An image of its own colour for each name."""
    folder.mkdir(exist_ok=True)
    for i, name in enumerate(names):
        Image.new("RGB", (4, 4), (i % 256, i // 256, 99)).save(folder / name, "png")


def opened(folder: Path, content: Any, left_out: Sequence[str] = ()) -> Cola:
    (folder / "items.json").write_text(json.dumps(content))
    names = sorted({url.rpartition("/")[2] for row in content for url in row[::2]} - set(left_out))
    painted(folder / "images", names)
    return items_file(open_source(str(folder / "items.json"), images=str(folder / "images")))


def measured(source: Cola, model: Reader | None = None, lost: float = 0.0, **options: Any) -> Result:
    model = model or Reader()
    settings = Settings(max_corrupt=lost, **options)
    return ColaSuite().measure(model.method, encode(source, lost, model), settings)


def encode(source: Cola, lost: float = 0.0, model: Reader | None = None) -> Encodings:
    return ColaSuite().encode(model or Reader(), source, Settings(max_corrupt=lost))  # type: ignore[arg-type]


@pytest.mark.parametrize("pairwise", [False, True])
def test_outcomes_are_those_of_a_loop_in_float64(pairwise: bool, tmp_path: Path) -> None:
    content = rows(60, 25)
    source, model = opened(tmp_path, content), Reader(pairwise)
    result = measured(source, model)
    names = {url.rpartition("/")[2] for row in content for url in row[::2]}
    image = {name: Image.open(tmp_path / "images" / name) for name in names}

    def score(url: str, caption: str) -> float:
        return model.score(image[url.rpartition("/")[2]], caption)

    right = [
        score(one, first) > score(other, first) and score(other, second) > score(one, second)
        for one, first, other, second in content
    ]
    assert result.queries["right"] == [int(x) for x in right]
    assert 0 < sum(right) < 60
    metric = result.metric(MULTI)
    assert (metric.value, metric.queries, metric.chance, metric.ties) == pytest.approx(
        (100 * sum(right) / 60, 60, 25, 0)
    )
    assert metric.wilson == tuple(100 * end for end in wilson(sum(right), 60)[1:])
    assert model.images == len(names) == result.data["images"], "each image is encoded once"
    assert result.data["items"] == 60


def test_groups_that_share_no_image_are_those_of_a_slow_search() -> None:
    g = np.random.default_rng(3)
    for images in (8, 40, 90, 300):
        drawn = np.array([g.choice(images, 2, replace=False) for _ in range(60)])
        groups: list[set[int]] = []
        for a, b in drawn.tolist():
            linked = [group for group in groups if a in group or b in group]
            groups = [group for group in groups if group not in linked] + [{a, b}.union(*linked)]
        wanted = [next(i for i, group in enumerate(groups) if a in group) for a, _ in drawn.tolist()]
        got = connected(drawn)
        for i in range(60):
            assert [a == wanted[i] for a in wanted] == (got == got[i]).tolist()
    chain = np.array([[i, i + 1] for i in range(50)][::-1])
    assert connected(chain).tolist() == [0] * 50


def test_the_interval_draws_groups_of_items_that_share_images(tmp_path: Path) -> None:
    content = [[f"{4 * k + i}.png", f"a {k} {i}", f"{4 * k + i + 1}.png", f"b {k} {i}"]
               for k in range(12) for i in range(3)]  # fmt: skip
    result = measured(opened(tmp_path, content), resamples=300, seed=4)
    right, groups = np.array(result.queries["right"]), np.repeat(np.arange(12), 3)
    metric = result.metric(MULTI)
    assert (metric.value, metric.low, metric.high) == pytest.approx(
        tuple(interval(100 * right, groups, resamples=300, seed=4))
    )
    assert (metric.low, metric.high) != tuple(interval(100 * right, resamples=300, seed=4))[1:]
    assert any("36 items share images: the interval draws 12 groups" in note for note in result.notes)
    alone = measured(opened(tmp_path, content[::3]), resamples=300, seed=4)
    assert not any("share" in note for note in alone.notes)


def test_a_image_of_several_items_is_one_record_with_all_its_captions(tmp_path: Path) -> None:
    content = [["x/b.png", "B one.", "x/a.png", "A."], ["x/c.png", "C.", "x/b.png", "B two."],
               ["x/a.png", "A.", "x/b.png", "B one."]]  # fmt: skip
    source = opened(tmp_path, content)
    assert [(source[i].key, source[i].captions) for i in range(3)] == [
        ("b.png", ("B one.", "B two.")), ("a.png", ("A.",)), ("c.png", ("C.",)),
    ]  # fmt: skip
    assert list(source.keys()) == ["b.png", "a.png", "c.png"]
    data = encode(source)
    items = data.collected["cola"]
    assert items.images.tolist() == [[0, 1], [2, 0], [1, 0]]
    assert items.texts.tolist() == [[0, 2], [3, 1], [2, 0]]
    before = source.fingerprint()
    assert opened(tmp_path, content).fingerprint() == before
    content[0][1] = "B three."
    assert opened(tmp_path, content).fingerprint() != before


def test_items_without_a_image_are_counted_and_left_out(tmp_path: Path) -> None:
    content = [[f"{2 * i}.png", f"a {i}", f"{2 * i + 1}.png", f"b {i}"] for i in range(20)]
    source = opened(tmp_path, content, left_out=["4.png", "9.png"])
    result = measured(source, lost=0.1)
    assert result.queries["item"] == [i for i in range(20) if i not in (2, 4)]
    assert result.metric(MULTI).queries == 18
    assert (result.data["items"], result.data["items_left_out"]) == (20, 2)
    notes = " ".join(result.notes)
    assert "2 of 20 items were skipped: an image of theirs cannot be used" in notes
    assert "2 of 40 samples were skipped: 2 missing image" in notes
    whole = measured(opened(tmp_path, content))
    with pytest.raises(
        UserError,
        match=r"\(38 images\), this result on .* \(40 images\): they cannot be compared; measure both",
    ):
        compare(whole, result)


def test_a_model_that_ties_is_wrong_and_a_perfect_one_is_right(tmp_path: Path) -> None:
    source = opened(tmp_path, [[f"{2 * i}.png", f"a {i}", f"{2 * i + 1}.png", f"b {i}"] for i in range(8)])
    data = encode(source)
    items = data.collected["cola"]
    same = data._replace(images=data.images._replace(vector=data.images.vector[:1].expand(16, -1)))
    tied = ColaSuite().measure(Reader().method, same).metric(MULTI)
    assert (tied.value, tied.ties) == (0.0, 8)
    own = F.normalize(data.images.vector[data.texts.image] + 0.01 * data.texts.vector, dim=1)
    perfect = ColaSuite().measure(Reader().method, data._replace(texts=data.texts._replace(vector=own)))
    assert perfect.metric(MULTI).value == 100
    assert any("width zero" in note for note in perfect.notes)
    score = item_scores(Reader().method, data.images, data.texts, items)
    dense = data.images.vector.double() @ data.texts.vector.double().T
    for p in range(8):
        a, b = items.images[p], items.texts[p]
        torch.testing.assert_close(score[p], dense[a][:, b].float())


# The official file


@pytest.fixture
def official(shared_data: Path, tmp_path: Path) -> Cola:
    """The official file with images made for it."""
    file = shared_data / "benchmarks" / "cola" / "COLA_multiobjects_matching_benchmark.json"
    if not file.is_file():
        pytest.skip(f"no {file}; docs/data.md says where it comes from")
    content = json.loads(file.read_text())
    painted(tmp_path / "made", sorted({url.rpartition("/")[2] for row in content for url in row[::2]}))
    return items_file(open_source(str(file), images=str(tmp_path / "made")))


def test_the_official_file_has_210_items(official: Cola) -> None:
    assert (len(official.items), len(official)) == (210, 218)
    assert official.items[0] == (
        ("2390970.jpg", "2388902.jpg"),
        (
            "standing tall long giraffe to the right of brown giraffe",
            "brown giraffe behind tall white giraffe",
        ),
    )
    model = Reader()
    result = measured(official, model)
    assert model.images == 218
    metric = result.metric(MULTI)
    assert metric.queries == 210
    assert 0 < metric.value < 38, "a model without sight is no better than a quarter"
    assert any("the interval draws 88 groups" in note for note in result.notes)


# The command
