"""Referring segmentation: does the heat of an expression cover the thing that it refers to?

As CAFT (Woo et al., arXiv 2602.02977) measures it after SaG, without training for it. In five steps:
  1. squash the whole image into the square that the model reads: a crop could lose the target;
  2. take the heat of the expression, spread over the pixels of the annotation;
  3. stretch it to 0 .. 1 and cut it at Otsu's threshold;
  4. IoU with the right mask, for each expression;
  5. mIoU is the mean over the expressions, cumulative IoU the sum of all intersections over that of all
     unions.

The whole image and a box of half its sides in the middle are measured as well: a number that they reach too
says nothing about the model.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from grainline.data.formats.common import digest
from grainline.data.record import CORRUPT_REGION, CorruptSample, Record, Source
from grainline.errors import UserError
from grainline.evaluation.encode import Collector, Encodings
from grainline.evaluation.intervals import replicates, wilson
from grainline.evaluation.measured import SHOWN, Measured, extremes
from grainline.evaluation.ranks import refuse_nan
from grainline.evaluation.score import Scorer
from grainline.evaluation.suite import HEAT as HEAT_MAPS
from grainline.evaluation.suite import MetricSamples, NoOptions, Outcomes, Settings, Suite
from grainline.evaluation.suites.expressions import (
    HEAT,
    Expression,
    ExpressionCollector,
    ImageExpressions,
    require_layout,
    unit_range,
    with_expressions,
)
from grainline.model import Model, on_pixels
from grainline.report.case import Case, CaseList, Look, SentenceScore
from grainline.report.page import MissingImage
from grainline.types import Encoded

MIOU, CUMULATIVE, HALF = "mIoU", "cumulative IoU", "IoU > 0.5"
WHOLE, BOX = "whole image", "centred box"
MASKS = (HEAT, WHOLE, BOX)
NEEDED = "expressions are measured with masks, as in RefCOCO's files, in `scenes` or own data (docs/data.md)"
BINS = 256  # of Otsu's histogram


class Pixels(NamedTuple):
    """Of one mask against the right one."""

    intersection: int
    union: int


class Overlap(NamedTuple):
    """How far masks of an expression agree with the right one."""

    image: int  # row among the images that were encoded
    region: int  # of that record
    text: str
    pixels: dict[str, Pixels]  # by the name of the mask


class Overlaps(NamedTuple):
    """E expressions about N images, compared."""

    expressions: tuple[Overlap, ...]
    same: tuple[int, ...]  # [N] the first image that is the same, byte by byte
    maskless: int  # regions without a mask: skipped
    empty: int  # regions whose mask has no pixel: skipped
    flat: int  # maps that are the same everywhere: their mask is empty


class ReferringSuite(Suite[NoOptions]):
    """mIoU, cumulative IoU and the share of IoU above one half, of heat and of two fixed masks."""

    name = "referring"
    captions = ("whole",)
    reads = "the texts of regions"
    needs_text = False
    encodes_captions = False
    keeps_tokens = False
    replaces_scores = "reads heat"
    headline = (MIOU, CUMULATIVE, HALF)
    figure = HEAT_MAPS

    def check(self, model: Model, source: Source) -> None:
        super().check(model, source)
        require_layout(model)

    def prepare(self, model: Model, source: Source) -> tuple[Model, Source]:
        return model.pressed(), with_expressions(source)

    def collector(self, model: Model, source: Source, settings: Settings) -> Collector:
        return MaskCollector(model, settings.batch_size)

    def outcomes(self, scorer: Scorer, data: Encodings, settings: Settings) -> Outcomes:
        overlaps: Overlaps = self.collected(data)
        expressions = overlaps.expressions
        pixels = {
            name: {
                "intersection": [one.pixels[name].intersection for one in expressions],
                "union": [one.pixels[name].union for one in expressions],
            }
            for name in MASKS
        }
        queries = {
            "keys": list(data.keys),
            "texts": digest(one.text for one in expressions),
            "image": [overlaps.same[one.image] for one in expressions],
            "region": [one.region for one in expressions],
            "scores": pixels.pop(HEAT),
            "trivial": pixels,
        }
        counts = {
            "regions have no mask and were skipped": overlaps.maskless,
            "regions have a mask without a pixel and were skipped": overlaps.empty,
            "maps are the same everywhere, so their masks are empty": overlaps.flat,
        }
        notes = tuple(f"{number} {what}" for what, number in counts.items() if number)
        number = {"texts": len({one.text for one in expressions}), "expressions": len(expressions)}
        return Outcomes(queries, notes, data=number)

    def metrics(self, runs: Sequence[dict[str, Any]], settings: Settings) -> dict[str, MetricSamples]:
        """Metrics from pixels: means over the runs; the bootstrap draws images, the same for every mask."""
        image = np.array(runs[0]["image"])
        by = {HEAT: [run["scores"] for run in runs]}
        by |= {name: [run["trivial"][name] for run in runs] for name in runs[0]["trivial"]}
        out = {}
        for name, pixels in by.items():
            both, either = (
                np.array([one[field] for one in pixels], np.float64) for field in ("intersection", "union")
            )  # [run, E]
            iou = both / either
            values = np.stack([iou.mean(0), both.mean(0), either.mean(0), (iou > 0.5).mean(0)], axis=1)
            drawn = replicates(values, image, **settings.bootstrap)
            mean, number = values.mean(0), values.shape[0] * len(runs)
            alone = wilson(int(values[:, 3].sum()), len(values), settings.level) if len(runs) == 1 else None
            ends = None if alone is None else (alone.low, alone.high)
            of = "" if name == HEAT else f", {name}"
            for label, value, again, second in (
                (MIOU, mean[0], drawn[:, 0], None),
                (CUMULATIVE, mean[1] / mean[2], drawn[:, 1] / drawn[:, 2], None),
                (HALF, mean[3], drawn[:, 3], ends),
            ):
                out[label + of] = MetricSamples(float(value), again, number, None, 0, "share", second)
        return out

    def cases(self, on: Measured, number: int = SHOWN) -> list[CaseList]:
        expressions = self.collected(on.data).expressions
        iou = np.array([one.pixels[HEAT].intersection / one.pixels[HEAT].union for one in expressions])
        on = on._replace(model=on.model.pressed(), source=with_expressions(on.source))

        def case(i: int) -> Case:
            key = on.data.keys[expressions[i].image]
            return Case(f"IoU {100 * iou[i]:.1f} %", key, look=_look(on, expressions[i]))

        order = (
            "By IoU; one expression for each image. The line runs around what is meant. Heat is orange"
            " where the map is above its mean and blue where it is below; what is above Otsu's threshold of"
            " the map was compared."
        )
        titles = ("Expressions: covered least", "Expressions: covered best")
        places = extremes(iou, image=on.result.queries["image"], number=number)
        return on.both_ends(titles, order, places, case)


class MaskCollector(ExpressionCollector):
    """Compares masks of expressions with the right ones: two numbers for each."""

    def __init__(self, model: Model, batch: int) -> None:
        super().__init__(model, batch)
        self._overlaps: list[Overlap] = []
        self._maskless = self._empty = self._flat = 0

    def expressions_of(self, record: Record, size: tuple[int, int], index: int) -> ImageExpressions:
        """Raises CorruptSample for a mask of another size."""
        for region in record.regions:
            if region.mask is not None and region.mask.shape != size:
                down, across = region.mask.shape
                sizes = f"{size[1]} x {size[0]} pixels, a mask has {across} x {down}"
                raise CorruptSample(CORRUPT_REGION, f"{record.key} ({sizes})")
        expressions = []
        for i, region in enumerate(record.regions):
            if region.mask is None:
                self._maskless += 1
            elif not region.mask.any():
                self._empty += 1
            else:
                expressions.append(Expression(i, region.phrase, region.mask))
        return ImageExpressions(size, expressions)

    def compare(self, images: Encoded, texts: Encoded, of: ImageExpressions, image: int) -> None:
        """By Otsu's threshold of the heat, and by two masks that ignore the text."""
        with torch.no_grad():
            heat = on_pixels(self.method, images, self.method.heat(images, texts), of.size)
        refuse_nan(int(heat.isnan().any(2).any(1).sum()), len(heat))
        self._flat += int((heat.amax((1, 2)) == heat.amin((1, 2))).sum())
        true = torch.from_numpy(np.stack([one.target for one in of.expressions])).to(heat.device)
        box = torch.from_numpy(centred_box(*of.size)).to(heat.device)
        masks = {HEAT: otsu_mask(heat), WHOLE: torch.ones_like(true), BOX: box.expand_as(true)}
        counts = {name: [x.tolist() for x in overlap(mask, true)] for name, mask in masks.items()}
        for k, one in enumerate(of.expressions):
            pixels = {name: Pixels(both[k], either[k]) for name, (both, either) in counts.items()}
            self._overlaps.append(Overlap(image, one.region, one.text, pixels))

    def result(self, data: Encodings) -> Overlaps:
        """Raises UserError where there is none."""
        if not self._overlaps:
            raise UserError(f"no region of {data.path} has a mask; {NEEDED}")
        return Overlaps(tuple(self._overlaps), tuple(self.same), self._maskless, self._empty, self._flat)


def thresholds(values: Tensor) -> Tensor:
    """Otsu's threshold of each map (IEEE Trans. SMC 9, 1979): [N]. values: [N, H, W] float64 in 0 .. 1

    It separates values into the two classes whose means lie furthest apart, weighted by their sizes. No
    threshold has to be chosen, and none is fitted to the data that it is measured on.

    Bin k of 256 holds what is larger than k / 256 and at most (k + 1) / 256, the first one 0 as well. So
    a threshold separates whole bins. With w0, w1 the shares of values up to it and above it and m0,
    m1 the means of their bins:

        for k in 0 .. 254: between[k] = w0 * w1 * (m0 - m1) ** 2
        threshold = (argmax(between) + 1) / 256     (the lowest of equals; 1 where all values share a bin)

    >>> thresholds(torch.tensor([[[0.0, 0.1, 0.5, 1.0]], [[0.0, 0.0, 0.0, 0.0]]]).double()).tolist()
    [0.1015625, 1.0]
    """
    number = len(values)
    place = ((values * BINS).ceil().long() - 1).clamp(0, BINS - 1).flatten(1)
    place = place + BINS * torch.arange(number, device=values.device)[:, None]
    count = torch.bincount(place.flatten(), minlength=BINS * number).view(number, BINS).double()
    below = count.cumsum(1)  # whole numbers, exact in float64
    total = (count * torch.arange(BINS, device=values.device)).cumsum(1)
    above, rest = below[:, -1:] - below, total[:, -1:] - total
    # w0 w1 (m0 - m1)^2 without its divisions, which would round equal values apart
    between = (total * above - rest * below).square() / (below * above).clamp(min=1)
    best = between.argmax(1)
    separable = between.amax(1) > 0
    return torch.where(separable, (best + 1.0).double() / BINS, 1.0)


def otsu_mask(heat: Tensor) -> Tensor:
    """What stands out in each map: [N, H, W] bool, nothing where it is the same everywhere"""
    values = unit_range(heat)
    return values > thresholds(values)[:, None, None]


def overlap(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Pixels of the intersection and of the union of masks: [N] int64 each. a, b: [N, H, W] bool"""
    return (a & b).sum((1, 2)), (a | b).sum((1, 2))


def centred_box(height: int, width: int) -> np.ndarray:
    """The box of half the sides in the middle: [H, W] bool, the pixels whose centres lie in it.

    >>> centred_box(4, 6).astype(int).tolist()
    [[0, 0, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0], [0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0]]
    """
    down, across = (np.abs((np.arange(side) + 0.5) / side - 0.5) < 0.25 for side in (height, width))
    return down[:, None] & across[None]


def _look(on: Measured, one: Overlap) -> Look:
    """The image squashed into the square, with the outline of a region and the heat of its text."""
    image, text = on.image(one.image), one.text
    alt = f"{on.data.keys[one.image]}, with an outline around what is meant"
    if isinstance(image, MissingImage):
        return Look(image, alt, [SentenceScore(text, 0.0)])
    given = on.given(one.image, image)
    mask = on.source[on.data.positions[one.image]].regions[one.region].mask
    assert mask is not None, "expressions have masks"
    outline = np.asarray(Image.fromarray(mask).resize(image.size, Image.Resampling.NEAREST))
    score = SentenceScore(text, float(on.model.score([given], [text])))
    heat = on.model.heat(given, [text]).cpu().numpy()
    # A threshold of the map is measured, whatever its level; minus its mean it shows just that.
    return Look(image, alt, [score], heat - heat.mean(), None, outline)
