"""What stands on a page about regions: a picture with a box, and the texts that were to choose from."""

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from grainline.viz.look import Look
from grainline.viz.page import render


class Judged(NamedTuple):
    """A region with its right text and the foils that score highest."""

    look: Look  # the picture with the box, and the texts from the highest score to the lowest
    name: str  # of the picture
    kind: str  # of the foils
    lead: float  # of the right text over the best foil
    rank: int  # of the right text, 1 = best
    number: int  # of texts to choose from


def judged(shown: Sequence[Judged], name: str) -> Markup:
    """Regions one below the other.

    name  letters and digits, another one for each list on a page
    """
    return render("regions.html", shown=shown, name=name)
