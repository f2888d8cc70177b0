"""The page of a comparison: findings in words, values, differences, ranks, models, examples; model cards."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from grainline.data.record import Source
from grainline.errors import amount
from grainline.evaluation.comparison import Comparison, Gain
from grainline.evaluation.disagreements import Describe, disagreement_sections
from grainline.evaluation.result import DECIMALS
from grainline.hub import CARD
from grainline.loading import load
from grainline.model_card import model_card, read_result
from grainline.report.case import Table, table_html
from grainline.report.charts import whisker
from grainline.report.page import Section, card, facts, folded, hint, notes, render, render_page, write_page

SENTENCES = 6  # about differences, on top of the page
WIDTH = 96  # pixels of a drawing in a cell
VALUES = (
    "\N{BLACK STAR} is the best of its column, where its difference from each other model is sure. A drawing"
    " begins at 0, or at the lowest number of its column; the upright line is chance."
)
RANKS = "The drawing has the mean rank and its interval over the resamples, from the first place to the last."
COPIES = ["model", "set", "images", "the same", "look the same", ""]


def write_comparison_html(
    path: str | Path, comparison: Comparison, sources: Mapping[str, Source], describe: Describe
) -> None:
    """Write the page. Raises UserError if the place cannot be written.

    sources   of the sets by their names, for examples, which load each model once more
    describe  gives the descriptions of images for a model that reads them
    """
    title, names = f"Comparison of {amount(len(comparison.models), 'model')}", comparison.columns
    sections = [Section("Values", card([_values(comparison), hint(VALUES)]))]
    if comparison.ranks:
        parts = [_standings(comparison), hint(f"{meaning(comparison)} {RANKS}")]
        sections.append(Section("Differences and ranks", card(parts)))
    copies = [[x.model, x.set, *map(str, x[2:])] for x in comparison.overlaps]
    models = [_models(comparison), Table("Time and memory", *comparison.tables()[-1][1:])]
    models += [Table("Images of the sets among training images", COPIES, copies, (1, 5))] * bool(copies)
    sections.append(Section("Models", Markup().join(map(table_html, models))))
    cells = [(f"{one.model}, {names[one.column].title}", one) for one in comparison.cells]
    if missing := [f"{where}: {one.reason}" for where, one in cells if one.reason]:
        sections.append(Section("Not measured", card([notes(missing)])))
    sections += disagreement_sections(comparison, sources, describe)
    remarks = [*comparison.notes, *(f"{where}: {x}" for where, one in cells for x in one.notes)]
    about = facts({**comparison.settings, **comparison.versions}, "Settings, versions")
    sections.append(Section("Notes", card([notes(remarks), folded("Settings, versions", about)])))
    lead = notes(list(findings(comparison)))
    write_page(path, render_page(title, lead, sections, [f"Measured at {comparison.time}."]))


def write_cards(comparison: Comparison, folder: Path) -> None:
    """Write a model card of each model with its results, as folder/NAME/README.md."""
    names = [re.sub(r"[^\w-]+", "-", one.name).strip("-") or "model" for one in comparison.models]
    for i, one in enumerate(comparison.models):
        if one.kind == "model":
            files = [cell.files[0] for cell in comparison.cells if cell.model == one.name and cell.files]
            results = [read_result(Path(file), one.fingerprints[0]) for file in files]
            name = names[i] if names.index(names[i]) == i else f"{names[i]}-{i + 1}"
            write_page(folder / name / CARD, model_card(load(one.paths[0]), one.name, results))


def findings(comparison: Comparison) -> Iterator[str]:
    """Sentences that a reader can act on: the best of each column, sure differences, the number of others."""
    best = {i: (x, who) for i, x in [*_measures(comparison)][::-1] if (who := sure_best(comparison, i, x))}
    for i, (x, who) in sorted(best.items()):  # by the first measure that has a best one
        m: Any = comparison.cell(who, i).metric(x)
        yield f"{who} is the best in {x} on {comparison.columns[i].title}: {m.text(m.value)} ({m.ends()})."
    sure = [one for one in comparison.gains if one.verdict != "undecided"]
    sure.sort(key=lambda one: comparison.columns[one.column].measures.index(one.measure))
    for one in sure[:SENTENCES]:
        yield in_words(comparison, one)
    if len(sure) > SENTENCES:
        yield f"{len(sure) - SENTENCES} more differences are sure: see the table."
    if open_ := len(comparison.gains) - len(sure):
        yield f"{open_} of {amount(len(comparison.gains), 'difference')} are undecided by these data."
    if comparison.gains:
        yield meaning(comparison)


def in_words(comparison: Comparison, gain: Gain) -> str:
    """A difference in a sentence."""
    ends = sorted(map(abs, (gain.low, gain.high)))
    value, low, high = (_signed(x, gain.unit, "") for x in (abs(gain.value), *ends))
    where, points = comparison.columns[gain.column].title, " points" * (gain.unit == "%")
    than = f"{gain.model} is {gain.verdict} than {comparison.base}"
    return f"{than} in {gain.measure} on {where}, by {value}{points} ({low} to {high})."


def meaning(comparison: Comparison) -> str:
    """The correction behind the verdicts, in a sentence."""
    level, number = comparison.settings["level"], amount(len(comparison.gains), "difference")
    return (
        f"A model is better or worse than {comparison.base} where p after Holm over {number} is below"
        f" {1 - level:.3g}, the paired {level:.0%} interval lacks 0, and all seeds agree."
    )


def sure_best(comparison: Comparison, column: int, measure: str) -> str:
    """The model that is ahead of all others in nearly all resamples, and after Holm of the base; "": none."""
    places = [one for one in comparison.ranks if (one.column, one.measure) == (column, measure)]
    best = next((one.model for one in places if one.rank == one.high == 1), "")
    gains = [one for one in comparison.gains if (one.column, one.measure) == (column, measure)]
    against = [one for one in gains if best in (one.model, comparison.base)]
    agree = all(one.verdict == ("better" if one.model == best else "worse") for one in against)
    return best if len(places) > 1 and against and agree else ""


def _values(comparison: Comparison) -> Markup:
    """Models and measures with intervals; below them chance, and what papers have."""
    drawings, chance = dict[tuple[str, int, str], Markup](), dict[tuple[int, str], str]()
    for i, measure in _measures(comparison):
        some = {one.model: m for one in comparison.cells if one.column == i and (m := one.metric(measure))}
        chances = [m.chance for m in some.values() if m.chance is not None]
        numbers = [x for m in some.values() for x in (m.low, m.high)] + chances
        span = min(0.0, *numbers), max(numbers, default=1.0)
        chance[i, measure] = next((m.text(m.chance) for m in some.values() if m.chance is not None), "")
        for model, m in some.items():
            drawings[model, i, measure] = whisker(m.value, m.low, m.high, m.chance, span, WIDTH)
    papers = dict.fromkeys((one.model, one.source) for x in comparison.columns for one in x.published)
    best = {(i, measure): sure_best(comparison, i, measure) for i, measure in _measures(comparison)}
    return _matrix("values", comparison, drawings=drawings, chance=chance, papers=papers, best=best)


def _standings(comparison: Comparison) -> Markup:
    """The difference of each model from the base with its verdict, and its rank."""
    number, drawings = Counter((one.column, one.measure) for one in comparison.ranks), {}
    for one in comparison.ranks:
        span = 1.0, float(number[one.column, one.measure])
        drawings[one.model, one.column, one.measure] = whisker(one.mean, one.low, one.high, None, span, WIDTH)
    return _matrix("standings", comparison, drawings=drawings, signed=_signed)


def _matrix(kind: str, comparison: Comparison, **values: Any) -> Markup:
    columns = [(i, x, amount(x.images, "image")) for i, x in enumerate(comparison.columns)]
    return render("matrix.html", kind=kind, it=comparison, columns=columns, **values)


def _measures(comparison: Comparison) -> list[tuple[int, str]]:
    return [(i, measure) for i, column in enumerate(comparison.columns) for measure in column.measures]


def _signed(number: float, unit: str, sign: str = "+") -> str:
    return f"{number:{sign},.{DECIMALS.get(unit, 3)}f}"


def _models(comparison: Comparison) -> Table:
    """The table of methods, encoders and training data."""
    rows = []
    for one in comparison.models:
        about = [one.facts[x] for x in ("method", "image encoder", "text encoder") if x in one.facts]
        trained = "not known" if one.trained_on is None else ", ".join(one.trained_on) or "nothing"
        rows.append([one.name, "; ".join(about) or one.kind, trained, ", ".join(one.paths)])
    return Table("What they are", ["model", "method and encoders", "trained on", "path"], rows, (1, 2, 3))
