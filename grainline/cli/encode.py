"""Vectors of a whole folder or file, written to disk: `grainline encode`.

OUT/vectors.safetensors holds `images` [N, D] and `texts` [M, D] in float32, unit length; OUT/rows.jsonl says
line by line what each row is; OUT/notes.jsonl what was skipped and which texts were cut. Of a folder of
images those without texts are encoded as well; where nothing has a text, only `images` are written.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from grainline.data.descriptions import Descriptions
from grainline.data.formats.plain import read_lines
from grainline.data.open_source import SOURCES, open_source
from grainline.errors import UserError
from grainline.evaluation.encode import encode_source
from grainline.files import WRITE_ERRORS, reason
from grainline.model import Model

Rows = list[dict[str, Any]]
VECTORS = "vectors.safetensors"


def encode_path(
    model: Model,
    source: str,
    out: Path,
    *,
    images: str | None = None,
    captions: Any = "whole",
    descriptions: Descriptions | None = None,
    batch: int = 64,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, int]:
    """Encode a data source, or the lines of a .txt file, into a folder.

    descriptions  of the images, for a model that reads them

    Returns how many rows there are of a kind, and how many samples were skipped. Raises UserError where
    `out` holds anything already.
    """
    _empty(out)
    lines = source.endswith(".txt") and source.partition(":")[0] not in SOURCES
    if lines and images is not None:
        raise UserError(f"--images {images} does not go with {source}, a file of texts")
    vectors, rows, notes = (
        _lines(model, Path(source), batch)
        if lines
        else _records(model, source, images, captions, descriptions, batch, progress)
    )
    try:
        save_file({name: x.cpu().contiguous() for name, x in vectors.items()}, out / VECTORS)
        (out / VECTORS).chmod((out.stat().st_mode & 0o666) | 0o600)  # readable to whom the folder is
        _write(out / "rows.jsonl", rows)
        _write(out / "notes.jsonl", notes)
    except WRITE_ERRORS as error:
        raise UserError(f"cannot write into {out}: {reason(error)}; choose another --out") from None
    skipped = sum(note["samples"] for note in notes if note["note"] == "skipped")
    return {name: len(x) for name, x in vectors.items()} | {"skipped": skipped}


def _empty(out: Path) -> None:
    """The folder is new or empty: nothing of the user's is written over, and that is known at once."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise UserError(f"{out} is not an empty folder; choose another --out")
    except OSError as error:
        raise UserError(f"cannot write into {out}: {reason(error)}; choose another --out") from None


def _lines(model: Model, path: Path, batch: int) -> tuple[dict[str, Tensor], Rows, Rows]:
    texts = read_lines(str(path))
    parts = (model.encode(texts=texts[i : i + batch]).vector for i in range(0, len(texts), batch))
    vectors = torch.cat(list(parts))  # batch by batch: the tokens of all lines would not fit
    rows: Rows = [{"side": "texts", "row": i, "text": text} for i, text in enumerate(texts)]
    return {"texts": vectors}, rows, _cut(model.cut) + _coarse(model)


def _records(
    model: Model,
    path: str,
    images: str | None,
    captions: Any,
    descriptions: Descriptions | None,
    batch: int,
    progress: Callable[[int, int], None] | None,
) -> tuple[dict[str, Tensor], Rows, Rows]:
    source = open_source(path, images=images, size=model.method.size, allow_bare=True)
    data = encode_source(
        model,
        source,
        captions=captions,
        need_text=False,
        descriptions=descriptions,
        batch=batch,
        max_corrupt=1.0,
        progress=progress,
    )
    rows: Rows = [{"side": "images", "row": i, "key": key} for i, key in enumerate(data.keys)]
    owners = data.texts.image.tolist()
    rows += [
        {"side": "texts", "row": i, "key": data.keys[owner], "text": text}
        for i, (text, owner) in enumerate(zip(data.strings, owners, strict=True))
    ]
    notes: Rows = [{"note": "skipped", "cause": cause, "samples": n} for cause, n in data.damaged.items()]
    notes += [{"note": "skipped first", "where": where} for where in data.damaged_first]
    notes += [{"note": remark} for remark in data.remarks]
    vectors = {"images": data.images.vector} | ({"texts": data.texts.vector} if data.strings else {})
    return vectors, rows, notes + _cut(data.cut) + _coarse(model)


def _cut(number: int) -> Rows:
    return [{"note": "texts longer than the model reads were cut", "texts": number}] if number else []


def _coarse(model: Model) -> Rows:
    if not model.method.pairwise:
        return []
    name = model.description.method
    return [{"note": f"{name} scores pairs by their tokens; by these vectors it only finds candidates"}]


def _write(path: Path, rows: Rows) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
