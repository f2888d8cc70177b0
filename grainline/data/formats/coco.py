"""COCO captions, in the two files that the field evaluates on: two protocols, so two sources.

    coco-karpathy:dataset_coco.json?images=DIR&split=test   Karpathy's split, also of Flickr8k and 30k
    coco-val2017:captions_val2017.json?images=DIR           the official annotation file

Both take the first five captions of an image, as the field does: in the order of the file for Karpathy, by
annotation id for the official one. `left_out` counts the others.
"""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from grainline.data.formats.checked import Fields, Id, Text, Words, checked, has_rows, strings
from grainline.data.formats.common import (
    Captions,
    FileSource,
    digest,
    read_image,
    require_images,
    split_query,
)
from grainline.data.formats.plain import HELP, load_json
from grainline.data.record import CORRUPT_ROW, MISSING_CAPTION, CorruptSample, Record
from grainline.errors import UserError

CAPTIONS = 5


class _CaptionedImage(NamedTuple):
    places: tuple[str, ...]  # below the root; the first is the key
    captions: list[str]
    error: str = ""  # what is wrong with the row; its place in the file is then the key


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


class _Coco(FileSource):
    """Abstract: images with their first captions."""

    images_by_path = True

    def __init__(self, path: str, file: str, root: str | None, entries: Sequence[_CaptionedImage]) -> None:
        self.path = path
        self._file = file
        self._images = [one._replace(captions=one.captions[:CAPTIONS]) for one in entries]
        self.left_out = sum(len(one.captions[CAPTIONS:]) for one in entries)
        self._root = root or os.path.dirname(os.path.abspath(file))
        if self.left_out:
            remark = f"{self.left_out} captions beyond the first {CAPTIONS} of their image are left out"
            self.remarks = (remark,)
        if not any(image.captions for image in self._images):
            raise UserError(f"{file} has no captions in any of its {len(entries)} images; {HELP}")
        sound = [image for image in self._images if not image.error]
        require_images([self._places(image) for image in sound], file, self._root)

    def _places(self, image: _CaptionedImage) -> list[str]:
        return [os.path.join(self._root, place) for place in image.places]

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> Record:
        image = self._images[index]
        where = f"{self._file}: {image.places[0]}"
        if image.error:
            raise CorruptSample(CORRUPT_ROW, f"{where} ({image.error})")
        if not image.captions:
            raise CorruptSample(MISSING_CAPTION, where)
        return Captions(tuple(image.captions)).record(image.places[0], read_image(self._places(image), where))

    def keys(self) -> Iterable[str]:
        return (image.places[0] for image in self._images)

    def fingerprint(self) -> str:
        """sha256 over names and captions; images are not looked at, so their sizes do not count."""
        parts: list[str | int] = []
        for image in self._images:
            parts += [image.places[0], len(image.captions), *image.captions]
        return digest(parts)


class CocoKarpathy(_Coco):
    """One split of Karpathy's file: images[] with filename, filepath?, split, sentences[].raw."""

    @staticmethod
    def recognises(content: Any) -> bool:
        return has_rows(content, "images", ("filename", "split", "sentences"))

    def __init__(self, path: str, images: str | None = None, data: Any = None) -> None:
        file, options = split_query(path, ("images", "split"))
        data = load_json(file) if data is None else data
        if not self.recognises(data):
            raise UserError(
                f"{file} is not Karpathy's file: images[] with filename, split and sentences; {HELP}"
            )
        rows = list(checked(_KarpathyImage, data["images"], "images"))
        splits = Counter(image.split for _, image, _ in rows if image)
        wanted = options.get("split", "test").split(",")
        unknown = [name for name in wanted if name not in splits]
        if unknown:
            has = ", ".join(f"{name} ({number})" for name, number in sorted(splits.items()))
            raise UserError(f"{file} has no split {unknown[0]}: it has {has}; {HELP}")
        entries = [
            _CaptionedImage(_karpathy_places(image), strings([one.get("raw") for one in image.sentences]))
            if image
            else _CaptionedImage((place,), [], wrong)
            for place, image, wrong in rows
            if image is None or image.split in wanted
        ]
        super().__init__(path, file, images or options.get("images"), entries)


class CocoVal2017(_Coco):
    """An official file: images[] with id and file_name, annotations[] with id, image_id and caption."""

    @staticmethod
    def recognises(content: Any) -> bool:
        notes = ("id", "image_id", "caption")
        return has_rows(content, "images", ("id", "file_name")) and has_rows(content, "annotations", notes)

    def __init__(self, path: str, images: str | None = None, data: Any = None) -> None:
        file, options = split_query(path, ("images",))
        data = load_json(file) if data is None else data
        if not self.recognises(data):
            raise UserError(
                f"{file} is not a caption file of COCO: images[] and annotations[] with captions; {HELP}"
            )
        entries: list[_CaptionedImage] = []
        of: dict[int | str, _CaptionedImage] = {}
        for place, image, wrong in checked(_Image, data["images"], "images"):
            if image is None or image.id in of:
                wrong = f"another image has its id {image.id}" if image else wrong
                entries.append(_CaptionedImage((place,), [], wrong))
            else:
                # DIR may be the folder of the images, or the one above it, named as in captions_val2017.json
                year = os.path.splitext(os.path.basename(file))[0].removeprefix("captions_")
                places = image.file_name, os.path.join(year, image.file_name)
                entries.append(_CaptionedImage(places, []))
                of[image.id] = entries[-1]
        notes: list[_Note] = []
        for place, note, wrong in checked(_Note, data["annotations"], "annotations"):
            if note and note.image_id in of:
                notes.append(note)
            else:
                wrong = f"image {note.image_id} is not listed, or wrong there" if note else wrong
                entries.append(_CaptionedImage((place,), [], wrong))
        for note in sorted(notes, key=lambda note: (isinstance(note.id, str), note.id)):
            of[note.image_id].captions.extend(strings(note.caption))
        super().__init__(path, file, images or options.get("images"), entries)


def _karpathy_places(image: _KarpathyImage) -> tuple[str, ...]:
    """DIR may be the folder above val2014 and train2014, or the one that the image is in."""
    name = image.filename
    return (os.path.join(image.filepath, name), name) if image.filepath else (name,)
