"""A step of sharded training (FSDP2) against a step of replicated training (DDP), two processes each.

Both hold the same CLIP and take the same batch; a step is forward, backward, clipping and the optimizer. On a
CPU, gloo carries the tensors through main memory, so the ratio says what the exchange costs there and nothing
about GPUs, where nccl exchanges beside the arithmetic: start this on a machine with two of them to know. The
bytes are those that a process holds between two steps, gradients included.

    python -m benchmarks.bench_shard [--image Ti/16] [--text Ti] [--size 64] [--batch 16] [--steps 2]
"""

import argparse
import multiprocessing
import os
import socket
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from benchmarks.harness import keep_pages, paired, report
from grainline.methods.clip import CLIP, CLIPConfig
from grainline.training.optim import OptimizerConfig, build_optimizer
from grainline.training.parallel import clip_grad_norm, data_parallel, dtype_of, shard
from grainline.training.step import Objective
from grainline.types import Clock, Images, Texts

CONTEXT = 32
HALF = 0.51  # of the bytes; what a row or a column does not divide stays with one process


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name, value in (("image", "Ti/16"), ("text", "Ti")):
        parser.add_argument(f"--{name}", default=value)
    for name, number in (("size", 64), ("batch", 16), ("steps", 2), ("repeats", 7)):
        parser.add_argument(f"--{name}", type=int, default=number)
    args = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=measure, args=(rank, port, args)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert [rank.exitcode for rank in ranks] == [0, 0]


def measure(rank: int, port: int, args: argparse.Namespace) -> None:
    """Both kinds of step in turns; every process takes part, the first one reports."""
    torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))
    device = torch.device("cuda", rank) if torch.cuda.device_count() > 1 else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    ddp, of_ddp = training(args, device, sharded=False)
    sharded, of_sharded = training(args, device, sharded=True)
    ratio = paired(ddp, sharded, args.repeats)
    if rank == 0:
        facts = {**vars(args), "device": device.type, "precision": str(dtype_of("auto", device))}
        report("shard: step sharded / replicated, two processes", ratio, "x", **facts)
        mib = {"sharded": of_sharded() / 2**20, "replicated": of_ddp() / 2**20}
        share = mib["sharded"] / mib["replicated"]
        report("shard: bytes of a process, sharded / replicated", share, "x", at_most=HALF, **mib, **facts)
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # DistributedDataParallel keeps threads of gloo that abort the interpreter at its end


def training(
    args: argparse.Namespace, device: torch.device, *, sharded: bool
) -> tuple[Callable[[], None], Callable[[], int]]:
    """Steps of one kind, and the bytes that they leave."""
    config = {
        "image": {"name": args.image, "size": args.size},
        "text": {"name": args.text, "context": CONTEXT},
    }
    torch.manual_seed(0)
    method = CLIP(CLIPConfig.model_validate(config)).to(device).train()
    objective: Any = Objective(method, dtype_of("auto", device))
    if sharded:
        shard(objective, device)
    optimizer = build_optimizer(method, OptimizerConfig())
    objective = objective if sharded else data_parallel(objective, device)
    images, texts = batch(args, device)

    def run() -> None:
        for _ in range(args.steps):
            optimizer.zero_grad(set_to_none=True)
            objective(images, texts, Clock()).total.backward()
            clip_grad_norm(method.parameters(), 1.0)
            optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def held() -> int:
        states = [x for state in optimizer.state.values() for x in state.values()]
        grads = [p.grad for p in method.parameters() if p.grad is not None]
        return sum(local_bytes(x) for x in (*method.parameters(), *grads, *states))

    return run, held


def local_bytes(x: Tensor) -> int:
    """What this process holds of a tensor."""
    mine: Tensor = x.to_local() if isinstance(x, DTensor) else x
    return mine.numel() * mine.element_size()


def batch(args: argparse.Namespace, device: torch.device) -> tuple[Images, Texts]:
    """This process's half: images of noise, and texts of full length."""
    number = torch.arange(args.batch // 2, device=device) + dist.get_rank() * (args.batch // 2)
    pixels = torch.rand(len(number), 3, args.size, args.size, device=device)
    ids = torch.randint(3, 8000, (len(number), 1, CONTEXT), device=device)
    mask = torch.ones_like(ids, dtype=torch.bool)
    return Images(pixels, number), Texts(ids, mask, number, number, torch.zeros_like(number))


if __name__ == "__main__":
    keep_pages()
    main()
