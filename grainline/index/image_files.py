"""The pictures below a folder: which there are, whether they changed, and their bytes.

No path leads out of the folder: a link to a place outside is named as damage and never followed.
"""

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from grainline.data.formats.common import IMAGE_SUFFIXES
from grainline.data.formats.folder import files_below, suffix
from grainline.data.formats.plain import read_plain
from grainline.data.record import MISSING_IMAGE, UNREADABLE_FILE, Damaged
from grainline.errors import UserError
from grainline.index.segment import Row

OUTSIDE = "link out of the folder"
CHANGED = "changed since it was indexed"


class Found(NamedTuple):
    """A picture file as the file system shows it, unread."""

    path: str  # below the root, with slashes
    size: int
    mtime_ns: int


class Read(NamedTuple):
    """A picture file, read."""

    row: Row
    data: bytes


def root_of(path: str | Path) -> Path:
    """The folder of pictures as an absolute path. UserError where there is none."""
    root = Path(path).resolve()
    if not root.is_dir():
        raise UserError(f"no folder of pictures at {path}; name the folder that the pictures lie in")
    return root


def pictures_below(root: Path) -> list[str]:
    """All pictures below the root, sorted. Hidden files and folders are left alone."""
    return [name for name in files_below(str(root)) if suffix(name) in IMAGE_SUFFIXES]


def chosen(root: Path, paths: Sequence[str | Path]) -> list[str]:
    """The pictures that some paths mean, files or folders, below the root, sorted; each once."""
    found: set[str] = set()
    for path in paths:
        name = relative(root, path)
        whole = root / name
        if whole.is_dir():
            below = pictures_below(whole)
            if not below:
                raise UserError(f"{path} holds no pictures ({', '.join(IMAGE_SUFFIXES)})")
            found |= {os.path.normpath(os.path.join(name, one)) for one in below}
        elif not whole.is_file():
            raise UserError(f"no picture at {path}; name files or folders below {root}")
        elif suffix(name) not in IMAGE_SUFFIXES:
            raise UserError(f"{path} is no picture; allowed are {', '.join(IMAGE_SUFFIXES)}")
        else:
            found.add(name)
    return sorted(found)


def relative(root: Path, path: str | Path) -> str:
    """A path as it stands below the root; it may be given from there or from here. UserError outside of it.

    >>> relative(Path("/photos"), "/photos/cats/../a.jpg"), relative(Path("/photos"), "cats/b.jpg")
    ('a.jpg', 'cats/b.jpg')
    """
    here = Path(os.path.abspath(path))
    if _real(here) == root:
        return "."
    there = Path(os.path.normpath(root / path))
    for whole in (_real(here.parent) / here.name, there):  # a link at the end is judged when it is read
        if whole.is_relative_to(root):
            return whole.relative_to(root).as_posix()
    raise UserError(f"{path} is not below {root}, the folder of pictures of this index")


def look(root: Path, path: str) -> Found:
    """Size and time of a picture. Raises Damaged."""
    try:
        confine(root, path)
        state = os.stat(root / path)
    except FileNotFoundError as error:
        raise Damaged(MISSING_IMAGE, path) from error
    except (OSError, ValueError) as error:
        raise Damaged(UNREADABLE_FILE, f"{path} ({error})") from error
    return Found(path, state.st_size, state.st_mtime_ns)


def read(root: Path, found: Found) -> Read:
    """The bytes of a picture and the row they make. Raises Damaged.

    Size and time are those from before it was read: if it is changed meanwhile, the next refresh sees it.
    """
    try:
        data = read_plain(root / found.path)
    except FileNotFoundError as error:
        raise Damaged(MISSING_IMAGE, found.path) from error
    except OSError as error:
        raise Damaged(UNREADABLE_FILE, f"{found.path} ({error.strerror})") from error
    return Read(Row(found.path, hashlib.sha256(data).hexdigest(), found.size, found.mtime_ns), data)


def confine(root: Path, path: str) -> Path:
    """The file that a path below the root means. Raises Damaged where it lies outside."""
    real = _real(root / path)
    if not real.is_relative_to(root):
        raise Damaged(OUTSIDE, f"{path} -> {real}")
    return real


def unchanged(root: Path, row: Row) -> bytes:
    """The bytes of an indexed picture as they were indexed. Raises Damaged where they are others, or gone."""
    try:
        real = confine(root, row.path)
        # Size first: what stands there now may be endless, or a pipe that nobody writes into.
        data = real.read_bytes() if real.is_file() and real.stat().st_size == row.size else b""
    except (OSError, ValueError) as error:
        raise Damaged(UNREADABLE_FILE, f"{row.path} ({error})") from error
    if hashlib.sha256(data).hexdigest() != row.sha256:
        raise Damaged(CHANGED if real.exists() else MISSING_IMAGE, row.path)
    return data


def covered(paths: Iterable[str], by: Sequence[str]) -> list[str]:
    """Those of the paths that are among `by`, or lie in a folder that is.

    >>> covered(["a/b.jpg", "a/c.jpg", "ab.jpg"], ["a"])
    ['a/b.jpg', 'a/c.jpg']
    """
    wanted = set(by)
    if "." in wanted:
        return list(paths)
    return [
        path
        for path in paths
        if path in wanted or any(str(parent) in wanted for parent in Path(path).parents)
    ]


def _real(path: Path) -> Path:
    """Without links. Path.resolve raises RuntimeError where links lead in a circle, up to Python 3.12."""
    return Path(os.path.realpath(path))
