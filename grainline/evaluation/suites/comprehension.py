"""Referring expressions: of the boxes in an image, which one does an expression refer to?

The protocol of ReCLIP (Subramanian et al., arXiv 2204.05991) for RefCOCO, RefCOCO+ and RefCOCOg, without
training for it. In five steps:
  1. squash the whole image into the square that the model reads;
  2. read the expression in lower case, without a prompt around it;
  3. make maps of it over the pixels of the image, as below;
  4. score each box by what lies inside over its area to the power of one half, and choose the highest;
  5. it is right if its IoU with the true box is above one half, unless a wrong one has the same score.

Boxes come from a file of detections, or are those of the things in the image. Chance is the share of right
boxes among them. Where no box is right, none can be chosen: the share of expressions with one bounds all.

Maps are
    gradient     what each image token does for the score of the pair (gradient_maps.py), of methods whose
                 scores read tokens; beside it the same about the mean token
    heat         the method's own, stretched to 0 .. 1: neither its sign nor its offset counts
    attention    what its last attention takes up for the score (gradient_maps.py), on request
    largest box  the same everywhere: what a map reaches that ignores the text
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from PIL import Image
from pydantic import Field
from torch import Tensor

from grainline.config import Config
from grainline.data.benchmarks.proposals import Proposals
from grainline.data.decode import decode, image_size
from grainline.data.formats.common import digest
from grainline.data.record import CORRUPT_REGION, Box, CorruptSample, Record, Source, boxes_of, region_box
from grainline.errors import UserError
from grainline.evaluation.encode import Collector, Encodings
from grainline.evaluation.measured import SHOWN, Measured, extremes
from grainline.evaluation.ranks import refuse_nan
from grainline.evaluation.score import Scorer
from grainline.evaluation.suite import HEAT as HEAT_MAPS
from grainline.evaluation.suite import MetricSamples, Outcomes, Settings, Suite, accuracy
from grainline.evaluation.suites.expressions import (
    ALPHA,
    HEAT,
    Expression,
    ExpressionCollector,
    ImageExpressions,
    areas,
    box_iou,
    box_scores,
    clipped,
    require_layout,
    unit_range,
    with_expressions,
)
from grainline.evaluation.suites.gradient_maps import attention_heat, gradient_heat, require_patch_grid
from grainline.methods.base import Method
from grainline.model import Model, given, on_pixels
from grainline.report.case import Case, CaseList, Look, SentenceScore
from grainline.report.page import MissingImage
from grainline.types import Encoded, Images, rows

ACCURACY, AMONG = "box accuracy", "a right box among them"
GRADIENT, CENTRED, LARGEST, ATTENTION = "gradient", "centred gradient", "largest box", "attention"
MAPS = {
    GRADIENT: "gradient map",
    CENTRED: "gradient map about the mean",
    HEAT: "heat",
    ATTENTION: "attention map",
    LARGEST: "largest box",
}
ROUNDING = 1e-6  # of the largest value of a map: what varies less is the same everywhere
HALF = 0.5  # a box is right if its IoU with the true one is above it
NEEDED = "expressions choose boxes, as in RefCOCO's files, in `scenes` or own data (docs/data.md)"


class BoxChoice(NamedTuple):
    """The box that a map chose."""

    box: int  # of the boxes to choose from; a wrong one if such a one ties; -1: there was none
    right: bool
    tied: bool  # a right and a wrong box have the highest score both
    lead: float  # of the best right box over the best wrong one, in shares of the better; -1: none is right


class Choice(NamedTuple):
    """An expression and what was chosen for it."""

    image: int  # row among the images that were encoded
    region: int  # of that record
    text: str
    true: Box
    boxes: tuple[Box, ...]  # to choose from
    fitting: int  # how many of these are right
    by: dict[str, BoxChoice]  # by the name of the map


class Choices(NamedTuple):
    """The choices for E expressions about N images."""

    expressions: tuple[Choice, ...]
    same: tuple[int, ...]  # [N] the first image that is the same, byte by byte
    boxless: int  # regions without a box: skipped
    outside: int  # boxes without a pixel in their image: left out
    flat: dict[str, int]  # map -> how many are the same everywhere, so that they choose nothing
    offered: dict[str, str]  # where the boxes to choose from come from


class ComprehensionOptions(Config):
    """Options of `comprehension`."""

    proposals: str | None = Field(
        None, description="JSON of detections to choose from; null: the boxes of the data"
    )
    map_from: Literal["gradient", "attention"] = Field(
        "gradient", description="attention adds the map of the last attention to those by tokens"
    )


class ComprehensionSuite(Suite[ComprehensionOptions]):
    """The share of expressions whose map chooses a right box, for each map, and for the largest box."""

    name = "comprehension"
    Options = ComprehensionOptions
    captions = ("whole",)
    reads = "the texts of regions"
    needs_text = False
    encodes_captions = False
    keeps_tokens = False
    headline = (*(f"{ACCURACY}, {name}" for name in MAPS.values()), AMONG)
    figure = HEAT_MAPS

    def __init__(self, options: ComprehensionOptions | None = None) -> None:
        super().__init__(options)
        path = self.options.proposals
        self.proposals = None if path is None else Proposals(path)

    def check(self, model: Model, source: Source) -> None:
        super().check(model, source)
        require_layout(model)
        if self.options.map_from == ATTENTION:
            require_patch_grid(model.method, model.description.method)

    def prepare(self, model: Model, source: Source) -> tuple[Model, Source]:
        return model.pressed(), with_expressions(source)

    def collector(self, model: Model, source: Source, settings: Settings) -> Collector:
        attention = self.options.map_from == ATTENTION
        return ChoiceCollector(model, settings.batch_size, source, self.proposals, attention)

    def outcomes(self, scorer: Scorer, data: Encodings, settings: Settings) -> Outcomes:
        choices: Choices = self.collected(data)
        expressions = choices.expressions
        names = [name for name in MAPS if name in expressions[0].by]
        if choices.flat.get(GRADIENT) == len(expressions) > choices.flat.get(CENTRED, 0):
            names.remove(GRADIENT)  # no token has a part in the direction of its gradient
        by = {name: _columns([one.by[name] for one in expressions]) for name in names}
        queries = {
            "keys": list(data.keys),
            "texts": digest(one.text for one in expressions),
            "image": [choices.same[one.image] for one in expressions],
            "region": [one.region for one in expressions],
            "offered": digest(" ".join(f"{x:.3f}" for b in one.boxes for x in b) for one in expressions),
            "boxes": [len(one.boxes) for one in expressions],
            "fitting": [one.fitting for one in expressions],
            "trivial": by.pop(LARGEST),
            "scores": by,
        }
        number = {"texts": len({one.text for one in expressions}), "expressions": len(expressions)}
        about = {"offered": choices.offered, "alpha": ALPHA, "card": _card(choices, queries)}
        return Outcomes(queries, _notes(choices, queries), about, number)

    def metrics(self, runs: Sequence[dict[str, Any]], settings: Settings) -> dict[str, MetricSamples]:
        """Shares of expressions: means over the runs; the bootstrap draws images, the same for every map."""
        image, boxes, fitting = (np.array(runs[0][name]) for name in ("image", "boxes", "fitting"))
        chance = float(np.mean(fitting / np.maximum(boxes, 1)))
        in_all = [name for name in MAPS if all(name in run["scores"] for run in runs)]
        by = {name: [run["scores"][name] for run in runs] for name in in_all}
        by[LARGEST] = [run["trivial"] for run in runs]
        out = {}
        for name, choices in by.items():
            right = np.array([one["right"] for one in choices], np.float64)  # [run, E]
            ties = sum(sum(one["tied"]) for one in choices)
            out[f"{ACCURACY}, {MAPS[name]}"] = accuracy(right, image, chance, ties, settings)
        among = (fitting > 0).astype(np.float64)[None].repeat(len(runs), 0)
        out[AMONG] = accuracy(among, image, None, 0, settings)
        return out

    def cases(self, on: Measured, number: int = SHOWN) -> list[CaseList]:
        expressions, name = self.collected(on.data).expressions, first_map(on.result.queries)
        on = on._replace(model=on.model.pressed(), source=with_expressions(on.source))

        def case(i: int) -> Case:
            one = expressions[i]
            choice, key = one.by[name], on.data.keys[one.image]
            box = one.boxes[choice.box] if choice.box >= 0 else None
            iou = 0.0 if box is None else float(box_iou(torch.tensor([box]), torch.tensor([one.true])))
            title = f"{'right' if choice.right else 'wrong'}, IoU {100 * iou:.1f} %"
            look = _look(on, one, box, name)
            return Case(title, f"{len(one.boxes)} boxes, {key}", choice.right, look=look)

        order = (
            f"By the score of the best right box less that of the best wrong one, in the {MAPS[name]}; one"
            " expression for each image. The frame of black between white is the true box, dashes are around"
            " the one that the map chose, thin lines around all that were to choose from."
        )
        titles = ("Expressions: most wrong", "Expressions: most right")
        leads = [one.by[name].lead for one in expressions]
        places = extremes(leads, image=on.result.queries["image"], number=number)
        return on.both_ends(titles, order, places, case)


def _columns(by: Sequence[BoxChoice]) -> dict[str, list[int]]:
    return {
        "chosen": [one.box for one in by],
        "right": [int(one.right) for one in by],
        "tied": [int(one.tied) for one in by],
    }


def _card(choices: Choices, queries: dict[str, Any]) -> dict[str, str]:
    """What was chosen from, and how."""
    number = np.array(queries["boxes"])
    of, detected = choices.offered["boxes"], "sha256" in choices.offered
    what = "of a file of detections" if detected else "of all things that the data know"
    names = ", ".join(MAPS[name] for name in queries["scores"])
    return {
        "boxes": f"{of}, {what}: {number.mean():.1f} an expression, from {number.min()} to {number.max()}",
        "maps": f"{names}; {MAPS[LARGEST]} knows nothing of the expression",
        "score of a box": f"the sum inside over area ** {ALPHA}; right if IoU > 0.5 with the true box",
        "texts": "expressions in lower case, without a prompt",
        "images": "pressed into the square of the model",
    }


def _notes(choices: Choices, queries: dict[str, Any]) -> tuple[str, ...]:
    """What a reader of the metrics has to know."""
    alone = sum(number == 0 for number in queries["boxes"])
    counts = {
        "regions have neither a box nor a mask and were skipped": choices.boxless,
        "boxes have no pixel in their image and were left out": choices.outside,
        "expressions are about images without a box to choose, and count as wrong": alone,
    }
    counts |= {
        f"maps by {name} are the same everywhere and choose nothing": number
        for name, number in choices.flat.items()
        if name in queries["scores"]
    }
    notes = tuple(f"{number} {what}" for what, number in counts.items() if number)
    if CENTRED not in queries["scores"]:
        notes += ("scores of this model read vectors and no image tokens, so it has no gradient maps",)
    elif GRADIENT not in queries["scores"]:
        notes += (
            "scores of this model do not depend on the lengths of image tokens, so a token times its gradient"
            " is 0: its only gradient maps are those about the mean token",
        )
    return notes


def first_map(queries: dict[str, Any]) -> str:
    """The map that examples show: the first of MAPS that was compared."""
    return next(name for name in MAPS if name in queries["scores"])


class ChoiceCollector(ExpressionCollector):
    """Chooses a box for each expression.

    source     of the images, which may know more boxes than those that expressions refer to
    proposals  boxes of a detector; None: the boxes of the things in the image
    attention  whether the map of the last attention chooses too
    """

    def __init__(
        self, model: Model, batch: int, source: Source, proposals: Proposals | None, attention: bool
    ) -> None:
        super().__init__(model, batch)
        self._source, self._proposals, self._attention = source, proposals, attention
        self._choices: list[Choice] = []
        self._flat: dict[str, int] = {}
        self._boxless = self._outside = self._with_boxes = 0

    def expressions_of(self, record: Record, size: tuple[int, int], index: int) -> ImageExpressions:
        """Raises CorruptSample for an expression whose box has no part in the image."""
        expressions = []
        true = [region_box(region) for region in record.regions]
        for i, (region, box) in enumerate(zip(record.regions, true, strict=True)):
            if box is not None and not len(_inside([box], size)):
                raise CorruptSample(
                    CORRUPT_REGION, f"{record.key} ({region.phrase}: its box is not in the image)"
                )
            if box is not None:
                expressions.append(Expression(i, region.phrase.lower(), box))
        offered: Sequence[Box] = ()
        if expressions and self._proposals is None:
            offered = boxes_of(self._source, index, record)
        elif expressions and self._proposals is not None:
            offered = self._proposals.of(record.key)
        boxes = _inside(offered, size)
        self._boxless += sum(box is None for box in true)
        self._outside += len(offered) - len(boxes)
        self._with_boxes += bool(offered)
        square = None
        if expressions and self._attention:
            square = self.model.prepared(given(decode(record), record.dense))
        return ImageExpressions(size, expressions, (boxes, square))

    def compare(self, images: Encoded, texts: Encoded, of: ImageExpressions, image: int) -> None:
        """By every map."""
        boxes, square = of.shared
        true = clipped(torch.tensor([one.target for one in of.expressions]), of.size)
        right = box_iou(true, boxes) > HALF  # [E, B]
        by = {}
        for name, heat in maps(self.method, images, texts, of.size, square).items():
            self._flat[name] = self._flat.get(name, 0) + int((heat.amax((1, 2)) == heat.amin((1, 2))).sum())
            score = box_scores(heat.cpu(), boxes)
            by[name] = [choose(*both) for both in zip(score, right, strict=True)]
        edges = tuple((x[0], x[1], x[2], x[3]) for x in boxes.tolist())
        for k, one in enumerate(of.expressions):
            choices = {name: of_map[k] for name, of_map in by.items()}
            fitting = int(right[k].sum())
            self._choices.append(Choice(image, one.region, one.text, one.target, edges, fitting, choices))

    def result(self, data: Encodings) -> Choices:
        """Raises UserError where there is none, and where no image has boxes."""
        if not self._choices:
            raise UserError(f"no region of {data.path} has a box or a mask; {NEEDED}")
        of = {"boxes": "ground truth"}
        if self._proposals is not None:
            of = {"boxes": self._proposals.path, "sha256": self._proposals.sha256}
        if not self._with_boxes:
            raise UserError(
                f"{of['boxes']} names no image of {data.path}: it must say image_id or file_name as the"
                " images are called"
            )
        flat = {name: number for name, number in self._flat.items() if name != LARGEST}
        return Choices(tuple(self._choices), tuple(self.same), self._boxless, self._outside, flat, of)


def maps(
    method: Method, images: Encoded, texts: Encoded, size: tuple[int, int], square: Images | None = None
) -> dict[str, Tensor]:
    """Every map of each text in its image: name -> [N, H, W] >= 0. Raises UserError for NaN.

    square  the one image that all rows are of, for the map of its attention; None: without
    """
    heat: dict[str, Tensor] = {}
    if method.pairwise:
        both = gradient_heat(method, images, texts)
        names = (GRADIENT, CENTRED)
        heat = {name: on_pixels(method, images, x, size) for name, x in zip(names, both, strict=True)}
    if square is not None:
        heat[ATTENTION] = on_pixels(method, images, attention_heat(method, square, texts), size)
    with torch.no_grad():
        raw = on_pixels(method, images, method.heat(images, texts), size)
    for one in (*heat.values(), raw):
        refuse_nan(int(one.isnan().any(2).any(1).sum()), len(one))
    least, most = raw.amin((1, 2), keepdim=True), raw.amax((1, 2), keepdim=True)
    flat = most - least <= ROUNDING * torch.maximum(most.abs(), least.abs())  # spreading it rounds
    heat[HEAT] = unit_range(raw.masked_fill(flat, 0.0))
    return heat | {LARGEST: torch.ones_like(heat[HEAT])}


def choose(score: Tensor, right: Tensor) -> BoxChoice:
    """The box of the highest score; where a wrong one has it too, that one.

    score  [B] >= 0, right [B] bool

    >>> choose(torch.tensor([1.0, 2.0, 2.0]), torch.tensor([False, True, False]))
    BoxChoice(box=2, right=False, tied=True, lead=0.0)
    >>> choose(torch.tensor([1.0, 2.0, 2.0]), torch.tensor([False, True, True]))
    BoxChoice(box=1, right=True, tied=False, lead=0.5)
    """
    if not len(score):
        return BoxChoice(-1, False, False, -1.0)
    best = score == score.max()
    wrong = best & ~right
    highest = wrong if bool(wrong.any()) else best
    tied = bool(wrong.any() and (best & right).any())
    return BoxChoice(int(highest.int().argmax()), not bool(wrong.any()), tied, _lead(score, right))


def _lead(score: Tensor, right: Tensor) -> float:
    if not bool(right.any()):
        return -1.0
    best, other = float(score[right].max()), float(score[~right].max()) if bool((~right).any()) else 0.0
    return (best - other) / max(best, other) if max(best, other) > 0 else 0.0


def _inside(boxes: Any, size: tuple[int, int]) -> Tensor:
    """Boxes as far as they are in the image, without those that are not: [B, 4] float64"""
    cut = clipped(torch.tensor(boxes, dtype=torch.float64).view(-1, 4), size)
    return cut[(cut[:, 2:] > cut[:, :2]).all(1) & (areas(cut) > 0)]


def _look(on: Measured, one: Choice, box: Box | None, name: str) -> Look:
    """The image squashed into the square, with the map and all boxes. box: the one that was chosen"""
    image, text = on.image(one.image), one.text
    alt = f"{on.data.keys[one.image]}, with a frame around what is meant and dashes around what was chosen"
    if isinstance(image, MissingImage):
        return Look(image, alt, [SentenceScore(text, 0.0, role=name)])
    images, texts = on.model.encode(images=[on.given(one.image, image)]), on.model.encode(texts=[text])
    score = float(on.model.score(images, texts))
    heat = maps(on.model.method, rows(images, slice(0, 1)), texts, (image.height, image.width))[name]
    true, prediction, *candidates = _in_square([one.true, box or one.true, *one.boxes], on, one.image, image)
    return Look(
        image,
        alt,
        [SentenceScore(text, score, role=name)],
        (heat - heat.mean()).cpu().numpy(),  # boxes are chosen by where the map is above the rest of it
        true,
        candidates=candidates,
        prediction=None if box is None else prediction,
    )


def _in_square(boxes: Sequence[Box], on: Measured, row: int, square: Image.Image) -> list[Box]:
    """Boxes of an image where they lie in the square."""
    width, height = image_size(on.source[on.data.positions[row]])
    across, down = square.width / width, square.height / height
    return [(across * a, down * b, across * c, down * d) for a, b, c, d in boxes]
