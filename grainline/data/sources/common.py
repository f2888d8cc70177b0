"""What all sources share: the base class, and how texts, boxes and picture files are read.

A description of a picture, in a JSON file beside it or in a row of a table, has these fields:
    caption, captions                 a string or a list of strings
    long, long_caption, description   one longer text
    longs                             a list of further ones
    regions, boxes                    a list of {phrase, box: [left, top, right, bottom], mask?, span?,
                                      foils?}
    foils                             a list of {text, true, kind}; those of a region need no true
    subtexts                          a list of strings, each longer than the one before
A mask is what grainline.data.sources.masks reads. Recaptioned data has fields of its own:
grainline.data.sources.recaptioned.
"""

import errno
import hashlib
import json
import math
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from grainline.data.causes import DAMAGED_REGION, MISSING_IMAGE, UNREADABLE_FILE
from grainline.data.record import Damaged, Foil, Record, Region
from grainline.data.sources.masks import read_mask
from grainline.data.sources.recaptioned import is_recaptioned, renamed
from grainline.errors import UserError

IMAGE_SUFFIXES = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tiff", "tif")
LONG_FIELDS = ("long", "long_caption", "description")
HELP = "see docs/data.md"
MOST_BYTES = 2**30  # of a picture file: the largest that is decoded has 716 MB in 16 bits and four channels

_PROBES = 10_000  # how many picture paths are looked up, at most, before a set is said to have no pictures


class FileSource(ABC):
    """Abstract: a source that lies on a disk. Fulfils grainline.data.record.Source."""

    path: str
    remarks: tuple[str, ...] = ()  # what was found at opening and is worth knowing, in plain words

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> Record:
        """The record at a position; raises Damaged where there is none to be had, IndexError past the end."""

    @abstractmethod
    def keys(self) -> Iterable[str]:
        """The keys of all records in order, without reading any."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Hex digest of what the source holds: equal data, equal digest, wherever it lies."""


class Said(NamedTuple):
    """Everything that one description says about its picture."""

    captions: tuple[str, ...] = ()
    long: str | None = None
    regions: tuple[Region, ...] = ()
    foils: tuple[Foil, ...] = ()
    subtexts: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    def record(self, key: str, image: bytes) -> Record:
        """The record of this description; a long text alone serves as the caption."""
        assert not self.empty, "no text"
        captions, long = self.captions, self.long
        if long and not captions:
            captions, long = (long,), long if self.others else None
        return Record(key, image, captions, long, self.regions, self.foils, self.subtexts, self.others)

    @property
    def texts(self) -> list[str | int]:
        """What a fingerprint takes of the texts."""
        parts: list[str | int] = [len(self.captions), *self.captions, self.long or ""]
        parts += [len(self.subtexts), *self.subtexts] if self.subtexts else []
        return [*parts, "others", len(self.others), *self.others] if self.others else parts

    @property
    def silent(self) -> bool:
        """Whether there is no text of the whole picture."""
        return not self.captions and not self.long

    @property
    def empty(self) -> bool:
        """Whether there is no text at all, of no region either."""
        return self.silent and not self.regions


def said(fields: Mapping[str, Any], where: str) -> Said:
    """Read the fields named at the top of this file. Texts are stripped, empty ones dropped.

    Raises Damaged("damaged region").

    >>> said({"caption": "A dog.", "captions": ["It runs. ", " "], "description": "A wet dog."}, "a.json")[:2]
    (('A dog.', 'It runs.'), 'A wet dog.')
    """
    if is_recaptioned(fields):
        fields = renamed(fields)
    several = strings(fields.get("captions"))
    captions = [text for text in strings(fields.get("caption")) if text not in several] + several
    long = next((" ".join(texts) for name in LONG_FIELDS if (texts := strings(fields.get(name)))), None)
    longs = ([long] if long else []) + strings(fields.get("longs"))
    regions = fields.get("regions") or fields.get("boxes") or ()
    foils = fields.get("foils") or ()
    return Said(
        tuple(captions),
        longs[0] if longs else None,
        tuple(_region(value, where) for value in _listed(regions, where)),
        tuple(_foil(value, where) for value in _listed(foils, where)),
        tuple(strings(fields.get("subtexts"))),
        tuple(longs[1:]),
    )


def strings(value: Any) -> list[str]:
    """One text or many as a list of clean, non-empty strings; anything else counts as no text.

    >>> strings(" A dog. "), strings(["A cat.", None, ""]), strings(7)
    (['A dog.'], ['A cat.'], [])
    """
    found = [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else []
    clean = (printable(text.strip()) for text in found if isinstance(text, str))
    return [text for text in clean if text]


def printable(text: str) -> str:
    """JSON can hold halves of surrogate pairs, which no tokenizer and no hash accepts; they become `?`."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def text_of(data: bytes) -> str:
    """The text of a file. Bytes that are not UTF-8 become replacement characters rather than an error."""
    return data.decode("utf-8-sig", "replace")


def _listed(value: Any, where: str) -> Sequence[Any]:
    if isinstance(value, list | tuple):
        return value
    raise Damaged(DAMAGED_REGION, f"{where} (regions and foils are lists, not {type(value).__name__})")


def _region(value: Any, where: str) -> Region:
    if not isinstance(value, Mapping) or not strings(value.get("phrase")):
        raise Damaged(DAMAGED_REGION, f"{where} (a region without a phrase)")
    phrase = strings(value["phrase"])[0]
    box = value.get("box")
    try:
        sides = None if box is None else (float(box[0]), float(box[1]), float(box[2]), float(box[3]))
        mask = None if value.get("mask") is None else read_mask(value["mask"])
        span = value.get("span")
        place = None if span is None else (str(span[0]), int(span[1]), int(span[2]))
    except (TypeError, ValueError, IndexError, KeyError) as error:
        raise Damaged(DAMAGED_REGION, f"{where} ({phrase}: {error})") from error
    if sides is not None and not (
        len(box or ()) == 4 and all(map(math.isfinite, sides)) and sides[0] < sides[2] and sides[1] < sides[3]
    ):
        raise Damaged(DAMAGED_REGION, f"{where} ({phrase}: a box is left, top, right, bottom, not {box})")
    foils = tuple(_foil_of(phrase, foil, where) for foil in _listed(value.get("foils") or (), where))
    return Region(phrase, sides, mask, place, foils)


def _foil_of(phrase: str, value: Any, where: str) -> Foil:
    """A foil of a region: what it is compared with is the phrase, unless it says otherwise."""
    return _foil({"true": phrase, **value} if isinstance(value, Mapping) else value, where)


def _foil(value: Any, where: str) -> Foil:
    if not isinstance(value, Mapping) or not all(isinstance(value.get(name), str) for name in Foil._fields):
        raise Damaged(DAMAGED_REGION, f"{where} (a foil has the fields text, true, kind)")
    return Foil(value["text"], value["true"], value["kind"])


def load_json(path: str) -> Any:
    """The content of a JSON file. Raises UserError for what is not JSON, json.JSONDecodeError never."""
    try:
        return json.loads(read_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}; {HELP}") from error


def read_text(path: str) -> str:
    """A whole text file in UTF-8. Raises UserError."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not UTF-8 text ({error.reason} at byte {error.start}): convert it"
        ) from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); {HELP}") from error


def read_lines(path: str) -> list[str]:
    """The texts of a file with one a line, without blank lines. Raises UserError, also where none is left."""
    lines = [line.strip() for line in read_text(path).splitlines() if line.strip()]
    if not lines:
        raise UserError(f"{path} holds no text; expected one text a line")
    return lines


def read_picture(candidates: Sequence[str], where: str) -> bytes:
    """The bytes of the first of these paths that exists. Raises Damaged."""
    for path in candidates:
        try:
            return read_plain(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError) as error:  # ValueError: a path with a null character
            raise Damaged(UNREADABLE_FILE, f"{path} ({error})") from error
    raise Damaged(MISSING_IMAGE, f"{where} (looked for {candidates[0]})")


def read_plain(path: str | Path) -> bytes:
    """The bytes of a plain file. OSError for a pipe, which nobody may ever write into, and for a giant."""
    state = os.stat(path)
    if not stat.S_ISREG(state.st_mode):
        raise OSError(errno.EINVAL, "no plain file", str(path))
    if state.st_size > MOST_BYTES:
        raise OSError(errno.EFBIG, f"more than {MOST_BYTES:,} bytes", str(path))
    return Path(path).read_bytes()


def require_pictures(candidates: Sequence[Sequence[str]], source: str, root: str, which: str = "") -> None:
    """Fail if none of the pictures is there. Each entry lists the paths where one picture may lie.

    which  what else the error says of the folder
    """
    if not Path(root).is_dir():
        raise UserError(
            f"no folder of pictures at {root}, named for {source}: say where with --images DIR{which}; {HELP}"
        )
    step = max(1, len(candidates) // _PROBES)
    if not any(Path(path).is_file() for paths in candidates[::step] for path in paths):
        first = next((paths[0] for paths in candidates if paths), root)
        raise UserError(
            f"none of the {len(candidates)} pictures of {source} is under {root} (the first was looked for at"
            f" {first}): say where they lie with --images DIR{which}; {HELP}"
        )


def split_query(path: str, allowed: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Take "file.csv?image=photo&root=pictures" apart. A file whose name holds a question mark stays whole.

    >>> split_query("rows.csv?image=photo&root=my%20pictures", ("image", "root"))
    ('rows.csv', {'image': 'photo', 'root': 'my pictures'})
    """
    base, query = divide(path)
    if not query:
        return path, {}
    options: dict[str, str] = {}
    for part in query.split("&"):
        name, _, value = part.partition("=")
        if name not in allowed or not value:
            raise UserError(
                f"'{part}' in {path} is no option: allowed are {', '.join(allowed)} as name=value; {HELP}"
            )
        options[name] = unquote(value)
    return base, options


def divide(path: str) -> tuple[str, str]:
    """Path and query. Only a question mark before an equals sign starts a query: it is a wildcard elsewhere.

    >>> divide("rows.csv?image=photo"), divide("rows-?.csv")
    (('rows.csv', 'image=photo'), ('rows-?.csv', ''))
    """
    base, _, query = path.rpartition("?")
    return (base, query) if base and "=" in query and not Path(path).exists() else (path, "")


def name_and_size(folder: str, name: str) -> list[str | int]:
    """What a fingerprint takes of a picture file; a size of -1 where it is gone."""
    path = Path(folder, name)
    return [name, path.stat().st_size if path.exists() else -1]


def digest(parts: Iterable[str | int]) -> str:
    """sha256 over a list of values; where one ends and the next begins counts.

    >>> digest(["ab", "c"]) == digest(["a", "bc"])
    False
    """
    total = hashlib.sha256()
    for part in parts:
        data = str(part).encode("utf-8", "surrogatepass")
        total.update(b"%d:" % len(data))
        total.update(data)
    return total.hexdigest()


def some(names: Sequence[str], number: int = 3) -> str:
    """The first few names, for a message.

    >>> some(["a", "b", "c", "d"], 2)
    'a, b and 2 more'
    """
    rest = len(names) - number
    return ", ".join(names[:number]) + (f" and {rest} more" if rest > 0 else "")
