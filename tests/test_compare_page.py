"""The page of `grainline compare`: sentences, matrix, escaping, texts on which models disagree; cards."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import ModelCard
from indexes import saved, tiny_model
from runs import call
from test_viz import EVIL, Page

import grainline
from grainline.evaluation.comparison import (
    Cell,
    Column,
    Comparison,
    Cost,
    Entrant,
    Gain,
    Overlaps,
    Published,
    Rank,
)
from grainline.evaluation.comparison_page import findings, sure_best, write_comparison_html
from grainline.evaluation.disagreements import most_different
from grainline.evaluation.result import Metric, Result

DATA = "scenes:dev?count=24&size=32"
R1, MEDIAN = "text to image R@1", "text to image median rank"


def nothing(*_: Any) -> None:
    """No model reads descriptions."""


def comparison(text: str = "set", verdict: str = "better", high: float = 1.0) -> Comparison:
    """Two models in a column, the second one ahead, and one that could not be measured."""
    cost = Cost(text, 4, 1.5, 4, 0.25, 0.125, 4, 100.0)
    models = [
        Entrant(name, (f"{name}/run",), "model", {"method": text}, ("f",), {"all": 1234}, (text,), cost)
        for name in ("a", text, "c")
    ]
    column = Column(text, text, text, "retrieval", {}, "each", 100, 500, (R1, MEDIAN))
    column = column._replace(published=(Published(text, R1, 61.5, text),))

    def cell(name: str, value: float, rank: float) -> Cell:
        metrics = (
            Metric(R1, value, value - 2, value + 2, 500, 1.0, 0, "%"),
            Metric(MEDIAN, rank, rank - 1, rank + 1, 500, 50.5, 0, "rank"),
        )
        return Cell(name, 0, metrics, {R1: (value - 1, value + 1), MEDIAN: (rank,)}, notes=(text,))

    return Comparison(
        models=tuple(models),
        columns=(column,),
        cells=(cell("a", 30.0, 9.0), cell(text, 34.1, 5.0), Cell("c", 0, reason=f"{text} cannot")),
        base="a",
        gains=(
            Gain(text, 0, R1, 4.1, 2.0, 6.3, "%", 0.001, 0.002, (4.1,), verdict),
            Gain(text, 0, MEDIAN, -4.0, -5.0, -2.0, "rank", 0.001, 0.002, (-4.0,), verdict),
        ),
        ranks=(Rank("a", 0, R1, 2.0, 1.9, 1.0, 2.0, 0.1), Rank(text, 0, R1, 1.0, 1.1, 1.0, high, 0.9)),
        overlaps=(Overlaps(text, text, 100, 7, 3, text),),
        notes=(text,),
        settings={"level": 0.95, "seed": 0},
        versions={"grainline": text},
        time=text,
    )


def test_a_page_says_what_to_act_on_and_how_sure_it_is(tmp_path: Path) -> None:
    one = comparison()
    assert list(findings(one)) == [
        f"set is the best in {R1} on set: 34.1 % (32.1 to 36.1 %).",
        f"set is better than a in {R1} on set, by 4.1 points (2.0 to 6.3).",
        f"set is better than a in {MEDIAN} on set, by 4.0 (2.0 to 5.0).",
        "A model is better or worse than a where p after Holm over 2 differences is below 0.05, the paired"
        " 95% interval lacks 0, and all seeds agree.",
    ]
    other = one._replace(ranks=tuple(x._replace(measure=MEDIAN) for x in one.ranks))
    assert next(findings(other)) == f"set is the best in {MEDIAN} on set: 5.0 (4.0 to 6.0)."
    write_comparison_html(tmp_path / "x.html", one, {}, nothing)
    words = "".join(Page((tmp_path / "x.html").read_text()).words.split())
    for part in (
        "\N{BLACK STAR} 34.1 % 32.1 to 36.1 % seeds 33.1, 35.1 5.0 4.0 to 6.0",
        "chance 1.0 % 50.5",
        "published: set 61.5",
        "+4.1 better +2.0 to +6.3, p 0.002 rank 1.1 (1 to 1)",
        "a base rank 1.9 (1 to 2)",
        "1,234 1.50 0.25 0.12 4 100 set",
        "set set 100 7 3 set",
        "c, set: set cannot",
        "not measured",
    ):
        assert "".join(part.split()) in words


@pytest.mark.parametrize(
    ("verdict", "high", "best"),
    [("better", 1.0, "set"), ("undecided", 1.0, ""), ("better", 2.0, ""), ("worse", 1.0, "")],
)
def test_the_best_is_marked_where_ranks_and_differences_agree(verdict: str, high: float, best: str) -> None:
    one = comparison(verdict=verdict, high=high)
    assert sure_best(one, 0, R1) == best
    assert sure_best(one, 0, MEDIAN) == ""
    swapped = one._replace(base="set", gains=tuple(x._replace(model="a") for x in one.gains))
    assert sure_best(swapped, 0, R1) == ("set" if (verdict, high) == ("worse", 1.0) else "")


def test_what_data_and_models_are_called_is_text(tmp_path: Path) -> None:
    pages = []
    for text in ("x" * len(EVIL), EVIL):
        write_comparison_html(tmp_path / "x.html", comparison(text), {}, nothing)
        pages.append(Page((tmp_path / "x.html").read_text()))
    assert [tag for tag, _ in pages[0].tags] == [tag for tag, _ in pages[1].tags]
    assert EVIL in pages[1].words


# Examples


def result(rng: np.random.Generator, sizes: list[int]) -> Result:
    folds = []
    for size in sizes:
        image = np.repeat(np.arange(size), 3).tolist()
        numbers = rng.integers(1, 9, (2, len(image))).tolist()
        folds.append({"t2i": {"image": image, "rank": numbers[0], "first": numbers[1]}})
    return Result("retrieval", "plain", (), {}, {}, {}, 0, "", (), {"folds": folds})


def slow_most_different(better: Result, worse: Result, number: int) -> list[tuple[Any, ...]]:
    """The smallest fraction again and again, of images that were not taken."""
    queries = []
    for a, b in zip(better.queries["folds"], worse.queries["folds"], strict=True):
        for i, image in enumerate(a["t2i"]["image"]):
            text = a["t2i"]["image"][:i].count(image)
            both = [(x["t2i"]["rank"][i], x["t2i"]["first"][i]) for x in (a, b)]
            queries.append((0, image, text, *zip(*both, strict=True)))
    out: list[tuple[Any, ...]] = []
    while len(out) < number:
        best = None
        for one in queries:
            fraction = Fraction(*one[3])
            if fraction >= 1 or one[1] in [x[1] for x in out]:
                continue
            if best is None or (fraction, one[3][0]) < (Fraction(*best[3]), best[3][0]):
                best = one
        if best is None:
            break
        out.append(best)
    return out


@pytest.mark.parametrize("number", [1, 3, 50])
def test_disagreements_are_the_largest_factors_of_ranks_one_an_image(number: int) -> None:
    rng = np.random.default_rng(number)
    a, b = result(rng, [7, 5]), result(rng, [7, 5])
    for better, worse in ((a, b), (b, a)):
        assert [tuple(one) for one in most_different(better, worse, number)] == slow_most_different(
            better, worse, number
        )
    assert most_different(a, a, number) == []


def test_examples_show_both_models_and_the_heat_of_those_that_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, method, seed in (("a", "maxsim", 0), ("<b>", "maxsim", 1), ("c", "clip", 0)):
        saved(tiny_model(method, seed), tmp_path / name)
    assert call("encode", "c", DATA, "--captions", "whole", "--out", "v") == 0
    out = grainline.compare("a", "<b>", "v", data={"dev": DATA}, captions="whole", out="x.html", batch_size=8)
    assert isinstance(out, Comparison)
    page = Page(Path("x.html").read_text())
    for better, worse in (("a", "<b>"), ("<b>", "a"), ("a", "v"), ("v", "a")):
        title = f"Found by {better}, missed by {worse}"
        assert page.words.count(title) == 2, "in the list of contents, and above"
    assert page.words.count(" of 24, dev, retrieval") == 24, "three texts, two ways, two pairs, two models"
    looks = [attributes["name"] for tag, attributes in page.tags if tag == "input"]
    assert len(set(looks)) == 18, "vectors of another program do not look"
    assert Path("x.html").stat().st_size < 1_500_000
    assert {path.name for path in Path("x.results/cards").iterdir()} == {"a", "b"}
    for name, folder in (("a", "a"), ("<b>", "b")):
        card = ModelCard.load(Path("x.results/cards") / folder / "README.md")
        metrics = out.cell(name, 0).metrics
        assert [x.metric_value for x in card.data.eval_results] == [round(m.value, 4) for m in metrics]
