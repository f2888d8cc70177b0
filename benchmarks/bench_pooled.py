"""Images pooled by every text, in tiles, against a module that is called for every pair: time and memory.

    python -m benchmarks.bench_pooled [--repeats 7] [--small]

The other side does as FLAIR does: what a text pools is made by calling the attention module on the texts
expanded to every image, so that each pair projects its text anew, and a tensor of images x texts x width
is there, several times. For sampled negatives the texts of every image are gathered first. Width 512, 64
segments and 8 captions for each of B images; a side is one forward and backward pass, to images, texts
and all parameters. Scores are those of 16 images with 4,096 texts, forward alone; a query that ranks anew
has 4 parts and 100 candidates, whose keys and values are held. Gates: G1 to G4 and G11 of the performance
goals, and the growth of time with B squared and of memory with B, as slopes of a log-log fit. `--small` takes
sizes of seconds, at which no gate is set.
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.bench_pairs import slope
from benchmarks.harness import fresh_peak, keep_pages, paired, report, seconds
from grainline.losses.text_conditioned import part_loss, part_pairs, pooled_scores
from grainline.losses.tiled.pair_mask import Pairs, RowIds, sample_negatives
from grainline.nn.pooling import ConditionedPool, KeyValue
from grainline.types import Clock

WIDTH, SLOTS, CAPTIONS = 512, 64, 8
IMAGES, TEXTS = 16, 4096  # of scores
CANDIDATES, PARTS = 100, 4


class Goal(NamedTuple):
    """A loss at a size, and what it must reach there."""

    name: str
    negatives: str
    heads: int
    number: int
    faster: float
    share: float  # of the memory of the other side


GOALS = (
    Goal("G1 all", "all", 8, 128, 2.7, 1 / 20),
    Goal("G2 all, one head", "all", 1, 128, 4.0, 1 / 20),
    Goal("G3 sampled", "sampled", 8, 256, 2.0, 1 / 6),
)


class Batch:
    """Images with their captions, which agree with one segment each, and what learns."""

    def __init__(self, number: int, heads: int) -> None:
        torch.manual_seed(0)
        self.pool = ConditionedPool(WIDTH, heads)
        self.segments = torch.randn(number, SLOTS, WIDTH).requires_grad_()
        texts = self.segments[:, :CAPTIONS].detach() + torch.randn(number, CAPTIONS, WIDTH)
        self.texts = texts.flatten(0, 1).requires_grad_()
        self.scale = torch.tensor([14.3]).requires_grad_()
        self.bias = torch.tensor([-10.0]).requires_grad_()
        place = torch.arange(number * CAPTIONS)
        nothing = torch.zeros_like(place)
        self.captions = RowIds(place, place // CAPTIONS, nothing, place % CAPTIONS)
        self.images = RowIds(place[:number], place[:number], nothing[:number], nothing[:number])

    def learnt(self) -> list[Tensor]:
        return [self.segments, self.texts, self.scale, self.bias, *self.pool.parameters()]

    def pairs(self, negatives: Any) -> Pairs:
        return part_pairs(self.images, self.captions, negatives, Clock())


def tiles(batch: Batch, negatives: str) -> Tensor:
    pairs = batch.pairs(negatives)
    mean = part_loss(batch.pool, (batch.segments, None), batch.texts, pairs, batch.scale, batch.bias)
    return mean.total / mean.number


def modules(batch: Batch, negatives: str) -> Tensor:
    """FLAIR's way: the module on texts expanded to every image; all captions, or those of the lists."""
    number, pairs = len(batch.segments), batch.pairs(negatives)
    if negatives == "sampled":
        pairs = sample_negatives(batch.images, batch.captions, Clock())
        where = pairs.where()
        index = pairs.places
        asked = batch.texts[index.clamp(min=0)]  # [B, K + B, D]
        weight = where.real.float()
    else:
        where = pairs.where()
        asked = batch.texts.expand(number, -1, -1)
        weight = torch.where(where.same, 1.0, 1 / CAPTIONS)
    pooled = library(batch.pool, asked, batch.segments)
    cosine = (F.normalize(pooled, dim=-1) * F.normalize(asked, dim=-1)).sum(-1)
    logits = batch.scale * cosine + batch.bias
    sign = torch.where(where.same, 1.0, -1.0)
    return -(weight * F.logsigmoid(sign * logits)).sum() / number


def library(pool: ConditionedPool, texts: Tensor, segments: Tensor) -> Tensor:
    """The attention of torch as FLAIR calls it, with the parameters of the pool: [N, K, D]"""
    into = pool.to_query, pool.to_key, pool.to_value
    q, k, v = pool.norm_query(texts), pool.norm_key(segments), pool.norm_value(segments)
    out, _ = F.multi_head_attention_forward(
        *(x.transpose(0, 1) for x in (q, k, v)),
        embed_dim_to_check=WIDTH,
        num_heads=pool.heads,
        in_proj_weight=torch.cat([layer.weight for layer in into]),
        in_proj_bias=torch.cat([layer.bias for layer in into]),
        bias_k=None,
        bias_v=None,
        add_zero_attn=True,
        dropout_p=0.0,
        out_proj_weight=pool.to_out.weight,
        out_proj_bias=pool.to_out.bias,
        need_weights=False,
    )
    return out.transpose(0, 1)


WAYS: dict[str, Callable[[Batch, str], Tensor]] = {"tiles": tiles, "modules": modules}


def prepared(way: str, negatives: str, number: int, heads: int) -> Callable[[], None]:
    """Forward and backward over inputs that are there already."""
    _once(way, negatives, Batch(4, heads))  # code that is loaded late is there already
    return partial(_once, way, negatives, Batch(number, heads))


def _once(way: str, negatives: str, batch: Batch) -> None:
    torch.autograd.grad(WAYS[way](batch, negatives), batch.learnt())


def differences(heads: int, negatives: str) -> tuple[float, float]:
    """From the modules, in float64: of the loss, and the largest of a gradient, relative to its length.

    That of the bias of keys all but cancels out, on either side: no length counts as less than 0.001.
    """
    batch = Batch(8, heads)
    batch.pool.double()
    with torch.no_grad():
        for p in batch.pool.parameters():  # without biases the key of one head would have a gradient of 0
            p.add_(0.1 * torch.randn_like(p))
    for name in ("segments", "texts", "scale", "bias"):
        setattr(batch, name, getattr(batch, name).detach().double().requires_grad_())
    losses = [way(batch, negatives) for way in WAYS.values()]
    grads = [torch.autograd.grad(loss, batch.learnt()) for loss in losses]
    loss = abs(float((losses[0] - losses[1]).detach() / losses[1].detach()))
    return loss, max(float((a - b).norm() / b.norm().clamp(min=1e-3)) for a, b in zip(*grads, strict=True))


def losses(goal: Goal, number: int, gated: bool, repeats: int) -> None:
    """Time and memory of a loss against the modules."""
    arguments = goal.negatives, number, goal.heads
    facts = {"images": number, "heads": goal.heads, "threads": torch.get_num_threads()}
    for what, value in zip(("loss", "gradient"), differences(goal.heads, goal.negatives), strict=True):
        report(f"{goal.name}: relative difference of the {what}", value, "", at_most=1e-10, heads=goal.heads)
    ratio = paired(prepared("tiles", *arguments), prepared("modules", *arguments), repeats)
    faster, share = (goal.faster, goal.share) if gated else (None, None)
    report(f"{goal.name} B={number}: time modules / tiles", ratio, "x", at_least=faster, **facts)
    memory = {way: fresh_peak("benchmarks.bench_pooled:prepared", way, *arguments).more for way in WAYS}
    ratio_of = memory["tiles"] / memory["modules"]
    report(f"{goal.name} B={number}: memory tiles / modules", ratio_of, "x", at_most=share, **facts, **memory)


def growth(goal: Goal, sizes: list[int], repeats: int) -> None:
    """How time and memory of the tiles grow with the number of images."""
    calls = [prepared("tiles", goal.negatives, number, goal.heads) for number in sizes]
    times = [min(seconds(call) for _ in range(repeats)) for call in calls]
    peaks = [
        fresh_peak("benchmarks.bench_pooled:prepared", "tiles", goal.negatives, number, goal.heads).more
        for number in sizes
    ]
    facts = {"sizes": sizes, "times": times, "peaks": peaks}
    report(f"{goal.name}: time grows with B to the power", slope(sizes, times), "", at_most=2.15, **facts)
    report(f"{goal.name}: memory grows with B to the power", slope(sizes, peaks), "", at_most=1.15)


@torch.no_grad()
def scores(images: int, number: int, gated: bool, repeats: int) -> None:
    """All scores, keys and values included; FLAIR calls its module for one image at a time."""
    pool = Batch(1, 8).pool
    segments, texts = torch.randn(images, SLOTS, WIDTH), torch.randn(number, WIDTH)

    def module() -> Tensor:
        unit = F.normalize(texts, dim=-1)
        rows = [F.normalize(library(pool, texts[None], one[None])[0], dim=-1) for one in segments]
        return torch.stack([(row * unit).sum(-1) for row in rows])

    def tiled(dtype: torch.dtype = torch.float32) -> Tensor:
        key, value, mask = pool.keys(segments)
        return pooled_scores(pool, KeyValue(key.to(dtype), value.to(dtype), mask), texts[:, None])

    expected = module()
    for name, dtype, faster, most in (("", torch.float32, 1.8, 1e-6), (" bf16", torch.bfloat16, 2.8, 5e-3)):
        call = partial(tiled, dtype)
        report(
            f"G4 scores{name}: largest difference", float((call() - expected).abs().max()), "", at_most=most
        )
        ratio, least = paired(call, module, repeats), faster if gated else None
        facts = {"images": images, "texts": number, "pairs_per_s": images * number / seconds(call)}
        report(f"G4 scores{name}: time modules / tiles", ratio, "x", at_least=least, **facts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--small", action="store_true", help="sizes of seconds, at which no gate is set")
    args = parser.parse_args()
    scores(4 if args.small else IMAGES, 512 if args.small else TEXTS, not args.small, args.repeats)
    for goal in GOALS:
        number = goal.number // 8 if args.small else goal.number
        losses(goal, number, not args.small, args.repeats)
        growth(goal, [number // 2, number, 2 * number] if args.small else [64, 128, 256], 3)


if __name__ == "__main__":
    keep_pages()
    main()
