"""Classification by prompts against loops in float64, its files and options; results against earlier ones."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from readers import D, Reader, encoded
from runs import call, complaint, recipe
from test_intervals import interval
from torch import Tensor

from grainline.data.open_source import open_source
from grainline.errors import UserError
from grainline.evaluation.compare import compare, pooled, with_comparison
from grainline.evaluation.encode import Encodings
from grainline.evaluation.evaluate_model import as_text
from grainline.evaluation.result import Result, from_json, read, to_json
from grainline.evaluation.statistics import Interval, replicates, wilson
from grainline.evaluation.suite import Settings, metrics_of
from grainline.evaluation.suites.zeroshot import (
    PER_CLASS,
    TEMPLATES,
    PromptCollector,
    ZeroshotSuite,
    confusions,
    judge,
    mean_of_classes,
    number_classes,
    read_classes,
    read_templates,
)
from grainline.hub import fingerprint
from grainline.loading import load
from grainline.training.recipe import read_recipe
from grainline.training.run import train

Capture = pytest.CaptureFixture[str]


class Drawn(Reader):
    """Every text has a random vector and some random tokens of its own; an image is its colour."""

    lean = 0.0

    def of(self, text: str) -> tuple[Tensor, Tensor]:
        own = self.random(text, 2 + len(text) % 3)
        return own[0], own[1:]

    def patches(self, image: Image.Image) -> Tensor:
        return torch.tensor([[*map(float, image.getpixel((0, 0))), *[0.0] * (D - 3)]])  # type: ignore[arg-type]


def random_images(labels: Sequence[str], seed: int = 0) -> Encodings:
    g = torch.Generator().manual_seed(seed)
    images = encoded(F.normalize(torch.randn(len(labels), D, generator=g), dim=1))
    none = encoded(torch.zeros(0, D))
    n = len(labels)
    keys = tuple(f"p{i}" for i in range(n))
    places = tuple(range(n))
    return Encodings(images, none, keys, tuple(labels), "made", f"f{n}", "first", n, {}, (), 0, 0, places)


LABELS = [f"thing_{i % 11}" for i in range(40)]
SHORT = ("{}", "a photo of {}.", "{}!")


@pytest.mark.parametrize("pairwise", [False, True])
@pytest.mark.parametrize(("memory", "batch"), [(2**28, 64), (6000, 1), (3000, 7)])
def test_classes_are_ranked_as_by_loops_in_float64(pairwise: bool, memory: int, batch: int) -> None:
    model = Drawn(pairwise)
    data = with_classes(model, random_images(LABELS), SHORT, None, batch)
    names = sorted({label.replace("_", " ") for label in LABELS})
    assert data.collected["zeroshot"].names == tuple(names)
    got = judge(model.method, data.images, data.collected["zeroshot"], memory)
    for n, label in enumerate(LABELS):
        image = data.images.vector[n].double()
        score = []
        for name in names:
            drawn = [model.of(template.replace("{}", name)) for template in SHORT]
            if pairwise:
                score.append(np.mean([max(float(image @ token.double()) for token in x) for _, x in drawn]))
            else:
                mean = sum((vector.double() for vector, _ in drawn), torch.zeros(D).double()) / len(SHORT)
                score.append(float(image @ (mean / mean.norm())))
        true = names.index(label.replace("_", " "))
        ahead = sum(value >= score[true] for c, value in enumerate(score) if c != true)
        assert int(got.rank[n]) == 1 + ahead
        wrong = [c for c in range(len(names)) if c != true]
        assert int(got.other[n]) == max(wrong, key=score.__getitem__)
    assert not got.tied.any()
    if pairwise and memory < 10**4:
        pairs = [n * m for n, m in model.method.scored]
        assert max(pairs) < 40 * 33 / 2, "the limit cuts the scores into tiles"
        assert sum(pairs) == 40 * 33
    with pytest.raises(UserError, match="a memory limit of 9 bytes is too small"):
        judge(model.method, data.images, data.collected["zeroshot"], 9)


# Metrics of outcomes that are known by heart


def outcomes(
    rank: Sequence[int], label: Sequence[int], classes: int, tied: Sequence[int] = ()
) -> dict[str, Any]:
    predicted = [c if r == 1 else (c + 1) % classes for r, c in zip(rank, label, strict=True)]
    return {
        "keys": [f"p{i}" for i in range(len(rank))],
        "classes": [f"c{i}" for i in range(classes)],
        "label": list(label),
        "rank": list(rank),
        "tied": list(tied) or [0] * len(rank),
        "predicted": predicted,
    }


RANK, LABEL = [1, 1, 1, 5, 6, 1, 2, 7], [0, 0, 0, 0, 0, 1, 1, 4]


def test_accuracies_of_ranks_that_are_known_by_heart() -> None:
    options = Settings(resamples=300, seed=5)
    one, five, mean = metrics_of(
        ZeroshotSuite().metrics([outcomes(RANK, LABEL, 7, [0, 0, 0, 1, 0, 0, 1, 0])], options), options
    )
    assert (one.name, five.name, mean.name) == ("top-1 accuracy", "top-5 accuracy", PER_CLASS)
    assert (one.value, five.value) == (50, 75)
    assert mean.value == pytest.approx(100 * (3 / 5 + 1 / 2 + 0) / 3), (
        "classes without images count for nothing"
    )
    assert (one.chance, five.chance, mean.chance) == pytest.approx((100 / 7, 500 / 7, 100 / 7))
    assert {(m.queries, m.ties, m.unit) for m in (one, five, mean)} == {(8, 2, "%")}
    ends = interval(100.0 * (np.array(RANK) == 1), resamples=300, seed=5)
    assert Interval(one.value, one.low, one.high) == pytest.approx(ends)
    assert one.wilson == tuple(100 * end for end in wilson(4, 8)[1:])
    assert five.wilson == tuple(100 * end for end in wilson(6, 8)[1:])
    assert mean.wilson is None


def classes_by_loops(values: list[float], classes: list[int], drawn: list[int]) -> float:
    """The mean over the classes that were drawn of the mean of what was drawn of each."""
    of: dict[int, list[float]] = {}
    for i in drawn:
        of.setdefault(classes[i], []).append(values[i])
    return sum(sum(ours) / len(ours) for ours in of.values()) / len(of)


def test_resamples_of_classes_are_those_of_the_loops() -> None:
    values, classes = [1.0, 0, 0, 0, 1, 1, 0], [4, 4, 4, 4, 2, 2, 5]
    queries = outcomes([1 if value else 2 for value in values], classes, 6)
    drawn = ZeroshotSuite().metrics([queries], Settings(resamples=50, seed=1))[PER_CLASS].samples
    chosen = np.random.default_rng(1).integers(0, 7, size=(50, 7)).tolist()
    np.testing.assert_allclose(drawn, [classes_by_loops(values, classes, one) for one in chosen])


def test_a_tie_with_another_class_is_wrong_and_named_as_confusion() -> None:
    class Same(Drawn):
        def of(self, text: str) -> tuple[Tensor, Tensor]:
            return super().of("x" if text in ("cat", "dog") else text)

    model = Same()
    vector = torch.stack([model.of("x")[0], model.of("cow")[0], model.of("x")[0]])
    images = random_images(["cat", "cow", "dog"])
    data = with_classes(model, images._replace(images=encoded(vector)), ["{}"])
    result = ZeroshotSuite().measure(model.method, data)
    assert result.metric("top-1 accuracy").value == pytest.approx(100 / 3)
    assert result.metric("top-1 accuracy").ties == 2
    assert result.queries["predicted"] == [2, 1, 0], "cat is taken for dog and dog for cat"
    assert result.queries["rank"] == [2, 1, 2]


def test_the_most_frequent_confusions_come_first() -> None:
    queries = outcomes([1, 2, 2, 3, 2, 1], [0, 0, 0, 1, 1, 2], 4)
    queries["predicted"] = [0, 2, 2, 3, 0, 2]
    assert confusions(queries) == [("c0", "c2", 2), ("c1", "c0", 1), ("c1", "c3", 1)]


# Prompts and classes


def test_files_of_templates_and_classes_are_read(tmp_path: Path) -> None:
    file = tmp_path / "x.txt"
    file.write_text("{}\n\n a photo of {}. \n")
    assert read_templates(str(file)) == ("{}", "a photo of {}.")
    file.write_text("n01\ttench\nhot_dog\nn02\t great  shark\n")
    assert read_classes(str(file)) == {"n01": "tench", "hot dog": "hot dog", "n02": "great shark"}


@pytest.mark.parametrize(
    ("read_file", "text", "said"),
    [
        (read_templates, "{}\na photo\n", "template 2 of .* is 'a photo'; each needs {} once"),
        (read_templates, "{} and {}\n", "each needs {} once"),
        (read_templates, "{}.\nx {}\n{}.\n", r"given twice: '\{\}\.'; each must be unique"),
        (read_templates, "\n\n", "holds no text"),
        (read_classes, "hot_dog\ncat\nhot dog\n", "class of .* given twice: 'hot dog'"),
    ],
)
def test_mistakes_in_files_are_one_line(read_file: Any, text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text(text)
    with pytest.raises(UserError, match=said):
        read_file(str(tmp_path / "x.txt"))


@pytest.mark.parametrize(
    ("labels", "listed", "said"),
    [
        (["cat", "cat"], None, "x has one class only, 'cat'; classification needs two at least"),
        (["Cat", "cat"], None, "name of a class of x given twice: 'cat'"),
        (["a", "b"], {"a": "tern", "b": "Tern"}, "given twice: 'tern'"),
        (["a", "b", "c"], {"a": "a", "d": "d"}, "2 classes of x are not in the file of classes: b, c"),
    ],
)
def test_labels_that_are_no_set_of_classes_are_refused(
    labels: list[str], listed: dict[str, str] | None, said: str
) -> None:
    with pytest.raises(UserError, match=said):
        number_classes(labels, listed, "x")


def test_listed_classes_keep_their_order_and_those_without_images_are_only_wrong_answers() -> None:
    model = Drawn()
    listed = {"z": "zebra", "b": "bee", "a": "ant"}
    data = with_classes(model, random_images(["a", "z", "a", "a"]), ["{}"], listed)
    assert data.collected["zeroshot"].names == ("zebra", "bee", "ant")
    assert data.collected["zeroshot"].label.tolist() == [2, 0, 2, 2]
    assert model.texts == ["zebra", "bee", "ant"]
    result = ZeroshotSuite().measure(model.method, data)
    assert result.metric("top-1 accuracy").chance == pytest.approx(100 / 3)
    notes = " ".join(result.notes)
    assert "3 classes; always saying 'ant' would be right for 75.0% of the images" in notes
    assert "1 classes have no image and count only as wrong answers: bee" in notes
    assert "accuracy at 5 is left out: with 3 classes it could not fail" in notes
    assert result.settings["templates"] == ["{}"]
    assert (result.data["images"], result.data["texts"]) == (4, 3)


# A folder with one subfolder for each class


def painted_folder(home: Path) -> Path:
    shades = {"deep_red": (200, 0, 0), "green": (0, 200, 0), "sky blue": (0, 100, 250)}
    for name, colour in shades.items():
        for i in range(3):
            path = home / name / ("deep" if i else ".") / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), tuple(max(0, c - 10 * i) for c in colour)).save(path)  # type: ignore[arg-type]
    return home


def test_the_folder_of_a_image_is_its_class(tmp_path: Path) -> None:
    home = painted_folder(tmp_path / "set")
    source = open_source(f"classes:{home}")
    records = [source[i] for i in range(len(source))]
    assert [record.captions for record in records] == [
        (name,) for name in ("deep red", "green", "sky blue") for _ in "123"
    ]
    assert records[0].key == "deep_red/0.png"
    before = source.fingerprint()
    (home / "green").rename(home / "verde")
    assert open_source(f"classes:{home}").fingerprint() != before
    Image.new("RGB", (4, 4)).save(home / "loose.png")
    assert open_source(f"classes:{home}").remarks == ("1 images lie in no subfolder: loose.png",)  # type: ignore[attr-defined]
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match=r"holds no images in subfolders"):
        open_source(f"classes:{tmp_path / 'none'}")
    with pytest.raises(UserError, match="cannot be read"):
        open_source(f"classes:{tmp_path / 'gone'}")


# Against an earlier result


def with_classes(
    model: Any, data: Encodings, templates: Sequence[str] = TEMPLATES, listed: Any = None, batch: int = 64
) -> Encodings:
    prompts = PromptCollector(model, templates, listed, batch)
    classes = prompts.result(data)
    return data._replace(collected={"zeroshot": classes}, cut=data.cut + prompts.truncated)


def classified(seed: int, labels: Sequence[str] = LABELS, images: int = 0) -> Result:
    """Results on the same images that another model has encoded."""
    model = Drawn()
    drawn = random_images(labels, images)
    other = random_images(labels, seed).images.vector
    near = F.normalize(drawn.images.vector + 0.3 * other, dim=1)
    return ZeroshotSuite().measure(
        model.method,
        with_classes(model, drawn._replace(images=encoded(near)), SHORT),
        Settings(resamples=400),
    )


def test_a_difference_is_that_of_the_same_images() -> None:
    after, before = classified(1), classified(2)
    one, five, mean = compare(after, before)
    assert (one.name, five.name, mean.name) == tuple(metric.name for metric in after.metrics)
    a, b = (np.array(x.queries["rank"]) for x in (after, before))
    for got, k in ((one, 1), (five, 5)):
        change = 100 * ((a <= k).astype(float) - (b <= k))
        assert change.any(), "some image changed"
        assert (got.before, got.after) == (100 * (b <= k).mean(), 100 * (a <= k).mean())
        wanted = interval(change, resamples=400)
        assert (got.value, got.low, got.high) == pytest.approx(tuple(wanted))
    label = np.array(after.queries["label"])
    changed = np.stack([(a == 1).astype(float) - (b == 1), label], axis=1)
    drawn = 100 * replicates(changed, None, mean_of_classes, resamples=400)
    assert (mean.low, mean.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])))
    alone = after.metric(one.name)
    assert one.high - one.low < 2 * (alone.high - alone.low)


def test_results_of_other_images_texts_or_classes_are_not_compared() -> None:
    one = classified(1)
    with pytest.raises(
        UserError,
        match=r"^b.json was measured on .* \(39 images\), this result on .* \(40 images\): they cannot",
    ):
        compare(one, classified(1, LABELS[:39]), "b.json")
    with pytest.raises(UserError, match=r"^b.json asks other images, texts or classes"):
        compare(one, classified(1, LABELS[::-1]), "b.json")
    with pytest.raises(UserError, match="keeps no outcomes, as pooled results do"):
        compare(one, pooled([one, classified(2)]), "b.json")


def test_a_noted_difference_stands_in_the_json_and_in_a_table() -> None:
    after, before = classified(1), classified(2)
    before = before._replace(settings=before.settings | {"step": 7, "model": "old", "templates": ["{}"]})
    result = with_comparison(after, before, "b.json")
    assert from_json(to_json(result)) == result
    entry = result.settings["compared_to"]
    assert (entry["path"], entry["step"], entry["model"]) == ("b.json", 7, "old")
    assert entry["differences"][0]["after"] == after.metric("top-1 accuracy").value
    assert result.notes[-1] == "b.json was made with other templates: ['{}']"
    out = as_text(result).partition("compared to")[2]
    row = next(line for line in out.splitlines() if "top-1" in line)
    change = after.metric("top-1 accuracy").value - before.metric("top-1 accuracy").value
    assert f"{change:+.1f} " in row
    assert "95 % interval, paired" in out


def test_a_comparison_names_the_fields_in_which_recipes_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for name, fields in (
        ("a", "train: {lr: 0.1, seed: 1, f: [1], g: 0, h: 0, i: 0, j: 0}\n"),
        ("b", "train: {lr: 0.2, seed: 1, f: [2], g: 1, h: 1, i: 1, j: 1}\nmethod: clip\n"),
    ):
        for weights in ("last", "checkpoints/9"):
            (tmp_path / name / weights).mkdir(parents=True)
            (tmp_path / name / weights / "model.safetensors").touch()
        (tmp_path / name / "model.json").write_text("{}")
        (tmp_path / name / "recipe.yaml").write_text(fields)
        result = classified(1)
        results.append(result._replace(settings=result.settings | {"model": str(tmp_path / name)}))
    after, before = results
    assert with_comparison(after, before, "b.json").notes[-1] == (
        "the recipes differ in train.lr 0.1 (before 0.2), train.f [1] (before [2]), train.g 0 (before 1), "
        "train.h 0 (before 1), train.i 0 (before 1), train.j 0 (before 1) and 1 more fields"
    )
    inside = after.settings | {"model": str(tmp_path / "a" / "checkpoints" / "9")}
    assert with_comparison(after._replace(settings=inside), after, "a.json").notes[-1] == (
        "the recipes are the same"
    )
    monkeypatch.chdir(tmp_path / "b")
    for model in ("", "in memory", "none"):
        other = after._replace(settings=after.settings | {"model": model})
        assert not any("recipe" in note for note in with_comparison(other, before, "b.json").notes)


# The command


class Home(NamedTuple):
    run: Path
    photos: Path


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A run of two steps, and a folder of classes."""
    folder = tmp_path_factory.mktemp("zeroshot")
    train(read_recipe(recipe(folder, "maxsim"), ["train.max_steps=2"]), folder / "run")
    return Home(folder / "run", painted_folder(folder / "photos"))


def test_the_command_reads_prompts_and_classes(home: Home, tmp_path: Path, capsys: Capture) -> None:
    ask = ["evaluate", home.run, "--data", f"classes:{home.photos}", "--suite", "zeroshot"]
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    assert call(*ask, "--json", before) == 0
    result = read(before)
    assert result.settings["templates"] == list(TEMPLATES)
    assert result.settings["weights"] == str(home.run.resolve() / "last")
    assert (result.settings["step"], result.settings["fingerprint"]) == (2, fingerprint(load(home.run)))
    assert result.queries["classes"] == ["deep red", "green", "sky blue"]
    (tmp_path / "prompts.txt").write_text("{}\nthe colour {}\n")
    (tmp_path / "classes.txt").write_text("green\nsky_blue\tblue\ndeep_red\tred\nwhite\n")
    files = ("--set", f"prompts={tmp_path}/prompts.txt", f"classes={tmp_path}/classes.txt")
    assert call(*ask, *files, "--json", after) == 0
    result = read(after)
    assert result.queries["classes"] == ["green", "blue", "red", "white"]
    assert result.queries["label"] == [2] * 3 + [0] * 3 + [1] * 3
    assert result.settings["templates"] == ["{}", "the colour {}"]
    words = complaint(capsys, *ask[:-1], "probes", "--compare-to", before)
    assert f"{before} is a result of --suite zeroshot, not of probes" in words
