"""Image files below a folder: list, stat and read them.

No path leads out of the folder: a link to a file outside counts as a corrupt image and is never followed.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from grainline.data.formats.common import IMAGE_SUFFIXES
from grainline.data.formats.folder import files_below, suffix, without
from grainline.data.formats.storage import read_plain
from grainline.data.record import Cause, CorruptSample
from grainline.errors import UserError, path_of
from grainline.index.store import Row

OUTSIDE = "link out of the folder"
CHANGED = "changed since it was indexed"


def root_of(path: str | Path) -> Path:
    """The folder of images as an absolute path. UserError where there is none."""
    root = path_of(path, "the folder of images").resolve()
    if not root.is_dir():
        raise UserError(f"no folder of images at {path}; name the folder that the images lie in")
    return root


def images_below(root: Path, exclude: Sequence[str] = ()) -> tuple[list[str], tuple[str, ...]]:
    """All images below the root, sorted, and a remark on those that are left out (`data.formats.folder`)."""
    return without([name for name in files_below(str(root)) if suffix(name) in IMAGE_SUFFIXES], exclude)


def expand_paths(root: Path, paths: Sequence[str | Path]) -> list[str]:
    """The images at paths of files or folders below the root: sorted, without duplicates."""
    names: set[str] = set()
    for path in paths:
        name = relative(root, path)
        whole = root / name
        if whole.is_dir():
            below, _ = images_below(whole)
        elif whole.is_file():
            below = [""] if suffix(name) in IMAGE_SUFFIXES else []
        elif os.path.isfile(path):
            raise UserError(f"{path} lies outside {root}, the folder of this index")
        else:
            raise UserError(f"no image at {path}; name files or folders below {root}")
        if not below:
            raise UserError(f"{path} is or holds no image; allowed are {', '.join(IMAGE_SUFFIXES)}")
        names |= {os.path.normpath(os.path.join(name, one)) for one in below}
    return sorted(names)


def relative(root: Path, path: str | Path) -> str:
    """A path relative to the root, given relative to it or to the working folder. UserError outside it.

    >>> relative(Path("/photos"), "/photos/cats/../a.jpg"), relative(Path("/photos"), "cats/b.jpg")
    ('a.jpg', 'cats/b.jpg')
    """
    absolute = Path(os.path.abspath(path_of(path, "a path of images")))
    if _real(absolute) == root:
        return "."
    below = Path(os.path.normpath(root / path))
    # a link at the end is checked when it is read
    for whole in (_real(absolute.parent) / absolute.name, below):
        if whole.is_relative_to(root):
            return whole.relative_to(root).as_posix()
    raise UserError(f"{path} lies outside {root}, the folder of this index")


def stat_image(root: Path, path: str) -> Row:
    """The row of an image, unread: without its sha256. Raises CorruptSample."""
    with _read_errors(path):
        state = os.stat(confine(root, path))
    return Row(path, "", state.st_size, state.st_mtime_ns)


def read_image(root: Path, file: Row) -> tuple[Row, bytes]:
    """The row and the bytes of an image. Raises CorruptSample.

    Size and time are those from before it was read, so the next refresh detects a change during reading.
    """
    with _read_errors(file.path):
        data = read_plain(root / file.path)
    return file._replace(sha256=hashlib.sha256(data).hexdigest()), data


def confine(root: Path, path: str) -> Path:
    """The file at a path below the root, without links. Raises CorruptSample where it lies outside."""
    real = _real(root / path)
    if not real.is_relative_to(root):
        raise CorruptSample(OUTSIDE, f"{path} -> {real}")
    return real


def read_indexed(root: Path, row: Row) -> bytes:
    """The bytes of an indexed image as they were indexed. Raises CorruptSample where they changed."""
    with _read_errors(row.path):
        real = confine(root, row.path)
        # Size first: an endless file or a pipe may stand there now.
        data = real.read_bytes() if real.is_file() and real.stat().st_size == row.size else b""
    if hashlib.sha256(data).hexdigest() != row.sha256:
        raise CorruptSample(CHANGED if real.exists() else Cause.MISSING_IMAGE, row.path)
    return data


@contextmanager
def _read_errors(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise CorruptSample(Cause.MISSING_IMAGE, path) from error
    except (OSError, ValueError) as error:
        raise CorruptSample(Cause.UNREADABLE_FILE, f"{path} ({error})") from error


def paths_below(paths: Iterable[str], names: Sequence[str]) -> list[str]:
    """The paths that are among `names`, or lie in a folder that is.

    >>> paths_below(["a/b.jpg", "a/c.jpg", "ab.jpg"], ["a"])
    ['a/b.jpg', 'a/c.jpg']
    """
    folders = set(names)
    return [path for path in paths if not folders.isdisjoint((path, *map(str, Path(path).parents)))]


def _real(path: Path) -> Path:
    """Without links. Path.resolve raises RuntimeError where links lead in a circle, up to Python 3.12."""
    return Path(os.path.realpath(path))
