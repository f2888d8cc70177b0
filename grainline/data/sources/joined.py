"""Several sources as one, and what stands over a single one."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from pathlib import Path

from grainline.data.record import Box, Boxed, Record, Source, boxes_of, keys_of
from grainline.data.sources.common import FileSource, digest


class Joined(FileSource):
    """One source after the other. If two of them share a key, or might, all keys are prefixed.

    A source that cannot list its keys (scenes) might share any, so then all are prefixed.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        assert sources, "no source"
        self.sources = list(sources)
        self.path = " ".join(source.path for source in sources)
        self._ends = list(accumulate(len(source) for source in sources))
        self._prefixes = _prefixes(self.sources)
        self.remarks = tuple(f"{source.path}: {remark}" for source in sources for remark in remarks(source))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Record:
        number, place = self._place(index)
        record = self.sources[number][place]
        return record._replace(key=self._prefixes[number] + record.key)

    def _place(self, index: int) -> tuple[int, int]:
        """The number of the source that a record is from, and its position there."""
        index = range(len(self))[index]
        number = bisect_right(self._ends, index)
        return number, index - self._ends[number] + len(self.sources[number])

    def boxes(self, index: int) -> tuple[Box, ...]:
        """The boxes of the things in a picture, as `boxes_of` finds them in its own source."""
        number, place = self._place(index)
        source = self.sources[number]
        return source.boxes(place) if isinstance(source, Boxed) else boxes_of(source, place, source[place])

    def keys(self) -> Iterable[str]:
        """The keys of all records in order; reads the records of sources that cannot list them."""
        for prefix, source in zip(self._prefixes, self.sources, strict=True):
            yield from (prefix + key for key in keys_of(source))

    def fingerprint(self) -> str:
        """sha256 over the fingerprints of the sources, in order."""
        return digest(source.fingerprint() for source in self.sources)


class Over(FileSource):
    """A source over another one: the same records in the same order, but for what subclasses change."""

    def __init__(self, source: Source) -> None:
        self.source, self.path, self.remarks = source, source.path, remarks(source)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Record:
        return self.source[index]

    def keys(self) -> Iterable[str]:
        """Those of the source; reads its records where it cannot list them."""
        return keys_of(self.source)

    def fingerprint(self) -> str:
        """That of the source."""
        return self.source.fingerprint()


def parts_of(source: Source) -> list[Source]:
    """The sources of which a source is made: those that were joined, and what stands below another one."""
    if isinstance(source, Joined):
        return [part for one in source.sources for part in parts_of(one)]
    return parts_of(source.source) if isinstance(source, Over) else [source]


def remarks(source: Source) -> tuple[str, ...]:
    """What a source found at opening and is worth knowing."""
    return source.remarks if isinstance(source, FileSource) else ()


def _prefixes(sources: Sequence[Source]) -> list[str]:
    listed = [source for source in sources if isinstance(source, FileSource)]
    if len(listed) == len(sources):
        keys = set(chain.from_iterable(source.keys() for source in listed))
        if len(keys) == sum(map(len, sources)):
            return [""] * len(sources)
    names = [Path(source.path).stem for source in sources]
    if len(set(names)) < len(names):
        names = [f"{name}.{number}" for number, name in enumerate(names)]
    return [f"{name}/" for name in names]
