"""SVO-Probes: a sentence, an image that shows it, and one in which subject, verb or object is another.

    svo-probes:svo_probes.csv?images=DIR

Hendricks and Nematzadeh, arXiv 2106.09141. Columns: sentence, pos_image_id, neg_image_id, and the flags
subj_neg, verb_neg and obj_neg, of which exactly one is true in the rows that are used. An image is looked
for in DIR as ID.jpg, or with another suffix of images. Many URLs of the set are dead, so rows that lack an
image are left out and counted. A record is an image; its captions are the sentences
that it shows, so an image that only stands against others has none.
"""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from grainline.data.benchmarks.contests import Benchmark, Contest, one_text, whole_item
from grainline.data.formats.checked import brief_json
from grainline.data.formats.common import IMAGE_SUFFIXES, digest, read_image, require_images, split_query
from grainline.data.formats.plain import HELP
from grainline.data.formats.table import Row, first_fields, read_rows
from grainline.data.record import Record
from grainline.errors import UserError

SVO_PROBES = "svo-probes"
SUBJECT, VERB, OBJECT = "subject", "verb", "object"
FLAGS = {"subj_neg": SUBJECT, "verb_neg": VERB, "obj_neg": OBJECT}
COLUMNS = ("sentence", "pos_image_id", "neg_image_id", *FLAGS)
_TRUTH = {"true": True, "1": True, "false": False, "0": False}


class _Probe(NamedTuple):
    text: str
    right: str  # id of an image
    wrong: str
    kind: str


class SvoProbes(Benchmark):
    """The images of the rows whose images are both there, in their order. Raises UserError."""

    benchmark = SVO_PROBES

    @staticmethod
    def recognises(content: Any) -> bool:
        """Whether the first sound row of a table has the columns of SVO-Probes."""
        first = first_fields(content)
        return all(name in first for name in COLUMNS)

    def __init__(self, path: str, images: str | None = None, rows: Sequence[Row] | None = None) -> None:
        self.path = path
        self._file, options = split_query(path, ("images",))
        rows = read_rows(self._file) if rows is None else rows
        if not self.recognises(rows):
            raise UserError(f"{self._file} is not SVO-Probes: columns {', '.join(COLUMNS)}; {HELP}")
        probes, broken, mixed = _read(rows, self._file)
        root = images or options.get("images") or os.path.dirname(os.path.abspath(self._file))
        names = list(dict.fromkeys(name for probe in probes for name in (probe.right, probe.wrong)))
        self._place = _places(names, self._file, root)
        used = [probe for probe in probes if probe.right in self._place and probe.wrong in self._place]
        if not used:
            raise UserError(f"no row of {self._file} has both of its images under {root}; {HELP}")
        self._ids = list(dict.fromkeys(name for probe in used for name in (probe.right, probe.wrong)))
        at = {name: place for place, name in enumerate(self._ids)}
        self.contests = tuple(Contest(p.text, at[p.right], at[p.wrong], p.kind) for p in used)
        self._captions: dict[str, dict[str, None]] = {}  # a dict keeps the order, and each sentence once
        for probe in used:
            self._captions.setdefault(probe.right, {})[probe.text] = None
        absent = len(names) - len(self._place)
        reasons = {
            "cannot be read": broken,
            "do not have exactly one true flag": mixed,
            f"lack an image ({absent} of {len(names)} are not under {root})": len(probes) - len(used),
        }
        self.remarks = tuple(
            f"{number} of {len(rows)} rows are left out: they {what}"
            for what, number in reasons.items()
            if number
        )

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> Record:
        name = self._ids[index]
        image = read_image([self._place[name]], f"{self._file}: {name}")
        return Record(name, image, tuple(self._captions.get(name, ())))

    def keys(self) -> Iterable[str]:
        """The ids of the images."""
        return iter(self._ids)

    def fingerprint(self) -> str:
        """sha256 over the rows that are used; images are not looked at, so their sizes do not count."""
        parts: list[str | int] = [self.benchmark]
        for text, right, wrong, kind in self.contests:
            parts += [text, self._ids[right], self._ids[wrong], kind]
        return digest(parts)


def _read(rows: Sequence[Row], file: str) -> tuple[list[_Probe], int, int]:
    """The rows with exactly one true flag; how many cannot be read, and how many have another number."""
    probes, counts = [], Counter[str]()
    for row in rows:
        if row.error:
            counts["broken"] += 1
            continue
        where = f"row {row.number} of {file}"
        whole_item(row.fields, COLUMNS, where)
        wrong = [kind for flag, kind in FLAGS.items() if _flag(row.fields[flag], flag, where)]
        if len(wrong) != 1:
            counts["mixed"] += 1
            continue
        sentence = one_text(row.fields["sentence"], "sentence", where)
        right, other = (_id(row.fields[name], name, where) for name in COLUMNS[1:3])
        probes.append(_Probe(sentence, right, other, wrong[0]))
    return probes, counts["broken"], counts["mixed"]


def _flag(value: Any, flag: str, where: str) -> bool:
    truth = _TRUTH.get(str(value).strip().lower())
    if truth is None:
        raise UserError(f"{where}: {flag} is {brief_json(value)}; allowed are True and False; {HELP}")
    return truth


def _id(value: Any, name: str, where: str) -> str:
    image_id = str(value).strip() if isinstance(value, str | int) else ""
    if not image_id or os.path.basename(image_id) != image_id or "\0" in image_id:
        raise UserError(f"{where}: {name} is {brief_json(value)}, not the id of an image; {HELP}")
    return image_id


def _places(names: Sequence[str], file: str, root: str) -> dict[str, str]:
    """Where the images lie that are there. Raises UserError where none is."""
    wanted = set(names)
    places: dict[str, str] = {}
    for entry in sorted(os.listdir(root)) if os.path.isdir(root) else ():
        stem, suffix = os.path.splitext(entry)
        if stem in wanted and suffix[1:].lower() in IMAGE_SUFFIXES:
            places.setdefault(stem, os.path.join(root, entry))
    if not places:
        require_images([[os.path.join(root, f"{name}.jpg")] for name in names], file, root)
    return places
