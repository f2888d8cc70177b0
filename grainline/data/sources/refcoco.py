"""Referring expressions with masks, as RefCOCO, RefCOCO+ and RefCOCOg have them.

    refcoco:DIR?split=testA&images=train2014/    a folder of the release: refs(unc).p and instances.json
    refcoco:refcocog/refs(umd).p?split=val       one of several files of expressions

Yu et al., arXiv 1608.00272; Mao et al., arXiv 1511.02283. The file of expressions, pickled or as JSON, is a
list of {ref_id, ann_id, image_id, split, sentences: [{sent, raw, sent_id}]}; instances.json beside it has
images[] and annotations[] with a segmentation, as COCO does, and with image_id and bbox where boxes are asked
for. A record is a picture with a region for each sentence; it has no caption. `split` may name several, by
commas, and is `val` unless it is told.
"""

import math
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from grainline.data.causes import DAMAGED_REGION
from grainline.data.decode import picture_size
from grainline.data.record import Box, Damaged, Record, Region
from grainline.data.sources.common import (
    HELP,
    FileSource,
    digest,
    load_json,
    read_picture,
    require_pictures,
    split_query,
    strings,
)
from grainline.data.sources.masks import polygons_mask, read_mask
from grainline.data.sources.pickled import read_pickle
from grainline.errors import UserError

REF_FIELDS = ("ann_id", "image_id", "split", "sentences")
INSTANCES = "instances.json"


class _Picture(NamedTuple):
    name: str
    size: tuple[int, int]  # width and height
    asked: list[tuple[str, Any]]  # text, id of the annotation
    number: Any  # its id


class _Notes(NamedTuple):
    """Annotations."""

    outline: dict[Any, Any]  # of those that an expression speaks of, by their ids
    box: dict[Any, Box | None]  # of the same
    around: dict[Any, list[Box | None]]  # of all annotations of a picture, by its id


class RefCoco(FileSource):
    """The pictures of some splits that have expressions, in the order of the file. Raises UserError."""

    def __init__(self, path: str, images: str | None = None, data: Any = None) -> None:
        place, options = split_query(path, ("images", "split", "instances"))
        self.path = path
        self._file = _file_of(place)
        refs = _refs(self._file) if data is None else data
        if not is_refs(refs):
            raise UserError(
                f"{self._file} is no file of expressions: a list of rows with {', '.join(REF_FIELDS)}; {HELP}"
            )
        beside = os.path.dirname(os.path.abspath(self._file))
        instances = options.get("instances") or os.path.join(beside, INSTANCES)
        self._root = images or options.get("images") or beside
        chosen = _of_split(refs, options.get("split", "val"), self._file)
        self._instances = instances
        self._pictures, (self._outlines, self._box, self._around) = _read(chosen, instances, self._file)
        require_pictures([self._places(one.name) for one in self._pictures], self._file, self._root)

    def _places(self, name: str) -> list[str]:
        """DIR may be the folder of the pictures, or the one above train2014."""
        return [os.path.join(self._root, place) for place in (name, os.path.join("train2014", name))]

    def __len__(self) -> int:
        return len(self._pictures)

    def __getitem__(self, index: int) -> Record:
        name, size, asked, _ = self._pictures[index]
        where = f"{self._file}: {name}"
        record = Record(name, read_picture(self._places(name), where), ())
        found = picture_size(record)
        if found != size:
            told = f"{found[0]} x {found[1]} pixels, its masks are for {size[0]} x {size[1]}"
            raise Damaged(DAMAGED_REGION, f"{where} ({told})")
        masks = {number: self._mask(number, size, where) for number in dict.fromkeys(n for _, n in asked)}
        return record._replace(
            regions=tuple(Region(text, self._box[number], masks[number]) for text, number in asked)
        )

    def boxes(self, index: int) -> tuple[Box, ...]:
        """The boxes of all annotations of a picture, in the order of the file. Raises UserError without."""
        name, number = self._pictures[index].name, self._pictures[index].number
        here = self._around.get(number, [])
        found = tuple(box for box in here if box is not None)
        if len(found) < len(here) or not found:
            raise UserError(
                f"{self._instances}: an annotation of {name} has no image_id or no bbox [left, top, width,"
                f" height]; {HELP}"
            )
        return found

    def _mask(self, number: Any, size: tuple[int, int], where: str) -> np.ndarray:
        outline = self._outlines[number]
        try:
            mask = polygons_mask(outline, *size[::-1]) if isinstance(outline, list) else read_mask(outline)
        except (TypeError, ValueError, KeyError) as error:
            raise Damaged(DAMAGED_REGION, f"{where} (annotation {number}: {error})") from error
        if mask.shape != size[::-1]:
            told = (
                f"a mask of {mask.shape[1]} x {mask.shape[0]} pixels, the picture has {size[0]} x {size[1]}"
            )
            raise Damaged(DAMAGED_REGION, f"{where} (annotation {number}: {told})")
        return mask

    def keys(self) -> Iterable[str]:
        """The file names of the pictures."""
        return (picture.name for picture in self._pictures)

    def fingerprint(self) -> str:
        """sha256 over names, texts and outlines; pictures are not looked at, so they do not count."""
        parts: list[str | int] = []
        for name, _, asked, _ in self._pictures:
            parts += [name, len(asked)]
            for text, number in asked:
                parts += [text, str(self._outlines[number])]
        return digest(parts)


def is_refs(data: Any) -> bool:
    """Whether data have the form of a file of expressions; its rows may still be wrong."""
    return (
        isinstance(data, list)
        and bool(data)
        and all(isinstance(row, dict) and all(name in row for name in REF_FIELDS) for row in data)
    )


def is_refs_folder(path: str) -> bool:
    """Whether a folder holds a file of expressions and the annotations that it speaks of."""
    return (Path(path) / INSTANCES).is_file() and bool(_files_in(path))


def _files_in(folder: str) -> list[str]:
    names = os.listdir(folder)
    return sorted(name for name in names if name.startswith("refs(") and name.endswith((").p", ").json")))


def _file_of(place: str) -> str:
    """The file of expressions that a path means. Raises UserError for a folder with none or several."""
    if not os.path.isdir(place):
        return place
    found = _files_in(place)
    if len(found) != 1:
        has = f"holds {', '.join(found)}: name one of them" if found else "holds no file refs(...).p or .json"
        raise UserError(f"{place} {has}, such as refcoco:{os.path.join(place, 'refs(unc).p')}; {HELP}")
    return os.path.join(place, found[0])


def _refs(file: str) -> Any:
    return load_json(file) if file.endswith(".json") else read_pickle(file)


def _of_split(refs: list[dict[str, Any]], split: str, file: str) -> list[dict[str, Any]]:
    splits = Counter(str(ref["split"]) for ref in refs)
    wanted = split.split(",")
    unknown = [name for name in wanted if name not in splits]
    if unknown:
        has = ", ".join(f"{name} ({number})" for name, number in sorted(splits.items()))
        raise UserError(f"{file} has no split {unknown[0]}: it has {has}; {HELP}")
    return [ref for ref in refs if ref["split"] in wanted]


def _read(refs: list[dict[str, Any]], instances: str, file: str) -> tuple[list[_Picture], _Notes]:
    """Pictures with their expressions, and the outlines and boxes of what they speak of. Raises UserError."""
    data = load_json(instances)
    try:
        listed = {row["id"]: row for row in data["images"]}
        outlines = {row["id"]: row["segmentation"] for row in data["annotations"]}
        sizes = {
            number: (str(row["file_name"]), (row["width"], row["height"])) for number, row in listed.items()
        }
    except (KeyError, TypeError) as error:
        told = "images[] with id, file_name, width, height; annotations[] with id, segmentation"
        raise UserError(f"{instances} is no file of annotations: {told} ({error!r}); {HELP}") from None
    pictures: dict[Any, _Picture] = {}
    for ref in refs:
        where = f"expression {ref.get('ref_id')} of {file}"
        if ref["image_id"] not in sizes or ref["ann_id"] not in outlines:
            raise UserError(
                f"{where}: picture {ref['image_id']} or annotation {ref['ann_id']} is not in {instances};"
                f" {HELP}"
            )
        name, size = sizes[ref["image_id"]]
        picture = pictures.setdefault(ref["image_id"], _Picture(name, size, [], ref["image_id"]))
        picture.asked.extend((text, ref["ann_id"]) for text in _texts(ref["sentences"], where))
    found = [picture for picture in pictures.values() if picture.asked]
    if not found:
        raise UserError(f"{file} has no expressions in these splits; {HELP}")
    used = {number for picture in found for _, number in picture.asked}
    notes = _Notes({number: outlines[number] for number in used}, dict.fromkeys(used), {})
    for row in data["annotations"]:
        box = _box(row.get("bbox"))
        if row["id"] in used:
            notes.box[row["id"]] = box
        if row.get("image_id") in pictures:
            notes.around.setdefault(row["image_id"], []).append(box)
    return found, notes


def _box(value: Any) -> Box | None:
    """A box of COCO, [left, top, width, height], as ours; None for anything else."""
    try:
        left, top, width, height = (float(x) for x in value)
    except (TypeError, ValueError):
        return None
    sound = math.isfinite(left + top + width + height) and width > 0 and height > 0
    return (left, top, left + width, top + height) if sound else None


def _texts(sentences: Any, where: str) -> list[str]:
    """One text of each sentence: cleaned as the release has it, else as it was written."""
    if not isinstance(sentences, list) or not all(isinstance(one, dict) for one in sentences):
        raise UserError(f"{where}: its sentences are no list of {{sent, raw}}; {HELP}")
    return [text for one in sentences for text in (strings(one.get("sent")) or strings(one.get("raw")))[:1]]
