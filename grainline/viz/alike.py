"""What stands on a page about likeness: a picture, and its texts with how alike it looks to them."""

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from grainline.viz.look import Look
from grainline.viz.page import render


class Likened(NamedTuple):
    """A picture that was pooled by each of its texts."""

    look: Look  # the picture, and its first texts with the mean cosine of its feature with the others
    name: str  # of the picture
    features: float  # mean cosine between two features of the picture
    texts: float  # mean cosine between two of its texts
    number: int  # of its texts


def likened(shown: Sequence[Likened], name: str) -> Markup:
    """Pictures one below the other.

    name  letters and digits, another one for each list on a page
    """
    return render("alike.html", shown=shown, name=name)
