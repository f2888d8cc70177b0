"""The demo: train a small model on drawn scenes, measure it on unseen ones, and write one page about it.

`grainline train` and `grainline evaluate` do the same piece by piece. The page is OUT/report.html, and the
numbers are OUT/*.json.
"""

import shlex
from pathlib import Path

from markupsafe import Markup
from PIL import Image
from rich.console import Console

from grainline.data.captions import sentences
from grainline.data.open_source import open_source
from grainline.evaluation.encode import Encodings
from grainline.evaluation.evaluate_model import metrics_section
from grainline.evaluation.examples import Evaluation, by_sentence, look_at
from grainline.evaluation.result import Result, write
from grainline.evaluation.suite import load_suite
from grainline.loading import load
from grainline.report.case import Case, CaseImage, WholeImage, cases_html
from grainline.report.charts import charts
from grainline.report.page import Section, folded, hint, render, render_page, summary, write_page
from grainline.training.log import read_log
from grainline.training.recipe import read_recipe
from grainline.training.report import REPORT_FILE, curves
from grainline.training.run import train

RECIPE = "maxsim/scenes"
SCENES, LONG = 6, 5  # images on the page, and sentences of the query at least
HITS = 3  # of the query
SIDE = 384  # pixels of a scene on the page, where the model reads far fewer
SUPPORT, ABSENT = 0.05, 0.2  # p up to which an image shows a sentence, and above which it does not
ABOUT = (
    "A small model that learnt from drawn scenes and their captions to match each sentence with the patches"
    " that it speaks of. It has never seen the scenes below."
)
SEES = (
    f"The {SCENES} unseen scenes with the fewest sentences. Point at a sentence, or choose it, to"
    " see where it shows more than sentences about other scenes do. Those in grey show nowhere more."
)

FINDS = (
    f"The model ranks {{images:,}} scenes by how well each shows all sentences. p is the share of sentences"
    f" about other scenes that score as high in an image: it shows a sentence up to {SUPPORT:g}, and does not"
    f" above {ABSENT:g}."
)


def demo(out: Path, changes: list[str], scenes: int = 500) -> None:
    """Train, or go on where an earlier demo stopped; measure; write the report and print its path.

    changes  of the recipe, as for `grainline train --set`
    scenes   images to measure on, of usual combinations and of those that training never has
    """
    console = Console()
    recipe = read_recipe(RECIPE, changes)
    steps = f"{recipe.train.max_steps:,} steps of {recipe.train.global_batch_size}"
    console.print(f"Training {RECIPE} on drawn scenes, {steps}.")
    model = load(train(recipe, out, resume=(out / "recipe.yaml").is_file()))
    size = model.method.size
    unseen = open_source(f"scenes:dev?count={scenes}", size=size)
    composed = open_source(f"scenes:compose?count={scenes}", size=size)
    retrieval, probes = load_suite("retrieval"), load_suite("probes")
    encodings, compared = retrieval.encode(model, unseen), probes.encode(model, unseen)
    results = {
        "retrieval": retrieval.measure(model.method, encodings),
        "probes": probes.measure(model.method, compared),
        "composition": retrieval.measure(model.method, retrieval.encode(model, composed)),
    }
    for name, result in results.items():
        write(result, out / f"{name}.json")
    *tables, novel = results.values()
    tables.append(novel._replace(suite=f"{novel.suite}, combinations never trained on"))
    page = out / REPORT_FILE
    numbers = _numbers(results, encodings, steps)
    evaluation = Evaluation(model, unseen, encodings, results["retrieval"])
    others = retrieval.sections(evaluation)
    others += probes.sections(evaluation._replace(data=compared, result=results["probes"]))
    details = [("Training curves", charts(curves(read_log(out)))), *((one.title, one.body) for one in others)]
    sections = [
        Section("What the model sees", _sees(evaluation)),
        *_query(evaluation),
        metrics_section(tables)._replace(title="Numbers"),
        Section("Details", Markup().join(folded(title, body) for title, body in details)),
        Section("Next", render("next.html", commands=commands(out))),
    ]
    title, lead = "grainline demo: what each sentence says of an image", hint(ABOUT) + summary(numbers)
    write_page(page, render_page(title, lead, sections))
    for name, value in numbers.items():
        console.print(f"{name}: {value.replace(chr(10), ', ')}", highlight=False)
    console.print(f"Report: {page.resolve()}", highlight=False, soft_wrap=True)


def commands(out: Path) -> dict[str, str]:
    """The next commands for a shell, each by a sentence about it."""
    run = shlex.quote(str(out))
    return {
        "Evaluate with another suite; `grainline suites` lists them all": f"grainline evaluate {run}"
        " --data 'scenes:dev?count=500' --suite stability --html stability.html",
        "Index a folder of images, and search it": f"grainline index build photos/ --model {run}"
        " --out photos.index && grainline search photos.index 'A red disc. It is left of a star.'"
        " --html answers.html",
        "Train on photographs of your own, with captions in photos/": "grainline train photos/starter"
        " --data photos/ --out out/photos",
    }


def _look(evaluation: Evaluation, row: int, text: str) -> CaseImage:
    """The sentences of a text in a scene, which is drawn larger than the model reads it. row: of the scene"""
    number, image = evaluation.data.positions[row], evaluation.image(row)
    look = look_at(evaluation.model, image, text, null=evaluation.null(row))
    large = open_source(evaluation.source.path, size=SIDE)[number].image
    assert isinstance(large, Image.Image), "scenes are drawn"
    look = look._replace(whole=WholeImage(large, (0, 0, SIDE, SIDE)), alt=evaluation.data.keys[row])
    return by_sentence(look)


def _sees(evaluation: Evaluation) -> Markup:
    """Some scenes with their sentences and heat."""
    data = evaluation.data
    own = data.texts.image.tolist()
    short = sorted(range(len(own)), key=lambda i: len(sentences(data.strings[i])))[:SCENES]
    cases = [Case("", look=_look(evaluation, own[i], data.strings[i])) for i in short]
    parts = [cases_html(cases[i : i + SCENES // 2], f"sees{i}n") for i in range(0, len(cases), SCENES // 2)]
    return render("rows.html", kind="sees", lead=SEES, parts=parts)


def _query(evaluation: Evaluation) -> list[Section]:
    """The first caption of several sentences as a query: its hits, and which sentences each shows."""
    model, data = evaluation.model, evaluation.data
    text = next((text for text in data.strings if len(sentences(text)) >= LONG), "")
    if not text:
        return []
    score = model.score(data.images, [text])[:, 0]
    parts = sentences(text)
    foreign = [sentences(other)[0].text for other in data.strings if other != text]
    cases = []
    for rank, row in enumerate(score.argsort(descending=True)[:HITS].tolist(), 1):
        image = evaluation.image(row)
        look = _look(evaluation, row, text)
        null = model.score([image], foreign)[0]
        judged = []
        for one in look.sentences:
            p = float((null >= one.score).float().mean())
            verdict = "shows" if p <= SUPPORT else "does not" if p > ABSENT else "cannot tell"
            judged.append(one._replace(place=f"p {p:.3f}", verdict=verdict))
        number = sum(one.verdict == "shows" for one in judged)
        right = (
            "the scene that it describes" if row == int(data.texts.image[data.strings.index(text)]) else ""
        )
        title = f"{rank}. shows {number} of {len(parts)} sentences"
        cases.append(Case(title, right, look=look._replace(sentences=judged)))
    quote = render("rows.html", kind="hits", lead=text, parts=[cases_html(cases, "hit")])
    return [Section("A query of several sentences", hint(FINDS.format(images=len(data.keys))) + quote)]


def _numbers(results: dict[str, Result], encodings: Encodings, steps: str) -> dict[str, str]:
    """The headline: name -> value, with what belongs to it in further lines."""
    first = results["retrieval"].metric("text to image R@1")
    novel = results["composition"].metric("text to image R@1")
    kinds = [metric for metric in results["probes"].metrics[1:]]
    worst = min(kinds, key=lambda metric: metric.value)
    words = {word.strip(".,;:'\"").lower() for text in encodings.strings for word in text.split()}
    return {
        "Learnt": f"{len(words)} words\n{steps} scenes",
        "Text to image R@1": f"{first.text(first.value)}\n{first.ends()}, chance {first.text(first.chance)}",
        "On held-out combinations": f"{novel.text(novel.value)}\n{novel.ends()}",
        "Hardest kind of foil": f"{worst.text(worst.value)}\n{worst.name}, chance 50 %",
    }
