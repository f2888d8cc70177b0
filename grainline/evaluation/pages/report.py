"""The page about a measurement: its metrics, and single outcomes from the best to the worst."""

from collections.abc import Sequence
from pathlib import Path

from grainline.evaluation.collectors.long import LONG_RETRIEVAL
from grainline.evaluation.collectors.seen import KINDS
from grainline.evaluation.collectors.subtexts import EACH, HALVES, THIRDS
from grainline.evaluation.pages import pointing
from grainline.evaluation.pages.examples import (
    HITS,
    Measured,
    best_classes,
    best_probes,
    by_picture,
    by_text,
    confused,
    worst_classes,
    worst_probes,
)
from grainline.evaluation.pages.extremes import (
    TEXTS,
    best_items,
    best_regions,
    least_alike,
    least_apart,
    least_changed,
    most_alike,
    most_apart,
    most_changed,
    worst_items,
    worst_regions,
)
from grainline.evaluation.pages.figure import labels, risings
from grainline.evaluation.pages.look import PHRASES, SENTENCES
from grainline.evaluation.pages.tokened import by_position, captions
from grainline.evaluation.result import Result
from grainline.evaluation.suites.cola import COLA, MULTI, crossed
from grainline.evaluation.suites.comprehension import ACCURACY as BOXES
from grainline.evaluation.suites.comprehension import AMONG, COMPREHENSION, MAPS
from grainline.evaluation.suites.fgovd import ACCURACY, FG_OVD, judged
from grainline.evaluation.suites.inactivity import AUROC, INACTIVITY, WITHIN, emptied
from grainline.evaluation.suites.monotonicity import MONOTONICITY
from grainline.evaluation.suites.phrases import PHRASES as MARKED
from grainline.evaluation.suites.phrases import headlines
from grainline.evaluation.suites.ranking import ALL, CARDS, NOUNS, PROBES
from grainline.evaluation.suites.referring import CUMULATIVE, HALF, MIOU, REFERRING
from grainline.evaluation.suites.retrieval import I2T, T2I
from grainline.evaluation.suites.similarity import OWN_CAPTION, SIM, SIMILARITY, WAYS, likened
from grainline.evaluation.suites.stability import SSI, STABILITY, disturbed
from grainline.evaluation.suites.transfer import TRANSFER
from grainline.evaluation.suites.zeroshot import KEPT, PER_CLASS, classified, confusion_table
from grainline.evaluation.validated import validated
from grainline.report.charts import RULES, models, rising
from grainline.report.page import Section, facts, hint, render_page, summary, write_page
from grainline.report.table import comparisons, examples, tables
from grainline.report.tokens import POSITIONS, positions, tokened
from grainline.report.tokens import RULES as TOKENS

CONTRAST = (
    "Heat is orange where the image shows more of a text than of other texts of the data and blue where less;"
    " 1 is what one of five of these reaches, and less has no colour."
)
HEAT = (
    f"{CONTRAST} At most {SENTENCES} sentences and {PHRASES} phrases in them are shown, each with its score."
)


def write_html(path: str | Path, on: Measured) -> None:
    """Write the page. Raises UserError if the place cannot be written."""
    sections = [metrics([on.result]), *outcomes(on)]
    name = {FG_OVD: "FG-OVD", COLA: "COLA"}.get(on.result.suite, on.result.suite.capitalize())
    title = f"{name} of {on.result.settings['model']}"
    about = f"Measured on {on.result.data['path']} at {on.result.time}."
    said = validated(on.result.settings["model"])
    lead = summary(headline(on.result)) + (hint(said) if said else "")
    write_page(path, render_page(title, lead, sections, [about]))


def headline(result: Result) -> dict[str, str]:
    """The numbers that stand on top of the page."""
    top = (
        f"{T2I} R@1",
        f"{I2T} R@1",
        *(ALL, *(f"{ALL}, {name}" for name in CARDS), NOUNS),
        "top-1 accuracy",
        PER_CLASS,
        HALVES,
        THIRDS,
        EACH,
        MULTI,
        SSI,
        ACCURACY,
        *(f"{SIM}, {kind}" for kind in KINDS),
        *(f"{OWN_CAPTION} R@1, {way}" for way in WAYS),
        *(MIOU, CUMULATIVE, HALF),
        *(AUROC, WITHIN),
        *(*(f"{BOXES}, {name}" for name in MAPS.values()), AMONG),
        *(headlines(result) if result.suite == MARKED else ()),
    )
    names = [name for name in top if name in {m.name for m in result.metrics}]
    shown = [result.metric(name) for name in names]
    values = {
        m.label
        if m.label[1].isupper()
        else m.label[0].upper() + m.label[1:]: f"{m.text(m.value)}\n{m.ends()}"
        + ("" if m.chance is None else f"\nchance {m.text(m.chance)}")
        for m in shown
    }
    skipped, texts = sum(result.data["damaged"].values()), result.data["texts"]
    return values | {
        "Pictures": f"{result.data['pictures']:,}" + (f"\n{skipped:,} skipped" if skipped else ""),
        {"zeroshot": "Prompts", MONOTONICITY: "Subtexts"}.get(result.suite, "Texts"): f"{texts:,}",
    }


def metrics(results: Sequence[Result]) -> Section:
    """The tables of some results."""
    return Section("Metrics", tables(results))


def outcomes(on: Measured) -> list[Section]:
    """Single outcomes of a suite."""
    return _OUTCOMES[on.result.suite](on)


def _retrieval(on: Measured) -> list[Section]:
    order = f"Queries evenly spaced from the best rank to the worst; the best {HITS} of all candidates."
    heat = f" {HEAT}" if on.model.method.placed else ""
    return [
        Section(
            "Text to image, best to worst", hint(f"{order} {seen(on)}{heat}") + examples(by_text(on), "t")
        ),
        Section("Image to text, best to worst", hint(order) + examples(by_picture(on), "p")),
    ]


def _long(on: Measured) -> list[Section]:
    card = facts(on.result.settings["card"], "What was compared, and how far it is from published numbers")
    return [Section("Protocol", card), *_retrieval(on)]


def _transfer(on: Measured) -> list[Section]:
    card = facts(on.result.settings["card"], "What was trained on, and what is tested on")
    return [Section("Data", card), *_retrieval(on)]


def _probes(on: Measured) -> list[Section]:
    order = "By the difference of the two scores; one comparison for each picture."
    return [
        Section("Protocol", facts(on.result.settings["card"], "What was compared, for each benchmark")),
        Section("Probes: most wrong", hint(f"{order} {seen(on)}") + comparisons(worst_probes(on))),
        Section("Probes: most right", hint(order) + comparisons(best_probes(on))),
    ]


def _zeroshot(on: Measured) -> list[Section]:
    order = "By the score of the true class less that of the best other class."
    most = f"The {KEPT} most frequent mistakes at most; the JSON has the outcome of every picture."
    return [
        Section("Classes: most wrong", hint(f"{order} {seen(on)}") + classified(worst_classes(on))),
        Section("Classes: most right", hint(order) + classified(best_classes(on))),
        Section("Classes: confusions", hint(most) + confusion_table(confused(on))),
    ]


def _monotonicity(on: Measured) -> list[Section]:
    shown = risings(on)  # first: it refuses results of other data
    order = (
        "Named with --samples." if on.beside.samples else f"Evenly spaced from the worst {EACH} to the best."
    )
    sections = [Section("Score by subtexts", hint(f"{order} {RULES} {seen(on)}") + rising(shown))]
    if not on.beside.results:
        return sections
    results = [on.result, *on.beside.results]
    rows = [
        (name, {m.name: f"{m.text(m.value)} ({m.ends()})" for m in result.metrics})
        for name, result in zip(labels(results), results, strict=True)
    ]
    return [Section("Models side by side", models(rows)), *sections]


def _cola(on: Measured) -> list[Section]:
    order = "By the lesser of the two differences: the own picture of a caption less the other one."
    return [
        Section("Items: most wrong", hint(f"{order} {seen(on)}") + crossed(worst_items(on))),
        Section("Items: most right", hint(order) + crossed(best_items(on))),
    ]


def _stability(on: Measured) -> list[Section]:
    order = "One subtext for each picture, by |(s - s~) / s| of the scores s without and s~ with the noise."
    return [
        Section("Noise: largest change", hint(f"{order} {seen(on)}") + disturbed(most_changed(on))),
        Section("Noise: smallest change", hint(order) + disturbed(least_changed(on))),
    ]


def _regions(on: Measured) -> list[Section]:
    order = (
        "By the score of the right text less that of the best foil; one region for each picture, with the"
        f" right text and up to {TEXTS - 1} foils that score highest. The score is the cosine of a text with"
        f" what lies in the box. {CONTRAST}"
    )
    return [
        Section("Regions: most wrong", hint(f"{order} {seen(on)}") + judged(worst_regions(on), "w")),
        Section("Regions: most right", hint(order) + judged(best_regions(on), "b")),
    ]


def _similarity(on: Measured) -> list[Section]:
    order = (
        f"By {SIM} over all texts of a picture. The score of a text is the mean cosine of the picture as this"
        " text sees it with the picture as the others do."
    )
    return [
        Section("Pictures: most alike", hint(f"{order} {seen(on)}") + likened(most_alike(on), "m")),
        Section("Pictures: least alike", hint(order) + likened(least_alike(on), "l")),
    ]


def _inactivity(on: Measured) -> list[Section]:
    order = (
        "By AUROC within the picture. The score of a part is the weight of its empty slot; its heat is the"
        " weight of what it looks at beside it. All maps of all pictures share one scale."
    )
    return [
        Section("Pictures: told apart least", hint(f"{order} {seen(on)}") + emptied(least_apart(on), "l")),
        Section("Pictures: told apart best", hint(order) + emptied(most_apart(on), "b")),
    ]


def _phrases(on: Measured) -> list[Section]:
    shown = captions(on)
    if not shown:
        return []  # rules and clusterings have no shares to show
    order = f"Evenly spaced from the lowest tIoU to the highest. {TOKENS}"
    return [
        Section("Groups by position", hint(POSITIONS) + positions(by_position(on))),
        Section("Captions, lowest to highest tIoU", hint(order) + tokened(shown)),
    ]


def _nothing(on: Measured) -> list[Section]:  # noqa: ARG001
    return []  # pictures found by their own answers show nothing


_OUTCOMES = {
    "retrieval": _retrieval,
    TRANSFER: _transfer,
    LONG_RETRIEVAL: _long,
    PROBES: _probes,
    "zeroshot": _zeroshot,
    MONOTONICITY: _monotonicity,
    COLA: _cola,
    STABILITY: _stability,
    FG_OVD: _regions,
    SIMILARITY: _similarity,
    OWN_CAPTION: _nothing,
    REFERRING: pointing.covered,
    COMPREHENSION: pointing.chosen,
    INACTIVITY: _inactivity,
    MARKED: _phrases,
}


def seen(on: Measured) -> str:
    """How pictures are shown: as the model sees them."""
    squash = on.model.transform.resize == "squash"
    how = "pressed into a square" if squash else "a square from their middle"
    return f"Pictures are shown as the model sees them: {how}."
