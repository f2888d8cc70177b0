"""What stands on a page about expressions: a picture with the outline of what is meant, and the heat; or with
the boxes to choose from, and the map that chose.
"""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from grainline.viz.look import Look, look


class Pointed(NamedTuple):
    """An expression over its picture."""

    look: Look  # the picture with the outline of the right mask, the expression, and its heat
    name: str  # of the picture
    iou: float  # of what stands out in the heat with the right mask


class Picked(NamedTuple):
    """An expression, and the box that its map chose."""

    look: Look  # the picture with all boxes, the chosen and the true one, the expression, and its map
    name: str  # of the picture
    right: bool
    iou: float  # of the chosen box with the true one
    number: int  # of boxes to choose from

    @property
    def told(self) -> str:
        """The outcome in words.

        >>> Picked(Look(None, ""), "a.jpg", False, 0.25, 4).told
        'wrong, IoU 25.0 %, 4 boxes, a.jpg'
        """
        outcome = "right" if self.right else "wrong"
        return f"{outcome}, IoU {100 * self.iou:.1f} %, {self.number} boxes, {self.name}"


def picked(shown: Sequence[Picked], name: str) -> str:
    """Choices one below the other. name: as in `pointed`"""
    return "".join(
        f'<article class="card"><h3><span aria-hidden="true">{"&#10003;" if one.right else "&#10007;"}</span>'
        f" {escape(one.told)}</h3>{look(one.look, f'{name}{i}')}</article>"
        for i, one in enumerate(shown, 1)
    )


def pointed(shown: Sequence[Pointed], name: str) -> str:
    """Expressions one below the other.

    name  letters and digits, another one for each list on a page
    """
    return "".join(
        f'<article class="card"><h3>IoU {100 * one.iou:.1f} % <small>{escape(one.name)}</small></h3>'
        f"{look(one.look, f'{name}{i}')}</article>"
        for i, one in enumerate(shown, 1)
    )
