"""Build an index and keep it up to date: build, add, remove, refresh.

All are one walk: look at the files, leave those whose size and time are as they were, read and hash the
others, and encode only bytes that the index does not know. Every CHUNK pictures are committed, so a walk that
was interrupted goes on where it stopped when the same command is given again.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from grainline.data.descriptions import OWN, Descriptions, require_fit
from grainline.data.record import Damaged
from grainline.errors import UserError
from grainline.files import WRITE_ERRORS, aside, one_writer
from grainline.index.calibration_texts import encode_null, gather_texts, with_own, write_null
from grainline.index.image_files import Found, chosen, covered, look, pictures_below, read, relative, root_of
from grainline.index.reader import mark_of, model_of
from grainline.index.store import (
    MANIFEST,
    NULLS,
    OURS,
    Manifest,
    ModelMark,
    Spoilt,
    cannot_write,
    read_manifest,
    write_manifest,
)
from grainline.index.writer import CHUNK, Change, Fresh, Writer, square
from grainline.model import Model, load

# One walk over picture files: which are new, changed, gone or damaged, committed chunk by chunk.


NAMED = 3
Progress = Callable[[int, int], None]  # pictures done, pictures in all


class Report(NamedTuple):
    """What a walk did, in pictures."""

    added: int = 0
    changed: int = 0  # other bytes under a known path
    unchanged: int = 0
    removed: int = 0
    encoded: int = 0  # of the added and changed ones; the others have bytes that were known
    damaged: Mapping[str, int] = MappingProxyType({})  # cause -> pictures that are not in the index for it
    damaged_first: tuple[str, ...] = ()
    pictures: int = 0  # in the index now


class Walk:
    """One walk over files of the root."""

    def __init__(
        self, writer: Writer, root: Path, progress: Progress | None, told: Descriptions | None = None
    ) -> None:
        """told  the descriptions of the pictures, for a model that reads them"""
        self.writer, self.root, self.progress, self.told = writer, root, progress, told
        self.counts: Counter[str] = Counter()
        self.failed: list[tuple[str, str]] = []  # cause, text

    def whole(self, full: bool) -> Report:
        """All pictures below the root; those that are gone leave the index."""
        left_out = set(self.writer.manifest.left_out)
        wanted = [path for path in pictures_below(self.root) if path not in left_out]
        here = set(wanted)
        gone = [path for path in self.writer.rows if path not in here]
        stale = [one.path for one in self.writer.manifest.damaged if one.path not in here]
        if gone or stale:
            self.writer.commit(Change(gone=sorted({*gone, *stale})))
        self.counts["removed"] += len(gone)
        return self.some(wanted, full)

    def some(self, wanted: Sequence[str], full: bool) -> Report:
        """The pictures at these paths."""
        todo = [found for path in wanted if (found := self._look(path, full)) is not None]
        done = len(wanted) - len(todo)
        for start in range(0, len(todo), self.writer.chunk):
            part = todo[start : start + self.writer.chunk]
            self._take_in(part)
            if self.progress is not None:
                self.progress(done + start + len(part), len(wanted))
        self.writer.finish()
        return Report(
            **self.counts,
            damaged=dict(Counter(cause for cause, _ in self.failed)),
            damaged_first=tuple(text for _, text in self.failed[:NAMED]),
            pictures=len(self.writer.rows),
        )

    def _look(self, path: str, full: bool) -> Found | None:
        """The file, if it has to be read."""
        try:
            found = look(self.root, path)
        except Damaged as error:
            self._fail(error.cause, path)  # a row that it may have stays: the disk may come back
            return None
        row, spoilt = self.writer.row(path), self.writer.spoilt(path)
        if row is not None and self.told is not None and row.description != self.told.get(path):
            return found
        if full or found not in [Found(path, one.size, one.mtime_ns) for one in (row, spoilt) if one]:
            return found
        if spoilt is not None:
            self._fail(spoilt.cause, path)
        else:
            self.counts["unchanged"] += 1
        return None

    def _take_in(self, part: Sequence[Found]) -> None:
        """Read some files and commit what has become of them."""
        fresh: list[Fresh] = []
        damaged: list[Spoilt] = []
        for found in part:
            try:
                one = self._fresh(found)
            except Damaged as error:
                self._fail(error.cause, found.path)
                continue
            if isinstance(one, Spoilt):
                self._fail(one.cause, one.path)
                damaged.append(one)
            elif one is not None:
                fresh.append(one)
        self.counts["encoded"] += len({one.row.content for one in fresh if one.square is not None})
        if fresh or damaged:
            self.writer.commit(Change(fresh, [one.path for one in damaged], damaged))

    def _fresh(self, found: Found) -> Fresh | Spoilt | None:
        """What a file has become: a row to write, damage, or None where its content is that of its row.

        Raises Damaged where it cannot be read, and UserError where a picture lacks its description.
        """
        new = read(self.root, found)
        text = None if self.told is None else self.told.get(found.path)
        mine = new.row._replace(description=text)
        row = self.writer.row(found.path)
        if row is not None and row.content == mine.content:
            self.counts["unchanged"] += 1
            return None
        known = mine.content in self.writer.known
        try:
            seen = None if known else square(self.writer.model, new)
        except Damaged as error:
            return Spoilt(found.path, error.cause, mine.sha256, found.size, found.mtime_ns)
        if self.told is not None:
            self.told.require(found.path)  # a damaged picture needs none
        self.counts["added" if row is None else "changed"] += 1
        return Fresh(mine, seen)

    def _fail(self, cause: str, path: str) -> None:
        self.failed.append((cause, f"{cause}: {path}"))


def build(
    images: str | Path,
    out: str | Path,
    *,
    model: Model | str,
    null: str | None = None,
    descriptions: Sequence[str] = (),
    progress: Progress | None = None,
    chunk: int = CHUNK,
) -> Report:
    """Index all pictures below a folder. Given again, it goes on where it was interrupted.

    null   a source with captions, or a .txt file with one text a line, of texts that are like the queries and
           speak of other pictures; drawn scenes if None
    descriptions  files of `grainline data describe` for a method that reads them; keys are paths below the
                  folder
    """
    root, folder = root_of(images), Path(out)
    if not pictures_below(root):
        raise UserError(f"{images} holds no pictures; name the folder that the pictures lie in")
    loaded = load(model) if isinstance(model, str) else model
    _ours(folder)
    with one_writer(folder, f"index {folder}"):
        if not (folder / MANIFEST).is_file():
            _begin(folder, loaded, mark_of(loaded, model if isinstance(model, str) else ""), str(root), null)
        manifest = read_manifest(folder)
        if Path(manifest.root) != root:
            raise UserError(f"{folder} is an index of {manifest.root}, not of {root}; choose another --out")
        model_of(folder, manifest, loaded)
        writer = Writer(folder, manifest, loaded, chunk)
        return Walk(writer, root, progress, _told(writer, descriptions)).whole(full=False)


def add(
    index: str | Path,
    paths: Sequence[str | Path],
    *,
    model: Model | str | None = None,
    descriptions: Sequence[str] = (),
    progress: Progress | None = None,
    chunk: int = CHUNK,
) -> Report:
    """Take in pictures, or folders of pictures, below the root of the index."""
    folder = Path(index)
    with one_writer(_there(folder), f"index {folder}"):
        manifest = read_manifest(folder)
        root = root_of(manifest.root)
        wanted = chosen(root, paths)
        writer = Writer(folder, manifest, model_of(folder, manifest, model), chunk)
        again = set(wanted) & set(manifest.left_out)
        if again:
            writer.put(manifest._replace(left_out=tuple(p for p in manifest.left_out if p not in again)))
        return Walk(writer, root, progress, _told(writer, descriptions)).some(wanted, full=False)


def remove(index: str | Path, paths: Sequence[str | Path]) -> Report:
    """Take pictures, or folders of them, out of the index, and leave them out of every later refresh.

    Files are not touched. Only `add` brings them back. What was removed before may be named again, so that a
    command that was killed can be repeated.
    """
    folder = Path(index)
    with one_writer(_there(folder), f"index {folder}"):
        manifest = read_manifest(folder)
        root = Path(manifest.root)
        writer = Writer(folder, manifest)
        known = sorted({*writer.rows, *(one.path for one in manifest.damaged), *manifest.left_out})
        wanted = [relative(root, path) for path in paths]
        for name in wanted:
            if not covered(known, [name]):
                raise UserError(f"{name} is not in index {folder}; name pictures or folders below {root}")
        gone = covered(known, wanted)
        number = sum(path in writer.rows for path in gone)
        writer.commit(Change(gone=gone, left_out=gone))
        writer.finish()
        return Report(removed=number, pictures=len(writer.rows))


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

    full          read and hash every picture, instead of only those whose size or time is another
    descriptions  files to read from now on; () reads those that were named last. A picture with another
                  description has changed.
    """
    folder = Path(index)
    with one_writer(_there(folder), f"index {folder}"):
        manifest = read_manifest(folder)
        root = root_of(manifest.root)
        writer = Writer(folder, manifest, model_of(folder, manifest, model), chunk)
        return Walk(writer, root, progress, _told(writer, descriptions)).whole(full=full)


def _begin(folder: Path, model: Model, mark: ModelMark, root: str, null: str | None) -> None:
    """An index without pictures."""
    texts = gather_texts(null)
    encoded = encode_null(model, texts)
    texts = with_own(model, texts, encoded)
    try:
        part = write_null(folder / NULLS / f"{0:08d}", texts, encoded)
        write_manifest(folder, Manifest(mark, root, part))
    except WRITE_ERRORS as error:
        raise cannot_write(folder, error) from None


def _told(writer: Writer, names: Sequence[str]) -> Descriptions | None:
    """The descriptions in these files, which the index remembers, or in those that it remembers."""
    model = writer.model
    if OWN in names:
        raise UserError(f"--descriptions {OWN}: pictures of a folder have no captions; name files")
    known = tuple(str(Path(name).resolve()) for name in names) or writer.manifest.descriptions
    found = Descriptions(known) if known else None
    require_fit(model.description.method, model.method.describes, found, "--descriptions")
    if known != writer.manifest.descriptions:
        writer.put(writer.manifest._replace(descriptions=known))
    return found


def _ours(folder: Path) -> None:
    """Make the folder, or take one that holds nothing of the user's."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        strange = [
            path.name for path in folder.iterdir() if path.name not in (*OURS, aside(folder / MANIFEST).name)
        ]
    except OSError as error:
        raise cannot_write(folder, error) from None
    if strange and not (folder / MANIFEST).is_file():
        raise UserError(
            f"{folder} is not an empty folder (it holds {sorted(strange)[0]}); choose another --out"
        )


def _there(folder: Path) -> Path:
    """The folder, once it is known to hold an index: no lock is left in a folder of something else."""
    read_manifest(folder)
    return folder
