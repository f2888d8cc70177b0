"""A picture with the sentences of a text beside it: each of them shows its heat when it is pointed at.

No script is needed: sentences are radio buttons, and the style sheet (LOOK) lays the heat of the one that is
chosen, focused or hovered over the picture. Without heat it is a picture and a list.
"""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np
from PIL import Image

from grainline.viz.heat import place
from grainline.viz.marked import marked
from grainline.viz.overlay import framed, limit_of, overlay, scale_bar
from grainline.viz.page import Gone, img

LEAST = 224  # pixels of the longer side of a picture in which a box is drawn


class Told(NamedTuple):
    """A sentence, judged in a picture."""

    text: str
    score: float
    chance: float | None = None  # of the sentence, where it is known
    supported: bool | None = None  # None: not judged
    role: str = ""  # what the text is, where several are compared
    other: str = ""  # the text it is compared with: words that this one lacks are marked


class Look(NamedTuple):
    """A picture and what is told of it."""

    picture: Image.Image | Gone  # the square that the model sees
    alt: str  # what the picture is
    told: Sequence[Told] = ()
    heat: np.ndarray | None = None  # [S, H, W] signed, H and W those of the picture; None: no heat
    box: tuple[float, float, float, float] | None = None  # what the texts speak of, in pixels of the picture

    def shown(self) -> Image.Image | Gone:
        """The picture with its box, enlarged where it is small: a frame must not hide what it shows."""
        return self.picture if isinstance(self.picture, Gone) else self._framed(self.picture)

    def map(self, heat: np.ndarray, limit: float) -> Image.Image:
        """The picture with one of the maps and the box laid over it."""
        assert isinstance(self.picture, Image.Image), "there is a picture"
        return self._framed(overlay(self.picture, heat, limit))

    def _framed(self, image: Image.Image) -> Image.Image:
        if self.box is None:
            return image
        times = -(-LEAST // max(image.size))
        large = image.resize((times * image.width, times * image.height), Image.Resampling.NEAREST)
        left, top, right, bottom = (times * edge for edge in self.box)
        return framed(large, (left, top, right, bottom))


def look(one: Look, name: str) -> str:
    """The element.

    name  of the group of radio buttons, letters and digits: another one for each on a page
    """
    return f'<div class="look">{img(one.shown(), one.alt)}{_sentences(one, name)}</div>'


def _sentences(one: Look, name: str) -> str:
    if not one.told:
        return ""
    if isinstance(one.picture, Gone) or one.heat is None:
        items = "".join(f'<li class="{_kind(told)}">{_said(told)}</li>' for told in one.told)
        return f"<ol>{items}</ol>"
    limit = limit_of(one.heat)  # one scale for all, so that they can be compared
    items = "".join(
        _choice(told, _map(one, told, heat, limit), f"{name}-{i}", name)
        for i, (told, heat) in enumerate(zip(one.told, one.heat, strict=True), 1)
    )
    alone = (
        f'<li class="alone"><input type="radio" name="{name}" id="{name}-0" checked>'
        f'<label for="{name}-0">the picture alone</label></li>'
    )
    bar = img(scale_bar(), "colour scale from blue, against, to orange, for", "bar")
    return (
        "<fieldset><legend>Point at a sentence, or choose it, to see where it shows</legend>"
        f'<ol>{alone}{items}</ol><p class="scale">-{limit:.2g} {bar} +{limit:.2g}</p></fieldset>'
    )


def _choice(told: Told, shown: str, key: str, name: str) -> str:
    return (
        f'<li class="{_kind(told)}"><input type="radio" name="{name}" id="{key}">'
        f'<label for="{key}">{_said(told)}</label>{shown}</li>'
    )


def _map(one: Look, told: Told, heat: np.ndarray, limit: float) -> str:
    judged = {None: "", True: ", supported", False: ", not supported"}[told.supported]
    alt = f"heat of '{told.text}': {place(heat)}{judged}"
    return img(one.map(heat, limit), alt, "over")


def _said(told: Told) -> str:
    numbers = [f"{told.role}, " * bool(told.role) + f"score {told.score:.3f}"]
    text = marked(told.text, told.other)[0] if told.other else escape(told.text)
    if told.chance is not None:
        numbers.append(f"chance {told.chance:.3f}")
    return f'<span>{text}</span> <span class="verdict">{verdict(told)}{", ".join(numbers)}</span>'


def verdict(told: Told) -> str:
    """Whether the picture supports the sentence, in words and with a sign."""
    if told.supported is None:
        return ""
    if told.supported:
        return '<b class="good"><span aria-hidden="true">&#10003;</span> supported</b> '
    return '<b class="bad"><span aria-hidden="true">&#10007;</span> not supported</b> '


def _kind(told: Told) -> str:
    return {None: "", True: "yes", False: "no"}[told.supported]
