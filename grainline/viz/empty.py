"""What stands on a page about inactivity: a picture, its own text and another one, and where they look."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from grainline.viz.look import Look, look


class Emptied(NamedTuple):
    """A picture that was asked for its own text and for another one."""

    look: Look  # the picture, and the parts of both texts, each with the weight of its empty slot
    name: str  # of the picture
    share: float  # of pairs of both in which the foreign part has the larger weight


def emptied(shown: Sequence[Emptied], name: str) -> str:
    """Pictures one below the other.

    name  letters and digits, another one for each list on a page
    """
    return "".join(
        f'<article class="card"><h3>AUROC {100 * one.share:.1f} % <small>{escape(one.name)}</small></h3>'
        f"{look(one.look, f'{name}{i}')}</article>"
        for i, one in enumerate(shown, 1)
    )
