"""Single choices among boxes, from both ends: what a page about referring expressions shows."""

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image

from grainline.data.decode import picture_size
from grainline.evaluate.boxes import box_iou
from grainline.evaluate.choices import Choice, maps
from grainline.evaluate.comprehension import shown_map
from grainline.evaluate.examples import SHOWN, Measured
from grainline.evaluate.referring import with_expressions
from grainline.types import rows
from grainline.viz.look import Look, Told
from grainline.viz.overlay import Box
from grainline.viz.page import Gone
from grainline.viz.referring import Picked


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
