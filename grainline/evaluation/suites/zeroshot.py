"""Classification by prompts: is the class of an image the one whose prompts fit it best?

Radford et al., arXiv 2103.00020, section 3.1. In three steps:
  1. put the name of every class into every template;
  2. make one vector a class: the mean of the unit vectors of its prompts, at length 1 again. A pairwise
     method compares tokens, so there the score of a class is the mean of the scores of its prompts;
  3. rank the classes for every image; a tie is wrong.

A class is the first caption of an image. Underscores count as blanks.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from grainline.config import Config
from grainline.data.formats.parsed import read_lines
from grainline.data.record import Source
from grainline.errors import UserError, some
from grainline.evaluation.encode import Collector, Encodings, number_cut, stack
from grainline.evaluation.examples import EXAMPLES, Evaluation
from grainline.evaluation.score import Scorer, all_scores
from grainline.evaluation.statistics import ranks, replicates
from grainline.evaluation.suite import MetricSamples, Outcomes, Settings, Suite, accuracy, settings_of
from grainline.model import Model
from grainline.report.case import Case, CaseList, Table, ahead, lead, table_html
from grainline.report.page import Section, hint
from grainline.types import Encoded, rows

DEPTHS = (1, 5)
PER_CLASS = "mean per-class accuracy"
IN_NOTE, ON_PAGE = 3, 20  # confusions in the notes, and in the result
ENTRY = 32  # bytes that a score of one image and one class takes with all that is computed from it
HOLE = "{}"
TEMPLATES = (
    "{}",
    "a photo of {}.",
    "an image that shows {}.",
    "{} in a photo.",
    "a close view of {}.",
    "a drawing of {}.",
)
"""The plain name, and five of our own without an article, so that they fit most names."""


class ZeroshotOptions(Config):
    """Options of `zeroshot`."""

    prompts: str | None = Field(
        None, description="file of templates, one a line, with {} for the class; null: six of our own"
    )
    classes: str | None = Field(
        None, description="file of all classes, LABEL or LABEL<tab>NAME a line; null: those of the images"
    )


class ClassTexts(NamedTuple):
    """C classes with T prompts each, encoded, and the class of every image."""

    names: tuple[str, ...]  # [C] as they stand in the prompts
    templates: tuple[str, ...]  # [T]
    texts: Encoded  # [C] one vector a class; of a pairwise method [C * T] prompts, class by class
    label: Tensor  # [N] int64


class Predictions(NamedTuple):
    """Every image between its own class and the best of the others."""

    rank: Tensor  # [N] int64, of the true class
    tied: Tensor  # [N] bool, another class has exactly the score of the true one
    true: Tensor  # [N] score of the true class
    false: Tensor  # [N] score of the best other class
    other: Tensor  # [N] int64, that class


class ZeroshotSuite(Suite[ZeroshotOptions]):
    """The share of images whose class is ranked first, or among the first five, by its prompts."""

    name = "zeroshot"
    reads_tokens = False
    Options = ZeroshotOptions
    captions = ("first",)
    reads = "the first caption, which is the class"
    encodes_captions = False
    model_fields = Suite.model_fields | {"predicted"}
    noted_if_other = ("templates",)
    headline = ("top-1 accuracy", PER_CLASS)
    texts_label = "Prompts"

    def __init__(self, options: ZeroshotOptions | None = None) -> None:
        super().__init__(options)
        prompts, classes = self.options.prompts, self.options.classes
        self.templates = TEMPLATES if prompts is None else read_templates(prompts)
        self.classes = None if classes is None else read_classes(classes)

    def collector(self, model: Model, source: Source, settings: Settings) -> Collector:
        return PromptCollector(model, self.templates, self.classes, settings.batch_size)

    def outcomes(self, scorer: Scorer, data: Encodings, settings: Settings) -> Outcomes:
        classes: ClassTexts = self.collected(data)
        judged, label = judge(scorer, data.images, classes, settings.memory), classes.label.cpu()
        queries: dict[str, Any] = {
            "classes": list(classes.names),
            "label": label.tolist(),
            "rank": judged.rank.tolist(),
            "tied": judged.tied.int().tolist(),
            "predicted": torch.where(judged.rank == 1, label, judged.other).tolist(),
        }
        templates = list(classes.templates)
        counts = {"texts": len(templates) * len(classes.names)}
        return Outcomes(queries, _notes(scorer, queries), {"templates": templates}, counts)

    def metrics(self, runs: Sequence[dict[str, Any]], settings: Settings) -> dict[str, MetricSamples]:
        """Accuracy at 1, at 5 of more classes, and the mean over the classes; the bootstrap draws images."""
        label, classes = np.array(runs[0]["label"]), len(runs[0]["classes"])
        rank = np.array([run["rank"] for run in runs])  # [run, N]
        ties = int(np.sum([run["tied"] for run in runs]))
        out = {
            f"top-{k} accuracy": accuracy(rank <= k, None, k / classes, ties, settings)
            for k in DEPTHS
            if k == 1 or k < classes
        }
        hits = np.stack([(rank == 1).mean(0), label], axis=1)
        samples = replicates(hits, None, mean_of_classes, **settings.bootstrap)
        out[PER_CLASS] = MetricSamples(mean_of_classes(hits), samples, rank.size, 1 / classes, ties, "share")
        return out

    def cases(self, evaluation: Evaluation, number: int = EXAMPLES) -> list[CaseList]:
        classes, queries = self.collected(evaluation.data), evaluation.result.queries
        memory = settings_of(evaluation.result).memory
        judged = judge(evaluation.model.method, evaluation.data.images, classes, memory)
        true, false = judged.true.numpy(), judged.false.numpy()

        def case(i: int) -> Case:
            gap, name = float(true[i]) - float(false[i]), evaluation.data.keys[i]
            detail = f"true class at rank {queries['rank'][i]:,} of {len(classes.names):,}, {name}"
            texts = [
                (f"True class, {ahead(gap)}", classes.names[queries["label"][i]]),
                (f"Best other class, {ahead(-gap)}", classes.names[int(judged.other[i])]),
            ]
            return Case(
                lead(gap), detail, gap > 0, image=evaluation.image(i), alt=f"image {name}", texts=texts
            )

        order = "Sorted by the score of the true class less that of the best other class."
        titles = ("Classes: most wrong", "Classes: most right")
        return evaluation.both_ends(titles, order, case, true - false, number=number)

    def sections(self, evaluation: Evaluation) -> list[Section]:
        note = f"The {ON_PAGE} most frequent mistakes at most; the JSON has the outcome of every image."
        queries = evaluation.result.queries
        number = Counter(queries["classes"][i] for i in queries["label"])
        cells = [
            (true, other, f"{images:,} of {number[true]:,}", f"{100 * images / number[true]:.1f} %")
            for true, other, images in confusions(queries)
        ]
        caption = "True class, the class it was taken for, and how often"
        table = Table(caption, ("True class", "Taken for", "Images", "Of its class"), cells, words=(1,))
        part = table_html(table) if cells else hint("No image was taken for another class.")
        return [*super().sections(evaluation), Section("Classes: confusions", hint(note) + part)]


class PromptCollector(Collector):
    """Encodes the prompts of all classes (`number_classes`) once the labels of the images are known."""

    def __init__(
        self, model: Model, templates: Sequence[str], classes: Mapping[str, str] | None, batch: int
    ) -> None:
        self.model, self.templates, self.classes, self.batch = model, tuple(templates), classes, batch

    @torch.no_grad()
    def result(self, data: Encodings) -> ClassTexts:
        """Raises UserError where the labels are no set of classes."""
        names, label = number_classes(data.strings, self.classes, data.path)
        step = max(1, self.batch // len(self.templates))
        parts = []
        for start in range(0, len(names), step):
            some_names = names[start : start + step]
            prompts = [template.replace(HOLE, name) for name in some_names for template in self.templates]
            encoded = self.model.encode(texts=prompts)
            self.truncated += number_cut(encoded)
            parts.append(encoded if self.model.method.pairwise else _means(encoded, len(self.templates)))
        texts = stack(parts)
        return ClassTexts(names, self.templates, texts, torch.tensor(label, device=texts.vector.device))


@torch.no_grad()
def judge(method: Scorer, images: Encoded, classes: ClassTexts, memory: int) -> Predictions:
    """The ranks of classes for every image, in blocks that stay within `memory` bytes. Raises UserError."""
    prompts, needed = len(classes.templates) if method.pairwise else 1, ENTRY * len(classes.texts.vector)
    if memory < needed:
        raise UserError(
            f"a memory limit of {memory} bytes is too small: an image and all classes need {needed}"
        )
    parts, step = [], memory // needed
    for start in range(0, len(images.vector), step):
        block = slice(start, start + step)
        score = all_scores(method, rows(images, block), classes.texts, memory)
        score = score.unflatten(1, (-1, prompts)).mean(-1)  # [n, C]
        label = classes.label[block].to(score.device)[:, None]
        place = ranks(score, torch.zeros_like(score).bool().scatter(1, label, True))
        false, other = score.scatter(1, label, -torch.inf).max(1)
        parts.append((*place, score.gather(1, label)[:, 0], false, other))
    return Predictions(*(torch.cat(fields).cpu() for fields in zip(*parts, strict=True)))


def mean_of_classes(values: np.ndarray) -> float:
    """The mean over classes of the mean of each. values: [Q, 2], a value and the number of its class

    A resample draws from all images, and a class that it lacks does not count. Drawing inside each class
    would say that a class of one image is certain.
    """
    classes = values[:, 1].astype(np.int64)
    number, total = np.bincount(classes), np.bincount(classes, values[:, 0])
    return float((total[number > 0] / number[number > 0]).mean())


def confusions(queries: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """The most frequent mistakes: true class, predicted class, and how many images."""
    names, pairs = queries["classes"], zip(queries["label"], queries["predicted"], strict=True)
    number = Counter((true, other) for true, other in pairs if true != other)
    ordered = sorted(number.items(), key=lambda entry: (-entry[1], entry[0]))[:ON_PAGE]
    return [(names[a], names[b], images) for (a, b), images in ordered]


def read_templates(path: str) -> tuple[str, ...]:
    """One template a line, each with one {} for the name of the class. Raises UserError."""
    lines = read_lines(path)
    for number, line in enumerate(lines, 1):
        if line.count(HOLE) != 1:
            raise UserError(f"template {number} of {path} is {line!r}; each needs {HOLE} once, for the class")
    _refuse_twice(lines, f"template of {path}")
    return tuple(lines)


def read_classes(path: str) -> dict[str, str]:
    """One class a line, LABEL or LABEL and a tab and NAME: label -> name in the prompts. Raises UserError."""
    rows = [line.partition("\t") for line in read_lines(path)]
    labels = [spelt(label) for label, _, _ in rows]
    _refuse_twice(labels, f"class of {path}")
    return {label: spelt(name) or label for label, (_, _, name) in zip(labels, rows, strict=True)}


def number_classes(
    labels: Sequence[str], listed: Mapping[str, str] | None, where: str
) -> tuple[tuple[str, ...], list[int]]:
    """Names of the classes, and the class of every label.

    labels  [N] captions of the images
    listed  label -> name, all that there are, in their order; None takes those of the images, sorted

    Raises UserError for a label that is not listed, fewer than two classes, and names that only differ in
    capitals: a tokenizer reads them as one.
    """
    keys = [spelt(label) for label in labels]
    known = dict(listed) if listed is not None else {key: key for key in sorted(set(keys))}
    missing = sorted(set(keys) - known.keys())
    if missing:
        raise UserError(f"{len(missing)} classes of {where} are not in the file of classes: {some(missing)}")
    if len(known) < 2:
        raise UserError(f"{where} has one class only, {keys[0]!r}; classification needs two at least")
    _refuse_twice([name.casefold() for name in known.values()], f"name of a class of {where}")
    number = {key: i for i, key in enumerate(known)}
    return tuple(known.values()), [number[key] for key in keys]


def spelt(label: str) -> str:
    """A label with single blanks for underscores and white space."""
    return " ".join(label.replace("_", " ").split())


def _refuse_twice(values: Sequence[str], what: str) -> None:
    twice = sorted(value for value, number in Counter(values).items() if number > 1)
    if twice:
        raise UserError(f"{what} given twice: {some([repr(value) for value in twice])}; each must be unique")


def _means(encoded: Encoded, templates: int) -> Encoded:
    """One row a class: the mean of the unit vectors of its prompts, at length 1."""
    mean = F.normalize(encoded.vector.double().unflatten(0, (-1, templates)).mean(1), dim=-1)
    first = rows(encoded, slice(0, None, templates))
    return first._replace(vector=mean.float(), tokens=first.tokens[:, :0], mask=first.mask[:, :0])


def _notes(method: Scorer, queries: Mapping[str, Any]) -> tuple[str, ...]:
    names, label = queries["classes"], queries["label"]
    mode, times = Counter(label).most_common(1)[0]
    always = f"always saying {names[mode]!r} would be right for {times / len(label):.1%} of the images"
    notes = [f"{len(names)} classes; {always}"]
    empty = [name for i, name in enumerate(names) if i not in set(label)]
    if empty:
        notes.append(f"{len(empty)} classes have no image and count only as wrong answers: {some(empty)}")
    if len(names) <= max(DEPTHS):
        notes.append(f"accuracy at {max(DEPTHS)} is left out: with {len(names)} classes it could not fail")
    if method.pairwise:
        notes.append(
            "the score of a class is the mean of the scores of its prompts: this method compares tokens"
        )
    worst = [f"{true} taken for {other} ({images})" for true, other, images in confusions(queries)]
    if worst:
        notes.append(f"most often confused: {', '.join(worst[:IN_NOTE])}")
    return tuple(notes)
