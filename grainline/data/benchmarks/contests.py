"""Benchmarks of right and wrong pairs of image and text: FOIL-COCO, SugarCrepe, VALSE, SVO-Probes and COLA.

Either the text differs, and the wrong one is a foil of its record; or the image does, and a `Contest` names
both by their places in the source. An item of COLA has two images and two captions.
"""

import os
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool

from grainline.data.formats.common import IMAGE_SUFFIXES, name_of, require_images, stem_of
from grainline.data.formats.joined import Joined
from grainline.data.formats.listed import Entry, ListedImages
from grainline.data.formats.parsed import F, Fields, Id, Text, brief_json, checked, data_error, strings, where
from grainline.data.formats.storage import is_folder, names_in
from grainline.data.formats.table import Table, first_fields
from grainline.data.record import Foil, Record, Source
from grainline.data.scenes.source import Scenes

SCENES, OTHER_DATA = "scenes", "own data"  # names of sources that are no benchmark
FOIL_COCO, SUGARCREPE, VALSE, SVO_PROBES = "foil-coco", "sugarcrepe", "valse", "svo-probes"


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


def origins(source: Source, start: int = 0) -> list[Origin]:
    """The records of each benchmark, in their order. start: place of the first record"""
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


class Foiled(Benchmark):
    """Abstract: images whose true texts, their captions, have foils, in the order of the file."""

    @abstractmethod
    def pairs(self, content: Any) -> Iterable[tuple[str, Foil]]:
        """Each foil with its image: the name of a file, or where it lies below the folder of the images."""

    def parse(self, content: Any) -> list[Entry]:
        by_image: dict[str, list[Foil]] = {}
        for name, foil in self.pairs(content):
            by_image.setdefault(name, []).append(foil)
        entries = []
        for name, foils in by_image.items():
            true, base = tuple(dict.fromkeys(foil.true for foil in foils)), os.path.basename(name)
            # a folder of COCO may lie below that of the images
            year = re.match(r"COCO_([^_]*)_", base)
            places = (name, base, os.path.join(year[1] if year else "val2017", base))
            entries.append(Entry(Record(name, b"", true, foils=tuple(foils)), places))
        return entries

    def parts(self) -> Iterator[str | int]:
        yield self.benchmark
        for entry in self.entries:
            foils = entry.record.foils
            yield from (entry.record.key, len(foils))
            yield from (part for foil in foils for part in foil)


def _valid(model: type[F], row: Any, place: str) -> F:
    """A row of a file. Raises UserError."""
    try:
        return model.of(row)
    except ValueError as error:
        raise data_error(f"{place}: {error}") from None


# FOIL-COCO (`foil-coco:foilv1.0_test_2017.json`): captions of COCO and the same with one noun replaced.
# Shekhar et al., arXiv 1705.01359. annotations[] with id, image_id, caption, foil (whether it is the false
# one), target_word and foil_word; a foil has the id of the caption that it was made from. The images are
# those of COCO val2014 (train2014 for the training file): DIR holds them, or is the folder above.


class _Annotation(Fields):
    id: Id
    image_id: Id
    caption: Text
    foil: StrictBool


class _Image(Fields):
    id: Id
    file_name: Annotated[str, Field(pattern="^COCO_[^_]*_")]


class FoilCoco(Foiled):
    """The images of a file of FOIL-COCO. Raises UserError."""

    benchmark = FOIL_COCO
    form = f"a file of FOIL-COCO: annotations[] with {', '.join(_Annotation.model_fields)}"
    lists: ClassVar = {"annotations": tuple(_Annotation.model_fields)}

    def pairs(self, content: Any) -> Iterator[tuple[str, Foil]]:
        rows: dict[bool, list[_Annotation]] = {True: [], False: []}  # by whether they are foils
        for number, one in enumerate(content["annotations"]):
            row = _valid(_Annotation, one, f"annotations[{number}] of {self._file}")
            rows[row.foil].append(row)
        true = {row.id: row for row in rows[False]}
        paired = [row for row in rows[True] if row.id in true]
        if not paired:
            raise data_error(f"{self._file}: none of {len(rows[True])} foils has the id of a true caption")
        unpaired = len(rows[True]) - len(paired)
        if unpaired:
            self.remarks = (f"{unpaired} foils without a caption of their id are left out",)
        images = content.get("images")
        listed = checked(_Image, images if isinstance(images, list) else (), "images")
        names = {image.id: image.file_name for _, image, _ in listed if image}
        return (self._pair(true[row.id], row, names) for row in paired)

    def _pair(self, true: _Annotation, false: _Annotation, names: dict[Any, str]) -> tuple[str, Foil]:
        place, number = f"annotation {true.id} of {self._file}", true.image_id
        if false.image_id != number:
            raise data_error(f"{place}: its foil is of image {false.image_id}, the caption of {number}")
        if isinstance(number, str) and number not in names:
            raise data_error(f"{place}: image_id is {brief_json(number)}, not the number of an image of COCO")
        name = names.get(number) or f"COCO_val2014_{number:012}.jpg"
        return name, Foil(false.caption, true.caption, "noun")


class _Items(Foiled):
    """Abstract: a JSON object of items; the name of the file is the kind of its foils."""

    item: ClassVar[type[Fields]]  # fields: the image, the caption and the foil, then others

    @classmethod
    def recognises(cls, content: Any) -> bool:
        rows = content.values() if isinstance(content, dict) else ()
        return any(isinstance(row, dict) and all(x in row for x in cls.item.model_fields) for row in rows)

    def pairs(self, content: Any) -> list[tuple[str, Foil]]:
        rows = (_valid(self.item, row, f"item {name} of {self._file}") for name, row in content.items())
        used = [tuple(row.__dict__.values()) for row in rows if getattr(row, "usable", True)]
        return [(image, Foil(foil, true, stem_of(self._file))) for image, true, foil, *_ in used]


# SugarCrepe (`sugarcrepe:replace_obj.json`): captions of COCO and foils that read as well as they do.
# Hsieh et al., arXiv 2306.14610. The name of a file is the kind of its foils: a JSON object of items
# with filename, caption and negative_caption. DIR holds the images of COCO val2017, or is the folder above.


class _CrepeItem(Fields):
    filename: Text
    caption: Text
    negative_caption: Text


class SugarCrepe(_Items):
    """The images of one file of SugarCrepe. Raises UserError."""

    benchmark, item = SUGARCREPE, _CrepeItem
    form = f"a file of SugarCrepe: items with {', '.join(_CrepeItem.model_fields)}"


# VALSE (`valse:actant-swap.json`): captions and foils of six linguistic phenomena.
# Parcalabescu et al., arXiv 2112.07566. Each file is one piece: a JSON object of items with image_file,
# caption, foil and mturk, the votes of three people. As its authors do, items count only if
# two people at least chose the caption. The kind is the name of the file. DIR holds the images of the piece:
# those of COCO, SWiG, VisDial or Visual7W.

VOTES = 2  # of three


class _Votes(Fields):
    caption: int


class _ValseItem(Fields):
    image_file: Text
    caption: Text
    foil: Text
    mturk: _Votes

    @property
    def usable(self) -> bool:
        """Whether enough people chose the caption."""
        return self.mturk.caption >= VOTES


class Valse(_Items):
    """The images of one piece of VALSE. Raises UserError."""

    benchmark, item = VALSE, _ValseItem
    form = f"a piece of VALSE: items with {', '.join(_ValseItem.model_fields)}"

    def pairs(self, content: Any) -> list[tuple[str, Foil]]:
        pairs, all_items = super().pairs(content), len(content)
        if not pairs:
            raise data_error(f"{self._file}: no item of {all_items} has {VOTES} votes for its caption")
        if number := all_items - len(pairs):
            reason = f"fewer than {VOTES} people chose their caption"
            self.remarks = (f"{number} of {all_items} items are left out: {reason}",)
        return pairs


# SVO-Probes: a sentence, an image that shows it, and one in which subject, verb or object is another.
# Hendricks and Nematzadeh, arXiv 2106.09141. Columns: sentence, pos_image_id, neg_image_id, and the flags
# subj_neg, verb_neg and obj_neg, of which exactly one is true in the rows that are used. An image lies in DIR
# as ID.jpg, or with another suffix of images. Many URLs of the set are dead, so rows that lack an image are
# left out and counted. The captions of an image are the sentences that it shows; an image that is only a
# wrong one has none.

SUBJECT, VERB, OBJECT = "subject", "verb", "object"
UNREADABLE, MIXED = "cannot be read", "do not have exactly one true flag"  # why a row is left out

_is_name = where(lambda x: x and os.path.basename(x) == x and "\0" not in x, "not the id of an image")
_text = BeforeValidator(lambda x: str(x).strip() if isinstance(x, str | int) else x)
ImageId = Annotated[str, _text, AfterValidator(_is_name)]


class _Probe(Fields):
    sentence: Text
    pos_image_id: ImageId
    neg_image_id: ImageId
    subj_neg: bool
    verb_neg: bool
    obj_neg: bool

    @property
    def kinds(self) -> list[str]:
        """The parts of the sentence that the wrong image lacks."""
        flags = {SUBJECT: self.subj_neg, VERB: self.verb_neg, OBJECT: self.obj_neg}
        return [kind for kind, flag in flags.items() if flag]


SVO_COLUMNS = tuple(_Probe.model_fields)


class SvoProbes(Benchmark):
    """The images of the rows whose images are both there, in their order. Raises UserError."""

    benchmark = SVO_PROBES
    form = f"SVO-Probes: columns {', '.join(SVO_COLUMNS)}"
    load = Table.load

    @classmethod
    def recognises(cls, content: Any) -> bool:
        return set(SVO_COLUMNS) <= first_fields(content).keys()

    def parse(self, content: Any) -> list[Entry]:
        rows = [row for row in content if not row.error]
        read = [_valid(_Probe, row.fields, f"row {row.number} of {self._file}") for row in rows]
        probes = [probe for probe in read if len(probe.kinds) == 1]
        names = _images_of(probes)
        files = self._files(names)
        used = [one for one in probes if one.pos_image_id in files and one.neg_image_id in files]
        if not used:
            raise data_error(f"no row of {self._file} has both of its images under {self._root}")
        ids = _images_of(used)
        place = {name: number for number, name in enumerate(ids)}
        pairs = [(place[one.pos_image_id], place[one.neg_image_id]) for one in used]
        both = zip(used, pairs, strict=True)
        self.contests = tuple(Contest(one.sentence, *pair, one.kinds[0]) for one, pair in both)
        captions: dict[str, dict[str, None]] = {}  # a dict keeps the order, and each sentence once
        for one in used:
            captions.setdefault(one.pos_image_id, {})[one.sentence] = None
        absent = f"{len(names) - len(files)} of {len(names)} are not under {self._root}"
        reasons = {
            UNREADABLE: len(content) - len(rows),
            MIXED: len(read) - len(probes),
            f"lack an image ({absent})": len(probes) - len(used),
        }
        out = f"of {len(content)} rows are left out: they"
        self.remarks = tuple(f"{number} {out} {what}" for what, number in reasons.items() if number)
        return [Entry(Record(name, b"", tuple(captions.get(name, ()))), (files[name],)) for name in ids]

    def parts(self) -> Iterator[str | int]:
        yield self.benchmark
        for text, right, wrong, kind in self.contests:
            yield from (text, self.entries[right].record.key, self.entries[wrong].record.key, kind)

    def _files(self, names: Sequence[str]) -> dict[str, str]:
        """The file names of the images that are there. Raises UserError where none is."""
        wanted = set(names)
        files: dict[str, str] = {}
        for entry in sorted(names_in(self._root)) if is_folder(self._root) else ():
            stem, suffix = os.path.splitext(entry)
            if stem in wanted and suffix[1:].lower() in IMAGE_SUFFIXES:
                files.setdefault(stem, entry)
        if not files:
            paths = [[os.path.join(self._root, f"{name}.jpg")] for name in names]
            require_images(paths, self._file, self._root)
        return files


def _images_of(probes: Sequence[_Probe]) -> list[str]:
    return list(dict.fromkeys(name for one in probes for name in (one.pos_image_id, one.neg_image_id)))


# COLA, multi-object part (`COLA_multiobjects_matching_benchmark.json`): items of two images and two captions.
# Ray et al., arXiv 2305.03689. The file is a JSON list of rows [url, caption, url, caption]: two images, each
# with the caption that describes it. An image has the file name of its URL. An image of several rows is one
# record with all its captions; `items` holds the rows.

ROW = "[url, caption, url, caption]"


class Item(NamedTuple):
    """Two images and their captions: caption i describes image i."""

    images: tuple[str, str]  # keys
    captions: tuple[str, str]


class Cola(ListedImages):
    """The images of a file of items, each at its first place in the file. Raises UserError."""

    form = f"a file of items: a list of rows {ROW}"

    @classmethod
    def recognises(cls, content: Any) -> bool:
        rows = content if isinstance(content, list) else []
        return any(isinstance(row, list) for row in rows) and not any(isinstance(row, dict) for row in rows)

    def parse(self, content: Any) -> list[Entry]:
        urls: dict[str, str] = {}  # file name -> URL
        rows = enumerate(content, 1)
        self.items = tuple(_item(row, f"row {number} of {self._file}", urls) for number, row in rows)
        captions: dict[str, dict[str, None]] = {}
        for item in self.items:
            for key, caption in zip(*item, strict=True):
                captions.setdefault(key, {})[caption] = None
        return [Entry(Record(key, b"", tuple(texts)), (key,)) for key, texts in captions.items()]

    def parts(self) -> Iterator[str | int]:
        return (part for item in self.items for part in (*item.images, *item.captions))


def _item(row: Any, place: str, urls: dict[str, str]) -> Item:
    texts = strings(row)
    if not isinstance(row, list) or len(row) != 4 or len(texts) != 4:
        raise data_error(f"{place} is {brief_json(row)}, not {ROW}, four texts")
    for url in texts[::2]:
        name = name_of(url)
        if not name or urls.setdefault(name, url) != url:
            which = f"the file name of {urls[name]}" if name else "no file name, by which its image is found"
            raise data_error(f"{place}: {url} has {which}")
    return Item((name_of(texts[0]), name_of(texts[2])), (texts[1], texts[3]))
