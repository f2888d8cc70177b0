"""The samples of a tar: which members belong to one, and an index of their places on the disk.

`load_shard` reads the headers once and keeps the index in the folder `index` of the cache, one file for each
tar, valid while the tar's size and time (of a URL: its version) stay the same. A sample takes 28 bytes and
its key, and forked workers share them:

    8 bytes   length of the header, a multiple of 8
    header    JSON: version, number of samples, type of numbers, and the fields of `Shard` that are no arrays
    hashes    [n] uint64;  spans [n, 6] and ends [n] uint32, or uint64 where a number needs it;  keys in UTF-8
    4 bytes   CRC-32 of all before
"""

import contextlib
import hashlib
import json
import os
import tarfile
import zlib
from collections.abc import Iterator
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple, cast
from urllib.parse import quote, unquote

import numpy as np

from grainline.data.formats.common import IMAGE_SUFFIXES, digest, name_of
from grainline.data.formats.parsed import data_error
from grainline.data.formats.storage import State, absolute, open_regular, state_of
from grainline.errors import stop_if_unreachable
from grainline.files import drafted, sync
from grainline.system import user_cache

HEADER = {"GRAINLINE.keys": "quoted"}
"""A tar of `grainline data pack` says so that names are percent-quoted, so that any key can be restored."""


def quoted(key: str) -> str:
    """A key as the name of a member, without its suffix: ASCII, no dots, no slash at its ends.

    >>> quoted("cats/a.v2.jpg"), quoted("/b"), quoted("rows.parquet:7")
    ('cats/a%2Ev2%2Ejpg', '%2Fb', 'rows%2Eparquet%3A7')
    """
    name = quote(key, safe="/ ,+=@()", errors="surrogatepass").replace(".", "%2E")
    name = f"%2F{name[1:]}" if name.startswith("/") else name
    return f"{name[:-1]}%2F" if name.endswith("/") else name


VERSION = 7  # of the cache files: raise it when the meaning of Shard changes
ABSENT = -1
SEVERAL = -2  # in place of the offset of an image: two images of one key, or two texts of one ending
SPANS = 6  # numbers per sample in Shard.spans

_BLOCK = tarfile.BLOCKSIZE
_LARGEST = 2**62  # bytes of a member: places and sizes are kept in 63 bits
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
    quoted: bool = False  # whether names are those of `quoted`


class Shard(NamedTuple):
    """The samples of one tar."""

    keys: "Keys"
    spans: np.ndarray  # [n, 6], read by `places`: block of 512 bytes, from 2 on, and size of each file
    hashes: np.ndarray  # [n] uint64, of the keys
    path: str  # absolute
    size: int
    changed: int  # as in `State`
    digest: str  # of size, names, places and sizes
    counts: list[int]  # of samples with an image, a json and a txt
    flaw: str
    truncated: bool  # the last sample is incomplete, or a key that stands for missing samples
    dotted: str  # a key up to the first dot that would hold several samples; "": there is none
    unread: int  # images and texts beside another one of their key, which is read
    first_unread: str  # name of the first of them

    @property
    def state(self) -> State:
        """The size and time that the tar had when its headers were read."""
        return State(self.size, self.changed)

    def places(self, row: int) -> list[int]:
        """Offset and size of image, json and txt of a sample; ABSENT where there is none, or SEVERAL."""
        numbers = self.spans[row].tolist()
        numbers[::2] = [(code - 1) * _BLOCK if code > 1 else -1 - code for code in numbers[::2]]
        return cast(list[int], numbers)


def members(path: str) -> Members:
    """All files of a tar, from its headers. Raises UserError for what is no tar, or a packed one."""
    files: list[Member] = []
    common: dict[str, str] = {}
    with open_regular(path) as file:
        end, position, marked = file.seek(0, os.SEEK_END), 0, False
        file.seek(0)
        _refuse_others(path, file.read(_BLOCK))
        flaw = "" if end else "is empty"
        while position < end and not flaw:
            file.seek(position)
            marked = file.read(_BLOCK) == bytes(_BLOCK)
            if marked:  # zero blocks end an archive; another one may follow
                position += _BLOCK
                continue
            file.seek(position)
            start, damaged = position, False
            try:
                with tarfile.open(fileobj=file, mode="r:", encoding="utf-8") as tar:
                    common |= tar.pax_headers
                    while member := tar.next():
                        _add(files, member, path)
                        position = tar.offset
            except (tarfile.TarError, ValueError, OverflowError, MemoryError) as error:
                stop_if_unreachable(error)
                damaged = position < end
            if damaged or position == start:
                flaw = f"has a cut or damaged header at byte {position}"
    truncated = bool(flaw)
    if files and files[-1].offset + files[-1].size > end:
        flaw = f"ends inside {files[-1].name}"
    unmarked = "" if marked else "ends without an end mark"
    return Members(files, flaw or unmarked, truncated, common.items() >= HEADER.items())


def _add(files: list[Member], member: tarfile.TarInfo, path: str) -> None:
    """Append a member if it is a file; links, devices and folders have no data."""
    if member.issparse():
        raise data_error(f"{path} holds the sparse file {member.name}: write the tar again without --sparse")
    if not 0 <= member.size <= _LARGEST:
        raise ValueError("no size of a file")
    if member.isfile():
        files.append(Member(member.name, member.offset_data, member.size))


def _refuse_others(path: str, start: bytes) -> None:
    for magic, name in _PACKED.items():
        if start.startswith(magic):
            raise data_error(f"{path} is packed with {name}: unpack it first, tars are read at random places")
    if len(start) == _BLOCK and any(start):
        try:
            tarfile.TarInfo.frombuf(start, "utf-8", "surrogateescape")
        except tarfile.HeaderError:
            raise data_error(f"{path} is not a tar (no valid header at its start)") from None


class Keys:
    """The keys of samples as bytes, which take a third of the room of strings."""

    def __init__(self, ends: np.ndarray, data: np.ndarray) -> None:
        """ends: [n] where each key ends in data, [bytes] uint8 of UTF-8"""
        self.ends, self.data = ends, data

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, number: int) -> str:
        first = int(self.ends[number - 1]) if number else 0
        return self.data[first : int(self.ends[number])].tobytes().decode("utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str]:
        data, first = self.data.tobytes(), 0
        for end in self.ends.tolist():
            yield data[first:end].decode("utf-8", "surrogatepass")
            first = end


def load_shard(path: str) -> Shard:
    """The samples of a tar, from the index on the disk or from its headers. Raises UserError."""
    path = absolute(path)
    try:
        state = state_of(path)
        file = index_file(path)
        if (shard := _read_index(file, path, state)) is not None:
            return shard
        shard = group(path, members(path), state)
    except OSError as error:
        raise data_error(f"{path} cannot be read ({error.strerror})") from error
    with contextlib.suppress(OSError):  # a folder that refuses only costs the time to read the headers again
        file.parent.mkdir(parents=True, exist_ok=True)
        with drafted(file) as draft:
            _write_index(draft, shard)
            sync(draft)
    return shard


def index_file(path: str) -> Path:
    """The file of the index of a tar."""
    return user_cache() / "index" / f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:32]}.index"


_ARRAYS = ("spans", "hashes", "keys")


def _write_index(file: Path, shard: Shard) -> None:
    ends, keys = shard.keys.ends, shard.keys.data
    about = {name: value for name, value in shard._asdict().items() if name not in _ARRAYS}
    header = json.dumps([VERSION, len(ends), str(ends.dtype), about]).encode()
    header = header.ljust(-(-len(header) // 8) * 8)
    arrays = (array.tobytes() for array in (shard.hashes, shard.spans, ends, keys))
    data = b"".join([len(header).to_bytes(8, "little"), header, *arrays])
    file.write_bytes(data + zlib.crc32(data).to_bytes(4, "little"))


def _read_index(file: Path, path: str, state: State) -> Shard | None:
    """The shard as it was written, or None: no file, another tar, another version, a single wrong bit."""
    try:
        data = file.read_bytes()
        if zlib.crc32(data[:-4]).to_bytes(4, "little") != data[-4:]:
            return None
        start = 8 + int.from_bytes(data[:8], "little")
        version, number, kind, about = json.loads(data[8:start])
        if (version, about["path"], about["size"], about["changed"]) != (VERSION, path, *state):
            return None
        hashes = np.frombuffer(data, np.uint64, number, start).copy()  # which are used once
        arrays = np.frombuffer(data, np.uint8, offset=start + hashes.nbytes)[:-4].copy()
        split, end = (count * number * np.dtype(kind).itemsize for count in (SPANS, SPANS + 1))
        spans, ends = arrays[:split].view(kind).reshape(number, SPANS), arrays[split:end].view(kind)
        return Shard(Keys(ends, arrays[end:]), spans, hashes, **about)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def group(path: str, listing: Members, state: State) -> Shard:
    """Members to samples."""
    samples = _samples(listing, whole=False)
    dotted = next((key for key, sample in samples.items() if _clashes(sample)), "")
    if dotted:
        samples = _samples(listing, whole=True)
    spans = [[*_spans(sample)] for sample in samples.values()]
    keys = list(samples)
    image, _, json, _, txt, _ = spans[-1] if spans else [0] * SPANS
    if listing.truncated and image != ABSENT and (json != ABSENT or txt != ABSENT):
        # the last sample is complete: the missing ones get a key of their own
        keys.append(f"{name_of(path)} after {keys[-1]}" if keys else name_of(path))
        spans.append([ABSENT] * SPANS)
    dots = ((sample, kind) for sample in samples.values() for kind in sample if "." in kind)
    unread = [sample[kind].name for sample, kind in dots if kind not in _best(sample)]
    places = np.array(spans, np.int64).reshape(-1, SPANS)
    total = digest((state.size, len(keys), *keys, *places.ravel().tolist()))
    data = [key.encode("utf-8", "surrogatepass") for key in keys]
    ends = np.cumsum([len(one) for one in data], dtype=np.int64)
    counts = (places[:, ::2] != ABSENT).sum(0).tolist()
    places[:, ::2] = np.where(places[:, ::2] < 0, -1 - places[:, ::2], places[:, ::2] // _BLOCK + 1)
    kind = np.uint32 if max(places.max(initial=0), ends.max(initial=0)) < 2**32 else np.uint64
    hashes = [int.from_bytes(hashlib.blake2b(one, digest_size=8).digest()) for one in data]
    return Shard(
        Keys(ends.astype(kind), np.frombuffer(b"".join(data), np.uint8)),
        places.astype(kind),
        np.array(hashes, np.uint64),
        path,
        *state,
        total,
        counts,
        flaw=listing.flaw,
        truncated=listing.truncated,
        dotted=dotted,
        unread=len(unread),
        first_unread=(*unread, "")[0],
    )


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
            names = (f"{name}#{number}" for number in count(2))
            key = newest[name] = next(free for free in names if free not in samples)
        samples.setdefault(key, {})[kind] = member
    return samples


def _clashes(sample: dict[str, Member]) -> bool:
    """Whether two samples are under one key; masks and other files beside KEY.jpg are no samples."""
    images, json, txt = ([kind.rpartition(".")[0] for kind in slot] for slot in _slots(sample))
    pair = any(middle and middle in images for middle in json + txt)
    whole = "" in images and "" in json + txt  # further texts are no samples beside a sample without middle
    several = (middles for middles in (images, json, txt) if len(set(middles)) > 1)
    return any(pair or not (whole or "" in middles) for middles in several)


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
