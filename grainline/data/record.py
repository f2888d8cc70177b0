"""The record that every source of data yields, and the causes why a sample cannot be used."""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from PIL import Image

from grainline.errors import UserError, shorten_words, stop_if_unreachable

Span = tuple[str, int, int]
"""A place in a text: ("long", 3, 17) or ("captions.0", 3, 17), from character 3 up to, not including, 17."""

Box = tuple[float, float, float, float]
"""Left, top, right and bottom in pixels of the stored image; right and bottom are one past the last one."""


class Foil(NamedTuple):
    """A hard negative: a caption of the image, or the phrase of a region, with one thing wrong."""

    text: str
    true: str  # the caption or phrase that it was made from
    kind: str  # what is wrong: "colour", "size", "relation", "noun", ...; or how hard it is: "easy"


class Region(NamedTuple):
    """A phrase and the part of the image that it describes."""

    phrase: str
    box: Box | None = None
    mask: np.ndarray | None = None  # [H, W] bool over the stored image
    span: Span | None = None
    foils: tuple[Foil, ...] = ()  # wrong descriptions of the region


class Record(NamedTuple):
    """One image with its texts."""

    key: str  # unique in its source; names the image in logs and reports
    image: bytes | Image.Image  # an encoded file, or pixels
    captions: tuple[str, ...]  # of the whole image; none where only regions are described
    long: str | None = None  # a longer description; `others` are further ones
    regions: tuple[Region, ...] = ()
    foils: tuple[Foil, ...] = ()
    subtexts: tuple[str, ...] = ()  # cumulative pieces of the whole text, each longer than the last
    others: tuple[str, ...] = ()
    dense: str | None = None  # the description that a method reads with the image (data/descriptions.py)

    @property
    def silent(self) -> bool:
        """Whether there is no text of the whole image."""
        return not self.captions and not self.long

    @property
    def longs(self) -> tuple[str, ...]:
        """All long descriptions."""
        return ((self.long,) if self.long else ()) + self.others

    @property
    def whole(self) -> str:
        """The fullest text there is: the long description, else all captions joined as sentences."""
        return self.long or as_sentences(self.captions)


def as_sentences(texts: Sequence[str]) -> str:
    """Several texts as sentences of one text; a single text unchanged."""
    return texts[0] if len(texts) == 1 else " ".join(text.rstrip(" .") + "." for text in texts)


class Cause:
    """Why a sample cannot be used: `CorruptSample.cause`, also in logs and reports."""

    CORRUPT_IMAGE = "corrupt image"  # the bytes are no image; raised by grainline.data.decode
    MISSING_IMAGE = "missing image"  # nothing where the image should be
    MISSING_CAPTION = "missing caption"  # no text, or only white space
    AMBIGUOUS_KEY = "ambiguous key"  # two images, or two texts of one ending, in a tar
    TRUNCATED_TAR = "truncated tar"  # the archive ends before the sample does
    UNREADABLE_FILE = "unreadable file"  # the system refuses: permissions, a disk or network that fails
    CORRUPT_ROW = "corrupt row"  # one line of a table that cannot be parsed
    CORRUPT_TEXT = "corrupt text"  # a file of texts beside an image that is not UTF-8, or not JSON
    CORRUPT_REGION = "corrupt region"  # a box, mask, span or foil that makes no sense


HELP = "see docs/data.md"


def data_error(message: str) -> UserError:
    """A wrong source of data; the message ends with the page that helps."""
    return UserError(f"{message}; {HELP}")


class CorruptSample(Exception):
    """A sample that cannot be used. It is replaced or skipped, and counted by its cause."""

    def __init__(self, cause: str, where: str) -> None:
        stop_if_unreachable(sys.exception())
        self.cause = cause  # a `Cause`, or other words
        self.where = shorten_words(where)  # the file, and the row or member inside it
        super().__init__(f"{cause}: {self.where}")


@runtime_checkable
class Source(Protocol):
    """Random access to records. Opening a source reads an index, never the images."""

    path: str

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Record:
        """The record at a position; raises CorruptSample for one that cannot be used."""

    def fingerprint(self) -> str:
        """Hex digest of names, sizes and texts, not pixels: equal data have equal digests."""


def keys_of(source: Source) -> Iterable[str]:
    """The keys of all records in order; reads the records where the source has no method `keys`."""
    keys: Callable[[], Iterable[str]] | None = getattr(source, "keys", None)
    return keys() if keys else (source[i].key for i in range(len(source)))


def content_of(image: bytes | Image.Image) -> bytes:
    """The bytes by which two images are compared: the file, or size and pixels of a drawn image."""
    return image if isinstance(image, bytes) else b"%d %d " % image.size + image.tobytes()


@runtime_checkable
class Boxed(Protocol):
    """A source that knows the boxes of all objects in its images, described or not."""

    def boxes(self, index: int) -> tuple[Box, ...]:
        """The boxes of all things in an image."""


def box_of(mask: np.ndarray) -> Box:
    """The smallest box around a mask [H, W] bool with a pixel at least."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)


def boxes_of(source: Source, index: int, record: Record) -> tuple[Box, ...]:
    """The boxes of the objects in an image, each once: those of the source, else those of its regions."""
    if isinstance(source, Boxed):
        return tuple(dict.fromkeys(source.boxes(index)))
    boxes = (region_box(region) for region in record.regions)
    return tuple(dict.fromkeys(box for box in boxes if box is not None))


def misplaced(record: Record, size: tuple[int, int]) -> str:
    """The first region outside its text, or its image of that width and height, and why; "" without one."""
    texts = {f"captions.{i}": text for i, text in enumerate(record.captions)}
    texts |= {f"others.{i}": text for i, text in enumerate(record.others)}
    texts |= {"long": record.long} if record.long else {}
    place = f"the image of {size[0]} x {size[1]} pixels"
    for region in record.regions:
        box, mask, span = region.box, region.mask, region.span
        if box is not None and not (box[0] < size[0] and box[1] < size[1] and box[2] > 0 and box[3] > 0):
            return f"{region.phrase}: its box is outside {place}"
        if mask is not None and mask.shape != size[::-1]:
            own = f"its mask of {mask.shape[1]} x {mask.shape[0]} pixels"
            return f"{region.phrase}: {own} does not fit {place}"
        if span is not None and not 0 <= span[1] < span[2] <= len(texts.get(span[0], "")):
            return f"{region.phrase}: no text at {shorten_words(span[0])} {span[1]} to {span[2]}"
    return ""


def region_box(region: Region) -> Box | None:
    """The box of a region, else that around its mask; None without both."""
    if region.box is not None or region.mask is None or not region.mask.any():
        return region.box
    return box_of(region.mask)
