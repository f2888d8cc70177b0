"""Referring expressions: of the boxes in an image, which one does an expression refer to?

The protocol of ReCLIP (Subramanian et al., arXiv 2204.05991) for RefCOCO, RefCOCO+ and RefCOCOg, without
training for it. In four steps:
  1. squash the whole image into the square that the model reads; read the expression in lower case, without a
     prompt around it;
  2. make maps of it over the pixels of the image: `gradient` and `centred gradient` (gradient_maps.py) of
     methods whose scores read tokens; `heat`, the method's own, stretched to 0 .. 1; on request `attention`;
     and `largest box`, the same everywhere: the accuracy of a map that ignores the text;
  3. score each box by the sum of the map inside over the square root of its area, and choose the highest;
  4. it is right if its IoU with the true box is above one half, unless a wrong one has the same score.

Boxes come from a file of detections, or are those of the things in the image. Chance is the share of right
boxes among them. Where no box is right, none can be chosen: the share of expressions with one bounds all.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from PIL import Image
from pydantic import Field
from torch import Tensor

from grainline.config import Config
from grainline.data.benchmarks.refcoco import Proposals
from grainline.data.decode import decode, image_size
from grainline.data.formats.common import digest
from grainline.data.record import Box, Cause, CorruptSample, Source, boxes_of, region_box
from grainline.errors import UserError
from grainline.evaluation.encode import Collector, Encodings, Sample
from grainline.evaluation.examples import EXAMPLES, Evaluation
from grainline.evaluation.score import Scorer
from grainline.evaluation.suite import MetricSamples, Outcomes, Settings, accuracy, count_notes
from grainline.evaluation.suites import regions
from grainline.evaluation.suites.gradient_maps import attention_heat, gradient_heat, require_patch_grid
from grainline.model import Model, given
from grainline.report.case import Case, CaseImage, CaseList, SentenceScore
from grainline.types import Encoded, Images

ACCURACY, AMONG = "box accuracy", "a right box among them"
GRADIENT, CENTRED, LARGEST, ATTENTION = "gradient", "centred gradient", "largest box", "attention"
MAPS = {
    GRADIENT: "gradient map",
    CENTRED: "gradient map about the mean",
    regions.HEAT: "heat",
    ATTENTION: "attention map",
    LARGEST: "largest box",
}
ROUNDING = 1e-6  # of the largest value of a map: what varies less is the same everywhere
BOXLESS = "regions have neither a box nor a mask and were skipped"
OUTSIDE = "boxes have no pixel in their image and were left out"


class BoxChoice(NamedTuple):
    """The box that a map chose."""

    box: int  # of the boxes to choose from; a wrong one if such a one ties; -1: there was none
    right: bool
    tied: bool  # a right and a wrong box have the highest score both
    lead: float  # of the best right box over the best wrong one, in shares of the better; -1: none is right


class ComprehensionOptions(Config):
    """Options of `comprehension`."""

    proposals: str | None = Field(
        None, description="JSON of detections to choose from; null: the boxes of the data"
    )
    map_from: Literal["gradient", "attention"] = Field(
        "gradient", description="attention adds the map of the last attention to those by tokens"
    )


class ComprehensionSuite(regions.ExpressionSuite[ComprehensionOptions]):
    """The share of expressions whose map chooses a right box, for each map, and for the largest box."""

    name = "comprehension"
    Options = ComprehensionOptions
    headline = (*(f"{ACCURACY}, {name}" for name in MAPS.values()), AMONG)

    def __init__(self, options: ComprehensionOptions | None = None) -> None:
        super().__init__(options)
        path = self.options.proposals
        self.proposals = None if path is None else Proposals(path)

    def check(self, model: Model, source: Source) -> None:
        super().check(model, source)
        if self.options.map_from == ATTENTION:
            require_patch_grid(model.method, model.description.method)

    def collector(self, model: Model, source: Source, settings: Settings) -> Collector:
        attention = self.options.map_from == ATTENTION
        return ChoiceCollector(model, settings.batch_size, source, self.proposals, attention)

    def outcomes(self, scorer: Scorer, data: Encodings, settings: Settings) -> Outcomes:
        choices: regions.Compared = self.collected(data)
        expressions, flat = choices.expressions, choices.flat
        names = [name for name in MAPS if name in expressions[0].by_map]
        if flat.get(GRADIENT) == len(expressions) > flat.get(CENTRED, 0):
            names.remove(GRADIENT)  # scores do not depend on the lengths of tokens
        by_map = {}
        for name in names:
            boxes = [one.by_map[name] for one in expressions]
            right, tied = ([int(getattr(one, field)) for one in boxes] for field in ("right", "tied"))
            by_map[name] = {"chosen": [one.box for one in boxes], "right": right, "tied": tied}
        queries = self.queries(data) | {
            "offered": digest(" ".join(f"{x:.3f}" for b in one.boxes for x in b) for one in expressions),
            "boxes": [len(one.boxes) for one in expressions],
            "fitting": [one.fitting for one in expressions],
            "trivial": by_map.pop(LARGEST),
            "scores": by_map,
        }
        offered = offered_from(self.proposals)
        about = {"offered": offered, "alpha": regions.ALPHA, "card": _card(offered, queries)}
        return Outcomes(queries, _notes(choices, queries), about, self.numbers(data))

    def metrics(self, runs: Sequence[dict[str, Any]], settings: Settings) -> dict[str, MetricSamples]:
        """Shares of expressions: means over the runs; the bootstrap draws images, the same for every map."""
        image, boxes, fitting = (np.array(runs[0][name]) for name in ("image", "boxes", "fitting"))
        chance = float(np.mean(fitting / np.maximum(boxes, 1)))
        in_all = [name for name in MAPS if all(name in run["scores"] for run in runs)]
        by_map = {name: [run["scores"][name] for run in runs] for name in in_all}
        by_map[LARGEST] = [run["trivial"] for run in runs]
        out = {}
        for name, choices in by_map.items():
            right, ties = [one["right"] for one in choices], sum(sum(one["tied"]) for one in choices)
            out[f"{ACCURACY}, {MAPS[name]}"] = accuracy(right, image, chance, ties, settings)
        among = (fitting > 0).astype(np.float64)[None].repeat(len(runs), 0)
        out[AMONG] = accuracy(among, image, None, 0, settings)
        return out

    def cases(self, evaluation: Evaluation, number: int = EXAMPLES) -> list[CaseList]:
        expressions = self.collected(evaluation.data).expressions
        name = next(name for name in MAPS if name in evaluation.result.queries["scores"])  # the first one
        evaluation = self.prepared(evaluation)

        def case(i: int) -> Case:
            one = expressions[i]
            choice, key = one.by_map[name], evaluation.data.keys[one.image]
            box = one.boxes[choice.box] if choice.box >= 0 else None
            both = torch.tensor([box or one.target]), torch.tensor([one.target])
            iou = float(regions.box_iou(*both)) * (box is not None)
            title = f"{'right' if choice.right else 'wrong'}, IoU {100 * iou:.1f} %"
            alt = f"{key}, with a frame around what is meant and dashes around what was chosen"
            look = CaseImage(evaluation.image(one.image), alt, [SentenceScore(one.text, 0.0, place=name)])
            if isinstance(look.image, Image.Image):
                images = evaluation.model.encode(images=[evaluation.given(one.image, look.image)])
                texts, (width, height) = evaluation.model.encode(texts=[one.text]), look.image.size
                heat = maps(evaluation.model, images, texts, (height, width))[name]
                whole = image_size(evaluation.source[evaluation.data.positions[one.image]])
                scale = np.divide((width, height) * 2, whole * 2)  # to where boxes lie in the square
                inside = scale * [one.target, box or one.target, *one.boxes]
                true, prediction, *candidates = map(tuple, inside)
                look = look._replace(
                    heat=(heat - heat.mean()).cpu().numpy(),  # boxes are chosen by what is above its mean
                    box=true,
                    candidates=candidates,
                    prediction=None if box is None else prediction,
                )
            return Case(title, f"{len(one.boxes)} boxes, {key}", choice.right, look=look)

        order = (
            f"Sorted by the score of the best right box less that of the best wrong one, in the {MAPS[name]};"
            " one expression for each image. The frame of black between white is the true box, dashes are"
            " around the one that the map chose, thin lines around all that were to choose from."
        )
        titles = ("Expressions: most wrong", "Expressions: most right")
        leads, image = [one.by_map[name].lead for one in expressions], evaluation.result.queries["image"]
        return evaluation.both_ends(titles, order, case, leads, image=image, number=number)


def offered_from(proposals: Proposals | None) -> dict[str, str]:
    """The origin of the boxes to choose from."""
    known = {} if proposals is None else {"boxes": proposals.path, "sha256": proposals.sha256}
    return known or {"boxes": "ground truth"}


def _card(offered: dict[str, str], queries: dict[str, Any]) -> dict[str, str]:
    """The protocol."""
    number, boxes = np.array(queries["boxes"]), offered["boxes"]
    what = "of a file of detections" if "sha256" in offered else "of all things that the data know"
    names, power = ", ".join(MAPS[name] for name in queries["scores"]), regions.ALPHA
    return {
        "boxes": f"{boxes}, {what}: {number.mean():.1f} an expression, from {number.min()} to {number.max()}",
        "maps": f"{names}; {MAPS[LARGEST]} knows nothing of the expression",
        "score of a box": f"the sum inside over area ** {power}; right if IoU > 0.5 with the true box",
        "texts": "expressions in lower case, without a prompt",
        "images": "pressed into the square of the model",
    }


def _notes(choices: regions.Compared, queries: dict[str, Any]) -> tuple[str, ...]:
    alone = "expressions are about images without a box to choose, and count as wrong"
    counts = choices.counts | {alone: sum(number == 0 for number in queries["boxes"])}
    for name, number in choices.flat.items():
        if name in queries["scores"]:
            counts[f"maps by {name} are the same everywhere and choose nothing"] = number
    notes = count_notes(counts)
    if CENTRED not in queries["scores"]:
        notes += ("scores of this model read vectors and no image tokens, so it has no gradient maps",)
    elif GRADIENT not in queries["scores"]:
        notes += (
            "scores of this model do not depend on the lengths of image tokens, so a token times its gradient"
            " is 0: its only gradient maps are those about the mean token",
        )
    return notes


class ChoiceCollector(regions.ExpressionCollector):
    """Chooses a box for each expression.

    source     of the images, which may know more boxes than those that expressions refer to
    proposals  boxes of a detector; None: the boxes of the things in the image
    attention  whether the map of the last attention chooses too
    """

    skipped = (BOXLESS, OUTSIDE)
    needed = "a box or a mask; expressions choose boxes, as in RefCOCO's files, in `scenes` or own data"

    def __init__(
        self, model: Model, batch: int, source: Source, proposals: Proposals | None, attention: bool
    ) -> None:
        super().__init__(model, batch)
        self._source, self._proposals, self._attention = source, proposals, attention
        self._with_boxes = 0

    def expressions_of(self, sample: Sample) -> regions.ImageExpressions:
        """Raises CorruptSample for an expression whose box has no part in the image."""
        record, size = sample.record, sample.size[::-1]
        expressions = []
        for i, region in enumerate(record.regions):
            box = region_box(region)
            if box is not None and not len(_inside([box], size)):
                what = f"{record.key} ({region.phrase}: its box is not in the image)"
                raise CorruptSample(Cause.CORRUPT_REGION, what)
            if box is not None:
                expressions.append(regions.Expression(sample.row, i, region.phrase.lower(), box))
        offered: Sequence[Box] = ()
        square = None
        if expressions:
            known = self._proposals
            offered = (
                boxes_of(self._source, sample.position, record) if known is None else known.of(record.key)
            )
            if self._attention:
                square = self.model.prepared(given(decode(record), record.dense))
        boxes = _inside(offered, size)
        self.counts[BOXLESS] += len(record.regions) - len(expressions)
        self.counts[OUTSIDE] += len(offered) - len(boxes)
        self._with_boxes += bool(offered)
        return regions.ImageExpressions(size, expressions, (boxes, square))

    def compare(
        self, images: Encoded, texts: Encoded, group: regions.ImageExpressions
    ) -> Iterator[regions.Expression]:
        """The choice of every map."""
        boxes, square = group.shared
        true = regions.clipped(torch.tensor([one.target for one in group.expressions]), group.size)
        right = regions.box_iou(true, boxes) > 0.5  # [E, B]
        by_map = {}
        for name, heat in maps(self.model, images, texts, group.size, square).items():
            self.flat[name] += regions.number_flat(heat)
            score = regions.box_scores(heat.cpu(), boxes)
            by_map[name] = [choose(*both) for both in zip(score, right, strict=True)]
        edges = tuple(map(tuple, boxes.tolist()))
        for k, one in enumerate(group.expressions):
            by_name = {name: choices[k] for name, choices in by_map.items()}
            yield one._replace(boxes=edges, fitting=int(right[k].sum()), by_map=by_name)

    def result(self, data: Encodings) -> regions.Compared:
        """Raises UserError where there is none, and where no image has boxes."""
        compared = super().result(data)
        if not self._with_boxes:
            boxes, names = (
                offered_from(self._proposals)["boxes"],
                "image_id or file_name as images are called",
            )
            raise UserError(f"{boxes} names no image of {data.path}: it must say {names}")
        return compared


def maps(
    model: Model, images: Encoded, texts: Encoded, size: tuple[int, int], square: Images | None = None
) -> dict[str, Tensor]:
    """Every map of each text in its image: name -> [N, H, W] >= 0; of attention with its square.

    Raises UserError for NaN.
    """
    method = model.method
    heat: dict[str, Tensor] = {}
    if method.pairwise:
        heat[GRADIENT], heat[CENTRED] = gradient_heat(method, images, texts)
    if square is not None:
        heat[ATTENTION] = attention_heat(method, square, texts)
    out = {name: regions.pixel_maps(method, images, one, size) for name, one in heat.items()}
    with torch.no_grad():
        raw = regions.pixel_maps(method, images, method.heat(images, texts), size)
    low, high = raw.amin((1, 2), keepdim=True), raw.amax((1, 2), keepdim=True)
    flat = high - low <= ROUNDING * torch.maximum(high.abs(), low.abs())  # spreading it rounds
    out[regions.HEAT] = regions.unit_range(raw.masked_fill(flat, 0.0))
    return out | {LARGEST: torch.ones_like(out[regions.HEAT])}


def choose(score: Tensor, right: Tensor) -> BoxChoice:
    """The box of the highest score; where a wrong one has it too, that one. score: [B] >= 0, right: [B]"""
    if not len(score):
        return BoxChoice(-1, False, False, -1.0)
    best = score == score.max()
    wrong = best & ~right
    highest = wrong if bool(wrong.any()) else best
    tied = bool(wrong.any() and (best & right).any())
    lead = -1.0
    if bool(right.any()):
        first, second = (float(score[one].max()) if bool(one.any()) else 0.0 for one in (right, ~right))
        larger = max(first, second)
        lead = (first - second) / larger if larger > 0 else 0.0
    return BoxChoice(int(highest.int().argmax()), not bool(wrong.any()), tied, lead)


def _inside(boxes: Any, size: tuple[int, int]) -> Tensor:
    """Boxes as far as they are in the image, without those that are not: [B, 4] float64"""
    cut = regions.clipped(torch.tensor(boxes, dtype=torch.float64).view(-1, 4), size)
    return cut[(cut[:, 2:] > cut[:, :2]).all(1) & (regions.areas(cut) > 0)]
