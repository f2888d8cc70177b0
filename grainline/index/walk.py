"""One walk over picture files: which are new, changed, gone or damaged, committed chunk by chunk."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from grainline.data.descriptions import Descriptions
from grainline.data.record import Damaged
from grainline.index.folder import Spoilt
from grainline.index.pictures import Found, look, pictures_below, read
from grainline.index.writer import Change, Fresh, Writer, square

NAMED = 3
Progress = Callable[[int, int], None]  # pictures done, pictures in all


class Report(NamedTuple):
    """What a walk did, in pictures."""

    added: int = 0
    changed: int = 0  # other bytes under a known path
    unchanged: int = 0
    removed: int = 0
    encoded: int = 0  # of the added and changed ones; the others have bytes that were known
    damaged: Mapping[str, int] = MappingProxyType({})  # cause -> pictures that are not in the index for it
    damaged_first: tuple[str, ...] = ()
    pictures: int = 0  # in the index now


class Walk:
    """One walk over files of the root."""

    def __init__(
        self, writer: Writer, root: Path, progress: Progress | None, told: Descriptions | None = None
    ) -> None:
        """told  the descriptions of the pictures, for a model that reads them"""
        self.writer, self.root, self.progress, self.told = writer, root, progress, told
        self.counts: Counter[str] = Counter()
        self.failed: list[tuple[str, str]] = []  # cause, text

    def whole(self, full: bool) -> Report:
        """All pictures below the root; those that are gone leave the index."""
        left_out = set(self.writer.manifest.left_out)
        wanted = [path for path in pictures_below(self.root) if path not in left_out]
        here = set(wanted)
        gone = [path for path in self.writer.rows if path not in here]
        stale = [one.path for one in self.writer.manifest.damaged if one.path not in here]
        if gone or stale:
            self.writer.commit(Change(gone=sorted({*gone, *stale})))
        self.counts["removed"] += len(gone)
        return self.some(wanted, full)

    def some(self, wanted: Sequence[str], full: bool) -> Report:
        """The pictures at these paths."""
        todo = [found for path in wanted if (found := self._look(path, full)) is not None]
        done = len(wanted) - len(todo)
        for start in range(0, len(todo), self.writer.chunk):
            part = todo[start : start + self.writer.chunk]
            self._take_in(part)
            if self.progress is not None:
                self.progress(done + start + len(part), len(wanted))
        self.writer.finish()
        return Report(
            **self.counts,
            damaged=dict(Counter(cause for cause, _ in self.failed)),
            damaged_first=tuple(text for _, text in self.failed[:NAMED]),
            pictures=len(self.writer.rows),
        )

    def _look(self, path: str, full: bool) -> Found | None:
        """The file, if it has to be read."""
        try:
            found = look(self.root, path)
        except Damaged as error:
            self._fail(error.cause, path)  # a row that it may have stays: the disk may come back
            return None
        row, spoilt = self.writer.row(path), self.writer.spoilt(path)
        if row is not None and self.told is not None and row.description != self.told.get(path):
            return found
        if full or found not in [Found(path, one.size, one.mtime_ns) for one in (row, spoilt) if one]:
            return found
        if spoilt is not None:
            self._fail(spoilt.cause, path)
        else:
            self.counts["unchanged"] += 1
        return None

    def _take_in(self, part: Sequence[Found]) -> None:
        """Read some files and commit what has become of them."""
        fresh: list[Fresh] = []
        damaged: list[Spoilt] = []
        for found in part:
            try:
                one = self._fresh(found)
            except Damaged as error:
                self._fail(error.cause, found.path)
                continue
            if isinstance(one, Spoilt):
                self._fail(one.cause, one.path)
                damaged.append(one)
            elif one is not None:
                fresh.append(one)
        self.counts["encoded"] += len({one.row.content for one in fresh if one.square is not None})
        if fresh or damaged:
            self.writer.commit(Change(fresh, [one.path for one in damaged], damaged))

    def _fresh(self, found: Found) -> Fresh | Spoilt | None:
        """What a file has become: a row to write, damage, or None where its content is that of its row.

        Raises Damaged where it cannot be read, and UserError where a picture lacks its description.
        """
        new = read(self.root, found)
        text = None if self.told is None else self.told.get(found.path)
        mine = new.row._replace(description=text)
        row = self.writer.row(found.path)
        if row is not None and row.content == mine.content:
            self.counts["unchanged"] += 1
            return None
        known = mine.content in self.writer.known
        try:
            seen = None if known else square(self.writer.model, new)
        except Damaged as error:
            return Spoilt(found.path, error.cause, mine.sha256, found.size, found.mtime_ns)
        if self.told is not None:
            self.told.require(found.path)  # a damaged picture needs none
        self.counts["added" if row is None else "changed"] += 1
        return Fresh(mine, seen)

    def _fail(self, cause: str, path: str) -> None:
        self.failed.append((cause, f"{cause}: {path}"))
