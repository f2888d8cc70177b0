"""Dense descriptions of images: one longer text for each image, independent of its captions.

A file is JSON Lines, as `grainline data describe` writes it: a header, then one line for each record of the
source, in its order:

    {"grainline": "descriptions 1", "source": "<fingerprint>", "by": {"model": "...", ...}}
    {"image_id": "a.jpg", "file": "photos", "text": "A dog ...", "model": "...", "revision": "...",
     "prompt": "...", "seed": 7, "n_tokens": 93, "hit_limit": false}
    {"record": 1, "skipped": "corrupt image", "where": "b.jpg"}

A line needs an image_id, the key of its image, and a text; the header may be left out.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from grainline.data.formats.joined import SourceWrapper
from grainline.data.formats.parsed import parse_json, strings, text_of
from grainline.data.formats.storage import read_plain
from grainline.data.record import Record, Source
from grainline.errors import UserError
from grainline.files import reason

FORMAT = "descriptions 1"
LONG_CAPTIONS = "long"  # in the place of files: the long caption of each record
AGAIN = "make it with `grainline data describe`"


class Described(NamedTuple):
    """An image with its description: one image for a method that reads descriptions."""

    image: Any  # a path, bytes or a PIL image
    text: str


class Descriptions:
    """The descriptions of images by the keys of their records, or the long captions of the records."""

    def __init__(self, names: Sequence[str]) -> None:
        """Read files, or take `long` alone. UserError for a damaged file, or two descriptions of an image."""
        self.names = tuple(names)
        self.own = LONG_CAPTIONS in names
        if self.own and len(names) > 1:
            raise UserError(f"descriptions are {LONG_CAPTIONS!r} or files, not both: {', '.join(names)}")
        self._texts: dict[str, str] = {}
        self.sha256: tuple[str, ...] = ()  # of each file
        for name in () if self.own else names:
            try:
                data = read_plain(name, 2**62)
            except OSError as error:
                why = reason(error)
                raise UserError(f"cannot read the descriptions in {name}: {why}; {AGAIN}") from None
            self.sha256 += (hashlib.sha256(data).hexdigest(),)
            for key, text in read(name, data).items():
                if key in self._texts:
                    raise UserError(f"two of {', '.join(names)} describe {key}: leave one of them out")
                self._texts[key] = text

    def __str__(self) -> str:
        if self.own:
            return "the long captions of the records"
        files = zip(self.names, self.sha256, strict=True)
        return ", ".join(f"{name} (sha256 {sha256[:16]})" for name, sha256 in files)

    def get(self, key: str) -> str | None:
        """The description of a key; None without one."""
        return self._texts.get(key)

    def of_file(self, path: str) -> str | None:
        """The description of an image file, by its path as it is written or by its name; None without one."""
        return self._texts.get(path, self._texts.get(Path(path).name))

    def require(self, key: str) -> str:
        """The description of a key. Raises UserError, which names the key, without one."""
        if key not in self._texts:
            raise UserError(f"{', '.join(self.names)}: no description of {key}; {AGAIN}")
        return self._texts[key]

    def of(self, record: Record) -> str:
        """The description of a record's image. Raises UserError, which names the image, without one."""
        if self.own:
            if record.long:
                return record.long
            raise UserError(f"{record.key} has no long caption to be its description: name a file, {AGAIN}")
        return self.require(record.key)


class WithDescriptions(SourceWrapper):
    """A source whose records carry their descriptions. Its fingerprint is that of the source alone."""

    def __init__(self, source: Source, descriptions: Descriptions) -> None:
        super().__init__(source)
        self.descriptions = descriptions

    def __getitem__(self, index: int) -> Record:
        record = self.source[index]
        return record._replace(dense=self.descriptions.of(record))


def require_fit(method: str, describes: bool, descriptions: Descriptions | None, option: str) -> None:
    """Raises UserError for a method that reads descriptions and has none, and for the opposite."""
    if describes and descriptions is None:
        how = f"name a file of `grainline data describe` with {option}, or {LONG_CAPTIONS}"
        raise UserError(f"{method} reads a description of each image: {how} for long captions")
    if descriptions is not None and not describes:
        raise UserError(f"{option} names descriptions, but {method} reads none: leave it out")


def read(path: str, data: bytes) -> dict[str, str]:
    """The texts of a file by the keys of their images. Raises UserError."""
    texts: dict[str, str] = {}
    numbers: dict[str, int] = {}
    for number, line in enumerate(data.split(b"\n"), 1):
        row = _row(path, number, line) if line.strip() else {}
        if number == 1 and row.get("grainline", FORMAT) != FORMAT:
            raise UserError(f"{path} holds {row['grainline']!r}, not {FORMAT!r}; {AGAIN}")
        if "skipped" in row or not row or (number == 1 and "grainline" in row):
            continue
        key, text = row.get("image_id"), next(iter(strings(row.get("text"))), "")
        if not isinstance(key, str) or not key:
            raise UserError(f"{path}: line {number} has no image_id, the key of its image; {AGAIN}")
        if not text:
            raise UserError(f"{path}: line {number} has no text for {key}; {AGAIN}")
        if key in texts:
            raise UserError(f"{path}: lines {numbers[key]} and {number} both describe {key}: drop one")
        texts[key], numbers[key] = text, number
    if not texts:
        raise UserError(f"{path} holds no description; {AGAIN}")
    return texts


def _row(path: str, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = parse_json(text_of(line))
    except ValueError as error:
        raise UserError(f"{path}: line {number} is not JSON ({error}); {AGAIN}") from None
    if not isinstance(row, dict):
        raise UserError(f"{path}: line {number} is no JSON object; {AGAIN}")
    return row
