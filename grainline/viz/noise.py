"""What stands on a page about noise: a picture, a text with a sentence put into it, two scores."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from PIL import Image

from grainline.viz.page import Gone, img


class Disturbed(NamedTuple):
    """A picture with a text into which a sentence was put that has nothing to do with it."""

    picture: Image.Image | Gone
    name: str
    text: str  # with the sentence
    noise: str  # the sentence
    place: str  # of the sentence in the text, in words
    scores: tuple[float, float]  # without and with the sentence
    change: float  # of the score, as a share of what it was


def disturbed(shown: Sequence[Disturbed]) -> str:
    """One below the other, the sentence marked in the text."""
    return "".join(map(_one, shown))


def _one(one: Disturbed) -> str:
    text = escape(one.text).replace(escape(one.noise), f"<mark>{escape(one.noise)}</mark>")
    before, after = one.scores
    return (
        f'<article class="card"><h3>changed by {100 * one.change:,.2f} %'
        f" <small>noise {escape(one.place)}, {escape(one.name)}</small></h3>"
        f'<div class="pair">{img(one.picture, f"picture {one.name}")}<dl>'
        f"<div><dt>Score without the marked sentence {before:.4f}, with it {after:.4f}</dt>"
        f"<dd>{text}</dd></div></dl></div></article>"
    )
