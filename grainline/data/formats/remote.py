"""Files at URLs, by fsspec (extra `remote`): what is there, and reading with retries, ahead, through a cache.

What the servers say of files is kept until `forget`, so that a file is the same one as long as data are open.
Nothing is open across a fork: fsspec makes its connections anew in the child.
"""

import errno
import io
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from threading import Lock
from typing import Any, NamedTuple, TypeVar, cast

from grainline.data.formats.blocks import BLOCK, BlockFile, cache
from grainline.data.record import data_error
from grainline.errors import Unreachable, UserError, some

T = TypeVar("T")

PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "hf": "huggingface_hub", "https": "aiohttp", "http": "aiohttp"}
PACKAGES |= {"az": "adlfs", "memory": "fsspec"}

TRIES = 6
PAUSE = 0.5  # seconds after the first try, twice as long after each further one
CONNECTIONS = 16  # of one process at a time
PIECE = 2**22  # bytes of one request at most
AHEAD = 2**23  # bytes that are read ahead where a file is read from its start on
GAP = 2**20  # bytes that may be skipped there

_VERSIONS = ("ETag", "etag", "md5Hash", "blob_id", "LastModified", "last_modified", "Last-Modified", "mtime")
_CHANGED = errno.EBUSY, "it was changed after its index was read"


class State(NamedTuple):
    """The size of a file in bytes, and when it was changed: in nanoseconds, or a digest of its version."""

    size: int
    changed: int


class Range(NamedTuple):
    """Some bytes of a file."""

    path: str
    offset: int = 0
    size: int | None = None  # None: all that follow


class Answer(NamedTuple):
    """The kind of a path, "file", "folder" or "" for what is not there, and the state of a file."""

    kind: str
    state: State = State(0, 0)


_answers: dict[str, Answer] = {}  # of servers, by path
_MOST_ANSWERS = 2**20


def forget(start: str) -> None:
    """Ask the server anew of all paths that start so."""
    for path in [path for path in _answers if path.startswith(start)]:
        del _answers[path]
    _filesystem(start)[0].invalidate_cache()


def _filesystem(path: str) -> tuple[Any, str]:
    """The file system of fsspec in this process, and its own name of a path. Raises UserError."""
    scheme, _, rest = path.partition("://")
    package = PACKAGES.get(scheme)
    if package is None or "::" in rest:
        what = f"{scheme}://" if package is None else "a chain with ::"
        known = ", ".join(f"{one}://" for one in PACKAGES if one != "memory")
        raise data_error(f"{path} is {what}, which is not read: allowed are {known} and local paths")
    try:
        from fsspec.core import url_to_fs

        options = {"headers": {"Accept-Encoding": "identity"}} if package == "aiohttp" else {}
        return cast(tuple[Any, str], url_to_fs(path, **options))
    except ImportError:
        install = package if package == "adlfs" else f"'grainline[remote]' (or {package})"
        raise data_error(f"{path} needs a package: pip install {install}") from None


def tried(path: str, call: Callable[[], T]) -> T:
    """The result of a call to a server, which is made again after a failure that may pass.

    Raises OSError for a file that is not there or was changed, UserError for what the server refuses, and
    Unreachable after the last try.
    """
    for pause in [PAUSE * 2**number for number in range(TRIES)]:
        try:
            return call()
        except (UserError, ImportError):
            raise
        except Exception as error:  # each library passes on those of whatever it speaks HTTP with
            failure = _behind(error)
            status, name = _status(failure), type(failure).__name__
            if isinstance(failure, FileNotFoundError) or status in (404, 410):
                raise FileNotFoundError(errno.ENOENT, "it is not there", path) from None
            if isinstance(failure, OSError) and failure.errno == errno.EBUSY:
                raise OSError(*_CHANGED, path) from None
            why = next(iter(str(failure).strip().splitlines()), "") or name
            refused = isinstance(failure, PermissionError | ValueError | TypeError) or "Credentials" in name
            if refused or (400 <= status < 500 and status not in (408, 429)):
                raise data_error(f"{path} is refused by the server ({why})") from None
        time.sleep(pause * random.uniform(0.5, 1))
    raise Unreachable(f"{path} cannot be read after {TRIES} tries ({why}); run the command again")


def _behind(error: Exception) -> BaseException:
    """The error behind one of fsspec: its file system of HTTP calls any failure a file that is not there."""
    cause = error.__cause__
    hidden = isinstance(error, FileNotFoundError) and type(cause).__module__.startswith("aiohttp")
    return cause if cause is not None and hidden else error


def _status(error: BaseException) -> int:
    """The status of HTTP in an error of aiohttp, botocore, httpx or requests; 0 without one."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return int(getattr(error, "status", 0) or getattr(response, "status_code", 0) or 0)


def _keep(path: str, info: dict[str, Any]) -> Answer:
    """The answer in fsspec's info of a path, kept."""
    if len(_answers) >= _MOST_ANSWERS:
        _answers.clear()
    answer = Answer("folder" if info["type"] == "directory" else "")
    if info["type"] == "file":
        answer = Answer("file", _state(path, info))
    _answers[path] = answer
    return answer


def _state(path: str, info: dict[str, Any]) -> State:
    """The state in fsspec's info of a file. Raises UserError without a size."""
    if info.get("size") is None:
        raise data_error(f"{path} has no known size, as its server does not tell: download it first")
    version = next((str(info[name]) for name in _VERSIONS if info.get(name)), "")
    return State(int(info["size"]), int.from_bytes(blake2b(version.encode(), digest_size=7).digest()))


def ask(path: str) -> Answer:
    """The answer of the server, or the one that was kept."""
    if (answer := _answers.get(path)) is not None:
        return answer
    fs, inner = _filesystem(path)
    try:
        if path.startswith("http") and path.endswith("/"):
            return _keep(path, {"type": "directory" if tried(path, lambda: fs.exists(inner)) else ""})
        return _keep(path, tried(path, lambda: fs.info(inner)))
    except FileNotFoundError:
        return _keep(path, {"type": ""})


def state_of(path: str) -> State:
    """The state of a file. Raises OSError."""
    kind, state = ask(path)
    if kind != "file":
        number, why = (errno.EISDIR, "it is a folder") if kind else (errno.ENOENT, "it is not there")
        raise OSError(number, why, path)
    return state


def look_up(paths: Sequence[str]) -> None:
    """Ask for many paths together; where their folder can be listed, for the list."""
    new = [path for path in dict.fromkeys(paths) if path not in _answers]
    parents = {path.rpartition("/")[0] for path in new}
    if len(new) > CONNECTIONS and len(parents) == 1 and not new[0].startswith("http"):
        names_in(parents.pop())
    for _ in _pool(os.getpid()).map(ask, new):
        pass


def _listed(path: str, call: Callable[[Any, str], Any]) -> tuple[str, list[str]]:
    """The URL of a path, and those that a call to its file system lists, with their answers kept; sorted."""
    fs, inner = _filesystem(path)
    rows = tried(path, lambda: call(fs, inner))
    rows = rows.values() if isinstance(rows, dict) else rows
    scheme = path.partition("://")[0]

    def url(name: str) -> str:
        return (name if "://" in name else f"{scheme}://{name.lstrip('/')}").rstrip("/")

    for row in rows:
        _keep(url(row["name"]), row)
    return url(inner), sorted(url(row["name"]) for row in rows)


def names_in(folder: str) -> list[str]:
    """The names of the files and folders in a folder."""
    return [url.rpartition("/")[2] for url in _listed(folder, lambda fs, path: fs.ls(path, detail=True))[1]]


def matches(pattern: str) -> list[str]:
    """The URLs that a pattern stands for, sorted."""
    return _listed(pattern, lambda fs, path: fs.glob(path, detail=True))[1]


def paths_below(folder: str) -> list[str]:
    """Paths of all files below a folder, relative to it, sorted, without hidden ones. Raises UserError."""
    root, urls = _listed(folder, lambda fs, path: fs.find(path, detail=True))
    names = [url.removeprefix(f"{root}/") for url in urls if url != root]
    if odd := [name for name in names if "//" in name or name.startswith("/")]:
        raise data_error(f"{folder} holds {some(odd)}, whose paths no file system has: rename them")
    return sorted(name for name in names if "/." not in f"/{name}")


# Writing


def write(path: str, data: bytes) -> None:
    """Write a file whole."""
    fs, inner = _filesystem(path)
    tried(path, lambda: fs.pipe_file(inner, data))
    forget(path)


def create(path: str, data: bytes) -> bool:
    """Write a file that is not there yet; False where another one is."""
    fs, inner = _filesystem(path)

    def call() -> bool:
        try:
            fs.pipe_file(inner, data, mode="create")
        except Exception as error:
            number = getattr(error, "errno", 0)
            if number in (errno.EEXIST, errno.EBUSY) or _status(error.__cause__ or error) in (409, 412):
                return False
            raise
        return True

    created = tried(path, call)
    forget(path)
    # the answer to the first try may be lost, and the second one finds the file of the first
    return created or bool(tried(path, lambda: fs.cat_file(inner)) == data)


def remove(path: str) -> None:
    """Remove a file, if it is there."""
    fs, inner = _filesystem(path)
    with suppress(FileNotFoundError):
        tried(path, lambda: fs.rm_file(inner))
    forget(path)


# Reading


@lru_cache(maxsize=2)
def _pool(pid: int) -> ThreadPoolExecutor:  # noqa: ARG001 - a child of a fork has no threads
    return ThreadPoolExecutor(CONNECTIONS, "grainline remote")


class _Object:
    """A remote file of one state, in this process."""

    def __init__(self, path: str, state: State) -> None:
        """Raises OSError where it has another state."""
        if state_of(path) != state:
            raise OSError(*_CHANGED, path)
        self.path, self.size, self.state = path, state.size, state
        self.fs, self.inner = _filesystem(path)
        self.opened: Any = None
        self.blocks: BlockFile | None = None
        self.end = -1  # of the latest read
        self._opening = Lock()

    def store(self) -> BlockFile | None:
        """The blocks on the disk. None where nothing can be kept."""
        if self.blocks is None or self.blocks.removed:
            self.blocks = cache().file(self.path, *self.state)
            if self.blocks is None:
                _say(cache().broken)
        return self.blocks

    def get(self, start: int, end: int) -> bytes:
        """These bytes from the server, kept on the disk where they begin with a block."""
        data = tried(self.path, lambda: self._request(start, end))
        if (blocks := self.store()) is not None:
            blocks.write(start // BLOCK, data)
        return data

    def _request(self, start: int, end: int) -> bytes:
        web = self.path.startswith("http")
        with self._opening:
            if self.opened is None and not web:
                # fsspec's file of S3 and of GS asks for the version that it was opened in
                opened = self.fs.open(self.inner, "rb", cache_type="none")
                if (info := getattr(opened, "details", None)) and _state(self.path, info) != self.state:
                    raise OSError(*_CHANGED, self.path)
                self.opened = opened
        ranged = getattr(self.opened, "_fetch_range", None)
        data = bytes(ranged(start, end) if ranged else self.fs.cat_file(self.inner, start=start, end=end))
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
        f"remote files are not kept on this disk, so each is read whenever it is used: {why}", file=sys.stderr
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
    """Fetch some bytes into the cache, together. What is not there fails when it is read."""
    if cache().broken:
        return
    ranges = list(ranges)
    look_up([one.path for one in ranges])
    wanted: list[tuple[_Object, int, int]] = []
    for path, offset, size in ranges:
        kind, state = ask(path)
        if kind != "file":
            continue
        one = _objects(os.getpid(), path, state)
        end = one.size if size is None else min(offset + size, one.size)
        if offset < end and (store := one.store()) is not None:
            absent = store.absent((offset // BLOCK, -(-end // BLOCK)))
            wanted += [(one, *piece) for run in absent for piece in _pieces(range(*run))]
    for _ in _together(list(dict.fromkeys(wanted))):
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


def _together(wanted: Sequence[tuple[_Object, int, int]]) -> Iterator[tuple[int, bytes]]:
    """The first block and the bytes of each piece, in order; several requests at a time."""

    def get(piece: tuple[_Object, int, int]) -> tuple[int, bytes]:
        one, first, last = piece
        return first, one.get(first * BLOCK, min(last * BLOCK, one.size))

    return map(get, wanted) if len(wanted) < 2 else _pool(os.getpid()).map(get, wanted)


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
