"""Fine-grained descriptions of regions: does the right one score higher than all that are almost right?

Bianchi et al., arXiv 2311.17518, evaluate open-vocabulary detectors so; Xie et al., arXiv 2505.05071
(FG-CLIP), take the boxes as given and compare the image tokens inside, of images squashed into the square, as
here. A question is a region with one right text and its foils of one kind or difficulty. A tie is wrong.

The feature of a region is the mean of the image tokens over its box, at length 1, and scores are cosines with
the vectors of the texts. Where image tokens meet texts through a pooling alone (CAFT), each part of a text
pools the tokens in the box, a segment as far as it lies there, and the score is the mean cosine of the parts
with what they pool. CAFT's paper does not say how it scores a box in its table 8; this is our reading.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from grainline.data.benchmarks.phrase_regions import DIFFICULTY
from grainline.data.record import Box, Region
from grainline.errors import UserError
from grainline.evaluation.encode import Encodings, Rows, Sample
from grainline.evaluation.examples import CONTRAST_HINT, EXAMPLES, Evaluation, spread
from grainline.evaluation.score import Scorer, pair_scores
from grainline.evaluation.suite import MetricSamples, Outcomes, Settings, accuracy, count_notes, mean_metric
from grainline.evaluation.suites.monotonicity import SubtextQueue, Subtexts
from grainline.evaluation.suites.regions import (
    BoxTokens,
    PooledRegions,
    RegionCollector,
    RegionSuite,
    box_means,
    box_tokens,
    region_queries,
    region_scorer,
)
from grainline.model import Model
from grainline.nn.upsample import FEWEST, NULL_TEXTS
from grainline.report.case import Case, CaseImage, CaseList, SentenceScore, lead, standing
from grainline.types import Encoded, rows, vectors_only, without_places

ACCURACY, RANK = "accuracy", "mean rank"
TEXTS = 5  # of a region on the page, the right one included
NEEDED = "regions that are measured need both, as in a file of FG-OVD or in `scenes` (docs/data.md)"
_ORDER = tuple(DIFFICULTY.values())  # kinds that are not named here follow in alphabetical order
OUTSIDE, BOXLESS = "outside", "boxless"
NOTES = {
    OUTSIDE: "regions lie outside their image and were skipped",
    BOXLESS: "regions have no box and were skipped",
}


class Question(NamedTuple):
    """A region with the texts to choose from, all wrong in the same way."""

    region: int
    kind: str  # of its foils
    texts: tuple[int, ...]  # places in `Regions.texts.strings`; the first one is right


class Regions(NamedTuple):
    """R regions of N images, encoded, and the questions about them."""

    image: Tensor  # [R] int64, row of the image
    box: Tensor  # [R, 4] float32, left, top, right, bottom in pixels of the square that the model sees
    vector: Tensor  # [R, D] the mean of its tokens, at length 1; [0, D] where texts pool tokens
    tokens: tuple[BoxTokens, ...]  # of each region; none where vectors are compared
    same: tuple[int, ...]  # [N] the first image with the same content
    texts: Subtexts
    questions: tuple[Question, ...]
    counts: dict[str, int]  # regions with foils, by the keys of NOTES
    scorer: Scorer  # of regions with texts


def _place(kind: str) -> tuple[int, str]:
    return _ORDER.index(kind) if kind in _ORDER else len(_ORDER), kind


class FoilCollector(RegionCollector):
    """Pools the regions of one image after the other while its tokens are there, and queues their texts."""

    def __init__(self, model: Model, batch: int) -> None:
        super().__init__(model, batch)
        self._scorer = region_scorer(model)
        reduce = without_places if self._scorer.pairwise else vectors_only
        self._queue = SubtextQueue(model, Rows(lambda items: reduce(model.encode(texts=items)), batch))
        self._box: list[Box] = []  # of each region, in the square
        self._image: list[int] = []  # of each region
        self._questions: list[Question] = []
        self._vectors: list[Tensor] = []  # of the regions of each batch
        self._tokens: list[BoxTokens] = []  # of each region
        self._images = 0  # whose regions are pooled
        self._counts = dict.fromkeys(NOTES, 0)

    def add(self, sample: Sample) -> None:
        for region in sample.record.regions:
            by_kind = dict[
                str, dict[str, None]
            ]()  # of each kind of foil the texts, each once, the right one first
            for foil in region.foils:
                by_kind.setdefault(foil.kind, {region.phrase: None})[foil.text] = None
            by_kind = {kind: texts for kind, texts in by_kind.items() if len(texts) > 1}
            box = self._in_square(region, sample.size) if by_kind else None
            if box is None:
                continue
            for kind, choices in by_kind.items():
                self._questions.append(Question(len(self._box), kind, self._queue.places([*choices])))
            self._box.append(box)
            self._image.append(sample.row)
        super().add(sample)

    def add_images(self, images: Encoded, texts: Sequence[Sequence[str]]) -> None:
        start, device = sum(map(len, self._vectors)) + len(self._tokens), images.tokens.device
        box = torch.tensor(self._box[start:], device=device).view(-1, 4)
        row = torch.tensor(self._image[start:], device=device, dtype=torch.int64) - self._images
        self._images += len(images.vector)
        grid = None if self.method.segmented else self.method.grid
        if self._scorer.pairwise:
            self._tokens += box_tokens(images, box, row, grid, self.method.size)
        else:
            self._vectors.append(F.normalize(box_means(images, box, row, grid, self.method.size), dim=-1))

    def result(self, data: Encodings) -> Regions:
        """Raises UserError where there is no region to measure."""
        if not self._questions:
            outside = self._counts[OUTSIDE]
            if outside:
                raise UserError(f"all {outside} regions of {data.path} lie outside their images")
            raise UserError(f"no region of {data.path} has a box and foils; {NEEDED}")
        texts = self._queue.encoded()
        self.truncated = self._queue.number_cut
        vector = torch.cat(self._vectors or [torch.empty(0, 1)])
        return Regions(
            torch.tensor(self._image), torch.tensor(self._box), vector, tuple(self._tokens), tuple(self.same),
            texts, tuple(self._questions), self._counts, self._scorer,
        )  # fmt: skip

    def _in_square(self, region: Region, size: tuple[int, int]) -> Box | None:
        """The box of a region in the square, cut at its rim; None, and counted, where nothing is left."""
        if region.box is None:
            self._counts[BOXLESS] += 1
            return None
        side = float(self.method.size)
        left, top, right, bottom = (
            min(max(edge, 0.0), side) for edge in self.model.transform.place(region.box, size)
        )
        if left >= right or top >= bottom:
            self._counts[OUTSIDE] += 1
            return None
        return left, top, right, bottom


class FgOvdSuite(RegionSuite):
    """The share of regions whose right text scores higher than all foils, and its mean rank, by kind."""

    name = "fg-ovd"
    collector_class = FoilCollector
    title = "FG-OVD"
    source_variant = "with_foils"
    replaces_scores = "compares vectors"
    must_match = ("regions",)
    headline = (ACCURACY, *(f"{ACCURACY}, {kind}" for kind in _ORDER))

    def outcomes(self, scorer: Scorer, data: Encodings, settings: Settings) -> Outcomes:
        regions: Regions = self.collected(data)
        questions = regions.questions
        rank, tied = ranks_of(question_scores(regions))
        image, region = regions.image.tolist(), [question.region for question in questions]
        texts = (regions.texts.strings[i] for question in questions for i in question.texts)
        queries = {
            **region_queries(regions.same, texts, [image[i] for i in region], region),
            "kind": [question.kind for question in questions],
            "foils": [len(question.texts) - 1 for question in questions],
            "rank": rank.tolist(),
            "tied": tied.int().tolist(),
        }
        notes = count_notes({what: regions.counts[name] for name, what in NOTES.items()})
        number = {"texts": len(regions.texts.strings), "regions": len(image), **regions.counts}
        protocol = "fg-ovd" if set(queries["kind"]) <= set(_ORDER) else "plain"  # no file of FG-OVD
        return Outcomes(queries, notes, data=number, protocol=protocol)

    def metrics(self, runs: Sequence[dict[str, Any]], settings: Settings) -> dict[str, MetricSamples]:
        """Accuracy and mean rank from outcomes, over all questions and for each kind."""
        kind, image, foils = (np.array(runs[0][name]) for name in ("kind", "image", "foils"))
        rank = np.array([run["rank"] for run in runs], np.float64)  # [run, Q]
        tied = np.sum([run["tied"] for run in runs], axis=0)
        out = {}
        for name in ["", *sorted(set(runs[0]["kind"]), key=_place)]:
            mask = kind == name if name else np.ones(len(kind), bool)
            some, own, ties = rank[:, mask], image[mask], int(tied[mask].sum())
            suffix = f", {name}" if name else ""
            share, middle = float((1 / (1 + foils[mask])).mean()), float((1 + foils[mask] / 2).mean())
            out[ACCURACY + suffix] = accuracy(some == 1, own, share, ties, settings)
            out[RANK + suffix] = mean_metric(some.mean(0), own, some.size, middle, ties, "rank", settings)
        return out

    def cases(self, evaluation: Evaluation, number: int = EXAMPLES) -> list[CaseList]:
        regions: Regions = self.collected(evaluation.data)
        queries, scores, strings = evaluation.result.queries, question_scores(regions), regions.texts.strings
        margin = margins(scores)
        null = [strings[j] for j in spread(np.arange(len(strings)), NULL_TEXTS)]
        evaluation = self.prepared(evaluation)

        def case(i: int) -> Case:
            question = regions.questions[i]
            row, box = int(regions.image[question.region]), regions.box[question.region].tolist()
            texts = _texts([strings[place] for place in question.texts], scores[i].tolist())
            detail = f"{question.kind}, rank {queries['rank'][i]} of {len(question.texts)}, "
            look = CaseImage(evaluation.image(row), f"a region of {evaluation.data.keys[row]}", texts)
            if isinstance(look.image, Image.Image):
                words = [one.text for one in texts]
                others = [text for text in dict.fromkeys(null) if text not in words]
                image, contrast = evaluation.given(row, look.image), len(others) >= FEWEST
                heat = evaluation.model.heat(image, words, others if contrast else None).cpu().numpy()
                look = look._replace(heat=heat, box=tuple(box), contrast=contrast)
            return Case(lead(float(margin[i])), detail + evaluation.data.keys[row], margin[i] > 0, look=look)

        order = (
            "Sorted by the score of the right text less that of the best foil; one region for each image,"
            f" with the right text and up to {TEXTS - 1} foils that score highest. The score is the cosine of"
            f" a text with what lies in the box. {CONTRAST_HINT}"
        )
        titles = ("Regions: most wrong", "Regions: most right")
        return evaluation.both_ends(titles, order, case, margin, image=queries["image"], number=number)


def question_scores(regions: Regions) -> list[Tensor]:
    """The scores of each question's region with its texts, the right one first: Q tensors [1 + foils]."""
    texts, device = regions.texts.texts, regions.vector.device
    if isinstance(regions.scorer, PooledRegions):
        scores = []
        for question in regions.questions:
            place, back = regions.texts.row[list(question.texts)].unique(return_inverse=True)
            box, some = regions.tokens[question.region], rows(texts, place.to(texts.vector.device))
            scores.append(regions.scorer.score_box(box, some).cpu()[back])
        return scores
    number = torch.tensor([len(question.texts) for question in regions.questions])
    region = torch.tensor([question.region for question in regions.questions]).repeat_interleave(number)
    place = torch.tensor([text for question in regions.questions for text in question.texts])
    texts = rows(texts, regions.texts.row[place].to(device))
    vector, row = regions.vector, torch.arange(len(regions.vector), device=device)
    images = Encoded(vector, vector[:, None, :0], vector.new_ones(len(vector), 0).bool(), row, row)
    return list(pair_scores(regions.scorer, images, texts, region.to(device)).cpu().split(number.tolist()))


def ranks_of(scores: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Ranks of the right texts [Q] int64, 1 + foils that score at least as high, and [Q] bool: only tied."""
    beaten = torch.tensor([int((one[1:] >= one[0]).sum()) for one in scores])
    higher = torch.tensor([int((one[1:] > one[0]).sum()) for one in scores])
    return 1 + beaten, (higher == 0) & (beaten > 0)


def margins(scores: Sequence[Tensor]) -> np.ndarray:
    """Margin by which each right text leads the best foil: [Q], right above zero."""
    return np.array([float(one[0] - one[1:].max()) for one in scores])


def _texts(texts: list[str], scores: list[float]) -> list[SentenceScore]:
    """The right text, which stands first, and the best of its foils, from the highest score to the lowest."""
    order = sorted(range(len(texts)), key=lambda i: (-scores[i], i == 0))  # ties: the right one is behind
    ranked, foils = sorted(scores, reverse=True), [i for i in order if i][: TEXTS - 1]
    return [
        SentenceScore(
            texts[i],
            scores[i],
            role="foil" if i else "right text",
            other=texts[0 if i else foils[0]],
            place=standing(rank, ranked),
        )
        for rank, i in enumerate(order, 1)
        if i in (0, *foils)
    ]
