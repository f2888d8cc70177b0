"""Pictures pooled by every text, in tiles, against a module that is called for every pair: time and memory.

    python -m benchmarks.bench_pooled [--repeats 7] [--small]

The other side does as FLAIR does: what a text pools is made by calling the attention module on the texts
expanded to every picture, so that each pair projects its text anew, and a tensor of pictures x texts x width is
there, several times. For sampled negatives the texts of every picture are gathered first. Width 512, 64
segments and 8 captions for each of B pictures; a side is one forward and backward pass, to pictures, texts and
all parameters. Gates: G1 to G4 and G11 of the performance goals, and the growth of time with B squared (with B
for pairs by lot, of which each picture has B) and of memory with B, as slopes of a log-log fit. `--small`
takes sizes of seconds, where no gate is said.
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.bench_pairs import slope
from benchmarks.harness import fresh_peak, keep_pages, paired, report, seconds
from grainline.losses.blocks import Blocks, Keys
from grainline.losses.lists import Lists
from grainline.losses.pooled import part_loss, part_pairs
from grainline.nn.condition import ConditionedPool
from grainline.types import Clock

WIDTH, SLOTS, CAPTIONS = 512, 64, 8
LEARNT = tuple[list[Tensor], ConditionedPool]


class Batch:
    """Pictures with their captions, which agree with one segment each, and what learns."""

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
        self.captions = Keys(place, place // CAPTIONS, nothing, place % CAPTIONS)
        self.pictures = Keys(place[:number], place[:number], nothing[:number], nothing[:number])

    def learnt(self) -> list[Tensor]:
        return [self.segments, self.texts, self.scale, self.bias, *self.pool.parameters()]

    def pairs(self, negatives: Any) -> Blocks | Lists:
        return part_pairs(self.pictures, self.captions, negatives, Clock())


def tiles(batch: Batch, negatives: str) -> Tensor:
    pairs = batch.pairs(negatives)
    mean = part_loss(batch.pool, (batch.segments, None), batch.texts, pairs, batch.scale, batch.bias)
    return mean.total / mean.number


def modules(batch: Batch, negatives: str) -> Tensor:
    """FLAIR's way: the module on texts expanded to every picture; all captions, or those of the lists."""
    number, pairs = len(batch.segments), batch.pairs(negatives)
    if isinstance(pairs, Lists):
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
