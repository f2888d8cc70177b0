"""Files at URLs, by fsspec (extra `remote`): tries, what is there, lists, and writing. `ranges` reads them.

Answers of servers on files that are there are cached until `forget`, so that a file is the same one as long
as data are open. Nothing is open across a fork: fsspec makes its connections anew in the child.
"""

import errno
import os
import posixpath
import random
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from typing import Any, NamedTuple, TypeVar, cast

from grainline.data.record import data_error
from grainline.errors import Unreachable, UserError, some

T = TypeVar("T")

PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "hf": "huggingface_hub", "https": "aiohttp", "http": "aiohttp"}
PACKAGES |= {"az": "adlfs", "memory": "fsspec"}

TRIES = 6
PAUSE = 0.5  # seconds after the first try, twice as long after each further one
CONNECTIONS = 16  # of one process at a time
CONNECT, READ = 10, 60  # seconds that a web server may take to begin, and between two pieces of an answer

_VERSIONS = ("ETag", "etag", "md5Hash", "blob_id", "LastModified", "last_modified", "Last-Modified", "mtime")


class Changed(OSError):
    """A file of another state than when its index was read."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EBUSY, "it was changed after its index was read", path)


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
    version: str = ""  # the ETag, where the server gives one


_answers: dict[str, Answer] = {}  # of servers, by path
_MOST_ANSWERS = 2**20


def is_web(path: str) -> bool:
    """Whether a path is a URL of HTTP, which has queries, and links in place of lists."""
    return re.match("https?://", path) is not None


def forget(start: str, *, below: bool = False) -> None:
    """Ask the server anew of a path. below: of all paths that start so"""
    for path in [path for path in list(_answers) if path.startswith(start)] if below else [start]:
        _answers.pop(path, None)
    with suppress(UserError):  # whoever reads it says so
        fs, inner = filesystem(start)
        fs.invalidate_cache(None if below else inner)


def filesystem(path: str) -> tuple[Any, str]:
    """The file system of fsspec in this process, and its own name of a path. Raises UserError."""
    scheme, _, rest = path.partition("://")
    package = PACKAGES.get(scheme)
    if package is None or "::" in rest:
        what = f"{scheme}://" if package is None else "a chain with ::"
        known = ", ".join(f"{one}://" for one in PACKAGES if one != "memory")
        raise data_error(f"{path} is {what}, which is not read: allowed are {known} and local paths")
    try:
        from fsspec.core import url_to_fs

        options: dict[str, Any] = {}
        if package == "aiohttp":
            from aiohttp import ClientTimeout

            limits = ClientTimeout(total=None, sock_connect=CONNECT, sock_read=READ)
            options = {"headers": {"Accept-Encoding": "identity"}, "client_kwargs": {"timeout": limits}}
        return cast(tuple[Any, str], url_to_fs(path, **options))
    except ImportError:
        install = package if package == "adlfs" else f"'grainline[remote]' (or {package})"
        raise data_error(f"{path} needs a package: pip install {install}") from None


def tried(path: str, call: Callable[[], T]) -> T:
    """The result of a call to a server, which is made again after a failure that may pass.

    Raises OSError for a file that is not there or was changed, and Unreachable for what the server refuses
    and after the last try.
    """
    for pause in [PAUSE * 2**number for number in range(TRIES)]:
        try:
            return call()
        except (UserError, ImportError, Changed):
            raise
        except Exception as error:  # each library passes on those of whatever it speaks HTTP with
            failure = _behind(error)
            status, name = _status(failure), type(failure).__name__
            if isinstance(failure, FileNotFoundError) or status in (404, 410):
                raise FileNotFoundError(errno.ENOENT, "it is not there", path) from None
            if name == "FileExpired" or status == 412:
                raise Changed(path) from None
            why = next(iter(str(failure).strip().splitlines()), "") or name
            refused = isinstance(failure, PermissionError | ValueError | TypeError) or "Credentials" in name
            if refused or (400 <= status < 500 and status not in (408, 409, 429)):
                raise Unreachable(f"{path} is refused by the server ({why})") from None
        if pause < PAUSE * 2 ** (TRIES - 1):
            time.sleep(pause * random.uniform(0.5, 1))
    raise Unreachable(f"{path} cannot be read after {TRIES} tries ({why}); run the command again")


def _behind(error: Exception) -> BaseException:
    """The error behind one of fsspec, whose HTTP calls any failure a file that is not there."""
    hidden = isinstance(error, FileNotFoundError) and error.__cause__ is not None
    return error.__cause__ or error if hidden else error


def _status(error: BaseException) -> int:
    """The status of HTTP in an error of aiohttp, botocore, httpx or requests, or behind it; 0 without one."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    own = getattr(error, "status", 0) or getattr(response, "status_code", 0) or 0
    return int(own) or (_status(error.__cause__) if error.__cause__ is not None else 0)


def _cached(path: str, info: dict[str, Any]) -> Answer:
    """The answer in fsspec's info of a path, cached."""
    if info["type"] == "directory":
        answer = Answer("folder")
    else:
        answer = Answer("file", state_in(path, info), version_in(info))
    if len(_answers) >= _MOST_ANSWERS:
        for old in list(islice(_answers, _MOST_ANSWERS // 16)):
            _answers.pop(old, None)
    _answers[path] = answer
    return answer


def state_in(path: str, info: dict[str, Any]) -> State:
    """The state in fsspec's info of a file. Raises UserError without a size."""
    if info.get("size") is None:
        raise data_error(f"{path} has no known size, as its server does not tell: download it first")
    digest = blake2b(version_in(info).encode(), digest_size=7).digest()
    return State(int(info["size"]), int.from_bytes(digest))


def version_in(info: dict[str, Any]) -> str:
    """The version in fsspec's info of a file: its ETag or the like, else its time."""
    return next((str(info[name]) for name in _VERSIONS if info.get(name)), "")


def ask(path: str) -> Answer:
    """The answer of the server, or the cached one."""
    if (answer := _answers.get(path)) is not None:
        return answer
    fs, inner = filesystem(path)
    try:
        if is_web(path) and path.endswith("/"):
            tried(path, lambda: fs.ls(inner))
            return _cached(path, {"type": "directory"})
        return _cached(path, tried(path, lambda: fs.info(inner)))
    except FileNotFoundError:
        return Answer("")


def state_of(path: str) -> State:
    """The state of a file. Raises OSError."""
    kind, state, _ = ask(path)
    if kind != "file":
        number, why = (errno.EISDIR, "it is a folder") if kind else (errno.ENOENT, "it is not there")
        raise OSError(number, why, path)
    return state


def look_up(paths: Sequence[str], *, listing: bool = False) -> None:
    """Ask for many paths together. listing: for the list of their folder, where that is one"""
    new = [path for path in dict.fromkeys(paths) if path not in _answers]
    parents = {path.rpartition("/")[0] for path in new}
    if listing and len(new) > CONNECTIONS and len(parents) == 1 and not is_web(new[0]):
        with suppress(OSError, UserError):  # who may not list may still read
            names_in(parents.pop())
    for _ in pool(os.getpid()).map(ask, new):
        pass


def _listed(path: str, call: Callable[[Any, str], Any]) -> tuple[str, list[str]]:
    """The URL of a path, and those that a call to its file system lists, sorted. Their answers are cached."""
    fs, inner = filesystem(path)
    rows = tried(path, lambda: call(fs, inner))
    rows = rows.values() if isinstance(rows, dict) else rows
    scheme = path.partition("://")[0]

    def url(name: str) -> str:
        return name if "://" in name else f"{scheme}://{name.lstrip('/')}"

    root, urls = url(inner).rstrip("/"), list[str]()
    for row in rows:
        name = url(row["name"])
        if name.rstrip("/") == root or (row["type"] == "file" and name.endswith("/") and not is_web(path)):
            continue  # the mark of a folder on S3
        urls.append(name.rstrip("/"))
        if row["type"] == "directory" or row.get("size") is not None:  # links have no size
            _cached(urls[-1], row)
    return root, sorted(set(urls))


def names_in(folder: str) -> list[str]:
    """The names of the files and folders in a folder, as they are now."""
    forget(folder)
    return [url.rpartition("/")[2] for url in _listed(folder, lambda fs, path: fs.ls(path, detail=True))[1]]


def matches(pattern: str) -> list[str]:
    """The URLs that a pattern of the shell stands for, sorted; fsspec's leaves out what it cannot list."""
    scheme, _, rest = pattern.partition("://")
    first, *parts = rest.split("/")
    if any(letter in first for letter in "*?["):
        raise data_error(f"{pattern} has a wildcard in the name of its bucket or server: name one")
    paths = [f"{scheme}://{first}"]
    for part in parts:
        if not any(letter in part for letter in "*?["):
            paths = [f"{path}/{part}" for path in paths]
            continue
        lists = {}
        for path in paths:
            with suppress(FileNotFoundError, NotADirectoryError):
                lists[path] = names_in(f"{path}/" if scheme.startswith("http") else path)
        hidden = part.startswith(".")
        paths = [
            f"{path}/{name}"
            for path, names in lists.items()
            for name in names
            if fnmatchcase(name, part) and (hidden or not name.startswith("."))
        ]
    return sorted(path for path in paths if ask(path).kind)


def paths_below(folder: str) -> list[str]:
    """Paths of all files below a folder, relative to it, sorted, without hidden ones. Raises UserError."""
    if is_web(folder):
        return _links_below(folder if folder.endswith("/") else f"{folder}/")
    root, urls = _listed(folder, lambda fs, path: fs.find(path, detail=True))
    names = [url.removeprefix(f"{root}/") for url in urls]
    if odd := [name for name in names if "//" in name or name.startswith("/")]:
        raise data_error(f"{folder} holds {some(odd)}, whose paths no file system has: rename them")
    return sorted(name for name in names if "/." not in f"/{name}")


def _links_below(folder: str) -> list[str]:
    """The paths of files that the pages of a folder, and of folders in it, link to."""
    fs, inner = filesystem(folder)
    names = list[str]()
    for row in tried(folder, lambda: fs.ls(inner, detail=True)):
        name = row["name"].removeprefix(folder)
        if "://" in name or name.startswith((".", "?", "/")) or not name:
            continue
        names += [f"{name}{below}" for below in _links_below(folder + name)] if name.endswith("/") else [name]
    return sorted(names)


def normal(path: str) -> str:
    """A URL without `.`, `..` and doubled slashes, which no server resolves."""
    scheme, _, rest = path.partition("://")
    return f"{scheme}://{posixpath.normpath(rest)}{'/' * rest.endswith('/')}"


@lru_cache(maxsize=2)
def pool(pid: int) -> ThreadPoolExecutor:  # noqa: ARG001 - a child of a fork has no threads
    """Threads for requests of this process."""
    return ThreadPoolExecutor(CONNECTIONS, "grainline remote")


# Writing


def write(path: str, data: bytes) -> None:
    """Write a file whole."""
    fs, inner = filesystem(path)
    tried(path, lambda: fs.pipe_file(inner, data))
    forget(path)


def create(path: str, data: bytes) -> bool:
    """Write a file that is not there yet; False where another one is."""
    fs, inner = filesystem(path)

    def call() -> bool:
        try:
            fs.pipe_file(inner, data, mode="create")
        except Exception as error:
            if isinstance(error, FileExistsError) or _status(error) == 412:
                return False
            raise
        return True

    created = tried(path, call)
    forget(path)
    # the answer to the first try may be lost, and the second one finds the file of the first
    return created or bool(tried(path, lambda: fs.cat_file(inner)) == data)


def remove(path: str) -> None:
    """Remove a file, if it is there."""
    fs, inner = filesystem(path)
    with suppress(FileNotFoundError):
        tried(path, lambda: fs.rm_file(inner))
    forget(path)
