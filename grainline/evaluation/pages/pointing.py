"""The parts of a page about expressions that speak of one thing in a picture."""

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image

from grainline.data.decode import picture_size
from grainline.evaluation.collectors.choices import Choice, maps
from grainline.evaluation.collectors.overlaps import box_iou
from grainline.evaluation.pages.examples import SHOWN, Measured
from grainline.evaluation.pages.extremes import best_expressions, worst_expressions
from grainline.evaluation.suites.comprehension import MAPS, shown_map
from grainline.evaluation.suites.referring import Picked, picked, pointed, with_expressions
from grainline.report.case import Look, Told
from grainline.report.heatmap import Box
from grainline.report.page import Gone, Section, facts, hint
from grainline.types import rows

# Single choices among boxes, from both ends: what a page about referring expressions shows.


def worst_choices(on: Measured, number: int = SHOWN) -> list[Picked]:
    """The expressions whose right box loses by most, or wins by least; each of another picture."""
    return _picked(on, number, 1)


def best_choices(on: Measured, number: int = SHOWN) -> list[Picked]:
    """The expressions whose right box wins by most; each of another picture."""
    return _picked(on, number, -1)


def _picked(on: Measured, number: int, sign: int) -> list[Picked]:
    """By the map that is shown, in which the lead was taken."""
    told = on.data.choices
    assert told is not None, "the comprehension suite was run"
    name = shown_map(on.result.queries)
    order = np.argsort([sign * one.by[name].lead for one in told.found], kind="stable")
    _, first = np.unique(np.array(on.result.queries["picture"])[order], return_index=True)
    whole = on._replace(model=on.model.pressed(), source=with_expressions(on.source))
    return [_one(whole, told.found[i], name) for i in order[np.sort(first)[:number]].tolist()]


def _one(on: Measured, one: Choice, name: str) -> Picked:
    chosen, key = one.by[name], on.data.keys[one.picture]
    box = one.boxes[chosen.box] if chosen.box >= 0 else None
    iou = 0.0 if box is None else float(box_iou(torch.tensor([box]), torch.tensor([one.true])))
    return Picked(_look(on, one, box, name), key, chosen.right, iou, len(one.boxes))


def _look(on: Measured, one: Choice, chosen: Box | None, name: str) -> Look:
    """The picture pressed into the square, with the map and all boxes."""
    picture, text = on.picture(one.picture), one.text
    alt = f"{on.data.keys[one.picture]}, with a frame around what is meant and dashes around what was chosen"
    if isinstance(picture, Gone):
        return Look(picture, alt, [Told(text, 0.0, role=name)])
    given = on.given(one.picture, picture)
    images, texts = on.model.encode(images=[given]), on.model.encode(texts=[text])
    score = float(on.model.score(images, texts))
    heat = maps(on.model.method, rows(images, slice(0, 1)), texts, (picture.height, picture.width))[name]
    true, mine, *others = _pressed([one.true, chosen or one.true, *one.boxes], on, one.picture, picture)
    return Look(
        picture,
        alt,
        [Told(text, score, role=name)],
        (heat - heat.mean()).cpu().numpy(),  # boxes are chosen by where the map is above the rest of it
        true,
        others=others,
        chosen=None if chosen is None else mine,
    )


def _pressed(boxes: Sequence[Box], on: Measured, row: int, shown: Image.Image) -> list[Box]:
    """Boxes of a picture where they lie in the square."""
    width, height = picture_size(on.source[on.data.positions[row]])
    across, down = shown.width / width, shown.height / height
    return [(across * a, down * b, across * c, down * d) for a, b, c, d in boxes]


def covered(on: Measured) -> list[Section]:
    """Heat against masks: the referring suite."""
    order = (
        "By IoU; one expression for each picture. The line runs around what is meant. Heat is orange"
        " where the map is above its mean and blue where it is below; what is above Otsu's threshold of the"
        " map was compared. Pictures are shown as the model sees them here: pressed into a square."
    )
    return [
        Section("Expressions: covered least", hint(order) + pointed(worst_expressions(on), "w")),
        Section("Expressions: covered best", hint(order) + pointed(best_expressions(on), "b")),
    ]


def chosen(on: Measured) -> list[Section]:
    """Maps that choose among boxes: the comprehension suite."""
    name = MAPS[shown_map(on.result.queries)]
    order = (
        f"By the score of the best right box less that of the best wrong one, in the {name}; one expression"
        " for each picture. The frame of black between white is the true box, dashes are around the chosen"
        " one, thin lines around all that were to choose from. Pictures are shown as the model sees them"
        " here: pressed into a square."
    )
    card = facts(on.result.settings["card"], "What was chosen from, and how")
    return [
        Section("Protocol", card),
        Section("Expressions: most wrong", hint(order) + picked(worst_choices(on), "w")),
        Section("Expressions: most right", hint(order) + picked(best_choices(on), "b")),
    ]
