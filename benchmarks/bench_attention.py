"""Attention in bfloat16 on a CPU: torch's SDPA kernel against the three lines of `nn.attention`.

Forward and backward at the lengths of captions and of patches: a causal text, a bidirectional one with
padding, and two images.

    python -m benchmarks.bench_attention [--batch 32] [--heads 6] [--repeats 7]
"""

import argparse
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.harness import keep_pages, paired, report
from grainline.nn.attention import attend

WIDTH = 64  # of a head


class Case(NamedTuple):
    """What attends to what."""

    length: int
    causal: bool
    padded: bool


CASES = {
    "16 patches": Case(16, False, False),
    "77 tokens, causal": Case(77, True, False),
    "192 tokens, padded": Case(192, False, True),
    "197 patches": Case(197, False, False),
}


def sdpa(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, causal: bool) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=causal)


def run(way: Any, inputs: list[Tensor], seen: Tensor | None, causal: bool) -> None:
    """Forward and backward of 4 calls."""
    for _ in range(4):
        way(*inputs, seen, causal).sum().backward()
        for x in inputs:
            x.grad = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    torch.manual_seed(0)
    for name, case in CASES.items():
        shape = (args.batch, args.heads, case.length, WIDTH)
        inputs = [torch.randn(shape, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
        seen = None
        if case.padded:
            lengths = torch.randint(case.length // 2, case.length + 1, (args.batch, 1))
            seen = (torch.arange(case.length) < lengths)[:, None, None]
        ours, torchs = (partial(run, way, inputs, seen, case.causal) for way in (attend, sdpa))
        ratio = paired(ours, torchs, args.repeats)
        report(f"attention: {name}, time of SDPA / ours", ratio, "x", at_least=1.0, shape=shape)


if __name__ == "__main__":
    keep_pages()
    main()
