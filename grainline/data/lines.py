"""Files of JSON Lines that an interrupted run completes later; the first line says what they come from."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from grainline.errors import UserError, amount
from grainline.files import behind_links, reason, sync, writing
from grainline.system import lock, open_regular, regular

Progress = Callable[[int, int], None]
"""Called with the number of records done, and of records to do."""


class Written(NamedTuple):
    """The content of a file or folder; an interrupted run may have written a part. str() puts it in words.

    >>> print(Written({"image": 10, "word": 905}, {"missing caption": 2}, resumed=4))
    10 images, 905 words; 4 records were there before; 2 skipped: 2 missing caption
    """

    counts: dict[str, int]  # noun -> how many
    skipped: dict[str, int]  # cause -> records without a result
    resumed: int  # records, or others of `unit`, that were there before
    unit: str = "record"
    first: tuple[str, ...] = ()  # cause and place of the first records that were skipped

    def __str__(self) -> str:
        parts = [", ".join(amount(number, noun) for noun, number in self.counts.items())]
        if self.resumed:
            were = "was" if self.resumed == 1 else "were"
            parts.append(f"{amount(self.resumed, self.unit)} {were} there before")
        if self.skipped:
            causes = ", ".join(f"{number} {cause}" for cause, number in self.skipped.items())
            parts.append(f"{sum(self.skipped.values())} skipped: {causes}")
        return "; ".join([*parts, *([f"the first: {'; '.join(self.first)}"] if self.first else [])])


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
        out = behind_links(out)
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.exists():
            regular(out)
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
def resuming(
    partial: Path, header: Mapping[str, Any], check: Callable[[Path], None]
) -> Iterator[tuple[BinaryIO, int]]:
    """The file, locked and open for further lines, and the number of lines after its header.

    A torn last line is removed; at the end the lines are on the disk. Raises OSError, and UserError where
    another process writes the file. `header` and `check` as in `complete`.
    """
    if partial.exists():
        regular(partial)
    with partial.open("ab") as file:
        if not lock(file.fileno()):
            raise UserError(f"another process is writing {partial}; wait for it, or choose another --out")
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


def read_header(path: Path, form: str | int, names: set[str], again: str) -> dict[str, Any]:
    """The first line of a file of a form, which has these names. UserError where there is none."""
    try:
        with open_regular(path) as file:
            first = json.loads(file.readline())
    except OSError as error:
        raise UserError(f"cannot read {path}: {reason(error)}; {again}") from None
    except ValueError:
        first = None
    if not isinstance(first, dict) or not names <= first.keys() or first.get("grainline") != form:
        raise UserError(f"{path} is not of the format {form!r}; {again}")
    return first


def _read_rows(path: Path) -> list[dict[str, Any]]:
    with open_regular(path) as file:
        file.readline()
        return list(map(json.loads, file))


def as_line(row: Mapping[str, Any]) -> bytes:
    """One line of JSON."""
    return (json.dumps(row, separators=(",", ":")) + "\n").encode()


def require_same(
    path: Path, header: Mapping[str, Any], expected: Mapping[str, Any], differences: Mapping[str, str]
) -> None:
    """Raises UserError where a field of the header differs; `differences` says how the file was made then."""
    changed = [words for name, words in differences.items() if header[name] != expected[name]]
    if changed:
        raise UserError(f"{path} was made {' and '.join(changed)}; delete it, or choose another --out")
