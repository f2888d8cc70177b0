"""One writer at a time. The lock belongs to the process, so a process that dies cannot leave it behind."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from grainline.errors import UserError
from grainline.files import reason
from grainline.index.folder import LOCK


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Hold the lock of an index. UserError at once where another process holds it."""
    try:
        file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UserError(f"cannot write into {folder}: {reason(error)}; choose another folder") from None
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(file, 32).decode("ascii", "replace").strip() or "unknown"
            raise UserError(
                f"index {folder} is being written by another process (number {holder}); wait until it ends"
            ) from None
        except OSError as error:  # file systems without locks
            raise UserError(f"index {folder} cannot be locked: {reason(error)}; use another disk") from None
        os.ftruncate(file, 0)
        os.pwrite(file, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(file)
