"""What stands on a page about classification: single pictures between two classes, and the confusions."""

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup
from PIL import Image

from grainline.viz.page import Gone, render


class Classified(NamedTuple):
    """A picture between its own class and the best of the others."""

    picture: Image.Image | Gone
    name: str
    classes: tuple[str, str]  # the true one, the best other one
    scores: tuple[float, float]
    rank: int  # of the true class among all, 1 = best
    number: int  # of classes


class Confusion(NamedTuple):
    """Pictures of one class that were taken for another."""

    true: str
    predicted: str
    pictures: int  # that were taken for the other class
    of: int  # pictures of the true class


def classified(shown: Sequence[Classified]) -> Markup:
    """Pictures with both classes and their scores, one below the other."""
    return render("classified.html", shown=shown)


def confusions(rows: Sequence[Confusion]) -> Markup:
    """The mistakes as a table, in their order."""
    return render("confusions.html", rows=rows)
