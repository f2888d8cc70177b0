"""Build an index and keep it up to date: build, add, remove, refresh.

All are one walk: look at the files, leave those whose size and time are as they were, read and hash the
others, and encode only bytes that the index does not know. Every CHUNK pictures are committed, so a walk that
was interrupted goes on where it stopped when the same command is given again.
"""

from collections.abc import Sequence
from pathlib import Path

from grainline.data.descriptions import OWN, Descriptions, require_fit
from grainline.errors import UserError
from grainline.files import WRITE_ERRORS, aside
from grainline.index.folder import (
    MANIFEST,
    NULLS,
    OURS,
    Manifest,
    ModelMark,
    cannot_write,
    read_manifest,
    write_manifest,
)
from grainline.index.mark import mark_of, model_of
from grainline.index.null import encode_null, gather_texts, with_own, write_null
from grainline.index.pictures import chosen, covered, pictures_below, relative, root_of
from grainline.index.walk import Progress, Report, Walk
from grainline.index.writer import CHUNK, Change, Writer
from grainline.lock import one_writer
from grainline.model import Model, load


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
