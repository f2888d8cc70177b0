"""Texts in groups of similar length against all padded to the longest: forward and backward, gate G14.

Lengths are drawn around the means of two methods to come:
  caft       8 sub-captions an image, about 35 tokens each, at most 77
  beta-clip  a caption and five sentences of about 190 tokens, at most 248, and 30 phrases of about 15
Both ways must give the same summaries, to 1e-6 of their length.

    python -m benchmarks.bench_buckets [--encoder Ti] [--repeats 7] [--share 1.0]
"""

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.harness import keep_pages, paired, report
from grainline.encoders.text import TextConfig, TextTransformer, length_groups

VOCAB = 8192


class Case(NamedTuple):
    """Texts of one method."""

    lengths: Callable[[int], Tensor]  # number of images -> [M]
    images: int
    context: int
    gate: float


def around(mean: float, spread: float, number: int, least: int, most: int) -> Tensor:
    """Whole numbers of a bell curve, [number]."""
    return (torch.randn(number) * spread + mean).round().clamp(least, most).long()


CASES = {
    "caft": Case(lambda n: around(35, 14, 8 * n, 5, 77), 16, 77, 1.35),
    "beta-clip": Case(
        lambda n: torch.cat([around(190, 40, 6 * n, 20, 248), around(15, 5, 30 * n, 3, 30)]), 4, 248, 2.0
    ),
}


def measure(name: str, encoder: str, repeats: int, share: float) -> None:
    """One case; `share` of its images, for a quick try."""
    case = CASES[name]
    torch.manual_seed(0)
    lengths = case.lengths(max(1, round(case.images * share)))
    mask = torch.arange(int(lengths.max()))[None] < lengths[:, None]
    ids = torch.randint(3, VOCAB, mask.shape)
    config = {"name": encoder, "vocab": VOCAB, "context": case.context}
    one, many = (TextTransformer(TextConfig.model_validate(config | {"buckets": b})) for b in (1, 4))
    many.load_state_dict(one.state_dict())
    with torch.no_grad():
        padded, grouped = one(ids, mask).pooled, many(ids, mask).pooled
    tokens = sum(len(lengths[part]) * longest for part, longest in length_groups(lengths, 4)[1])
    facts: dict[str, Any] = {"texts": len(lengths), "encoder": encoder, "tokens": int(mask.sum())}
    facts |= {"padded_tokens": mask.numel(), "grouped_tokens": tokens}
    error = float((padded - grouped).norm() / padded.norm())
    report(f"buckets: {name}, difference of the summaries", error, "of length", at_most=1e-6, **facts)
    ratio = paired(lambda: run(many, ids, mask), lambda: run(one, ids, mask), repeats)
    report(f"buckets: {name}, time padded / grouped", ratio, "x", at_least=case.gate, **facts)


def run(encoder: TextTransformer, ids: Tensor, mask: Tensor) -> None:
    """Forward and backward of one batch."""
    encoder.zero_grad(set_to_none=True)
    encoder(ids, mask).pooled.square().sum().backward()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--encoder", default="Ti")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--share", type=float, default=1.0)
    args = parser.parse_args()
    for name in CASES:
        measure(name, args.encoder, args.repeats, args.share)


if __name__ == "__main__":
    keep_pages()
    main()
