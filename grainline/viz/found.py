"""What a search found, as parts of a page: how sure the answer is, and each hit sentence by sentence."""

from collections.abc import Sequence
from typing import NamedTuple

from PIL import Image

from grainline.viz.look import Look
from grainline.viz.page import Gone, Section, render, short

TITLE = 90  # characters of a query in its heading; a longer one stands below it as well


class Found(NamedTuple):
    """A picture that was found."""

    path: str  # below the folder of pictures
    score: float
    p: float
    sure: bool
    look: Look  # the picture with the sentences of the query


class Answered(NamedTuple):
    """A query with what was found, best first."""

    query: str  # a text, or the name of a picture
    picture: Image.Image | Gone | None  # the query, if it is a picture
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
    if one.picture is not None:
        said = f"Of the pictures of the index, {share} have another one as near."
    return said if one.sure else f"{said} The pictures below are the nearest, not matches."
