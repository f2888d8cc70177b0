"""Referring expressions of one thing in an image: what the suites of referring expressions share.

An expression is the phrase of a region. A collector compares it with its image while the tokens of the image
are there; it keeps numbers alone.
"""

from abc import abstractmethod
from hashlib import sha256
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grainline.data.formats.joined import Joined
from grainline.data.record import Record, Source, content_of
from grainline.data.scenes.source import Scenes
from grainline.errors import UserError
from grainline.evaluation.encode import Collector, Sample
from grainline.model import Model
from grainline.types import Encoded, rows

HEAT = "heat"
ALPHA = 0.5
"""How much a large box has to make up for, in ReCLIP (Subramanian et al., arXiv 2204.05991)."""
PIXELS = 2**22
"""Of maps in memory at a time, unless an image alone has more."""


class Expression(NamedTuple):
    """An expression."""

    region: int  # of its record
    text: str
    target: Any  # what it refers to: a mask, or a box


class ImageExpressions(NamedTuple):
    """The expressions of an image."""

    size: tuple[int, int]  # height and width
    expressions: list[Expression]
    shared: Any = None  # what all of them share, such as the boxes to choose from


class ExpressionCollector(Collector):
    """Compares the expressions of one image after the other. Abstract.

    batch  pairs of image and text that are compared at once
    """

    def __init__(self, model: Model, batch: int) -> None:
        self.model, self.method, self._batch = model, model.method, batch
        self.truncated = 0
        self.same: list[int] = []  # for each image the first that is the same, byte by byte
        self._texts: set[str] = set()
        self._waiting: list[ImageExpressions] = []
        self._first: dict[bytes, int] = {}
        self._encoded = 0

    @abstractmethod
    def expressions_of(self, record: Record, size: tuple[int, int], index: int) -> ImageExpressions:
        """The expressions of a record. Raises CorruptSample, having counted nothing.

        size   height and width of the decoded image
        index  position of the record in the source
        """

    @abstractmethod
    def compare(self, images: Encoded, texts: Encoded, of: ImageExpressions, image: int) -> None:
        """Compare some expressions with their image.

        images, texts  rows that belong together, one for each expression
        image          its row among the images that were encoded
        """

    def add(self, sample: Sample) -> None:
        width, height = sample.size
        self._waiting.append(self.expressions_of(sample.record, (height, width), sample.position))
        content = sha256(content_of(sample.record.image)).digest()
        self.same.append(self._first.setdefault(content, len(self.same)))

    def add_images(self, images: Encoded, texts: Any) -> None:
        n = len(images.vector)
        waiting, self._waiting = self._waiting[:n], self._waiting[n:]
        place: dict[str, int] = {}
        for of in waiting:
            for one in of.expressions:
                place.setdefault(one.text, len(place))
        encoded = self._encode(list(place)) if place else None
        for i, of in enumerate(waiting):
            step = max(1, min(self._batch, PIXELS // (of.size[0] * of.size[1])))
            for start in range(0, len(of.expressions), step):
                assert encoded is not None, "there are texts"
                few = of._replace(expressions=of.expressions[start : start + step])
                row = torch.tensor([place[one.text] for one in few.expressions], device=images.vector.device)
                both = rows(images, torch.full_like(row, i)), rows(encoded, row)
                self.compare(*both, few, self._encoded)
            self._encoded += 1

    def _encode(self, texts: list[str]) -> Encoded:
        """Rows of texts; those of earlier batches are not kept, but each truncated text counts once."""
        known = [text for text in texts if text in self._texts]
        self.truncated -= sum(self.model.read(known).truncated) if known else 0
        self._texts.update(texts)
        return self.model.encode(texts=texts)


def with_expressions(source: Source) -> Source:
    """The source with expressions as regions, where it has them on request only."""
    if isinstance(source, Scenes):
        return source.with_expressions()
    if isinstance(source, Joined):
        return Joined([with_expressions(one) for one in source.sources])
    return source


def require_layout(model: Model) -> None:
    """Raise UserError where image tokens have no places in the image, so that no map can be made."""
    if not model.method.has_layout:
        name = model.description.method
        raise UserError(f"the image tokens of {name} have no places in the image, so it has no heat there")


def unit_range(heat: Tensor) -> Tensor:
    """Each map stretched to 0 .. 1 in float64; one that is the same everywhere becomes 0: [N, H, W] both"""
    values = heat.double()
    low, high = values.amin((1, 2), keepdim=True), values.amax((1, 2), keepdim=True)
    return (values - low) / torch.where(high > low, high - low, 1.0)


# Boxes over maps: what lies inside, its score, and how far two boxes agree. All exact sums, no loops.


def box_sums(maps: Tensor, boxes: Tensor) -> Tensor:
    """The sum of each map over the pixels whose centres lie in each box: [E, B] float64

    maps   [E, H, W]
    boxes  [B, 4] left, top, right, bottom in pixels

    for e, b: sum of maps[e, y, x] over left <= x + 0.5 < right and top <= y + 0.5 < bottom
    """
    height, width = maps.shape[1:]
    whole = maps.new_zeros((len(maps), height + 1, width + 1), dtype=torch.float64)
    whole[:, 1:, 1:] = maps.double().cumsum(1).cumsum(2)
    edge = (boxes.double() - 0.5).ceil().long()
    left, right = edge[:, 0].clamp(0, width), edge[:, 2].clamp(0, width)
    top, bottom = edge[:, 1].clamp(0, height), edge[:, 3].clamp(0, height)
    return whole[:, bottom, right] - whole[:, top, right] - whole[:, bottom, left] + whole[:, top, left]


def box_scores(maps: Tensor, boxes: Tensor, alpha: float = ALPHA) -> Tensor:
    """What lies inside over area ** alpha: [E, B] float32. Shapes as in `box_sums`.

    Sums are rounded, so that boxes of equal sums and areas tie.

    >>> corners = torch.zeros(1, 4, 4)
    >>> corners[0, :2, :2], corners[0, 2:, 2:] = 1.0, 0.5
    >>> box_scores(corners, torch.tensor([[0.0, 0, 2, 2], [0, 0, 4, 4], [2, 2, 4, 4]])).tolist()
    [[2.0, 1.5, 1.0]]
    """
    return (box_sums(maps, boxes) / areas(boxes).pow(alpha)).float()


def areas(boxes: Tensor) -> Tensor:
    """[..., 4] to [...] float64"""
    boxes = boxes.double()
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def box_iou(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union of every a [A, 4] with every b [B, 4]: [A, B] float64

    >>> box_iou(torch.tensor([[0.0, 0, 2, 2]]), torch.tensor([[0.0, 0, 2, 1], [5, 5, 6, 6]])).tolist()
    [[0.5, 0.0]]
    """
    a, b = a.double()[:, None], b.double()[None]
    low, high = torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])
    both = (high - low).clamp(min=0).prod(-1)
    return both / (areas(a) + areas(b) - both)


def clipped(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Boxes cut off at the rim of an image: [B, 4] float64. size: its height and width"""
    height, width = size
    limit = torch.tensor([width, height, width, height], dtype=torch.float64)
    return torch.minimum(boxes.double().clamp(min=0), limit)
