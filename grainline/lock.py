"""One writer at a time in a folder. The lock belongs to a process and ends with it, however it ends."""

import fcntl
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from grainline.errors import UserError
from grainline.files import reason

LOCK = "lock"
"""The file in the folder. It stays: who removed it could remove the lock of another process."""


class NoLocks(UserError):
    """The file system of the folder has no locks."""


@contextmanager
def one_writer(folder: Path, what: str, hint: str = "wait until it ends") -> Iterator[None]:
    """Lock a folder for as long as the block lasts; nobody waits.

    what  the folder and what it is, such as "index photos.idx"; it begins the message
    hint  what the user of a folder that is in use can do

    Raises UserError where another process holds the lock, with its number and host, and NoLocks where the
    file system cannot lock. Children of this process do not keep the lock alive.
    """
    try:
        file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UserError(f"cannot write into {folder}: {reason(error)}; choose another folder") from None
    _open.add(file)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{what} is being written by {_holder(file)}; {hint}") from None
        except OSError as error:
            raise NoLocks(f"{what} cannot be locked: {reason(error)}; use another disk") from None
        try:
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()} {socket.gethostname()}".encode(), 0)
        except OSError as error:
            raise UserError(f"cannot write into {folder}: {reason(error)}") from None
        yield
    finally:
        _open.discard(file)
        os.close(file)


def _holder(file: int) -> str:
    """Who holds a lock, as that process wrote it: its number and host."""
    number, _, host = os.pread(file, 300, 0).decode("utf-8", "replace").strip().partition(" ")
    return f"process {number} on {host}" if host else "another process"


_open: set[int] = set()


def _close_in_child() -> None:
    """A lock lives until all copies of its file are closed, and processes that load data may outlive ours."""
    for file in _open:
        os.close(file)
    _open.clear()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_close_in_child)
