"""Phrases of a file of JSON Lines, which `grainline data phrases` writes.

The first line is a header; then there is one line for each record of the source, in its order:

    {"grainline": "phrases 1", "provider": "rules 1", "source": "<fingerprint>"}
    {"record": 0, "key": "a", "texts": {"<digest>": [["noun", 0, 5], ["relation", 9, 20]]}}
    {"record": 1, "skipped": "missing-caption", "where": "b.json"}

A text is identified by its digest, so that a changed caption is noticed; the file does not hold the words.
Phrases are unfiltered.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any, get_args

import numpy as np

from grainline.data import lines
from grainline.data.phrases.patterns import Kind, Phrase
from grainline.errors import UserError

FORMAT = "phrases 1"
AGAIN = "make it again with `grainline data phrases`"
_DIGEST = re.compile(rb'"([0-9a-f]{32})"\s*:\s*\[')


def digest(text: str) -> str:
    """The id of a text: 32 hexadecimal digits of its sha256."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class StoredPhrases:
    """A provider that looks texts up. Opening it reads the file once; 16 bytes a text stay in memory."""

    def __init__(self, path: Path) -> None:
        """Raises UserError where the file cannot be read or is no file of phrases."""
        self.path = path
        self.name = str(read_header(path)["provider"])
        digests, offsets = [], []
        with path.open("rb") as file:
            offset = len(file.readline())
            for line in file:
                halves = [int(match[1][:16], 16) for match in _DIGEST.finditer(line)]
                digests += halves
                offsets += [offset] * len(halves)
                offset += len(line)
        order = np.argsort(np.array(digests, dtype=np.uint64), kind="stable")
        self.digests = np.array(digests, dtype=np.uint64)[order]  # [texts] sorted, the first half of each
        self.offsets = np.array(offsets, dtype=np.int64)[order]  # [texts] where its line begins

    def phrases(self, text: str) -> list[Phrase]:
        """The phrases of a text in the file. Raises UserError for a text that the file does not know."""
        name, excerpt = digest(text), repr(text if len(text) < 60 else text[:60] + "...")
        half = np.uint64(int(name[:16], 16))
        first, end = (int(np.searchsorted(self.digests, half, side)) for side in ("left", "right"))
        for offset in map(int, self.offsets[first:end]):
            what = f"the line at byte {offset}"
            with self.path.open("rb") as file:
                file.seek(offset)
                line = file.readline()
            try:
                texts = dict(json.loads(line)["texts"])
                if name not in texts:
                    continue
                what = f"the phrases of {excerpt}"
                phrases = [Phrase(kind, start, end) for kind, start, end in texts[name]]
                for kind, start, end in phrases:
                    what = f"the phrase {[kind, start, end]} of {excerpt}"
                    numbers = isinstance(start, int) and isinstance(end, int)
                    if kind not in get_args(Kind) or not numbers or not 0 <= start < end <= len(text):
                        raise ValueError
                return phrases
            except (ValueError, KeyError, TypeError):
                raise UserError(f"{self.path}: {what} cannot be read; {AGAIN}") from None
        raise UserError(f"{self.path} has no phrases of the text {excerpt}: the data has changed; {AGAIN}")


def read_header(path: Path) -> dict[str, Any]:
    """The first line of a file of phrases; UserError where there is none."""
    return lines.read_header(path, FORMAT, {"provider", "source"}, AGAIN)
