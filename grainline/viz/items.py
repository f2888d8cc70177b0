"""What stands on a page about items: two pictures, two captions and the four scores between them."""

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup
from PIL import Image

from grainline.viz.marked import marked
from grainline.viz.page import Gone, render


class Crossed(NamedTuple):
    """An item: caption i describes picture i, and is compared with both."""

    number: int  # in the file, from 1
    pictures: Sequence[Image.Image | Gone]  # two
    names: Sequence[str]  # of the pictures
    captions: Sequence[str]
    scores: Sequence[Sequence[float]]  # [picture 2, caption 2]

    @property
    def leads(self) -> tuple[float, float]:
        """By how much each caption prefers its own picture."""
        (a, b), (c, d) = self.scores
        return a - c, d - b

    @property
    def marked(self) -> tuple[Markup, Markup]:
        """The captions, the words marked that only one of them has."""
        return marked(*self.captions)


def crossed(shown: Sequence[Crossed]) -> Markup:
    """Items one below the other, the words marked that only one of the captions has."""
    return render("items.html", shown=shown)
