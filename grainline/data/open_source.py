"""Opens the source of records at a path (docs/data.md). SOURCES names the kinds, imported when needed.

    a.jsonl, a-{0000..0004}.tar, photos/   a file, a pattern or a folder, whose kind is recognised
    KIND:PATH                              a path as another kind
    my_module:MySource:PATH                a class of your own, called with PATH
    PATH?skip=0,1                          without some captions of each record

A source raises UserError when it is opened, and CorruptSample for a sample that cannot be used.
"""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any

from grainline.config import load_class, trusting
from grainline.data.formats.common import FileSource, beginning, divide, expand, is_pattern, with_query
from grainline.data.formats.folder import Folder, files_below, suffix
from grainline.data.formats.joined import Joined, WithoutCaptions, parts_of, split_skip
from grainline.data.formats.parsed import data_error, read_text
from grainline.data.formats.storage import exists, forget, is_folder
from grainline.data.formats.table import Row, Table, json_or_rows, json_rows, read_rows
from grainline.data.record import CorruptSample, Source, content_of
from grainline.errors import path_of

SOURCES = {  # of kinds that recognise one file the first one is taken
    "scenes": "grainline.data.scenes.source:Scenes",
    "tars": "grainline.data.formats.tars:Tars",
    "folder": "grainline.data.formats.folder:Folder",
    "classes": "grainline.data.formats.folder:Classes",
    "table": "grainline.data.formats.table:Table",
    "parquet": "grainline.data.formats.parquet:Parquet",
    "json": "grainline.data.formats.table:Table",
    "foil-coco": "grainline.data.benchmarks.contests:FoilCoco",  # before COCO's own form, which it has too
    "coco-val2017": "grainline.data.formats.listed:CocoVal2017",
    "coco-karpathy": "grainline.data.formats.listed:CocoKarpathy",
    "flickr-tokens": "grainline.data.formats.listed:FlickrTokens",
    "cola": "grainline.data.benchmarks.contests:Cola",
    "fg-ovd": "grainline.data.benchmarks.phrase_regions:FgOvd",
    "fg-ovd-lines": "grainline.data.benchmarks.phrase_regions:FgOvdLines",
    "refcoco": "grainline.data.benchmarks.refcoco:RefCoco",
    "flickr30k-entities": "grainline.data.benchmarks.phrase_regions:Entities",
    "dci": "grainline.data.benchmarks.long_captions:DCI",
    "urban-1k": "grainline.data.benchmarks.long_captions:Urban1k",
    "valse": "grainline.data.benchmarks.contests:Valse",
    "sugarcrepe": "grainline.data.benchmarks.contests:SugarCrepe",
    "himo-docci": "grainline.data.benchmarks.long_captions:HimoDocci",
    "docci": "grainline.data.benchmarks.long_captions:DOCCI",
    "iiw": "grainline.data.benchmarks.long_captions:IIW",
    "long-captions": "grainline.data.benchmarks.long_captions:Rows",
    "sharegpt4v": "grainline.data.benchmarks.long_captions:ShareGPT4V",
    "svo-probes": "grainline.data.benchmarks.contests:SvoProbes",
    "texts": "grainline.data.formats.table:TextsAlone",
    "hf": "grainline.data.pairs:HuggingFace",
    "python": "grainline.data.pairs:Registered",
}

_BY_SUFFIX = {"tar": "tars", **dict.fromkeys(("jsonl", "ndjson", "jsonlines", "csv", "tsv"), "table")}
_BY_SUFFIX |= {"json": "json", "parquet": "parquet", "p": "refcoco", "token": "flickr-tokens"}
_PACKED = ("gz", "tgz", "bz2", "xz", "zst", "zip")
_EXTERNAL = re.compile(r"([A-Za-z_][\w.]*:[A-Z]\w*)(?::(.*))?")  # my_module:MySource:PATH


def open_source(
    path: str,
    *,
    images: str | None = None,
    size: int | None = None,
    allow_bare: bool = False,
    trust_code: bool = False,
) -> Source:
    """Open a path; its kind is recognised, or named as in "table:rows.txt".

    images      folder of the images, for kinds that name their images by path; an error for the others
    size        side of drawn images in pixels; all others have their own size
    allow_bare  accept images of a folder without texts, which are corrupt samples otherwise
    trust_code  the user typed the path, so a class outside grainline that it names may be imported
    """
    _ask_anew(path, images)
    path, skip = split_skip(path)
    kind, rest = _kind(path)
    if images is not None:
        path_of(images, "the folder of the images")
    with trusting(kind if trust_code else ""):
        cls = _load(kind)
    if images is not None and not getattr(cls, "images_by_path", False):
        raise data_error(f"--images {images} does not go with {path}: {kind} hold their own images")
    source: Source
    if kind == "json":
        source = _open_json(rest, images)
    elif kind == "table":
        base, query = divide(rest)
        files = [(with_query(file, query), read_rows(file)) for file in expand(base)]
        tables = [_from_rows(file, images, rows) for file, rows in files]
        source = tables[0] if len(tables) == 1 else Joined(tables)
    elif kind == "folder":
        source = Folder(rest, allow_bare=allow_bare)
    elif kind in SOURCES or issubclass(cls, FileSource):
        source = cls.open(rest, images, size)
    else:
        source = cls(rest)
    if not isinstance(source, Source):
        raise data_error(f"{kind} is no source: it lacks path, a length, records or a fingerprint")
    return WithoutCaptions(source, skip) if skip else source


def open_sources(paths: Sequence[str], *, images: str | None = None, **options: Any) -> Source:
    """Several paths as one source, in their order. `images` goes to those that name images by path."""
    if not paths:
        raise data_error("no data was named: give at least one path, or 'scenes'")
    for path in paths:
        _ask_anew(path, images)
    with trusting(paths if options.get("trust_code") else ()):
        by_path = {path: takes_images(path) for path in paths}
    if not any(by_path.values()):
        by_path[paths[0]] = True  # which raises the error
    opened = [open_source(path, images=images if by_path[path] else None, **options) for path in paths]
    return opened[0] if len(opened) == 1 else Joined(opened)


def _ask_anew(path: str, images: str | None) -> None:
    """Forget what servers said of the files at a path, or in its folder, and of its images."""
    for one in (path, images or ""):
        if url := re.search("[a-z0-9]+://.*", one):
            base = divide(url[0])[0]
            forget(
                base if re.search(r"[*?\[{]", base) or not suffix(base) else base.rpartition("/")[0],
                below=True,
            )


def _paths_of(data: Any) -> list[str] | None:
    """One path or several as a list; None for anything else."""
    several = [data] if isinstance(data, str | os.PathLike) else data
    listed = isinstance(several, list | tuple) and all(isinstance(x, str | os.PathLike) for x in several)
    return [os.fspath(one) for one in several] if listed else None


def register(data: Any) -> list[str]:
    """The paths of data: of one path or several as they are; of anything else one that names it in here.

    data  a list of (image, captions), a data set of PyTorch or of Hugging Face, a source (`pairs.source_of`)
    """
    if paths := _paths_of(data):
        return paths
    from grainline.data.pairs import REGISTERED, source_of  # imports torch

    source = source_of(data)
    key = source.fingerprint()[:16]
    REGISTERED[key] = source
    return [f"python:{key}"]


def open_data(data: Any, *, images: str | None = None, size: int | None = None) -> Source:
    """The source of what a caller has: a path, several paths, a `Source`, or pairs of image and captions.

    images  folder of the images, for data and pairs that name them by path
    size    side of drawn images in pixels

    Raises UserError for anything else.
    """
    if images is not None:
        path_of(images, "the folder of the images")
    if isinstance(data, Source) and images is not None:
        raise data_error("images goes with a path of data; a Source has opened its own")
    paths = _paths_of(data)
    if paths is not None:
        return open_sources(paths, images=images, size=size, trust_code=True)
    from grainline.data.pairs import source_of  # imports torch

    return source_of(data, images)


def content_digest(source: Source) -> str:
    """Hex digest of a source with all its images and texts, which are read; scenes have their fingerprint."""
    total, scenes = blake2b(source.fingerprint().encode(), digest_size=16), _load("scenes")
    for part in parts_of(source):
        for i in range(0 if isinstance(part, scenes) else len(part)):
            with suppress(CorruptSample):
                record = part[i]
                total.update(content_of(record.image) + repr(record._replace(image=b"", regions=())).encode())
    return total.hexdigest()


def takes_images(path: str) -> bool:
    """Whether the data at a path names its images by path, so that `images` says where they are."""
    return bool(getattr(_load(_kind(split_skip(path)[0])[0]), "images_by_path", False))


def _load(kind: str) -> Any:
    """The class of a kind, or of `module:Class`. Raises UserError."""
    return load_class(kind, object, SOURCES, "the source of the data")


def _open_json(path: str, images: str | None) -> Source:
    """Annotations of a benchmark, or rows: the content decides."""
    file, _ = divide(path)
    kind = _recognise_path(file)  # first: some files are too large to be read whole
    if kind:
        return _load(kind).open(path, images)
    content = json_or_rows(file, read_text(file))
    if cls := _recognise(content):
        return cls.from_content(path, images, content)
    return _from_rows(path, images, json_rows(file, content))


def _from_rows(path: str, images: str | None, rows: list[Row]) -> Source:
    return (_recognise(rows) or Table).from_content(path, images, rows)


def _recognise(content: Any) -> type[FileSource] | None:
    """The class that recognises parsed JSON, or the rows of a table."""
    classes: list[Any] = [_load(kind) for kind in SOURCES if kind != "scenes"]
    return next((cls for cls in classes if cls.recognises(content)), None)


def _recognise_path(path: str) -> str:
    """The kind that recognises a file or a folder without reading it; "" without one."""
    kinds = (kind for kind in SOURCES if kind != "scenes" and _load(kind).recognises_path(path))
    return next(kinds, "")


def _kind(path: str) -> tuple[str, str]:
    """The kind of a path, and the path without the name of the kind."""
    if re.fullmatch(r"\s*|(?!scenes:)[a-z0-9-]+:\s*(\?.*)?", path):
        raise data_error(f"the data have an empty path, {path!r}, as an unset shell variable is")
    if re.match(r"scenes($|[:?])", path):
        return "scenes", path
    named = re.match(r"([a-z][a-z0-9-]+):(?!//)", path)
    present = exists(path)
    if named and named[1] in SOURCES and not present:
        return named[1], path[named.end() :]
    external = _EXTERNAL.fullmatch(path)
    if external and not present:
        return external[1], external[2] or ""
    if path.startswith("pipe:"):
        raise data_error(f"{path} is a pipe, which has no random access: name files or URLs")
    base, query = divide(path)
    first = expand(base)[0] if is_pattern(base) else base
    if named and not exists(first):
        raise data_error(f"{path} names no known kind: {named[1]} is none of {', '.join(SOURCES)}")
    if not exists(first):
        raise data_error(f"nothing at {base}{beginning(base)}: name a file, a folder or a pattern")
    if is_folder(first):
        return _kind_of_folder(first, query)
    kind = _BY_SUFFIX.get(suffix(first))
    if kind is None:
        packed = suffix(first) in _PACKED
        advice = "unpack it first" if packed else "name its kind as KIND:PATH if it is one of them"
        raise data_error(f"{first} is of no known kind: .{', .'.join(_BY_SUFFIX)} and folders are; {advice}")
    return kind, path


def _kind_of_folder(path: str, query: str) -> tuple[str, str]:
    files = files_below(path)
    suffixes = {suffix(name) for name in files} & {"tar", "parquet"}
    table = [name for name in ("metadata.csv", "metadata.jsonl") if name in files]
    if len(suffixes) > 1:
        raise data_error(f"{path} holds tars and parquet files: say which with tars:{path} or parquet:{path}")
    if suffixes:
        kind = _BY_SUFFIX[suffixes.pop()]
    elif table:
        kind, path = "table", os.path.join(path, table[0])
    else:
        kind = _recognise_path(path) or "folder"
    return kind, with_query(path, query)
