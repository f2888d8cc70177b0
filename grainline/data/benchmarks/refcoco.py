"""RefCOCO, RefCOCO+ and RefCOCOg: referring expressions with masks.

    refcoco:DIR?split=testA&images=train2014/    a folder of the release: refs(unc).p and instances.json
    refcoco:refcocog/refs(umd).p?split=val       one of several files of expressions

Yu et al., arXiv 1608.00272; Mao et al., arXiv 1511.02283. The file of expressions, pickled or as JSON, is a
list of {ref_id, ann_id, image_id, split, sentences: [{sent, raw, sent_id}]}. In the same folder,
instances.json has images[] and annotations[] with a segmentation, as COCO does, and with image_id and bbox
where boxes are needed. A record is an image with a region for each sentence; it has no caption. `split` may
name several, by commas, and is `val` by default. `masks=coco` draws polygons with pycocotools, as published
code does (extra `coco`); without it a pixel belongs to a polygon where its centre lies inside.
"""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from grainline.data.benchmarks.pickled import read_pickle
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
from grainline.data.formats.listed import Entry, ListedImages, choose_splits, wrong_row
from grainline.data.formats.masks import coco_polygons_mask, polygons_mask, read_mask, require_pycocotools
from grainline.data.formats.plain import HELP, load_json
from grainline.data.record import CORRUPT_REGION, Box, CorruptSample, Record, Region
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


class _Boxed(Fields):
    image_id: Id
    bbox: Extent


class _Polygons(Fields):
    segmentation: tuple[tuple[Pixels, ...], ...]


_Boxes = list[Box | None]  # None for an annotation without a right box


class RefCoco(ListedImages):
    """The images of some splits that have expressions, in the order of the file. Raises UserError."""

    form = f"a file of expressions: a list of rows with {', '.join(REF_FIELDS)}"
    options = ("split", "images", "instances", "masks")
    sized = "masks"

    @staticmethod
    def recognises(content: Any) -> bool:
        """Whether content has the form of a file of expressions; its rows may still be wrong."""
        return isinstance(content, list) and any(
            isinstance(row, dict) and all(name in row for name in REF_FIELDS) for row in content
        )

    @staticmethod
    def recognises_path(path: str) -> bool:
        """Whether a folder holds a file of expressions and the annotations."""
        return Path(path, INSTANCES).is_file() and bool(_files_in(path))

    def find(self, place: str) -> str:
        """The file of expressions that a path means. Raises UserError for a folder with none or several."""
        if not os.path.isdir(place):
            return place
        files = _files_in(place)
        if len(files) != 1:
            has = (
                f"holds {', '.join(files)}: name one of them"
                if files
                else "holds no file refs(...).p or .json"
            )
            raise UserError(f"{place} {has}, such as refcoco:{os.path.join(place, 'refs(unc).p')}; {HELP}")
        return os.path.join(place, files[0])

    def load(self) -> Any:
        return load_json(self._file) if self._file.endswith(".json") else read_pickle(self._file)

    def parse(self, content: Any) -> list[Entry]:
        """Images with their expressions, then each row that is wrong."""
        self._masks = self._given.get("masks", "")
        if self._masks not in ("", "coco"):
            raise UserError(f"masks={self._masks} is unknown; leave it out, or give masks=coco; {HELP}")
        if self._masks:
            require_pycocotools()
        self._instances = self._given.get("instances") or os.path.join(self.folder(), INSTANCES)
        refs = list(checked(_Ref, content, "refs"))
        splits = Counter(ref.split for _, ref, _ in refs if ref)
        wanted = choose_splits(splits, self._given.get("split", "val"), self._file)
        refs = [row for row in refs if row[1] is None or row[1].split in wanted]
        images, outlines, box, boxes_in = self._read_instances()
        expressions: dict[int | str, list[tuple[str, int | str]]] = {}  # by image: text, id of the annotation
        wrong = []
        for place, ref, error in refs:
            if ref is None:
                wrong.append(wrong_row(place, error))
            elif ref.image_id not in images or ref.ann_id not in outlines:
                both = f"image {ref.image_id} or annotation {ref.ann_id}"
                wrong.append(wrong_row(place, f"{both} is not in {self._instances}, or wrong there"))
            else:
                texts = expressions.setdefault(ref.image_id, [])
                texts.extend((text, ref.ann_id) for text in ref.texts)
        self._expressions = [(number, texts) for number, texts in expressions.items() if texts]
        if not self._expressions:
            first = "".join(f": {row.fault[1]}" for row in wrong[:1] if row.fault)
            raise UserError(f"{self._file} has no expressions in these splits{first}; {HELP}")
        used = {number for _, texts in self._expressions for _, number in texts}
        self._outlines = {number: outlines[number] for number in used}
        self._boxes_in = {number: boxes_in.get(number, []) for number, _ in self._expressions}
        entries = []
        for number, texts in self._expressions:
            image = images[number]
            name, regions = image.file_name, tuple(Region(text, box[of]) for text, of in texts)
            places = (name, os.path.join("train2014", name))
            entries.append(Entry(Record(name, b"", (), regions=regions), places, (image.width, image.height)))
        return entries + wrong

    def _read_instances(
        self,
    ) -> tuple[
        dict[int | str, _Image], dict[int | str, Any], dict[int | str, Box | None], dict[int | str, _Boxes]
    ]:
        """Images by id; outlines and boxes of annotations by id; the boxes in each image."""
        data = load_json(self._instances)
        if not all(has_rows(data, name, fields) for name, fields in INSTANCE_FIELDS.items()):
            form = "; ".join(f"{name}[] with {', '.join(fields)}" for name, fields in INSTANCE_FIELDS.items())
            raise UserError(f"{self._instances} is no file of annotations: {form}; {HELP}")
        outlines: dict[int | str, Any] = {}
        boxes: dict[int | str, Box | None] = {}
        boxes_in: dict[int | str, _Boxes] = {}
        rows = checked(_Annotation, data["annotations"], "annotations")
        for fields, (_, row, _) in zip(data["annotations"], rows, strict=True):
            if row is None:
                continue
            try:
                boxed = _Boxed.of(fields)
                box, image = around(boxed.bbox), boxed.image_id
            except ValueError:
                box, image = None, fields.get("image_id")
            outlines[row.id], boxes[row.id] = row.segmentation, box
            if isinstance(image, int | str):
                boxes_in.setdefault(image, []).append(box)
        images = {row.id: row for _, row, _ in checked(_Image, data["images"], "images") if row}
        return images, outlines, boxes, boxes_in

    def __getitem__(self, index: int) -> Record:
        record = super().__getitem__(index)
        size, numbers = self.entries[index].size, [number for _, number in self._expressions[index][1]]
        assert size is not None
        masks = {
            number: self._mask(number, size, f"{self._file}: {record.key} (annotation {number}")
            for number in dict.fromkeys(numbers)
        }
        regions = zip(record.regions, numbers, strict=True)
        return record._replace(regions=tuple(one._replace(mask=masks[number]) for one, number in regions))

    def boxes(self, index: int) -> tuple[Box, ...]:
        """The boxes of all annotations of an image, in the order of the file. Raises UserError without."""
        here = self._boxes_in[self._expressions[index][0]]
        boxes = tuple(box for box in here if box is not None)
        if len(boxes) < len(here) or not boxes:
            raise UserError(
                f"{self._instances}: an annotation of {self.entries[index].record.key} has no image_id or no"
                f" bbox [left, top, width, height]; {HELP}"
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
            raise CorruptSample(CORRUPT_REGION, f"{where}: {error})") from error
        if mask.shape != size[::-1]:
            sizes = f"a mask of {mask.shape[1]} x {mask.shape[0]} pixels, the image has {size[0]} x {size[1]}"
            raise CorruptSample(CORRUPT_REGION, f"{where}: {sizes})")
        return mask

    def parts(self) -> Iterator[str | int]:
        if self._masks:
            yield self._masks
        for i, entry in enumerate(self.entries):
            texts = self._expressions[i][1] if i < len(self._expressions) else []
            yield from (entry.record.key, len(texts))
            for text, number in texts:
                yield from (text, str(self._outlines[number]))


def _files_in(folder: str) -> list[str]:
    names = os.listdir(folder)
    return sorted(name for name in names if name.startswith("refs(") and name.endswith((").p", ").json")))
