"""Classification by prompts: is the class of a picture the one whose prompts fit it best?

Radford et al., arXiv 2103.00020, section 3.1. In three steps:
  1. put the name of every class into every template;
  2. make one vector a class: the mean of the unit vectors of its prompts, at length 1 again. A pairwise
     method compares tokens, so there the score of a class is the mean of the scores of its prompts;
  3. rank the classes for every picture; a tie is wrong.

As a check against forgetting it is run before and after a fine-tuning on the same pictures
(evaluation/compare.py)."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from markupsafe import Markup
from PIL import Image
from torch import Tensor

from grainline.data.formats.common import some
from grainline.errors import UserError
from grainline.evaluation.collectors.classes import HOLE, TEMPLATES, ClassTexts, number_classes
from grainline.evaluation.collectors.collecting import stack
from grainline.evaluation.encode import Encoder, Encodings
from grainline.evaluation.intervals import replicates, replicates_of_classes, wilson
from grainline.evaluation.outcome import Cell, Options, only_plain, result_of
from grainline.evaluation.ranks import Ranks, ranks
from grainline.evaluation.result import Result
from grainline.evaluation.score import Scorer, prepared, tile_of, tile_side
from grainline.report.page import Gone, render
from grainline.types import Encoded, rows

DEPTHS = (1, 5)
PER_CLASS = "mean per-class accuracy"
SHOWN, KEPT = 3, 20  # confusions in the notes, and in the result
ENTRY = 32  # bytes that a score of one picture and one class takes with all that is computed from it


class Judged(NamedTuple):
    """The outcome of every picture."""

    rank: Tensor  # [N] int64, of the true class
    tied: Tensor  # [N] bool, another class has exactly the score of the true one
    predicted: Tensor  # [N] int64, the true class at rank 1, else the best of the others


class Contest(NamedTuple):
    """Every picture between its own class and the best of the others."""

    true: Tensor  # [N] score of the true class
    false: Tensor  # [N] score of the best other class
    other: Tensor  # [N] int64, that class


@torch.no_grad()
def with_classes(
    model: Encoder,
    data: Encodings,
    templates: Sequence[str] = TEMPLATES,
    listed: Mapping[str, str] | None = None,
    batch: int = 64,
) -> Encodings:
    """Encodings whose first captions are taken for classes, with the encoded prompts of all classes.

    listed  label -> name of all classes (`read_classes`); None takes the labels of the pictures
    batch   prompts that the model sees at once, or those of one class where they are more

    Raises UserError where the labels are no set of classes.
    """
    if data.captions != "first":
        raise UserError(f"captions is {data.captions!r}; a class is the first caption (captions: first)")
    names, label = number_classes(data.strings, listed, data.path)
    cut_before = model.cut
    step = max(1, batch // len(templates))
    parts = []
    for start in range(0, len(names), step):
        some_names = names[start : start + step]
        prompts = [template.replace(HOLE, name) for name in some_names for template in templates]
        encoded = model.encode(texts=prompts)
        parts.append(encoded if model.method.pairwise else _means(encoded, len(templates)))
    texts = stack(parts)
    number = torch.tensor(label, device=texts.vector.device)
    classes = ClassTexts(names, tuple(templates), texts, number)
    return data._replace(classes=classes, cut=data.cut + model.cut - cut_before)


def zeroshot_suite(method: Scorer, data: Encodings, options: Options = Options()) -> Result:  # noqa: B008
    """Accuracy at 1 and at 5 over all pictures, and the mean over the classes of the accuracy in each.

    Raises UserError if the data have no encoded classes, for a protocol of retrieval, and for NaN scores.
    """
    if data.classes is None:
        raise UserError(f"{data.path} was encoded without classes; the zeroshot suite needs their prompts")
    only_plain(options, "zeroshot")
    judged = judge(method, data.images, data.classes, options.memory)
    queries: dict[str, Any] = {
        "keys": list(data.keys),
        "classes": list(data.classes.names),
        "label": data.classes.label.tolist(),
        "rank": judged.rank.tolist(),
        "tied": judged.tied.int().tolist(),
        "predicted": judged.predicted.tolist(),
    }
    cells = zeroshot_cells([queries], options)
    queries |= {"per_class": per_class(queries, options.level), "confusions": confusions(queries)}
    result = result_of("zeroshot", data, options, cells, queries, _notes(method, queries))
    templates = list(data.classes.templates)
    return result._replace(
        settings=result.settings | {"templates": templates},
        data=result.data | {"texts": len(templates) * len(data.classes.names)},
    )


@torch.no_grad()
def judge(method: Scorer, images: Encoded, classes: ClassTexts, memory: int) -> Judged:
    """Rank the classes for every picture, in blocks of pictures that stay within `memory` bytes.

    Raises UserError for NaN scores and a memory limit too small for one picture.
    """
    parts = []
    for block, score in _scores(method, images, classes, memory):
        label = classes.label[block].to(score.device)
        true = F.one_hot(label, score.shape[1]).bool()
        found: Ranks = ranks(score, true)
        other = score.masked_fill(true, -torch.inf).argmax(1)
        parts.append(Judged(*found, torch.where(found.rank == 1, label, other)))
    return Judged(*(torch.cat(fields) for fields in zip(*parts, strict=True)))


@torch.no_grad()
def contests(method: Scorer, images: Encoded, classes: ClassTexts, memory: int) -> Contest:
    """The scores behind `judge`, by the same blocks: a picture is right where `true` is above `false`."""
    parts = []
    for block, score in _scores(method, images, classes, memory):
        label = classes.label[block].to(score.device)[:, None]
        false, other = score.scatter(1, label, -torch.inf).max(1)
        parts.append(Contest(score.gather(1, label)[:, 0], false, other))
    return Contest(*(torch.cat(fields).cpu() for fields in zip(*parts, strict=True)))


def zeroshot_cells(runs: list[dict[str, Any]], options: Options) -> dict[str, Cell]:
    """Accuracies from ranks.

    The bootstrap draws pictures. With five classes or fewer accuracy at 5 is left out: it could not fail.
    """
    first = runs[0]
    label = np.array(first["label"])
    rank = np.array([run["rank"] for run in runs])  # [R, N]
    ties = int(np.sum([run["tied"] for run in runs]))
    number, classes = rank.size, len(first["classes"])
    settings: dict[str, Any] = {"resamples": options.resamples, "seed": options.seed}
    out = {}
    for k in (k for k in DEPTHS if k == 1 or k < classes):
        hit = (rank <= k).mean(0)  # [N] share of the runs that were right
        alone = wilson(int(hit.sum()), len(hit), options.level) if len(runs) == 1 else None
        ends = None if alone is None else (alone.low, alone.high)
        drawn = replicates(hit, **settings)
        out[f"top-{k} accuracy"] = Cell(float(hit.mean()), drawn, number, k / classes, ties, "share", ends)
    hit = (rank == 1).mean(0)
    mean = float(np.mean([hit[label == kind].mean() for kind in np.unique(label)]))
    out[PER_CLASS] = Cell(
        mean, replicates_of_classes(hit, label, **settings), number, 1 / classes, ties, "share"
    )
    return out


def per_class(queries: Mapping[str, Any], level: float) -> list[dict[str, Any]]:
    """Pictures, right ones and accuracy with Wilson's interval of every class; None without pictures."""
    label, right = np.array(queries["label"]), np.array(queries["rank"]) == 1
    out = []
    for number, name in enumerate(queries["classes"]):
        mine = right[label == number]
        row: dict[str, Any] = {"class": name, "pictures": len(mine), "right": int(mine.sum())}
        found = wilson(int(mine.sum()), len(mine), level) if len(mine) else (None, None, None)
        out.append(row | dict(zip(("accuracy", "low", "high"), found, strict=True)))
    return out


def confusions(queries: Mapping[str, Any], most: int = KEPT) -> list[dict[str, Any]]:
    """The most frequent mistakes: true class, predicted class, and how many pictures."""
    names, label, rank = queries["classes"], queries["label"], queries["rank"]
    pairs = zip(label, queries["predicted"], rank, strict=True)
    found = Counter((true, other) for true, other, place in pairs if place > 1)
    ordered = sorted(found.items(), key=lambda entry: (-entry[1], entry[0]))[:most]
    return [
        {"true": names[true], "predicted": names[other], "pictures": number}
        for (true, other), number in ordered
    ]


def _means(encoded: Encoded, templates: int) -> Encoded:
    """One row a class: the mean of the unit vectors of its prompts, at length 1."""
    mean = F.normalize(encoded.vector.double().unflatten(0, (-1, templates)).mean(1), dim=-1)
    kept = rows(encoded, slice(0, None, templates))
    return kept._replace(vector=mean.float(), tokens=kept.tokens[:, :0], mask=kept.mask[:, :0])


def _scores(
    method: Scorer, images: Encoded, classes: ClassTexts, memory: int
) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of pictures with their scores for all classes [n, C]."""
    prompts = len(classes.templates) if method.pairwise else 1
    side = tile_side(method, images, classes.texts, memory)
    columns = max(1, side // prompts) * prompts  # whole classes
    pictures = min(max(1, side * side // columns), memory // (ENTRY * len(classes.names)))
    if pictures < 1:
        needed = ENTRY * len(classes.names)
        raise UserError(
            f"a memory limit of {memory} bytes is too small: one picture and all classes need {needed}"
        )
    images, texts = prepared(method, images, classes.texts)
    tile = tile_of(method, images, texts)
    number = len(texts.vector)
    for start in range(0, len(images.vector), pictures):
        block = slice(start, min(start + pictures, len(images.vector)))
        parts = [tile(block, slice(c, min(c + columns, number))) for c in range(0, number, columns)]
        yield block, torch.cat([part.unflatten(1, (-1, prompts)).mean(-1) for part in parts], 1)


def _notes(method: Scorer, queries: Mapping[str, Any]) -> tuple[str, ...]:
    """What a reader of these accuracies has to know."""
    names, label = queries["classes"], queries["label"]
    most, times = Counter(label).most_common(1)[0]
    notes = [
        f"{len(names)} classes; always saying {names[most]!r} would be right for {times / len(label):.1%} "
        "of the pictures"
    ]
    empty = [row["class"] for row in queries["per_class"] if not row["pictures"]]
    if empty:
        notes.append(f"{len(empty)} classes have no picture and count only as wrong answers: {some(empty)}")
    if len(names) <= max(DEPTHS):
        notes.append(f"accuracy at {max(DEPTHS)} is left out: with {len(names)} classes it could not fail")
    if method.pairwise:
        notes.append(
            "the score of a class is the mean of the scores of its prompts: this method compares tokens"
        )
    worst = [
        f"{row['true']} taken for {row['predicted']} ({row['pictures']})" for row in queries["confusions"]
    ]
    if worst:
        notes.append(f"most often confused: {', '.join(worst[:SHOWN])}")
    return tuple(notes)


# What stands on a page about classification: single pictures between two classes, and the confusions.


class Classified(NamedTuple):
    """A picture between its own class and the best of the others."""

    picture: Image.Image | Gone
    name: str
    classes: tuple[str, str]  # the true one, the best other one
    scores: tuple[float, float]
    rank: int  # of the true class among all, 1 = best
    number: int  # of classes


class Confusion(NamedTuple):
    """Pictures of one class that were taken for another."""

    true: str
    predicted: str
    pictures: int  # that were taken for the other class
    of: int  # pictures of the true class


def classified(shown: Sequence[Classified]) -> Markup:
    """Pictures with both classes and their scores, one below the other."""
    return render("classified.html", shown=shown)


def confusion_table(rows: Sequence[Confusion]) -> Markup:
    """The mistakes as a table, in their order."""
    return render("confusions.html", rows=rows)
