"""Patterns of paths: braces as in WebDataset ({0000..0004}, {a,b}) and the wildcards of the shell; and what a
URL is called on a disk.
"""

import glob
import os
import re
from itertools import product
from urllib.parse import unquote

from grainline.data.sources.common import some
from grainline.data.sources.plain import HELP
from grainline.errors import UserError

_MOST = 1_000_000  # a typing mistake in a range shall not fill the memory


def is_pattern(path: str) -> bool:
    """Whether a path stands for several. What exists under just this name is itself.

    >>> is_pattern("train-{0..4}.tar"), is_pattern("train-*.tar"), is_pattern("train-0.tar")
    (True, True, False)
    """
    return not os.path.exists(path) and (braces(path) != [path] or glob.has_magic(path))


def expand(path: str) -> list[str]:
    """The paths that a pattern stands for, wildcards sorted. Raises UserError if one is not there."""
    if not is_pattern(path):
        return [path]
    found: list[str] = []
    missing: list[str] = []
    for one in braces(path):
        matches = sorted(glob.glob(one)) if glob.has_magic(one) and not os.path.exists(one) else [one]
        found += matches
        missing += [one] if not matches or not os.path.exists(matches[0]) else []
    if missing:
        raise UserError(f"{path} stands for {some(missing)}, where nothing is (from {os.getcwd()}); {HELP}")
    return found


def braces(path: str) -> list[str]:
    """All readings of the braces in a path; numbers keep their zeros.

    >>> braces("{train,dev}-{08..10}.tar")[:4]
    ['train-08.tar', 'train-09.tar', 'train-10.tar', 'dev-08.tar']
    """
    pieces = re.split(r"(\{[^{}]*\})", path)
    choices = [_choices(piece, path) if number % 2 else [piece] for number, piece in enumerate(pieces)]
    return ["".join(choice) for choice in product(*choices)]


def _choices(brace: str, path: str) -> list[str]:
    inside = brace[1:-1]
    span = re.fullmatch(r"(\d+)\.\.(\d+)", inside)
    if span:
        first, last = int(span[1]), int(span[2])
        if not first <= last < first + _MOST:
            raise UserError(
                f"{brace} in {path} is no range of at most {_MOST} numbers, smallest first; {HELP}"
            )
        return [f"{number:0{len(span[1])}d}" for number in range(first, last + 1)]
    return inside.split(",") if "," in inside else [brace]


def name_of(url: str) -> str:
    """The file name of a URL or a path.

    >>> name_of("https://a.org/vg/23%20a.jpg?size=2"), name_of("vg/2390970.jpg")
    ('23 a.jpg', '2390970.jpg')
    """
    if "://" in url:  # no urlsplit, which is an error for http://[
        url = unquote(re.split("[?#]", url.partition("://")[2].partition("/")[2])[0])
    return url.rpartition("/")[2]
