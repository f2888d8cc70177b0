"""Multi-object accuracy, as COLA measures it: does each of two captions find its own of two pictures?

Ray et al., arXiv 2305.03689: 210 items of two pictures and two captions that share their objects. An item is
right where each caption scores higher with its own picture than with the other one; a coin gets a quarter.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from markupsafe import Markup
from PIL import Image

from grainline.data.benchmarks.cola import ROW, Cola
from grainline.data.record import Source
from grainline.errors import UserError
from grainline.evaluation.collectors.probes import Items, apart, item_scores, matched
from grainline.evaluation.encode import Encodings
from grainline.evaluation.intervals import replicates, wilson
from grainline.evaluation.outcome import Cell, Options, only_plain, result_of
from grainline.evaluation.result import Result
from grainline.evaluation.score import Scorer
from grainline.report.case import marked
from grainline.report.page import Gone, render

COLA, MULTI = "cola", "multi-object accuracy"
CHANCE = 0.25  # two coins


def items_file(source: Source) -> Cola:
    """The source, if it is a file of items. Raises UserError else."""
    if not isinstance(source, Cola):
        raise UserError(
            f"{source.path} is not a file of items; --suite cola takes one JSON file with rows {ROW}"
        )
    return source


def with_items(data: Encodings, source: Cola, most_lost: float = 0.0) -> Encodings:
    """The encodings of a file of items, with its items. Those that lack a picture are left out.

    most_lost  share of the items that may be left out

    Raises UserError beyond that, and where none is left.
    """
    if data.captions != "each":
        raise UserError(f"captions is {data.captions!r}; items need every caption by itself (captions: each)")
    owner = [data.keys[row] for row in data.texts.image.tolist()]
    picture_row = {key: row for row, key in enumerate(data.keys)}
    text_row = {named: row for row, named in enumerate(zip(owner, data.strings, strict=True))}
    kept = [i for i, item in enumerate(source.items) if all(key in picture_row for key in item.pictures)]
    lost = len(source.items) - len(kept)
    if not kept or lost > most_lost * len(source.items):
        first = "; ".join(data.damaged_first)
        raise UserError(
            f"{lost} of {len(source.items)} items of {source.path} lack a picture; allowed are"
            f" {most_lost:.0%} of them (--damage); the first: {first}"
        )
    found = [source.items[i] for i in kept]
    return data._replace(
        items=Items(
            tuple(kept),
            torch.tensor([[picture_row[key] for key in item.pictures] for item in found]),
            torch.tensor([[text_row[named] for named in zip(*item, strict=True)] for item in found]),
            len(source.items),
        )
    )


def cola_suite(method: Scorer, data: Encodings, options: Options = Options()) -> Result:  # noqa: B008
    """The share of items of which both captions score higher with their own picture.

    Raises UserError if the data were encoded without items, for a protocol of retrieval, and for NaN scores.
    """
    items = data.items
    if items is None:
        raise UserError(f"{data.path} was encoded without items; the cola suite needs a file of them")
    only_plain(options, COLA)
    found = matched(item_scores(method, data.images, data.texts, items))
    queries = {
        "keys": list(data.keys),
        "item": list(items.number),
        "pictures": items.pictures.tolist(),
        "right": found.right.int().tolist(),
        "tied": found.tied.int().tolist(),
    }
    result = result_of(COLA, data, options, cola_cells([queries], options), queries, _notes(items))
    return result._replace(data=result.data | {"items": items.all, "items_left_out": _lost(items)})


def cola_cells(runs: list[dict[str, Any]], options: Options) -> dict[str, Cell]:
    """The accuracy from outcomes; the bootstrap draws groups of items that share no picture."""
    right = np.mean([run["right"] for run in runs], axis=0)  # [P] share of the runs that were right
    groups = apart(np.array(runs[0]["pictures"]))
    drawn = replicates(right, groups, resamples=options.resamples, seed=options.seed)
    alone = wilson(int(right.sum()), len(right), options.level) if len(runs) == 1 else None
    ends = None if alone is None else (alone.low, alone.high)
    ties = int(np.sum([run["tied"] for run in runs]))
    return {MULTI: Cell(float(right.mean()), drawn, right.size * len(runs), CHANCE, ties, "share", ends)}


def _lost(items: Items) -> int:
    return items.all - len(items.number)


def _notes(items: Items) -> tuple[str, ...]:
    """What a reader of the accuracy has to know."""
    notes = []
    if _lost(items):
        notes.append(f"{_lost(items)} of {items.all} items were skipped: a picture of theirs cannot be used")
    groups = len(np.unique(apart(items.pictures.numpy())))
    if groups < len(items.number):
        notes.append(
            f"{len(items.number)} items share pictures: the interval draws {groups} groups of them that share"
            " none; Wilson's interval in the JSON takes items for independent"
        )
    return tuple(notes)


# What stands on a page about items: two pictures, two captions and the four scores between them.


class Crossed(NamedTuple):
    """An item: caption i describes picture i, and is compared with both."""

    number: int  # in the file, from 1
    pictures: Sequence[Image.Image | Gone]  # two
    names: Sequence[str]  # of the pictures
    captions: Sequence[str]
    scores: Sequence[Sequence[float]]  # [picture 2, caption 2]

    @property
    def leads(self) -> tuple[float, float]:
        """By how much each caption prefers its own picture."""
        (a, b), (c, d) = self.scores
        return a - c, d - b

    @property
    def marked(self) -> tuple[Markup, Markup]:
        """The captions, the words marked that only one of them has."""
        return marked(*self.captions)


def crossed(shown: Sequence[Crossed]) -> Markup:
    """Items one below the other, the words marked that only one of the captions has."""
    return render("items.html", shown=shown)
