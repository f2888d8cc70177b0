"""SVO-Probes: a sentence, an image that shows it, and one in which subject, verb or object is another.

    svo-probes:svo_probes.csv?images=DIR

Hendricks and Nematzadeh, arXiv 2106.09141. Columns: sentence, pos_image_id, neg_image_id, and the flags
subj_neg, verb_neg and obj_neg, of which exactly one is true in the rows that are used. An image lies in DIR
as ID.jpg, or with another suffix of images. Many URLs of the set are dead, so rows that lack an image are
left out and counted. The captions of an image are the sentences that it shows; an image that is only a wrong
one has none.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from grainline.data.benchmarks.contests import Benchmark, Contest, one_text, require_fields
from grainline.data.formats.checked import brief_json
from grainline.data.formats.common import IMAGE_SUFFIXES, require_images
from grainline.data.formats.listed import Entry
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
    form = f"SVO-Probes: columns {', '.join(COLUMNS)}"

    @staticmethod
    def recognises(content: Any) -> bool:
        """Whether the first sound row of a table has the columns of SVO-Probes."""
        first = first_fields(content)
        return all(name in first for name in COLUMNS)

    def load(self) -> list[Row]:
        return read_rows(self._file)

    def parse(self, content: Any) -> list[Entry]:
        probes, unreadable, mixed = _read(content, self._file)
        names = _images_of(probes)
        files = self._files(names)
        used = [probe for probe in probes if probe.right in files and probe.wrong in files]
        if not used:
            raise UserError(f"no row of {self._file} has both of its images under {self._root}; {HELP}")
        ids = _images_of(used)
        at = {name: place for place, name in enumerate(ids)}
        self.contests = tuple(Contest(p.text, at[p.right], at[p.wrong], p.kind) for p in used)
        captions: dict[str, dict[str, None]] = {}  # a dict keeps the order, and each sentence once
        for probe in used:
            captions.setdefault(probe.right, {})[probe.text] = None
        absent = len(names) - len(files)
        reasons = {
            "cannot be read": unreadable,
            "do not have exactly one true flag": mixed,
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


def _read(rows: Sequence[Row], file: str) -> tuple[list[_Probe], int, int]:
    """The rows with exactly one true flag; how many cannot be read, and how many have another number."""
    probes, counts = [], Counter[str]()
    for row in rows:
        if row.error:
            counts["unreadable"] += 1
            continue
        where = f"row {row.number} of {file}"
        require_fields(row.fields, COLUMNS, where)
        wrong = [kind for flag, kind in FLAGS.items() if _flag(row.fields[flag], flag, where)]
        if len(wrong) != 1:
            counts["mixed"] += 1
            continue
        sentence = one_text(row.fields["sentence"], "sentence", where)
        right, other = (_id(row.fields[name], name, where) for name in COLUMNS[1:3])
        probes.append(_Probe(sentence, right, other, wrong[0]))
    return probes, counts["unreadable"], counts["mixed"]


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
