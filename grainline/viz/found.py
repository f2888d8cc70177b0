"""What a search found, as parts of a page: how sure the answer is, and each hit sentence by sentence."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from PIL import Image

from grainline.viz.look import Look, look
from grainline.viz.page import Gone, Section, img, notes, short

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
    if one.picture is None:
        query = "" if title == one.query else f"<blockquote>{escape(one.query)}</blockquote>"
    else:
        query = img(one.picture, f"the query, {one.query}", "query")
    hits = "".join(_found(hit, place, f"q{number}h{place}") for place, hit in enumerate(one.found, 1))
    layout = "" if any(hit.look.told for hit in one.found) else "tiles"
    verdict = f"<p>{_sign(one.sure, said.capitalize())} {_why(one)}</p>"
    body = f'{verdict}{notes(one.notes)}<div class="{layout}">{hits}</div>'
    return Section(f"{number}. {title}", query + body, said)


def _why(one: Answered) -> str:
    if not one.found:
        return "Nothing was found."
    share = f"{100 * one.found[0].p:.1f} %"
    said = f"Of queries without a match, {share} score as high."
    if one.picture is not None:
        said = f"Of the pictures of the index, {share} have another one as near."
    return said if one.sure else f"{said} The pictures below are the nearest, not matches."


def _found(hit: Found, place: int, name: str) -> str:
    said = _sign(hit.sure, "sure" if hit.sure else "not sure")
    verdicts = [told.verdict for told in hit.look.told]
    shows = f", shows {verdicts.count('shows')} of {len(verdicts)} sentences" if verdicts else ""
    return (
        f'<article class="card"><h3>{place}. {escape(hit.path)}</h3>'
        f'<p class="score">score {hit.score:.3f}, p {hit.p:.3f}, {said}{shows}</p>'
        f"{look(hit.look, name)}</article>"
    )


def _sign(good: bool, said: str) -> str:
    """A verdict in words, with a sign of its own."""
    sign, kind = ("&#10003;", "good") if good else ("&#10007;", "bad")
    return f'<b class="{kind}"><span aria-hidden="true">{sign}</span> {escape(said)}</b>'
