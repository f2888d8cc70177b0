"""What stands on a page about noise: a picture, a text with a sentence put into it, two scores."""

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup
from PIL import Image

from grainline.viz.page import Gone, render


class Disturbed(NamedTuple):
    """A picture with a text into which a sentence was put that has nothing to do with it."""

    picture: Image.Image | Gone
    name: str
    text: str  # with the sentence
    noise: str  # the sentence
    place: str  # of the sentence in the text, in words
    scores: tuple[float, float]  # without and with the sentence
    change: float  # of the score, as a share of what it was


def disturbed(shown: Sequence[Disturbed]) -> Markup:
    """One below the other, the sentence marked in the text."""
    return render("noise.html", shown=shown)
