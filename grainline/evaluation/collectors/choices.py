"""Which box of a picture the maps of an expression choose.

Every region with a box, or with a mask around which there is one, is asked for (expressions.py). A map of its
phrase over the pixels gives each box the sum inside over its area to the power of one half, and the highest
score chooses. Maps are
    gradient     what each image token does for the score of the pair (gradient_maps.py), of methods whose
      scores
                 read tokens; beside it the same about the mean token
    heat         the method's own, stretched to 0 .. 1: neither its sign nor its offset counts
    attention    what its last attention takes up for the score (gradient_maps.py), where it is asked for
    largest box  the same everywhere: what a map reaches that knows nothing
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grainline.data.benchmarks.proposals import Proposals
from grainline.data.record import DAMAGED_REGION, Box, Damaged, Record, Source, boxes_of, region_box
from grainline.errors import UserError
from grainline.evaluation.collectors.expressions import Asked, Encode, Judging, Read, Waiting
from grainline.evaluation.collectors.gradient_maps import attention_heat, gradient_heat
from grainline.evaluation.collectors.overlaps import areas, box_iou, box_scores, clipped, unit_range
from grainline.evaluation.ranks import refuse_nan
from grainline.methods.base import Method
from grainline.types import Encoded, Images

Prepare = Callable[[Record], Images]

GRADIENT, CENTRED, HEAT, LARGEST = "gradient", "centred gradient", "heat", "largest box"
ATTENTION = "attention"
MADE = (GRADIENT, CENTRED)  # of gradients
ROUNDING = 1e-6  # of the largest value of a map: what varies less is the same everywhere
HALF = 0.5  # a box is right if its IoU with the true one is above it
NEEDED = "expressions choose boxes, as in RefCOCO's files, in `scenes` or own data (docs/data.md)"


class Chosen(NamedTuple):
    """What a map chose."""

    box: int  # of the boxes to choose from; a wrong one if such a one ties; -1: there was none
    right: bool
    tied: bool  # a right and a wrong box have the highest score both
    lead: float  # of the best right box over the best wrong one, in shares of the better; -1: none is right


class Choice(NamedTuple):
    """An expression and what was chosen for it."""

    picture: int  # row among the pictures that were encoded
    region: int  # of that record
    text: str
    true: Box
    boxes: tuple[Box, ...]  # to choose from
    fitting: int  # how many of these are right
    by: dict[str, Chosen]  # map -> what it chose


class Choices(NamedTuple):
    """E expressions about N pictures, judged."""

    found: tuple[Choice, ...]
    same: tuple[int, ...]  # [N] the first picture that is the same, byte by byte
    boxless: int  # regions without a box: skipped
    outside: int  # boxes without a pixel in their picture: left out
    flat: dict[str, int]  # map -> how many are the same everywhere, so that they choose nothing
    offered: dict[str, str]  # where the boxes to choose from come from


class Choosing(Judging):
    """Expressions with boxes, one picture after the other.

    source     of the pictures, which may know more boxes than those that are spoken of
    proposals  boxes of a detector; None: the boxes of the things in the picture
    prepare    a picture as the method reads it, for maps of its attention; None: no such maps
    """

    def __init__(
        self,
        method: Method,
        encode: Encode,
        read: Read,
        batch: int,
        *,
        source: Source,
        proposals: Proposals | None = None,
        prepare: Prepare | None = None,
    ) -> None:
        super().__init__(method, encode, read, batch)
        self._source, self._proposals, self._prepare = source, proposals, prepare
        self._done: list[Choice] = []
        self._flat: dict[str, int] = {}
        self._boxless = self._outside = self._named = 0

    def ask(self, record: Record, size: tuple[int, int], index: int) -> Waiting:
        """Raises Damaged for an expression whose box has no part in the picture."""
        asked = []
        true = [region_box(region) for region in record.regions]
        for i, (region, box) in enumerate(zip(record.regions, true, strict=True)):
            if box is not None and not len(_inside([box], size)):
                raise Damaged(
                    DAMAGED_REGION, f"{record.key} ({region.phrase}: its box is not in the picture)"
                )
            if box is not None:
                asked.append(Asked(i, region.phrase.lower(), box))
        offered = self._offered(record, index) if asked else ()
        boxes = _inside(offered, size)
        self._boxless += sum(box is None for box in true)
        self._outside += len(offered) - len(boxes)
        self._named += bool(offered)
        square = self._prepare(record) if asked and self._prepare is not None else None
        return Waiting(size, asked, (boxes, square))

    def answer(self, images: Encoded, texts: Encoded, of: Waiting, picture: int) -> None:
        """By every map."""
        boxes, square = of.beside
        true = clipped(torch.tensor([one.meant for one in of.asked]), of.size)
        right = box_iou(true, boxes) > HALF  # [E, B]
        chosen = {}
        for name, heat in maps(self.method, images, texts, of.size, square).items():
            self._flat[name] = self._flat.get(name, 0) + int((heat.amax((1, 2)) == heat.amin((1, 2))).sum())
            score = box_scores(heat.cpu(), boxes)
            chosen[name] = [choose(*both) for both in zip(score, right, strict=True)]
        told = tuple((x[0], x[1], x[2], x[3]) for x in boxes.tolist())
        for k, one in enumerate(of.asked):
            by = {name: found[k] for name, found in chosen.items()}
            fitting = int(right[k].sum())
            self._done.append(Choice(picture, one.region, one.text, one.meant, told, fitting, by))

    def found(self, path: str) -> Choices:
        """All of them. Raises UserError where there is none, and where no picture has boxes."""
        if not self._done:
            raise UserError(f"no region of {path} has a box or a mask; {NEEDED}")
        if not self._named:
            assert self._proposals is not None, "what is spoken of has boxes"
            raise UserError(
                f"{self._proposals.path} names no picture of {path}: it must say image_id or file_name as the"
                " pictures are called"
            )
        flat = {name: number for name, number in self._flat.items() if name != LARGEST}
        of = {"boxes": "ground truth"}
        if self._proposals is not None:
            of = {"boxes": self._proposals.path, "sha256": self._proposals.sha256}
        return Choices(tuple(self._done), tuple(self.same), self._boxless, self._outside, flat, of)

    def _offered(self, record: Record, index: int) -> tuple[Box, ...]:
        if self._proposals is None:
            return boxes_of(self._source, index, record)
        return self._proposals.of(record.key)


def maps(
    method: Method, images: Encoded, texts: Encoded, size: tuple[int, int], square: Images | None = None
) -> dict[str, Tensor]:
    """Every map of each text in its picture: name -> [N, H, W] >= 0. Raises UserError for NaN.

    square  the one picture that all rows are of, for the map of its attention; None: without
    """
    heat: dict[str, Tensor] = {}
    if method.pairwise:
        both = gradient_heat(method, images, texts)
        heat = {name: method.on_pixels(images, x, size) for name, x in zip(MADE, both, strict=True)}
    if square is not None:
        seen = attention_heat(method, square, texts)
        heat[ATTENTION] = method.on_pixels(images, seen, size)
    with torch.no_grad():
        own = method.on_pixels(images, method.heat(images, texts), size)
    for one in (*heat.values(), own):
        refuse_nan(int(one.isnan().any(2).any(1).sum()), len(one))
    least, most = own.amin((1, 2), keepdim=True), own.amax((1, 2), keepdim=True)
    flat = most - least <= ROUNDING * torch.maximum(most.abs(), least.abs())  # spreading it rounds
    heat[HEAT] = unit_range(own.masked_fill(flat, 0.0))
    return heat | {LARGEST: torch.ones_like(heat[HEAT])}


def choose(score: Tensor, right: Tensor) -> Chosen:
    """The box of the highest score; where a wrong one has it too, that one.

    score  [B] >= 0, right [B] bool

    >>> choose(torch.tensor([1.0, 2.0, 2.0]), torch.tensor([False, True, False]))
    Chosen(box=2, right=False, tied=True, lead=0.0)
    >>> choose(torch.tensor([1.0, 2.0, 2.0]), torch.tensor([False, True, True]))
    Chosen(box=1, right=True, tied=False, lead=0.5)
    """
    if not len(score):
        return Chosen(-1, False, False, -1.0)
    best = score == score.max()
    wrong = best & ~right
    found = wrong if bool(wrong.any()) else best
    tied = bool(wrong.any() and (best & right).any())
    return Chosen(int(found.int().argmax()), not bool(wrong.any()), tied, _lead(score, right))


def _lead(score: Tensor, right: Tensor) -> float:
    if not bool(right.any()):
        return -1.0
    best, other = float(score[right].max()), float(score[~right].max()) if bool((~right).any()) else 0.0
    return (best - other) / max(best, other) if max(best, other) > 0 else 0.0


def _inside(boxes: Any, size: tuple[int, int]) -> Tensor:
    """Boxes as far as they are in the picture, without those that are not: [B, 4] float64"""
    found = clipped(torch.tensor(boxes, dtype=torch.float64).view(-1, 4), size)
    whole = (found[:, 2:] > found[:, :2]).all(1) & (areas(found) > 0)
    return found[whole]
