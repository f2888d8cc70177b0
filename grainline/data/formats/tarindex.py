"""The index of a tar: where its members lie, read from its headers and cached in the user's cache folder.

`members` reads POSIX ustar, GNU and pax headers, concatenated archives, and reports a truncated archive.
`Shard` groups the members into samples: all with the same name up to the first dot of the last component of
their paths; where that puts two samples under one key, up to the ending. `load_shard` caches it in
$XDG_CACHE_HOME/grainline/index (else ~/.cache), one file per tar, valid while the tar's size and modification
time stay the same.
"""

import contextlib
import hashlib
import json
import os
import tempfile
from array import array
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

from grainline.data.formats.common import IMAGE_SUFFIXES
from grainline.data.formats.plain import data_error, regular
from grainline.system import read_at, read_plain

# The key of a sample is the name of its members up to the first dot. A tar of `grainline data pack` says in
# its global header that names are percent-quoted as in URLs, so that any key can be restored.

HEADER = {"GRAINLINE.keys": "quoted"}


def quoted(key: str) -> str:
    """A key as the name of a member, without its suffix: ASCII, no dots, no slash at its ends.

    >>> quoted("cats/a.v2.jpg"), quoted("/b"), quoted("rows.parquet:7")
    ('cats/a%2Ev2%2Ejpg', '%2Fb', 'rows%2Eparquet%3A7')
    """
    name = quote(key, safe="/ ,+=@()", errors="surrogatepass").replace(".", "%2E")
    name = f"%2F{name[1:]}" if name.startswith("/") else name
    return f"{name[:-1]}%2F" if name.endswith("/") else name


VERSION = 4  # of the cache files: raise it when the meaning of Shard changes
ABSENT = -1
SEVERAL = -2  # in place of the offset of an image: two images of one key, or two texts of one ending
SPANS = 6  # numbers per sample in Shard.spans

_BLOCK = 512
_LARGEST = 2**62  # bytes of a member: places and sizes are kept in 63 bits
_LONGEST = 1 << 20  # bytes of a header that speaks of the next one: names and attributes, never data
_PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


class Member(NamedTuple):
    """One file of a tar."""

    name: str
    offset: int  # of its first byte
    size: int


class Members(NamedTuple):
    """The files of a tar in order; the last one may reach beyond the end of the tar."""

    files: list[Member]
    flaw: str  # why reading stopped early; "" if it did not
    truncated: bool  # whether further samples are missing
    quoted: bool = False  # whether names are as grainline.data.formats.tarindex makes them


class Shard(NamedTuple):
    """The samples of one tar."""

    path: str  # absolute
    size: int
    mtime_ns: int
    keys: list[str]
    spans: array  # SPANS numbers a sample: offset and size of image, json, txt; ABSENT where there is none
    flaw: str
    truncated: bool  # the last sample is incomplete, or a key that stands for missing samples
    dotted: str  # a key up to the first dot that would hold several samples; "": there is none
    unread: int  # images and texts beside another one of their key, which is read
    first_unread: str  # name of the first of them


class _Header(NamedTuple):
    name: str
    size: int
    kind: bytes


def members(path: str) -> Members:
    """All files of a tar, from its headers. Raises UserError for what is no tar, or a packed one."""
    files: list[Member] = []
    flaw, truncated = "ends without an end mark", False
    regular(path)
    with open(path, "rb", buffering=0) as file:
        handle, end = file.fileno(), os.fstat(file.fileno()).st_size
        _refuse_packed(path, read_at(handle, 6, 0))
        position, extra, common = 0, {}, dict[str, str]()
        while position < end:
            block = read_at(handle, _BLOCK, position)
            if block == bytes(_BLOCK):  # two zero blocks end an archive; another one may follow
                flaw, position = "", position + _BLOCK
                continue
            header = _header(block)
            if header is None and position == 0 and len(block) == _BLOCK:
                raise data_error(f"{path} is not a tar (no valid header at its start)")
            more = None if header is None else _extension(handle, header, position + _BLOCK)
            if header is None or more is None:
                flaw = f"has a cut or damaged header at byte {position}"
                return Members(files, flaw, True, common.items() >= HEADER.items())
            flaw = "ends without an end mark"
            size = header.size
            if header.kind == b"g":
                common.update(more)
            elif header.kind in (b"x", b"L", b"K"):
                extra.update(more)
            else:
                size = _add(files, header, common | extra, position + _BLOCK, path)
                extra = {}
            position += _BLOCK + -(-size // _BLOCK) * _BLOCK
    if files and files[-1].offset + files[-1].size > end:
        flaw = f"ends inside {files[-1].name}"
    elif extra:
        flaw, truncated = f"ends behind the header of a member at byte {end}", True
    elif end == 0:
        flaw, truncated = "is empty", True
    return Members(files, flaw, truncated, common.items() >= HEADER.items())


def _add(files: list[Member], header: _Header, extra: dict[str, str], offset: int, path: str) -> int:
    """Append a member if it is a file; how many bytes of data follow its header."""
    name = extra.get("path", header.name)
    if header.kind == b"S" or "GNU.sparse.major" in extra:
        raise data_error(f"{path} holds the sparse file {name}: write the tar again without --sparse")
    if header.kind not in (b"0", b"\0", b"7"):
        return 0 if header.kind in b"123456" else header.size  # links, devices and folders have no data
    size = int(extra.get("size", header.size))
    if not name.endswith("/"):
        files.append(Member(name, offset, size))
    return size


def _refuse_packed(path: str, start: bytes) -> None:
    for magic, name in _PACKED.items():
        if start.startswith(magic):
            raise data_error(f"{path} is packed with {name}: unpack it first, tars are read at random places")


def _header(block: bytes) -> _Header | None:
    """The fields of a header block; None if its checksum or a number in it is wrong."""
    try:
        if len(block) < _BLOCK or sum(block) - sum(block[148:156]) + 8 * 32 != _number(block[148:156]):
            return None
        name, size = _text(block[:100]), _number(block[124:136])
    except ValueError:
        return None
    if block[257:263] == b"ustar\0" and block[345]:  # GNU writes other things where POSIX has the prefix
        name = f"{_text(block[345:500])}/{name}"
    return _Header(name, size, block[156:157]) if 0 <= size <= _LARGEST else None


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def _number(field: bytes) -> int:
    """Octal digits, or binary behind a set high bit (sizes of 8 GiB and more). Raises ValueError."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    return int(field.split(b"\0", 1)[0].strip() or b"0", 8)


def _extension(handle: int, header: _Header, offset: int) -> dict[str, str] | None:
    """The attributes that an extension header gives the next member; None if its data are incomplete."""
    if header.kind not in (b"x", b"g", b"L", b"K"):
        return {}
    data = read_at(handle, min(header.size, _LONGEST + 1), offset)
    if len(data) != header.size:
        return None
    if header.kind == b"L":
        return {"path": _text(data)}
    if header.kind == b"K":
        return {}
    attributes: dict[str, str] = {}
    while data and data[0]:
        digits, _, _ = data.partition(b" ")
        if not digits.isdigit() or len(digits) > 8 or not len(digits) < int(digits) <= len(data):
            return None
        name, _, value = data[len(digits) + 1 : int(digits) - 1].partition(b"=")
        attributes[_text(name)] = value.decode("utf-8", "surrogateescape")
        data = data[int(digits) :]
    size = attributes.get("size", "0")
    return attributes if size.isascii() and size.isdigit() and len(size) < 19 else None


def load_shard(path: str) -> Shard:
    """The samples of a tar, from the cache or from its headers. Raises UserError."""
    path = os.path.abspath(path)
    try:
        state = os.stat(path)
        cache = _cache_file(path)
        cached = None if cache is None else _read_cache(cache, path, state)
        if cached is not None:
            return cached
        shard = group(path, members(path), state)
    except OSError as error:
        raise data_error(f"{path} cannot be read ({error.strerror})") from error
    if cache is not None:
        _write_cache(cache, shard)
    return shard


def group(path: str, listing: Members, state: os.stat_result) -> Shard:
    """Members to samples."""
    samples = _samples(listing, whole=False)
    dotted = next((key for key, sample in samples.items() if _clashes(sample)), "")
    if dotted:
        samples = _samples(listing, whole=True)
    spans = array("q", (number for sample in samples.values() for number in _spans(sample)))
    keys = list(samples)
    image, _, json, _, txt, _ = spans[-SPANS:] or [0] * SPANS
    if listing.truncated and image != ABSENT and (json != ABSENT or txt != ABSENT):
        # the last sample is complete: the missing ones get a key of their own
        keys.append(f"{Path(path).name} after {keys[-1]}" if keys else Path(path).name)
        spans.extend([ABSENT] * SPANS)
    dots = ((sample, kind) for sample in samples.values() for kind in sample if "." in kind)
    unread = [sample[kind].name for sample, kind in dots if kind not in _best(sample)]
    about = (listing.flaw, listing.truncated, dotted, len(unread), (*unread, "")[0])
    return Shard(path, state.st_size, state.st_mtime_ns, keys, spans, *about)


def _samples(listing: Members, whole: bool) -> dict[str, dict[str, Member]]:
    """The members of each key by kind. A second file of the same name opens a sample of its own.

    whole   keys are whole names up to their known endings, not up to the first dot
    """
    samples: dict[str, dict[str, Member]] = {}
    newest: dict[str, str] = {}  # from a name to the key of its latest sample, for names that come again
    for member in listing.files:
        name, kind = _split(member.name, whole)
        if not name or not kind:
            continue
        name = unquote(name, errors="surrogatepass") if listing.quoted else name
        key = newest.get(name, name)
        if kind in samples.get(key, {}):
            key = newest[name] = next(
                k for n in range(2, len(samples) + 3) if (k := f"{name}#{n}") not in samples
            )
        samples.setdefault(key, {})[kind] = member
    return samples


def _clashes(sample: dict[str, Member]) -> bool:
    """Whether two samples are under one key; masks and other files beside KEY.jpg are no samples."""
    images, json, txt = ([kind.rpartition(".")[0] for kind in slot] for slot in _slots(sample))
    pair = any(middle and middle in images for middle in json + txt)
    whole = "" in images and "" in json + txt  # further texts are no samples beside a sample without middle
    return any(
        len(set(middles)) > 1 and (pair or not (whole or "" in middles)) for middles in (images, json, txt)
    )


def _split(name: str, whole: bool = False) -> tuple[str, str]:
    """Key and kind of a member; no kind for what is no part of a sample.

    >>> _split("./a/cat.jpg"), _split("b.c/cat.long.TXT"), _split(".cat.jpg"), _split("cat.npy")
    (('a/cat', 'jpg'), ('b.c/cat', 'long.TXT'), ('', 'cat.jpg'), ('cat', ''))
    """
    folder, slash, file = name.removeprefix("./").rpartition("/")
    stem, _, kind = file.rpartition(".") if whole else file.partition(".")
    endings = *IMAGE_SUFFIXES, "json", "txt"
    while whole and stem.lower().rpartition(".")[2] in endings:  # 1.0.jpg.txt beside 1.0.jpg
        stem, _, ending = stem.rpartition(".")
        kind = f"{ending}.{kind}"
    wanted = kind.lower().rpartition(".")[2] in endings
    return (folder + slash + stem if file[:1] != "." else ""), (kind if wanted else "")


def _spans(sample: dict[str, Member]) -> Iterator[int]:
    """Offset and size of the image, the json and the txt of a sample."""
    best = _best(sample)
    spans = [sample[kind][1:] if kind else (ABSENT, ABSENT) for kind in best]
    several = (slot for slot in _slots(sample) if len(slot) > 1 and slot[0] in best)
    if any(slot[0].count(".") == slot[1].count(".") for slot in several):
        spans[0] = SEVERAL, ABSENT
    return chain.from_iterable(spans)


def _best(sample: dict[str, Member]) -> list[str]:
    """The kinds of image, json and txt that are read, or ""; no other text beside one of the image's name."""
    image, *texts = (slot[0] if slot else "" for slot in _slots(sample))
    own = [kind for kind in texts if kind and kind.rpartition(".")[0] == image.rpartition(".")[0]]
    return [image, *(kind if kind in own or not own else "" for kind in texts)]


def _slots(sample: dict[str, Member]) -> list[list[str]]:
    """The kinds of images, of json and of txt of a sample, those with the fewest dots first."""
    kinds = sorted(sample, key=lambda kind: kind.count("."))
    endings = IMAGE_SUFFIXES, ("json",), ("txt",)
    return [[kind for kind in kinds if kind.lower().rpartition(".")[2] in ends] for ends in endings]


def _cache_file(path: str) -> Path | None:
    """None for a user without a home."""
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:32]
    return base / "grainline" / "index" / f"{name}.json"


def _read_cache(cache: Path, path: str, state: os.stat_result) -> Shard | None:
    """The shard as it was written, or None: no file, another tar, another version, a single wrong bit."""
    try:
        seal, _, body = read_plain(cache).partition(b"\n")
        if hashlib.sha256(body).hexdigest().encode() != seal:
            return None
        version, *fields = json.loads(body)
    except (OSError, ValueError):
        return None
    if [version, *fields[:3]] != [VERSION, path, state.st_size, state.st_mtime_ns]:
        return None
    _, size, mtime_ns, keys, spans, *others = fields
    return Shard(path, size, mtime_ns, keys, array("q", spans), *others)


def _write_cache(cache: Path, shard: Shard) -> None:
    """Written whole or not at all; a folder that refuses only costs the time to build the index again."""
    body = json.dumps([VERSION, *shard._replace(spans=shard.spans.tolist())]).encode()  # type: ignore[arg-type]
    with contextlib.suppress(OSError):
        cache.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=cache.parent, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
            os.replace(draft, cache)
        except OSError:
            os.unlink(draft)
            raise
