"""Arrays on disk of which no byte is used before it was checked, page by page.

To compare all files of an index with their sha256 takes longer than to search it. So a sealed folder also
holds a crc32 of each PAGE bytes of its arrays ("pages" in state.json). A reader compares a page with it when
it first uses a byte of that page, once for each opening. A crc32 finds every flipped bit of a page and every
burst of up to 32 bits; of other damage it misses one page in 4 billion. The checksums themselves are part of
state.json, whose sha256 is in the manifest, and the manifest carries its own.
"""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grainline.files import PAGE, Corrupt, crc32
from grainline.index.folder import corrupt


class Column:
    """An array of a sealed folder, [R, ...]. Only `[]` and `whole` read it, and they check what they read."""

    def __init__(self, path: Path, sealed: Mapping[str, Any]) -> None:
        """
        path    INDEX/segments/00000003/vectors.npy, of the size that is sealed
        sealed  the body of the state.json beside it

        Raises Corrupt where there is no array, and UserError where the page with its shape is damaged.
        """
        self.path = path
        size = sealed["files"][path.name]["bytes"]
        self._sums = sealed["pages"][path.name]
        self._bytes = _mapped(path, size)
        self._unchecked = np.ones(-(-size // PAGE), bool)
        self._check(np.arange(1))
        try:
            start = io.BytesIO(self._bytes[:PAGE].tobytes())
            assert np.lib.format.read_magic(start) == (1, 0)
            self.shape, _, self.dtype = np.lib.format.read_array_header_1_0(start)
            self._first = start.tell()
            self._array = self._bytes[self._first :].view(self.dtype).reshape(self.shape)
        except (ValueError, AssertionError) as error:
            raise Corrupt(f"{path.name} holds no array ({error})") from None

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: Any) -> Any:
        """Some rows, by numbers, by a mask or as a slice, as numpy takes them. UserError for damage."""
        if self._unchecked.any():
            width = self._array.dtype.itemsize * int(np.prod(self.shape[1:]))
            first = self._first + np.atleast_1d(np.arange(len(self))[rows]) * width
            last = first + max(width - 1, 0)
            most = int((last // PAGE - first // PAGE).max(initial=0))
            pages = first[:, None] // PAGE + np.arange(most + 1)
            self._check(np.unique(np.minimum(pages, last[:, None] // PAGE)))
        return self._array[rows]

    def whole(self) -> np.ndarray:
        """All of it, memory-mapped. UserError for damage."""
        self._check(np.arange(len(self._unchecked)))
        return self._array

    def _check(self, pages: np.ndarray) -> None:
        width = len(crc32(b""))
        for page in pages[self._unchecked[pages]].tolist():
            start = page * PAGE
            piece = self._bytes[start : start + PAGE]
            if crc32(piece) != self._sums[page * width : (page + 1) * width]:
                place = "/".join(self.path.parts[-3:])
                end = start + len(piece) - 1
                raise corrupt(
                    self.path.parents[2],
                    f"{place} is not what was written, somewhere in bytes {start:,} to {end:,}",
                )
            self._unchecked[page] = False


def _mapped(path: Path, size: int) -> np.ndarray:
    """The bytes of a file. Raises Corrupt.

    Python's mmap keeps each file open, and an index of 100,000 images has a thousand of them; torch does not.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:  # names that torch does not take
        return np.memmap(path, np.uint8, mode="r")
    try:
        mapped: np.ndarray = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8).numpy()
    except RuntimeError as error:
        raise Corrupt(f"{path.name} cannot be read ({error})") from None
    mapped.flags.writeable = False
    return mapped
