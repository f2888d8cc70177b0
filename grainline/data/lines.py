"""Files of JSON Lines that an interrupted run completes later; the first line says what they come from."""

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from grainline.errors import UserError
from grainline.files import reason, remedy, sync

Progress = Callable[[int, int], None]
"""Called with the number of records done, and of records to do."""


def complete(
    out: Path,
    header: Mapping[str, Any],
    check: Callable[[Path], None],
    batches: Callable[[int], Iterable[bytes]],
    records: int,
    progress: Progress | None,
) -> tuple[list[dict[str, Any]], int]:
    """Write a file with one line for each record, or the lines that an interrupted run left out.

    header   the first line: the origin of the content
    check    raises UserError for a file with another header
    batches  whole lines of the records from a number on, in order

    Returns all lines after the header, and how many of them existed. The file is OUT.partial until it is
    complete. Raises UserError.
    """
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.exists():
            check(out)
            return _read_rows(out), records
        partial = out.with_name(out.name + ".partial")
        with resuming(partial, header, check) as (file, before):
            done = before
            for lines in batches(before):
                file.write(lines)
                file.flush()
                done += lines.count(b"\n")
                if progress is not None:
                    progress(done, records)
        os.replace(partial, out)
        sync(out.parent)
        return _read_rows(out), before


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """UserError in place of OSError, with the reason and what to do."""
    try:
        yield
    except OSError as error:
        advice = remedy(error, "choose another --out")
        raise UserError(f"cannot write {out}: {reason(error)}; {advice}") from None


@contextmanager
def resuming(
    partial: Path, header: Mapping[str, Any], check: Callable[[Path], None]
) -> Iterator[tuple[BinaryIO, int]]:
    """The file, locked and open for further lines, and the number of lines after its header.

    A torn last line is removed; at the end the lines are on the disk. Raises OSError, and UserError where
    another process writes the file. `header` and `check` as in `complete`.
    """
    with partial.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another process is writing {partial}; wait for it, or choose another --out"
            ) from None
        number = size = 0
        with partial.open("rb+") as whole:
            for line in whole:
                if line.endswith(b"\n"):
                    number, size = number + 1, size + len(line)
            whole.truncate(size)
        if number:
            check(partial)
        else:
            file.write(as_line(header))
        yield file, max(0, number - 1)
        file.flush()
        os.fsync(file.fileno())


def _read_rows(path: Path) -> list[dict[str, Any]]:
    with path.open("rb") as file:
        file.readline()
        return list(map(json.loads, file))


def as_line(row: Mapping[str, Any]) -> bytes:
    """One line of JSON.

    >>> as_line({"a": [1, None]})
    b'{"a":[1,null]}\\n'
    """
    return (json.dumps(row, separators=(",", ":")) + "\n").encode()


def require_same(
    path: Path, header: Mapping[str, Any], expected: Mapping[str, Any], differences: Mapping[str, str]
) -> None:
    """Raises UserError where a field of the header differs; `differences` says how the file was made then."""
    changed = [words for name, words in differences.items() if header[name] != expected[name]]
    if changed:
        raise UserError(f"{path} was made {' and '.join(changed)}; delete it, or choose another --out")
