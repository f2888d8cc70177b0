"""An image with the sentences of a text beside it: each of them shows its heat when it is pointed at, and so
does each of the phrases that are listed below their sentence.

No script is needed: sentences and phrases are radio buttons, and the style sheet lays the heat of the
one that is chosen, focused or hovered over the image. Without heat it is an image and a list.
"""

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from PIL import Image

from grainline.nn.upsample import FLOOR, FULL, NOTHING, place
from grainline.report.heatmap import Box, dashed, framed, limit_of, outlined, overlay, ruled, scale_bar
from grainline.report.page import MissingImage, Section, macro, render, short

# Two texts that are compared: the words marked that only one of them has.


MARK = Markup("<mark>{}</mark>")


def marked(one: str, other: str) -> tuple[Markup, Markup]:
    """Both texts as HTML, with the words marked that only one of them has.

    >>> marked("A red dog.", "A blue dog.")
    (Markup('A <mark>red</mark> dog.'), Markup('A <mark>blue</mark> dog.'))
    """
    a, b = re.findall(r"\s+|\S+", one), re.findall(r"\s+|\S+", other)
    first, second = Markup(), Markup()
    for kind, a0, a1, b0, b1 in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        form = Markup("{}") if kind == "equal" else MARK
        first += form.format("".join(a[a0:a1])) if a0 < a1 else ""
        second += form.format("".join(b[b0:b1])) if b0 < b1 else ""
    return first, second


LEAST = 224  # pixels of the longer side of an image in which a box or outline is drawn


class Sign(NamedTuple):
    """How a verdict looks."""

    said: str = ""
    sign: str = ""
    kind: str = ""  # class of the words
    item: str = ""  # class of the line


VERDICTS = {
    "": Sign(),  # not judged
    "shows": Sign("shows it", "✓", "good", "yes"),
    "cannot tell": Sign("cannot tell", "?", "open", "maybe"),
    "does not": Sign("does not", "✗", "bad", "no"),
}


class SentenceScore(NamedTuple):
    """A sentence, or a phrase, judged in an image."""

    text: str
    score: float
    p: float | None = None  # of the sentence, where it is known
    verdict: str = ""  # "shows", "cannot tell" or "does not"; "": not judged
    role: str = ""  # what the text is, where several are compared
    other: str = ""  # the text it is compared with: words that this one lacks are marked
    phrases: Sequence["SentenceScore"] = ()  # in the sentence, in its order; they have text and score alone

    @property
    def sign(self) -> Sign:
        """How the verdict looks."""
        return VERDICTS[self.verdict]

    @property
    def marked(self) -> Markup | str:
        """The text, the words marked that `other` lacks."""
        return marked(self.text, self.other)[0] if self.other else self.text


class Look(NamedTuple):
    """An image and what is told of it."""

    image: Image.Image | MissingImage  # the square that the model sees
    alt: str  # what the image is
    sentences: Sequence[SentenceScore] = ()
    heat: np.ndarray | None = None  # [S, H, W] signed, one of `texts` each, H and W those of the image
    box: Box | None = None  # what the texts speak of, in pixels of the image
    outline: np.ndarray | None = None  # [H, W] bool: what the texts speak of, over the image
    others: Sequence[Box] = ()  # boxes to choose from
    chosen: Box | None = None  # the one that was chosen
    left_out: str = ""  # which sentences and phrases of the text are not shown, in words
    limit: float | None = None  # end of the range of colours; None: the largest size of any heat
    contrast: bool = False  # heat is `nn.upsample.contrast`: its range is that of all such maps

    def texts(self) -> list[SentenceScore]:
        """What has heat, if anything has: each sentence, and right behind it its phrases."""
        return [one for told in self.sentences for one in (told, *told.phrases)]

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

    @property
    def nothing(self) -> str:
        """What `place` says of a map without colour, which would look like one that failed to load."""
        return NOTHING

    def place(self, number: int) -> str:
        """Where the map of a text is strongest, in words; texts are numbered from 1."""
        assert self.heat is not None, "there is heat"
        assert len(self.heat) == len(self.texts()), "a map for each text"
        return place(self.heat[number - 1], self.floor)

    def scale(self) -> tuple[str, Image.Image, str]:
        """What stands before the colour scale, the scale, and what stands behind it."""
        limit, unit = self.range(), " times the reach of other texts" * self.contrast
        return f"-{limit:.2g}", scale_bar(floor=self.floor / limit), f"+{limit:.2g}{unit}"

    def shown(self) -> Image.Image | MissingImage:
        """The image with its box or outline, enlarged where it is small: lines must hide little."""
        return self.image if isinstance(self.image, MissingImage) else self._framed(self.image)

    def map(self, heat: np.ndarray, limit: float) -> Image.Image:
        """The image with one of the maps, and box and outline laid over it."""
        assert isinstance(self.image, Image.Image), "there is an image"
        return self._framed(overlay(self.image, heat, limit, self.floor))

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


def look(one: Look, name: str) -> Markup:
    """The element.

    name  of the group of radio buttons, letters and digits: another one for each on a page
    """
    return macro("look.html", "look", one, name)


# What a search found, as parts of a page: how sure the answer is, and each hit sentence by sentence.


TITLE = 90  # characters of a query in its heading; a longer one stands below it as well


class Found(NamedTuple):
    """An image that was found."""

    path: str  # below the folder of images
    score: float
    p: float
    sure: bool
    look: Look  # the image with the sentences of the query


class Answered(NamedTuple):
    """A query with what was found, best first."""

    query: str  # a text, or the name of an image
    image: Image.Image | MissingImage | None  # the query, if it is an image
    sure: bool
    notes: Sequence[str]
    found: Sequence[Found]


def answered(one: Answered, number: int) -> Section:
    """The part of a page about one query; queries are numbered from 1."""
    said = "sure match" if one.sure else "no sure match"
    title = short(one.query, TITLE)
    body = render("found.html", one=one, number=number, title=title, said=said, why=_why(one))
    return Section(f"{number}. {title}", body, said)


def _why(one: Answered) -> str:
    if not one.found:
        return "Nothing was found."
    share = f"{100 * one.found[0].p:.1f} %"
    said = f"Of queries without a match, {share} score as high."
    if one.image is not None:
        said = f"Of the images of the index, {share} have another one as near."
    return said if one.sure else f"{said} The images below are the nearest, not matches."
