"""Multi-object accuracy, as COLA measures it: does each of two captions find its own of two images?

Ray et al., arXiv 2305.03689: 210 items of two images and two captions that share their objects. An item is
right where each caption scores higher with its own image than with the other one; a coin gets a quarter. A
tie is wrong. The reverse question, whether each image finds its caption, is another metric.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from grainline.data.benchmarks.contests import ROW, Cola
from grainline.data.record import Source
from grainline.errors import UserError
from grainline.evaluation.encode import Collector, Encodings
from grainline.evaluation.examples import EXAMPLES, Evaluation
from grainline.evaluation.score import Scorer, pair_scores
from grainline.evaluation.statistics import refuse_nan
from grainline.evaluation.suite import MetricSamples, Outcomes, Settings, Suite, accuracy, count_notes
from grainline.model import Model
from grainline.report.case import Case, CaseList, Panel, Row, ahead, lead, marked
from grainline.types import Encoded, rows

MULTI = "multi-object accuracy"
CHANCE = 0.25  # two coins


class Items(NamedTuple):
    """P items whose images are both there."""

    number: tuple[int, ...]  # [P] place in the file, 0 .. all - 1
    images: Tensor  # [P, 2] int64, rows of the encoded images
    texts: Tensor  # [P, 2] int64, rows of the encoded texts: caption i describes image i
    all: int  # items in the file


class ColaSuite(Suite):
    """The share of items of which both captions score higher with their own image."""

    name = "cola"
    reads_tokens = False
    captions = ("each",)
    reads = "every caption, each of its own image"
    title = "COLA"
    headline = (MULTI,)

    def check(self, model: Model, source: Source) -> None:
        super().check(model, source)
        items_file(source)

    def collector(self, model: Model, source: Source, settings: Settings) -> Collector:
        return ItemCollector(items_file(source), settings.max_corrupt)

    def outcomes(self, scorer: Scorer, data: Encodings, settings: Settings) -> Outcomes:
        items: Items = self.collected(data)
        score = item_scores(scorer, data.images, data.texts, items)
        refuse_nan(int(score.isnan().sum()), score.numel())
        margin = margins(score)
        queries = {
            "item": list(items.number),
            "images": items.images.tolist(),
            "right": (margin > 0).int().tolist(),
            "tied": (margin == 0).int().tolist(),
        }
        skipped, groups = items.all - len(items.number), len(np.unique(connected(items.images.numpy())))
        notes = count_notes(
            {f"of {items.all} items were skipped: an image of theirs cannot be used": skipped}
        )
        if groups < len(items.number):
            notes += (
                f"{len(items.number)} items share images: the interval draws {groups} groups of them that"
                " share none; Wilson's interval in the JSON takes items for independent",
            )
        return Outcomes(queries, notes, data={"items": items.all, "items_left_out": skipped})

    def metrics(self, runs: Sequence[dict[str, Any]], settings: Settings) -> dict[str, MetricSamples]:
        """The accuracy; the bootstrap draws groups of items that share no image."""
        right, ties = [run["right"] for run in runs], int(np.sum([run["tied"] for run in runs]))
        return {MULTI: accuracy(right, connected(np.array(runs[0]["images"])), CHANCE, ties, settings)}

    def cases(self, evaluation: Evaluation, number: int = EXAMPLES) -> list[CaseList]:
        items, data = self.collected(evaluation.data), evaluation.data
        scores = item_scores(evaluation.model.method, data.images, data.texts, items).cpu()
        margin = margins(scores)

        def case(i: int) -> Case:
            rows = items.images[i].tolist()
            texts = marked(*(data.strings[row] for row in items.texts[i].tolist()))
            score = scores[i].tolist()
            panels = []
            for own, row in enumerate(rows):
                right, wrong = score[own][own], score[1 - own][own]
                which = "this image" if right > wrong else "the other image" if right < wrong else "neither"
                below = f"{data.keys[row]}. This caption finds {which}, {ahead(abs(right - wrong))}."
                panels.append(Panel(texts[own], evaluation.image(row), below, alt=f"image {data.keys[row]}"))
            gap = float(margin[i])
            title, row = f"item {items.number[i] + 1:,}", Row(panels, large=True)
            return Case(lead(gap), title, gap > 0, rows=[row])

        order = "Sorted by the smaller margin: the score of a caption with its own image less the other."
        titles = ("Items: most wrong", "Items: most right")
        return evaluation.both_ends(titles, order, case, margin, number=number)


def items_file(source: Source) -> Cola:
    """The source, if it is a file of items. Raises UserError else."""
    if not isinstance(source, Cola):
        raise UserError(f"{source.path} is no file of items; --suite cola takes one JSON file of rows {ROW}")
    return source


class ItemCollector(Collector):
    """Finds the rows of all items once the images are encoded; leaves out those that lack an image."""

    def __init__(self, source: Cola, max_corrupt: float) -> None:
        self.source, self.max_corrupt = source, max_corrupt

    def result(self, data: Encodings) -> Items:
        """Raises UserError where too many items are left out, or none is left."""
        items = self.source.items
        owner = [data.keys[row] for row in data.texts.image.tolist()]
        image_row = {key: row for row, key in enumerate(data.keys)}
        text_row = {pair: row for row, pair in enumerate(zip(owner, data.strings, strict=True))}
        number = [i for i, item in enumerate(items) if all(key in image_row for key in item.images)]
        skipped = len(items) - len(number)
        if not number or skipped > self.max_corrupt * len(items):
            raise UserError(
                f"{skipped} of {len(items)} items of {data.path} lack an image; allowed are"
                f" {self.max_corrupt:.0%} of them (--max-corrupt); the first: {'; '.join(data.damaged_first)}"
            )
        usable = [items[i] for i in number]
        return Items(
            tuple(number),
            torch.tensor([[image_row[key] for key in item.images] for item in usable]),
            torch.tensor([[text_row[pair] for pair in zip(*item, strict=True)] for item in usable]),
            len(items),
        )


def item_scores(method: Scorer, images: Encoded, texts: Encoded, items: Items) -> Tensor:
    """Scores of both images of every item with both of its captions: [P, image 2, caption 2]."""
    image = items.images[:, :, None].expand(-1, 2, 2).reshape(-1)  # [4P]
    text = items.texts[:, None, :].expand(-1, 2, 2).reshape(-1)  # [4P]
    return pair_scores(method, images, rows(texts, text), image).view(-1, 2, 2)


def margins(score: Tensor) -> Tensor:
    """Margin [P] by which the caption that is surer of the wrong image prefers its own. score: [P, 2, 2]"""
    first, second = score[:, 0, 0] - score[:, 1, 0], score[:, 1, 1] - score[:, 0, 1]
    return torch.minimum(first, second)


def connected(images: np.ndarray) -> np.ndarray:
    """The group of each item [P], such that no two groups share an image. images: [P, 2]"""
    label = np.arange(images.max() + 1)  # of each image: the lowest that it is linked with
    while True:
        lowest = label.copy()
        np.minimum.at(lowest, images, label[images].min(1, keepdims=True))
        if np.array_equal(lowest, label):
            return label[images[:, 0]]
        label = lowest
