"""The demo: train a small model on drawn scenes, measure it on unseen ones, and write one page about it.

Everything here can be had piece by piece with `grainline train` and `grainline evaluate`; the page is
OUT/report.html, the numbers are OUT/*.json.
"""

from pathlib import Path
from typing import Any

from rich.console import Console

from grainline.data.captions import sentences
from grainline.data.record import Record, Source
from grainline.data.sources import open_source
from grainline.evaluate.encode import Encodings, encode_source
from grainline.evaluate.result import Result, write
from grainline.evaluate.score import retrieval_ranks, topk
from grainline.evaluate.suite import foils_suite, retrieval_suite
from grainline.evaluate.table import table
from grainline.experiment import run
from grainline.model import Model, load
from grainline.recipe import read_recipe
from grainline.train.log import read_log
from grainline.viz.charts import Chart, Series
from grainline.viz.overlay import limit_of, overlay
from grainline.viz.report import Example, HeatMap, Hit, write_report

RECIPE = "maxsim/scenes"
SHOWN = 6  # examples in the report


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
    encodings = encode_source(model, unseen, foils=True)
    results = {
        "retrieval": retrieval_suite(model.method, encodings),
        "foils": foils_suite(model.method, encodings),
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
    page = out / "report.html"
    summary = _summary(results, encodings)
    write_report(
        page,
        "grainline demo: sentences matched with patches of drawn scenes",
        summary,
        curves(out),
        shown,
        examples(model, unseen, encodings, SHOWN),
    )
    for name, value in summary.items():
        console.print(f"{name}: {value}", highlight=False)
    console.print(f"Report: {page.resolve()}", highlight=False, soft_wrap=True)


def _summary(results: dict[str, Result], encodings: Encodings) -> dict[str, str]:
    first = results["retrieval"].metric("text to image R@1")
    novel = results["composition"].metric("text to image R@1")
    kinds = [metric for metric in results["foils"].metrics[1:]]
    worst = min(kinds, key=lambda metric: metric.value)
    words = {word.strip(".,;:'\"").lower() for text in encodings.strings for word in text.split()}
    return {
        "Text to image R@1": f"{first.text(first.value)} ({first.ends()}), chance {first.text(first.chance)}",
        "On held-out combinations": f"{novel.text(novel.value)} ({novel.ends()})",
        "Right against the hardest kind of foil": f"{worst.text(worst.value)} ({worst.name}), chance 50 %",
        "Different words in the captions": str(len(words)),
    }


def curves(out: Path) -> list[Chart]:
    """Loss terms and images/s of a run, from its log."""
    lines = [line for line in read_log(out) if line["kind"] == "train"]
    steps = [line["step"] for line in lines]
    terms = list(lines[0]["terms"]) if lines else []
    losses = [Series(name, steps, [line["terms"][name] for line in lines]) for name in terms]
    speed = Series("images/s", steps, [line["images_per_s"] for line in lines])
    return [Chart("Loss", "step", "loss", losses), Chart("Speed", "step", "images/s", [speed])]


def examples(model: Model, source: Source, encodings: Encodings, number: int) -> list[Example]:
    """Retrievals by text, evenly from the best rank to the worst, with the heat of two sentences."""
    rank = retrieval_ranks(model.method, encodings.images, encodings.texts).t2i.rank
    order = rank.argsort(stable=True)
    chosen = order[[round(i * (len(order) - 1) / (number - 1)) for i in range(number)]].tolist()
    top = topk(model.method, encodings.images, encodings.texts, 5).t2i
    out = []
    for row in chosen:
        own = int(encodings.texts.image[row])
        hits = [
            Hit(model.seen(_record(source, i, encodings).image), score, i == own, encodings.keys[i])
            for i, score in zip(top.row[row].tolist(), top.score[row].tolist(), strict=True)
        ]
        heat = _heat(model, _record(source, own, encodings), encodings.strings[row])
        out.append(Example(encodings.strings[row], hits, int(rank[row]), len(encodings.keys), heat))
    return out


def _record(source: Source, row: int, encodings: Encodings) -> Record:
    """The record behind an encoded row; drawn scenes are never damaged, so rows are positions."""
    assert len(encodings.keys) == len(source), "rows are positions only where nothing was skipped"
    return source[row]


def _heat(model: Model, record: Record, text: str) -> list[HeatMap]:
    """The two longest sentences of a text over its own picture, on one scale."""
    told = sorted((s.text for s in sentences(text)), key=len)[-2:]
    maps: Any = model.heat(record.image, told).cpu().numpy()
    limit, seen = limit_of(maps), model.seen(record.image)
    return [HeatMap(overlay(seen, one, limit), text, limit) for text, one in zip(told, maps, strict=True)]
