"""Parts of files at URLs: several requests at a time, ahead, and through a cache of blocks on the disk."""

import io
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from threading import Lock
from typing import Any

from grainline.data.formats.blocks import BLOCK, BlockFile, cache
from grainline.data.formats.remote import (
    Changed,
    Range,
    State,
    ask,
    filesystem,
    is_web,
    look_up,
    pool,
    state_in,
    state_of,
    tried,
)
from grainline.data.record import data_error

PIECE = 2**22  # bytes of one request at most
AHEAD = 2**23  # bytes that are read ahead where a file is read from its start on
GAP = 2**20  # bytes that may be skipped there


class _Object:
    """A remote file of one state, in this process."""

    def __init__(self, path: str, state: State) -> None:
        """Raises OSError where it has another state."""
        if state_of(path) != state:
            raise Changed(path)
        self.path, self.size, self.state = path, state.size, state
        self.fs, self.inner = filesystem(path)
        self.opened: Any = None
        self.blocks: BlockFile | None = None
        self.end = -1  # of the latest read
        self._opening = Lock()

    def store(self) -> BlockFile | None:
        """The blocks on the disk. None where nothing can be written."""
        if self.blocks is None or self.blocks.removed:
            self.blocks = cache().file(self.path, *self.state)
            if self.blocks is None:
                _say(cache().broken)
        return self.blocks

    def get(self, start: int, end: int) -> bytes:
        """These bytes from the server, written to the cache; they begin with a block."""
        data = tried(self.path, lambda: self._request(start, end))
        if (blocks := self.store()) is not None:
            blocks.write(start // BLOCK, data)
        return data

    def _request(self, start: int, end: int) -> bytes:
        web = is_web(self.path)
        with self._opening:
            if self.opened is None and not web:
                # fsspec's file of S3 asks for the version that it was opened in
                opened = self.fs.open(self.inner, "rb", cache_type="none")
                if (info := getattr(opened, "details", None)) and state_in(self.path, info) != self.state:
                    raise Changed(self.path)
                self.opened = opened
        ranged = getattr(self.opened, "_fetch_range", None)
        tag = ask(self.path).version
        same = {"If-Match": tag, "Accept-Encoding": "identity"} if web and tag.startswith('"') else {}
        options = {"headers": same} if same else {}
        data = bytes(
            ranged(start, end) if ranged else self.fs.cat_file(self.inner, start=start, end=end, **options)
        )
        if web and len(data) == self.size > end - start:  # a server that knows no ranges
            if self.size > PIECE:
                raise data_error(f"{self.path}: its server sends whole files alone: download it first")
            data = data[start:end]
        if len(data) != end - start:
            raise OSError(f"{len(data):,} bytes came in place of {end - start:,}")
        return data


@lru_cache(maxsize=1)
def _say(why: str) -> None:
    print(
        f"remote files are not cached on this disk, so each is read whenever it is used: {why}",
        file=sys.stderr,
    )


@lru_cache(maxsize=256)
def _objects(pid: int, path: str, state: State) -> _Object:  # noqa: ARG001 - connections are of one process
    return _Object(path, state)


def read_range(path: str, state: State, offset: int, size: int) -> bytes:
    """Up to `size` bytes from an offset on; more is fetched where a file is read from its start on."""
    one = _objects(os.getpid(), path, state)
    end = min(offset + size, one.size)
    if end <= offset:
        return b""
    run = offset // BLOCK, -(-end // BLOCK)
    store = one.store()
    blocks = store.read(run) if store else {}
    absent = [block for block in range(*run) if block not in blocks]
    if absent and store and one.end >= 0 and 0 <= offset - one.end <= GAP:  # the file is read to its end
        ahead = run[1], min(-(-one.size // BLOCK), run[1] + AHEAD // BLOCK)
        absent += [block for part in store.absent(ahead) for block in range(*part)]
    for first, data in _together([(one, *piece) for piece in _pieces(absent)]):
        blocks.update({first + i // BLOCK: data[i : i + BLOCK] for i in range(0, len(data), BLOCK)})
    one.end = end
    data = b"".join(blocks[block] for block in range(*run))
    return data[offset - run[0] * BLOCK : end - run[0] * BLOCK]


def fetch(ranges: Iterable[Range]) -> None:
    """Fetch some bytes into the cache, together. What is not there, or was changed, fails when it is read."""
    if cache().broken:
        return
    ranges = list(ranges)
    look_up([one.path for one in ranges])
    wanted: list[tuple[_Object, int, int]] = []
    for path, offset, size in ranges:
        kind, state, _ = ask(path)
        if kind != "file":
            continue
        try:
            one = _objects(os.getpid(), path, state)
        except OSError:
            continue
        end = one.size if size is None else min(offset + size, one.size)
        if offset < end and (store := one.store()) is not None:
            absent = store.absent((offset // BLOCK, -(-end // BLOCK)))
            wanted += [(one, *piece) for run in absent for piece in _pieces(range(*run))]
    for _ in _together(list(dict.fromkeys(wanted)), must=False):
        pass


def _pieces(blocks: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Neighbouring blocks in pieces of one request: the first, and the one behind the last."""
    first = last = -1
    for block in blocks:
        if block != last or (block - first) * BLOCK >= PIECE:
            if last > first:
                yield first, last
            first = block
        last = block + 1
    if last > first:
        yield first, last


def _together(
    wanted: Sequence[tuple[_Object, int, int]], *, must: bool = True
) -> Iterator[tuple[int, bytes]]:
    """The first block and the bytes of each piece, in order; several requests at a time.

    must: raise OSError for a file that is not there or was changed; else its bytes are empty
    """

    def get(piece: tuple[_Object, int, int]) -> tuple[int, bytes]:
        one, first, last = piece
        try:
            return first, one.get(first * BLOCK, min(last * BLOCK, one.size))
        except OSError:
            if must:
                raise
            return first, b""

    return map(get, wanted) if len(wanted) < 2 else pool(os.getpid()).map(get, wanted)


class RemoteFile(io.RawIOBase):
    """A remote file, open for reading from any position."""

    def __init__(self, path: str) -> None:
        """Raises OSError where it is not there."""
        self.path, self.state, self._position = path, state_of(path), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.state.size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        data = read_range(self.path, self.state, self._position, len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
