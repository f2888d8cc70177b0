"""Calls that systems do differently: locks, syncs, reads at a position, open files; and regular files alone.

Linux and macOS have POSIX calls; each function has an alternative for Windows (docs/platforms.md).
"""

import errno
import os
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from threading import Lock

READ = os.O_RDONLY | getattr(os, "O_BINARY", 0)  # without O_BINARY, Windows ends a file at a byte 26
WRITE = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)

MAX_BYTES = 2**30  # of an image file: the largest that is decoded has 716 MB in 16 bits and four channels

_LOCKED_BYTE = 2**30  # behind the content: nobody can read a byte that is locked on Windows
_position = Lock()


def regular(path: str | Path) -> int:
    """The size of a regular file in bytes. Raises OSError, also for a pipe, a device and a folder."""
    state = os.stat(path)
    if not stat.S_ISREG(state.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return state.st_size


def open_regular(path: str | Path) -> BufferedReader:
    """A regular file, open for reading: a pipe would block, and a device may have no end. Raises OSError."""
    regular(path)
    return open(path, "rb")


def read_plain(path: str | Path, max_bytes: int = MAX_BYTES) -> bytes:
    """The bytes of a regular file. Raises OSError, also for one of more than `max_bytes`."""
    if regular(path) > max_bytes:
        raise OSError(errno.EFBIG, f"more than {max_bytes:,} bytes", str(path))
    return Path(path).read_bytes()


def lock(descriptor: int) -> bool:
    """Lock an open file against other processes, without waiting; False where another one has the lock.

    The lock ends when the descriptor is closed. Raises OSError where the file system has no locks.
    """
    try:
        import fcntl
    except ImportError:
        return _lock_on_windows(descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_on_windows(descriptor: int) -> bool:
    import msvcrt

    windows: dict[str, Callable[..., None]] = vars(msvcrt)  # mypy knows its names on Windows alone
    with _position:
        before = os.lseek(descriptor, 0, os.SEEK_CUR)
        try:
            os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
            windows["locking"](descriptor, windows["LK_NBLCK"], 1)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EDEADLK):
                return False
            raise
        finally:
            os.lseek(descriptor, before, os.SEEK_SET)
    return True


def read_at(descriptor: int, size: int, position: int) -> bytes:
    """Up to `size` bytes from a position on, in any thread; forked processes may share the open file."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, size, position)
    with _position:  # Windows has no forks, but threads share the position
        os.lseek(descriptor, position, os.SEEK_SET)
        return os.read(descriptor, size)


def user_cache() -> Path:
    """The folder of what can be made again: $GRAINLINE_CACHE, else that of grainline in the user's cache.

    For a user without a home it is one that cannot be made.
    """
    user = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    user = os.devnull if user.startswith("~") else user
    return Path(os.environ.get("GRAINLINE_CACHE") or Path(user) / "grainline")


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk. Windows writes names by itself."""
    if sys.platform == "win32":
        if path.is_file():
            with path.open("r+b") as file:  # it syncs no file that is open for reading
                os.fsync(file.fileno())
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def openable(files: int) -> int:
    """Raise the limit of open files, if possible to `files`. Returns the new limit; Windows has none."""
    try:
        import resource
    except ImportError:
        return files
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < files:  # RLIM_INFINITY is -1, so min() would take it
        soft = files if hard == resource.RLIM_INFINITY else min(files, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return files if soft == resource.RLIM_INFINITY else soft


def resident_memory() -> int:
    """The bytes of memory of this process; where the system tells only its peak, that; 0 on Windows."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    with suppress(ImportError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in bytes on macOS
    return 0
