"""Where records come from: one file per kind, opened by the look of a path.

    scenes, scenes:...                  pictures drawn on the fly, with known truth a.tar, a-*.tar,
    a-{0000..0004}.tar  WebDataset tars, or a folder of them classes:DIR                         a folder with
    one subfolder of pictures for each class a folder of pictures                with NAME.txt or NAME.json
    beside each, or a metadata.csv or .jsonl a.jsonl, a.csv, a.tsv, a.json       rows with the paths of
    pictures himo_docci_data.json                JSON Lines with the subtexts of captions; wants --images DCI,
    DOCCI, Urban-1k, ShareGPT4V, ImageInWords   their own files, as in grainline.data.benchmarks.long_captions
    a.parquet, a-*.parquet              rows with the pictures inside, or a folder of them (extra `data`)
    coco-karpathy:dataset_coco.json?images=DIR&split=test coco-val2017:captions_val2017.json?images=DIR
    cola:COLA_multiobjects_matching_benchmark.json?images=DIR fg-ovd:3_attributes.json?images=DIR, fg-
    ovd:easy.jsonl refcoco:DIR?split=testA&images=DIR            refs(unc).p or .json with instances.json
    flickr30k-entities:DIR?split=val&images=DIR   captions with the noun phrases in them foil-
    coco:foilv1.0_test_2017.json?images=DIR sugarcrepe:replace_obj.json?images=DIR, valse:actant-
    swap.json?images=DIR svo-probes:svo_probes.csv?images=DIR texts:captions.jsonl.gz             captions
    without pictures, for methods that can learn from them hexagons:dev.jsonl                  boards of
    coloured tiles, with the tiles of each instruction

Any path can be opened as another kind with KIND:PATH, and without some captions of each record with
PATH?skip=0,1. A source raises UserError when it is opened and
Damaged, with a cause from grainline.data.record, when one of its samples is asked for.
"""

import os
import re
from collections.abc import Callable, Sequence
from typing import Any

from grainline.data.benchmarks.cola import Cola, is_cola
from grainline.data.benchmarks.entities import Entities
from grainline.data.benchmarks.fgovd import FgOvd, FgOvdLines, is_fgovd, is_fgovd_lines
from grainline.data.benchmarks.foilcoco import FoilCoco, is_foil_coco
from grainline.data.benchmarks.hexagons import Hexagons, is_hexagons
from grainline.data.benchmarks.himo import HimoDocci, is_himo
from grainline.data.benchmarks.long_captions import (
    DCI,
    DOCCI,
    IIW,
    ShareGPT4V,
    Urban1k,
    dci_folder,
    is_docci,
    is_iiw,
    is_sharegpt4v,
    is_urban,
    is_urban_folder,
)
from grainline.data.benchmarks.refcoco import RefCoco, is_refs, is_refs_folder
from grainline.data.benchmarks.sugarcrepe import SugarCrepe, is_sugarcrepe
from grainline.data.benchmarks.svo import SvoProbes, is_svo
from grainline.data.benchmarks.valse import Valse, is_valse
from grainline.data.formats.coco import CocoKarpathy, CocoVal2017, is_karpathy, is_official
from grainline.data.formats.common import divide, expand, is_pattern, some
from grainline.data.formats.folder import Classes, Folder, files_below, suffix
from grainline.data.formats.joined import HeldBack, Joined, held_back, remarks
from grainline.data.formats.parquet import Parquet
from grainline.data.formats.plain import HELP, read_text
from grainline.data.formats.table import Row, Table, json_or_rows, json_rows, read_rows
from grainline.data.formats.tars import Tars
from grainline.data.formats.texts_alone import TextsAlone
from grainline.data.record import Source
from grainline.errors import UserError

# Which benchmark a file is of, by a look inside: parsed JSON, or the rows of a table.


Kind = Callable[[str, str | None, Any], Source]
"""From the path, the folder of pictures, and what the file holds."""

_JSON: tuple[tuple[Callable[[Any], bool], Kind], ...] = (
    (is_foil_coco, FoilCoco),  # before COCO's own form, which it has too
    (is_official, CocoVal2017),
    (is_karpathy, CocoKarpathy),
    (is_cola, Cola),
    (is_fgovd, FgOvd),
    (is_refs, RefCoco),
    (is_urban, Urban1k),
    (is_valse, Valse),
    (is_sugarcrepe, SugarCrepe),
)
_ROWS: tuple[tuple[Callable[[Sequence[Row]], bool], Kind], ...] = (
    (is_himo, HimoDocci),
    (is_docci, DOCCI),
    (is_iiw, IIW),
    (is_hexagons, Hexagons),
    (is_svo, SvoProbes),
    (is_fgovd_lines, FgOvdLines),
)


def kind_of_json(data: Any) -> Kind | None:
    """The kind of annotations, None for what may be rows."""
    return next((kind for fits, kind in _JSON if fits(data)), None)


def kind_of_rows(rows: Sequence[Row]) -> Kind | None:
    """The kind of rows, None for those of a plain table."""
    return next((kind for fits, kind in _ROWS if fits(rows)), None)


__all__ = ["SOURCES", "Joined", "Opener", "open_source", "open_sources", "remarks", "takes_images"]

Opener = Callable[[str, str | None, int | None], Source]
"""Path, folder of pictures, side of drawn pictures in pixels."""


def _scenes(path: str, _images: str | None, size: int | None) -> Source:
    from grainline.data.scenes.source import Scenes

    return Scenes(path, size)


def _tars(path: str, _images: str | None, _size: int | None) -> Source:
    return Tars(_files(path, ("tar",)), path)


def _folder(path: str, _images: str | None, _size: int | None) -> Source:
    return Folder(path)


def _classes(path: str, _images: str | None, _size: int | None) -> Source:
    return Classes(path)


def _table(path: str, images: str | None, _size: int | None) -> Source:
    base, query = divide(path)
    tables = [_rows(f"{file}?{query}" if query else file, images, read_rows(file)) for file in expand(base)]
    return tables[0] if len(tables) == 1 else Joined(tables)


def _parquet(path: str, images: str | None, _size: int | None) -> Source:
    base, query = divide(path)
    files = _files(base, ("parquet",))
    return Parquet([f"{file}?{query}" if query else file for file in files], path, images)


def _json(path: str, images: str | None, _size: int | None) -> Source:
    """Annotations of a benchmark, or rows: only a look inside can tell."""
    file, _ = divide(path)
    if is_sharegpt4v(file):  # first: it is too large to be read whole
        return ShareGPT4V(path, images)
    data = json_or_rows(file, read_text(file))
    kind = kind_of_json(data)
    return _rows(path, images, json_rows(file, data)) if kind is None else kind(path, images, data)


def _rows(path: str, images: str | None, rows: list[Row]) -> Source:
    return (kind_of_rows(rows) or Table)(path, images, rows)


def _fgovd(path: str, images: str | None, _size: int | None) -> Source:
    lines = divide(path)[0].endswith(".jsonl")
    return FgOvdLines(path, images) if lines else FgOvd(path, images)


def _named(kind: Callable[[str, str | None], Source]) -> Opener:
    """The opener of a kind that takes a path and the folder of its pictures."""
    return lambda path, images, _size: kind(path, images)


SOURCES: dict[str, Opener] = {
    "scenes": _scenes,
    "tars": _tars,
    "folder": _folder,
    "classes": _classes,
    "table": _table,
    "parquet": _parquet,
    "json": _json,
    "coco-karpathy": _named(CocoKarpathy),
    "coco-val2017": _named(CocoVal2017),
    "cola": _named(Cola),
    "fg-ovd": _fgovd,
    "refcoco": _named(RefCoco),
    "flickr30k-entities": _named(Entities),
    "hexagons": _named(Hexagons),
    "foil-coco": _named(FoilCoco),
    "valse": _named(Valse),
    "sugarcrepe": _named(SugarCrepe),
    "svo-probes": _named(SvoProbes),
    "himo-docci": _named(HimoDocci),
    "dci": _named(DCI),
    "docci": _named(DOCCI),
    "urban-1k": _named(Urban1k),
    "sharegpt4v": _named(ShareGPT4V),
    "iiw": _named(IIW),
    "texts": lambda path, _images, _size: TextsAlone(path),
}

_BY_SUFFIX = {
    "tar": "tars",
    "jsonl": "table",
    "ndjson": "table",
    "jsonlines": "table",
    "csv": "table",
    "tsv": "table",
    "json": "json",
    "parquet": "parquet",
    "p": "refcoco",
}
_WITH_FOLDER_OF_PICTURES = (
    *("table", "parquet", "json", "coco-karpathy", "coco-val2017", "himo-docci", "cola", "fg-ovd"),
    *("foil-coco", "valse", "sugarcrepe", "svo-probes"),
    *("refcoco", "flickr30k-entities", "dci", "docci", "urban-1k", "sharegpt4v", "iiw"),
)
_PACKED = ("gz", "tgz", "bz2", "xz", "zst", "zip")


def open_source(
    path: str, *, images: str | None = None, size: int | None = None, allow_bare: bool = False
) -> Source:
    """Open what lies at a path; its kind is found by its look, or named as in "table:rows.txt".

    images      folder of the pictures, for kinds that name their pictures by path; an error for the others
    size        side of drawn pictures in pixels; all others come as large as they are stored
    allow_bare  take pictures of a folder that have no texts; otherwise that is damage
    """
    path, skip = held_back(path)
    source = _opened(path, images, size, allow_bare)
    return HeldBack(source, skip) if skip else source


def _opened(path: str, images: str | None, size: int | None, allow_bare: bool) -> Source:
    kind, rest = _kind(path)
    if images is not None and kind not in _WITH_FOLDER_OF_PICTURES:
        raise UserError(
            f"--images {images} does not go with {path}: {kind} hold their own pictures;"
            f" it is for {', '.join(_WITH_FOLDER_OF_PICTURES)}; {HELP}"
        )
    if allow_bare and kind == "folder":
        return Folder(rest, allow_bare=True)
    return SOURCES[kind](rest, images, size)


def takes_images(path: str) -> bool:
    """Whether what lies at a path names its pictures by path, so that `images` says where they are."""
    return _kind(held_back(path)[0])[0] in _WITH_FOLDER_OF_PICTURES


def open_sources(
    paths: Sequence[str], *, images: str | None = None, size: int | None = None, allow_bare: bool = False
) -> Source:
    """Several paths as one source, in their order. `images` goes to those that name pictures by path."""
    if not paths:
        raise UserError(f"no data was named: give at least one path, or 'scenes'; {HELP}")
    takes = [takes_images(path) for path in paths]
    if images is not None and not any(takes):
        return open_source(paths[0], images=images, size=size)  # says why not
    opened = [
        open_source(path, images=images if taken else None, size=size, allow_bare=allow_bare)
        for path, taken in zip(paths, takes, strict=True)
    ]
    return opened[0] if len(opened) == 1 else Joined(opened)


def _kind(path: str) -> tuple[str, str]:
    """The kind of a path, and the path without the name of the kind."""
    if re.match(r"scenes($|[:?])", path):
        return "scenes", path
    named = re.match(r"([a-z][a-z0-9-]+):(?!//)", path)
    if named and named[1] in SOURCES and not os.path.exists(path):
        return named[1], path[named.end() :]
    if re.match(r"[a-z0-9]+://", path) or path.startswith("pipe:"):
        raise UserError(
            f"{path} is not on this machine: download it first, only local paths are read; {HELP}"
        )
    base, query = divide(path)
    first = expand(base)[0] if is_pattern(base) else base
    if named and not os.path.exists(first):
        raise UserError(f"{path} names no known kind: {named[1]} is none of {', '.join(SOURCES)}; {HELP}")
    if not os.path.exists(first):
        raise UserError(
            f"nothing at {base} (from {os.getcwd()}): name a file, a folder, a pattern or 'scenes'; {HELP}"
        )
    if os.path.isdir(first):
        return _kind_of_folder(first, query)
    return _kind_of_file(first), path


def _kind_of_file(path: str) -> str:
    kind = _BY_SUFFIX.get(suffix(path))
    if kind is None:
        advice = (
            "unpack it first"
            if suffix(path) in _PACKED
            else "name its kind as KIND:PATH if it is one of them"
        )
        raise UserError(
            f"{path} is of no known kind: allowed are .{', .'.join(_BY_SUFFIX)} and folders; {advice}; {HELP}"
        )
    return kind


def _kind_of_folder(path: str, query: str) -> tuple[str, str]:
    files = files_below(path)
    held = {"tars": _ending(files, "tar"), "parquet": _ending(files, "parquet")}
    held = {kind: names for kind, names in held.items() if names}
    table = [name for name in files if name in ("metadata.csv", "metadata.jsonl")]
    if len(held) > 1:
        raise UserError(
            f"{path} holds tars and parquet files: say which with tars:{path} or parquet:{path}; {HELP}"
        )
    if held:
        kind = next(iter(held))
        return kind, f"{path}?{query}" if query else path
    if table:
        return "table", os.path.join(path, table[0]) + (f"?{query}" if query else "")
    named = "refcoco" if is_refs_folder(path) else ""
    named = named or ("dci" if dci_folder(path) else "urban-1k" if is_urban_folder(path) else "")
    return (named, f"{path}?{query}" if query else path) if named else ("folder", path)


def _ending(files: Sequence[str], *wanted: str) -> list[str]:
    return [name for name in files if suffix(name) in wanted]


def _files(path: str, wanted: Sequence[str]) -> list[str]:
    """The files that a path, a pattern or a folder stands for. Raises UserError."""
    if os.path.isdir(path):
        found = [os.path.join(path, name) for name in _ending(files_below(path), *wanted)]
        if not found:
            raise UserError(f"{path} holds no .{', .'.join(wanted)} files; {HELP}")
        return found
    found = expand(path)
    others = [name for name in found if suffix(name) not in wanted]
    if len(found) > 1 and others:
        raise UserError(f"{path} stands for {some(others)} too, which is no .{', .'.join(wanted)}; {HELP}")
    return found
