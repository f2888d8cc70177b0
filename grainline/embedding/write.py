"""`grainline encode`: vectors of a whole set, by this process and others, or by Ray."""

import os
from typing import Any

import torch

from grainline.data.descriptions import Descriptions
from grainline.data.vector_parts import Row
from grainline.embedding.ray_engine import encode_units
from grainline.embedding.work import Settings, Work, work_through
from grainline.errors import UserError
from grainline.model import Model
from grainline.progress import Progress

ENGINES = ("processes", "ray")


def gpu_of_rank() -> str | None:
    """The GPU of this process of torchrun; None without torchrun, or without a GPU."""
    rank, number = os.environ.get("LOCAL_RANK"), torch.cuda.device_count()
    return f"cuda:{int(rank) % number}" if rank is not None and number else None


def write_vectors(  # noqa: PLR0913 - each is an option of the command; long by its docstring, their help
    model: Model,
    model_path: str,
    source: str,
    out: str,
    *,
    images: str | None = None,
    captions: Any = "auto",
    descriptions: Descriptions | None = None,
    batch: int = 64,
    rows: int = 10_000,
    format: str = "safetensors",
    half: bool = False,
    retry: bool = False,
    engine: str = "processes",
    address: str | None = None,
    actors: int = 1,
    progress: Progress | None = None,
) -> Row:
    """Encode a data source, or the lines of a .txt file, into a folder that other processes write too.

    model_path    where each node of Ray finds the model
    images        folder of the images, for files that name them by path
    captions      texts of a source, as in `evaluate`: auto, whole, each or first
    descriptions  of the images, for a model that reads them
    rows          rows of the source in one part, at most
    format        of the parts: safetensors, or parquet (extra `data`)
    half          write vectors in half precision
    retry         encode parts with failed samples again
    engine        processes: this one, and any others that run the same command; ray: actors of Ray Data
    address       of a Ray cluster: auto, or HOST:PORT; without it Ray starts on this machine
    actors        models of Ray at a time, each on a GPU where the cluster has some

    Returns the content of manifest.json. Raises UserError where `out` holds anything else.
    """
    if engine not in ENGINES:
        raise UserError(f"--engine is {engine!r}; allowed: {', '.join(ENGINES)}")
    if actors < 1:
        raise UserError(f"--actors is {actors}; allowed are numbers from 1 on")
    work = Work(model, out, Settings(source, images, captions, batch, rows, format, half), descriptions)
    if retry:
        work.folder.retry()
    if engine == "ray":
        encode_units(work, model_path, address, actors, progress)
    else:
        work_through(work, progress)
    return work.finish()
