"""Fine-grained descriptions of regions: does the right one score higher than all that are almost right?

Bianchi et al., arXiv 2311.17518, evaluate open-vocabulary detectors so; Xie et al., arXiv 2505.05071
(FG-CLIP), take the boxes as given and compare the image tokens inside, of images that are squashed into the
square, as here. A question is a region with one right text and its foils of one difficulty, or of one kind.
Differs from theirs: a tie is wrong.

The feature of a region is the mean over its box of the image tokens of the method: by RoIAlign on their grid,
and of segments over the pixels of the box. At length 1 it is compared with the vectors of the texts. Where
image tokens are compared with texts through a pooling alone (CAFT), the mean is one token that each text
pools, or ignores, and the score is the mean cosine of the parts of the text with what they pool. How the
paper of CAFT scores a box in its table 8 is not said there; this is our reading. How the method scores whole
images does not count.
"""

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from grainline.config import Config
from grainline.data.benchmarks.fgovd import DIFFICULTY
from grainline.data.formats.common import digest
from grainline.data.formats.joined import Joined
from grainline.data.record import Region, Source
from grainline.data.scenes.source import Scenes
from grainline.data.transforms import Rectangle
from grainline.errors import UserError
from grainline.evaluation.collectors.collecting import Rows, numbered
from grainline.evaluation.collectors.subtexts import Gathered, Subtexts
from grainline.evaluation.encode import Collector, Encodings, Sample
from grainline.evaluation.intervals import replicates, wilson
from grainline.evaluation.look import CONTRAST_HINT
from grainline.evaluation.measured import SHOWN, Measured, extremes, spread
from grainline.evaluation.ranks import refuse_nan
from grainline.evaluation.score import Cosine, Scorer, pair_scores
from grainline.evaluation.suite import HEAT, MetricSamples, Outcomes, Settings, Suite
from grainline.methods.text_parts import PartPool
from grainline.model import Model
from grainline.nn.pooling import roi_align
from grainline.nn.upsample import FEWEST, NULL_TEXTS
from grainline.report.case import Case, CaseList, Look, SentenceScore, lead
from grainline.report.page import MissingImage
from grainline.types import Encoded, full, rows, vectors_only, without_places

ACCURACY, RANK = "accuracy", "mean rank"
TEXTS = 5  # of a region on the page, the right one included
NEEDED = "regions that are measured need both, as in a file of FG-OVD or in `scenes` (docs/data.md)"
_NAME = "regions"  # of the texts among those that are gathered
_ORDER = tuple(DIFFICULTY.values())  # kinds that are not named here follow, in the order of the alphabet


class View(NamedTuple):
    """Where places of an image lie in the square that a model reads."""

    grid: tuple[int, int] | None  # rows and columns of its image tokens; None: they are segments
    side: int  # of the square that it sees, in pixels
    place: Callable[[Rectangle, tuple[int, int]], Rectangle]  # box in an image of a size -> in the square
    scorer: Scorer  # of regions with texts
    squash: bool  # whether the square is the whole image, squashed into it


class Question(NamedTuple):
    """A region with the texts to choose from, all wrong in the same way."""

    region: int
    kind: str  # of its foils
    texts: tuple[int, ...]  # places in `Regions.texts.strings`; the first one is right


class Counts(NamedTuple):
    """Regions with foils that were skipped or cut."""

    outside: int = 0  # of the square that the model sees: skipped
    rim: int = 0  # cut at the rim of the square
    boxless: int = 0  # have foils but no box: skipped


class Regions(NamedTuple):
    """R regions of N images, encoded, and the questions about them."""

    image: Tensor  # [R] int64, row of the image
    box: Tensor  # [R, 4] float32, left, top, right, bottom in pixels of the square that the model sees
    vector: Tensor  # [R, D] of unit length where the scorer compares vectors
    same: tuple[int, ...]  # [N] the first image that is the same, byte by byte
    texts: Subtexts
    questions: tuple[Question, ...]
    counts: Counts
    scorer: Scorer
    squash: bool  # as in View


class FgOvdOptions(Config):
    """Options of `fg-ovd`."""

    resize: Literal["squash", "model"] = Field(
        "squash",
        description="squash presses whole images into the square, as published; model: as it sees them",
    )


class FgOvdSuite(Suite[FgOvdOptions]):
    """The share of regions whose right text scores higher than all foils, and its mean rank, by kind."""

    name = "fg-ovd"
    Options = FgOvdOptions
    title = "FG-OVD"
    captions = ("whole",)
    reads = "the texts of regions"
    needs_text = False
    encodes_captions = False
    keeps_tokens = False
    replaces_scores = "compares vectors"
    must_match = ("regions",)
    headline = (ACCURACY,)
    figure = HEAT

    def prepare(self, model: Model, source: Source) -> tuple[Model, Source]:
        return (model.pressed() if self.options.resize == "squash" else model), with_foils(source)

    def collector(self, model: Model, source: Source, settings: Settings) -> Collector:
        return RegionCollector(model, settings.batch_size)

    def outcomes(self, scorer: Scorer, data: Encodings, settings: Settings) -> Outcomes:
        regions: Regions = self.collected(data)
        questions = regions.questions
        rank, tied = ranks_of(question_scores(regions))
        image = regions.image.tolist()
        queries = {
            "keys": list(data.keys),
            "texts": digest(regions.texts.strings[i] for question in questions for i in question.texts),
            "region": [question.region for question in questions],
            "image": [regions.same[image[question.region]] for question in questions],
            "kind": [question.kind for question in questions],
            "foils": [len(question.texts) - 1 for question in questions],
            "rank": rank.tolist(),
            "tied": tied.int().tolist(),
        }
        counts = regions.counts
        causes = {
            "lie outside the square that the model sees and were skipped": counts.outside,
            "reach over the rim of the square that the model sees and were cut to it": counts.rim,
            "have no box and were skipped": counts.boxless,
        }
        notes = tuple(f"{number} regions {what}" for what, number in causes.items() if number)
        number = {"texts": len(regions.texts.strings), "regions": len(image), **counts._asdict()}
        return Outcomes(queries, notes, {"square": "squash" if regions.squash else "crop"}, number)

    def metrics(self, runs: Sequence[dict[str, Any]], settings: Settings) -> dict[str, MetricSamples]:
        """Accuracy and mean rank from outcomes, over all questions and for each kind."""
        kind, image, foils = (np.array(runs[0][name]) for name in ("kind", "image", "foils"))
        rank = np.array([run["rank"] for run in runs], np.float64)  # [run, Q]
        tied = np.sum([run["tied"] for run in runs], axis=0)
        values = np.stack([(rank == 1).mean(0), rank.mean(0)], axis=1)  # [Q, 2]
        out = {}
        for name in ["", *sorted(set(runs[0]["kind"]), key=_place)]:
            of_kind = kind == name if name else np.ones(len(kind), bool)
            drawn = replicates(values[of_kind], image[of_kind], **settings.bootstrap)
            number, ties = int(of_kind.sum()), int(tied[of_kind].sum())
            right, mean = values[of_kind].mean(0)
            alone = wilson(int(values[of_kind, 0].sum()), number, settings.level) if len(runs) == 1 else None
            ends = None if alone is None else (alone.low, alone.high)
            chance = float((1 / (1 + foils[of_kind])).mean()), float((1 + foils[of_kind] / 2).mean())
            of, queries = f", {name}" if name else "", number * len(runs)
            out[ACCURACY + of] = MetricSamples(
                float(right), drawn[:, 0], queries, chance[0], ties, "share", ends
            )
            out[RANK + of] = MetricSamples(float(mean), drawn[:, 1], queries, chance[1], ties, "rank")
        return out

    def cases(self, on: Measured, number: int = SHOWN) -> list[CaseList]:
        regions: Regions = self.collected(on.data)
        queries, scores, strings = on.result.queries, question_scores(regions), regions.texts.strings
        margin = margins(scores)
        null = [strings[j] for j in spread(np.arange(len(strings)), NULL_TEXTS)]
        on = on._replace(model=on.model.pressed()) if regions.squash else on

        def case(i: int) -> Case:
            question = regions.questions[i]
            row = int(regions.image[question.region])
            left, top, right, bottom = regions.box[question.region].tolist()
            texts = _texts([strings[place] for place in question.texts], scores[i].tolist())
            look = _look(on, row, texts, (left, top, right, bottom), null)
            rank = f"rank {queries['rank'][i]} of {len(question.texts)}"
            detail = f"{question.kind}, {rank}, {on.data.keys[row]}"
            return Case(lead(float(margin[i])), detail, margin[i] > 0, look=look)

        order = (
            "By the score of the right text less that of the best foil; one region for each image, with the"
            f" right text and up to {TEXTS - 1} foils that score highest. The score is the cosine of a text"
            f" with what lies in the box. {CONTRAST_HINT}"
        )
        titles = ("Regions: most wrong", "Regions: most right")
        return on.both_ends(titles, order, extremes(margin, image=queries["image"], number=number), case)


def _place(kind: str) -> tuple[int, str]:
    return _ORDER.index(kind) if kind in _ORDER else len(_ORDER), kind


def with_foils(source: Source) -> Source:
    """The source with foils for its regions, where it has them on request only."""
    if isinstance(source, Scenes):
        return source.with_foils()
    if isinstance(source, Joined):
        return Joined([with_foils(one) for one in source.sources])
    return source


def view(model: Model) -> View:
    """Where places of an image lie in the square that a model reads.

    Raises UserError where its image tokens have no places, or no loss makes them like texts.
    """
    name, method = model.description.method, model.method
    if not method.has_layout:
        raise UserError(f"the image tokens of {name} have no places, so it has no features of regions")
    pool = getattr(method, "pool", None)
    scorer: Scorer = Cosine()
    if not method.tokens_in_text_space and isinstance(pool, PartPool):
        scorer = PooledRegions(pool)
    elif not method.tokens_in_text_space:
        raise UserError(
            f"no loss of {name} makes its image tokens like texts, so they say nothing of regions"
        )
    grid = None if method.segmented else method.grid
    return View(grid, method.size, model.transform.place, scorer, model.transform.resize == "squash")


class PooledRegions:
    """Scores regions that are one image token each, by what the parts of a text pool of it."""

    pairwise = blockwise = True

    def __init__(self, pool: PartPool) -> None:
        self.pool = pool

    def precompute(self, images: Encoded) -> Encoded:
        return images

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        """images with one token each -> [N, M]"""
        return self.pool.cosines(images, texts)


class RegionCollector(Collector):
    """Regions of one image after the other, pooled while the tokens of the image are there."""

    def __init__(self, model: Model, batch: int) -> None:
        self._view = view(model)
        kept = without_places if self._view.scorer.pairwise else vectors_only
        self._rows = Rows(lambda items: kept(model.encode(texts=items)), batch)
        self._gathered = Gathered(model.read, self._rows.add)
        self._boxes: list[list[Rectangle]] = []  # of each image, in its square
        self._questions: list[list[tuple[int, str, int]]] = []  # of each image: region, kind, number of texts
        self._vectors: list[Tensor] = []
        self._pooled = 0  # images so far
        self._same: list[int] = []
        self._first: dict[bytes, int] = {}
        self._counts = Counts()

    def add(self, sample: Sample) -> None:
        number, content = len(self._boxes), sample.record.image
        file = sha256(content).digest() if isinstance(content, bytes) else b"%d" % number
        self._same.append(self._first.setdefault(file, number))
        boxes: list[Rectangle] = []
        questions: list[tuple[int, str, int]] = []
        texts: list[str] = []
        for region in sample.record.regions:
            by_kind = choices_of(region)
            box = self._in_square(region, sample.size) if by_kind else None
            if box is None:
                continue
            for kind, choices in by_kind.items():
                questions.append((len(boxes), kind, len(choices)))
                texts += choices
            boxes.append(box)
        self._boxes.append(boxes)
        self._questions.append(questions)
        self._gathered.add({_NAME: texts})

    def add_images(self, images: Encoded, texts: Sequence[Sequence[str]]) -> None:
        n = len(images.vector)
        boxes = self._boxes[self._pooled : self._pooled + n]
        self._pooled += n
        device = images.tokens.device
        flat = torch.tensor([box for one in boxes for box in one], device=device).view(-1, 4)
        number = torch.tensor([len(one) for one in boxes], device=device)
        of = torch.arange(n, device=device).repeat_interleave(number)
        pool = self._of_segments if self._view.grid is None else self._of_grid
        mean = pool(images, flat, of)
        self._vectors.append(mean if self._view.scorer.pairwise else F.normalize(mean, dim=-1))

    def _of_grid(self, images: Encoded, boxes: Tensor, of: Tensor) -> Tensor:
        """The mean of patches over boxes [R, 4] of the square: [R, D]. of: [R] the row of each"""
        grid = self._view.grid
        assert grid is not None, "patches lie on a grid"
        on_grid = images.tokens[:, : grid[0] * grid[1]]
        assert on_grid.shape[1] == grid[0] * grid[1], (images.tokens.shape, grid)
        scale = (grid[0] / self._view.side, grid[1] / self._view.side)
        return roi_align(full(on_grid).unflatten(1, grid), boxes, of, scale=scale)[:, 0, 0]

    def _of_segments(self, images: Encoded, boxes: Tensor, of: Tensor) -> Tensor:
        """The mean of segments over the pixels of boxes, a pixel that is cut counts by its part: [R, D]"""
        assert images.places is not None, "segments without places"
        places = images.places.flatten(1).long()  # [N, h * w]
        height, width = images.places.shape[1:]
        down = _covered(boxes[:, 1], boxes[:, 3], self._view.side / height, height)  # [R, h]
        across = _covered(boxes[:, 0], boxes[:, 2], self._view.side / width, width)
        out = []
        for i, (y, x) in zip(of.tolist(), zip(down, across, strict=True), strict=True):
            share = y.new_zeros(images.tokens.shape[1]).index_add(0, places[i], (y[:, None] * x).flatten())
            out.append((share / share.sum()).to(images.tokens.dtype) @ images.tokens[i])
        return full(torch.stack(out)) if out else full(images.tokens[:0, 0])

    def result(self, data: Encodings) -> Regions:
        """Raises UserError where there is no region to measure."""
        outside = self._counts.outside
        if not any(self._questions) and outside:
            raise UserError(
                f"all {outside} regions of {data.path} lie outside the square that the model sees"
            )
        if not any(self._questions):
            raise UserError(f"no region of {data.path} has a box and foils; {NEEDED}")
        texts = self._gathered.encoded(numbered(self._rows.stacked(), [-1] * self._rows.number))
        self.truncated = self._gathered.spared
        questions: list[Question] = []
        start = 0
        for boxes, of_image, places in zip(self._boxes, self._questions, texts.of[_NAME], strict=True):
            at = 0
            for region, kind, number in of_image:
                questions.append(Question(start + region, kind, places[at : at + number]))
                at += number
            start += len(boxes)
        vector = torch.cat(self._vectors)
        refuse_nan(int(vector.isnan().any(1).sum()), len(vector))
        size = torch.tensor([len(one) for one in self._boxes])
        return Regions(
            torch.arange(len(size)).repeat_interleave(size),
            torch.tensor([box for one in self._boxes for box in one]).view(-1, 4),
            vector,
            tuple(self._same),
            texts,
            tuple(questions),
            self._counts,
            self._view.scorer,
            self._view.squash,
        )

    def _in_square(self, region: Region, size: tuple[int, int]) -> Rectangle | None:
        """The box of a region in the square, cut at its rim; None, and counted, where nothing is left."""
        counts, side = self._counts, self._view.side
        if region.box is None:
            self._counts = counts._replace(boxless=counts.boxless + 1)
            return None
        whole = self._view.place(region.box, size)
        left, top, right, bottom = (min(max(edge, 0.0), float(side)) for edge in whole)
        if left >= right or top >= bottom:
            self._counts = counts._replace(outside=counts.outside + 1)
            return None
        slack = 1e-6 * side  # rounding is no cut
        if max(abs(a - b) for a, b in zip(whole, (left, top, right, bottom), strict=True)) > slack:
            self._counts = counts._replace(rim=counts.rim + 1)
        return left, top, right, bottom


def choices_of(region: Region) -> dict[str, list[str]]:
    """For each kind of foil the texts to choose from, each once, the right one first.

    >>> from grainline.data.record import Foil
    >>> foils = Foil("a blue cup", "a red cup", "colour"), Foil("a red pan", "a red cup", "noun")
    >>> choices_of(Region("a red cup", foils=foils))
    {'colour': ['a red cup', 'a blue cup'], 'noun': ['a red cup', 'a red pan']}
    """
    by_kind: dict[str, dict[str, None]] = {}
    for foil in region.foils:
        by_kind.setdefault(foil.kind, {region.phrase: None})[foil.text] = None
    return {kind: list(texts) for kind, texts in by_kind.items() if len(texts) > 1}


def _covered(low: Tensor, high: Tensor, step: float, number: int) -> Tensor:
    """How much of each of `number` steps along one side lies between two ends: [R, number], 0 to 1

    low, high  [R] in the units of `step`
    """
    edge = step * torch.arange(number + 1, device=low.device)
    ends = torch.minimum(high[:, None], edge[1:]) - torch.maximum(low[:, None], edge[:-1])
    return (ends / step).clamp(min=0)


def question_scores(regions: Regions) -> list[Tensor]:
    """The scores of each question's region with its texts, the right one first: Q tensors [1 + foils].

    Texts that the model reads alike score the same.
    """
    number = torch.tensor([len(question.texts) for question in regions.questions])
    region = torch.tensor([question.region for question in regions.questions]).repeat_interleave(number)
    place = torch.tensor([text for question in regions.questions for text in question.texts])
    texts = rows(regions.texts.texts, regions.texts.row[place].to(regions.vector.device))
    images = _as_images(regions.vector, regions.scorer.pairwise)
    score = pair_scores(regions.scorer, images, texts, region.to(regions.vector.device))
    return list(score.cpu().split(number.tolist()))


def ranks_of(scores: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Ranks of the right texts [Q] int64, 1 + foils that score at least as high, and [Q] bool: only tied.

    >>> ranks_of([torch.tensor([0.5, 0.5, 0.1]), torch.tensor([0.3, 0.2]), torch.tensor([0.1, 0.1, 0.4])])
    (tensor([2, 1, 3]), tensor([ True, False, False]))
    """
    beaten = torch.tensor([int((one[1:] >= one[0]).sum()) for one in scores])
    higher = torch.tensor([int((one[1:] > one[0]).sum()) for one in scores])
    return 1 + beaten, (higher == 0) & (beaten > 0)


def margins(scores: Sequence[Tensor]) -> np.ndarray:
    """By how much each right text leads the best foil: [Q], right above zero."""
    return np.array([float(one[0] - one[1:].max()) for one in scores])


def _as_images(vector: Tensor, token: bool) -> Encoded:
    """Regions in the place of images: vectors alone, or the same as their one token."""
    number, width = torch.arange(len(vector), device=vector.device), int(token)
    mask = vector.new_ones(len(vector), width).bool()
    return Encoded(vector, vector[:, None, :][:, :width], mask, number, number)


def _texts(texts: list[str], scores: list[float]) -> list[SentenceScore]:
    """The right text, which stands first, and the best of its foils, from the highest score to the lowest."""
    foils = [
        SentenceScore(text, score, role="foil", other=texts[0])
        for text, score in zip(texts, scores, strict=True)
    ]
    foils = sorted(foils[1:], key=lambda foil: -foil.score)[: TEXTS - 1]
    right = SentenceScore(texts[0], scores[0], role="right text", other=foils[0].text)
    place = sum(foil.score >= right.score for foil in foils)
    return [*foils[:place], right, *foils[place:]]


def _look(
    on: Measured,
    row: int,
    texts: list[SentenceScore],
    box: tuple[float, float, float, float],
    null: list[str],
) -> Look:
    """The image with a frame around a region, and the heat of its texts against those of other regions."""
    image = on.image(row)
    alt = f"a region of {on.data.keys[row]}"
    if isinstance(image, MissingImage):
        return Look(image, alt, texts)
    strings = [one.text for one in texts]
    others = [text for text in dict.fromkeys(null) if text not in strings]
    contrast = len(others) >= FEWEST
    heat = on.model.heat(on.given(row, image), strings, others if contrast else None).cpu().numpy()
    return Look(image, alt, texts, heat, box, contrast=contrast)
