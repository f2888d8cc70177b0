"""A folder with one subfolder for each class, for classification: `classes:DIR`.

    photos/great_white_shark/a.jpg      caption "great white shark"
    photos/great_white_shark/x/b.jpg    the same: the folder below DIR decides

The caption of a picture is the name of its folder, with blanks for underscores. Texts beside the pictures are
not read.
"""

import os
from collections.abc import Iterable

from grainline.data.record import Record
from grainline.data.sources.common import (
    IMAGE_SUFFIXES,
    FileSource,
    digest,
    name_and_size,
    read_picture,
    some,
)
from grainline.data.sources.folder import files_below, suffix
from grainline.data.sources.plain import HELP
from grainline.errors import UserError


class Classes(FileSource):
    """The pictures in the subfolders of a folder. `remarks` names those that lie in none."""

    def __init__(self, path: str) -> None:
        self.path = path
        found = sorted(name for name in files_below(path) if suffix(name) in IMAGE_SUFFIXES)
        self._names = [name for name in found if os.path.dirname(name)]
        if not self._names:
            raise UserError(
                f"{path} holds no pictures ({', '.join(IMAGE_SUFFIXES)}) in subfolders, of which each is a"
                f" class, and {len(found)} beside them; {HELP}"
            )
        loose = [name for name in found if not os.path.dirname(name)]
        self.remarks = (f"{len(loose)} pictures lie in no subfolder: {some(loose)}",) if loose else ()

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> Record:
        name = self._names[index]
        path = os.path.join(self.path, name)
        return Record(name, read_picture([path], path), (label(name),))

    def keys(self) -> Iterable[str]:
        """The paths of the pictures below the folder."""
        return iter(self._names)

    def fingerprint(self) -> str:
        """sha256 over names and sizes of the pictures; the names hold the classes."""
        return digest(part for name in self._names for part in name_and_size(self.path, name))


def label(name: str) -> str:
    """The class of a picture by its path below the folder.

    >>> label(os.path.join("great_white_shark", "x", "b.jpg"))
    'great white shark'
    """
    return " ".join(name.split(os.sep)[0].replace("_", " ").split())
