"""Captions without images: `texts:FILE`, for methods that learn from texts alone.

FILE is JSON Lines or a JSON list whose rows have captions and perhaps a long text, or, with any other suffix,
plain text with one caption a line; a suffix `.gz` is unpacked. Each row is one record. Its image is a grey
square: training refuses such data for a method that reads images.
"""

import gzip
import os
import zlib
from collections.abc import Iterable

from PIL import Image

from grainline.data.formats.common import Captions, FileSource, digest, read_captions
from grainline.data.formats.joined import parts_of
from grainline.data.formats.plain import data_error, read_plain, read_text, text_of
from grainline.data.formats.table import Row, json_lines, json_or_rows, json_rows
from grainline.data.record import CORRUPT_ROW, MISSING_CAPTION, CorruptSample, Record, Source

SIDE = 8  # of the grey square, in pixels
COLUMNS = {
    "caption": ("captions", "caption", "text", "sentence", "sentences"),
    "long": ("long", "description"),
}


class TextsAlone(FileSource):
    """The rows of a file of texts. Key: the number of the row, from 1."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._rows = _rows(path)
        self.remarks = ("captions without images: a grey square stands for each",)
        if all(row.error or _captions(row, path).silent for row in self._rows):
            raise data_error(
                f"{path} has no text in any row; a row has one of {', '.join(COLUMNS['caption'])}"
            )

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Record:
        row = self._rows[index]
        where = f"{self.path}: row {row.number}"
        if row.error:
            raise CorruptSample(CORRUPT_ROW, f"{where} ({row.error})")
        captions = _captions(row, self.path)
        if captions.silent:
            raise CorruptSample(MISSING_CAPTION, where)
        square = Image.new("RGB", (SIDE, SIDE), (128,) * 3)
        return captions.record(str(row.number), b"")._replace(image=square)

    def keys(self) -> Iterable[str]:
        return (str(row.number) for row in self._rows)

    def fingerprint(self) -> str:
        """sha256 over the texts."""
        parts: list[str | int] = []
        for row in self._rows:
            parts += [row.number, *(() if row.error else _captions(row, self.path).texts)]
        return digest(parts)


def without_images(source: Source) -> str:
    """The path of the first part of a source without images; "" if all have images."""
    return next((part.path for part in parts_of(source) if isinstance(part, TextsAlone)), "")


def _rows(path: str) -> list[Row]:
    plain = path.removesuffix(".gz")
    text = _unpacked(path) if plain != path else read_text(path)
    if not text.strip():
        raise data_error(f"{path} is empty")
    kind = os.path.splitext(plain)[1].lower()
    if kind in (".jsonl", ".ndjson", ".jsonlines"):
        return json_lines(path, text)
    if kind == ".json":
        return json_rows(path, json_or_rows(path, text))
    lines = enumerate(text.split("\n"), 1)
    return [Row(number, {"caption": line}) for number, line in lines if line.strip()]


def _captions(row: Row, path: str) -> Captions:
    fields = {
        role: next((row.fields[x] for x in names if x in row.fields), None) for role, names in COLUMNS.items()
    }
    return read_captions(fields, f"{path}: row {row.number}")


def _unpacked(path: str) -> str:
    try:
        return text_of(gzip.decompress(read_plain(path, 2**62)))
    except OSError as error:
        raise data_error(f"{path} cannot be read ({error.strerror or error})") from error
    except (EOFError, zlib.error, ValueError) as error:
        raise data_error(f"{path} is no whole gzip file of UTF-8 text ({error})") from error
