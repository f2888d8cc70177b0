"""COCO captions, in the two files that the field evaluates on: two protocols, so two sources.

    coco-karpathy:dataset_coco.json?images=DIR&split=test   Karpathy's split, also of Flickr8k and 30k
    coco-val2017:captions_val2017.json?images=DIR           the official annotation file

Both keep exactly the first five captions of a picture, as the field does: in the order of the file for
Karpathy, by annotation id for the official one. `left_out` counts the others.
"""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from grainline.data.formats.checked import Fields, Id, Text, Words, checked, has_rows, strings
from grainline.data.formats.common import (
    FileSource,
    Said,
    digest,
    read_picture,
    require_pictures,
    split_query,
)
from grainline.data.formats.plain import HELP, load_json
from grainline.data.record import DAMAGED_ROW, MISSING_CAPTION, Damaged, Record
from grainline.errors import UserError

CAPTIONS = 5


class _Picture(NamedTuple):
    places: tuple[str, ...]  # below the root; the first is the key
    captions: list[str]
    damage: str = ""  # what is wrong with the row; its place in the file is then the key


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
    """Abstract: pictures with their first captions."""

    def __init__(self, path: str, file: str, root: str | None, pictures: Sequence[_Picture]) -> None:
        self.path = path
        self._file = file
        self._pictures = [one._replace(captions=one.captions[:CAPTIONS]) for one in pictures]
        self.left_out = sum(len(one.captions[CAPTIONS:]) for one in pictures)
        self._root = root or os.path.dirname(os.path.abspath(file))
        if self.left_out:
            self.remarks = (
                f"{self.left_out} captions beyond the first {CAPTIONS} of their picture are left out",
            )
        if not any(picture.captions for picture in self._pictures):
            raise UserError(f"{file} has no captions in any of its {len(pictures)} pictures; {HELP}")
        sound = [picture for picture in self._pictures if not picture.damage]
        require_pictures([self._places(picture) for picture in sound], file, self._root)

    def _places(self, picture: _Picture) -> list[str]:
        return [os.path.join(self._root, place) for place in picture.places]

    def __len__(self) -> int:
        return len(self._pictures)

    def __getitem__(self, index: int) -> Record:
        picture = self._pictures[index]
        where = f"{self._file}: {picture.places[0]}"
        if picture.damage:
            raise Damaged(DAMAGED_ROW, f"{where} ({picture.damage})")
        if not picture.captions:
            raise Damaged(MISSING_CAPTION, where)
        return Said(tuple(picture.captions)).record(
            picture.places[0], read_picture(self._places(picture), where)
        )

    def keys(self) -> Iterable[str]:
        """The file names of the pictures."""
        return (picture.places[0] for picture in self._pictures)

    def fingerprint(self) -> str:
        """sha256 over names and captions; pictures are not looked at, so their sizes do not count."""
        parts: list[str | int] = []
        for picture in self._pictures:
            parts += [picture.places[0], len(picture.captions), *picture.captions]
        return digest(parts)


class CocoKarpathy(_Coco):
    """One split of Karpathy's file: images[] with filename, filepath?, split, sentences[].raw."""

    def __init__(self, path: str, images: str | None = None, data: Any = None) -> None:
        file, options = split_query(path, ("images", "split"))
        data = load_json(file) if data is None else data
        if not is_karpathy(data):
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
        pictures = [
            _Picture(_karpathy_places(image), strings([one.get("raw") for one in image.sentences]))
            if image
            else _Picture((place,), [], wrong)
            for place, image, wrong in rows
            if image is None or image.split in wanted
        ]
        super().__init__(path, file, images or options.get("images"), pictures)


class CocoVal2017(_Coco):
    """An official file: images[] with id and file_name, annotations[] with id, image_id and caption."""

    def __init__(self, path: str, images: str | None = None, data: Any = None) -> None:
        file, options = split_query(path, ("images",))
        data = load_json(file) if data is None else data
        if not is_official(data):
            raise UserError(
                f"{file} is not a caption file of COCO: images[] and annotations[] with captions; {HELP}"
            )
        pictures: list[_Picture] = []
        of: dict[int | str, _Picture] = {}
        for place, image, wrong in checked(_Image, data["images"], "images"):
            if image is None or image.id in of:
                wrong = f"another image has its id {image.id}" if image else wrong
                pictures.append(_Picture((place,), [], wrong))
            else:
                pictures.append(_Picture(_official_places(image, file), []))
                of[image.id] = pictures[-1]
        notes: list[_Note] = []
        for place, note, wrong in checked(_Note, data["annotations"], "annotations"):
            if note and note.image_id in of:
                notes.append(note)
            else:
                wrong = f"image {note.image_id} is not listed, or wrong there" if note else wrong
                pictures.append(_Picture((place,), [], wrong))
        for note in sorted(notes, key=lambda note: (isinstance(note.id, str), note.id)):
            of[note.image_id].captions.extend(strings(note.caption))
        super().__init__(path, file, images or options.get("images"), pictures)


def is_karpathy(data: Any) -> bool:
    """Whether parsed JSON has the form of Karpathy's files."""
    return has_rows(data, "images", ("filename", "split", "sentences"))


def is_official(data: Any) -> bool:
    """Whether parsed JSON has the form of COCO's caption files."""
    notes = ("id", "image_id", "caption")
    return has_rows(data, "images", ("id", "file_name")) and has_rows(data, "annotations", notes)


def _karpathy_places(image: _KarpathyImage) -> tuple[str, ...]:
    """DIR may be the folder above val2014 and train2014, or the one that the picture is in."""
    name = image.filename
    return (os.path.join(image.filepath, name), name) if image.filepath else (name,)


def _official_places(image: _Image, file: str) -> tuple[str, ...]:
    """DIR may be the folder of the pictures, or the one above it, named as in captions_val2017.json."""
    name = image.file_name
    year = os.path.splitext(os.path.basename(file))[0].removeprefix("captions_")
    return (name, os.path.join(year, name))
