"""A folder of images, subfolders included, each with its texts in a file of the same name beside it.

    cats/a.jpg   cats/a.txt    one caption per line that is not empty
    cats/b.png   cats/b.json   the fields of grainline.data.formats.common; its texts win if both are there

Keys are the paths of the images below the folder, in sorted order. Hidden files and folders are left alone.
Folders of thumbnails are left out, and what fits a pattern of `DIR?exclude=private,*-copy.jpg`.
A bare folder holds images without any text beside them: there is nothing to train on, but much to encode.
"""

import os
import re
from collections.abc import Iterable, Sequence
from fnmatch import translate
from functools import cache

from grainline.data.formats.common import (
    IMAGE_SUFFIXES,
    FileSource,
    described,
    digest,
    expand,
    name_and_size,
    name_of,
    read_image,
    split_query,
    text_parts,
    texts_beside,
)
from grainline.data.formats.parsed import data_error
from grainline.data.formats.storage import Range, fetch, is_folder, is_remote, paths_below
from grainline.data.record import Cause, CorruptSample, Record
from grainline.errors import amount, some

THUMBNAILS = ("@eaDir", "__MACOSX", "*.lrdata")  # folders of Synology, macOS and Lightroom


class Folder(FileSource):
    """The images below a folder. `remarks` names texts that have no image."""

    _beside: frozenset[str]  # names of the texts

    def __init__(self, path: str, *, allow_bare: bool = False) -> None:
        """allow_bare: an image without a text is a record without captions; otherwise it is corrupt"""
        files = self._files(path)
        path, self.allow_bare = self.path, allow_bare
        self._names = [name for name in files if suffix(name) in IMAGE_SUFFIXES]
        if not self._names:
            kinds = some(sorted({suffix(name) or "without a suffix" for name in files}), 8)
            contents = f"{len(files)} files of the kinds {kinds}" if files else "nothing"
            raise data_error(f"{path} holds no images, no tars and no parquet files, but {contents}")
        stems = {os.path.splitext(name)[0] for name in self._names}
        texts = [name for name in files if suffix(name) in ("json", "txt")]
        alone = [name for name in texts if os.path.splitext(name)[0] not in stems]
        if len(alone) == len(texts) and not allow_bare:
            raise data_error(f"{path} holds {len(self._names)} images without captions (NAME.txt, .json)")
        self.remarks += (f"{len(alone)} texts have no image: {some(alone)}",) if alone else ()

    def _files(self, path: str) -> list[str]:
        """The files of `DIR?exclude=PATTERNS`."""
        self.path, options = split_query(path, ("exclude",))
        below = files_below(self.path)
        self._beside = frozenset(name for name in below if suffix(name) in ("json", "txt"))
        files, self.remarks = without(below, options.get("exclude", "").split(","))
        return files

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> Record:
        name = self._names[index]
        texts = self._texts(name)
        path = os.path.join(self.path, name)
        if texts.silent and not self.allow_bare:
            raise CorruptSample(Cause.MISSING_CAPTION, path)
        image = read_image([path], path)
        return Record(name, image, ()) if texts.silent else described(texts, name, image)

    def _texts(self, name: str) -> Record:
        def read(kind: str) -> bytes | None:
            """The bytes of STEM.kind or STEM.KIND; None if neither is there. Raises CorruptSample."""
            try:
                return read_image(self._texts_of(name, kind) or [""], "")
            except CorruptSample as error:
                if error.cause == Cause.MISSING_IMAGE:
                    return None
                raise

        return texts_beside(os.path.join(self.path, os.path.splitext(name)[0]), read, lines=True)

    def _texts_of(self, name: str, *kinds: str) -> list[str]:
        """The paths of the texts of an image."""
        stem = os.path.splitext(name)[0]
        names = (f"{stem}.{one}" for kind in kinds for one in (kind, kind.upper()))
        return [os.path.join(self.path, one) for one in names if one in self._beside]

    def prefetch(self, indices: Sequence[int]) -> None:
        if not is_remote(self.path):
            return
        names = [self._names[i] for i in indices]
        images = (os.path.join(self.path, name) for name in names)
        texts = (path for name in names for path in self._texts_of(name, "json", "txt"))
        fetch(Range(path) for path in (*images, *texts))

    def keys(self) -> Iterable[str]:
        return iter(self._names)

    def fingerprint(self) -> str:
        """sha256 over names and sizes of the images, and their texts; reads every text file."""
        parts: list[str | int] = []
        for name in self._names:
            parts += name_and_size(self.path, name)
            try:
                parts += text_parts(self._texts(name))
            except CorruptSample as error:
                parts.append(error.cause)
        return digest(parts)


def suffix(name: str) -> str:
    """The lower-case suffix without its dot, of a path or a URL."""
    return os.path.splitext(name_of(name))[1][1:].lower()


def files_below(path: str) -> list[str]:
    """Paths of all files below a folder, relative to it, sorted; no hidden ones. Raises UserError."""
    try:
        return paths_below(path)
    except OSError as error:
        raise data_error(f"{error.filename} cannot be read ({error.strerror}): leave it out") from None


def without(names: Sequence[str], exclude: Sequence[str] = ()) -> tuple[list[str], tuple[str, ...]]:
    """The paths that are in no folder of thumbnails and fit no pattern of the shell; a remark on the others.

    A pattern is compared with the path, with its name, and with the folders above in the same way.

    >>> without(["a.jpg", "b/@eaDir/a.jpg", "b/c/d.jpg"], ["b/c"])
    (['a.jpg'], ('2 files left out, of thumbnails or by exclude: b/@eaDir/a.jpg, b/c/d.jpg',))
    """
    fits = re.compile("|".join(map(translate, filter(None, (*THUMBNAILS, *exclude))))).match

    @cache
    def out(path: str) -> bool:
        folder, name = os.path.split(path)
        return bool(fits(name) or fits(path.replace(os.sep, "/")) or (folder and out(folder)))

    left = [name for name in names if out(name)]
    remark = f"{amount(len(left), 'file')} left out, of thumbnails or by exclude: {some(left)}"
    return [name for name in names if not out(name)], (remark,) if left else ()


def files_of(path: str, kind: str) -> list[str]:
    """The files of a kind that a path, a pattern or a folder stands for. Raises UserError."""
    if is_folder(path):
        files = [os.path.join(path, name) for name in files_below(path) if suffix(name) == kind]
        if not files:
            raise data_error(f"{path} holds no .{kind} files")
        return files
    files = expand(path)
    others = [name for name in files if suffix(name) != kind]
    if len(files) > 1 and others:
        raise data_error(f"{path} stands for {some(others)} too, which is no .{kind}")
    return files


class Classes(Folder):
    """`classes:DIR`: a folder with one subfolder of images for each class, for classification.

    The caption is the name of the folder below DIR: "great white shark" for great_white_shark/x/b.jpg. Texts
    beside the images are not read. `remarks` names images that lie in no subfolder.
    """

    def __init__(self, path: str) -> None:
        images = [name for name in self._files(path) if suffix(name) in IMAGE_SUFFIXES]
        self._names = [name for name in images if os.path.dirname(name)]
        if not self._names:
            raise data_error(f"{path} holds no images in subfolders, and {len(images)} beside them")
        loose = [name for name in images if not os.path.dirname(name)]
        self.remarks += (f"{len(loose)} images lie in no subfolder: {some(loose)}",) if loose else ()

    def __getitem__(self, index: int) -> Record:
        name = self._names[index]
        path = os.path.join(self.path, name)
        return Record(name, read_image([path], path), (label(name),))

    def fingerprint(self) -> str:
        """sha256 over names, which contain the classes, and sizes of the images."""
        return digest(part for name in self._names for part in name_and_size(self.path, name))


def label(name: str) -> str:
    """The class of an image by its path below the folder."""
    return " ".join(name.split(os.sep)[0].replace("_", " ").split())
