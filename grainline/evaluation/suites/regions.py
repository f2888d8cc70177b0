"""Parts of the suites of regions: their walk over a source, and features, scores, sums and IoU of boxes.

An expression is the phrase of a region, which names one thing in the image. Tokens of images are not stored:
each collector reads them while they are there.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from grainline.data.formats.common import digest
from grainline.data.record import Box, Source, content_of
from grainline.errors import UserError
from grainline.evaluation.encode import Collector, Encodings, Sample, number_cut
from grainline.evaluation.examples import Evaluation
from grainline.evaluation.score import Cosine, Scorer
from grainline.evaluation.statistics import refuse_nan
from grainline.evaluation.suite import O, Suite
from grainline.methods.base import Method
from grainline.methods.heat import on_pixels
from grainline.model import Model
from grainline.nn.pooling import ConditionedPool, roi_align, unit
from grainline.nn.upsample import unit_range as unit_range  # maps of regions are compared as 0 .. 1
from grainline.types import Encoded, full, rows

HEAT = "heat"
ALPHA = 0.5  # the power of the area of a box, in ReCLIP (Subramanian et al., arXiv 2204.05991)
PIXELS = 2**22  # of maps in memory at a time, unless one image alone has more


class RegionSuite(Suite[O]):
    """A suite that reads the texts of regions in images squashed to a square, and no captions."""

    captions = ("whole",)
    reads = "the texts of regions"
    needs_text = encodes_captions = keeps_tokens = False

    def prepare(self, model: Model, source: Source) -> tuple[Model, Source]:
        """Whole images, squashed into the square of the model, and the source with what the suite reads."""
        return super().prepare(model.pressed(), source)

    def prepared(self, evaluation: Evaluation) -> Evaluation:
        """An evaluation with model and source as the suite reads them."""
        model, source = self.prepare(evaluation.model, evaluation.source)
        return evaluation._replace(model=model, source=source)


class ExpressionSuite(RegionSuite[O]):
    """A suite that looks for the thing that an expression names, in the whole image."""

    source_variant = "with_expressions"

    def check(self, model: Model, source: Source) -> None:
        super().check(model, source)
        if not model.method.has_layout:
            name = model.description.method
            raise UserError(f"the image tokens of {name} have no places in the image, so it has no heat")

    def queries(self, data: Encodings) -> dict[str, Any]:
        """The fields of `Outcomes.queries` that name the expressions."""
        compared: Compared = self.collected(data)
        named = zip(*((one.text, one.image, one.region) for one in compared.expressions), strict=True)
        return region_queries(compared.same, *named)

    def numbers(self, data: Encodings) -> dict[str, int]:
        """The numbers of distinct texts and of expressions, for `Outcomes.data`."""
        texts = [one.text for one in self.collected(data).expressions]
        return {"texts": len(set(texts)), "expressions": len(texts)}


def region_queries(
    same: Sequence[int], texts: Iterable[str], image: Iterable[int], region: Iterable[int]
) -> dict[str, Any]:
    """The fields of `Outcomes.queries` that name texts, images and regions."""
    return {"texts": digest(texts), "image": [same[row] for row in image], "region": list(region)}


class RegionCollector(Collector):
    """Collects regions of images, and which images are equal. batch: texts, or pairs, in memory at once"""

    def __init__(self, model: Model, batch: int) -> None:
        self.model, self.method, self.batch = model, model.method, batch
        self.truncated = 0
        self.same: list[int] = []  # for each image the first one with the same content
        self._first: dict[bytes, int] = {}

    def add(self, sample: Sample) -> None:
        content = sha256(content_of(sample.record.image)).digest()
        self.same.append(self._first.setdefault(content, len(self.same)))


class Expression(NamedTuple):
    """An expression."""

    image: int  # row among the encoded images
    region: int  # of that record
    text: str
    target: Any  # what it refers to: a mask, which is dropped once it is compared, or a box
    boxes: tuple[Box, ...] = ()  # to choose from
    fitting: int = 0  # how many of these are right
    by_map: Mapping[str, Any] = {}  # what came of each map, by its name


class ImageExpressions(NamedTuple):
    """The expressions of an image."""

    size: tuple[int, int]  # height and width
    expressions: list[Expression]
    shared: Any = None  # what all of them share, such as the boxes to choose from


class Compared(NamedTuple):
    """E expressions about N images, compared."""

    expressions: tuple[Expression, ...]
    same: tuple[int, ...]  # [N] the first image with the same content
    counts: dict[str, int]  # what was skipped, in words -> how many
    flat: dict[str, int]  # map -> how many are the same everywhere


class ExpressionCollector(RegionCollector):
    """Compares the expressions of one image after the other. Abstract."""

    skipped: ClassVar[tuple[str, ...]]  # what `counts` counts, in words
    needed: ClassVar[str]  # what a region needs, for an error

    def __init__(self, model: Model, batch: int) -> None:
        super().__init__(model, batch)
        self.counts = dict.fromkeys(self.skipped, 0)
        self.flat: Counter[str] = Counter()  # maps that are the same everywhere
        self._compared: list[Expression] = []
        self._texts: set[str] = set()
        self._waiting: list[ImageExpressions] = []

    @abstractmethod
    def expressions_of(self, sample: Sample) -> ImageExpressions:
        """The expressions of a record. Raises CorruptSample before it counts anything."""

    @abstractmethod
    def compare(self, images: Encoded, texts: Encoded, group: ImageExpressions) -> Iterable[Expression]:
        """The expressions of an image, compared with it; row k of `images` and `texts` is of expression k."""

    def add(self, sample: Sample) -> None:
        self._waiting.append(self.expressions_of(sample))
        super().add(sample)

    def add_images(self, images: Encoded, texts: Any) -> None:
        waiting, self._waiting = self._waiting, []
        strings = list(dict.fromkeys(one.text for group in waiting for one in group.expressions))
        if not strings:
            return
        place, encoded = {text: i for i, text in enumerate(strings)}, self._encode(strings)
        for i, group in enumerate(waiting):
            step = max(1, min(self.batch, PIXELS // (group.size[0] * group.size[1])))
            for start in range(0, len(group.expressions), step):
                few = group._replace(expressions=group.expressions[start : start + step])
                row = torch.tensor([place[one.text] for one in few.expressions], device=images.vector.device)
                both = rows(images, torch.full_like(row, i)), rows(encoded, row)
                self._compared += self.compare(*both, few)

    def result(self, data: Encodings) -> Compared:
        """Raises UserError where there is none."""
        if not self._compared:
            raise UserError(f"no region of {data.path} has {self.needed} (docs/data.md)")
        return Compared(tuple(self._compared), tuple(self.same), self.counts, dict(self.flat))

    def _encode(self, texts: list[str]) -> Encoded:
        """Rows of texts. Texts of earlier batches are encoded again, but each truncated text counts once."""
        encoded, new = self.model.encode(texts=texts), [text not in self._texts for text in texts]
        self.truncated += number_cut(rows(encoded, torch.tensor(new, device=encoded.vector.device)))
        self._texts.update(texts)
        return encoded


def pixel_maps(method: Method, images: Encoded, heat: Tensor, size: tuple[int, int]) -> Tensor:
    """Heat of tokens [N, L] over the pixels of images of one size: [N, H, W]. Raises UserError for NaN."""
    maps = on_pixels(method, images, heat, size)
    refuse_nan(int(maps.isnan().any(2).any(1).sum()), len(maps))
    return maps


def number_flat(maps: Tensor) -> int:
    """How many maps [N, H, W] are the same everywhere."""
    return int((maps.amax((1, 2)) == maps.amin((1, 2))).sum())


def region_scorer(model: Model) -> Scorer:
    """The scorer of regions with texts: cosines of mean tokens, or of what texts pool of the tokens.

    Raises UserError where image tokens have no places, or no loss makes them like texts.
    """
    name, method = model.description.method, model.method
    if not method.has_layout:
        raise UserError(f"the image tokens of {name} have no places, so it has no features of regions")
    if method.tokens_in_text_space:
        return Cosine()
    pool = getattr(method, "pool", None)
    if not isinstance(pool, ConditionedPool):
        raise UserError(f"no loss of {name} makes its image tokens like texts: they say nothing of regions")
    return PooledRegions(pool)


BoxTokens = tuple[Tensor, Tensor]
"""The k image tokens with pixels in a box [k, D], and the share of these in their pixels [k], above 0."""


class PooledRegions(Cosine):
    """Scores regions by what the parts of a text pool of the image tokens in a box."""

    pairwise = blockwise = True

    def __init__(self, pool: ConditionedPool) -> None:
        self.pool = pool

    @torch.no_grad()
    def score_box(self, box: BoxTokens, texts: Encoded) -> Tensor:
        """The mean cosine of the parts of each text with what they pool: [M]; 0 without parts"""
        part = texts.tokens.flatten(0, 1)[None]
        pooled = self.pool.read(self.pool.queries(part), self.pool.keys(box[0][None]), box[1][None]).vector
        cosine = (unit(pooled) * unit(part)).sum(-1).view_as(texts.mask)
        return (cosine * texts.mask).sum(1) / texts.mask.sum(1).clamp(min=1)


Grid = tuple[int, int] | None

# Boxes [B, 4]: left, top, right, bottom in pixels.


def box_means(images: Encoded, boxes: Tensor, row: Tensor, grid: Grid, side: int) -> Tensor:
    """The mean of image tokens over each box: [B, D]. Raises UserError for NaN.

    boxes  in the square of `side` pixels that the model reads
    row    [B] the image of each box
    grid   rows and columns of patches, which are pooled by RoIAlign; None: tokens are segments with `places`,
           and a segment weighs as much as its pixels in the box; a pixel that the box cuts counts in part
    """
    if grid is not None:
        on_grid = full(images.tokens[:, : grid[0] * grid[1]]).unflatten(1, grid)
        mean = roi_align(on_grid, boxes, row, (grid[0] / side, grid[1] / side))
    else:
        means = [
            (inside / inside.sum()).to(images.tokens.dtype) @ images.tokens[i]
            for i, inside, _ in _pixels(images, boxes, row, grid, side)
        ]
        mean = full(torch.stack(means) if means else images.tokens[:0, 0])
    refuse_nan(int(mean.isnan().any(1).sum()), len(mean))
    return mean


def box_tokens(images: Encoded, boxes: Tensor, row: Tensor, grid: Grid, side: int) -> list[BoxTokens]:
    """The image tokens in each box; arguments and errors are those of `box_means`, a patch has its cell."""
    out = [
        (full(images.tokens[i, inside > 0]), (inside / whole)[inside > 0])
        for i, inside, whole in _pixels(images, boxes, row, grid, side)
    ]
    refuse_nan(sum(bool(tokens.isnan().any()) for tokens, _ in out), len(out))
    return out


def _pixels(images: Encoded, boxes: Tensor, row: Tensor, grid: Grid, side: int) -> Iterator[tuple[Any, ...]]:
    """For each box its image, and how many pixels of `places` each token has inside and in all: [L]"""
    places = images.places
    if grid is not None:
        places = torch.arange(grid[0] * grid[1], device=boxes.device).expand(len(images.tokens), -1)
        places = places.unflatten(1, grid)
    assert places is not None, "segments without places"
    height, width = places.shape[1:]
    down = _covered(boxes[:, 1], boxes[:, 3], side / height, height)  # [B, h]
    across = _covered(boxes[:, 0], boxes[:, 2], side / width, width)
    for i, y, x in zip(row.tolist(), down, across, strict=True):
        place, none = places[i].flatten().long(), y.new_zeros(images.tokens.shape[1])
        covered = (y[:, None] * x).flatten()
        yield i, none.index_add(0, place, covered), none.index_add(0, place, torch.ones_like(covered))


def _covered(low: Tensor, high: Tensor, step: float, number: int) -> Tensor:
    """The share of each of `number` steps along one side that lies between two ends [B]: [B, number]"""
    edge = step * torch.arange(number + 1, device=low.device)
    ends = torch.minimum(high[:, None], edge[1:]) - torch.maximum(low[:, None], edge[:-1])
    return (ends / step).clamp(min=0)


def box_sums(maps: Tensor, boxes: Tensor) -> Tensor:
    """The sum of each map [E, H, W] over the pixels whose centres lie in each box: [E, B] float64"""
    height, width = maps.shape[1:]
    whole = maps.new_zeros((len(maps), height + 1, width + 1), dtype=torch.float64)
    whole[:, 1:, 1:] = maps.double().cumsum(1).cumsum(2)
    edge = (boxes.double() - 0.5).ceil().long()
    left, right = edge[:, 0].clamp(0, width), edge[:, 2].clamp(0, width)
    top, bottom = edge[:, 1].clamp(0, height), edge[:, 3].clamp(0, height)
    return whole[:, bottom, right] - whole[:, top, right] - whole[:, bottom, left] + whole[:, top, left]


def box_scores(maps: Tensor, boxes: Tensor) -> Tensor:
    """`box_sums` divided by area ** ALPHA: [E, B] float32, so that boxes of equal sum and area tie."""
    return (box_sums(maps, boxes) / areas(boxes).pow(ALPHA)).float()


def areas(boxes: Tensor) -> Tensor:
    """[..., 4] to [...] float64"""
    boxes = boxes.double()
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def box_iou(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union of every a [A, 4] with every b [B, 4]: [A, B] float64"""
    a, b = a.double()[:, None], b.double()[None]
    low, high = torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])
    both = (high - low).clamp(min=0).prod(-1)
    return both / (areas(a) + areas(b) - both)


def clipped(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Boxes cut off at the rim of an image: [B, 4] float64. size: its height and width"""
    height, width = size
    limit = torch.tensor([width, height, width, height], dtype=torch.float64)
    return torch.minimum(boxes.double().clamp(min=0), limit)
