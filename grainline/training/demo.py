"""The demo: train a small model on drawn scenes, measure it on unseen ones, and write one page about it.

`grainline train` and `grainline evaluate` do the same piece by piece. The page is OUT/report.html, and the
numbers are OUT/*.json.
"""

from pathlib import Path

from rich.console import Console

from grainline.data.open_source import open_source
from grainline.evaluation.encode import Encodings
from grainline.evaluation.evaluate_model import metrics_section, table
from grainline.evaluation.examples import Evaluation
from grainline.evaluation.result import Result, write
from grainline.evaluation.suite import load_suite
from grainline.loading import load
from grainline.report.charts import charts
from grainline.report.page import Section, render_page, write_page
from grainline.report.page import summary as page_summary
from grainline.training.log import read_log
from grainline.training.recipe import read_recipe
from grainline.training.report import REPORT_FILE, curves
from grainline.training.run import train

RECIPE = "maxsim/scenes"


def demo(out: Path, changes: list[str], scenes: int = 500, *, verbose: bool = False) -> None:
    """Train, or go on where an earlier demo stopped; measure; write the report and print its path.

    changes  of the recipe, as for `grainline train --set`
    scenes   images to measure on, of usual combinations and of those that training never has
    verbose  print all metrics as tables too
    """
    console = Console()
    recipe = read_recipe(RECIPE, changes)
    console.print(
        f"Training {RECIPE} on drawn scenes, {recipe.train.max_steps} steps of "
        f"{recipe.train.global_batch_size}."
    )
    model = load(train(recipe, out, resume=(out / "recipe.yaml").is_file()))
    size = model.method.size
    unseen, composed = (
        open_source(f"scenes:{split}?count={scenes}", size=size) for split in ("dev", "compose")
    )
    retrieval, probes = load_suite("retrieval"), load_suite("probes")
    encodings, compared = retrieval.encode(model, unseen), probes.encode(model, unseen)
    results = {
        "retrieval": retrieval.measure(model.method, encodings),
        "probes": probes.measure(model.method, compared),
        "composition": retrieval.measure(model.method, retrieval.encode(model, composed)),
    }
    for name, result in results.items():
        write(result, out / f"{name}.json")
    novel = results["composition"]
    tables = [
        *list(results.values())[:2],
        novel._replace(suite=f"{novel.suite}, combinations never trained on"),
    ]
    for result in tables if verbose else ():
        console.print(table(result))
    page = out / REPORT_FILE
    summary = _summary(results, encodings)
    evaluation = Evaluation(model, unseen, encodings, results["retrieval"])
    sections = [metrics_section(tables), Section("Training", charts(curves(read_log(out))))]
    sections += retrieval.sections(evaluation)
    sections += probes.sections(evaluation._replace(data=compared, result=results["probes"]))
    title = "grainline demo: sentences matched with patches of drawn scenes"
    write_page(page, render_page(title, page_summary(summary), sections))
    for name, value in summary.items():
        console.print(f"{name}: {value.replace(chr(10), ', ')}", highlight=False)
    console.print(f"Report: {page.resolve()}", highlight=False, soft_wrap=True)


def _summary(results: dict[str, Result], encodings: Encodings) -> dict[str, str]:
    first = results["retrieval"].metric("text to image R@1")
    novel = results["composition"].metric("text to image R@1")
    kinds = [metric for metric in results["probes"].metrics[1:]]
    worst = min(kinds, key=lambda metric: metric.value)
    words = {word.strip(".,;:'\"").lower() for text in encodings.strings for word in text.split()}
    return {
        "Text to image R@1": f"{first.text(first.value)}\n{first.ends()}, chance {first.text(first.chance)}",
        "On held-out combinations": f"{novel.text(novel.value)}\n{novel.ends()}",
        "Right against the hardest kind of foil": f"{worst.text(worst.value)}\n{worst.name}, chance 50 %",
        "Different words in the captions": str(len(words)),
    }
