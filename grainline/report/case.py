"""Single outcomes on a page: a card with images, texts, tables and heat.

A `Case` names its parts; templates/case.html lays them out. No script is needed for heat: sentences and
phrases are radio buttons, and the style sheet lays the map of the one that is pointed at, focused or checked
over the image.
"""

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from PIL import Image

from grainline.nn.upsample import FLOOR, FULL, place
from grainline.report.heatmap import (
    Box,
    LegendEntry,
    colours,
    dark_outside,
    dashed,
    framed,
    limit_of,
    outlined,
    overlay,
    ruled,
    scale_bar,
)
from grainline.report.page import THUMBNAIL, MissingImage, card, macro, render

LAYER = THUMBNAIL  # pixels of the longer side of a layer of heat, which is smooth
MIN_SIDE = 224  # pixels of the longer side of an image in which a box or outline is drawn
VERDICTS = {  # words, sign, class of the words, class of the line
    "": ("", "", "", ""),
    "shows": ("shows it", "✓", "good", "yes"),
    "cannot tell": ("cannot tell", "?", "open", "maybe"),
    "does not": ("does not", "✗", "bad", "no"),
}


class SentenceScore(NamedTuple):
    """A sentence, or a phrase, judged in an image."""

    text: str
    score: float
    p: float | None = None  # of the sentence, where it is known
    verdict: str = ""  # "shows", "cannot tell" or "does not"; "": not judged
    role: str = ""  # what the text is, where several are compared
    other: str = ""  # the text it is compared with: words that this one lacks are marked
    phrases: Sequence["SentenceScore"] = ()  # in the sentence, in its order; without phrases of their own
    place: str = ""  # where the score stands among others, shown instead of it

    @property
    def sign(self) -> tuple[str, str, str, str]:
        """How the verdict looks."""
        return VERDICTS[self.verdict]

    @property
    def marked(self) -> Markup | str:
        """The text, the words marked that `other` lacks."""
        return marked(self.text, self.other)[0] if self.other else self.text


class WholeImage(NamedTuple):
    """An image as it is, with the square of it that the model reads."""

    image: Image.Image
    square: Box  # in pixels of this image

    def marked(self) -> Image.Image:
        """The image with a line around the square, and dim where the model does not read it."""
        everything = (0, 0, *self.image.size)
        read_whole = tuple(map(round, self.square)) == everything
        return self.image if read_whole else dark_outside(self.image, self.square)

    def layer(self, heat: np.ndarray, limit: float, floor: float) -> Image.Image:
        """Heat of the square as colours with opacity, clear elsewhere, in the shape of the whole image."""
        size = self.image.size
        scale = LAYER / max(size)
        left, top, right, bottom = (round(scale * side) for side in self.square)
        out = Image.new("RGBA", (max(1, round(scale * size[0])), max(1, round(scale * size[1]))))
        colour = Image.fromarray(colours(np.asarray(heat, np.float64), limit, floor))
        out.paste(colour.resize((right - left, bottom - top), Image.Resampling.BILINEAR), (left, top))
        return out


class CaseImage(NamedTuple):
    """An image with the sentences of a text, each with its heat, and with boxes."""

    image: Image.Image | MissingImage  # the square that the model sees
    alt: str  # what the image is
    sentences: Sequence[SentenceScore] = ()
    heat: np.ndarray | None = None  # [S, H, W] signed, one of `texts` each, H and W those of the image
    box: Box | None = None  # what the texts speak of, in pixels of the image
    outline: np.ndarray | None = None  # [H, W] bool: what the texts speak of, over the image
    candidates: Sequence[Box] = ()  # boxes to choose from
    prediction: Box | None = None  # the one that the model chose
    left_out: str = ""  # which sentences and phrases of the text are not shown, in words
    contrast: bool = False  # heat is `nn.upsample.contrast`: its range is that of all such maps
    whole: WholeImage | None = None  # what a page shows in place of the square; without boxes
    first: int = 0  # the text whose map a page shows first, from 1; 0: none

    def texts(self) -> list[SentenceScore]:
        """The texts of the maps, where there are maps: each sentence, and right behind it its phrases."""
        return [text for sentence in self.sentences for text in (sentence, *sentence.phrases)]

    def colours(self) -> tuple[float, float]:
        """The end of the range of colours of all maps, and the size of heat up to which there is none."""
        assert self.heat is not None, "there is heat"
        assert len(self.heat) == len(self.texts()), "a map for each text"
        return (FULL, FLOOR) if self.contrast else (limit_of(self.heat), 0.0)

    def place(self, heat: np.ndarray) -> str:
        """The place where a map is strongest, in words."""
        return place(heat, self.colours()[1])

    def scale(self) -> tuple[str, Image.Image, str]:
        """The words before the colour scale, the scale, and the words behind it."""
        limit, floor = self.colours()
        low, high = f"-{limit:.2g}", f"+{limit:.2g}"
        if self.contrast:
            low, high = "fits less than other texts", "fits more"
        return low, scale_bar(floor=floor / limit), high

    def displayed(self) -> Image.Image | MissingImage:
        """The image as a page shows it."""
        if self.whole is not None:
            return self.whole.marked()
        return self.image if isinstance(self.image, MissingImage) else self._framed(self.image)

    def over(self, heat: np.ndarray) -> Image.Image:
        """The image with one of the maps laid over it, or where the image is whole its colours alone."""
        if self.whole is not None:
            return self.whole.layer(heat, *self.colours())
        assert isinstance(self.image, Image.Image), "there is an image"
        return self._framed(overlay(self.image, heat, *self.colours()))

    def _framed(self, image: Image.Image) -> Image.Image:
        """The image with its boxes or outline, enlarged where it is small: lines must hide little."""
        if self.box is None and self.outline is None and not self.candidates:
            return image
        times = -(-MIN_SIDE // max(image.size))

        def scaled(box: Box) -> Box:
            return box[0] * times, box[1] * times, box[2] * times, box[3] * times

        large = image.resize((times * image.width, times * image.height), Image.Resampling.NEAREST)
        if self.outline is not None:
            large = outlined(large, self.outline.repeat(times, 0).repeat(times, 1))
        large = ruled(large, [scaled(box) for box in self.candidates])
        if self.box is not None:
            large = framed(large, scaled(self.box))
        return large if self.prediction is None else dashed(large, scaled(self.prediction))


class Panel(NamedTuple):
    """An image, or a text, in a row of such: a candidate, or one of some images that are compared."""

    words: str  # a string, or Markup
    image: Image.Image | MissingImage | None = None
    below: str = ""
    legend: Sequence[LegendEntry] = ()  # below that
    alt: str = ""  # alternative text; "": the text above and below
    right: bool | None = None  # whether it is the right one, where that is the question


class Row(NamedTuple):
    """Panels side by side, or texts one below the other, and paragraphs above them."""

    panels: Sequence[Panel]
    head: str = ""  # its lines are paragraphs
    large: bool = False


class Table(NamedTuple):
    """Cells below a head; the first column names its row."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]  # strings or Markup
    words: Sequence[int] = ()  # columns of words, aligned left, beside the first


class Case(NamedTuple):
    """A single outcome. Strings are plain text, or Markup; parts that are empty are left out."""

    title: str
    detail: str = ""  # small, beside the title
    right: bool | None = None  # the sign before the title; None: there is no right and wrong
    note: str = ""  # a line below the title
    quote: str = ""  # a text that the case is about
    image: Image.Image | MissingImage | None = None  # an image that the case is about
    alt: str = ""  # of this image
    texts: Sequence[tuple[str, str]] = ()  # beside the image: names and texts
    chart: Markup = Markup()  # beside the image
    table: Table | None = None
    rows: Sequence[Row] = ()
    look_title: str = ""  # above the image with heat
    look: CaseImage | None = None


class CaseList(NamedTuple):
    """Cases in an order, as a part of a page."""

    title: str
    hint: str  # the order, and how to read them
    cases: Sequence[Case]


def cases_html(cases: Sequence[Case], name: str) -> Markup:
    """Cases one below the other. name: of their radio buttons, another one for each list on a page"""
    return render("case.html", cases=cases, name=name)


def look(one: CaseImage, name: str) -> Markup:
    """The image with its texts and their heat. name: of its radio buttons, as in `cases_html`"""
    return macro("look.html", "look", one, name)


def table_html(table: Table) -> Markup:
    """A table in a frame."""
    return card([macro("parts.html", "cells", table)])


def _margin(difference: float) -> str:
    """Three decimals, or one digit and its power of ten where these would be zeros."""
    return f"{difference:.3f}" if difference >= 0.0005 or difference == 0 else f"{difference:.0e}"


def standing(rank: int, scores: Sequence[float]) -> str:
    """A rank, and how far it is from the next one, or from the first.

    scores  of all candidates, the highest first

    >>> [standing(rank, [0.5, 0.25, 0.125]) for rank in (1, 3)]
    ['rank 1, 0.250 ahead of the next', 'rank 3, 0.375 behind the first']
    """
    if rank > 1:
        return f"rank {rank:,}, {_margin(scores[0] - scores[rank - 1])} behind the first"
    return "rank 1" + (f", {_margin(scores[0] - scores[1])} ahead of the next" if len(scores) > 1 else "")


def lead(margin: float) -> str:
    """Whether the right one has the higher score, and by how much.

    >>> [lead(margin) for margin in (0.25, 0.0, -0.125)]
    ['right by 0.250', 'wrong, tied by 0.000', 'wrong by 0.125']
    """
    return f"{'right' if margin > 0 else 'wrong' if margin else 'wrong, tied'} by {_margin(abs(margin))}"


def ahead(margin: float) -> str:
    """A score beside one other.

    >>> [ahead(margin) for margin in (0.25, 0.0, -0.00002)]
    ['ahead by 0.250', 'tied', 'behind by 2e-05']
    """
    return f"{'ahead' if margin > 0 else 'behind'} by {_margin(abs(margin))}" if margin else "tied"


def marked(one: str, other: str) -> tuple[Markup, Markup]:
    """Both texts as HTML, with the words marked that only one of them has.

    >>> marked("A red dog.", "A blue dog.")
    (Markup('A <mark>red</mark> dog.'), Markup('A <mark>blue</mark> dog.'))
    """
    a, b = re.findall(r"\s+|\S+", one), re.findall(r"\s+|\S+", other)
    first, second = Markup(), Markup()
    for kind, a0, a1, b0, b1 in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        form = Markup("{}") if kind == "equal" else Markup("<mark>{}</mark>")
        first += form.format("".join(a[a0:a1])) if a0 < a1 else ""
        second += form.format("".join(b[b0:b1])) if b0 < b1 else ""
    return first, second
