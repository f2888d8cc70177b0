"""What stands on a page about expressions: a picture with the outline of what is meant, and the heat."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from grainline.viz.look import Look, look


class Pointed(NamedTuple):
    """An expression over its picture."""

    look: Look  # the picture with the outline of the right mask, the expression, and its heat
    name: str  # of the picture
    iou: float  # of what stands out in the heat with the right mask


def pointed(shown: Sequence[Pointed], name: str) -> str:
    """Expressions one below the other.

    name  letters and digits, another one for each list on a page
    """
    return "".join(
        f'<article class="card"><h3>IoU {100 * one.iou:.1f} % <small>{escape(one.name)}</small></h3>'
        f"{look(one.look, f'{name}{i}')}</article>"
        for i, one in enumerate(shown, 1)
    )
