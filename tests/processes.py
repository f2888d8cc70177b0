"""Processes for tests, forked from one that has imported what takes long; alone, or ranks of one run."""

import multiprocessing
import os
import runpy
import socket
import sys
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

SLOW = (
    "grainline.cli.main",
    "grainline.training.run",
    "grainline.methods",
    "grainline.data.scenes.source",
    "grainline.training.step",
    "peft",
    "pytest",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "transformers.models.bert.modeling_bert",
    "transformers.models.clip.modeling_clip",
    "transformers.models.siglip.modeling_siglip",
    "transformers.models.swin.modeling_swin",
    "transformers.models.vit.modeling_vit",
)
"""What takes long to import, once for all processes."""
PATIENCE = 600  # seconds


def forked() -> ForkServerContext:
    """Where `Process` begins with all of SLOW imported, in a tenth of a second."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*SLOW])
    return context


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def exit_codes(ranks: Sequence[BaseProcess]) -> list[int | None]:
    """The exit codes of processes, once all of them have ended; none is left behind."""
    for rank in ranks:
        rank.join(timeout=PATIENCE)
    codes = [rank.exitcode for rank in ranks]
    for rank in ranks:
        rank.kill()
    return codes


def start_ranks(target: Callable[..., None], world: int, *arguments: object) -> list[BaseProcess]:
    """`target(rank, *arguments)` in so many processes."""
    ranks = [forked().Process(target=target, args=(rank, *arguments)) for rank in range(world)]
    for rank in ranks:
        rank.start()
    return list(ranks)


def together(arguments: Sequence[object], world: int, said: Path, first: str = "") -> list[int | None]:
    """Run `grainline ARGUMENTS` in so many processes, set up as torchrun does it; their exit codes.

    said   the file that gets what all of them print
    first  a function that each of them calls before, as `module:name`
    """
    place = (world, free_port(), [*map(str, arguments)], said, first)
    return exit_codes(start_ranks(_grainline, world, *place))


def _grainline(rank: int, world: int, port: int, arguments: list[str], said: Path, first: str) -> None:
    torch.set_num_threads(1)
    with said.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "CUDA_VISIBLE_DEVICES": ""}
    sys.argv = ["grainline", *arguments]
    if first:
        module, _, name = first.partition(":")
        getattr(__import__(module), name)()
    runpy.run_module("grainline", run_name="__main__", alter_sys=True)  # which ends the process
