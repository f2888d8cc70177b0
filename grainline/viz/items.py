"""What stands on a page about items: two pictures, two captions and the four scores between them."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from PIL import Image

from grainline.viz.marked import marked
from grainline.viz.page import Gone, img


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


def crossed(shown: Sequence[Crossed]) -> str:
    """Items one below the other, the words marked that only one of the captions has."""
    return "".join(map(_one, shown))


def _one(one: Crossed) -> str:
    lead = min(one.leads)
    outcome = "right" if lead > 0 else "wrong, tied" if lead == 0 else "wrong"
    sign = "&#10003;" if lead > 0 else "&#10007;"
    return (
        f'<article class="card"><h3><span aria-hidden="true">{sign}</span> {outcome} by {abs(lead):.3f}'
        f' <small>item {one.number:,}</small></h3><div class="sides">{_side(one, 0)}{_side(one, 1)}</div>'
        "</article>"
    )


def _side(one: Crossed, own: int) -> str:
    lead, other = one.leads[own], 1 - own
    told = "finds this picture" if lead > 0 else "finds neither" if lead == 0 else "finds the other picture"
    return (
        f"<figure>{img(one.pictures[own], f'picture {one.names[own]}')}"
        f"<figcaption>{escape(one.names[own])}</figcaption><p>{marked(*one.captions)[own]}</p>"
        f'<p class="score">This caption {told}: score {one.scores[own][own]:.3f} with this one, '
        f"{one.scores[other][own]:.3f} with the other.</p></figure>"
    )
