"""What stands on a page about classification: single pictures between two classes, and the confusions."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from PIL import Image

from grainline.viz.page import Gone, img


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


def classified(shown: Sequence[Classified]) -> str:
    """Pictures with both classes and their scores, one below the other."""
    return "".join(map(_one, shown))


def confusions(rows: Sequence[Confusion]) -> str:
    """The mistakes as a table, in their order."""
    if not rows:
        return "<p>No picture was taken for another class.</p>"
    caption = "True class, the class it was taken for, and how often"
    heads = "".join(
        f'<th scope="col" class="{kind}">{name}</th>'
        for name, kind in (
            ("True class", "name"),
            ("Taken for", "name"),
            ("Pictures", ""),
            ("Of its class", ""),
        )
    )
    body = "".join(
        f'<tr><th scope="row">{escape(row.true)}</th><td class="name">{escape(row.predicted)}</td>'
        f"<td>{row.pictures:,} of {row.of:,}</td><td>{100 * row.pictures / row.of:.1f} %</td></tr>"
        for row in rows
    )
    return (
        f'<div class="card"><div class="scroll" tabindex="0" role="region" aria-label="{caption}">'
        f"<table><caption>{caption}</caption><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
        "</div></div>"
    )


def _one(one: Classified) -> str:
    true, false = one.scores
    outcome = "wrong, tied" if true == false else "right" if true > false else "wrong"
    outcome += f" by {abs(true - false):.3f}"
    sign = "&#10003;" if true > false else "&#10007;"
    return (
        f'<article class="card"><h3><span aria-hidden="true">{sign}</span> {outcome}'
        f" <small>true class at rank {one.rank:,} of {one.number:,}, {escape(one.name)}</small></h3>"
        f'<div class="pair">{img(one.picture, f"picture {one.name}")}<dl>'
        f"<div><dt>True class, score {true:.3f}</dt><dd>{escape(one.classes[0])}</dd></div>"
        f"<div><dt>Best other class, score {false:.3f}</dt><dd>{escape(one.classes[1])}</dd></div>"
        "</dl></div></article>"
    )
