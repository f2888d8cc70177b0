"""Build an index and keep it up to date: build, add, remove, refresh.

All are one update: skip files whose size and time have not changed, read and hash the others, and encode only
bytes that the index does not hold. Every CHUNK images are committed, so an interrupted update continues when
the same command is run again.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from grainline.data.descriptions import LONG_CAPTIONS, Descriptions, require_fit
from grainline.data.record import CorruptSample
from grainline.errors import UserError
from grainline.files import WRITE_ERRORS, one_writer, temporary_path
from grainline.index.calibration_texts import (
    encode_calibration,
    gather_texts,
    with_image_scores,
    write_calibration,
)
from grainline.index.image_files import (
    ImageFile,
    expand_paths,
    images_below,
    paths_below,
    read_image,
    relative,
    root_of,
    stat_image,
)
from grainline.index.reader import model_id_of, model_of
from grainline.index.store import (
    CALIBRATION,
    MANIFEST,
    OURS,
    CorruptImage,
    Manifest,
    ModelId,
    cannot_write,
    read_manifest,
    write_manifest,
)
from grainline.index.writer import CHUNK, Change, NewImage, Writer, square
from grainline.model import Model, load

NAMED = 3
Progress = Callable[[int, int], None]  # images done, images in all


class Report(NamedTuple):
    """The number of images of each outcome of an update."""

    added: int = 0
    changed: int = 0  # other bytes under a known path
    unchanged: int = 0
    removed: int = 0
    encoded: int = 0  # of the added and changed ones; the others have bytes that were known
    corrupt: Mapping[str, int] = MappingProxyType({})  # cause -> images that are not in the index for it
    corrupt_first: tuple[str, ...] = ()
    images: int = 0  # in the index now


class Update:
    """An update of an index from the files below its root."""

    def __init__(
        self, writer: Writer, root: Path, progress: Progress | None, descriptions: Descriptions | None = None
    ) -> None:
        """told  the descriptions of the images, for a model that reads them"""
        self.writer, self.root, self.progress, self.descriptions = writer, root, progress, descriptions
        self.counts: Counter[str] = Counter()
        self.failed: list[tuple[str, str]] = []  # cause, text

    def all_images(self, full: bool) -> Report:
        """Update from all images below the root; rows without a file are removed."""
        left_out = set(self.writer.manifest.excluded)
        paths = [path for path in images_below(self.root) if path not in left_out]
        here = set(paths)
        removed = [path for path in self.writer.rows if path not in here]
        stale = [one.path for one in self.writer.manifest.corrupt if one.path not in here]
        if removed or stale:
            self.writer.commit(Change(removed=sorted({*removed, *stale})))
        self.counts["removed"] += len(removed)
        return self.images(paths, full)

    def images(self, paths: Sequence[str], full: bool) -> Report:
        """Update from the images at these paths."""
        todo = [file for path in paths if (file := self._needs_reading(path, full)) is not None]
        done = len(paths) - len(todo)
        for start in range(0, len(todo), self.writer.chunk):
            chunk = todo[start : start + self.writer.chunk]
            self._commit(chunk)
            if self.progress is not None:
                self.progress(done + start + len(chunk), len(paths))
        self.writer.finish()
        return Report(
            **self.counts,
            corrupt=dict(Counter(cause for cause, _ in self.failed)),
            corrupt_first=tuple(text for _, text in self.failed[:NAMED]),
            images=len(self.writer.rows),
        )

    def _needs_reading(self, path: str, full: bool) -> ImageFile | None:
        """The file, if it has to be read."""
        try:
            file = stat_image(self.root, path)
        except CorruptSample as error:
            self._fail(error.cause, path)  # a row that it may have stays: the disk may come back
            return None
        row, corrupt = self.writer.row(path), self.writer.corrupt_image(path)
        text = None if self.descriptions is None else self.descriptions.get(path)
        if row is not None and row.description != text:
            return file
        if full or file not in [ImageFile(path, one.size, one.mtime_ns) for one in (row, corrupt) if one]:
            return file
        if corrupt is not None:
            self._fail(corrupt.cause, path)
        else:
            self.counts["unchanged"] += 1
        return None

    def _commit(self, part: Sequence[ImageFile]) -> None:
        """Read files and commit their new rows and corrupt images."""
        fresh: list[NewImage] = []
        corrupt: list[CorruptImage] = []
        for file in part:
            try:
                one = self._fresh(file)
            except CorruptSample as error:
                self._fail(error.cause, file.path)
                continue
            if isinstance(one, CorruptImage):
                self._fail(one.cause, one.path)
                corrupt.append(one)
            elif one is not None:
                fresh.append(one)
        self.counts["encoded"] += len({one.row.content for one in fresh if one.square is not None})
        if fresh or corrupt:
            self.writer.commit(Change(fresh, [one.path for one in corrupt], corrupt))

    def _fresh(self, file: ImageFile) -> NewImage | CorruptImage | None:
        """The new row or corrupt image of a file; None if its content has not changed.

        Raises CorruptSample where it cannot be read, and UserError where an image lacks its description.
        """
        new = read_image(self.root, file)
        text = None if self.descriptions is None else self.descriptions.get(file.path)
        new_row = new.row._replace(description=text)
        row = self.writer.row(file.path)
        if row is not None and row.content == new_row.content:
            self.counts["unchanged"] += 1
            return None
        known = new_row.content in self.writer.row_of_content
        try:
            cropped = None if known else square(self.writer.model, new)
        except CorruptSample as error:
            return CorruptImage(file.path, error.cause, new_row.sha256, file.size, file.mtime_ns)
        if self.descriptions is not None:
            self.descriptions.require(file.path)  # a corrupt image needs none
        self.counts["added" if row is None else "changed"] += 1
        return NewImage(new_row, cropped)

    def _fail(self, cause: str, path: str) -> None:
        self.failed.append((cause, f"{cause}: {path}"))


def build(
    images: str | Path,
    out: str | Path,
    *,
    model: Model | str,
    calibration_texts: str | None = None,
    descriptions: Sequence[str] = (),
    progress: Progress | None = None,
    chunk: int = CHUNK,
) -> Report:
    """Index all images below a folder. Given again, it goes on where it was interrupted.

    null   a source with captions, or a .txt file with one text a line, of texts that are like the queries and
           speak of other images; drawn scenes if None
    descriptions  files of `grainline data describe` for a method that reads them; keys are paths below the
                  folder
    """
    root, folder = root_of(images), Path(out)
    if not images_below(root):
        raise UserError(f"{images} holds no images; name the folder that the images lie in")
    loaded = load(model) if isinstance(model, str) else model
    _prepare_folder(folder)
    with one_writer(folder, f"index {folder}"):
        if not (folder / MANIFEST).is_file():
            _create(
                folder,
                loaded,
                model_id_of(loaded, model if isinstance(model, str) else ""),
                str(root),
                calibration_texts,
            )
        manifest = read_manifest(folder)
        if Path(manifest.root) != root:
            raise UserError(f"{folder} is an index of {manifest.root}, not of {root}; choose another --out")
        model_of(folder, manifest, loaded)
        writer = Writer(folder, manifest, loaded, chunk)
        return Update(writer, root, progress, _open_descriptions(writer, descriptions)).all_images(full=False)


def add(
    index: str | Path,
    paths: Sequence[str | Path],
    *,
    model: Model | str | None = None,
    descriptions: Sequence[str] = (),
    progress: Progress | None = None,
    chunk: int = CHUNK,
) -> Report:
    """Add images, or folders of images, below the root of the index."""
    folder = Path(index)
    with one_writer(_require_index(folder), f"index {folder}"):
        manifest = read_manifest(folder)
        root = root_of(manifest.root)
        images = expand_paths(root, paths)
        writer = Writer(folder, manifest, model_of(folder, manifest, model), chunk)
        again = set(images) & set(manifest.excluded)
        if again:
            writer.put(manifest._replace(excluded=tuple(p for p in manifest.excluded if p not in again)))
        return Update(writer, root, progress, _open_descriptions(writer, descriptions)).images(
            images, full=False
        )


def remove(index: str | Path, paths: Sequence[str | Path]) -> Report:
    """Take images, or folders of them, out of the index, and leave them out of every later refresh.

    Files are not touched. Only `add` brings them back. What was removed before may be named again, so that a
    command that was killed can be repeated.
    """
    folder = Path(index)
    with one_writer(_require_index(folder), f"index {folder}"):
        manifest = read_manifest(folder)
        root = Path(manifest.root)
        writer = Writer(folder, manifest)
        candidates = sorted({*writer.rows, *(one.path for one in manifest.corrupt), *manifest.excluded})
        names = [relative(root, path) for path in paths]
        for name in names:
            if not paths_below(candidates, [name]):
                raise UserError(f"{name} is not in index {folder}; name images or folders below {root}")
        removed = paths_below(candidates, names)
        number = sum(path in writer.rows for path in removed)
        writer.commit(Change(removed=removed, excluded=removed))
        writer.finish()
        return Report(removed=number, images=len(writer.rows))


def refresh(
    index: str | Path,
    *,
    model: Model | str | None = None,
    full: bool = False,
    descriptions: Sequence[str] = (),
    progress: Progress | None = None,
    chunk: int = CHUNK,
) -> Report:
    """Bring the index up to date with its folder: what is new, changed or gone.

    full          read and hash every image, instead of only those whose size or time is another
    descriptions  files to read from now on; () reads those that were named last. An image with another
                  description has changed.
    """
    folder = Path(index)
    with one_writer(_require_index(folder), f"index {folder}"):
        manifest = read_manifest(folder)
        root = root_of(manifest.root)
        writer = Writer(folder, manifest, model_of(folder, manifest, model), chunk)
        return Update(writer, root, progress, _open_descriptions(writer, descriptions)).all_images(full=full)


def _create(folder: Path, model: Model, model_id: ModelId, root: str, source: str | None) -> None:
    """An index without images."""
    texts = gather_texts(source)
    encoded = encode_calibration(model, texts)
    texts = with_image_scores(model, texts, encoded)
    try:
        part = write_calibration(folder / CALIBRATION / f"{0:08d}", texts, encoded)
        write_manifest(folder, Manifest(model_id, root, part))
    except WRITE_ERRORS as error:
        raise cannot_write(folder, error) from None


def _open_descriptions(writer: Writer, names: Sequence[str]) -> Descriptions | None:
    """The descriptions in these files, which the index remembers, or in those that it remembers."""
    model = writer.model
    if LONG_CAPTIONS in names:
        raise UserError(f"--descriptions {LONG_CAPTIONS}: images of a folder have no captions; name files")
    files = tuple(str(Path(name).resolve()) for name in names) or writer.manifest.descriptions
    descriptions = Descriptions(files) if files else None
    require_fit(model.description.method, model.method.reads_descriptions, descriptions, "--descriptions")
    if files != writer.manifest.descriptions:
        writer.put(writer.manifest._replace(descriptions=files))
    return descriptions


def _prepare_folder(folder: Path) -> None:
    """Make the folder, or take one that holds nothing of the user's."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        unknown = [
            path.name
            for path in folder.iterdir()
            if path.name not in (*OURS, temporary_path(folder / MANIFEST).name)
        ]
    except OSError as error:
        raise cannot_write(folder, error) from None
    if unknown and not (folder / MANIFEST).is_file():
        raise UserError(
            f"{folder} is not an empty folder (it holds {sorted(unknown)[0]}); choose another --out"
        )


def _require_index(folder: Path) -> Path:
    """The folder of an index. UserError if it is none, before a lock file is written there."""
    read_manifest(folder)
    return folder
