"""RefCOCO, RefCOCO+ and RefCOCOg: referring expressions with masks; box proposals for their images.

    refcoco:DIR?split=testA&images=train2014/    a folder of the release: refs(unc).p and instances.json
    refcoco:refcocog/refs(umd).p?split=val       one of several files of expressions

Yu et al., arXiv 1608.00272; Mao et al., arXiv 1511.02283. The file of expressions, pickled or as JSON, is a
list of {ref_id, ann_id, image_id, split, sentences: [{sent, raw, sent_id}]}. In the same folder,
instances.json has images[] and annotations[] with a segmentation, as COCO does, and with image_id and bbox
where boxes are needed. A record is an image with a region for each sentence; it has no caption. `split` may
name several, by commas, and is `val` by default. A pixel belongs to a polygon where its centre lies inside.
"""

import hashlib
import os
import pickle
import pickletools
import re
from collections.abc import Iterator
from io import BytesIO
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from grainline.data.formats.listed import Entry, ListedImages, SizedImage, no_text, wrong_row
from grainline.data.formats.parsed import (
    Extent,
    Fields,
    Id,
    Pixels,
    Text,
    around,
    checked,
    data_error,
    has_rows,
    load_json,
    polygons_mask,
    read_mask,
    strings,
)
from grainline.data.formats.storage import is_file, is_folder, names_in, read_plain
from grainline.data.record import Box, Cause, CorruptSample, Record, Region
from grainline.errors import UserError
from grainline.files import Unpickler

INSTANCES = "instances.json"


class _Ref(Fields):
    """The expressions of one annotation."""

    ann_id: Id
    image_id: Id
    split: Text
    sentences: tuple[dict[str, Any], ...]

    @property
    def texts(self) -> list[str]:
        """One text of each sentence: cleaned as the release has it, else as it was written."""
        both = ((strings(one.get("sent")), strings(one.get("raw"))) for one in self.sentences)
        return [text for sent, raw in both for text in (sent or raw)[:1]]


class _Annotation(Fields):
    id: Id
    segmentation: Any  # checked when its mask is drawn


class _Boxed(Fields):
    image_id: Id
    bbox: Extent


class _Polygons(Fields):
    segmentation: tuple[tuple[Pixels, ...], ...]


INSTANCE_FIELDS = {"images": tuple(SizedImage.model_fields), "annotations": tuple(_Annotation.model_fields)}


class RefCoco(ListedImages):
    """The images of some splits that have expressions, in the order of the file. Raises UserError."""

    form = f"a file of expressions: a list of rows with {', '.join(_Ref.model_fields)}"
    options = ("split", "images", "instances")
    sized = "masks"

    @classmethod
    def recognises(cls, content: Any) -> bool:
        return has_rows({"refs": content}, "refs", tuple(_Ref.model_fields))

    @staticmethod
    def recognises_path(path: str) -> bool:
        return is_file(os.path.join(path, INSTANCES)) and bool(_files_in(path))

    def load(self) -> Any:
        """The file of expressions. Raises UserError for a folder with none or several."""
        if is_folder(self._file):
            files = _files_in(self._file)
            if len(files) != 1:
                has = f"{', '.join(files)}: name one of them" if files else "no file refs(...).p or .json"
                such = f"refcoco:{os.path.join(self._file, 'refs(unc).p')}"
                raise data_error(f"{self._file} holds {has}, such as {such}")
            self._file = os.path.join(self._file, files[0])
        return load_json(self._file) if self._file.endswith(".json") else read_pickle(self._file)

    def parse(self, content: Any) -> list[Entry]:
        """Images with their expressions, then each row that is wrong."""
        self._instances = self._query.get("instances") or os.path.join(self.folder(), INSTANCES)
        refs = list(checked(_Ref, content, "refs"))
        wanted = self.choose_splits((ref.split for _, ref, _ in refs if ref), "val")
        images, outlines, boxes_in = self._read_instances()
        expressions: dict[int | str, list[tuple[str, int | str]]] = {}  # by image: text, id of the annotation
        wrong = []
        for place, ref, error in refs:
            if ref is None:
                wrong.append(wrong_row(place, error))
            elif ref.split not in wanted:
                continue
            elif ref.image_id not in images or ref.ann_id not in outlines:
                both = f"image {ref.image_id} or annotation {ref.ann_id}"
                wrong.append(wrong_row(place, f"{both} is not in {self._instances}, or wrong there"))
            elif sentences := ref.texts:
                expressions.setdefault(ref.image_id, []).extend((text, ref.ann_id) for text in sentences)
        if not expressions:
            raise no_text(self._file, "expression of these splits", wrong)
        # of each image, in the order of the entries
        self._expressions = list(expressions.values())
        self._boxes_in = [boxes_in.get(number, []) for number in expressions]
        self._outlines = {name: outlines[name][0] for texts in self._expressions for _, name in texts}
        entries = []
        for number, texts in expressions.items():
            image, regions = images[number], tuple(Region(text, outlines[name][1]) for text, name in texts)
            places = (image.file_name, os.path.join("train2014", image.file_name))
            record = Record(image.file_name, b"", (), regions=regions)
            entries.append(Entry(record, places, (image.width, image.height)))
        return entries + wrong

    def _read_instances(
        self,
    ) -> tuple[dict[Any, SizedImage], dict[Any, tuple[Any, Box | None]], dict[Any, list]]:
        """Images, and annotations as segmentation and box (None: not right), by id; all boxes of an image."""
        data = load_json(self._instances)
        if not all(has_rows(data, name, fields) for name, fields in INSTANCE_FIELDS.items()):
            form = "; ".join(f"{name}[] with {', '.join(fields)}" for name, fields in INSTANCE_FIELDS.items())
            raise data_error(f"{self._instances} is no file of annotations: {form}")
        outlines: dict[Any, tuple[Any, Box | None]] = {}
        boxes_in: dict[Any, list[Box | None]] = {}
        rows = checked(_Annotation, data["annotations"], "annotations")
        for fields, (_, row, _) in zip(data["annotations"], rows, strict=True):
            if row is None:
                continue
            try:
                boxed = _Boxed.of(fields)
                box, image = around(boxed.bbox), boxed.image_id
            except ValueError:
                box, image = None, fields.get("image_id")
            outlines[row.id] = row.segmentation, box
            if isinstance(image, int | str):
                boxes_in.setdefault(image, []).append(box)
        images = {row.id: row for _, row, _ in checked(SizedImage, data["images"], "images") if row}
        return images, outlines, boxes_in

    def __getitem__(self, index: int) -> Record:
        record = super().__getitem__(index)
        numbers = [number for _, number in self._expressions[index]]
        where = f"{self._file}: {record.key} (annotation"
        masks = {n: self._mask(n, self.entries[index].size, f"{where} {n}") for n in dict.fromkeys(numbers)}
        regions = zip(record.regions, numbers, strict=True)
        return record._replace(regions=tuple(one._replace(mask=masks[number]) for one, number in regions))

    def boxes(self, index: int) -> tuple[Box, ...]:
        """The boxes of all annotations of an image, in the order of the file. Raises UserError without."""
        boxes = tuple(box for box in self._boxes_in[index] if box is not None)
        if len(boxes) < len(self._boxes_in[index]) or not boxes:
            key = self.entries[index].record.key
            raise data_error(f"{self._instances}: an annotation of {key} has no image_id or no bbox")
        return boxes

    def _mask(self, number: int | str, size: Any, where: str) -> np.ndarray:
        outline = self._outlines[number]
        try:
            if isinstance(outline, list):
                mask = polygons_mask(_Polygons.of({"segmentation": outline}).segmentation, *size[::-1])
            else:
                mask = read_mask(outline)
        except ValueError as error:
            raise CorruptSample(Cause.CORRUPT_REGION, f"{where}: {error})") from error
        if mask.shape != size[::-1]:
            sizes = f"a mask of {mask.shape[1]} x {mask.shape[0]} pixels, the image has {size[0]} x {size[1]}"
            raise CorruptSample(Cause.CORRUPT_REGION, f"{where}: {sizes})")
        return mask

    def parts(self) -> Iterator[str | int]:
        for i, entry in enumerate(self.entries):
            texts = self._expressions[i] if i < len(self._expressions) else []
            yield from (entry.record.key, len(texts))
            for text, number in texts:
                yield from (text, str(self._outlines[number]))


def _files_in(folder: str) -> list[str]:
    names = names_in(folder)
    return sorted(name for name in names if name.startswith("refs(") and name.endswith((").p", ").json")))


# Box proposals of a detector, in the JSON of ReCLIP's release (arXiv 2204.05991).
#
#     {"581857": [[x, y, width, height], ...], "other.jpg": [{"box": [...], "score": 0.9}, ...]}
#     [{"image_id": 581857, "box": [x, y, width, height], "score": 0.9}, ...]
#
# A box is left, top, width and height in pixels of the image, under `box` or `bbox`. A list may say
# `file_name` instead of `image_id`. Scores are not used.

PROPOSALS = (
    "{image_id or file_name: [boxes]} or [{image_id or file_name, box or bbox}, ...], a box being [left, top,"
    " width, height] in pixels"
)


class _Proposal(Fields):
    image_id: Id | None = None
    file_name: Id | None = None
    box: Extent | None = None
    bbox: Extent | None = None


class Proposals:
    """The boxes of each image, in the order of the file. Raises UserError for anything else."""

    def __init__(self, path: str) -> None:
        self.path = path
        data = load_json(path)
        boxes: dict[str, list[Box]] = {}
        if isinstance(data, dict):
            some = {name: value if isinstance(value, list) else [value] for name, value in data.items()}
            pairs = ((name, one) for name, ones in some.items() for one in ones)
            data = [(x if isinstance(x, dict) else {"box": x}) | {"image_id": name} for name, x in pairs]
        for place, row, error in checked(_Proposal, data if isinstance(data, list) else (), "boxes"):
            name = row and (row.file_name if row.image_id is None else row.image_id)
            box = (row.box or row.bbox) if row else None
            if name is None or box is None:
                wrong = error or "no image_id and no file_name, or no box"
                raise UserError(f"{path}: {place}: {wrong}; expected {PROPOSALS}")
            boxes.setdefault(str(name), []).append(around(box))
        if not boxes:
            raise UserError(f"{path} holds no boxes; expected {PROPOSALS}")
        self._boxes = boxes
        self.sha256 = hashlib.sha256(read_plain(path, 2**62)).hexdigest()

    def of(self, key: str) -> tuple[Box, ...]:
        """The boxes of an image, each once; () where the file does not name it."""
        boxes = next((self._boxes[name] for name in image_names(key) if name in self._boxes), [])
        return tuple(dict.fromkeys(boxes))


def image_names(key: str) -> Iterator[str]:
    """Names of an image in a file of proposals: its key, file name, stem, and the number at its end.

    >>> list(image_names("train2014/COCO_train2014_000000000007.jpg"))[1:]
    ['COCO_train2014_000000000007.jpg', 'COCO_train2014_000000000007', '7']
    """
    path = PurePosixPath(key)
    yield from (key, path.name, path.stem)
    number = re.search(r"\d+$", path.stem)
    if number is not None:
        yield number[0].lstrip("0") or "0"


# Pickles of plain data (lists, dicts, numbers, texts), read without running code. A pickle is a program that
# may call anything it can name: here it can name nothing.

_OPCODES = {opcode.code.encode("latin-1"): opcode for opcode in pickletools.opcodes}
_UNPICKLING_ERRORS = (  # of files that are cut or no pickles
    *(ArithmeticError, AttributeError, EOFError, IndexError, KeyError, MemoryError, RecursionError),
    *(TypeError, ValueError, pickle.UnpicklingError),
)


def read_pickle(path: str) -> Any:
    """The content of a pickle of plain data, of Python 2 too, whose strings are texts.

    Raises UserError for one that asks for anything else, which is not run.
    """
    try:
        data = read_plain(path, 2**62)
        _check(data)
        try:  # strings of Python 2 are bytes: UTF-8, else Latin-1
            return Unpickler(BytesIO(data), encoding="utf-8").load()
        except UnicodeDecodeError:
            return Unpickler(BytesIO(data), encoding="latin-1").load()
    except OSError as error:
        raise data_error(f"{path} cannot be read ({error.strerror})") from error
    except _UNPICKLING_ERRORS as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise data_error(f"{path} is no pickle of plain data: {first}") from None


def _check(data: bytes) -> None:
    """Raise ValueError for a number of a place that would fill the memory, and for registered extensions."""
    file = BytesIO(data)
    while (code := file.read(1)) and code != b".":
        opcode = _OPCODES.get(code)
        if opcode is None or opcode.name.startswith("EXT"):  # an extension that is cached is not looked up
            raise ValueError(f"{code!r} is no instruction of plain data")
        if opcode.name == "STRING":  # pickletools fails where a text of Python 2 is not ASCII
            file.readline()
            continue
        argument = opcode.arg.reader(file) if opcode.arg else 0
        if "PUT" in opcode.name and argument > len(data):
            raise ValueError("it asks for more memory than its content can need")
