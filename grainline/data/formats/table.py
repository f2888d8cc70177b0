"""Tables whose rows name an image and its texts: JSON Lines, CSV, TSV, or a JSON list of rows.

Columns are found by name (`COLUMNS`), or named: `file.csv?image=photo&caption=sentence&root=images`. Paths
of images are relative to the table's folder, to `root`, or to the folder given with --images. Rows with the
same image become one record with all their captions; its key is the path of the image as the table writes
it. A URL stands for the image of its file name. JSON rows may have the further fields of
grainline.data.formats.common. The whole table is held in memory.
"""

import csv
import gzip
import io
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, NamedTuple

from PIL import Image

from grainline.data.formats.common import (
    LONG_FIELDS,
    RECAPTIONED,
    FileSource,
    described,
    digest,
    name_of,
    read_captions,
    text_parts,
)
from grainline.data.formats.listed import Entry, ListedImages, no_text, wrong_row
from grainline.data.formats.parsed import (
    brief_json,
    data_error,
    parse_json,
    read_text,
    strings,
    text_of,
)
from grainline.data.formats.storage import absolute, join, read_plain
from grainline.data.record import Cause, CorruptSample, Record
from grainline.errors import some

COLUMNS: dict[str, tuple[str, ...]] = {
    "image": (
        *("image", "image_path", "filepath", "file_name", "filename", "path", "img", "img_path"),
        *("image_name", "image path", "imagepath"),
    ),
    "caption": ("caption", "captions", "text", "title", "sentence", "sentences", "raw_caption"),
    "long": LONG_FIELDS,
}
"""The names that a column goes by, best first; capitals do not matter."""

SPOTS = ("regions", "boxes", "foils")
FURTHER = (*SPOTS, "subtexts", "longs", *RECAPTIONED)  # fields that are called so or are not there


class Row(NamedTuple):
    """A row of a table, or its error."""

    number: int  # of its line or place, from 1
    fields: Mapping[str, Any]
    error: str = ""


class Table(ListedImages):
    """The images of a table in the order of their first rows."""

    form = ""
    options: ClassVar[tuple[str, ...]] = ("image", "caption", "long", "root")

    def __init__(self, path: str, images: str | None = None, content: Any = None) -> None:
        super().__init__(path, images and absolute(images), content)

    def load(self) -> list[Row]:
        return read_rows(self._file)

    def folder(self) -> str:
        return join(super().folder(), self._query.get("root", ""))

    def parse(self, content: Sequence[Row]) -> list[Entry]:
        if not content:
            raise data_error(f"{self._file} has no rows below the names of its columns")
        columns = choose_columns({name for row in content for name in row.fields}, self._query, self._file)
        entries = _merge(content, columns)
        if all(entry.fault for entry in entries):
            names = ", ".join(name for role, name in columns.items() if role != "image")
            wrong = (entry for entry in entries if entry.fault and entry.fault[0] != Cause.MISSING_CAPTION)
            raise no_text(self._file, f"row (column {names})", wrong)
        self.remarks = unnamed(name for row in content for name in row.fields)
        urls: dict[str, str] = {}  # by their file names
        for url in (entry.record.key for entry in entries if entry.places and "://" in entry.record.key):
            if (first := urls.setdefault(name_of(url), url)) != url:
                raise data_error(f"{self._file}: {url} and {first} have one file name")
        return entries

    def __getitem__(self, index: int) -> Record:
        record = super().__getitem__(index)
        return described(record, record.key, b"")._replace(image=record.image)

    def parts(self) -> Iterator[str | int]:
        return (part for one in self.entries for part in (one.record.key, *text_parts(one.record)))


def first_fields(rows: Any) -> Mapping[str, Any]:
    """The fields of the first valid row; none of what is no list of rows."""
    rows = rows if isinstance(rows, list) else ()
    return next((row.fields for row in rows if isinstance(row, Row) and not row.error), {})


def unnamed(columns: Iterable[str]) -> tuple[str, ...]:
    """The remark about a column without a name, such as the row numbers that pandas writes."""
    return ("a column without a name is not read",) if "" in columns else ()


def choose_columns(columns: Iterable[str], options: Mapping[str, str], file: str) -> dict[str, str]:
    """The columns of the image, the caption and the long text. Raises UserError."""
    present = sorted(str(name) for name in columns if name != "")
    lower = {name.lower(): name for name in reversed(present)}
    roles: dict[str, str] = {}
    for role, names in COLUMNS.items():
        if role in options:
            if options[role] not in present:
                raise data_error(f"{file} has no column {options[role]}; its columns are {some(present, 12)}")
            roles[role] = options[role]
        else:
            known = [lower[name] for name in names if name in lower]
            roles |= {role: known[0]} if known else {}
    for role in ("image", "caption"):
        if role not in roles and not (role == "caption" and "long" in roles):
            advice = f"call it one of {', '.join(COLUMNS[role])}, or ?{role}=COLUMN"
            raise data_error(f"{file} has no {role} column among {some(present, 12) or 'none'}: {advice}")
    return roles


def fields_of(row: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a row by the names of `read_captions`; a cell may hold a JSON list of captions."""
    fields = {name: row[name] for name in FURTHER if row.get(name)}
    named = {role: row.get(columns[role]) for role in ("caption", "long") if role in columns}
    caption = named.get("caption")
    with suppress(ValueError):
        if isinstance(caption, str) and caption.startswith("["):
            several = parse_json(caption)
            caption = several if all(isinstance(text, str) for text in several) else caption
    return fields | named | {"caption": caption}


def _merge(rows: Sequence[Row], columns: Mapping[str, str]) -> list[Entry]:
    """One image for all rows that name it, in their order; each corrupt row stands alone."""
    images: dict[str, Entry] = {}
    for row in rows:
        where = f"row {row.number}"
        path = row.fields.get(columns["image"])
        path = path.strip() if isinstance(path, str) else ""
        if row.error:
            images[where] = wrong_row(where, row.error)
        elif not strings(path):
            images[where] = Entry(Record(where, b"", ()), fault=(Cause.MISSING_IMAGE, where))
        else:
            places = (name_of(path) if "://" in path else path,)
            place = os.path.normpath(path)
            entry = images.get(place) or Entry(Record(path, b"", ()), places, where=where)
            try:
                texts = read_captions(fields_of(row.fields, columns), where)
                images[place] = entry._replace(record=_joined(entry.record, texts))
            except CorruptSample as error:
                images[place] = entry._replace(fault=(error.cause, error.where))
    for name, one in images.items():
        if not one.fault and one.record.silent and not one.record.regions:
            images[name] = one._replace(fault=(Cause.MISSING_CAPTION, one.where))
    return list(images.values())


def _joined(first: Record, other: Record) -> Record:
    """The texts of two rows of one image: of what an image has once, the first row's."""
    both = {name: getattr(first, name) + getattr(other, name) for name in ("captions", "regions", "foils")}
    once = {name: getattr(first, name) or getattr(other, name) for name in ("long", "subtexts", "others")}
    return first._replace(**both, **once)


def read_rows(file: str, text: str | None = None) -> list[Row]:
    """The rows of a file, by its suffix. Raises UserError for what is no table.

    text  the content, where it was read already

    Of JSON Lines, a line that is no JSON object is one corrupt row, unless all are.
    """
    text = read_text(file) if text is None else text
    if not text.strip():
        raise data_error(f"{file} is empty")
    kind = os.path.splitext(name_of(file.removesuffix(".gz")))[1].lower()
    if kind in (".csv", ".tsv"):
        return list(_csv_rows(file, text, kind))
    if kind == ".json":
        return json_rows(file, json_or_rows(file, text))
    rows = _line_rows(text)
    if all(row.error for row in rows):
        raise data_error(f"{file} is not JSON Lines: {rows[0].error}; one object a line is needed")
    return rows


def json_or_rows(file: str, text: str) -> Any:
    """Parsed JSON, or the rows of a .json file that holds JSON Lines after all. Raises UserError."""
    try:
        return parse_json(text)
    except ValueError as error:
        rows = _line_rows(text)
        if not rows or rows[0].error:
            raise data_error(f"{file} is not JSON: {error}") from error
        return rows


def json_rows(file: str, data: Any) -> list[Row]:
    """Rows from a list of objects, or from an object whose only list is one. Raises UserError."""
    rows = data
    if isinstance(data, dict):
        lists = [value for value in data.values() if isinstance(value, list)]
        rows = lists[0] if len(lists) == 1 else None
        if rows and not any(isinstance(row, dict) for row in rows):
            rows = [data]  # JSON Lines of one line
    if not isinstance(rows, list) or not rows:
        what = f"an object with {some(list(data), 8)}" if isinstance(data, dict) else brief_json(data)
        raise data_error(f"{file} holds {what}: allowed are COCO's and Karpathy's files, and lists of rows")
    if isinstance(rows[0], Row):
        return rows
    return [_row(number, row) for number, row in enumerate(rows, 1)]


def _line_rows(text: str) -> list[Row]:
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        try:
            rows += [_row(number, parse_json(line))] if line.strip() else []
        except ValueError as error:
            rows.append(Row(number, {}, str(error)))
    return rows


def _row(number: int, fields: Any) -> Row:
    if isinstance(fields, dict):
        return Row(number, fields)
    return Row(number, {}, f"{brief_json(fields)}, not an object")


def _csv_rows(file: str, text: str, kind: str) -> Iterator[Row]:
    """The rows of CSV or TSV. Split at what the first line has most of: many a .csv has tabs."""
    head = text.split("\n", 1)[0]
    delimiter = "\t" if kind == ".tsv" else max(",\t;|", key=head.count)
    csv.field_size_limit(2**31 - 1)  # the library would refuse a cell of 131,072 characters
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    line = 1
    try:
        names = reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
        if not any(names):
            raise data_error(f"the first line of {file} is blank; it must hold the names of the columns")
        twice = [name for name in dict.fromkeys(names) if name and names.count(name) > 1]
        if twice:
            raise data_error(f"{file} has the column {some(twice)} more than once")
        line = reader.line_num + 1
        for number, row in enumerate(reader, 1):
            rest = row.pop(None, ())  # fields after the last column: a caption would lose its end
            if any(cell.strip() for cell in rest):
                has = f"{len(names) + len(rest)} fields in row {number}, and {len(names)} columns"
                raise data_error(f"{file} has {has}: put quotes around texts that hold '{delimiter}'")
            yield Row(number, row)
            line = reader.line_num + 1
    except csv.Error as error:
        wrong = f"cannot be read as a table from line {line} on, where a quote is open ({error})"
        raise data_error(f"{file} {wrong}; write a quote inside a text twice") from error


# Captions without images: `texts:FILE`, for methods that learn from texts alone. FILE is a table (JSON Lines,
# JSON, CSV, TSV) whose rows have captions and perhaps a long text, or, with any other suffix, plain text with
# one caption a line; a suffix `.gz` is unpacked. Each row is one record. Its image is a grey square: training
# refuses such data for a method that reads images.

SQUARE = 8  # of the grey square, in pixels
TEXT_COLUMNS = ("captions", "caption", "text", "sentence", "sentences")


class TextsAlone(FileSource):
    """The rows of a file of texts. Key: the number of the row, from 1."""

    has_images = False

    def __init__(self, path: str) -> None:
        self.path = path
        rows = _text_rows(path)
        nameless = unnamed(name for row in rows for name in row.fields)
        self.remarks = ("captions without images: a grey square stands for each", *nameless)
        # the number of each row, its texts, and what is wrong with it
        self._rows = [(row.number, *_texts_of(row)) for row in rows]
        if all(texts.silent for _, texts, _ in self._rows):
            wrong = (wrong_row(f"row {number}", error) for number, _, error in self._rows if error)
            raise no_text(path, f"row (column {', '.join(TEXT_COLUMNS)})", wrong)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Record:
        number, texts, error = self._rows[index]
        where = f"{self.path}: row {number}"
        if error:
            raise CorruptSample(Cause.CORRUPT_ROW, f"{where} ({error})")
        if texts.silent:
            raise CorruptSample(Cause.MISSING_CAPTION, where)
        square = Image.new("RGB", (SQUARE, SQUARE), (128,) * 3)
        return described(texts, str(number), b"")._replace(image=square)

    def keys(self) -> Iterable[str]:
        return (str(number) for number, _, _ in self._rows)

    def fingerprint(self) -> str:
        """sha256 over the texts."""
        rows = ((number, () if error else text_parts(texts)) for number, texts, error in self._rows)
        return digest(part for number, texts in rows for part in (number, *texts))


def _text_rows(path: str) -> list[Row]:
    plain = path.removesuffix(".gz")
    text = _unzipped(path) if plain != path else read_text(path)
    if not text.strip():
        raise data_error(f"{path} is empty")
    if os.path.splitext(name_of(plain))[1].lower() in (
        ".jsonl",
        ".ndjson",
        ".jsonlines",
        ".json",
        ".csv",
        ".tsv",
    ):
        return read_rows(path, text)
    lines = enumerate(text.split("\n"), 1)
    return [Row(number, {"caption": line}) for number, line in lines if line.strip()]


def _texts_of(row: Row) -> tuple[Record, str]:
    """The texts of a row, and what is wrong with it."""
    names = {"caption": TEXT_COLUMNS, "long": ("long", "description")}
    own = row.fields
    fields = {role: next((own[x] for x in few if x in own), None) for role, few in names.items()}
    try:
        return read_captions({} if row.error else fields, ""), row.error
    except CorruptSample as error:
        return Record("", b"", ()), error.where.strip(" ()")


def _unzipped(path: str) -> str:
    try:
        return text_of(gzip.decompress(read_plain(path, 2**62)))
    except OSError as error:
        raise data_error(f"{path} cannot be read ({error.strerror or error})") from error
    except (EOFError, zlib.error, ValueError) as error:
        raise data_error(f"{path} is no whole gzip file of UTF-8 text ({error})") from error
