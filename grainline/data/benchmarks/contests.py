"""Benchmarks of right and wrong pairs of image and text: FOIL-COCO, SugarCrepe, VALSE, SVO-Probes and COLA.

Either the text differs, and the wrong one is a foil of its record; or the image does, and a `Contest` names
both by their places in the source. COLA compares two images and two captions.
"""

import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import Field, StrictBool

from grainline.data.formats.common import IMAGE_SUFFIXES, name_of, require_images
from grainline.data.formats.joined import Joined
from grainline.data.formats.listed import Entry, ListedImages
from grainline.data.formats.parsed import Fields, Id, brief_json, checked, data_error, has_rows, strings
from grainline.data.formats.table import Row, first_fields, read_rows
from grainline.data.record import Foil, Record, Source
from grainline.data.scenes.source import Scenes
from grainline.errors import some

SCENES, OTHER_DATA = "scenes", "own data"  # names of sources that are no benchmark


class Contest(NamedTuple):
    """A text, the image that it is true of, and one that it is false of."""

    text: str
    right: int  # place in the source
    wrong: int
    kind: str  # what of the text the wrong image lacks


class Origin(NamedTuple):
    """Records that come from one file."""

    start: int  # place of the first of them
    benchmark: str
    contests: tuple[Contest, ...]  # by places in the whole source


class Benchmark(ListedImages):
    """Abstract: the images of a benchmark of pairs."""

    benchmark: ClassVar[str]
    contests: tuple[Contest, ...] = ()


class Foiled(Benchmark):
    """Abstract: images whose true texts have foils, in the order in which they first stand in the file.

    The captions of a record are its true texts.
    """

    @abstractmethod
    def pairs(self, content: Any) -> Iterable[tuple[str, Foil]]:
        """Each foil with its image: the name of a file, or where it lies below the folder of the images."""

    def subfolder(self, name: str) -> str:
        """Another folder where the image may lie."""
        return os.path.basename(name)

    def parse(self, content: Any) -> list[Entry]:
        by_image: dict[str, list[Foil]] = {}
        for name, foil in self.pairs(content):
            by_image.setdefault(name, []).append(foil)
        entries = []
        for name, foils in by_image.items():
            true = tuple(dict.fromkeys(foil.true for foil in foils))
            places = (name, os.path.basename(name), self.subfolder(name))
            entries.append(Entry(Record(name, b"", true, foils=tuple(foils)), places))
        return entries

    def parts(self) -> Iterator[str | int]:
        yield self.benchmark
        for entry in self.entries:
            foils = entry.record.foils
            yield entry.record.key
            yield len(foils)
            yield from (part for foil in foils for part in foil)


def _require_fields(item: Any, fields: Sequence[str], where: str) -> None:
    """Raise UserError for an item that lacks a field."""
    missing = [name for name in fields if not isinstance(item, dict) or name not in item]
    if missing:
        raise data_error(f"{where} is {brief_json(item)}, without {some(missing)}")


def _one_text(value: Any, field: str, where: str) -> str:
    """The text of a field. Raises UserError where there is none, or several."""
    texts = strings(value) if isinstance(value, str) else []
    if not texts:
        raise data_error(f"{where}: {field} is {brief_json(value)}, not a text")
    return texts[0]


def origins(source: Source, start: int = 0) -> list[Origin]:
    """The records of each benchmark, in their order.

    start  place of the first record
    """
    if isinstance(source, Joined):
        parts = []
        for one in source.sources:
            parts += origins(one, start)
            start += len(one)
        return parts
    if not isinstance(source, Benchmark):
        return [Origin(start, SCENES if isinstance(source, Scenes) else OTHER_DATA, ())]
    moved = (c._replace(right=c.right + start, wrong=c.wrong + start) for c in source.contests)
    return [Origin(start, source.benchmark, tuple(moved))]


# FOIL-COCO: captions of COCO and the same with one noun replaced.
#
#     foil-coco:foilv1.0_test_2017.json?images=DIR
#
# Shekhar et al., arXiv 1705.01359. annotations[] with id, image_id, caption, foil (whether it is the false
# one), target_word and foil_word; a foil has the id of the caption that it was made from. The images are
# those of COCO val2014 (train2014 for the training file): DIR holds them, or is the folder above.

FOIL_COCO = "foil-coco"
NOUN = "noun"


class _Annotation(Fields):
    id: Id
    image_id: Any
    caption: Any
    foil: StrictBool


class _Image(Fields):
    id: Id
    file_name: Annotated[str, Field(pattern="^COCO_[^_]*_")]


class FoilCoco(Foiled):
    """The images of a file of FOIL-COCO. Raises UserError."""

    benchmark = FOIL_COCO
    form = f"a file of FOIL-COCO: annotations[] with {', '.join(_Annotation.model_fields)}"

    @staticmethod
    def recognises(content: Any) -> bool:
        return has_rows(content, "annotations", tuple(_Annotation.model_fields))

    def subfolder(self, name: str) -> str:
        """COCO_val2014_1.jpg may lie in val2014."""
        return os.path.join(name.split("_")[1], name)

    def pairs(self, content: Any) -> Iterator[tuple[str, Foil]]:
        rows: dict[bool, list[_Annotation]] = {True: [], False: []}  # by whether they are foils
        for place, row, wrong in checked(_Annotation, content["annotations"], "annotations"):
            if row is None:
                raise data_error(f"{place} of {self._file}: {wrong}")
            rows[row.foil].append(row)
        true = {row.id: row for row in rows[False]}
        paired = [row for row in rows[True] if row.id in true]
        if not paired:
            number = len(rows[True])
            raise data_error(f"{self._file}: none of {number} foils has the id of a true caption")
        unpaired = len(rows[True]) - len(paired)
        if unpaired:
            self.remarks = (f"{unpaired} foils without a caption of their id are left out",)
        images = content.get("images")
        listed = checked(_Image, images if isinstance(images, list) else (), "images")
        names = {image.id: image.file_name for _, image, _ in listed if image}
        return (self._pair(true[row.id], row, names) for row in paired)

    def _pair(self, true: _Annotation, false: _Annotation, names: dict[Any, str]) -> tuple[str, Foil]:
        where, number = f"annotation {true.id} of {self._file}", true.image_id
        if false.image_id != number:
            both = f"image {brief_json(false.image_id)}, the caption of {brief_json(number)}"
            raise data_error(f"{where}: its foil is of {both}")
        if not isinstance(number, int) and not (isinstance(number, str) and number in names):
            raise data_error(f"{where}: image_id is {brief_json(number)}, not the number of an image of COCO")
        foil, caption = (_one_text(row.caption, "caption", where) for row in (false, true))
        return names.get(number) or f"COCO_val2014_{number:012}.jpg", Foil(foil, caption, NOUN)


class _Items(Foiled):
    """Abstract: a JSON object of items; the name of the file is the kind of its foils."""

    fields: ClassVar[tuple[str, ...]]  # those of the image, the caption and the foil, then others

    @classmethod
    def recognises(cls, content: Any) -> bool:
        rows = content.values() if isinstance(content, dict) else ()
        return any(isinstance(row, dict) and all(name in row for name in cls.fields) for row in rows)

    def pairs(self, content: Any) -> list[tuple[str, Foil]]:
        pairs = []
        for name, item in content.items():
            where = f"item {name} of {self._file}"
            _require_fields(item, self.fields, where)
            if self.usable(item, where):
                image, true, foil = (_one_text(item[field], field, where) for field in self.fields[:3])
                pairs.append((image, Foil(foil, true, Path(self._file).stem)))
        return pairs

    def usable(self, item: dict[str, Any], where: str) -> bool:  # noqa: ARG002
        """Whether the benchmark has the item. Raises UserError."""
        return True


# SugarCrepe: captions of COCO and foils that read as well as they do.
#
#     sugarcrepe:replace_obj.json?images=DIR
#
# Hsieh et al., arXiv 2306.14610. The name of a file is the kind of its foils: a JSON object of items
# with filename, caption and negative_caption. DIR holds the images of COCO val2017, or is the folder above.

SUGARCREPE = "sugarcrepe"


class SugarCrepe(_Items):
    """The images of one file of SugarCrepe. Raises UserError."""

    benchmark = SUGARCREPE
    fields = ("filename", "caption", "negative_caption")
    form = f"a file of SugarCrepe: items with {', '.join(fields)}"

    def subfolder(self, name: str) -> str:
        """COCO's own folder."""
        return os.path.join("val2017", name)


# VALSE: captions and foils of six linguistic phenomena.
#
#     valse:actant-swap.json?images=DIR
#
# Parcalabescu et al., arXiv 2112.07566. Each file is one piece: a JSON object of items with image_file,
# caption, foil and mturk, the votes of three people. As its authors do, items count only if
# two people at least chose the caption. The kind is the name of the file. DIR holds the images of the piece:
# those of COCO, SWiG, VisDial or Visual7W.

VALSE = "valse"
VOTES = 2  # of three


class Valse(_Items):
    """The images of one piece of VALSE. Raises UserError."""

    benchmark = VALSE
    fields = ("image_file", "caption", "foil", "mturk")
    form = f"a piece of VALSE: items with {', '.join(fields)}"

    def pairs(self, content: Any) -> list[tuple[str, Foil]]:
        pairs = super().pairs(content)
        if not pairs:
            raise data_error(f"{self._file}: no item of {len(content)} has {VOTES} votes for its caption")
        number = len(content) - len(pairs)
        if number:
            reason = f"fewer than {VOTES} people chose their caption"
            self.remarks = (f"{number} of {len(content)} items are left out: {reason}",)
        return pairs

    def usable(self, item: dict[str, Any], where: str) -> bool:
        """Whether enough people chose the caption."""
        mturk = item["mturk"]
        votes = mturk.get("caption") if isinstance(mturk, dict) else None
        if not isinstance(votes, int):
            raise data_error(f"{where}: mturk is {brief_json(mturk)}, without votes for the caption")
        return votes >= VOTES


# SVO-Probes: a sentence, an image that shows it, and one in which subject, verb or object is another.
#
#     svo-probes:svo_probes.csv?images=DIR
#
# Hendricks and Nematzadeh, arXiv 2106.09141. Columns: sentence, pos_image_id, neg_image_id, and the flags
# subj_neg, verb_neg and obj_neg, of which exactly one is true in the rows that are used. An image lies in DIR
# as ID.jpg, or with another suffix of images. Many URLs of the set are dead, so rows that lack an image are
# left out and counted. The captions of an image are the sentences that it shows; an image that is only a
# wrong one has none.

SVO_PROBES = "svo-probes"
SUBJECT, VERB, OBJECT = "subject", "verb", "object"
FLAGS = {"subj_neg": SUBJECT, "verb_neg": VERB, "obj_neg": OBJECT}
SVO_COLUMNS = ("sentence", "pos_image_id", "neg_image_id", *FLAGS)
UNREADABLE, MIXED = "cannot be read", "do not have exactly one true flag"  # why a row is left out
_TRUTH = {"true": True, "1": True, "false": False, "0": False}


class _Probe(NamedTuple):
    text: str
    right: str  # id of an image
    wrong: str
    kind: str


class SvoProbes(Benchmark):
    """The images of the rows whose images are both there, in their order. Raises UserError."""

    benchmark = SVO_PROBES
    form = f"SVO-Probes: columns {', '.join(SVO_COLUMNS)}"

    @staticmethod
    def recognises(content: Any) -> bool:
        first = first_fields(content)
        return all(name in first for name in SVO_COLUMNS)

    def load(self) -> list[Row]:
        return read_rows(self._file)

    def parse(self, content: Any) -> list[Entry]:
        read = [_read_probe(row, f"row {row.number} of {self._file}") for row in content]
        probes = [probe for probe in read if isinstance(probe, _Probe)]
        names = _images_of(probes)
        files = self._files(names)
        used = [probe for probe in probes if probe.right in files and probe.wrong in files]
        if not used:
            raise data_error(f"no row of {self._file} has both of its images under {self._root}")
        ids = _images_of(used)
        at = {name: place for place, name in enumerate(ids)}
        self.contests = tuple(Contest(p.text, at[p.right], at[p.wrong], p.kind) for p in used)
        captions: dict[str, dict[str, None]] = {}  # a dict keeps the order, and each sentence once
        for probe in used:
            captions.setdefault(probe.right, {})[probe.text] = None
        absent = len(names) - len(files)
        reasons = {
            UNREADABLE: read.count(UNREADABLE),
            MIXED: read.count(MIXED),
            f"lack an image ({absent} of {len(names)} are not under {self._root})": len(probes) - len(used),
        }
        self.remarks = tuple(
            f"{number} of {len(content)} rows are left out: they {what}"
            for what, number in reasons.items()
            if number
        )
        return [Entry(Record(name, b"", tuple(captions.get(name, ()))), (files[name],)) for name in ids]

    def parts(self) -> Iterator[str | int]:
        yield self.benchmark
        for text, right, wrong, kind in self.contests:
            yield from (text, self.entries[right].record.key, self.entries[wrong].record.key, kind)

    def _files(self, names: Sequence[str]) -> dict[str, str]:
        """The file names of the images that are there. Raises UserError where none is."""
        wanted = set(names)
        files: dict[str, str] = {}
        for entry in sorted(os.listdir(self._root)) if os.path.isdir(self._root) else ():
            stem, suffix = os.path.splitext(entry)
            if stem in wanted and suffix[1:].lower() in IMAGE_SUFFIXES:
                files.setdefault(stem, entry)
        if not files:
            paths = [[os.path.join(self._root, f"{name}.jpg")] for name in names]
            require_images(paths, self._file, self._root)
        return files


def _images_of(probes: Sequence[_Probe]) -> list[str]:
    return list(dict.fromkeys(name for probe in probes for name in (probe.right, probe.wrong)))


def _read_probe(row: Row, where: str) -> _Probe | str:
    """A row with exactly one true flag, or why it is left out. Raises UserError."""
    if row.error:
        return UNREADABLE
    _require_fields(row.fields, SVO_COLUMNS, where)
    wrong = [kind for flag, kind in FLAGS.items() if _flag(row.fields[flag], flag, where)]
    if len(wrong) != 1:
        return MIXED
    sentence = _one_text(row.fields["sentence"], "sentence", where)
    right, other = (_id(row.fields[name], name, where) for name in SVO_COLUMNS[1:3])
    return _Probe(sentence, right, other, wrong[0])


def _flag(value: Any, flag: str, where: str) -> bool:
    truth = _TRUTH.get(str(value).strip().lower())
    if truth is None:
        raise data_error(f"{where}: {flag} is {brief_json(value)}; allowed are True and False")
    return truth


def _id(value: Any, name: str, where: str) -> str:
    image_id = str(value).strip() if isinstance(value, str | int) else ""
    if not image_id or os.path.basename(image_id) != image_id or "\0" in image_id:
        raise data_error(f"{where}: {name} is {brief_json(value)}, not the id of an image")
    return image_id


ROW = "[url, caption, url, caption]"


class Item(NamedTuple):
    """Two images and their captions: caption i describes image i."""

    images: tuple[str, str]  # keys
    captions: tuple[str, str]


class Cola(ListedImages):
    """The images of a file of items, each at its first place in the file. Raises UserError."""

    form = f"a file of items: a list of rows {ROW}"

    @staticmethod
    def recognises(content: Any) -> bool:
        rows = content if isinstance(content, list) else []
        return any(isinstance(row, list) for row in rows) and not any(isinstance(row, dict) for row in rows)

    def parse(self, content: Any) -> list[Entry]:
        urls: dict[str, str] = {}  # file name -> URL
        rows = enumerate(content, 1)
        self.items = tuple(_item(row, f"row {number} of {self._file}", urls) for number, row in rows)
        captions: dict[str, dict[str, None]] = {}  # a dict keeps the order, and each caption once
        for item in self.items:
            for key, caption in zip(*item, strict=True):
                captions.setdefault(key, {})[caption] = None
        return [Entry(Record(key, b"", tuple(texts)), (key,)) for key, texts in captions.items()]

    def parts(self) -> Iterator[str | int]:
        return (part for item in self.items for part in (*item.images, *item.captions))


def _item(row: Any, where: str, urls: dict[str, str]) -> Item:
    texts = strings(row)
    if not isinstance(row, list) or len(row) != 4 or len(texts) != 4:
        raise data_error(f"{where} is {brief_json(row)}, not {ROW}, four texts")
    for url in texts[::2]:
        name = name_of(url)
        if not name:
            raise data_error(f"{where}: {url} has no file name, by which its image would be found")
        if urls.setdefault(name, url) != url:
            raise data_error(f"{where}: {url} and {urls[name]} have one file name")
    return Item((name_of(texts[0]), name_of(texts[2])), (texts[1], texts[3]))
