"""RefCOCO, RefCOCO+ and RefCOCOg: referring expressions with masks.

    refcoco:DIR?split=testA&images=train2014/    a folder of the release: refs(unc).p and instances.json
    refcoco:refcocog/refs(umd).p?split=val       one of several files of expressions

Yu et al., arXiv 1608.00272; Mao et al., arXiv 1511.02283. The file of expressions, pickled or as JSON, is a
list of {ref_id, ann_id, image_id, split, sentences: [{sent, raw, sent_id}]}; instances.json beside it has
images[] and annotations[] with a segmentation, as COCO does, and with image_id and bbox where boxes are asked
for. A record is an image with a region for each sentence; it has no caption. `split` may name several, by
commas, and is `val` by default. `masks=coco` draws polygons with pycocotools, as published code does
(extra `coco`); without it a pixel belongs to a polygon where its centre lies inside.
"""

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from grainline.data.benchmarks.pickled import read_pickle
from grainline.data.decode import image_size
from grainline.data.formats.checked import (
    Extent,
    Fields,
    Id,
    Pixels,
    Side,
    Text,
    around,
    checked,
    has_rows,
    strings,
)
from grainline.data.formats.common import FileSource, digest, read_image, require_images, split_query
from grainline.data.formats.masks import coco_polygons_mask, polygons_mask, read_mask, require_pycocotools
from grainline.data.formats.plain import HELP, load_json
from grainline.data.record import CORRUPT_REGION, CORRUPT_ROW, Box, CorruptSample, Record, Region
from grainline.errors import UserError

REF_FIELDS = ("ann_id", "image_id", "split", "sentences")
INSTANCES = "instances.json"
INSTANCE_FIELDS = {"images": ("id", "file_name", "width", "height"), "annotations": ("id", "segmentation")}


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


class _Image(Fields):
    id: Id
    file_name: Text
    width: Side
    height: Side


class _Annotation(Fields):
    id: Id
    segmentation: Any  # checked when its mask is drawn


class _Placed(Fields):
    image_id: Id
    bbox: Extent


class _Polygons(Fields):
    segmentation: tuple[tuple[Pixels, ...], ...]


class _AnnotatedImage(NamedTuple):
    name: str
    size: tuple[int, int]  # width and height
    expressions: list[tuple[str, int | str]]  # text, id of the annotation
    number: int | str  # its id
    error: str = ""  # what is wrong with the row; its place in the file is then the name


class _Notes(NamedTuple):
    """Annotations."""

    outline: dict[int | str, Any]  # of those that an expression speaks of, by their ids
    box: dict[int | str, Box | None]  # of the same
    around: dict[int | str, list[Box | None]]  # of all annotations of an image, by its id


class RefCoco(FileSource):
    """The images of some splits that have expressions, in the order of the file. Raises UserError."""

    images_by_path = True

    @staticmethod
    def recognises(content: Any) -> bool:
        """Whether content have the form of a file of expressions; its rows may still be wrong."""
        return (
            isinstance(content, list)
            and bool(content)
            and any(isinstance(row, dict) and all(name in row for name in REF_FIELDS) for row in content)
        )

    @staticmethod
    def recognises_path(path: str) -> bool:
        """Whether a folder holds a file of expressions and the annotations that it speaks of."""
        return (Path(path) / INSTANCES).is_file() and bool(_files_in(path))

    def __init__(self, path: str, images: str | None = None, data: Any = None) -> None:
        place, options = split_query(path, ("images", "split", "instances", "masks"))
        self.path = path
        self._file = _file_of(place)
        refs = _refs(self._file) if data is None else data
        if not self.recognises(refs):
            raise UserError(
                f"{self._file} is no file of expressions: a list of rows with {', '.join(REF_FIELDS)}; {HELP}"
            )
        self._masks = options.get("masks", "")
        if self._masks not in ("", "coco"):
            raise UserError(f"masks={self._masks} is unknown; leave it out, or give masks=coco; {HELP}")
        if self._masks:
            require_pycocotools()
        beside = os.path.dirname(os.path.abspath(self._file))
        instances = options.get("instances") or os.path.join(beside, INSTANCES)
        self._root = images or options.get("images") or beside
        rows = list(checked(_Ref, refs, "refs"))
        split_refs = _of_split(rows, options.get("split", "val"), self._file)
        self._instances = instances
        self._images, (self._outlines, self._box, self._around) = _read(split_refs, instances, self._file)
        names = [one.name for one in self._images if not one.error]
        require_images([self._places(name) for name in names], self._file, self._root)

    def _places(self, name: str) -> list[str]:
        """DIR may be the folder of the images, or the one above train2014."""
        return [os.path.join(self._root, place) for place in (name, os.path.join("train2014", name))]

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> Record:
        name, size, expressions, _, error = self._images[index]
        where = f"{self._file}: {name}"
        if error:
            raise CorruptSample(CORRUPT_ROW, f"{where} ({error})")
        record = Record(name, read_image(self._places(name), where), ())
        actual = image_size(record)
        if actual != size:
            sizes = f"{actual[0]} x {actual[1]} pixels, its masks are for {size[0]} x {size[1]}"
            raise CorruptSample(CORRUPT_REGION, f"{where} ({sizes})")
        masks = {
            number: self._mask(number, size, where) for number in dict.fromkeys(n for _, n in expressions)
        }
        return record._replace(
            regions=tuple(Region(text, self._box[number], masks[number]) for text, number in expressions)
        )

    def boxes(self, index: int) -> tuple[Box, ...]:
        """The boxes of all annotations of an image, in the order of the file. Raises UserError without."""
        name, number = self._images[index].name, self._images[index].number
        here = self._around.get(number, [])
        boxes = tuple(box for box in here if box is not None)
        if len(boxes) < len(here) or not boxes:
            raise UserError(
                f"{self._instances}: an annotation of {name} has no image_id or no bbox [left, top, width,"
                f" height]; {HELP}"
            )
        return boxes

    def _mask(self, number: int | str, size: tuple[int, int], where: str) -> np.ndarray:
        outline = self._outlines[number]
        try:
            if isinstance(outline, list):
                draw = coco_polygons_mask if self._masks else polygons_mask
                mask = draw(_Polygons.of({"segmentation": outline}).segmentation, *size[::-1])
            else:
                mask = read_mask(outline)
        except ValueError as error:
            raise CorruptSample(CORRUPT_REGION, f"{where} (annotation {number}: {error})") from error
        if mask.shape != size[::-1]:
            sizes = f"a mask of {mask.shape[1]} x {mask.shape[0]} pixels, the image has {size[0]} x {size[1]}"
            raise CorruptSample(CORRUPT_REGION, f"{where} (annotation {number}: {sizes})")
        return mask

    def keys(self) -> Iterable[str]:
        """The file names of the images."""
        return (image.name for image in self._images)

    def fingerprint(self) -> str:
        """sha256 over names, texts and outlines; images are not looked at, so they do not count."""
        parts: list[str | int] = [self._masks] if self._masks else []
        for name, _, expressions, _, _ in self._images:
            parts += [name, len(expressions)]
            for text, number in expressions:
                parts += [text, str(self._outlines[number])]
        return digest(parts)


def _files_in(folder: str) -> list[str]:
    names = os.listdir(folder)
    return sorted(name for name in names if name.startswith("refs(") and name.endswith((").p", ").json")))


def _file_of(place: str) -> str:
    """The file of expressions that a path means. Raises UserError for a folder with none or several."""
    if not os.path.isdir(place):
        return place
    files = _files_in(place)
    if len(files) != 1:
        has = f"holds {', '.join(files)}: name one of them" if files else "holds no file refs(...).p or .json"
        raise UserError(f"{place} {has}, such as refcoco:{os.path.join(place, 'refs(unc).p')}; {HELP}")
    return os.path.join(place, files[0])


def _refs(file: str) -> Any:
    return load_json(file) if file.endswith(".json") else read_pickle(file)


def _of_split(
    refs: list[tuple[str, _Ref | None, str]], split: str, file: str
) -> list[tuple[str, _Ref | None, str]]:
    """The rows of some splits, and those that are wrong."""
    splits = Counter(ref.split for _, ref, _ in refs if ref)
    wanted = split.split(",")
    unknown = [name for name in wanted if name not in splits]
    if unknown:
        has = ", ".join(f"{name} ({number})" for name, number in sorted(splits.items()))
        raise UserError(f"{file} has no split {unknown[0]}: it has {has}; {HELP}")
    return [row for row in refs if row[1] is None or row[1].split in wanted]


def _read(
    refs: list[tuple[str, _Ref | None, str]], instances: str, file: str
) -> tuple[list[_AnnotatedImage], _Notes]:
    """Images with their expressions, each row that is wrong for itself, and what expressions speak of.

    Raises UserError.
    """
    data = load_json(instances)
    if not all(has_rows(data, name, fields) for name, fields in INSTANCE_FIELDS.items()):
        form = "; ".join(f"{name}[] with {', '.join(fields)}" for name, fields in INSTANCE_FIELDS.items())
        raise UserError(f"{instances} is no file of annotations: {form}; {HELP}")
    listed = {row.id: row for _, row, _ in checked(_Image, data["images"], "images") if row}
    rows = checked(_Annotation, data["annotations"], "annotations")
    outlines = {row.id: row.segmentation for _, row, _ in rows if row}
    images: dict[int | str, _AnnotatedImage] = {}
    broken: list[_AnnotatedImage] = []
    for place, ref, wrong in refs:
        if ref and (ref.image_id not in listed or ref.ann_id not in outlines):
            both = f"image {ref.image_id} or annotation {ref.ann_id}"
            ref, wrong = None, f"{both} is not in {instances}, or wrong there"
        if ref is None:
            broken.append(_AnnotatedImage(place, (0, 0), [], "", wrong))
            continue
        image = listed[ref.image_id]
        new = _AnnotatedImage(image.file_name, (image.width, image.height), [], image.id)
        entry = images.setdefault(image.id, new)
        entry.expressions.extend((text, ref.ann_id) for text in ref.texts)
    used_images = [entry for entry in images.values() if entry.expressions]
    if not used_images:
        first = "".join(f": {one.name} ({one.error})" for one in broken[:1])
        raise UserError(f"{file} has no expressions in these splits{first}; {HELP}")
    used = {number for entry in used_images for _, number in entry.expressions}
    notes = _Notes({number: outlines[number] for number in used}, dict.fromkeys(used), {})
    for row in data["annotations"]:
        _add_box(row, notes, images)
    return used_images + broken, notes


def _add_box(row: Any, notes: _Notes, images: Mapping[int | str, _AnnotatedImage]) -> None:
    """The box of an annotation, None where it has none that is right."""
    try:
        number = _Annotation.of(row).id
    except ValueError:
        return
    try:
        placed = _Placed.of(row)
        box, image = around(placed.bbox), placed.image_id
    except ValueError:
        box, image = None, row.get("image_id")
    if number in notes.box:
        notes.box[number] = box
    if isinstance(image, int | str) and image in images:
        notes.around.setdefault(image, []).append(box)
