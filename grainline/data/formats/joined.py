"""Sources over other sources: several joined into one, and one without some of its captions."""

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain

from grainline.data.formats.common import FileSource, Parts, digest, divide, stem_of, with_query
from grainline.data.formats.parsed import data_error
from grainline.data.record import Box, Boxed, Cause, CorruptSample, Record, Source, boxes_of, keys_of


class Joined(Parts):
    """Several sources as one, in order. If two share a key, or one cannot list its keys, all are prefixed."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = list(sources)
        self.path = " ".join(source.path for source in sources)
        self._starts = list(accumulate(map(len, sources), initial=0))
        self._prefixes = _prefixes(self.sources)
        self.remarks = tuple(f"{source.path}: {remark}" for source in sources for remark in remarks(source))

    def __getitem__(self, index: int) -> Record:
        number, place = self._part(index)
        record = self.sources[number][place]
        return record._replace(key=self._prefixes[number] + record.key)

    def boxes(self, index: int) -> tuple[Box, ...]:
        """The boxes of the things in an image, as `boxes_of` finds them in its own source."""
        number, place = self._part(index)
        source = self.sources[number]
        return source.boxes(place) if isinstance(source, Boxed) else boxes_of(source, place, source[place])

    def shards(self) -> list[tuple[str, int]]:
        pairs = zip(self._prefixes, self.sources, strict=True)
        files = ((prefix, file) for prefix, one in pairs for file in shards(one))
        return [(f"{prefix}{content}", number) for prefix, (content, number) in files]

    def prefetch(self, indices: Sequence[int]) -> None:
        parts: dict[int, list[int]] = {}
        for number, place in map(self._part, indices):
            parts.setdefault(number, []).append(place)
        for number, places in parts.items():
            prefetch(self.sources[number], places)

    def keys(self) -> Iterable[str]:
        for prefix, source in zip(self._prefixes, self.sources, strict=True):
            yield from (prefix + key for key in keys_of(source))

    def fingerprint(self) -> str:
        """sha256 over the fingerprints of the sources, in order."""
        return digest(source.fingerprint() for source in self.sources)


class SourceWrapper(FileSource):
    """Base of a source over another one, with the same records in the same order."""

    def __init__(self, source: Source) -> None:
        self.source, self.path, self.remarks = source, source.path, remarks(source)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Record:
        return self.source[index]

    def prefetch(self, indices: Sequence[int]) -> None:
        prefetch(self.source, indices)

    def keys(self) -> Iterable[str]:
        return keys_of(self.source)

    def fingerprint(self) -> str:
        return self.source.fingerprint()


def parts_of(source: Source) -> list[Source]:
    """The sources that are joined or wrapped in a source."""
    if isinstance(source, Joined):
        return [part for one in source.sources for part in parts_of(one)]
    return parts_of(source.source) if isinstance(source, SourceWrapper) else [source]


def prefetch(source: Source, indices: Sequence[int]) -> None:
    """Fetch what some records need, all at once, where it is remote."""
    if isinstance(source, FileSource):
        source.prefetch(indices)


def shards(source: Source) -> list[tuple[str, int]]:
    """The files of a source as a `FileSource` says them; any other source is one."""
    return source.shards() if isinstance(source, FileSource) else [(source.fingerprint(), len(source))]


def remarks(source: Source) -> tuple[str, ...]:
    """The remarks of a source when it was opened."""
    return source.remarks if isinstance(source, FileSource) else ()


def _prefixes(sources: Sequence[Source]) -> list[str]:
    if all(isinstance(source, FileSource) for source in sources):
        keys = set(chain.from_iterable(map(keys_of, sources)))
        if len(keys) == sum(map(len, sources)):
            return [""] * len(sources)
    names = [stem_of(source.path) for source in sources]
    if len(set(names)) < len(names):
        names = [f"{name}.{number}" for number, name in enumerate(names)]
    return [f"{name}/" for name in names]


OPTION = "skip"


class WithoutCaptions(SourceWrapper):
    """`PATH?skip=0,1`: a source without the captions of some numbers. A record with none left is corrupt."""

    def __init__(self, source: Source, skip: tuple[int, ...]) -> None:
        super().__init__(source)
        self.skip = skip
        self.path = f"{source.path} without captions {', '.join(map(str, skip))}"

    def __getitem__(self, index: int) -> Record:
        record = self.source[index]
        captions = tuple(text for number, text in enumerate(record.captions) if number not in self.skip)
        if not captions:
            raise CorruptSample(Cause.MISSING_CAPTION, f"{record.key} (all its captions are skipped)")
        return _renumber(record._replace(captions=captions), record.captions, self.skip)

    def fingerprint(self) -> str:
        """sha256 over that of the source and the numbers of the captions."""
        return digest([self.source.fingerprint(), OPTION, *self.skip])


def _renumber(record: Record, before: tuple[str, ...], skip: tuple[int, ...]) -> Record:
    """The record with the regions and foils of the remaining captions, whose spans are renumbered."""
    remaining = [number for number in range(len(before)) if number not in skip]
    name = {f"captions.{old}": f"captions.{new}" for new, old in enumerate(remaining)}
    gone = {f"captions.{old}" for old in skip}
    spans = [one.span and (name.get(one.span[0], one.span[0]), *one.span[1:]) for one in record.regions]
    pairs = zip(record.regions, spans, strict=True)
    regions = [one._replace(span=span) for one, span in pairs if not one.span or one.span[0] not in gone]
    removed = {before[old] for old in skip if old < len(before)} - {*record.captions, *record.longs}
    foils = tuple(foil for foil in record.foils if foil.true not in removed)
    return record._replace(regions=tuple(regions), foils=foils)


def split_skip(path: str) -> tuple[str, tuple[int, ...]]:
    """A path without the option `skip`, and its numbers. Raises UserError.

    >>> split_skip("a-*.tar?skip=0,1"), split_skip("scenes:dev?count=5&skip=2"), split_skip("a.csv?image=x")
    (('a-*.tar', (0, 1)), ('scenes:dev?count=5', (2,)), ('a.csv?image=x', ()))
    """
    base, query = divide(path)
    options = query.split("&")
    skips = [option for option in options if option.startswith(f"{OPTION}=")]
    if not skips:
        return path, ()
    numbers = ",".join(option.partition("=")[2] for option in skips).split(",")
    if not all(number.isascii() and number.isdigit() and len(number) < 19 for number in numbers):
        raise data_error(f"{', '.join(skips)} in {path} must be numbers of captions, such as {OPTION}=0,1")
    rest = "&".join(option for option in options if option not in skips)
    return with_query(base, rest), tuple(sorted({int(number) for number in numbers}))


def without_images(source: Source) -> str:
    """The path of the first part of a source without images; "" if all have images."""
    return next((part.path for part in parts_of(source) if not getattr(part, "has_images", True)), "")
