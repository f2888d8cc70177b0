"""Vectors of a whole source or a file of texts, written to disk: `grainline encode`.

OUT/vectors.safetensors holds `images` [N, D] and `texts` [M, D] in float32, unit length. OUT/rows.jsonl
describes each row in a line. OUT/notes.jsonl lists skipped samples and counts truncated texts. Images of a
folder are encoded without texts too; where nothing has a text, only `images` are written.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from grainline.data.descriptions import Descriptions
from grainline.data.formats.plain import read_lines
from grainline.data.open_source import SOURCES, open_source
from grainline.errors import UserError
from grainline.evaluation.encode import Progress, encode_source
from grainline.files import WRITE_ERRORS, reason
from grainline.model import Model

Rows = list[dict[str, Any]]


def write_vectors(
    model: Model,
    source: str,
    out: Path,
    *,
    images: str | None = None,
    captions: Any = "whole",
    descriptions: Descriptions | None = None,
    batch: int = 64,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Encode a data source, or the lines of a .txt file, into a folder.

    descriptions  of the images, for a model that reads them

    Returns the number of images, of texts, and of skipped samples. Raises UserError where `out` holds
    anything already.
    """
    lines = source.endswith(".txt") and source.partition(":")[0] not in SOURCES
    if lines and images is not None:
        raise UserError(f"--images {images} does not go with {source}, a file of texts")
    try:
        out.mkdir(parents=True, exist_ok=True)
        existing = next(out.iterdir(), None)
    except OSError as error:
        raise UserError(f"cannot write into {out}: {reason(error)}; choose another --out") from None
    if existing is not None:
        raise UserError(f"{out} is not an empty folder; choose another --out")
    cut = model.cut
    vectors, rows, notes = (
        _encode_lines(model, source, batch)
        if lines
        else _encode_source(model, source, images, captions, descriptions, batch, progress)
    )
    skipped = sum(note["samples"] for note in notes if note["note"] == "skipped")
    if model.cut > cut:
        notes += [{"note": "texts longer than the model reads were cut", "texts": model.cut - cut}]
    if model.method.pairwise:
        name = model.description.method
        notes += [{"note": f"{name} scores pairs by their tokens; by these vectors it only finds candidates"}]
    file = out / "vectors.safetensors"
    try:
        save_file({name: x.cpu().contiguous() for name, x in vectors.items()}, file)
        file.chmod((out.stat().st_mode & 0o666) | 0o600)  # readable to whom the folder is
        for name, content in (("rows.jsonl", rows), ("notes.jsonl", notes)):
            text = "".join(json.dumps(row) + "\n" for row in content)
            (out / name).write_text(text, encoding="utf-8")
    except WRITE_ERRORS as error:
        raise UserError(f"cannot write into {out}: {reason(error)}; choose another --out") from None
    return {name: len(x) for name, x in vectors.items()} | {"skipped": skipped}


def _encode_lines(model: Model, path: str, batch: int) -> tuple[dict[str, Tensor], Rows, Rows]:
    texts = read_lines(path)
    parts = [model.encode(texts=texts[i : i + batch]).vector for i in range(0, len(texts), batch)]
    return (
        {"texts": torch.cat(parts)},
        [{"side": "texts", "row": i, "text": t} for i, t in enumerate(texts)],
        [],
    )


def _encode_source(
    model: Model,
    path: str,
    images: str | None,
    captions: Any,
    descriptions: Descriptions | None,
    batch: int,
    progress: Progress | None,
) -> tuple[dict[str, Tensor], Rows, Rows]:
    data = encode_source(
        model,
        open_source(path, images=images, size=model.method.size, allow_bare=True),
        captions=captions,
        need_text=False,
        descriptions=descriptions,
        batch=batch,
        max_corrupt=1.0,
        progress=progress,
    )
    rows: Rows = [{"side": "images", "row": i, "key": key} for i, key in enumerate(data.keys)]
    for i, (text, owner) in enumerate(zip(data.strings, data.texts.image.tolist(), strict=True)):
        rows.append({"side": "texts", "row": i, "key": data.keys[owner], "text": text})
    notes: Rows = [{"note": "skipped", "cause": cause, "samples": n} for cause, n in data.damaged.items()]
    notes += [{"note": "skipped first", "where": where} for where in data.damaged_first]
    notes += [{"note": remark} for remark in data.remarks]
    return (
        {"images": data.images.vector} | ({"texts": data.texts.vector} if data.strings else {}),
        rows,
        notes,
    )
