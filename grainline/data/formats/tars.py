"""WebDataset tars with random access: a sample is a few reads at known places.

A sample is an image and its texts under one name: KEY.jpg (jpeg, png, webp, gif, bmp) with KEY.json (fields:
grainline.data.formats.common), KEY.txt (one caption) or both, where the JSON wins if it has texts.

Differs from the webdataset library: no streaming, no pipes, no packed tars; members of a sample need not be
neighbours. No open file is pickled, so loader workers may be forked or spawned.
"""

import os
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from pathlib import Path

from grainline.data.formats.common import Parts, described, digest, texts_beside
from grainline.data.formats.folder import files_of
from grainline.data.formats.plain import data_error
from grainline.data.formats.tarindex import ABSENT, SEVERAL, SPANS, Shard, load_shard
from grainline.data.record import (
    AMBIGUOUS_KEY,
    MISSING_CAPTION,
    MISSING_IMAGE,
    TRUNCATED_TAR,
    UNREADABLE_FILE,
    CorruptSample,
    Record,
)
from grainline.errors import amount, some
from grainline.system import READ, read_at


class Tars(Parts):
    """The samples of one or more tars as one sequence, shard after shard.

    Keys are the names in the tar; if two tars share one, all keys are prefixed with the path of their tar.
    `remarks` names tars that end too early.
    """

    def __init__(self, paths: Sequence[str], path: str | None = None) -> None:
        self.path = paths[0] if path is None else path
        self._shards = [load_shard(name) for name in paths]
        self._starts = list(accumulate((len(shard.keys) for shard in self._shards), initial=0))
        stems = [Path(path).stem for path in paths]
        names = stems if len(set(stems)) == len(stems) else paths
        keys = set(chain.from_iterable(shard.keys for shard in self._shards))
        unique = len(paths) == 1 or len(keys) == len(self)
        self._prefixes = [""] * len(paths) if unique else [f"{name}/" for name in names]
        flaws = zip(paths, self._shards, strict=True)
        self.remarks = tuple(f"{name} {shard.flaw}" for name, shard in flaws if shard.flaw)
        dotted = [shard for shard in self._shards if shard.dotted]
        unread = [shard for shard in self._shards if shard.unread]
        if dotted:
            where = some([shard.path for shard in dotted])
            several = f"up to the first dot {dotted[0].dotted} would be the key of several samples"
            self.remarks += (f"{where}: keys are whole names up to their ending, for {several}",)
        if unread:
            number = amount(sum(shard.unread for shard in unread), "further file")
            self.remarks += (f"{number} of samples not read, such as {unread[0].first_unread}",)
        self._require_samples(paths)

    @classmethod
    def open(cls, path: str, images: str | None = None, size: int | None = None) -> "Tars":  # noqa: ARG003
        """The tars of a path, a pattern or a folder."""
        return cls(files_of(path, "tar"), path)

    def _require_samples(self, paths: Sequence[str]) -> None:
        images, json, txt = (
            any(offset != ABSENT for shard in self._shards for offset in shard.spans[first::SPANS])
            for first in (0, 2, 4)
        )
        flaws = "".join(f" ({remark})" for remark in self.remarks[:1])
        content = f"{self.path} ({amount(len(paths), 'tar')}, {amount(len(self), 'sample')})"
        if not images:
            raise data_error(f"{content} holds no KEY.jpg, .jpeg, .png, .webp, .gif or .bmp{flaws}")
        if not json and not txt:
            raise data_error(f"{content} holds images but no KEY.json or KEY.txt with their captions{flaws}")

    def __getitem__(self, index: int) -> Record:
        number, row = self._part(index)
        shard = self._shards[number]
        where = f"{shard.path}: {shard.keys[row]}"
        spans = shard.spans[row * SPANS : (row + 1) * SPANS]
        image, image_size, json, json_size, txt, txt_size = spans
        # the last sample of a truncated tar is incomplete
        truncated = bool(shard.flaw) and row == len(shard.keys) - 1
        if image == SEVERAL:
            raise CorruptSample(AMBIGUOUS_KEY, where)
        if image == ABSENT:
            raise CorruptSample(TRUNCATED_TAR if truncated else MISSING_IMAGE, where)
        files = {"json": (json, json_size), "txt": (txt, txt_size)}

        def read(suffix: str) -> bytes | None:
            offset, size = files[suffix]
            return None if offset == ABSENT else _read(shard, offset, size, where)

        texts = texts_beside(where, read, lines=False)
        if texts.silent and not texts.regions:
            raise CorruptSample(TRUNCATED_TAR if truncated else MISSING_CAPTION, where)
        key = self._prefixes[number] + shard.keys[row]
        return described(texts, key, _read(shard, image, image_size, where))

    def keys(self) -> Iterable[str]:
        parts = zip(self._prefixes, self._shards, strict=True)
        return (prefix + key for prefix, shard in parts for key in shard.keys)

    def fingerprint(self) -> str:
        """sha256 over the sizes of the tars, and the names, places and sizes of their members.

        No member is read: a text that is replaced by another of equal length changes nothing.
        """
        return digest(
            part
            for shard in self._shards
            for part in (shard.size, len(shard.keys), *shard.keys, *shard.spans)
        )


class _Handle:
    """An open file that closes when the last user lets go of it."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


@lru_cache(maxsize=64)  # per process, safe in threads: read_at leaves no position that a fork could share
def _open(path: str, size: int, mtime_ns: int) -> _Handle:
    handle = _Handle(os.open(path, READ))
    state = os.fstat(handle.number)
    if (state.st_size, state.st_mtime_ns) != (size, mtime_ns):
        raise OSError("it was changed after its index was read")
    return handle


def _read(shard: Shard, offset: int, size: int, where: str) -> bytes:
    """These bytes of a tar. Raises CorruptSample."""
    if offset + size > shard.size:
        raise CorruptSample(TRUNCATED_TAR, where)
    try:
        handle = _open(shard.path, shard.size, shard.mtime_ns)
        data = read_at(handle.number, size, offset)
    except OSError as error:
        raise CorruptSample(UNREADABLE_FILE, f"{where} ({error})") from error
    if len(data) < size:
        raise CorruptSample(TRUNCATED_TAR, where)
    return data
