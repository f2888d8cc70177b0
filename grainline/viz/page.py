"""The frame of a self-contained HTML page: title, contents, style, policy; pictures as data URLs.

Nothing is loaded from anywhere: a content security policy forbids it, and scripts with it. The page follows
the reader's light or dark theme and the width of the screen.
"""

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from grainline.errors import UserError
from grainline.files import WRITE_ERRORS, reason, write_text
from grainline.viz.style import STYLE

THUMBNAIL = 224  # longest side in pixels: sharp at the largest size at which a page shows it
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


class Section(NamedTuple):
    """A part of a page with a title of its own."""

    title: str
    body: str  # HTML in which everything that comes from data or from a user is escaped
    told: str = ""  # said beside the title in the list of contents


class Gone(NamedTuple):
    """What stands in the place of a picture that cannot be shown."""

    why: str


def write_page(path: str | Path, page: str) -> None:
    """Write a page, whole or not at all. Raises UserError if the place cannot be written."""
    path = Path(path)
    try:
        if path.is_dir():
            raise UserError(f"cannot write {path}: it is a folder; name a file")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, page)
    except WRITE_ERRORS as error:
        raise UserError(
            f"cannot write {path}: {reason(error)}; name a file in a folder you may write to"
        ) from None


def render_page(title: str, lead: str, sections: Sequence[Section], foot: Iterable[str] = ()) -> str:
    """A page as text.

    lead      HTML below the title, escaped like the bodies of sections
    sections  listed below the lead if there are several
    foot      sentences at the end, as text

    What cannot be written as UTF-8, such as parts of a file name, becomes a question mark.
    """
    parts = [_section(one, i) for i, one in enumerate(sections, 1)]
    said = "".join(f"<p>{escape(line)}</p>" for line in foot)
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n"
        f"<body><main><header><h1>{escape(title)}</h1>{lead}{_contents(sections)}</header>\n"
        + "\n".join(parts)
        + f"</main>\n<footer>{said}<p>Written by grainline. This page loads nothing from anywhere.</p>"
        "</footer></body></html>\n"
    )
    return page.encode("utf-8", "replace").decode()


def data_url(picture: Image.Image, side: int = THUMBNAIL) -> str:
    """A picture, shrunk to fit a square, as the text of a data URL (JPEG).

    >>> data_url(Image.new("RGB", (400, 300)))[:23]
    'data:image/jpeg;base64,'
    """
    small = picture.convert("RGB")
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    small.save(file, "jpeg", quality=88)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()


def img(picture: Image.Image | Gone, alt: str, kind: str = "") -> str:
    """A picture as an element, or a box that says why there is none.

    alt  what it shows, for readers who do not see it
    """
    if isinstance(picture, Gone):
        return f'<p class="gone">{escape(picture.why)}</p>'
    return f'<img class="{kind}" src="{data_url(picture)}" alt="{escape(alt)}">'


def summary(values: Mapping[str, str]) -> str:
    """What -> value, the most important first; shown large, but for what stands in further lines."""
    items = (f"<div><dt>{escape(what)}</dt><dd>{_large(value)}</dd></div>" for what, value in values.items())
    return f'<dl class="summary">{"".join(items)}</dl>'


def facts(values: Mapping[str, object], caption: str) -> str:
    """What -> value as a table of two columns."""
    rows = "".join(
        f'<tr><th scope="row">{escape(str(what))}</th><td>{escape(str(value))}</td></tr>'
        for what, value in values.items()
    )
    return f'<table class="facts"><caption>{escape(caption)}</caption><tbody>{rows}</tbody></table>'


def folded(title: str, body: str) -> str:
    """HTML that opens when asked for."""
    return f"<details><summary>{escape(title)}</summary>{body}</details>"


def notes(lines: Iterable[str]) -> str:
    """A list of remarks; nothing where there are none."""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<ul class="notes">{items}</ul>' if items else ""


def hint(text: str) -> str:
    """A sentence on how to read what follows."""
    return f'<p class="hint">{escape(text)}</p>'


def short(text: str, most: int) -> str:
    """A text of at most so many characters.

    >>> short("A dog runs over wet sand.", 12)
    'A dog run...'
    """
    return text if len(text) <= most else text[: most - 3].rstrip() + "..."


def _large(value: str) -> str:
    first, *more = value.split("\n")
    return escape(first) + "".join(f" <small>{escape(line)}</small>" for line in more)


def _contents(sections: Sequence[Section]) -> str:
    if len(sections) < 2:
        return ""
    items = "".join(
        f'<li><a href="#part-{i}">{escape(short(one.title, 60))}</a>'
        + (f" <small>{escape(one.told)}</small>" if one.told else "")
        + "</li>"
        for i, one in enumerate(sections, 1)
    )
    return f'<nav aria-label="Contents"><ul>{items}</ul></nav>'


def _section(one: Section, number: int) -> str:
    return (
        f'<section aria-labelledby="part-{number}"><h2 id="part-{number}">{escape(one.title)}</h2>'
        f"{one.body}</section>"
    )
