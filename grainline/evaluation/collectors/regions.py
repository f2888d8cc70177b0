"""Regions of pictures: which of several texts speaks of what is in a box?

The feature of a region is the mean over its box of the image tokens of the method: by RoIAlign on their grid,
and of segments over the pixels of the box. At length 1 it is compared with the vectors of the texts. Where
image tokens are compared with texts through a pooling alone (CAFT), the mean is one token that each text
pools, or looks past, and the score is the mean cosine of the parts of the text with what they pool. How the
paper of CAFT scores a box in its table 8 is not said there; this is our reading. How the method scores whole
images does not count.
"""

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from grainline.data.chunks import Parted
from grainline.data.record import Record, Region
from grainline.data.transforms import Rectangle
from grainline.errors import UserError
from grainline.evaluation.collectors.subtexts import Gathered, Subtexts
from grainline.evaluation.ranks import refuse_nan
from grainline.evaluation.score import Cosine, Scorer, pair_scores
from grainline.methods.text_parts import pooled_cosines
from grainline.model import Model
from grainline.nn.pooling import ConditionedPool, roi_align
from grainline.types import Encoded, full, rows

NEEDED = "regions that are measured need both, as in a file of FG-OVD or in `scenes` (docs/data.md)"
ASKED = "regions"  # the name of the texts among those that are gathered


class View(NamedTuple):
    """How a model sees a place in a picture."""

    grid: tuple[int, int] | None  # rows and columns of its image tokens; None: they are segments
    side: int  # of the square that it sees, in pixels
    place: Callable[[Rectangle, tuple[int, int]], Rectangle]  # box in a picture of a size -> in the square
    scorer: Scorer  # of regions with texts
    squash: bool  # whether the square is the whole image, pressed into it


class Question(NamedTuple):
    """A region with the texts to choose from, all wrong in the same way."""

    region: int
    kind: str  # of its foils
    texts: tuple[int, ...]  # places in `Regions.told.strings`; the first one is right


class Counts(NamedTuple):
    """What became of the regions that have foils and a box."""

    outside: int = 0  # of the square that the model sees: skipped
    rim: int = 0  # cut at the rim of the square
    boxless: int = 0  # have foils but no box: skipped


class Regions(NamedTuple):
    """R regions of N pictures, encoded, and the questions about them."""

    picture: Tensor  # [R] int64, row of the picture
    box: Tensor  # [R, 4] float32, left, top, right, bottom in pixels of the square that the model sees
    vector: Tensor  # [R, D] of unit length where the scorer compares vectors
    same: tuple[int, ...]  # [N] the first picture that is the same, byte by byte
    told: Subtexts  # the texts
    questions: tuple[Question, ...]
    counts: Counts
    scorer: Scorer
    squash: bool  # as in View


class Outcome(NamedTuple):
    """The outcome of every question."""

    rank: Tensor  # [Q] int64, 1 + the foils that score at least as high as the right text
    tied: Tensor  # [Q] bool, wrong only because a foil scores the same


def view(model: Model) -> View:
    """How a model sees a place in a picture.

    Raises UserError where its image tokens have no places, or no loss makes them like texts.
    """
    name, method = model.description.method, model.method
    if not method.placed:
        raise UserError(f"the image tokens of {name} have no places, so it has no features of regions")
    pool = getattr(method, "pool", None)
    scorer: Scorer = Cosine()
    if not method.matched and isinstance(pool, ConditionedPool):
        scorer = PooledRegions(pool)
    elif not method.matched:
        raise UserError(
            f"no loss of {name} makes its image tokens like texts, so they say nothing of regions"
        )
    grid = None if method.segmented else method.grid
    return View(grid, method.size, model.transform.place, scorer, model.transform.resize == "squash")


class PooledRegions:
    """Scores regions that are one image token each, by what the parts of a text pool of it."""

    pairwise = blockwise = True

    def __init__(self, pool: ConditionedPool) -> None:
        self.pool = pool

    def held(self, images: Encoded) -> Encoded:
        return images

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        """images with one token each -> [N, M]"""
        return pooled_cosines(self.pool, images, texts)


class Collected:
    """Regions of one picture after the other, pooled as soon as the picture is encoded.

    read  what the model reads of texts
    add   queues a text for encoding; its row
    """

    def __init__(
        self, view: View, read: Callable[[Sequence[str]], Parted], add: Callable[[str], int]
    ) -> None:
        self._view, self._gathered = view, Gathered(read, add)
        self._boxes: list[list[Rectangle]] = []  # of each picture, in its square
        self._asked: list[list[tuple[int, str, int]]] = []  # of each picture: region, kind, number of texts
        self._vectors: list[Tensor] = []
        self._pooled = 0  # pictures so far
        self._same: list[int] = []
        self._first: dict[bytes, int] = {}
        self._counts = Counts()

    @property
    def spared(self) -> int:
        """Texts that are cut and need no encoding, because another one reads alike."""
        return self._gathered.spared

    def add(self, record: Record, size: tuple[int, int]) -> None:
        """The regions of the next picture.

        size  its width and height as it is decoded
        """
        number = len(self._boxes)
        file = sha256(record.image).digest() if isinstance(record.image, bytes) else b"%d" % number
        self._same.append(self._first.setdefault(file, number))
        boxes: list[Rectangle] = []
        asked: list[tuple[int, str, int]] = []
        texts: list[str] = []
        for region in record.regions:
            choices = choices_of(region)
            box = self._placed(region, size) if choices else None
            if box is None:
                continue
            for kind, chosen in choices.items():
                asked.append((len(boxes), kind, len(chosen)))
                texts += chosen
            boxes.append(box)
        self._boxes.append(boxes)
        self._asked.append(asked)
        self._gathered.add({ASKED: texts})

    def pool(self, images: Encoded) -> None:
        """The features of all regions of the next pictures that were added. images: N rows with tokens"""
        n = len(images.vector)
        boxes = self._boxes[self._pooled : self._pooled + n]
        self._pooled += n
        device = images.tokens.device
        flat = torch.tensor([box for one in boxes for box in one], device=device).view(-1, 4)
        of = torch.arange(n, device=device).repeat_interleave(
            torch.tensor([len(one) for one in boxes], device=device)
        )
        mean = (
            self._of_segments(images, flat, of)
            if self._view.grid is None
            else self._of_grid(images, flat, of)
        )
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

    def refuse_none(self, path: str) -> None:
        """Raise UserError where there is no region to measure."""
        outside = self._counts.outside
        if not any(self._asked) and outside:
            raise UserError(f"all {outside} regions of {path} lie outside the square that the model sees")
        if not any(self._asked):
            raise UserError(f"no region of {path} has a box and foils; {NEEDED}")

    def regions(self, texts: Encoded) -> Regions:
        """All of them. `texts` holds the rows that were queued."""
        told = self._gathered.encoded(texts)
        questions: list[Question] = []
        start = 0
        for boxes, asked, places in zip(self._boxes, self._asked, told.of[ASKED], strict=True):
            at = 0
            for region, kind, number in asked:
                questions.append(Question(start + region, kind, places[at : at + number]))
                at += number
            start += len(boxes)
        vector = torch.cat(self._vectors)
        refuse_nan(int(vector.isnan().any(1).sum()), len(vector))
        held = torch.tensor([len(one) for one in self._boxes])
        return Regions(
            torch.arange(len(held)).repeat_interleave(held),
            torch.tensor([box for one in self._boxes for box in one]).view(-1, 4),
            vector,
            tuple(self._same),
            told,
            tuple(questions),
            self._counts,
            self._view.scorer,
            self._view.squash,
        )

    def _placed(self, region: Region, size: tuple[int, int]) -> Rectangle | None:
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
    found: dict[str, dict[str, None]] = {}
    for foil in region.foils:
        found.setdefault(foil.kind, {region.phrase: None})[foil.text] = None
    return {kind: list(texts) for kind, texts in found.items() if len(texts) > 1}


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
    texts = rows(regions.told.texts, regions.told.row[place].to(regions.vector.device))
    asked = _as_images(regions.vector, regions.scorer.pairwise)
    score = pair_scores(regions.scorer, asked, texts, region.to(regions.vector.device))
    return list(score.cpu().split(number.tolist()))


def outcomes(scores: Sequence[Tensor]) -> Outcome:
    """Ranks of the right texts, ties counted as wrong.

    >>> outcomes([torch.tensor([0.5, 0.5, 0.1]), torch.tensor([0.3, 0.2]), torch.tensor([0.1, 0.1, 0.4])])
    Outcome(rank=tensor([2, 1, 3]), tied=tensor([ True, False, False]))
    """
    beaten = torch.tensor([int((one[1:] >= one[0]).sum()) for one in scores])
    higher = torch.tensor([int((one[1:] > one[0]).sum()) for one in scores])
    return Outcome(1 + beaten, (higher == 0) & (beaten > 0))


def margins(scores: Sequence[Tensor]) -> np.ndarray:
    """By how much each right text leads the best foil: [Q], right above zero."""
    return np.array([float(one[0] - one[1:].max()) for one in scores])


def _as_images(vector: Tensor, token: bool) -> Encoded:
    """Regions in the place of images: vectors alone, or the same as their one token."""
    number, width = torch.arange(len(vector), device=vector.device), int(token)
    mask = vector.new_ones(len(vector), width).bool()
    return Encoded(vector, vector[:, None, :][:, :width], mask, number, number)
