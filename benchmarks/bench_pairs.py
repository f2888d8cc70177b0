"""beta-CAL in tiles against whole matrices: time, memory, and how both grow with the number of rows.

    python -m benchmarks.bench_pairs [--sizes 2304 4608 9216] [--repeats 7]

The other side is the loss as the code of its authors forms it: a matrix of logits for each direction, one of
weights, and the losses of torch over them. "whole" is ours over one matrix. Rows are 36 texts for each of
N / 36 images, at width 512; every side is one forward and backward pass. Gates: G5 of the performance goals
and the growth of time with N squared and of memory with N, as slopes of a log-log fit.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.harness import fresh_peak, keep_pages, paired, report, seconds
from grainline.losses.calibrated import beta_bce, beta_ce_both
from grainline.losses.tiled.pair_mask import RowIds
from tests.test_beta import Beta, dense_beta_bce, dense_beta_ce, pairs_of, slot_keys

SLOTS, WIDTH, SCALE, BETA = 36, 512, 14.3, 0.5
GATES = {"ce": 1.6, "bce": 2.4}  # at 2,304 rows
WEIGHTS = Beta(BETA)


def inputs(number: int) -> tuple[Tensor, Tensor, RowIds]:
    """Two sides that agree about as far as trained ones do."""
    v = torch.randn(number, WIDTH)
    t = v + torch.randn(number, WIDTH)
    place = torch.arange(number)
    keys = slot_keys(place, place // SLOTS, SLOTS)
    return F.normalize(v, dim=1).requires_grad_(), F.normalize(t, dim=1).requires_grad_(), keys


def tiles_ce(v: Tensor, t: Tensor, keys: RowIds) -> Tensor:
    return (
        sum(
            (mean.total / mean.number for mean in beta_ce_both(SCALE * v, t, pairs_of(keys, keys, WEIGHTS))),
            v.new_zeros(()),
        )
        / 2
    )


def tiles_bce(v: Tensor, t: Tensor, keys: RowIds) -> Tensor:
    mean = beta_bce(SCALE * v, t, pairs_of(keys, keys, WEIGHTS), "pairs")
    return mean.total / mean.number


def whole_ce(v: Tensor, t: Tensor, keys: RowIds) -> Tensor:
    logits = SCALE * v @ t.T
    means = [dense_beta_ce(x, keys, keys, WEIGHTS) for x in (logits, logits.T)]
    return sum((mean.total / mean.number for mean in means), v.new_zeros(())) / 2


def whole_bce(v: Tensor, t: Tensor, keys: RowIds) -> Tensor:
    mean = dense_beta_bce(SCALE * v @ t.T, keys, keys, WEIGHTS, "pairs")
    return mean.total / mean.number


def authors_ce(v: Tensor, t: Tensor, keys: RowIds) -> Tensor:
    same = keys.image[:, None] == keys.image
    weight = torch.where(same, BETA, 0.0).fill_diagonal_(1.0)
    weight = weight / weight.sum(1, keepdim=True)
    both = SCALE * v @ t.T, SCALE * t @ v.T
    return sum((F.cross_entropy(logits, weight) for logits in both), v.new_zeros(())) / 2


def authors_bce(v: Tensor, t: Tensor, keys: RowIds) -> Tensor:
    same = keys.image[:, None] == keys.image
    weight = torch.where(same, BETA, 1.0).fill_diagonal_(1.0)
    both = SCALE * v @ t.T, SCALE * t @ v.T
    losses = [F.binary_cross_entropy_with_logits(logits, same.float(), weight) for logits in both]
    return (losses[0] + losses[1]) / 2


WAYS: dict[str, Callable[[Tensor, Tensor, RowIds], Tensor]] = {
    "tiles ce": tiles_ce,
    "tiles bce": tiles_bce,
    "whole ce": whole_ce,
    "whole bce": whole_bce,
    "authors ce": authors_ce,
    "authors bce": authors_bce,
}


def prepared(way: str, number: int) -> Callable[[], None]:
    """Forward and backward over inputs that are there already."""
    torch.manual_seed(0)
    v, t, keys = inputs(number)
    _once(way, *inputs(2 * SLOTS))  # code that is loaded late is there already
    return partial(_once, way, v, t, keys)


def _once(way: str, v: Tensor, t: Tensor, keys: RowIds) -> None:
    torch.autograd.grad(WAYS[way](v, t, keys), (v, t))


def slope(sizes: list[int], values: list[float]) -> float:
    """Of a straight line through the logarithms, by least squares."""
    x, y = [math.log(size) for size in sizes], [math.log(value) for value in values]
    mean = sum(x) / len(x)
    return sum((a - mean) * b for a, b in zip(x, y, strict=True)) / sum((a - mean) ** 2 for a in x)


def differences(number: int) -> dict[str, float]:
    """Largest differences from the authors' form, in loss and in gradients, relative to the largest entry."""
    v, t, keys = inputs(number)
    out = {}
    for name in GATES:
        found, expected = (WAYS[f"{way} {name}"](v, t, keys) for way in ("tiles", "authors"))
        grads, exact = (torch.autograd.grad(x, (v, t)) for x in (found, expected))
        out[f"{name} loss"] = abs(float((found - expected).detach() / expected.detach()))
        out[f"{name} gradient"] = max(
            float((a - b).abs().max() / b.abs().max()) for a, b in zip(grads, exact, strict=True)
        )
    return out


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2304, 4608, 9216])
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args(arguments)
    torch.manual_seed(0)
    for what, value in differences(args.sizes[0]).items():
        report(f"beta-CAL {what}: relative difference", value, "", at_most=1e-5, rows=args.sizes[0])
    for name, gate in GATES.items():
        times, peaks = [], []
        for number in args.sizes:
            sides = {way: prepared(f"{way} {name}", number) for way in ("tiles", "whole", "authors")}
            facts = {"rows": number, "threads": torch.get_num_threads()}
            for other in ("authors", "whole"):
                least = gate if other == "authors" and number == args.sizes[0] else None
                ratio = paired(sides["tiles"], sides[other], args.repeats)
                report(
                    f"beta-CAL {name} N={number}: time {other} / tiles", ratio, "x", at_least=least, **facts
                )
            times.append(min(seconds(sides["tiles"]) for _ in range(args.repeats)))
            memory = {
                way: fresh_peak("benchmarks.bench_pairs:prepared", f"{way} {name}", number).more
                for way in sides
            }
            peaks.append(memory["tiles"])
            share = memory["tiles"] / memory["authors"]
            most = 1 / 15 if number == max(args.sizes) else None
            report(
                f"beta-CAL {name} N={number}: memory tiles / authors",
                share,
                "x",
                at_most=most,
                **facts,
                **memory,
            )
        if len(args.sizes) < 2:
            continue  # one size shows no growth
        for what, values, most in (("time", times, 2.15), ("memory", peaks, 1.15)):
            growth = slope(args.sizes, values)
            report(f"beta-CAL {name}: {what} grows with N to the power", growth, "", at_most=most)


if __name__ == "__main__":
    keep_pages()
    main()
