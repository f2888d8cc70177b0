"""Atomic files, sealed folders, a restricted unpickler, and one writer at a time in a folder.

A file is replaced behind links; a pipe or a device is never replaced. A sealed folder holds `state.json` with
the size and sha256 of every other file and of itself.
"""

import errno
import hashlib
import json
import os
import pickle
import re
import shutil
import socket
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from grainline.errors import UserError
from grainline.system import WRITE, lock, open_regular, read_at, sync
from grainline.system import read_plain as read_plain

STATE = "state.json"
PAGE = 2**16  # bytes of one checksum, in files too large to be read whole
_SAVING, _REPLACED = ".saving-", ".replaced-"  # hidden: not yet in place, and moved away for a replacement
_FOLDERS = re.compile(r"(?<![\w./\\])(?:~|[A-Za-z]:)?[/\\](?:[^/\\?,]+[/\\])+")
WRITE_ERRORS = (OSError, SafetensorError)


class Corrupt(Exception):
    """A sealed folder is damaged. The caller adds the place and the remedy to the message."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """A synced safetensors file; equal tensors and metadata give equal bytes.

    Tied tensors are written once for each name: the format knows no sharing.
    """
    flat, storages = dict[str, Tensor](), set[int]()
    for name, tensor in tensors.items():
        tensor = tensor.detach().contiguous()
        start = tensor.untyped_storage().data_ptr()
        flat[name] = tensor.clone() if start in storages else tensor
        storages.add(start)
    save_file(flat, path, metadata={"format": "pt", **metadata})
    _sort_metadata(path)
    share(path)
    sync(path)


def share(path: Path) -> None:
    """Let those read a file who may read its folder: safetensors writes for the owner alone."""
    os.chmod(path, path.parent.stat().st_mode & 0o666)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically and sync it. After an OSError the old file is still there.

    File names may hold bytes that are not UTF-8. They are written as \\udcff, which JSON reads as the name.
    """
    with drafted(path) as draft:
        draft.write_text(text, encoding="utf-8", errors="backslashreplace")
        sync(draft)


@contextmanager
def drafted(target: Path) -> Iterator[Path]:
    """A temporary path for a file or folder, renamed to target when the block ends, else removed."""
    draft = temporary_path(target)
    try:
        yield draft
        move_into_place(target)
    finally:
        discard(draft)


@contextmanager
def writing(target: Path, advice: str = "choose another --out") -> Iterator[None]:
    """An error of the system in the block becomes a UserError that names the target, a file or a folder.

    advice  what the user can do; if the disk is full, freeing some space comes first
    """
    try:
        yield
    except WRITE_ERRORS as error:
        if _number(error) in (errno.ENOSPC, errno.EDQUOT):
            advice = f"free some space, or {advice}"
        into = "into " if target.is_dir() else ""
        raise UserError(f"cannot write {into}{target}: {reason(error)}; {advice}") from None


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """`drafted` with its folder made: UserError if the target cannot be written; the old file stays."""
    with writing(target, "choose another place"):
        target.parent.mkdir(parents=True, exist_ok=True)
        discard(temporary_path(target))  # of a process that was killed
        with drafted(target) as draft:
            yield draft


def seal(folder: Path, body: Mapping[str, Any]) -> None:
    """Write state.json: `body` (what JSON can hold) and the size and sha256 of the files in the folder."""
    files = {path.name: _fingerprint(path) for path in sorted(folder.iterdir())}
    (folder / STATE).write_text(sealed_json({**body, "files": files}), encoding="utf-8")
    sync(folder / STATE)
    sync(folder)


def unseal(folder: Path, only: Collection[str] | None = None) -> dict[str, Any]:
    """Check every file, or `only` some; returns the body that `seal` wrote. Raises Corrupt."""
    body = read_sealed(folder / STATE)
    sums = body.pop("files")
    check_files(folder, {name: x for name, x in sums.items() if only is None or name in only})
    return body


def check_files(folder: Path, files: Mapping[str, Any], by_size: Collection[str] = ()) -> None:
    """Compare files with their sizes and sums; raises Corrupt. by_size: files too large to be read now"""
    for name, expected in files.items():
        try:
            size = (folder / name).stat().st_size
            if size != expected["bytes"]:
                raise Corrupt(f"{name} has {size} bytes instead of {expected['bytes']}")
            if name not in by_size and _fingerprint(folder / name) != expected:
                raise Corrupt(f"{name} does not have the sha256 it was written with")
        except OSError as error:
            raise Corrupt(f"{name} cannot be read ({reason(error)})") from None


def page_sums(path: Path) -> str:
    """The crc32 of every PAGE bytes of a file, in order, 8 hexadecimal digits each."""
    with open_regular(path) as file:
        return "".join(crc32(piece) for piece in iter(lambda: file.read(PAGE), b""))


def crc32(piece: Any) -> str:
    """
    >>> crc32(b"123456789")
    'cbf43926'
    """
    return f"{zlib.crc32(piece):08x}"


def sealed_json(body: Mapping[str, Any]) -> str:
    """JSON of the body with its own sha256."""
    whole = json.loads(json.dumps(dict(body), allow_nan=False))
    return json.dumps(whole | {"sha256": _digest(whole)}, indent=1)


def read_sealed(path: Path) -> dict[str, Any]:
    """The body of a file that `sealed_json` wrote; raises Corrupt."""
    try:
        body = json.loads(read_plain(path))
        digest = body.pop("sha256")
    except OSError as error:
        raise Corrupt(f"{path.name} cannot be read ({reason(error)})") from None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise Corrupt(f"{path.name} is damaged") from None
    if digest != _digest(body):
        raise Corrupt(f"{path.name} has been changed since it was written")
    return dict(body)


def read_settings(file: Path) -> dict[str, Any]:
    """A JSON file of settings by name; empty where there is none. UserError for other content."""
    try:
        content = json.loads(read_plain(file))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is no JSON: {error}; fetch it again") from None
    if not isinstance(content, dict):
        raise UserError(f"{file} holds a {type(content).__name__}, not settings by name; fetch it again")
    return content


def is_stream(target: Path) -> bool:
    """Whether the target is a pipe, a device or the like, which no file can replace."""
    return target.exists() and not target.is_file() and not target.is_dir()


def behind_links(target: Path) -> Path:
    """The path itself, or where its links lead. Raises OSError for links in a circle."""
    place = Path(os.path.realpath(target)) if target.is_symlink() or not target.name else target
    if place.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(target))
    return place


def temporary_path(target: Path) -> Path:
    """The path next to target, behind its links, from which `move_into_place` renames. Raises OSError."""
    place = behind_links(target)
    return place.with_name(_SAVING + place.name)


def move_into_place(target: Path) -> None:
    """Rename `temporary_path(target)` to target, behind its links. Raises OSError.

    A folder with files cannot be replaced in one step, so it is moved away first. No file replaces a folder,
    a pipe or a device.
    """
    draft, target = temporary_path(target), behind_links(target)
    old = target.with_name(_REPLACED + target.name)
    if is_stream(target) or (target.is_dir() and not draft.is_dir()):
        raise OSError(errno.EEXIST, "it is a folder" if target.is_dir() else "it is no regular file")
    if target.is_dir():
        os.rename(target, old)
    try:
        os.replace(draft, target)
    except OSError:
        if old.exists():
            os.rename(old, target)
        raise
    sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def existing_folder(target: Path) -> Path | None:
    """The folder at target, or the old one if the process died while it replaced it; else None."""
    return next((path for path in (target, target.with_name(_REPLACED + target.name)) if path.is_dir()), None)


def original_name(path: Path) -> str:
    """The name of a folder before it was moved aside."""
    return path.name.removeprefix(_REPLACED)


def remove(folder: Path) -> None:
    """Remove a folder, after a rename, so that a kill never leaves a part of it in place."""
    os.rename(folder, temporary_path(folder))
    shutil.rmtree(temporary_path(folder))


def clear_leftovers(folder: Path) -> None:
    """Clean up after a killed process: remove unfinished folders, restore those that it had moved away."""
    for path in list(folder.iterdir()):
        target = folder / original_name(path)
        if path.name.startswith(_SAVING):
            discard(path)
        elif path.name.startswith(_REPLACED) and target.exists():
            shutil.rmtree(path)
        elif path.name.startswith(_REPLACED):
            os.rename(path, target)


def discard(path: Path) -> None:
    """Remove a file or folder if it is there and can be removed."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def link(file: Path, target: Path) -> None:
    """A second name for a file, or a copy where the file system has no hard links."""
    try:
        os.link(file, target)
    except OSError:
        shutil.copyfile(file, target)
        sync(target)


def without_folders(text: str) -> str:
    """Absolute paths in a text, cut to their last part: folders of a machine are of no use elsewhere.

    >>> without_folders("coco:/home/me/a.json?images=/data/photos"), without_folders("runs/first")
    ('coco:a.json?images=photos', 'runs/first')
    """
    return _FOLDERS.sub("", text)


def reason(error: Exception) -> str:
    """The message of the system, in lower case; safetensors has the error number only in its message.

    >>> reason(OSError(28, "x")), reason(SafetensorError("Error: I/O error: No space left (os error 28)"))
    ('no space left on device', 'no space left on device')
    """
    number = _number(error)
    own = str(error.strerror) if number in (errno.EINVAL, errno.EEXIST) and isinstance(error, OSError) else ""
    return (own or os.strerror(number)).lower() if number else str(error)


def _number(error: Exception) -> int | None:
    inside = re.search(r"os error (\d+)", str(error))
    return int(inside[1]) if inside else error.errno if isinstance(error, OSError) else None


def _sort_metadata(path: Path) -> None:
    """Sort the metadata by name; safetensors writes them in random order."""
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        assert len(text) <= length, "the same fields take the same room"
        file.seek(8)
        file.write(text.ljust(length))  # the format fills up with blanks


def _fingerprint(path: Path) -> dict[str, Any]:
    with open_regular(path) as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, allow_nan=False).encode()).hexdigest()


class Unpickler(pickle.Unpickler):
    """Reads a pickle with a fixed set of names; nothing else is imported or called.

    known  (module, name) -> the object in its place; pickle.UnpicklingError for any other name
    """

    def __init__(
        self, file: IO[bytes], known: Mapping[tuple[str, str], Any] = MappingProxyType({}), **options: Any
    ) -> None:
        super().__init__(file, **options)
        self.known = known

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.known:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which was not run")
        return self.known[module, name]


LOCK = "lock"  # never removed, because that could remove the lock of another process


class InUse(UserError):
    """Another process holds the lock of the folder."""


class NoLocks(UserError):
    """The file system of the folder has no locks."""


@contextmanager
def one_writer(folder: Path, what: str, hint: str = "wait until it ends") -> Iterator[None]:
    """Lock a folder for the length of the block, without waiting. The lock ends with the process.

    what  kind and name of the folder, such as "index photos.idx"; hint: advice where it is in use

    Raises InUse with the process that holds the lock, and NoLocks where the file system cannot lock. Children
    of this process do not keep the lock alive.
    """
    with writing(folder, "choose another folder"):
        file = os.open(folder / LOCK, WRITE | getattr(os, "O_NOFOLLOW", 0), 0o644)  # it is emptied below
    _open.add(file)
    try:
        try:
            alone = lock(file)
        except OSError as error:
            raise NoLocks(f"{what} cannot be locked: {reason(error)}; use another disk") from None
        if not alone:
            number, _, host = read_at(file, 300, 0).decode("utf-8", "replace").strip().partition(" ")
            holder = f"process {number} on {host}" if host else "another process"
            raise InUse(f"{what} is being written by {holder}; {hint}")
        with writing(folder, "choose another folder"):
            os.ftruncate(file, 0)
            os.write(file, f"{os.getpid()} {socket.gethostname()}".encode())
        yield
    finally:
        _open.discard(file)
        os.close(file)


_open = set[int]()


def _close_in_child() -> None:
    """Close lock files in a forked child, or a data loader that outlives this process would keep the lock."""
    while _open:
        os.close(_open.pop())


if hasattr(os, "register_at_fork"):  # where a process can fork
    os.register_at_fork(after_in_child=_close_in_child)
