"""Work that is written line by line and goes on where it was killed: JSON Lines, of which the first says what
they were made from.
"""

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from grainline.errors import UserError, there_before
from grainline.files import sync


@contextmanager
def resuming(
    partial: Path, begun: Mapping[str, Any], check: Callable[[Path], None]
) -> Iterator[tuple[BinaryIO, int]]:
    """The file, open for further lines, and how many stand behind its first one. A torn last line is cut off.

    begun  the first line of a new file
    check  raises UserError where a file that is there was begun otherwise

    Nobody else can write meanwhile; at the end the lines are on the disk. Raises OSError, and UserError where
    another process is writing.
    """
    with partial.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another process is writing {partial}; wait for it, or choose another --out"
            ) from None
        number = _mend(partial)
        if number:
            check(partial)
        else:
            file.write(as_line(begun))
        yield file, max(0, number - 1)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def completing(
    out: Path, begun: Mapping[str, Any], check: Callable[[Path], None]
) -> Iterator[tuple[BinaryIO, int]]:
    """As `resuming` of FILE.partial, which gets the name `out` when the block has ended."""
    partial = out.with_name(out.name + ".partial")
    with resuming(partial, begun, check) as found:
        yield found
    os.replace(partial, out)
    sync(out.parent)


def told_of_skipped(kept: int, skipped: Mapping[str, int]) -> list[str]:
    """What was there before, and what was skipped, in words, as far as there is any.

    >>> told_of_skipped(4, {"damaged image": 2}), told_of_skipped(0, {})
    (['4 records were there before', '2 skipped: 2 damaged image'], [])
    """
    parts = [there_before(kept, "record")] if kept else []
    causes = ", ".join(f"{number} {cause}" for cause, number in skipped.items())
    return [*parts, f"{sum(skipped.values())} skipped: {causes}"] if skipped else parts


def _mend(partial: Path) -> int:
    """How many whole lines there are; what stands behind them is cut off."""
    number = size = 0
    with partial.open("rb+") as file:
        for line in file:
            if line.endswith(b"\n"):
                number, size = number + 1, size + len(line)
        file.truncate(size)
    return number


def as_line(row: Mapping[str, Any]) -> bytes:
    """One line of JSON.

    >>> as_line({"a": [1, None]})
    b'{"a":[1,null]}\\n'
    """
    return (json.dumps(row, separators=(",", ":")) + "\n").encode()


def require_same(
    path: Path, found: Mapping[str, Any], begun: Mapping[str, Any], told: Mapping[str, str]
) -> None:
    """UserError where a field differs; `told` says of each field how the file was made then."""
    changed = [words for name, words in told.items() if found[name] != begun[name]]
    if changed:
        raise UserError(f"{path} was made {' and '.join(changed)}; delete it, or choose another --out")
