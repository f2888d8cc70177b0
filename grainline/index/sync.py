"""Build an index and keep it up to date: build, add, remove, refresh.

All are one update: skip files whose size and time have not changed, read and hash the others, and encode only
bytes that are not in the index. Every CHUNK images are committed, so an interrupted update continues when the
same command is run again.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from grainline.data.decode import now_decodable
from grainline.data.descriptions import LONG_CAPTIONS, Descriptions, require_fit
from grainline.data.formats.folder import without
from grainline.data.record import CorruptSample
from grainline.errors import UserError, checked, path_of
from grainline.files import LOCK, one_writer, temporary_path, writing
from grainline.hub import fingerprint
from grainline.index import store
from grainline.index.calibration import encode_calibration, gather_texts, write_calibration
from grainline.index.image_files import (
    expand_paths,
    images_below,
    paths_below,
    read_image,
    relative,
    root_of,
    stat_image,
)
from grainline.index.writer import CHUNK, NewImage, Writer, square
from grainline.loading import load
from grainline.model import Model
from grainline.progress import Progress


class Report(NamedTuple):
    """The number of images of each outcome of an update."""

    added: int = 0
    changed: int = 0  # other bytes or another description under a known path
    unchanged: int = 0
    removed: int = 0
    encoded: int = 0  # of the added and changed ones; the others have bytes that were known
    corrupt: Mapping[str, int] = MappingProxyType({})  # cause -> images that are not in the index for it
    corrupt_first: tuple[str, ...] = ()
    images: int = 0  # in the index now
    remarks: tuple[str, ...] = ()  # on images that are left out


@checked()
def build(
    images: str | Path,
    out: str | Path,
    *,
    model: Model | str,
    calibration_texts: str | None = None,
    descriptions: Sequence[str] = (),
    exclude: Sequence[str] = (),
    progress: Progress | None = None,
    chunk: int = CHUNK,
) -> Report:
    """Index all images below a folder. Given again, it goes on where it was interrupted.

    calibration_texts  texts like the queries, about other images: a source with captions, or a .txt file
                       with one text a line (default: built-in descriptions of everyday photographs, or of
                       drawn scenes for a model that was trained on these alone)
    descriptions       files of `grainline data describe` for a method that reads them; keys are paths below
                       the folder
    exclude            patterns of images and folders to leave out, now and in every refresh: private,
                       *-copy.jpg (default: those of the index)
    """
    root, folder = root_of(images), path_of(out, "the folder of the index")
    if not images_below(root, exclude)[0]:
        raise UserError(f"{images} holds no images; name the folder that the images lie in")
    path = model if isinstance(model, str) else ""
    model = load(model) if isinstance(model, str) else model
    _prepare_folder(folder)
    with one_writer(folder, f"index {folder}"):
        fresh = not (folder / store.MANIFEST).is_file()
        if fresh:
            path = str(Path(path).resolve()) if path and Path(path).exists() else path  # or a name of the hub
            model_id = store.ModelId(path, model.description.method, fingerprint(model))
            texts, encoded = encode_calibration(model, gather_texts(calibration_texts, model.run))
            with writing(folder, store.AGAIN):
                part = write_calibration(folder / store.CALIBRATION / f"{0:08d}", texts, encoded)
                store.write_manifest(folder, store.Manifest(model_id, str(root), part))
        manifest = store.read_manifest(folder)
        if Path(manifest.root) != root:
            raise UserError(f"{folder} is an index of {manifest.root}, not of {root}; choose another --out")
        writer = Writer(folder, manifest, model, chunk)
        if calibration_texts is not None and not fresh:
            known, texts = writer.calibration_texts, gather_texts(calibration_texts)
            if known.texts != texts.texts:
                other = f"for {texts.source} choose another --out"
                raise UserError(f"{folder} keeps its texts of {known.source}; {other}")
        if exclude and tuple(exclude) != manifest.exclude:
            writer.put(manifest._replace(exclude=tuple(exclude)))
        return Update(writer, descriptions, progress).all_images(full=False)


@checked()
def add(
    index: str | Path,
    paths: Sequence[str | Path],
    *,
    model: Model | str | None = None,
    descriptions: Sequence[str] = (),
    progress: Progress | None = None,
    chunk: int = CHUNK,
) -> Report:
    """Add images, or folders of images, below the root of the index.

    descriptions  as for `build`, to read from now on (default: those of the index)
    """
    with _open_writer(index, model, chunk) as writer:
        images, remarks = without(expand_paths(root_of(writer.manifest.root), paths), writer.manifest.exclude)
        update, manifest = Update(writer, descriptions, progress), writer.manifest
        excluded = tuple(path for path in manifest.excluded if path not in set(images))
        if excluded != manifest.excluded:
            writer.put(manifest._replace(excluded=excluded))
        return update.images(images, False, remarks)


@checked()
def remove(index: str | Path, paths: Sequence[str | Path]) -> Report:
    """Remove images, or folders of them, from the index, and exclude them from every later refresh.

    Files are not touched. Only `add` brings them back. What was removed before may be named again, so that a
    command that was killed can be repeated.
    """
    with _open_writer(index) as writer:
        manifest, root = writer.manifest, Path(writer.manifest.root)
        candidates = sorted({*writer.rows, *writer.corrupt, *manifest.excluded})
        names = [relative(root, path) for path in paths]
        for name in names:
            if not paths_below(candidates, [name]):
                raise UserError(f"{name} is not in index {writer.folder}; name what lies below {root}")
        removed = paths_below(candidates, names)
        number = sum(path in writer.rows for path in removed)
        writer.commit(removed=removed, excluded=removed)
        writer.finish()
        return Report(removed=number, images=len(writer.rows))


@checked()
def refresh(
    index: str | Path,
    *,
    model: Model | str | None = None,
    full: bool = False,
    descriptions: Sequence[str] = (),
    progress: Progress | None = None,
    chunk: int = CHUNK,
) -> Report:
    """Bring the index up to date with its folder: encode new and changed images, remove those without a file.

    full          read and hash every image, instead of only those whose size or time is another
    descriptions  as for `build`, to read from now on (default: those of the index); an image with another
                  description has changed
    """
    with _open_writer(index, model, chunk) as writer:
        return Update(writer, descriptions, progress).all_images(full)


class Update:
    """An update of an index from the files below its root."""

    def __init__(self, writer: Writer, descriptions: Sequence[str], progress: Progress | None) -> None:
        """descriptions: files, which the index remembers; () for those that it remembers"""
        self.writer, self.root, self.progress = writer, root_of(writer.manifest.root), progress
        self.counts: Counter[str] = Counter()
        self.failed: list[tuple[str, str]] = []  # cause, path
        manifest = writer.manifest
        if LONG_CAPTIONS in descriptions:
            raise UserError(f"--descriptions {LONG_CAPTIONS}: a folder has no captions; name files")
        files = tuple(str(Path(name).resolve()) for name in descriptions) or manifest.descriptions
        self.descriptions = Descriptions(files) if files else None
        if files != manifest.descriptions or not manifest.segments:  # only then, as it loads the model
            reads = writer.model.method.reads_descriptions
            require_fit(manifest.model_id.method, reads, self.descriptions, "--descriptions")
        if files != manifest.descriptions:
            writer.put(manifest._replace(descriptions=files))

    def all_images(self, full: bool) -> Report:
        """Update from all images below the root; rows without a file are removed."""
        excluded = set(self.writer.manifest.excluded)
        images, remarks = images_below(self.root, self.writer.manifest.exclude)
        paths = [path for path in images if path not in excluded]
        removed = self.writer.rows.keys() - paths
        stale = self.writer.corrupt.keys() - paths
        if removed or stale:
            self.writer.commit(removed=sorted(removed | stale))
        self.counts["removed"] += len(removed)
        return self.images(paths, full, remarks)

    def images(self, paths: Sequence[str], full: bool, remarks: tuple[str, ...] = ()) -> Report:
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
            corrupt_first=tuple(f"{cause}: {path}" for cause, path in self.failed[:3]),
            images=len(self.writer.rows),
            remarks=remarks,
        )

    def _needs_reading(self, path: str, full: bool) -> store.Row | None:
        """The row of a file that has to be read, else None."""
        try:
            file = stat_image(self.root, path)
        except CorruptSample as error:
            self.failed.append((error.cause, path))  # its row stays: the disk may come back
            return None
        if self.descriptions is not None:
            file = file._replace(description=self.descriptions.get(path))
        known = self.writer.row(path) or self.writer.corrupt.get(path)
        if full or known is None or (file.size, file.mtime_ns) != (known.size, known.mtime_ns):
            return file
        if not isinstance(known, store.CorruptImage):
            if known.description != file.description:
                return file
            self.counts["unchanged"] += 1
        elif now_decodable(known.cause):
            return file
        else:
            self.failed.append((known.cause, path))
        return None

    def _commit(self, files: Sequence[store.Row]) -> None:
        """Read files and commit their new rows and corrupt images."""
        new: list[NewImage] = []
        corrupt: list[store.CorruptImage] = []
        for file in files:
            try:
                row, data = read_image(self.root, file)
            except CorruptSample as error:
                self.failed.append((error.cause, file.path))
                continue
            old = self.writer.row(file.path)
            if old is not None and old.content == row.content:
                self.counts["unchanged"] += 1
                continue
            try:
                known = row.content in self.writer.row_of_content
                new.append(NewImage(row, None if known else square(self.writer.model, data, file.path)))
            except CorruptSample as error:
                self.failed.append((error.cause, file.path))
                corrupt.append(store.CorruptImage(row.path, error.cause, row.sha256, row.size, row.mtime_ns))
                continue
            if self.descriptions is not None:
                self.descriptions.require(file.path)  # a corrupt image needs none
            self.counts["added" if old is None else "changed"] += 1
        self.counts["encoded"] += len({one.row.content for one in new if one.square is not None})
        if new or corrupt:
            self.writer.commit(new, [one.path for one in corrupt], corrupt)


@contextmanager
def _open_writer(index: str | Path, model: Model | str | None = None, chunk: int = CHUNK) -> Iterator[Writer]:
    folder = path_of(index, "the folder of the index")
    store.read_manifest(folder)  # UserError where there is no index, before a lock file is written there
    with one_writer(folder, f"index {folder}"):
        yield Writer(folder, store.read_manifest(folder), model, chunk)


def _prepare_folder(folder: Path) -> None:
    """Make the folder. UserError where it holds files of the user."""
    own = {store.MANIFEST, store.SEGMENTS, store.CALIBRATION, store.ANN, LOCK}
    own.add(temporary_path(folder / store.MANIFEST).name)
    with writing(folder, store.AGAIN):
        folder.mkdir(parents=True, exist_ok=True)
        unknown = sorted(path.name for path in folder.iterdir() if path.name not in own)
    if unknown and not (folder / store.MANIFEST).is_file():
        raise UserError(f"{folder} is not an empty folder (it holds {unknown[0]}); choose another --out")
