"""The frame of a self-contained HTML page: title, style, policy; pictures as data URLs.

Nothing is loaded from anywhere: a content security policy forbids it. The page follows the reader's light or
dark theme and the width of the screen.
"""

import base64
import io
import os
from html import escape
from pathlib import Path

from PIL import Image

from grainline.errors import UserError
from grainline.viz.style import STYLE

THUMBNAIL = 224  # longest side in pixels: sharp at the largest size at which a page shows it


def write_page(path: str | Path, page: str) -> None:
    """Write a page, whole or not at all. Raises UserError if the place cannot be written."""
    path = Path(path)
    beside = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(page, encoding="utf-8")
        os.replace(beside, path)
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}; name a file in a folder you may write to"
        ) from error


def render_page(title: str, body: str) -> str:
    """A page as text.

    body  HTML in which everything that comes from data or from a user is escaped
    """
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n"
        f"<body><main>{body}</main></body></html>\n"
    )


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


def img(picture: Image.Image, alt: str, kind: str = "") -> str:
    """A picture as an element.

    alt  what it shows, for readers who do not see it
    """
    return f'<img class="{kind}" src="{data_url(picture)}" alt="{escape(alt, quote=True)}">'
