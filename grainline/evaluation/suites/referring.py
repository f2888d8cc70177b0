"""Referring segmentation: does the heat of an expression cover the thing that it refers to?

As CAFT (Woo et al., arXiv 2602.02977) measures it after SaG, without training for it. In four steps:
  1. squash the whole image into the square that the model reads: a crop could lose the target;
  2. take the heat of the expression, interpolated to the pixels of the annotation;
  3. stretch it to 0 .. 1 and cut it at Otsu's threshold;
  4. IoU with the right mask. mIoU is the mean over the expressions, cumulative IoU the sum of all
     intersections over that of all unions.

The whole image and a box of half its sides in the middle are measured too: a number that they reach says
nothing about the model.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from grainline.data.record import Cause, CorruptSample
from grainline.evaluation.encode import Encodings, Sample
from grainline.evaluation.examples import EXAMPLES, Evaluation
from grainline.evaluation.score import Scorer
from grainline.evaluation.statistics import replicates
from grainline.evaluation.suite import MetricSamples, Outcomes, Settings, accuracy, count_notes, mean_metric
from grainline.evaluation.suites.regions import (
    HEAT,
    Compared,
    Expression,
    ExpressionCollector,
    ExpressionSuite,
    ImageExpressions,
    number_flat,
    pixel_maps,
)
from grainline.nn.upsample import otsu_mask
from grainline.report.case import Case, CaseImage, CaseList, SentenceScore
from grainline.types import Encoded

MIOU, CUMULATIVE, HALF = "mIoU", "cumulative IoU", "IoU > 0.5"
WHOLE, BOX = "whole image", "centred box"
MASKS = (HEAT, WHOLE, BOX)
MASKLESS = "regions have no mask and were skipped"
EMPTY = "regions have a mask without a pixel and were skipped"
FIELDS = ("intersection", "union")  # pixels of a mask and the right one


class MaskCollector(ExpressionCollector):
    """Compares masks of expressions with the right ones: two numbers for each."""

    skipped = (MASKLESS, EMPTY)
    needed = "a mask; expressions are measured with masks, as in RefCOCO's files, in `scenes` or own data"

    def expressions_of(self, sample: Sample) -> ImageExpressions:
        """Raises CorruptSample for a mask of another size."""
        regions, (width, height) = sample.record.regions, sample.size
        for region in regions:
            if region.mask is not None and region.mask.shape != (height, width):
                down, across = region.mask.shape
                sizes = f"{width} x {height} pixels, a mask has {across} x {down}"
                raise CorruptSample(Cause.CORRUPT_REGION, f"{sample.record.key} ({sizes})")
        expressions = []
        for i, region in enumerate(regions):
            if region.mask is not None and region.mask.any():
                expressions.append(Expression(sample.row, i, region.phrase, region.mask))
            else:
                self.counts[MASKLESS if region.mask is None else EMPTY] += 1
        return ImageExpressions((height, width), expressions)

    def compare(self, images: Encoded, texts: Encoded, group: ImageExpressions) -> Iterator[Expression]:
        """IoU of the heat above Otsu's threshold, and of two masks that ignore the text."""
        with torch.no_grad():
            heat = pixel_maps(self.method, images, self.method.heat(images, texts), group.size)
        self.flat[HEAT] += number_flat(heat)
        true = torch.from_numpy(np.stack([one.target for one in group.expressions])).to(heat.device)
        box = torch.from_numpy(centred_box(*group.size)).to(heat.device)
        masks = {HEAT: otsu_mask(heat), WHOLE: torch.ones_like(true), BOX: box.expand_as(true)}
        counts = {name: torch.stack(overlap(mask, true), 1).tolist() for name, mask in masks.items()}
        for k, one in enumerate(group.expressions):
            yield one._replace(target=None, by_map={name: pixels[k] for name, pixels in counts.items()})


class ReferringSuite(ExpressionSuite):
    """mIoU, cumulative IoU and the share of IoU above one half, of heat and of two fixed masks."""

    name = "referring"
    collector_class = MaskCollector
    replaces_scores = "reads heat"
    headline = (MIOU, CUMULATIVE, HALF)

    def outcomes(self, scorer: Scorer, data: Encodings, settings: Settings) -> Outcomes:
        compared: Compared = self.collected(data)
        pixels = {}
        for name in MASKS:
            both = zip(*(one.by_map[name] for one in compared.expressions), strict=True)
            pixels[name] = dict(zip(FIELDS, map(list, both), strict=True))
        queries = self.queries(data) | {"scores": pixels.pop(HEAT), "trivial": pixels}
        flat = {"maps are the same everywhere, so their masks are empty": compared.flat[HEAT]}
        return Outcomes(queries, count_notes(compared.counts | flat), data=self.numbers(data))

    def metrics(self, runs: Sequence[dict[str, Any]], settings: Settings) -> dict[str, MetricSamples]:
        """Metrics from pixels: means over the runs; the bootstrap draws images, the same for every mask."""
        image = np.array(runs[0]["image"])
        by_mask = {HEAT: [run["scores"] for run in runs]}
        by_mask |= {name: [run["trivial"][name] for run in runs] for name in runs[0]["trivial"]}
        out = {}
        for name, pixels in by_mask.items():
            both, either = (np.array([one[field] for one in pixels], float) for field in FIELDS)  # [run, E]
            iou = both / either
            parts = np.stack([both.mean(0), either.mean(0)], axis=1)  # [E, 2]
            (inter, union), samples = parts.mean(0), replicates(parts, image, **settings.bootstrap)
            suffix, number = "" if name == HEAT else f", {name}", iou.size
            out[MIOU + suffix] = mean_metric(iou.mean(0), image, number, None, 0, "share", settings)
            ratio = samples[:, 0] / samples[:, 1]
            out[CUMULATIVE + suffix] = MetricSamples(float(inter / union), ratio, number, None, 0, "share")
            out[HALF + suffix] = accuracy(iou > 0.5, image, None, 0, settings)
        return out

    def cases(self, evaluation: Evaluation, number: int = EXAMPLES) -> list[CaseList]:
        expressions = self.collected(evaluation.data).expressions
        iou = np.divide(*(evaluation.result.queries["scores"][field] for field in FIELDS))
        evaluation = self.prepared(evaluation)

        def case(i: int) -> Case:
            one, key = expressions[i], evaluation.data.keys[expressions[i].image]
            sentence = SentenceScore(one.text, 0.0, place="expression")
            alt = f"{key}, with an outline around what is meant"
            look = CaseImage(evaluation.image(one.image), alt, [sentence])
            if isinstance(look.image, Image.Image):
                mask = evaluation.source[evaluation.data.positions[one.image]].regions[one.region].mask
                assert mask is not None, "expressions have masks"
                outline = np.asarray(Image.fromarray(mask).resize(look.image.size, Image.Resampling.NEAREST))
                heat = (
                    evaluation.model.heat(evaluation.given(one.image, look.image), [one.text]).cpu().numpy()
                )
                # A threshold of the map is measured, whatever its level; minus its mean it shows just that.
                look = look._replace(heat=heat - heat.mean(), outline=outline)
            return Case(f"IoU {100 * iou[i]:.1f} %", key, look=look)

        order = (
            "Sorted by IoU; one expression for each image. The line runs around what is meant. Heat is orange"
            " where the map is above its mean and blue where it is below; what is above Otsu's threshold of"
            " the map was compared."
        )
        titles = ("Expressions: covered least", "Expressions: covered best")
        image = evaluation.result.queries["image"]
        return evaluation.both_ends(titles, order, case, iou, image=image, number=number)


def overlap(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Pixels of the intersection and of the union of masks: [N] int64 each. a, b: [N, H, W] bool"""
    return (a & b).sum((1, 2)), (a | b).sum((1, 2))


def centred_box(height: int, width: int) -> np.ndarray:
    """The box of half the sides in the middle: [H, W] bool, the pixels whose centres lie in it."""
    down, across = (np.abs((np.arange(side) + 0.5) / side - 0.5) < 0.25 for side in (height, width))
    return down[:, None] & across[None]
