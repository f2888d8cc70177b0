"""The base class of sources, and how the texts of an image and image files are read.

A description of an image, in a JSON file beside it or in a row of a table, has these fields:
    caption, captions                 a string or a list of strings
    long, long_caption, description   one longer text
    longs                             a list of further ones
    regions, boxes                    a list of {phrase, box: [left, top, right, bottom], mask?, span?,
                                      foils?}
    foils                             a list of {text, true, kind}; those of a region need no true
    subtexts                          a list of strings, each longer than the one before
A mask has a form of grainline.data.formats.parsed.
"""

import glob
import hashlib
import os
import re
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, ClassVar
from urllib.parse import unquote

from grainline.data.formats.parsed import (
    Fields,
    Mask,
    Stretch,
    Text,
    Upright,
    Words,
    data_error,
    has_rows,
    parse_json,
    strings,
    text_of,
)
from grainline.data.formats.storage import (
    existing,
    exists,
    is_file,
    is_folder,
    is_remote,
    is_web,
    matches,
    read_plain,
    state_of,
)
from grainline.data.record import Cause, CorruptSample, Foil, Record, Region, as_sentences
from grainline.errors import some

# Recaptioned data (DreamLIP): short and long captions of CC3M, CC12M and YFCC15M by InstructBLIP, ShareGPT4V
# and LLaVA, as strings, or as lists of sentences as FLAIR prepares them. These fields are recognised in any
# description: the raw caption and the short ones are captions, the long ones long descriptions.

SHORT = ("shortIB_captions", "shortSV_captions", "shortLLA_captions")
LONG = ("longIB_captions", "longSV_captions", "longLLA_captions")
RECAPTIONED = ("raw_caption", *SHORT, *LONG)


def renamed(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The description in the names of `common`; as it is without captions by one of the models.

    >>> renamed({"raw_caption": "dog", "shortSV_captions": ["A dog", "It runs"], "longIB_captions": "A dog."})
    {'captions': ['dog', 'A dog. It runs.'], 'longs': ['A dog.']}
    """
    if not any(fields.get(name) for name in (*SHORT, *LONG)):
        return fields
    texts = {name: as_sentences(one) for name in RECAPTIONED if (one := strings(fields.get(name)))}
    others = {name: value for name, value in fields.items() if name not in RECAPTIONED}
    captions = [text for name, text in texts.items() if name not in LONG]
    return {**others, "captions": captions, "longs": [texts[name] for name in LONG if name in texts]}


IMAGE_SUFFIXES = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tiff", "tif", "heic", "heif", "avif")
MAX_TEXT = 1_000_000  # characters of a text
LONG_FIELDS = ("long", "long_caption", "description")


class FileSource(ABC):
    """Abstract: a source on a disk. Fulfils grainline.data.record.Source."""

    path: str
    remarks: tuple[str, ...] = ()  # what a user should know about the data, in plain words
    has_images: ClassVar[bool] = True  # False: captions alone
    lists: ClassVar[Mapping[str, Sequence[str]]] = {}  # in its JSON, and the fields of their rows
    images_by_path: ClassVar[bool] = False  # whether images are named by path, so that --images says where

    @classmethod
    def open(cls, path: str, images: str | None = None, size: int | None = None) -> "FileSource":  # noqa: ARG003
        """The source at a path. Raises UserError.

        images  folder of the images, where they are named by path
        size    side of scenes, in pixels
        """
        return cls(path, images) if cls.images_by_path else cls(path)  # type: ignore[call-arg]

    @classmethod
    def from_content(cls, path: str, images: str | None, content: Any) -> "FileSource":
        """The source of a file whose content, parsed JSON or rows, `recognises` accepted."""
        return cls(path, images, content)  # type: ignore[call-arg]

    @classmethod
    def recognises(cls, content: Any) -> bool:
        """Whether parsed JSON, or a list of rows, has the form of this source; rows may still be wrong."""
        return bool(cls.lists) and all(has_rows(content, *one) for one in cls.lists.items())

    @staticmethod
    def recognises_path(path: str) -> bool:  # noqa: ARG004
        """Whether a folder, or a file too large to be read whole, has the form of this source."""
        return False

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> Record:
        """The record at a position. Raises CorruptSample, and IndexError past the end."""

    @abstractmethod
    def keys(self) -> Iterable[str]:
        """The keys of all records in order, without reading the records."""

    def shards(self) -> list[tuple[str, int]]:
        """The files that the records lie in, in order: a digest of the content of each, and its records."""
        return [(self.fingerprint(), len(self))]

    def prefetch(self, indices: Sequence[int]) -> None:  # noqa: B027 - nothing is remote
        """Fetch what some records need, all at once, where it is remote."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Hex digest of the content: equal data have equal digests, wherever they lie."""


class Parts(FileSource):
    """Abstract: a source whose records lie in parts, one part after the other."""

    _starts: list[int]  # position of the first record of each part, and the number of all records

    def __len__(self) -> int:
        return self._starts[-1]

    def _part(self, index: int) -> tuple[int, int]:
        """The number of the part that a record is in, and its position there. Raises IndexError."""
        index = range(len(self))[index]
        number = bisect_right(self._starts, index) - 1
        return number, index - self._starts[number]


def described(texts: Record, key: str, image: bytes) -> Record:
    """The record of an image with these texts; a long text without captions becomes the caption."""
    captions, long = texts.captions, texts.long
    if long and not captions:
        captions, long = (long,), long if texts.others else None
    return texts._replace(key=key, image=image, captions=captions, long=long)


def text_parts(texts: Record) -> list[str | int]:
    """The texts of an image as parts of a fingerprint."""
    parts: list[str | int] = [len(texts.captions), *texts.captions, texts.long or ""]
    parts += [len(texts.subtexts), *texts.subtexts] if texts.subtexts else []
    return [*parts, "others", len(texts.others), *texts.others] if texts.others else parts


class _Foil(Fields):
    text: Text
    true: Words
    kind: Words


class _RegionFoil(_Foil):
    true: Words | None = None  # type: ignore[assignment]  # None: the phrase


class _Region(Fields):
    phrase: Text
    box: Upright | None = None
    mask: Mask | None = None
    span: Stretch | None = None
    foils: tuple[_RegionFoil, ...] | None = None


class _Regions(Fields):
    regions: tuple[_Region, ...] = ()
    boxes: tuple[_Region, ...] = ()
    foils: tuple[_Foil, ...] = ()


def _regions(fields: Mapping[str, Any], where: str) -> tuple[tuple[Region, ...], tuple[Foil, ...]]:
    try:
        read = _Regions.of({name: fields[name] for name in _Regions.model_fields if fields.get(name)})
    except ValueError as error:
        raise CorruptSample(Cause.CORRUPT_REGION, f"{where} ({error})") from None
    regions = []
    for one in read.regions or read.boxes:
        true = [one.phrase if foil.true is None else foil.true for foil in one.foils or ()]
        foils = (Foil(foil.text, text, foil.kind) for foil, text in zip(one.foils or (), true, strict=True))
        regions.append(Region(one.phrase, one.box, one.mask, one.span, tuple(foils)))
    return tuple(regions), tuple(Foil(foil.text, foil.true, foil.kind) for foil in read.foils)


def read_captions(fields: Mapping[str, Any], where: str) -> Record:
    """The texts in the fields named at the top of this file, without key and image; empty ones are dropped.

    Raises CorruptSample: a corrupt region, with the field, or a corrupt text, which is too long.
    """
    fields = renamed(fields)
    several = strings(fields.get("captions"))
    captions = [text for text in strings(fields.get("caption")) if text not in several] + several
    long = [" ".join(one) for name in LONG_FIELDS if (one := strings(fields.get(name)))][:1]
    longs = (*long, *strings(fields.get("longs")))
    regions, foils = _regions(fields, where)
    texts = Record("", b"", tuple(captions), longs[0] if longs else None, regions, foils, others=longs[1:])
    return _limited(texts._replace(subtexts=tuple(strings(fields.get("subtexts")))), where)


def _limited(texts: Record, where: str) -> Record:
    """The same texts. Raises CorruptSample for one that would take minutes to split."""
    phrases = (region.phrase for region in texts.regions)
    longest = max(map(len, (*texts.captions, texts.long or "", *texts.subtexts, *texts.others, *phrases)))
    if longest > MAX_TEXT:
        wrong = f"{longest:,} characters; at most {MAX_TEXT:,} are read"
        raise CorruptSample(Cause.CORRUPT_TEXT, f"{where} ({wrong})")
    return texts


def texts_beside(stem: str, read: Callable[[str], bytes | None], *, lines: bool) -> Record:
    """The texts of an image in files beside it: those of the JSON if it has any, else those of the .txt.

    read   the bytes of the file of a suffix, "json" or "txt"; None without one
    lines  whether each line of a .txt is a caption; otherwise all of it is one

    Raises CorruptSample.
    """
    texts, suffix = Record("", b"", ()), "json"
    try:
        data = read(suffix)
        fields = None if data is None else parse_json(text_of(data, "surrogatepass"))
        if isinstance(fields, dict):
            texts = read_captions(fields, f"{stem}.{suffix}")
        suffix = "txt"
        if texts.silent and (data := read(suffix)) is not None:
            text = text_of(data)
            texts = texts._replace(captions=tuple(strings(text.split("\n") if lines else text)))
            texts = _limited(texts, f"{stem}.{suffix}")
    except ValueError as error:
        raise CorruptSample(Cause.CORRUPT_TEXT, f"{stem}.{suffix} ({error})") from None
    return texts


def read_image(candidates: Sequence[str], where: str) -> bytes:
    """The bytes of the first of these paths that exists. Raises CorruptSample."""
    for path in candidates:
        try:
            return read_plain(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError) as error:  # ValueError: a path with a null character
            why = getattr(error, "strerror", error)
            named = path if where in ("", path) else f"{where}: {path}"
            raise CorruptSample(Cause.UNREADABLE_FILE, f"{named} ({why})") from error
    raise CorruptSample(Cause.MISSING_IMAGE, f"{where} (looked for {candidates[0]})")


def require_images(candidates: Sequence[Sequence[str]], source: str, root: str, which: str = "") -> None:
    """Fail if no image is there, at any of the paths where each may lie. which: ends the error"""
    if not is_folder(root) and not is_web(root):  # a web server need not list folders
        raise data_error(f"no folder of images at {root}, named for {source}: say where with --images DIR")
    tries = 100 if is_remote(root) else 10_000  # at least, before it is an error
    step = max(1, len(candidates) // tries)
    if not any(is_file(path) for paths in candidates[::step] for path in paths):
        first = next((paths[0] for paths in candidates if paths), root)
        hint = f"(the first was looked for at {first}): say where they lie with --images DIR{which}"
        raise data_error(f"none of the {len(candidates)} images of {source} is under {root} {hint}")


def split_query(path: str, allowed: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Path and options of "file.csv?image=photo&root=images".

    >>> split_query("rows.csv?image=photo&root=my%20images", ("image", "root"))
    ('rows.csv', {'image': 'photo', 'root': 'my images'})
    """
    base, query = divide(path)
    options: dict[str, str] = {}
    for part in query.split("&") if query else ():
        name, _, value = part.partition("=")
        if name not in allowed or not value or name in options:
            raise data_error(f"'{part}' in {path} is no option: allowed are {', '.join(allowed)}, each once")
        options[name] = unquote(value)
    return base, options


def divide(path: str) -> tuple[str, str]:
    """Path and query. Only a question mark before an equals sign starts a query: it is a wildcard elsewhere.

    In a URL of HTTP a number sign starts it, because such a URL has queries of its own.

    >>> divide("rows.csv?image=photo"), divide("rows-?.csv")
    (('rows.csv', 'image=photo'), ('rows-?.csv', ''))
    >>> divide("https://a.org/a.tar?key=x"), divide("https://a.org/a.csv#image=photo")
    (('https://a.org/a.tar?key=x', ''), ('https://a.org/a.csv', 'image=photo'))
    """
    if is_web(path):
        base, _, query = path.partition("#")
        return base, query
    base, _, query = path.rpartition("?")
    return (base, query) if base and "=" in query and not exists(path) else (path, "")


def with_query(base: str, query: str) -> str:
    """A path with a query, as `divide` divides it."""
    return base + ("#" if is_web(base) else "?") + query if query else base


def name_and_size(folder: str, name: str) -> list[str | int]:
    """Name and size of an image file, for a fingerprint; size -1 where it is missing."""
    path = os.path.join(folder, name)
    try:
        return [name, state_of(path).size]
    except OSError:
        return [name, -1]


def digest(parts: Iterable[str | int]) -> str:
    """sha256 over a list of values and their lengths."""
    total = hashlib.sha256()
    for part in parts:
        data = str(part).encode("utf-8", "surrogatepass")
        total.update(b"%d:" % len(data))
        total.update(data)
    return total.hexdigest()


# Patterns of paths: braces as in WebDataset ({0000..0004}, {a,b}) and wildcards of the shell.

_MAX_RANGE = 1_000_000  # a typing mistake in a range shall not fill the memory


def is_pattern(path: str) -> bool:
    """Whether a path stands for several. What exists under just this name is itself."""
    several = braces(path) != [path]
    return (several or glob.has_magic(path)) and ((several and is_remote(path)) or not exists(path))


def expand(path: str) -> list[str]:
    """The paths that a pattern stands for, wildcards sorted. Raises UserError if one is not there."""
    if not is_pattern(path):
        return [path]
    names = braces(path)
    present = {name for name, is_there in zip(names, existing(names), strict=True) if is_there}
    paths = {x: [x] if x in present else matches(x) if glob.has_magic(x) else [] for x in names}
    missing = [one for one, several in paths.items() if not several]
    if missing:
        raise data_error(f"{path} stands for {some(missing)}, where nothing is{beginning(path)}")
    return [name for several in paths.values() for name in several]


def beginning(path: str) -> str:
    """The folder that a local path begins in, for an error about it."""
    return "" if is_remote(path) else f" (from {os.getcwd()})"


def braces(path: str) -> list[str]:
    """All readings of the braces in a path; numbers keep their zeros.

    >>> braces("{train,dev}-{08..10}.tar")[:4]
    ['train-08.tar', 'train-09.tar', 'train-10.tar', 'dev-08.tar']
    """
    pieces = re.split(r"(\{[^{}]*\})", path)
    choices = [_choices(piece, path) if number % 2 else [piece] for number, piece in enumerate(pieces)]
    if prod(map(len, choices)) > _MAX_RANGE:
        raise data_error(f"{path} stands for more than {_MAX_RANGE:,} paths: name a folder or a wildcard")
    return ["".join(choice) for choice in product(*choices)]


def _choices(brace: str, path: str) -> list[str]:
    inside = brace[1:-1]
    span = re.fullmatch(r"(\d{1,18})\.\.(\d{1,18})", inside)
    if span:
        first, last = int(span[1]), int(span[2])
        if not first <= last < first + _MAX_RANGE:
            raise data_error(f"{brace} in {path} is no range of at most {_MAX_RANGE} numbers, smallest first")
        return [f"{number:0{len(span[1])}d}" for number in range(first, last + 1)]
    return inside.split(",") if "," in inside else [brace]


def stem_of(path: str) -> str:
    """The file name of a URL or a path, without its ending."""
    return os.path.splitext(name_of(path))[0]


def name_of(url: str) -> str:
    """The file name of a URL or a path.

    >>> name_of("https://a.org/vg/23%20a.jpg?size=2"), name_of("vg/2390970.jpg")
    ('23 a.jpg', '2390970.jpg')
    """
    if is_web(url):  # no urlsplit, which is an error for http://[
        url = unquote(re.split("[?#]", url.partition("://")[2].partition("/")[2])[0])
    return url.rpartition("/")[2]
