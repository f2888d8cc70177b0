"""What stands on a page about expressions: a picture with the outline of what is meant, and the heat; or with
the boxes to choose from, and the map that chose.
"""

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from grainline.viz.look import Look
from grainline.viz.page import render


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


def picked(shown: Sequence[Picked], name: str) -> Markup:
    """Choices one below the other. name: as in `pointed`"""
    return render("picked.html", shown=shown, name=name)


def pointed(shown: Sequence[Pointed], name: str) -> Markup:
    """Expressions one below the other.

    name  letters and digits, another one for each list on a page
    """
    return render("pointed.html", shown=shown, name=name)
