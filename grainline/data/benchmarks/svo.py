"""SVO-Probes: a sentence, a picture that shows it, and one in which subject, verb or object is another.

    svo-probes:svo_probes.csv?images=DIR

Hendricks and Nematzadeh, arXiv 2106.09141. Columns: sentence, pos_image_id, neg_image_id, and the flags
subj_neg, verb_neg and obj_neg, of which exactly one is true in the rows that are used. A picture is looked
for in DIR as ID.jpg, or with another suffix of pictures. Many URLs of the set have died, so rows that lack a
picture are no damage: they are left out and counted. A record is a picture; its captions are the sentences
that it shows, so a picture that only stands against others has none.
"""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from grainline.data.benchmarks.contests import Benchmark, Contest, one_text, whole_item
from grainline.data.formats.checked import shown
from grainline.data.formats.common import IMAGE_SUFFIXES, digest, read_picture, require_pictures, split_query
from grainline.data.formats.plain import HELP
from grainline.data.formats.table import Row, read_rows
from grainline.data.record import Record
from grainline.errors import UserError

SVO_PROBES = "svo-probes"
SUBJECT, VERB, OBJECT = "subject", "verb", "object"
FLAGS = {"subj_neg": SUBJECT, "verb_neg": VERB, "obj_neg": OBJECT}
COLUMNS = ("sentence", "pos_image_id", "neg_image_id", *FLAGS)
_TRUTH = {"true": True, "1": True, "false": False, "0": False}


class _Probe(NamedTuple):
    text: str
    right: str  # id of a picture
    wrong: str
    kind: str


class SvoProbes(Benchmark):
    """The pictures of the rows whose pictures are both there, in their order. Raises UserError."""

    benchmark = SVO_PROBES

    def __init__(self, path: str, images: str | None = None, rows: Sequence[Row] | None = None) -> None:
        self.path = path
        self._file, options = split_query(path, ("images",))
        rows = read_rows(self._file) if rows is None else rows
        if not is_svo(rows):
            raise UserError(f"{self._file} is not SVO-Probes: columns {', '.join(COLUMNS)}; {HELP}")
        probes, broken, mixed = _read(rows, self._file)
        root = images or options.get("images") or os.path.dirname(os.path.abspath(self._file))
        names = list(dict.fromkeys(name for probe in probes for name in (probe.right, probe.wrong)))
        self._place = _places(names, self._file, root)
        used = [probe for probe in probes if probe.right in self._place and probe.wrong in self._place]
        if not used:
            raise UserError(f"no row of {self._file} has both of its pictures under {root}; {HELP}")
        self._ids = list(dict.fromkeys(name for probe in used for name in (probe.right, probe.wrong)))
        at = {name: place for place, name in enumerate(self._ids)}
        self.contests = tuple(Contest(p.text, at[p.right], at[p.wrong], p.kind) for p in used)
        self._shown: dict[str, dict[str, None]] = {}  # a dict keeps the order, and each sentence once
        for probe in used:
            self._shown.setdefault(probe.right, {})[probe.text] = None
        absent = len(names) - len(self._place)
        told = {
            "cannot be read": broken,
            "do not have exactly one true flag": mixed,
            f"lack a picture ({absent} of {len(names)} are not under {root})": len(probes) - len(used),
        }
        self.remarks = tuple(
            f"{number} of {len(rows)} rows are left out: they {what}"
            for what, number in told.items()
            if number
        )

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> Record:
        name = self._ids[index]
        picture = read_picture([self._place[name]], f"{self._file}: {name}")
        return Record(name, picture, tuple(self._shown.get(name, ())))

    def keys(self) -> Iterable[str]:
        """The ids of the pictures."""
        return iter(self._ids)

    def fingerprint(self) -> str:
        """sha256 over the rows that are used; pictures are not looked at, so their sizes do not count."""
        parts: list[str | int] = [self.benchmark]
        for text, right, wrong, kind in self.contests:
            parts += [text, self._ids[right], self._ids[wrong], kind]
        return digest(parts)


def is_svo(rows: Sequence[Row]) -> bool:
    """Whether the first sound row of a table has the columns of SVO-Probes."""
    first = next((row.fields for row in rows if not row.error), {})
    return all(name in first for name in COLUMNS)


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
    found = _TRUTH.get(str(value).strip().lower())
    if found is None:
        raise UserError(f"{where}: {flag} is {shown(value)}; allowed are True and False; {HELP}")
    return found


def _id(value: Any, name: str, where: str) -> str:
    found = str(value).strip() if isinstance(value, str | int) else ""
    if not found or os.path.basename(found) != found or "\0" in found:
        raise UserError(f"{where}: {name} is {shown(value)}, not the id of a picture; {HELP}")
    return found


def _places(names: Sequence[str], file: str, root: str) -> dict[str, str]:
    """Where the pictures lie that are there. Raises UserError where none is."""
    wanted = set(names)
    found: dict[str, str] = {}
    for entry in sorted(os.listdir(root)) if os.path.isdir(root) else ():
        stem, suffix = os.path.splitext(entry)
        if stem in wanted and suffix[1:].lower() in IMAGE_SUFFIXES:
            found.setdefault(stem, os.path.join(root, entry))
    if not found:
        require_pictures([[os.path.join(root, f"{name}.jpg")] for name in names], file, root)
    return found
