"""Farthest point sampling: all sets at once in float32 against one set after the other in float64.

    python -m benchmarks.bench_farthest [--repeats 7]

The loop subtracts each pick from all tokens of its set. Gates: G8 of the performance goals.
"""

import argparse
from functools import partial

import torch
from torch import Tensor

from benchmarks.harness import keep_pages, paired, report, seconds
from grainline.nn.grouping import farthest_points

SETS, TOKENS, WIDTH, PICKS = 64, 197, 768, 65


def one_by_one(x: Tensor) -> Tensor:
    """The picks of each set, with differences of its tokens in float64: [N, M]"""
    out = []
    for tokens in x.double():
        nearest = (tokens - tokens.mean(0)).square().sum(1)
        picks = []
        for _ in range(PICKS):
            pick = int(nearest.argmax())
            picks.append(pick)
            apart = (tokens - tokens[pick]).square().sum(1)
            nearest = nearest.minimum(apart)
        out.append(picks)
    return torch.tensor(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    torch.manual_seed(0)
    x = torch.randn(SETS, TOKENS, WIDTH)
    ours, loop = partial(farthest_points, x, None, PICKS), partial(one_by_one, x)
    what = f"farthest points B={SETS}, {TOKENS} x {WIDTH} -> {PICKS}"
    ratio = paired(ours, loop, args.repeats)
    times = {
        "ours_ms": 1e3 * min(seconds(ours) for _ in range(args.repeats)),
        "threads": torch.get_num_threads(),
    }
    report(f"{what}: loop in float64 / ours", ratio, "x", at_least=8.0, **times)
    for offset in (0, 1000):
        moved = x + offset
        same = (farthest_points(moved, None, PICKS).token == one_by_one(moved)).double().mean()
        report(f"{what}: equal indices, offset {offset}", 100 * float(same), "%", at_least=99.9)


if __name__ == "__main__":
    keep_pages()
    main()
