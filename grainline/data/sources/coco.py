"""COCO captions, in the two files that the field evaluates on: two protocols, so two sources.

    coco-karpathy:dataset_coco.json?images=DIR&split=test   Karpathy's split, also of Flickr8k and 30k
    coco-val2017:captions_val2017.json?images=DIR           the official annotation file

Both keep exactly the first five captions of a picture, as the field does: in the order of the file for
Karpathy, by annotation id for the official one. `left_out` counts the others.
"""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from grainline.data.causes import MISSING_CAPTION
from grainline.data.record import Damaged, Record
from grainline.data.sources.common import (
    HELP,
    FileSource,
    Said,
    digest,
    load_json,
    read_picture,
    require_pictures,
    split_query,
    strings,
)
from grainline.errors import UserError

CAPTIONS = 5


class _Picture(NamedTuple):
    places: tuple[str, ...]  # below the root; the first is the key
    captions: tuple[str, ...]


class _Coco(FileSource):
    """Abstract: pictures with their first captions."""

    def __init__(
        self, path: str, file: str, root: str | None, pictures: Sequence[tuple[tuple[str, ...], list[str]]]
    ) -> None:
        self.path = path
        self._file = file
        self._pictures = [_Picture(places, tuple(texts[:CAPTIONS])) for places, texts in pictures]
        self.left_out = sum(len(texts[CAPTIONS:]) for _, texts in pictures)
        self._root = root or os.path.dirname(os.path.abspath(file))
        if self.left_out:
            self.remarks = (
                f"{self.left_out} captions beyond the first {CAPTIONS} of their picture are left out",
            )
        if not any(picture.captions for picture in self._pictures):
            raise UserError(f"{file} has no captions in any of its {len(pictures)} pictures; {HELP}")
        require_pictures([self._places(picture) for picture in self._pictures], file, self._root)

    def _places(self, picture: _Picture) -> list[str]:
        return [os.path.join(self._root, place) for place in picture.places]

    def __len__(self) -> int:
        return len(self._pictures)

    def __getitem__(self, index: int) -> Record:
        picture = self._pictures[index]
        where = f"{self._file}: {picture.places[0]}"
        if not picture.captions:
            raise Damaged(MISSING_CAPTION, where)
        return Said(picture.captions).record(picture.places[0], read_picture(self._places(picture), where))

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
        splits = Counter(str(image["split"]) for image in data["images"])
        wanted = options.get("split", "test").split(",")
        unknown = [name for name in wanted if name not in splits]
        if unknown:
            has = ", ".join(f"{name} ({number})" for name, number in sorted(splits.items()))
            raise UserError(f"{file} has no split {unknown[0]}: it has {has}; {HELP}")
        pictures = [
            (_karpathy_places(image), strings([one.get("raw") for one in image["sentences"]]))
            for image in data["images"]
            if image["split"] in wanted
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
        texts: dict[Any, list[str]] = {image["id"]: [] for image in data["images"]}
        for note in sorted(data["annotations"], key=itemgetter("id")):
            if note["image_id"] not in texts:
                raise UserError(
                    f"{file} has a caption of picture {note['image_id']}, which it does not list; {HELP}"
                )
            texts[note["image_id"]] += strings(note["caption"])
        pictures = [(_official_places(image, file), texts[image["id"]]) for image in data["images"]]
        super().__init__(path, file, images or options.get("images"), pictures)


def is_karpathy(data: Any) -> bool:
    """Whether parsed JSON has the form of Karpathy's files."""
    return _every(data, "images", ("filename", "split", "sentences"))


def is_official(data: Any) -> bool:
    """Whether parsed JSON has the form of COCO's caption files."""
    return _every(data, "images", ("id", "file_name")) and _every(
        data, "annotations", ("id", "image_id", "caption")
    )


def _every(data: Any, name: str, fields: Sequence[str]) -> bool:
    rows = data.get(name) if isinstance(data, dict) else None
    return (
        isinstance(rows, list)
        and bool(rows)
        and all(isinstance(row, dict) and all(field in row for field in fields) for row in rows)
    )


def _karpathy_places(image: dict[str, Any]) -> tuple[str, ...]:
    """DIR may be the folder above val2014 and train2014, or the one that the picture is in."""
    name = str(image["filename"])
    return (os.path.join(str(image["filepath"]), name), name) if image.get("filepath") else (name,)


def _official_places(image: dict[str, Any], file: str) -> tuple[str, ...]:
    """DIR may be the folder of the pictures, or the one above it, named as in captions_val2017.json."""
    name = str(image["file_name"])
    year = os.path.splitext(os.path.basename(file))[0].removeprefix("captions_")
    return (name, os.path.join(year, name))
