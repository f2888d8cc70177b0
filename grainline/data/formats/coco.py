"""COCO captions, in the two files that the field evaluates on: two protocols, so two sources.

    coco-karpathy:dataset_coco.json?images=DIR&split=test   Karpathy's split, also of Flickr8k and 30k
    coco-val2017:captions_val2017.json?images=DIR           the official annotation file

Both take the first five captions of an image, as the field does: in the order of the file for Karpathy, by
annotation id for the official one. `left_out` counts the others.
"""

import os
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator
from typing import Any

from grainline.data.formats.checked import Fields, Id, Text, Words, checked, has_rows, strings
from grainline.data.formats.listed import Entry, ListedImages, choose_splits, wrong_row
from grainline.data.formats.plain import data_error
from grainline.data.record import MISSING_CAPTION, Record

CAPTIONS = 5


class _KarpathyImage(Fields):
    filename: Text
    filepath: Words | None = None
    split: Text
    sentences: tuple[dict[str, Any], ...]


class _Image(Fields):
    id: Id
    file_name: Text


class _Note(Fields):
    id: Id
    image_id: Id
    caption: Words


class _Coco(ListedImages):
    """Abstract: images with their first captions."""

    @abstractmethod
    def images(self, content: Any) -> list[Entry]:
        """The images with all their captions, and the rows that are wrong."""

    def parse(self, content: Any) -> list[Entry]:
        entries = self.images(content)
        self.left_out = sum(len(entry.record.captions[CAPTIONS:]) for entry in entries)
        if self.left_out:
            remark = f"{self.left_out} captions beyond the first {CAPTIONS} of their image are left out"
            self.remarks = (remark,)
        if not any(entry.record.captions for entry in entries):
            raise data_error(f"{self._file} has no captions in any of its {len(entries)} images")
        return [
            one._replace(record=one.record._replace(captions=one.record.captions[:CAPTIONS]))
            for one in entries
        ]

    def parts(self) -> Iterator[str | int]:
        for entry in self.entries:
            yield from (entry.record.key, len(entry.record.captions))
            yield from entry.record.captions


class CocoKarpathy(_Coco):
    """One split of Karpathy's file: images[] with filename, filepath?, split, sentences[].raw."""

    form = "Karpathy's file: images[] with filename, split and sentences"
    options = ("images", "split")

    @staticmethod
    def recognises(content: Any) -> bool:
        return has_rows(content, "images", ("filename", "split", "sentences"))

    def images(self, content: Any) -> list[Entry]:
        rows = list(checked(_KarpathyImage, content["images"], "images"))
        splits = Counter(image.split for _, image, _ in rows if image)
        wanted = choose_splits(splits, self._given.get("split", "test"), self._file)
        entries = []
        for place, image, wrong in rows:
            if image is None:
                entries.append(wrong_row(place, wrong))
            elif image.split in wanted:
                # DIR may be the folder above val2014 and train2014, or the one that the image is in
                name, folder = image.filename, image.filepath
                places = (os.path.join(folder, name), name) if folder else (name,)
                entries.append(_entry(places, strings([one.get("raw") for one in image.sentences])))
        return entries


class CocoVal2017(_Coco):
    """An official file: images[] with id and file_name, annotations[] with id, image_id and caption."""

    form = "a caption file of COCO: images[] and annotations[] with captions"

    @staticmethod
    def recognises(content: Any) -> bool:
        notes = ("id", "image_id", "caption")
        return has_rows(content, "images", ("id", "file_name")) and has_rows(content, "annotations", notes)

    def images(self, content: Any) -> list[Entry]:
        captions: dict[int | str, list[str]] = {}  # of each image
        rows: list[_Image | Entry] = []
        for place, image, wrong in checked(_Image, content["images"], "images"):
            if image is None or image.id in captions:
                wrong = f"another image has its id {image.id}" if image else wrong
                rows.append(wrong_row(place, wrong))
            else:
                captions[image.id] = []
                rows.append(image)
        notes: list[_Note] = []
        for place, note, wrong in checked(_Note, content["annotations"], "annotations"):
            if note and note.image_id in captions:
                notes.append(note)
            else:
                wrong = f"image {note.image_id} is not listed, or wrong there" if note else wrong
                rows.append(wrong_row(place, wrong))
        for note in sorted(notes, key=lambda note: (isinstance(note.id, str), note.id)):
            captions[note.image_id].extend(strings(note.caption))
        # DIR may be the folder of the images, or the one above it, named as in captions_val2017.json
        year = os.path.splitext(os.path.basename(self._file))[0].removeprefix("captions_")
        return [
            row
            if isinstance(row, Entry)
            else _entry((row.file_name, os.path.join(year, row.file_name)), captions[row.id])
            for row in rows
        ]


def _entry(places: tuple[str, ...], captions: list[str]) -> Entry:
    fault = None if captions else (MISSING_CAPTION, places[0])
    return Entry(Record(places[0], b"", tuple(captions)), places, fault=fault)
