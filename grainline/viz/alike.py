"""What stands on a page about likeness: a picture, and its texts with how alike it looks to them."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from grainline.viz.look import Look, look


class Likened(NamedTuple):
    """A picture that was pooled by each of its texts."""

    look: Look  # the picture, and its first texts with the mean cosine of its feature with the others
    name: str  # of the picture
    features: float  # mean cosine between two features of the picture
    texts: float  # mean cosine between two of its texts
    number: int  # of its texts


def likened(shown: Sequence[Likened], name: str) -> str:
    """Pictures one below the other.

    name  letters and digits, another one for each list on a page
    """
    return "".join(_one(one, f"{name}{i}") for i, one in enumerate(shown, 1))


def _one(one: Likened, name: str) -> str:
    told = f"cosine of its {one.number} texts {one.texts:.3f}, {one.name}"
    if len(one.look.told) < one.number:
        told += f"; the first {len(one.look.told)} texts are shown"
    return (
        f'<article class="card"><h3>Sim {one.features:.3f} <small>{escape(told)}</small></h3>'
        f"{look(one.look, name)}</article>"
    )
