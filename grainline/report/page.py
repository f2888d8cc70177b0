"""Self-contained HTML pages, from the jinja2 templates in `templates/`; images are data URLs.

Nothing is loaded from anywhere: a content security policy forbids it, and scripts with it. The page follows
the reader's light or dark theme and the width of the screen. Templates escape every string but `Markup`,
which other templates made. jinja2 is imported when the first template is rendered.
"""

import base64
import io
from collections.abc import Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup
from PIL import Image

from grainline.errors import UserError
from grainline.files import WRITE_ERRORS, is_stream, reason, write_text
from grainline.nn.upsample import NOTHING

TEMPLATES = Path(__file__).parent / "templates"
THUMBNAIL = 224  # longest side in pixels: sharp at the size of one of several images side by side
LARGE = 640  # of an image that stands by itself; more would make pages of some images larger than 5 MB


class Section(NamedTuple):
    """A part of a page with a title of its own."""

    title: str
    body: str  # Markup; a plain string is escaped
    detail: str = ""  # beside the title in the list of contents


class MissingImage(NamedTuple):
    """A placeholder for an image that cannot be shown."""

    why: str


def write_page(path: str | Path, page: str) -> None:
    """Write a page, whole or not at all. Raises UserError if the place cannot be written."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if is_stream(path):
            path.write_text(page, encoding="utf-8", errors="backslashreplace")
        else:
            write_text(path, page)
    except WRITE_ERRORS as error:
        raise UserError(f"cannot write {path}: {reason(error)}; name another file") from None


def render_page(title: str, lead: str, sections: Sequence[Section], foot: Iterable[str] = ()) -> str:
    """A page as text.

    lead      Markup below the title; a plain string is escaped
    sections  listed below the lead if there are several
    foot      sentences at the end, as text

    What cannot be written as UTF-8, such as parts of a file name, becomes a question mark.
    """
    page = render("page.html", title=title, lead=lead, sections=sections, foot=foot)
    return page.encode("utf-8", "replace").decode()


def render(template: str, **values: Any) -> Markup:
    """A file of `templates/` with these values. A name that the template lacks is an error."""
    return Markup(_environment().get_template(template).render(values))


def macro(template: str, name: str, *values: Any) -> Markup:
    """A macro of a file of `templates/` with these values."""
    return Markup(getattr(_environment().get_template(template).module, name)(*values))


summary = partial(macro, "parts.html", "summary")
"""Names and values in large type, the most important first; further lines of a value are small."""
facts = partial(macro, "parts.html", "facts")
"""A mapping of names to values as a table of two columns, and its caption."""
folded = partial(macro, "parts.html", "folded")
"""A title, and HTML in a <details> element."""
notes = partial(macro, "parts.html", "notes")
"""A list of remarks; empty for no lines."""
hint = partial(macro, "parts.html", "hint")
"""A sentence of explanation."""
card = partial(macro, "parts.html", "card")
"""A list of parts in one frame."""


def data_url(image: Image.Image, side: int = THUMBNAIL) -> str:
    """An image, shrunk to fit a square, as the text of a data URL: JPEG, WebP of one with transparency.

    >>> data_url(Image.new("RGB", (400, 300)))[:23]
    'data:image/jpeg;base64,'
    """
    kind, mode = ("webp", "RGBA") if image.mode == "RGBA" else ("jpeg", "RGB")
    small = image.convert(mode)
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    small.save(file, kind, quality=88, method=2)  # of WebP: a third of the default's time, a tenth more bytes
    return f"data:image/{kind};base64," + base64.b64encode(file.getvalue()).decode()


def short(text: str, limit: int) -> str:
    """A text of at most so many characters.

    >>> short("A dog runs over wet sand.", 12)
    'A dog run...'
    """
    return text if len(text) <= limit else text[: limit - 3].rstrip() + "..."


@cache
def _environment() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    env = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {"data_url": data_url, "short": short}
    env.globals |= {"LARGE": LARGE, "THUMBNAIL": THUMBNAIL, "NOTHING": NOTHING}
    env.tests["gone"] = lambda image: isinstance(image, MissingImage)
    return env
