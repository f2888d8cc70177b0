"""Tables whose rows name an image and its texts: JSON Lines, CSV, TSV, or a JSON list of rows.

Columns are found by name (`COLUMNS`), or named: `file.csv?image=photo&caption=sentence&root=images`. Paths
of images are relative to the table's folder, to `root`, or to the folder given with --images. Rows with the
same image become one record with all their captions; its key is the path of the image as the table writes
it. A URL stands for the image of its file name. JSON rows may have the further fields of
grainline.data.formats.common. The whole table is held in memory.
"""

import csv
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from grainline.data.formats.checked import brief_json
from grainline.data.formats.common import FIELDS as RECAPTIONED
from grainline.data.formats.common import (
    LONG_FIELDS,
    Captions,
    FileSource,
    digest,
    name_of,
    read_captions,
    read_image,
    require_images,
    split_query,
)
from grainline.data.formats.plain import data_error, parse_json, read_text
from grainline.data.record import CORRUPT_ROW, MISSING_CAPTION, MISSING_IMAGE, CorruptSample, Record
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

OPTIONS = ("image", "caption", "long", "root")
SPOTS = ("regions", "boxes", "foils")
FURTHER = (*SPOTS, "subtexts", "longs", *RECAPTIONED)  # fields that are called so or are not there


class Row(NamedTuple):
    """A row of a table, or its error."""

    number: int  # of its line or place, from 1
    fields: Mapping[str, Any]
    error: str = ""


class _Image(NamedTuple):
    row: int  # the first that names it
    key: str
    path: str  # as the table writes it; empty where no row names one
    captions: Captions
    error: tuple[str, str] | None = None  # cause and where


class Table(FileSource):
    """The images of a table in the order of their first rows."""

    images_by_path = True
    which = ""  # images are meant, for an error

    def __init__(self, path: str, images: str | None = None, rows: Sequence[Row] | None = None) -> None:
        self.path = path
        self._file, options = split_query(path, OPTIONS)
        table_rows = read_rows(self._file) if rows is None else rows
        columns = choose_columns({name for row in table_rows for name in row.fields}, options, self._file)
        folder = os.path.dirname(os.path.abspath(self._file))
        self._root = os.path.abspath(images) if images else os.path.join(folder, options.get("root", ""))
        self._images = list(_merge(table_rows, columns, self._file))
        if all(image.captions.empty for image in self._images if not image.error):
            raise data_error(f"{self._file} has no text in any row (column {columns.get('caption', '')})")
        urls: dict[str, str] = {}  # by their file names
        for url in (image.path for image in self._images if "://" in image.path):
            first = urls.setdefault(name_of(url), url)
            if first != url:
                raise data_error(
                    f"{self._file}: {url} and {first} have one file name, by which both would be found: "
                    "download such sets as WebDataset tars that take the columns of the table along"
                )
        places = [self._places(image) for image in self._images if image.path]
        require_images(places, self._file, self._root, self.which)

    def _places(self, image: _Image) -> list[str]:
        return [os.path.join(self._root, name_of(image.path) if "://" in image.path else image.path)]

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> Record:
        image = self._images[index]
        where = f"{self._file}: row {image.row}"
        if image.error:
            raise CorruptSample(*image.error)
        if not image.path:
            raise CorruptSample(MISSING_IMAGE, where)
        if image.captions.empty:
            raise CorruptSample(MISSING_CAPTION, where)
        return image.captions.record(image.key, read_image(self._places(image), where))

    def keys(self) -> Iterable[str]:
        return (image.key for image in self._images)

    def fingerprint(self) -> str:
        """sha256 over names and texts; images are not read, so their sizes do not count."""
        parts: list[str | int] = []
        for image in self._images:
            parts += [image.key, *image.captions.texts]
        return digest(parts)


def first_fields(rows: Any) -> Mapping[str, Any]:
    """The fields of the first valid row; none of what is no list of rows."""
    rows = rows if isinstance(rows, list) else ()
    return next((row.fields for row in rows if isinstance(row, Row) and not row.error), {})


def choose_columns(columns: Iterable[str], options: Mapping[str, str], file: str) -> dict[str, str]:
    """Which column is the image, the caption and the long text. Raises UserError.

    >>> choose_columns(["id", "Filename", "title"], {}, "a.csv")
    {'image': 'Filename', 'caption': 'title'}
    >>> choose_columns(["photo", "title"], {"image": "photo"}, "a.csv")
    {'image': 'photo', 'caption': 'title'}
    """
    present = sorted(columns)
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
            raise data_error(
                f"{file} has no {role} column among {some(present, 12) or 'no columns'}: call it one of"
                f" {', '.join(COLUMNS[role])}, or name it with ?{role}=COLUMN"
            )
    return roles


def fields_of(row: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a row by the names of `read_captions`.

    A caption column may hold a JSON list of strings.
    """
    fields = {name: row[name] for name in FURTHER if row.get(name)}
    fields["caption"] = _unpacked(row.get(columns.get("caption", "")))
    fields["long"] = row.get(columns.get("long", ""))
    return fields


def _unpacked(value: Any) -> Any:
    if not isinstance(value, str) or not value.startswith("["):
        return value
    try:
        several = parse_json(value)
    except ValueError:
        return value
    return several if isinstance(several, list) and all(isinstance(text, str) for text in several) else value


def _merge(rows: Sequence[Row], columns: Mapping[str, str], file: str) -> Iterator[_Image]:
    """One image for all rows that name it, in their order; each corrupt row stands alone."""
    images: dict[str, _Image] = {}
    for row in rows:
        line = f"row {row.number}"
        path = row.fields.get(columns["image"])
        if row.error:
            error = CORRUPT_ROW, f"{file}: {line} ({row.error})"
            images[line] = _Image(row.number, line, "", Captions(), error)
        elif not isinstance(path, str) or not path.strip():
            images[line] = _Image(row.number, line, "", Captions())
        else:
            path = path.strip()
            place = os.path.normpath(path)
            image = images.get(place) or _Image(row.number, path, path, Captions())
            images[place] = _joined(image, row, columns, file)
    yield from images.values()


def _joined(image: _Image, row: Row, columns: Mapping[str, str], file: str) -> _Image:
    try:
        new = read_captions(fields_of(row.fields, columns), f"{file}: row {row.number}")
    except CorruptSample as error:
        return image._replace(error=(error.cause, error.where))
    old = image.captions
    captions = Captions(
        old.captions + new.captions,
        old.long or new.long,
        old.regions + new.regions,
        old.foils + new.foils,
        old.subtexts or new.subtexts,
        old.others or new.others,
    )
    return image._replace(captions=captions)


def read_rows(file: str) -> list[Row]:
    """The rows of a file, by its suffix. Raises UserError for what is no table."""
    text = read_text(file)
    if not text.strip():
        raise data_error(f"{file} is empty")
    kind = Path(file).suffix.lower()
    if kind in (".csv", ".tsv"):
        return list(_csv_rows(file, text))
    return json_lines(file, text) if kind != ".json" else json_rows(file, json_or_rows(file, text))


def json_lines(file: str, text: str) -> list[Row]:
    """The rows of JSON Lines. A line that is no JSON object is one corrupt row, unless all are."""
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


def _csv_rows(file: str, text: str) -> Iterator[Row]:
    """The rows of CSV or TSV. Split at what the first line has most of: many a .csv has tabs."""
    head = text.split("\n", 1)[0]
    delimiter = "\t" if Path(file).suffix.lower() == ".tsv" else max(",\t;|", key=head.count)
    csv.field_size_limit(2**31 - 1)  # the library would refuse a cell of 131,072 characters
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    line = 1
    try:
        names = reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
        twice = [name for name in dict.fromkeys(names) if name and names.count(name) > 1]
        if twice:
            raise data_error(f"{file} has the column {some(twice)} more than once")
        line = reader.line_num + 1
        for number, row in enumerate(reader, 1):
            rest = row.pop(None, ())  # fields after the last column: a caption would lose its end
            if rest:
                raise data_error(
                    f"{file} has {len(names) + len(rest)} fields in row {number}, and {len(names)} columns"
                    f" ({some(names, 12)}): put quotes around texts that hold '{delimiter}'"
                )
            yield Row(number, row)
            line = reader.line_num + 1
    except csv.Error as error:
        raise data_error(
            f"{file} cannot be read as a table from line {line} on, where a quote does not close or a text"
            f" holds one: {error}; write a quote inside a text twice"
        ) from error
