"""What stands on a page about inactivity: a picture, its own text and another one, and where they look."""

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from grainline.viz.look import Look
from grainline.viz.page import render


class Emptied(NamedTuple):
    """A picture that was asked for its own text and for another one."""

    look: Look  # the picture, and the parts of both texts, each with the weight of its empty slot
    name: str  # of the picture
    share: float  # of pairs of both in which the foreign part has the larger weight


def emptied(shown: Sequence[Emptied], name: str) -> Markup:
    """Pictures one below the other.

    name  letters and digits, another one for each list on a page
    """
    return render("empty.html", shown=shown, name=name)
