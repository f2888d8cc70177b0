"""Images and captions that are given in Python: one image or several, pairs, and data sets.

    [("a.jpg", "A dog."), (image, ["A cat.", "It sits."])]   pairs; images as `Model.encode` takes them
    a torch.utils.data.Dataset                               of such pairs, or of dicts with the names below
    a datasets.Dataset                                       columns image, caption, captions, text, long, ...
    hf:NAME:SPLIT, hf:NAME:SPLIT?config=X                    of the Hugging Face hub (extra `hf`)
    a folder of datasets.Dataset.save_to_disk                the same, read from the disk

An image is a path, bytes, a PIL image, which is turned upright by its EXIF, or an array of pixels. Nothing is
guessed from a shape: a numpy array is [H, W, 3] or [H, W] as PIL and OpenCV have it (RGB), a torch tensor
[3, H, W]; one more dimension in front makes several images. Arrays are uint8 or floats in 0..1: other ranges
might be those of a normalised tensor.

Columns have the names that tables have (`formats.table.COLUMNS`); `?image=COL&caption=COL&long=COL` names
others. Images are decoded when they are used. `open_source.register` gives data a path, which a recipe can
hold; a run is resumed with the same data.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from grainline.data.decode import decode
from grainline.data.descriptions import Described
from grainline.data.formats.common import (
    FileSource,
    described,
    digest,
    read_captions,
    read_image,
    split_query,
)
from grainline.data.formats.parsed import data_error, strings
from grainline.data.formats.storage import is_file, is_folder, read_plain
from grainline.data.formats.table import COLUMNS, choose_columns, fields_of, unnamed
from grainline.data.record import Cause, CorruptSample, Record, Source, content_of
from grainline.errors import UserError

ImageLike = str | Path | bytes | Image.Image | np.ndarray | Tensor | Described
ONE = str, Path, bytes, Image.Image, Described

FORMS = "a path, the bytes of a file, a PIL image, a numpy array [H, W, 3] or a torch tensor [3, H, W]"


def is_one_image(inputs: Any) -> bool:
    """Whether this is a single image; otherwise it is several."""
    if isinstance(inputs, np.ndarray | Tensor):
        return inputs.ndim in (2, 3) and not _holds_objects(inputs)
    return isinstance(inputs, ONE)


def are_images(inputs: Any) -> bool:
    """Whether inputs are plainly images, or plainly texts. UserError where they may be either."""
    some = inputs if isinstance(inputs, list | tuple) else [inputs]
    names = [one for one in some if isinstance(one, str)]
    if len(names) == len(some) > 0:
        if not any(os.path.isfile(x) or re.search(r"\.[A-Za-z]{3,4}$|^\S*/\S*$", x) for x in names):
            return False
        if all(map(os.path.isfile, names)):
            return True
    elif isinstance(inputs, (list, tuple, np.ndarray, Tensor, *ONE)) and not _holds_objects(inputs):
        return True
    what = repr(names[0] if names else inputs)[:60]
    raise UserError(f"{what} may be an image or a text: write images=[...] or texts=[...]")


def several(inputs: Any, what: str) -> Iterable[Any]:
    """The inputs one by one. UserError for what has no order. what: "image" or "text", for the error"""
    if isinstance(inputs, np.ndarray) and _holds_objects(inputs):
        return inputs.ravel().tolist()  # strings, as pandas gives them
    if isinstance(inputs, Mapping | AbstractSet) or not isinstance(inputs, Iterable):
        raise UserError(f"give one {what}, a list or an iterator; this is of type {type(inputs).__name__}")
    return inputs


def count_of(inputs: Any) -> int:
    """How many there are; 0 where only reading them tells."""
    return len(inputs) if isinstance(inputs, Sequence | np.ndarray | Tensor) else 0


def open_image(image: ImageLike) -> bytes | Image.Image:
    """The bytes of an image file, or an image in memory. Raises UserError for anything else."""
    if isinstance(image, bytes | Image.Image):
        return image
    if isinstance(image, np.ndarray | Tensor):
        return _from_pixels(image)
    if not isinstance(image, str | Path):
        raise UserError(f"an image is {FORMS}; this one is of type {type(image).__name__}")
    try:
        return read_plain(image)
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"image {image} cannot be read: {why}") from None


def original(image: ImageLike) -> Image.Image:
    """An image whole, in RGB, upright. Raises UserError for what is no image."""
    if isinstance(image, Described):
        return original(image.image)
    name = str(image) if isinstance(image, str | Path) else "image"
    try:
        return decode(Record(name, open_image(image), ()))
    except CorruptSample as error:
        raise UserError(f"{error.where} cannot be used: {error.cause}; give an image file") from None


def _holds_objects(inputs: Any) -> bool:
    return isinstance(inputs, np.ndarray) and inputs.dtype.kind in "OUS"


def _from_pixels(image: np.ndarray | Tensor) -> Image.Image:
    """An image from uint8 in 0..255 or floats in 0..1."""
    form = f"{type(image).__name__} {image.dtype} {list(image.shape)}"
    if isinstance(image, Tensor):
        pixels = image.detach().cpu().float().numpy() if image.is_floating_point() else image.cpu().numpy()
        pixels = pixels.transpose(1, 2, 0) if pixels.ndim == 3 else pixels
    else:
        pixels = image
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if not (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (3, 4))) or 0 in pixels.shape:
        raise UserError(f"an image is {FORMS}; this one is a {form}")
    if pixels.dtype.kind == "f":
        if not (np.isfinite(pixels).all() and pixels.min() >= 0 and pixels.max() <= 1):
            raise UserError(f"floats of an image lie in 0..1, not normalised; this {form} has others")
        pixels = np.round(pixels * 255).astype(np.uint8)
    elif pixels.dtype != np.uint8:
        raise UserError(f"pixels are uint8 in 0..255 or floats in 0..1; this image is a {form}")
    return Image.fromarray(np.ascontiguousarray(pixels))


OPTIONS = ("config", *COLUMNS)
PROBES = 16  # records of a data set without a fingerprint of its own, whose texts are part of ours
FORM = 'a pair is (image, caption) or (image, [captions]), such as ("a.jpg", "A dog runs.")'


class ImageTextPairs:
    """Images in memory or by their paths, each with its captions. Fulfils grainline.data.record.Source.

    Pairs with the same path, or the same object, are captions of one image. Key: the path, else the number
    of the image, from 0.
    """

    def __init__(self, pairs: Iterable[Any], images: str | None = None, path: str = "") -> None:
        """images: folder of the images, for relative paths; path: the name of the data; "": their number"""
        rows: dict[Any, tuple[ImageLike, list[str]]] = {}
        pairs = list(pairs)
        for number, pair in enumerate(pairs, 1):
            if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
                raise UserError(f"pair {number} is of type {type(pair).__name__}; {FORM}")
            image, captions = pair
            texts = [captions] if isinstance(captions, str) else captions
            if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
                raise UserError(f"the captions of pair {number} are no strings; {FORM}")
            same = str(image) if isinstance(image, str | Path) else id(image)
            rows.setdefault(same, (image, []))[1].extend(texts)
        self.path = path or f"a list of {len(pairs):,} pairs"
        self._folder, self._rows = images or "", list(rows.values())
        keyed = enumerate(image for image, _ in self._rows)
        self._keys = [str(image) if isinstance(image, str | Path) else str(i) for i, image in keyed]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Record:
        key, (image, texts) = self._keys[index], self._rows[index]
        if texts and not strings(texts):
            raise CorruptSample(Cause.MISSING_CAPTION, key)
        if not isinstance(image, str | Path):
            return Record(key, open_image(image), tuple(strings(texts)))
        path = os.path.join(self._folder, image)
        return Record(key, read_image([path], path), tuple(strings(texts)))

    def keys(self) -> list[str]:
        """The keys of all records in order."""
        return self._keys

    def fingerprint(self) -> str:
        """sha256 over keys, captions, and the content of images that are no paths."""
        rows = zip(self._keys, self._rows, strict=True)
        return digest(part for key, (image, texts) in rows for part in (key, _identity(image), *texts))


class Pairs(FileSource):
    """Items by number: (image, caption or captions), or dicts with columns."""

    def __init__(self, items: Any, path: str = "pairs", columns: Mapping[str, str] | None = None) -> None:
        """columns: of dicts, by role: image, caption, long; None: found by name in the first one"""
        self.items, self.path = items, path
        if not len(items):
            raise data_error(f"{path} is empty")
        first = items[0] if columns is None else None
        if isinstance(first, Mapping):
            columns = choose_columns(list(first), {}, path)
        self.remarks = unnamed(getattr(items, "column_names", first if isinstance(first, Mapping) else ()))
        self.columns = columns or {}

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Record:
        number = range(len(self))[index]
        item, where = self.items[number], f"{self.path}: item {number}"
        if isinstance(item, Mapping):
            image, fields = item.get(self.columns["image"]), fields_of(item, self.columns)
        elif isinstance(item, Sequence) and not isinstance(item, str | bytes) and len(item) == 2:
            image, texts = item
            fields = {"captions": texts if isinstance(texts, list | tuple) else [texts]}
        else:
            raise data_error(f"{where} is of type {type(item).__name__}; {FORM}, or a dict")
        captions = read_captions(fields, where)
        if captions.silent:
            raise CorruptSample(Cause.MISSING_CAPTION, where)
        return described(captions, str(number), b"")._replace(image=_opened(image, where))

    def keys(self) -> Iterable[str]:
        return map(str, range(len(self)))

    def fingerprint(self) -> str:
        own = getattr(self.items, "_fingerprint", None)  # of the datasets library: data and what became of it
        if isinstance(own, str):
            return digest(["datasets", own, *sorted(f"{k}={v}" for k, v in self.columns.items())])
        return digest(self._parts())

    def _parts(self) -> Iterator[str | int]:
        yield from ("pairs", len(self))
        if isinstance(self.items, list | tuple):
            for item in self.items:
                image, texts = (item[self.columns["image"]], item) if isinstance(item, Mapping) else item
                yield _identity(image)
                yield from fields_text(texts)
        else:
            yield type(self.items).__name__
            for number in sorted({*range(min(PROBES, len(self))), *range(len(self))[-PROBES:]}):
                try:
                    record = self[number]
                    yield from (*record.captions, record.long or "")
                except CorruptSample as error:
                    yield error.cause


class HuggingFace(Pairs):
    """A split of a data set of the Hugging Face hub, or a folder of `save_to_disk` (extra `hf`)."""

    def __init__(self, path: str) -> None:
        name, options = split_query(path, OPTIONS)
        data = _library("load_from_disk")(name) if is_folder(name) else _from_hub(name, options)
        if isinstance(data, Mapping):
            raise data_error(f"{path} holds several splits, {', '.join(data)}: name the folder of one")
        columns = choose_columns(data.column_names, {k: v for k, v in options.items() if k in COLUMNS}, path)
        super().__init__(with_bytes(data, columns["image"]), path, columns)

    @staticmethod
    def recognises_path(path: str) -> bool:
        one = all(is_file(os.path.join(path, name)) for name in ("dataset_info.json", "state.json"))
        return one or is_file(os.path.join(path, "dataset_dict.json"))  # several: refused with their names


REGISTERED: dict[str, Source] = {}
"""Data that are given in Python, by the rest of their path behind `python:` (`open_source.register`)."""


class Registered(FileSource):
    """`python:KEY`: data that `register` knows in this process. Never made: `open` returns the data."""

    @classmethod
    def open(cls, path: str, images: str | None = None, size: int | None = None) -> Any:  # noqa: ARG003
        if path not in REGISTERED:
            raise data_error(f"python:{path} was given in Python, by another process: give it again")
        return REGISTERED[path]


def source_of(data: Any, images: str | None = None) -> Source:
    """Data that are given in Python as a source. UserError for what is none."""
    if isinstance(data, Source):
        return data
    if hasattr(data, "column_names") and hasattr(data, "features"):
        columns = choose_columns(data.column_names, {}, "the data set")
        return Pairs(with_bytes(data, columns["image"]), "the data set", columns)
    listed = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    if not listed or isinstance(data, str | bytes | Mapping):
        raise data_error(f"data of type {type(data).__name__}; give a path, a list of pairs or a data set")
    if isinstance(data, list | tuple) and data and not isinstance(data[0], Mapping):
        return ImageTextPairs(data, images)
    return Pairs(data)


def with_bytes(data: Any, column: str) -> Any:
    """The data set with images as bytes, which are decoded when they are used."""
    feature = data.features[column]
    if type(feature).__name__ != "Image":
        return data
    own = data._fingerprint
    data = data.cast_column(column, type(feature)(decode=False))
    data._fingerprint = own  # the same data: the library would make a new one
    return data


def fields_text(texts: Any) -> Iterator[str]:
    """All strings in captions, or in the fields of an item."""
    if isinstance(texts, str):
        yield texts
    elif isinstance(texts, Mapping):
        for name, value in texts.items():
            yield from fields_text([name, value] if isinstance(value, str | list | tuple) else [])
    elif isinstance(texts, list | tuple):
        for text in texts:
            yield from fields_text(text)


def _opened(image: Any, where: str) -> Any:
    if isinstance(image, Mapping):  # of the datasets library, not decoded
        image = image.get("bytes") or image.get("path")
    if image is None:
        raise CorruptSample(Cause.MISSING_IMAGE, where)
    try:
        return open_image(image)
    except UserError as error:
        raise CorruptSample(Cause.UNREADABLE_FILE, f"{where} ({error})") from None


def _identity(image: Any) -> str:
    """The name of an image in a fingerprint: its path, or a digest of its content."""
    if isinstance(image, str | Path):
        return str(image)
    return digest([content_of(open_image(image)).hex()])


def _from_hub(name: str, options: Mapping[str, str]) -> Any:
    name, _, split = name.partition(":")
    load: Callable[..., Any] = _library("load_dataset")
    try:
        return load(name, options.get("config"), split=split or "train")
    except Exception as error:  # the library passes on those of whatever it speaks HTTP with
        why = next(iter(str(error).strip().splitlines()), repr(error)).rstrip(".")
        raise data_error(f"hf:{name}: the hub gave no data set ({why}); give NAME:SPLIT") from None


def _library(name: str) -> Callable[..., Any]:
    try:
        import datasets
    except ImportError:
        raise data_error("data sets of Hugging Face need a package: pip install 'grainline[hf]'") from None
    return getattr(datasets, name)
