"""The files and folders that sources read, at a path of this machine or at a URL.

A URL is s3://, gs://, az://, hf:// or https:// (extra `remote`), and `remote` reads it by fsspec. Of a URL
that begins with http, options follow a #, because a ? belongs to the URL, and a folder ends with a slash.

All raise OSError for what is not there, and `Unreachable` where a server does not answer.
"""

import errno
import glob
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from io import BufferedReader
from pathlib import Path
from threading import get_ident

from grainline import system
from grainline.data.formats import ranges, remote
from grainline.data.formats.remote import Range as Range
from grainline.data.formats.remote import State as State
from grainline.data.formats.remote import is_web as is_web
from grainline.system import MAX_BYTES, READ, read_at

BUFFER = 2**22  # bytes of a remote file that one request reads, where a file is read from its start on


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a URL.

    >>> is_remote("s3://bucket/a.tar"), is_remote("photos/a.tar"), is_remote("scenes:train")
    (True, False, False)
    """
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", os.fspath(path)) is not None


def forget(path: str, *, below: bool = False) -> None:
    """Ask the server anew of a URL. below: of all that begin with it, up to the first wildcard"""
    if is_remote(path):
        remote.forget(re.split(r"[*?\[{#]", path)[0] if below else path, below=below)


def absolute(path: str) -> str:
    """The path from the root of its file system on; a URL is one."""
    return path if is_remote(path) else os.path.abspath(path)


def join(folder: str, name: str) -> str:
    """The path of a name in a folder."""
    path = os.path.join(folder, name)
    return remote.normal(path) if is_remote(path) else path


def exists(path: str) -> bool:
    """Whether a file or a folder is there."""
    return remote.ask(path).kind != "" if is_remote(path) else os.path.exists(path)


def is_file(path: str) -> bool:
    """Whether a file is there."""
    return remote.ask(path).kind == "file" if is_remote(path) else os.path.isfile(path)


def is_folder(path: str) -> bool:
    """Whether a folder is there."""
    return remote.ask(path).kind == "folder" if is_remote(path) else os.path.isdir(path)


def state_of(path: str) -> State:
    """The state of a regular file."""
    if is_remote(path):
        return remote.state_of(path)
    state = os.stat(path)
    if not stat.S_ISREG(state.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
    return State(state.st_size, state.st_mtime_ns)


def existing(paths: Sequence[str]) -> list[bool]:
    """Whether a file or a folder is there, of each path; URLs are asked for together."""
    if paths and is_remote(paths[0]):
        remote.look_up(paths, listing=True)
    return [exists(path) for path in paths]


def names_in(folder: str) -> list[str]:
    """The names of the files and folders in a folder."""
    return remote.names_in(folder) if is_remote(folder) else os.listdir(folder)


def matches(pattern: str) -> list[str]:
    """The paths that a pattern of the shell stands for, sorted."""
    return remote.matches(pattern) if is_remote(pattern) else sorted(glob.glob(pattern))


def paths_below(folder: str) -> list[str]:
    """Paths of all files below a folder, relative to it, sorted, without hidden ones.

    Links are followed, circles are not.
    """
    if is_remote(folder):
        return remote.paths_below(folder)
    relative: list[str] = []
    visited: set[tuple[int, int]] = set()
    for place, below, files in os.walk(folder, onerror=_refuse, followlinks=True):
        state = os.stat(place)
        if (state.st_dev, state.st_ino) in visited:
            below.clear()
            continue
        visited.add((state.st_dev, state.st_ino))
        below[:] = sorted(name for name in below if not name.startswith("."))
        names = (os.path.join(place, name) for name in files if not name.startswith("."))
        relative += [os.path.relpath(name, folder) for name in names]
    return sorted(relative)


def _refuse(error: OSError) -> None:
    raise error


def read_plain(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> bytes:
    """The bytes of a regular file. Raises OSError also for one of more than `max_bytes`."""
    path = os.fspath(path)
    state = state_of(path)
    if state.size > max_bytes:
        raise OSError(errno.EFBIG, f"more than {max_bytes:,} bytes", path)
    return read_range(path, state, 0, state.size) if is_remote(path) else Path(path).read_bytes()


def open_regular(path: str) -> BufferedReader:
    """A regular file, open for reading: a pipe would block, and a device may have no end."""
    if not is_remote(path):
        return system.open_regular(path)
    return BufferedReader(ranges.RemoteFile(path), BUFFER)


def read_range(path: str, state: State, offset: int, size: int) -> bytes:
    """Up to `size` bytes from an offset on, in any thread and after a fork.

    Raises OSError where the file does not have this state, of when its index was read, any more.
    """
    if is_remote(path):
        return ranges.read_range(path, state, offset, size)
    return read_at(_open(path, *state).number, size, offset)


def fetch(wanted: Iterable[Range]) -> None:
    """Fetch some bytes that are read next, together and ahead, where they are remote."""
    if away := [one for one in wanted if is_remote(one.path)]:
        ranges.fetch(away)


# Writing, of results alone: sources are only read.


def write(path: str, data: bytes) -> None:
    """Write a file, whole or not at all; its folder is made."""
    if is_remote(path):
        remote.write(path, data)
        return
    with _draft(path, data) as draft:
        os.replace(draft, path)


def create(path: str, data: bytes) -> bool:
    """Write a file that is not there yet, whole or not at all; False where it is. One of several succeeds."""
    if is_remote(path):
        return remote.create(path, data)
    with _draft(path, data) as draft:
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
    return True


def remove(path: str) -> None:
    """Remove a file, if it is there."""
    if is_remote(path):
        remote.remove(path)
        return
    with suppress(FileNotFoundError):
        os.unlink(path)


@contextmanager
def _draft(path: str, data: bytes) -> Iterator[str]:
    """A synced file in the same folder, which is removed at the end.

    Its name is of this thread alone: that of `files.drafted` is the same for all processes that write a path.
    """
    folder, name = os.path.split(path)
    os.makedirs(folder or ".", exist_ok=True)
    draft = os.path.join(folder, f".{name}.{os.getpid()}-{get_ident()}")
    try:
        with open(draft, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield draft
    finally:
        with suppress(FileNotFoundError):
            os.unlink(draft)


class _Handle:
    """An open file that closes when the last user lets go of it."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


@lru_cache(maxsize=64)  # per process, safe in threads: read_at leaves no position that a fork could share
def _open(path: str, size: int, changed: int) -> _Handle:
    handle = _Handle(os.open(path, READ))
    state = os.fstat(handle.number)
    if (state.st_size, state.st_mtime_ns) != (size, changed):
        raise remote.Changed(path)
    return handle
