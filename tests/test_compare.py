"""`grainline compare`: models on sets by suites, what is encoded for it, its statistics, and its file."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from indexes import photo, saved, tiny_model
from runs import call, complaint
from test_check import blocks

import grainline
from grainline.data.vector_parts import read_vectors
from grainline.errors import UserError
from grainline.evaluation.compare import pooled
from grainline.evaluation.comparison import Comparison, Gain, Overlaps
from grainline.evaluation.comparison_statistics import holm, judged, places, ranks_of, two_sided
from grainline.evaluation.paper_numbers import published
from grainline.evaluation.result import read
from grainline.evaluation.suite import MetricSamples
from grainline.evaluation.training_overlap import training_of
from grainline.methods.base import Method
from grainline.types import Images

DATA = "scenes:dev?count=8&size=32"


@pytest.fixture
def _models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three models as folders, in the working directory."""
    monkeypatch.chdir(tmp_path)
    for name, method, seed in (("a", "maxsim", 0), ("b", "maxsim", 1), ("c", "clip", 0)):
        saved(tiny_model(method, seed), tmp_path / name)


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of images of each call of an image encoder."""
    numbers: list[int] = []
    for cls in (Method, type(tiny_model("maxsim").method)):
        own = cls.encode_images

        def counted(self: Method, images: Images, own: Any = own) -> Any:
            numbers.append(len(images.image))
            return own(self, images)

        monkeypatch.setattr(cls, "encode_images", counted)
    return numbers


def run(*names: str, **options: Any) -> Comparison:
    out = grainline.compare(*names, **{"data": DATA, "batch_size": 3, **options})
    assert isinstance(out, Comparison)
    return out


@pytest.mark.parametrize("name", ["a", "c"])
@pytest.mark.parametrize("other", ["fg-ovd", "monotonicity", "stability"])
@pytest.mark.usefixtures("_models")
def test_images_are_encoded_once_for_all_suites_and_captions(
    encoded: list[int], name: str, other: str
) -> None:
    together = run(name, suite=["retrieval", "probes", other], captions=["each", "whole"])
    titles = [column.title.partition(", ")[2] for column in together.columns]
    assert titles[:3] == ["retrieval, each", "retrieval, whole", "probes, whole"]
    assert f"{other}, whole" in titles[3:]
    assert sum(encoded) == 8  # scenes are squares, so that images squashed to a square are the same pixels
    for column, cell in zip(together.columns, together.cells, strict=True):
        alone = grainline.evaluate(name, DATA, column.suite, captions=column.captions, batch_size=3)
        assert cell.metrics == alone.metrics
    assert together.models[0].cost.images == 8


@pytest.mark.usefixtures("_models")
def test_a_comparison_that_was_stopped_goes_on(encoded: list[int]) -> None:
    lines: list[str] = []

    def stop(line: str) -> None:
        lines.append(line)
        if line.startswith("3 of"):
            raise KeyboardInterrupt

    settings: dict[str, Any] = {"suite": "retrieval", "captions": ["each", "whole"], "json": "x.json"}
    with pytest.raises(KeyboardInterrupt):
        run("a", "b", **settings, say=stop)
    assert lines[-1] == f"3 of 4: b on {DATA}, retrieval, each"
    assert sum(encoded) == 8
    done = {path: path.stat().st_mtime_ns for path in Path("x.results").iterdir()}
    assert len(done) == 2
    first = run("a", "b", **settings, say=lines.append)
    assert lines[-3].startswith("2 of 4 results are in x.results")
    on = f"b on {DATA}, retrieval"
    assert lines[-2:] == [f"1 of 2: {on}, each", f"2 of 2: {on}, whole"]
    assert sum(encoded) == 16
    assert all(path.stat().st_mtime_ns == time for path, time in done.items())
    again = run("a", "b", **settings)
    assert sum(encoded) == 16
    assert again._replace(time="") == first._replace(time="")
    assert Comparison.load("x.json") == again
    run("a", "b", **settings, seed=1)
    assert sum(encoded) == 32
    for text in ("{", json.dumps(json.loads(Path(next(iter(done))).read_text()) | {"data": 3})):
        Path(next(iter(done))).write_text(text)
        assert run("a", "b", **settings, say=lines.append).cells == first.cells
        assert lines[-2].startswith("3 of 4")
        assert lines[-1].startswith("1 of 1: a on")


@pytest.mark.usefixtures("_models")
def test_weights_that_change_while_others_are_measured_get_no_result() -> None:
    def retrain(line: str) -> None:
        if ": b on" in line:
            Path("c/model.safetensors").write_bytes(Path("d/model.safetensors").read_bytes())

    saved(tiny_model("clip", 1), Path("d"))
    changed = run("b", "c", results="y", say=retrain)
    assert not changed.cell("b", 0).reason
    assert "c has changed since" in changed.cell("c", 0).reason


@pytest.mark.usefixtures("_models")
def test_vectors_of_another_program_have_the_numbers_of_their_model() -> None:
    assert call("encode", "c", DATA, "--captions", "each", "--out", "v") == 0
    result = run("c", "v", captions=["each", "whole"], suite=["retrieval", "probes"])
    assert result.models[1].kind == "vectors"
    assert result.models[1].cost is None
    assert result.cell("v", 0).metrics == result.cell("c", 0).metrics
    gains = [gain for gain in result.gains if gain.column == 0]
    assert {gain.value for gain in gains} == {0.0}
    assert {gain.verdict for gain in gains} == {"undecided"}
    assert result.rank("v", 0, "rSum").mean == 1.5
    assert "no vector of the text" in result.cell("v", 1).reason
    assert "needs a model" in result.cell("v", 2).reason
    vectors, rows = read_vectors("v")
    for name, x in vectors.items():
        np.save(f"{name}.npy", x)
    keys = [row["key"] for row in rows if row["side"] == "images"]
    texts = [row | {"image": keys.index(row["key"])} for row in rows if row["side"] == "texts"]
    Path("pairs.jsonl").write_text("".join(json.dumps(one) + "\n" for one in texts))
    other = run("c", "other=images.npy+texts.npy+pairs.jsonl", captions="each")
    assert other.cell("other", 0).metrics == result.cell("c", 0).metrics


@pytest.mark.usefixtures("_models")
def test_seeds_are_pooled_and_all_of_them_have_to_agree() -> None:
    result = run("c", "both=a,b", json="x.json")
    cell = result.cell("both", 0)
    results = [read(path) for path in cell.files]
    assert cell.metrics == pooled(results).metrics
    assert cell.seeds["rSum"] == tuple(one["rSum"].value for one in results)
    assert f"; seeds {cell.seeds['rSum'][0]:.1f}, {cell.seeds['rSum'][1]:.1f})" in str(result)
    gain = result.gain("both", 0, "rSum")
    base = result.cell("c", 0).metric("rSum").value
    assert gain.seeds == tuple(value - base for value in cell.seeds["rSum"])
    assert gain.value == pytest.approx(np.mean(gain.seeds))
    only = run("c", "a", measures="text to image R@5")
    assert {one.measure for one in (*only.gains, *only.ranks)} == {"text to image R@5"}
    lines: list[str] = []
    with pytest.raises(UserError, match="no metric R@1; there are image to text R@1, "):
        run("c", "a", measures="R@1", say=lines.append)
    assert len(lines) == 1  # before the second model is measured


@pytest.mark.usefixtures("_models")
def test_other_pixels_under_the_same_names_are_measured_again() -> None:
    saved(tiny_model("maxsim", 0), Path("a+b"))
    photo(Path("x/0.png"), 0)
    photo(Path("y/0.png"), 1)
    Path("d.jsonl").write_text('{"image": "0.png", "caption": "A dog."}')
    lines: list[str] = []
    for folder in ("x", "x", "y"):
        run("my model=a+b", data="d.jsonl", images=folder, results="r", say=lines.append)
    assert [line[6] for line in lines] == [":", " ", ":"]  # the second one finds the result


@pytest.mark.usefixtures("_models")
def test_images_of_the_training_data_are_counted_once() -> None:
    for name, path in (("a", "scenes:dev?count=3&size=32"), ("b", "nowhere.tar")):
        Path(name, "recipe.yaml").write_text(f"data:\n  paths: ['{path}']\n")
    lines: list[str] = []
    first = run("a", "b", "c", json="x.json", say=lines.append)
    trained_on = [entrant.trained_on for entrant in first.models]
    assert trained_on == [("scenes:dev?count=3&size=32",), ("nowhere.tar",), None]
    assert first.overlaps[0] == Overlaps("a", DATA, 8, 3, 0)
    assert "nothing at nowhere.tar" in first.overlaps[1].note
    assert f"a and {DATA}: 3 of 8 images are in the training data, 0 look like one there\n" in str(first)
    assert len(first.overlaps) == 2
    assert run("a", "b", "c", json="x.json", say=lines.append).overlaps == first.overlaps
    assert sum("copies of images" in line for line in lines) == 1
    next(Path("x.results").glob("overlap-*")).write_text("[1]")
    assert not run("a", "b", "c", json="x.json", skip_overlap=True).overlaps


@pytest.mark.usefixtures("_models")
def test_data_of_earlier_runs_count_and_what_is_not_known_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seeds in (("x", (0, 1, 2, 6)), ("y", range(2, 7))):  # 2 is smaller in y, 6 the same file
        Path(name).mkdir()
        for i in seeds:
            blocks(i).resize((160, 120) if (name, i) == ("y", 2) else (320, 240)).save(f"{name}/{i}.png")
            Path(name, f"{i}.txt").write_text(f"Rectangles {i}.")
    recipes: dict[str, Any] = {
        "a": {
            "data": {"paths": [DATA], "images": "x"},
            "init_from": "b",
            "average": {"d": 0.5, "its start": 0.5},
        },
        "b": {"data": {"paths": ["x"]}, "init_from": "c", "model": {"text": {"pretrained": "x/clip"}}},
        "c": {"data": {}, "init_from": "a", "model": {"text": {"encoder": {"pretrained": "pip:y"}}}},
    }
    for name, recipe in recipes.items():
        Path(name, "recipe.yaml").write_text(json.dumps(recipe))
    assert training_of("a") == (((DATA, None), ("x", None)), ("d", "x/clip", "pip:y"))
    monkeypatch.setattr("grainline.data.overlap.LIMIT", 3)
    result = run("a", data="y").overlaps
    note = "not known: the data of d, x/clip, pip:y; 1 image compared by bytes alone"
    assert result == (Overlaps("a", "y", 5, 1, 1, note),)
    assert training_of("nowhere/at/all") == ((), ("nowhere/at/all",))


def gain(value: float, p: float, unit: str = "%", seeds: tuple[float, ...] = ()) -> Gain:
    return Gain("m", 0, "x", value, value - 0.5, value + 0.5, unit, p, 1.0, seeds, "undecided")


def test_a_verdict_needs_the_adjusted_p_and_all_seeds() -> None:
    gains = [gain(1, 0.001), gain(-1, 0.001), gain(1, 0.001, seeds=(2, -0.1))]
    gains += [gain(1, 0.02), gain(-2, 0, "rank")]
    verdicts = " ".join(one.verdict for one in judged(gains, 0.95))
    assert verdicts == "better worse undecided better better"
    gains += [gain(1, 0.02)] * 3
    assert judged(gains, 0.95)[3].verdict == "undecided"


def slow_holm(p: list[float]) -> list[float]:
    """Each p is the smallest level at which Holm's steps reject it."""
    levels = sorted({min(1.0, x * k) for x, k in product(p, range(1, len(p) + 1))} | {1.0})
    out = []
    for i in range(len(p)):
        for level in levels:
            rejected = set()
            for step, j in enumerate(sorted(range(len(p)), key=lambda j: (p[j], j))):
                if p[j] > level / (len(p) - step) * (1 + 1e-12):
                    break
                rejected.add(j)
            if i in rejected or level == 1.0:
                out.append(level)
                break
    return out


def test_holm_against_its_steps_and_a_worked_example() -> None:
    assert holm([]) == []
    # 5 x 0.001, 4 x 0.01, 3 x 0.02, 2 x 0.03 and 1 x 0.04, which may not be below the one before
    assert holm([0.04, 0.001, 0.03, 0.01, 0.02]) == pytest.approx([0.06, 0.005, 0.06, 0.04, 0.06])
    generator = np.random.default_rng(0)
    for number in (1, 2, 5, 9):
        p = [round(float(x), 2) for x in generator.uniform(0, 0.3, number)]
        assert holm(p) == pytest.approx(slow_holm(p))


def test_p_counts_resamples_on_the_other_side() -> None:
    samples = np.random.default_rng(0).normal(1, 1, 999)
    assert two_sided(samples) == pytest.approx(2 * sum(x <= 0 for x in samples) / 999)
    assert two_sided(-samples) == two_sided(samples)
    assert two_sided(np.ones(999)) == 0.001
    assert two_sided(np.zeros(5)) == 1


@pytest.mark.parametrize("unit", ["%", "rank"])
def test_ranks_against_loops_over_resamples(unit: str) -> None:
    samples = np.random.default_rng(0).integers(0, 4, (3, 50)).astype(float)
    sign = 1 if unit == "rank" else -1
    slow = np.zeros(samples.shape)
    first = np.zeros(3)
    for r in range(50):
        column = [sign * x for x in samples[:, r]]
        for i in range(3):
            spots = [place for place, x in enumerate(sorted(column), 1) if x == column[i]]
            slow[i, r] = sum(spots) / len(spots)
            first[i] += (column[i] == min(column)) / column.count(min(column)) / 50
    assert np.array_equal(places(samples, unit), slow)
    table = {name: MetricSamples(samples[i, 0], samples[i], 1, None, 0, unit) for i, name in enumerate("abc")}
    for i, one in enumerate(ranks_of(0, "x", table, 0.9)):
        assert one.rank == slow[i, 0]
        assert one.mean == pytest.approx(slow[i].mean())
        assert (one.low, one.high) == tuple(np.quantile(slow[i], [0.05, 0.95]))
        assert one.first == pytest.approx(first[i])


@pytest.mark.usefixtures("_models")
def test_what_a_model_cannot_do_is_a_cell_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    models, suites = ("a", "c", "--base", "c"), ("--suite", "retrieval", "inactivity")
    options = "--set", "retrieval.protocol=coco-5k", "--json", "x.json"
    assert call("compare", *models, "--data", f"few={DATA}", *suites, *options) == 0
    result = Comparison.load("x.json")
    assert result.base == "c"
    reasons = [cell.reason for cell in result.cells]
    assert all("coco-5k needs exactly 5000" in reason for reason in reasons[:2])
    assert all(reasons[2:])
    assert not result.gains
    out, error = capsys.readouterr()
    assert f"a on few, retrieval: {reasons[0]}" in out
    assert "1 of 4: a on few, retrieval" in error
    assert "4 of 4: c on few, inactivity" in error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("a", "--data", DATA, "--base", "d"), "no model 'd'"),
        (("a", "x/a", "nowhere/b", "--data", DATA), "nowhere/b"),
        (("a", "b", "--data", DATA, "--captions", "eech"), "did you mean each"),
        (("a", "n=b", "n=c", "--data", DATA), "have the same name, n"),
        (("a", "b=b,b", "--data", DATA), "names a run twice"),
        (("x=a,c", "--data", DATA), "seeds are runs of one method"),
        (("a", "--data", DATA, "--suite", "cola", "probes", "--set", "resize=squash"), "SUITE.resize=squash"),
        (("a", "b"), "cannot read"),
        (("a",), "models need data"),
        (("a.json", "b.json", "--out", "x.html"), "needs data"),
        (("a", "--data", DATA, "--out", "x.html", "--json", "x.html"), "name two files"),
    ],
)
@pytest.mark.usefixtures("_models")
def test_mistakes_are_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    assert words in complaint(capsys, "compare", *arguments)


def test_published_numbers_are_those_of_the_protocol() -> None:
    docci = published("docci", ["image to text R@1", "text to image R@1", "rSum"])
    assert {(x.model, x.measure, x.value) for x in docci} >= {
        ("HiMo-CLIP", "text to image R@1", 79.9),
        ("CAFT++", "image to text R@1", 80.4),
    }
    regions = published("fg-ovd", ["accuracy", "accuracy, hard", "accuracy, trivial"])
    ours = {x.measure: x.value for x in regions if x.model == "beta-CLIP-CE"}
    assert ours == {"accuracy, hard": 30.9, "accuracy, trivial": 80.3}
    assert published("plain", ["image to text R@1"]) == ()
