"""WebDataset tars with random access: a sample is a few reads at known places.

A sample is an image and its texts under one name: KEY.jpg (jpeg, png, webp, gif, bmp) with KEY.json (fields:
grainline.data.formats.common), KEY.txt (one caption) or both, where the JSON wins if it has texts. KEY is the
name up to the first dot of the last component of the path; where that puts two samples under one key, up to
the ending.

Differs from the webdataset library: no streaming, no pipes, no packed tars; members of a sample need not be
neighbours. No open file is pickled, so loader workers may be forked or spawned.
"""

import os
from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np

from grainline.data.formats.common import Parts, described, digest, stem_of, texts_beside
from grainline.data.formats.folder import files_of
from grainline.data.formats.parsed import data_error
from grainline.data.formats.storage import Range, existing, fetch, is_remote, read_range
from grainline.data.formats.tar_index import ABSENT, SEVERAL, Shard, load_shard
from grainline.data.record import Cause, CorruptSample, Record
from grainline.errors import amount, some
from grainline.progress import in_order, progress


class Tars(Parts):
    """The samples of one or more tars as one sequence, shard after shard.

    Keys are the names in the tar; if two tars share one, all keys are prefixed with the path of their tar.
    `remarks` names tars that end too early.
    """

    def __init__(self, paths: Sequence[str], path: str | None = None) -> None:
        self.path = paths[0] if path is None else path
        self._shards = _load(paths)
        self._starts = list(accumulate((len(shard.keys) for shard in self._shards), initial=0))
        stems = [stem_of(path) for path in paths]
        names = stems if len(set(stems)) == len(stems) else paths
        unique = len(paths) == 1 or not _repeated([shard.hashes for shard in self._shards])
        self._shards = [shard._replace(hashes=shard.hashes[:0]) for shard in self._shards]
        self._prefixes = [""] * len(paths) if unique else [f"{name}/" for name in names]
        flaws = zip(paths, self._shards, strict=True)
        self.remarks = tuple(f"{name} {shard.flaw}" for name, shard in flaws if shard.flaw)
        if dotted := [shard for shard in self._shards if shard.dotted]:
            names = some([shard.path for shard in dotted])
            several = f"up to the first dot {dotted[0].dotted} would be the key of several samples"
            self.remarks += (f"{names}: keys are whole names up to their ending, for {several}",)
        if unread := [shard for shard in self._shards if shard.unread]:
            number = amount(sum(shard.unread for shard in unread), "further file")
            self.remarks += (f"{number} of samples not read, such as {unread[0].first_unread}",)
        self._require_samples(paths)

    @classmethod
    def open(cls, path: str, images: str | None = None, size: int | None = None) -> "Tars":  # noqa: ARG003
        """The tars of a path, a pattern or a folder."""
        return cls(files_of(path, "tar"), path)

    def _require_samples(self, paths: Sequence[str]) -> None:
        images, json, txt = (any(shard.counts[i] for shard in self._shards) for i in range(3))
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
        image, image_size, json, json_size, txt, txt_size = shard.places(row)
        # the last sample of a truncated tar is incomplete
        truncated = bool(shard.flaw) and row == len(shard.keys) - 1
        if image == SEVERAL:
            raise CorruptSample(Cause.AMBIGUOUS_KEY, where)
        if image == ABSENT:
            raise CorruptSample(Cause.TRUNCATED_TAR if truncated else Cause.MISSING_IMAGE, where)
        files = {"json": (json, json_size), "txt": (txt, txt_size)}

        def read(suffix: str) -> bytes | None:
            offset, size = files[suffix]
            return None if offset == ABSENT else _read(shard, offset, size, where)

        texts = texts_beside(where, read, lines=False)
        if texts.silent and not texts.regions:
            raise CorruptSample(Cause.TRUNCATED_TAR if truncated else Cause.MISSING_CAPTION, where)
        key = self._prefixes[number] + shard.keys[row]
        return described(texts, key, _read(shard, image, image_size, where))

    def keys(self) -> Iterable[str]:
        parts = zip(self._prefixes, self._shards, strict=True)
        return (prefix + key for prefix, shard in parts for key in shard.keys)

    def shards(self) -> list[tuple[str, int]]:
        parts = zip(self._prefixes, self._shards, strict=True)
        return [(f"{prefix}{shard.digest}", len(shard.keys)) for prefix, shard in parts]

    def prefetch(self, indices: Sequence[int]) -> None:
        if not is_remote(self.path):
            return
        places = ((self._shards[number], row) for number, row in map(self._part, indices))
        rows = ((shard.path, shard.places(row)) for shard, row in places)
        pairs = ((path, numbers[i], numbers[i + 1]) for path, numbers in rows for i in (0, 2, 4))
        fetch(Range(*pair) for pair in pairs if pair[1] >= 0)

    def fingerprint(self) -> str:
        """sha256 over the sizes of the tars, and the names, places and sizes of their members.

        No member is read: a text that is replaced by another of equal length changes nothing.
        """
        digests = [shard.digest for shard in self._shards]
        return digests[0] if len(digests) == 1 else digest(digests)


def _load(paths: Sequence[str]) -> list[Shard]:
    """The shards of tars; several URLs at a time, and each process of a machine begins with another one."""
    if not is_remote(paths[0]):
        return [load_shard(path) for path in paths]
    existing(paths)
    first = int(os.environ.get("LOCAL_RANK", 0)) * len(paths) // int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    with progress("headers of tars", "tars") as step:
        turned = []
        for shard in in_order(load_shard, [*paths[first:], *paths[:first]], _AT_ONCE, ahead=_AT_ONCE):
            turned.append(shard)
            step(len(turned), len(paths))
    return turned[len(paths) - first :] + turned[: len(paths) - first]


_AT_ONCE = 8


def _repeated(hashes: Sequence[np.ndarray]) -> bool:
    """Whether a number is there twice."""
    ordered = np.sort(np.concatenate(hashes))
    return bool((ordered[1:] == ordered[:-1]).any())


def _read(shard: Shard, offset: int, size: int, where: str) -> bytes:
    """These bytes of a tar. Raises CorruptSample."""
    if offset + size > shard.size:
        raise CorruptSample(Cause.TRUNCATED_TAR, where)
    try:
        data = read_range(shard.path, shard.state, offset, size)
    except OSError as error:
        raise CorruptSample(Cause.UNREADABLE_FILE, f"{where} ({error})") from error
    if len(data) < size:
        raise CorruptSample(Cause.TRUNCATED_TAR, where)
    return data
