"""The contract of all suites: JSON, pooling, comparison, page, options; and a suite from outside."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from indexes import TEXTS, photo, saved, tiny_model
from make import SEGMENTS
from runs import call, complaint

from grainline.data.open_source import open_source, open_sources
from grainline.errors import UserError
from grainline.evaluation import SUITES
from grainline.evaluation.compare import compare, pooled
from grainline.evaluation.evaluate_model import write_html
from grainline.evaluation.examples import Evaluation
from grainline.evaluation.result import Result, read, write
from grainline.evaluation.score import Cosine
from grainline.evaluation.suite import Settings, load_suite, suite_class, suite_of
from grainline.evaluation.suites.grouped import CLUSTERINGS
from grainline.model import Model

Capture = pytest.CaptureFixture[str]
SCENES = "scenes:dev?count=24&size=32"
SETTINGS = Settings(batch_size=8, max_corrupt=0.0, resamples=40)
CAFT = ("heads=2", "composer.depth=1", "composer.heads=2", "chunks=2")
MODELS: dict[str, tuple[Any, ...]] = {
    "similarity": ("beta_clip",),
    "own-caption": ("beta_clip",),
    "inactivity": ("caft", SEGMENTS, CAFT),
    "zeroshot": ("clip",),
}
DRAWS = 40
NO_VECTORS = {"inactivity", "comprehension"}  # with chance, measured on weights and maps of the model
NO_SCORES = NO_VECTORS | {"referring", "fg-ovd", "phrases", "similarity"}  # what they measure is collected


def model_of(name: str, seed: int) -> Model:
    method, *rest = MODELS.get(name, ("maxsim",))
    return tiny_model(method, seed, *rest)


def source_of(name: str, folder: Path) -> Any:
    if name != "cola":
        return open_source(SCENES)
    for i in range(12):
        photo(folder / "images" / f"{i}.png", i)
    rows = [[f"x/{2 * i}.png", TEXTS[2 * i], f"x/{2 * i + 1}.png", TEXTS[2 * i + 1]] for i in range(6)]
    (folder / "items.json").write_text(json.dumps(rows))
    return open_sources([str(folder / "items.json")], images=str(folder / "images"))


def measured(name: str, folder: Path, seed: int = 0, batch: int = 8) -> Evaluation:
    suite: Any = load_suite(name)
    model, source = model_of(name, seed), source_of(name, folder)
    data = suite.encode(model, source, SETTINGS._replace(batch_size=batch))
    result = suite.measure(model.method, data, SETTINGS)
    return Evaluation(
        model, source, data, result._replace(settings=result.settings | {"model": "a", "method": "b"})
    )


@pytest.fixture(scope="module")
def on(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    """The suite of this name, measured on a model of random weights; no test changes it."""
    return measured(request.param, tmp_path_factory.mktemp("suite"))


@pytest.mark.parametrize("on", SUITES, indirect=True)
def test_every_suite_keeps_the_contract(on: Evaluation, tmp_path: Path) -> None:
    name = on.result.suite
    result, suite = on.result, suite_of(on.result)
    assert (result.suite, suite.key, result.settings["resamples"]) == (name, name, 40)
    assert suite_class(name).__doc__
    assert result.settings["options"] == suite.options.model_dump(mode="json")
    write(result, tmp_path / "r.json")
    assert read(tmp_path / "r.json") == result
    for metric in result.metrics:
        assert metric.low <= metric.value <= metric.high or metric.low == pytest.approx(metric.high), metric
    same = compare(result, result)
    assert [one.name for one in same] == [metric.name for metric in result.metrics]
    assert {(one.value, one.low, one.high) for one in same} == {(0.0, 0.0, 0.0)}
    write_html(tmp_path / "page.html", load_suite(name), on)
    page = (tmp_path / "page.html").read_text()
    assert result.metrics[0].name.replace(">", "&gt;") in page
    seeds = [result, measured(name, tmp_path, 1).result]
    for one in compare(seeds[1], result):
        difference = seeds[1].metric(one.name).value - result.metric(one.name).value
        assert one.value == pytest.approx(difference, abs=1e-9), one.name
    together = pooled(seeds)
    assert [metric.name for metric in together.metrics] == [metric.name for metric in result.metrics]
    for metric in together.metrics:
        values = together.settings["runs"][metric.name]
        assert len(values) == 2
        assert metric.queries == sum(one.metric(metric.name).queries for one in seeds)
        assert min(values) - 1e-9 <= metric.value <= max(values) + 1e-9
    with pytest.raises(UserError, match=r"unknown field 'nothing'|has no options"):
        load_suite(name, ["nothing=1"])
    if on.data.collected:  # retrieval needs images and captions alone
        with pytest.raises(UserError, match="was encoded"):
            suite.measure(on.model.method, on.data._replace(collected={}), SETTINGS)


def with_random_vectors(value: Any, generator: torch.Generator, scale: float = 1.0) -> Any:
    """The same with random unit vectors for all rows, times a scale, and scores that compare them."""
    if isinstance(value, dict):
        return {name: with_random_vectors(inner, generator, scale) for name, inner in value.items()}
    if not hasattr(value, "_fields"):
        return value
    fields = {name: with_random_vectors(inner, generator, scale) for name, inner in value._asdict().items()}
    if isinstance(fields.get("vector"), torch.Tensor):
        fields["vector"] = scale * F.normalize(torch.randn(len(value.vector), 8, generator=generator), dim=1)
    return value._replace(**fields | ({"scorer": Cosine()} if "scorer" in fields else {}))


@pytest.mark.parametrize("on", [name for name in SUITES if name not in NO_VECTORS], indirect=True)
def test_random_vectors_reach_chance(on: Evaluation) -> None:
    suite = load_suite(on.result.suite)
    if all(metric.chance is None for metric in on.result.metrics):
        return
    generator = torch.Generator().manual_seed(0)
    settings = SETTINGS._replace(resamples=2)
    results = [
        suite.measure(Cosine(), with_random_vectors(on.data, generator), settings) for _ in range(DRAWS)
    ]
    for metric in on.result.metrics:
        values = np.array([result.metric(metric.name).value for result in results])
        error = values.std(ddof=1) / DRAWS**0.5
        assert error > 0, metric.name
        tied = metric.ties / metric.queries  # ties count as wrong
        assert abs(values.mean() - metric.chance) < 5 * error + tied, metric


@pytest.mark.parametrize("on", [name for name in SUITES if name not in NO_SCORES], indirect=True)
def test_scores_that_are_no_numbers_are_refused(on: Evaluation) -> None:
    data = with_random_vectors(on.data, torch.Generator(), torch.nan)
    with pytest.raises(UserError, match="are not a number"):
        load_suite(on.result.suite).measure(Cosine(), data, SETTINGS)


@pytest.mark.parametrize("on", SUITES, indirect=True)
def test_the_size_of_batches_decides_nothing(on: Evaluation, tmp_path: Path) -> None:
    again = measured(on.result.suite, tmp_path, batch=5).result
    for metric in on.result.metrics:
        if not metric.name.endswith(CLUSTERINGS):  # the last bits of states decide
            assert again.metric(metric.name).value == pytest.approx(metric.value, 1e-3, 1e-4), metric.name


# A suite from outside


def documented() -> str:
    """The suite of docs/evaluation.md."""
    text = (Path(__file__).parent.parent / "docs" / "evaluation.md").read_text()
    got = re.search(r"```python\n(# lead\.py\n.*?)```", text, re.DOTALL)
    assert got is not None
    return got[1]


def test_a_suite_from_outside_runs_from_the_command_line_to_json_and_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    model = saved(tiny_model("maxsim"), tmp_path / "model")
    (tmp_path / "lead.py").write_text(documented())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    ask = ["evaluate", model, "--data", SCENES, "--suite", "lead:LeadSuite"]
    assert call(*ask, "--json", "r.json", "--html", "r.html") == 0
    result: Result = read(tmp_path / "r.json")
    assert (result.suite, result.metrics[0].name, result.metrics[0].queries) == (
        "lead:LeadSuite",
        "own text first",
        24,
    )
    assert list(result.queries) == ["keys", "right"], "the frame names the images"
    assert "own text first" in (tmp_path / "r.html").read_text()
    assert call(*ask, "--compare-to", "r.json") == 0
    assert "compared to r.json" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(UserError, match=r"the result is of other:Suite; load it first"):
        suite_of(result._replace(suite="other:Suite"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere_at_all:Suite", "cannot be imported: ModuleNotFoundError"),
        ("json:Suite", "is no class derived from grainline.evaluation.suite.Suite"),
        ("json:loads", "is no class derived from grainline.evaluation.suite.Suite"),
        ("grainline.evaluation.suite:Suite", "defines not all of name, outcomes and metrics"),
    ],
)
def test_what_is_no_suite_is_one_line(name: str, said: str, capsys: Capture) -> None:
    assert said in complaint(capsys, "evaluate", "x", "--data", SCENES, "--suite", name)


def test_suites_are_listed_with_their_options(capsys: Capture) -> None:
    assert call("suites") == 0
    out = capsys.readouterr().out
    assert all(name in out for name in SUITES)
    assert call("suites", "retrieval") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "protocol" in out
    assert "coco-1k" in out
    assert call("suites", "cola") == 0
    assert "no options" in capsys.readouterr().out


def test_options_take_the_name_of_the_suite_before_them() -> None:
    assert load_suite("retrieval", ["retrieval.protocol=coco-5k"]).options.protocol == "coco-5k"
    with pytest.raises(UserError, match="unknown field 'stability'"):
        load_suite("retrieval", ["stability.noise_seed=1"])
