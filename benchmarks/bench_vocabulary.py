"""Cross-entropy over a large vocabulary that stores no logits, against one that stores them: time and memory.

    python -m benchmarks.bench_vocabulary [--repeats 7] [--small]

The plain way is F.cross_entropy on the product of the tokens with the table. The tile engine of the losses
over pairs (`pair_loss` with `SoftmaxLoss`) is a third way: it computes the products of a tile once more in
the
backward pass. A call is one forward and backward pass, to tokens and table, at 1,024 x 49,408 x 128. Gates:
G10 of the performance goals, time >= 0.9x and memory <= 1/10 of the plain way. `--small` takes a vocabulary
of 4,096, at which no gate is set.
"""

import argparse
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.harness import fresh_peak, keep_pages, paired, report
from grainline.losses.tiled.pair_loss import SoftmaxLoss, pair_loss, vocabulary_loss
from grainline.losses.tiled.pair_mask import PairMatrix, RowIds
from grainline.losses.tiled.scores import Dot

WIDTH = 128


class Batch:
    """Tokens, a table whose rows are as long as word vectors at the start, and targets."""

    def __init__(self, tokens: int, vocab: int, dtype: torch.dtype = torch.float32) -> None:
        g = torch.Generator().manual_seed(0)
        self.hidden = torch.randn(tokens, WIDTH, generator=g, dtype=dtype).requires_grad_()
        self.table = (0.02 * torch.randn(vocab, WIDTH, generator=g, dtype=dtype)).requires_grad_()
        self.target = torch.randint(vocab, (tokens,), generator=g)


def tiles(batch: Batch) -> Tensor:
    mean = vocabulary_loss(batch.hidden, batch.table, batch.target)
    return mean.total / mean.number


def plain(batch: Batch) -> Tensor:
    return F.cross_entropy(batch.hidden @ batch.table.T, batch.target)


def engine(batch: Batch) -> Tensor:
    entry = torch.arange(len(batch.table))
    place = torch.arange(len(batch.hidden))
    rows = RowIds(place + len(entry), batch.target, torch.zeros_like(place), torch.zeros_like(place))
    cols = RowIds(entry, entry, torch.zeros_like(entry), torch.zeros_like(entry))
    loss = SoftmaxLoss(columns=False)
    (mean,) = pair_loss(Dot(), loss, (batch.hidden,), (batch.table,), PairMatrix(rows, cols))
    return mean.total / mean.number


WAYS: dict[str, Callable[[Batch], Tensor]] = {"tiles": tiles, "plain": plain, "engine": engine}


def prepared(way: str, tokens: int, vocab: int) -> Callable[[], None]:
    """Forward and backward over inputs that are there already."""
    _once(way, Batch(4, 16))  # code that is loaded late is there already
    return partial(_once, way, Batch(tokens, vocab))


def _once(way: str, batch: Batch) -> None:
    torch.autograd.grad(WAYS[way](batch), [batch.hidden, batch.table])


def differences(way: str) -> tuple[float, float]:
    """From the plain way, in float64: of the loss, and the largest of a gradient, relative to its length."""
    batch = Batch(64, 4096, torch.float64)
    losses = [WAYS[name](batch) for name in (way, "plain")]
    grads = [torch.autograd.grad(loss, [batch.hidden, batch.table]) for loss in losses]
    loss = abs(float((losses[0] - losses[1]).detach() / losses[1].detach()))
    return loss, max(float((a - b).norm() / b.norm()) for a, b in zip(*grads, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--small", action="store_true", help="a vocabulary of 4,096, at which no gate is set")
    args = parser.parse_args()
    size = (1024, 4096 if args.small else 49408)
    facts = {"tokens": size[0], "vocabulary": size[1], "threads": torch.get_num_threads()}
    memory = {way: fresh_peak("benchmarks.bench_vocabulary:prepared", way, *size).more for way in WAYS}
    for way in ("tiles", "engine"):
        gated = way == "tiles" and not args.small  # the engine is there for comparison alone
        for what, value in zip(("loss", "gradient"), differences(way), strict=True):
            report(f"G10 {way}: relative difference of the {what}", value, "", at_most=1e-11)
        ratio = paired(prepared(way, *size), prepared("plain", *size), args.repeats)
        report(f"G10 time plain / {way}", ratio, "x", at_least=0.9 if gated else None, **facts)
        share = memory[way] / memory["plain"]
        report(f"G10 memory {way} / plain", share, "x", at_most=0.1 if gated else None, **facts, **memory)


if __name__ == "__main__":
    keep_pages()
    main()
