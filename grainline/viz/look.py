"""A picture with the sentences of a text beside it: each of them shows its heat when it is pointed at, and so
does each of the phrases that are listed below their sentence.

No script is needed: sentences and phrases are radio buttons, and the style sheet (LOOK) lays the heat of the
one that is chosen, focused or hovered over the picture. Without heat it is a picture and a list.
"""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np
from PIL import Image

from grainline.viz.heat import FLOOR, FULL, NOTHING, place
from grainline.viz.marked import marked
from grainline.viz.overlay import Box, dashed, framed, limit_of, outlined, overlay, ruled, scale_bar
from grainline.viz.page import Gone, hint, img

LEAST = 224  # pixels of the longer side of a picture in which a box or outline is drawn


class Sign(NamedTuple):
    """How a verdict looks."""

    said: str
    sign: str
    kind: str  # class of the words
    item: str  # class of the line


VERDICTS = {
    "shows": Sign("shows it", "&#10003;", "good", "yes"),
    "cannot tell": Sign("cannot tell", "?", "open", "maybe"),
    "does not": Sign("does not", "&#10007;", "bad", "no"),
}


class Told(NamedTuple):
    """A sentence, or a phrase, judged in a picture."""

    text: str
    score: float
    p: float | None = None  # of the sentence, where it is known
    verdict: str = ""  # "shows", "cannot tell" or "does not"; "": not judged
    role: str = ""  # what the text is, where several are compared
    other: str = ""  # the text it is compared with: words that this one lacks are marked
    phrases: Sequence["Told"] = ()  # in the sentence, in its order; they have text and score alone


class Look(NamedTuple):
    """A picture and what is told of it."""

    picture: Image.Image | Gone  # the square that the model sees
    alt: str  # what the picture is
    told: Sequence[Told] = ()
    heat: np.ndarray | None = None  # [S, H, W] signed, one of `texts` each, H and W those of the picture
    box: Box | None = None  # what the texts speak of, in pixels of the picture
    outline: np.ndarray | None = None  # [H, W] bool: what the texts speak of, over the picture
    others: Sequence[Box] = ()  # boxes to choose from
    chosen: Box | None = None  # the one that was chosen
    left_out: str = ""  # which sentences and phrases of the text are not shown, in words
    limit: float | None = None  # end of the range of colours; None: the largest size of any heat
    contrast: bool = False  # heat is `viz.heat.contrast`: its range is that of all such maps

    def texts(self) -> list[Told]:
        """What has heat, if anything has: each sentence, and right behind it its phrases."""
        return [one for told in self.told for one in (told, *told.phrases)]

    def range(self) -> float:
        """The end of the range of colours of all maps."""
        assert self.heat is not None, "there is heat"
        if self.contrast:
            return FULL
        return limit_of(self.heat) if self.limit is None else self.limit

    @property
    def floor(self) -> float:
        """The size of heat up to which there is no colour."""
        return FLOOR if self.contrast else 0.0

    def scale(self) -> tuple[str, Image.Image, str]:
        """What stands before the colour scale, the scale, and what stands behind it."""
        limit, unit = self.range(), " times the reach of other texts" * self.contrast
        return f"-{limit:.2g}", scale_bar(floor=self.floor / limit), f"+{limit:.2g}{unit}"

    def shown(self) -> Image.Image | Gone:
        """The picture with its box or outline, enlarged where it is small: lines must hide little."""
        return self.picture if isinstance(self.picture, Gone) else self._framed(self.picture)

    def map(self, heat: np.ndarray, limit: float) -> Image.Image:
        """The picture with one of the maps, and box and outline laid over it."""
        assert isinstance(self.picture, Image.Image), "there is a picture"
        return self._framed(overlay(self.picture, heat, limit, self.floor))

    def _framed(self, image: Image.Image) -> Image.Image:
        if self.box is None and self.outline is None and not self.others:
            return image
        times = -(-LEAST // max(image.size))
        large = image.resize((times * image.width, times * image.height), Image.Resampling.NEAREST)
        if self.outline is not None:
            large = outlined(large, self.outline.repeat(times, 0).repeat(times, 1))
        large = ruled(large, [_times(box, times) for box in self.others])
        if self.box is not None:
            large = framed(large, _times(self.box, times))
        return large if self.chosen is None else dashed(large, _times(self.chosen, times))


def _times(box: Box, times: int) -> Box:
    left, top, right, bottom = (times * edge for edge in box)
    return left, top, right, bottom


def look(one: Look, name: str) -> str:
    """The element.

    name  of the group of radio buttons, letters and digits: another one for each on a page
    """
    return f'<div class="look">{img(one.shown(), one.alt)}{_sentences(one, name)}</div>'


def _sentences(one: Look, name: str) -> str:
    if not one.told:
        return ""
    left_out = hint(one.left_out) if one.left_out else ""
    if isinstance(one.picture, Gone) or one.heat is None:
        return f"<div><ol>{_items(one, [_said(told) for told in one.texts()])}</ol>{left_out}</div>"
    limit = one.range()  # one scale for all, so that they can be compared
    choices = [
        _choice(told, _flat(one, heat) + _map(one, told, heat, limit), f"{name}-{i}", name)
        for i, (told, heat) in enumerate(zip(one.texts(), one.heat, strict=True), 1)
    ]
    alone = (
        f'<li class="alone"><input type="radio" name="{name}" id="{name}-0" checked>'
        f'<label for="{name}-0">the picture alone</label></li>'
    )
    what = "a sentence or a phrase" if any(told.phrases for told in one.told) else "a sentence"
    low, bar, high = one.scale()
    shown = img(bar, "colour scale from blue, against, to orange, for", "bar")
    return (
        f"<fieldset><legend>Point at {what}, or choose it, to see where it shows</legend>"
        f'<ol>{alone}{_items(one, choices)}</ol><p class="scale">{low} {shown} {high}</p>'
        f"{left_out}</fieldset>"
    )


def _items(one: Look, shown: Sequence[str]) -> str:
    """The list of sentences, each with the list of its phrases.

    shown  for each of `texts` what stands in its place
    """
    parts = iter(shown)
    return "".join(_item(told, next(parts), [next(parts) for _ in told.phrases]) for told in one.told)


def _item(told: Told, shown: str, phrases: Sequence[str]) -> str:
    listed = "".join(f"<li>{phrase}</li>" for phrase in phrases)
    below = f'<ul class="phrases" aria-label="its phrases">{listed}</ul>' if listed else ""
    return f'<li class="{_kind(told)}">{shown}{below}</li>'


def _choice(told: Told, shown: str, key: str, name: str) -> str:
    return f'<input type="radio" name="{name}" id="{key}"><label for="{key}">{_said(told)}</label>{shown}'


def _map(one: Look, told: Told, heat: np.ndarray, limit: float) -> str:
    said = f", {VERDICTS[told.verdict].said}" if told.verdict else ""
    alt = f"heat of '{told.text}': {place(heat, one.floor)}{said}"
    return img(one.map(heat, limit), alt, "over")


def _flat(one: Look, heat: np.ndarray) -> str:
    """Says so where a map has no colour, which would look like a map that failed to load."""
    return f'<small class="flat">{NOTHING}</small>' * (place(heat, one.floor) == NOTHING)


def _said(told: Told) -> str:
    numbers = [f"{told.role}, " * bool(told.role) + f"score {told.score:.3f}"]
    text = marked(told.text, told.other)[0] if told.other else escape(told.text)
    if told.p is not None:
        numbers.append(f"p {told.p:.3f}")
    return f'<span>{text}</span> <span class="verdict">{verdict(told)}{", ".join(numbers)}</span>'


def verdict(told: Told) -> str:
    """Whether the image shows the sentence, in words and with a sign."""
    if not told.verdict:
        return ""
    one = VERDICTS[told.verdict]
    return f'<b class="{one.kind}"><span aria-hidden="true">{one.sign}</span> {one.said}</b> '


def _kind(told: Told) -> str:
    return VERDICTS[told.verdict].item if told.verdict else ""
