"""What stands on a page about regions: a picture with a box, and the texts that were to choose from."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from grainline.viz.look import Look, look


class Judged(NamedTuple):
    """A region with its right text and the foils that score highest."""

    look: Look  # the picture with the box, and the texts from the highest score to the lowest
    name: str  # of the picture
    kind: str  # of the foils
    lead: float  # of the right text over the best foil
    rank: int  # of the right text, 1 = best
    number: int  # of texts to choose from


def judged(shown: Sequence[Judged], name: str) -> str:
    """Regions one below the other.

    name  letters and digits, another one for each list on a page
    """
    return "".join(_one(one, f"{name}{i}") for i, one in enumerate(shown, 1))


def _one(one: Judged, name: str) -> str:
    outcome = "wrong, tied" if one.lead == 0 else "right" if one.lead > 0 else "wrong"
    sign = "&#10003;" if one.lead > 0 else "&#10007;"
    told = f"{one.kind}, rank {one.rank} of {one.number}, {one.name}"
    return (
        f'<article class="card"><h3><span aria-hidden="true">{sign}</span> {outcome} by {abs(one.lead):.3f}'
        f" <small>{escape(told)}</small></h3>{look(one.look, name)}</article>"
    )
