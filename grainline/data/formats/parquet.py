"""Parquet files with images inside, or with paths of images. Needs the extra `data` (pyarrow).

Columns are found by name as in grainline.data.formats.table (image and text columns), or named with
`file.parquet?image=COL&caption=COL&long=COL&root=DIR`. An image is bytes, a struct of {bytes, path} as the
`datasets` library writes it, or a path.

Parquet has no access to single rows: a row group is read whole, and the last two are cached. For shuffled
reading write small groups (100 to 1000 rows) or use tars.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple, cast

from grainline.data.formats.common import (
    Parts,
    described,
    digest,
    divide,
    name_of,
    read_captions,
    read_image,
    require_images,
    split_query,
    text_parts,
    with_query,
)
from grainline.data.formats.folder import files_of
from grainline.data.formats.parsed import data_error
from grainline.data.formats.storage import absolute, join, open_regular, state_of
from grainline.data.formats.table import FURTHER, SPOTS, Table, choose_columns, fields_of, unnamed
from grainline.data.record import Cause, CorruptSample, Record
from grainline.errors import stop_if_unreachable

CACHED_GROUPS = 2


class _Group(NamedTuple):
    file: str
    number: int  # in its file
    first: int  # row of the file
    rows: int
    changed: int  # when the file was, in nanoseconds


class Parquet(Parts):
    """The rows of one or more parquet files, file after file. Keys are "NAME:ROW"."""

    images_by_path = True

    def __init__(self, paths: Sequence[str], path: str | None = None, images: str | None = None) -> None:
        self.path = paths[0] if path is None else path
        options = split_query(self.path, Table.options)[1] or split_query(paths[0], Table.options)[1]
        self._files = [split_query(name, Table.options)[0] for name in paths]
        self._groups: list[_Group] = []
        schema: Any = None
        for file in self._files:
            own, sizes = _opened(file, _sizes)
            schema = schema or own
            missing = set(schema.names) - set(own.names)
            if missing:
                raise data_error(f"{file} has no column {min(missing)}, which {self._files[0]} has")
            starts = accumulate(sizes, initial=0)
            groups, changed = zip(range(len(sizes)), starts, sizes, strict=False), state_of(file).changed
            self._groups += [_Group(file, *group, changed) for group in groups]
        self._starts = list(accumulate((group.rows for group in self._groups), initial=0))
        if not len(self):
            raise data_error(f"{self.path} holds no rows")
        self._columns = choose_columns(schema.names, options, self._files[0])
        self.remarks = unnamed(schema.names)
        self._further = [name for name in FURTHER if name in schema.names]
        folder = os.path.dirname(absolute(self._files[0]))
        self._root = absolute(images) if images else join(folder, options.get("root", ""))
        names = [name_of(file) for file in self._files]
        unique = names if len(set(names)) == len(names) else self._files
        self._labels = dict(zip(self._files, unique, strict=True))
        if _holds_paths(schema, self._columns["image"], self._files[0]):
            try:
                names = [row[self._columns["image"]] for row in self._rows(0)]
            except ValueError as error:  # each row of the first group is corrupt
                stop_if_unreachable(error)
                return
            places = [[join(self._root, name)] for name in names if name]
            require_images(places, self.path, self._root)

    @classmethod
    def open(cls, path: str, images: str | None = None, size: int | None = None) -> "Parquet":  # noqa: ARG003
        """The Parquet files of a path, a pattern or a folder."""
        base, query = divide(path)
        files = [with_query(file, query) for file in files_of(base, "parquet")]
        return cls(files, path, images)

    def __getitem__(self, index: int) -> Record:
        group, row = self._part(index)
        key = self._key(group, row)
        where = f"{self._groups[group].file}: {key}"
        try:
            fields = self._rows(group)[row]
        except ValueError as error:
            raise CorruptSample(Cause.UNREADABLE_FILE, f"{where} ({error})") from error
        texts = read_captions(fields_of(fields, self._columns), where)
        if texts.silent:
            raise CorruptSample(Cause.MISSING_CAPTION, where)
        image = fields[self._columns["image"]]
        if isinstance(image, dict):
            image = image.get("bytes") or image.get("path")
        if not image:
            raise CorruptSample(Cause.MISSING_IMAGE, where)
        if not isinstance(image, bytes):
            image = read_image([join(self._root, str(image))], where)
        return described(texts, key, image)

    def _key(self, group: int, row: int) -> str:
        return f"{self._labels[self._groups[group].file]}:{self._groups[group].first + row}"

    def _rows(self, group: int) -> list[dict[str, Any]]:
        """The needed columns of one row group; the latest groups are cached."""
        return _read_cached(self._groups[group], (*self._columns.values(), *self._further))

    def keys(self) -> Iterable[str]:
        for number, group in enumerate(self._groups):
            yield from (self._key(number, row) for row in range(group.rows))

    def fingerprint(self) -> str:
        """sha256 over keys and texts, read without the images; their sizes do not count."""
        wanted = [name for role, name in self._columns.items() if role != "image"]
        wanted += [name for name in self._further if name not in SPOTS]
        parts: list[str | int] = list(self.keys())
        for group in self._groups:
            try:
                for fields in _read(group, wanted):
                    with contextlib.suppress(CorruptSample):
                        parts += text_parts(read_captions(fields_of(fields, self._columns), self.path))
            except ValueError as error:
                stop_if_unreachable(error)
                parts.append(Cause.UNREADABLE_FILE)
        return digest(parts)


def _sizes(file: Any) -> tuple[Any, list[int]]:
    """The schema of pyarrow and the number of rows of each group."""
    sizes = [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]
    if min(sizes, default=0) < 0 or sum(sizes) != file.metadata.num_rows:
        raise ValueError(f"its groups have {sizes} rows of {file.metadata.num_rows}")
    return file.schema_arrow, sizes


def _read(group: _Group, columns: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of a group. Raises ValueError."""
    # without threads: pyarrow's pool does not survive a fork
    own = {"columns": list(columns), "use_threads": False}
    rows = _opened(group.file, lambda file: file.read_row_group(group.number, **own).to_pylist())
    if len(rows) != group.rows:
        raise ValueError(f"{len(rows)} rows in place of {group.rows}")
    return cast(list[dict[str, Any]], rows)


_read_cached = lru_cache(maxsize=CACHED_GROUPS)(_read)


def _opened(file: str, read: Callable[[Any], Any]) -> Any:
    """The result of `read` for pyarrow's ParquetFile. Raises ValueError in one line."""
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise data_error(f"{file} needs pyarrow: pip install 'grainline[data]'") from error
    try:
        with open_regular(file) as plain, ParquetFile(plain, pre_buffer=True) as opened:
            return read(opened)
    except Exception as error:  # damage makes pyarrow raise nearly everything
        stop_if_unreachable(error)
        lines = str(getattr(error, "strerror", None) or error).splitlines()
        raise data_error(f"{file} cannot be read as parquet ({(*lines, type(error).__name__)[0]})") from error


def _holds_paths(schema: Any, column: str, file: str) -> bool:
    """Whether the images are paths. Raises UserError unless they are paths, bytes or {bytes, path}."""
    import pyarrow

    kind = schema.field(column).type
    if str(kind) in ("string", "large_string", "string_view"):
        return True
    names = [kind.field(n).name for n in range(kind.num_fields)] if pyarrow.types.is_struct(kind) else []
    if not (str(kind).endswith("binary") or "bytes" in names or "path" in names):
        raise data_error(f"{file} has {kind} in its image column {column}, not bytes or paths")
    return False
