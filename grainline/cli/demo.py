"""The demo: train a small model on drawn scenes, measure it on unseen ones, and write one page about it.

Everything here can be had piece by piece with `grainline train` and `grainline evaluate`; the page is
OUT/report.html, the numbers are OUT/*.json.
"""

from pathlib import Path

from rich.console import Console

from grainline.data.open_source import open_source
from grainline.evaluation.encode import Encodings, encode_source
from grainline.evaluation.pages.examples import Measured
from grainline.evaluation.pages.report import metrics, outcomes
from grainline.evaluation.result import Result, write
from grainline.evaluation.suites.ranking import PROBES, probes_suite
from grainline.evaluation.suites.registry import retrieval_suite
from grainline.evaluation.table import table
from grainline.model import load
from grainline.report.page import Section, render_page, write_page
from grainline.report.page import summary as page_summary
from grainline.report.table import charts
from grainline.training.log import read_log
from grainline.training.recipe import read_recipe
from grainline.training.report import NAME, curves
from grainline.training.run import run

RECIPE = "maxsim/scenes"


def demo(out: Path, changes: list[str], scenes: int = 500) -> None:
    """Train, or go on where an earlier demo stopped; measure; write the report and say where it lies.

    changes  of the recipe, as for `grainline train --set`
    scenes   held-out pictures to measure on, of usual and of never seen combinations each
    """
    console = Console()
    recipe = read_recipe(RECIPE, changes)
    console.print(f"Training {RECIPE} on drawn scenes, {recipe.train.steps} steps of {recipe.train.batch}.")
    model = load(run(recipe, out, resume=(out / "recipe.yaml").is_file()))
    size = model.method.size
    unseen, composed = (
        open_source(f"scenes:{split}?count={scenes}", size=size) for split in ("dev", "compose")
    )
    encodings = encode_source(model, unseen, probes=True)
    results = {
        "retrieval": retrieval_suite(model.method, encodings),
        PROBES: probes_suite(model.method, encodings),
        "composition": retrieval_suite(model.method, encode_source(model, composed)),
    }
    for name, result in results.items():
        write(result, out / f"{name}.json")
    novel = results["composition"]
    shown = [
        *list(results.values())[:2],
        novel._replace(suite=f"{novel.suite}, combinations never trained on"),
    ]
    for result in shown:
        console.print(table(result))
    page = out / NAME
    summary = _summary(results, encodings)
    on = Measured(model, unseen, encodings, results["retrieval"])
    sections = [metrics(shown), Section("Training", charts(curves(read_log(out)))), *outcomes(on)]
    sections += outcomes(on._replace(result=results[PROBES]))
    title = "grainline demo: sentences matched with patches of drawn scenes"
    write_page(page, render_page(title, page_summary(summary), sections))
    for name, value in summary.items():
        console.print(f"{name}: {value.replace(chr(10), ', ')}", highlight=False)
    console.print(f"Report: {page.resolve()}", highlight=False, soft_wrap=True)


def _summary(results: dict[str, Result], encodings: Encodings) -> dict[str, str]:
    first = results["retrieval"].metric("text to image R@1")
    novel = results["composition"].metric("text to image R@1")
    kinds = [metric for metric in results[PROBES].metrics[1:]]
    worst = min(kinds, key=lambda metric: metric.value)
    words = {word.strip(".,;:'\"").lower() for text in encodings.strings for word in text.split()}
    return {
        "Text to image R@1": f"{first.text(first.value)}\n{first.ends()}, chance {first.text(first.chance)}",
        "On held-out combinations": f"{novel.text(novel.value)}\n{novel.ends()}",
        "Right against the hardest kind of foil": f"{worst.text(worst.value)}\n{worst.name}, chance 50 %",
        "Different words in the captions": str(len(words)),
    }
