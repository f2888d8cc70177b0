"""WebDataset tars with random access: a sample is a few reads at known places.

A sample is an image and its texts under one name: KEY.jpg (jpeg, png, webp, gif, bmp) with KEY.json (fields:
grainline.data.formats.common), KEY.txt (one caption) or both, where the JSON wins if it has texts. KEY is the
name up to the first dot of the last component of the path; where that puts two samples under one key, up to
the ending. `load_shard` reads the headers and caches the places in $XDG_CACHE_HOME/grainline/index (else
~/.cache), one file per tar, valid while the tar's size and modification time stay the same.

Differs from the webdataset library: no streaming, no pipes, no packed tars; members of a sample need not be
neighbours. No open file is pickled, so loader workers may be forked or spawned.
"""

import contextlib
import hashlib
import os
import tarfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, chain, count
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

from grainline.data.formats.common import IMAGE_SUFFIXES, Parts, described, digest, texts_beside
from grainline.data.formats.folder import files_of
from grainline.data.formats.parsed import data_error, regular
from grainline.data.record import Cause, CorruptSample, Record
from grainline.errors import amount, some
from grainline.files import Corrupt, read_sealed, sealed_json, write_text
from grainline.system import READ, read_at

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


VERSION = 5  # of the cache files: raise it when the meaning of Shard changes
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


def members(path: str) -> Members:
    """All files of a tar, from its headers. Raises UserError for what is no tar, or a packed one."""
    files: list[Member] = []
    common: dict[str, str] = {}
    regular(path)
    with open(path, "rb") as file:
        end, position, marked = os.fstat(file.fileno()).st_size, 0, False
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
            except (tarfile.TarError, ValueError, OverflowError, MemoryError):
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
        content = read_sealed(cache)
    except Corrupt:
        return None
    if content.get("shard", [])[:4] != [VERSION, path, state.st_size, state.st_mtime_ns]:
        return None
    shard = Shard._make(content["shard"][1:])
    return shard._replace(spans=array("q", shard.spans))


def _write_cache(cache: Path, shard: Shard) -> None:
    """Written whole or not at all; a folder that refuses only costs the time to build the index again."""
    with contextlib.suppress(OSError):
        cache.parent.mkdir(parents=True, exist_ok=True)
        fields = shard._replace(spans=shard.spans.tolist())  # type: ignore[arg-type]
        write_text(cache, sealed_json({"shard": [VERSION, *fields]}))


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
        spans = [shard.spans for shard in self._shards]
        images, json, txt = (any(x != ABSENT for one in spans for x in one[i::SPANS]) for i in (0, 2, 4))
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

    def fingerprint(self) -> str:
        """sha256 over the sizes of the tars, and the names, places and sizes of their members.

        No member is read: a text that is replaced by another of equal length changes nothing.
        """
        return digest(x for s in self._shards for x in (s.size, len(s.keys), *s.keys, *s.spans))


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
        raise CorruptSample(Cause.TRUNCATED_TAR, where)
    try:
        handle = _open(shard.path, shard.size, shard.mtime_ns)
        data = read_at(handle.number, size, offset)
    except OSError as error:
        raise CorruptSample(Cause.UNREADABLE_FILE, f"{where} ({error})") from error
    if len(data) < size:
        raise CorruptSample(Cause.TRUNCATED_TAR, where)
    return data
