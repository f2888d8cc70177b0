"""A cache on the disk of blocks of remote files, for all processes of a machine, with a limit of size.

A remote file has one file here: the CRC-32 of each block (0: it is absent), then the blocks in their places;
absent ones are holes. A block is written before its checksum, and compared with it whenever it is read: what
a killed process or a full disk left half done is absent.
"""

import errno
import hashlib
import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import groupby
from pathlib import Path

from grainline.errors import UserError
from grainline.system import WRITE, read_at, user_cache

BLOCK = 2**16  # bytes
LIMIT = "GRAINLINE_REMOTE_GB"
DEFAULT_LIMIT = 20  # GB
_PART = 64  # the folder is measured whenever a process has written this part of the limit

Run = tuple[int, int]
"""The first block, and the one behind the last."""


class BlockCache:
    """A folder of blocks. `broken` says why nothing is cached: a full disk, or a folder that refuses."""

    def __init__(self, folder: Path, limit: int) -> None:
        """limit: of all files together, in bytes; 0: nothing is cached"""
        self.folder, self.limit = folder, limit
        self.broken = "" if limit else f"{LIMIT} is 0"
        self._written = 0  # since the folder was measured

    def file(self, path: str, size: int, changed: int) -> "BlockFile | None":
        """The blocks of one version of a file; None where nothing can be cached."""
        name = hashlib.sha256(f"{path}\n{size} {changed}".encode("utf-8", "surrogatepass")).hexdigest()[:32]
        place = self.folder / name[:2] / name[2:]
        try:
            return None if self.broken else BlockFile(self, place, size)
        except OSError as error:
            self.broken = f"{self.folder} cannot be written ({error.strerror})"
            return None

    def wrote(self, size: int) -> None:
        """Count some bytes; remove the files that were opened the longest ago where the limit is exceeded."""
        self._written += size
        if self._written * _PART < self.limit:
            return
        self._written = 0
        files = []
        for place in self.folder.glob("*/*"):
            with suppress(OSError):  # another process removes files too
                state = place.stat()
                files.append((state.st_mtime, _used(state), place))
        total = sum(used for _, used, _ in files)
        for _, used, place in sorted(files):
            if total <= self.limit:
                break
            with suppress(OSError):
                place.unlink()
            total -= used


def _used(state: os.stat_result) -> int:
    """The bytes that a file takes on the disk: the holes in it take none. Windows does not tell."""
    return int(getattr(state, "st_blocks", -(-state.st_size // 512))) * 512


class BlockFile:
    """The blocks of one remote file."""

    def __init__(self, cache: BlockCache, place: Path, size: int) -> None:
        """size: of the remote file. Raises OSError."""
        self.cache, self.size, self.place = cache, size, place
        self.start = -(-(-(-size // BLOCK) * 4) // BLOCK) * BLOCK  # of the first block
        place.parent.mkdir(parents=True, exist_ok=True)
        self._number = os.open(place, WRITE, 0o644)
        os.utime(self._number if os.utime in os.supports_fd else place)

    def __del__(self) -> None:
        if hasattr(self, "_number"):
            os.close(self._number)

    @property
    def removed(self) -> bool:
        """Whether another process has removed the file: what is written into it is lost."""
        return os.fstat(self._number).st_nlink == 0

    def absent(self, run: Run) -> Iterator[Run]:
        """The runs of blocks that are not there, without a look at their content."""
        sums = self._sums(run)
        for present, group in groupby(range(*run), lambda block: sums[block - run[0]] != 0):
            blocks = list(group)
            if not present:
                yield blocks[0], blocks[-1] + 1

    def read(self, run: Run) -> dict[int, bytes]:
        """The blocks of a run that are there and whole."""
        data = memoryview(read_at(self._number, (run[1] - run[0]) * BLOCK, self.start + run[0] * BLOCK))
        blocks = {}
        for place, total in enumerate(self._sums(run)):
            block = data[place * BLOCK : min((place + 1) * BLOCK, self.size - run[0] * BLOCK)]
            if total and _sum(block) == total:
                blocks[run[0] + place] = bytes(block)
        return blocks

    def write(self, first: int, data: bytes) -> None:
        """Keep blocks from one on; the last may be the shorter one at the end of the file."""
        pieces = [data[i : i + BLOCK] for i in range(0, len(data), BLOCK)]
        sums = b"".join(_sum(piece).to_bytes(4, "little") for piece in pieces)
        try:
            _write_at(self.place, self._number, data, self.start + first * BLOCK)
            _write_at(self.place, self._number, sums, first * 4)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            self.cache.broken = f"{self.cache.folder}: {'the disk is full' if full else error.strerror}"
        else:
            self.cache.wrote(len(data))

    def _sums(self, run: Run) -> list[int]:
        data = read_at(self._number, (run[1] - run[0]) * 4, run[0] * 4).ljust((run[1] - run[0]) * 4, b"\0")
        return [int.from_bytes(data[i : i + 4], "little") for i in range(0, len(data), 4)]


def _sum(block: bytes | memoryview) -> int:
    return zlib.crc32(block) or 1


def _write_at(place: Path, number: int, data: bytes, position: int) -> None:
    if hasattr(os, "pwrite"):
        os.pwrite(number, data, position)
        return
    with place.open("r+b") as file:  # a position of its own: threads share that of the open file
        file.seek(position)
        file.write(data)


@lru_cache(maxsize=1)
def _cache(folder: Path, limit: int) -> BlockCache:
    return BlockCache(folder, limit)


def cache() -> BlockCache:
    """The cache in $GRAINLINE_CACHE/remote, of at most $GRAINLINE_REMOTE_GB; UserError for no number."""
    setting = os.environ.get(LIMIT) or str(DEFAULT_LIMIT)
    try:
        limit = float(setting)
    except ValueError:
        limit = -1
    if not 0 <= limit < 1e9:
        raise UserError(f"{LIMIT} is {setting!r}; allowed is a number of GB, 0 for no cache")
    return _cache(user_cache() / "remote", int(limit * 1e9))
