"""Patches that a text keeps, aggregated, and matched with its words, as `nn/selection.py` has them.

A program holds the scores of the patches of some pairs. Their bits in the order of the numbers are integers;
the bits of the threshold, the `number`-th highest of them, come one by one, each by counting. What is
above it stays, and of patches at the threshold the first, until the number is reached. (torch promises no
order of equal scores.)

    best      decisions from scores
    selected  scores and decisions from products of texts with patches, in one pass
    norms     lengths of tokens that kept patches are aggregated to, without the tokens
    matched   from cosines of patches with words what each finds on the other side: means, and the best few
"""

from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from grainline.kernels.launch import FUSION

NUMBERS = 512  # in the registers of a warp, at most


@triton.jit
def _ordered(x):
    """Integers in the order of the numbers, from 1; NaN is above all, as in torch, and 0 equals -0"""
    bits = tl.where(x == 0, 0.0, x).to(tl.uint32, bitcast=True)
    key = tl.where(bits >= 0x80000000, ~bits, bits | 0x80000000)
    return tl.where(x == x, key, 0xFFFFFFFF)


@triton.jit
def _highest(score, real, number):
    """The `number` highest of each row [BM, BL], or all of fewer."""
    key = tl.where(real, _ordered(score), 0)
    least = tl.zeros_like(tl.max(key, 1))
    bit = least + 0x80000000
    for _ in range(32):
        enough = tl.sum((key >= (least | bit)[:, None]).to(tl.int32), 1) >= number
        least = tl.where(enough, least | bit, least)
        bit = bit >> 1
    above, equal = key > least[:, None], (key == least[:, None]).to(tl.int32)
    room = number - tl.sum(above.to(tl.int32), 1)
    return above | ((equal > 0) & (tl.cumsum(equal, 1) <= room[:, None]))


@triton.jit(do_not_specialize=["rows", "number"])
def _best(score, keep, rows, number, L: tl.constexpr, BM: tl.constexpr, BL: tl.constexpr):
    row, col = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)[:, None], tl.arange(0, BL)[None, :]
    real = (row < rows) & (col < L)
    x = tl.load(score + row * L + col, mask=real, other=0.0).to(tl.float32)
    tl.store(keep + row * L + col, _highest(x, real, number).to(keep.dtype.element_ty), mask=real)


@triton.jit(do_not_specialize=["rows", "T", "number"])
def _selected(
    product, length, base, score, keep, rows, T, number, share,
    L: tl.constexpr, BM: tl.constexpr, BL: tl.constexpr, STRETCH: tl.constexpr,
):  # fmt: skip
    row, col = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)[:, None], tl.arange(0, BL)[None, :]
    real = (row < rows) & (col < L)
    at, own = row * L + col, row // T * L + col
    x = tl.load(product + at, mask=real, other=0.0).to(tl.float32)
    x = tl.div_rn(x, tl.load(length + own, mask=real, other=1.0))
    if STRETCH:
        low = tl.min(tl.where(col < L, x, float("inf")), 1)[:, None]
        high = tl.max(tl.where(col < L, x, float("-inf")), 1)[:, None]
        x = tl.div_rn(x - low, high - low + 1e-8)
    x = tl.load(base + own, mask=real, other=0.0) + share * x
    stays = _highest(x, real, number)
    tl.store(score + at, x, mask=real)
    tl.store(keep + at, stays.to(tl.float32), mask=real)


def tile(patches: int) -> tuple[dict[str, int], dict[str, Any]]:
    """Pairs and patches of a program, and launch settings."""
    wide = triton.next_power_of_2(patches)
    sizes = {"L": patches, "BM": max(1, NUMBERS // wide), "BL": wide}
    return sizes, {"num_warps": max(1, wide // NUMBERS), **FUSION}


@torch.library.custom_op("grainline::best", mutates_args=())
def best(score: Tensor, number: int) -> Tensor:
    """1 at the `number` highest of L scores, of equal ones the first, else 0: [..., L] -> [..., L]

    As `nn.selection.hard_topk`, which is the reference.
    """
    score = score.contiguous()
    keep = torch.empty_like(score)
    sizes, launch = tile(score.shape[-1])
    rows = score.numel() // score.shape[-1]
    if rows:
        with torch.cuda.device_of(score):
            _best[(triton.cdiv(rows, sizes["BM"]),)](score, keep, rows, number, **sizes, **launch)
    return keep


@best.register_fake
def _(score: Tensor, number: int) -> Tensor:
    return torch.empty_like(score, memory_format=torch.contiguous_format)


@torch.library.custom_op("grainline::selected", mutates_args=())
def selected(
    product: Tensor, length: Tensor, base: Tensor, share: float, stretch: bool, number: int
) -> tuple[Tensor, Tensor]:
    """Scores of patches and decisions of each pair, 1 for the `number` highest: [n, t, L] float32 both

    product  [n, t, L] of texts with patches; length [n, L] of the patches
    base     [n, L] scores without the share of the text
    share    weight of the cosine with the text, stretched to the range 0..1 over the patches or not

    As `Selector.choose` in `nn/patch_selection/selector.py`, which is the reference.
    """
    product, length, base = product.contiguous(), length.contiguous(), base.contiguous()
    score, keep = (torch.empty_like(product, dtype=torch.float32) for _ in range(2))
    texts, patches = product.shape[1:]
    sizes, launch = tile(patches)
    rows = len(product) * texts
    if rows:
        with torch.cuda.device_of(product):
            _selected[(triton.cdiv(rows, sizes["BM"]),)](
                product, length, base, score, keep, rows, texts, number, share, STRETCH=stretch, **sizes,
                **launch,
            )  # fmt: skip
    return score, keep


@selected.register_fake
def _(
    product: Tensor, length: Tensor, base: Tensor, share: float, stretch: bool, number: int
) -> tuple[Tensor, Tensor]:  # fmt: skip
    score = product.new_empty(product.shape, dtype=torch.float32)
    return score, torch.empty_like(score)


@triton.jit(do_not_specialize=["T", "C", "tiles"])
def _norms(
    weight, keep, basis, plus, total, out, T, C, tiles,
    L: tl.constexpr, PLUS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    image, row = tl.program_id(0).to(tl.int64) // tiles, tl.program_id(0) % tiles * BM + tl.arange(0, BM)
    real = row < T * C
    text, slot, at = row // C, row % C, tl.arange(0, BN)
    weight += ((image * C + slot) * L)[:, None]
    keep += ((image * T + text) * L)[:, None]
    basis += image * L * L
    square = tl.zeros([BM], tl.float32)
    if PLUS:
        plus += ((image * C + slot) * L)[:, None]
        share = tl.load(total + image * T * C + row, mask=real, other=0.0).to(tl.float32)
    for first in range(0, L, BN):
        col = first + at
        token = tl.zeros([BM, BN], tl.float32)
        for start in range(first, L, BN):  # above the diagonal all are 0
            k = start + at
            here = real[:, None] & (k < L)[None, :]
            a = tl.load(weight + k[None, :], mask=here, other=0.0)
            a = a * tl.load(keep + k[None, :], mask=here, other=0.0)
            inside = (k < L)[:, None] & (col < L)[None, :]
            b = tl.load(basis + k[:, None] * L + col[None, :], mask=inside, other=0.0)
            token = tl.dot(a, b, token)
        if PLUS:
            here = real[:, None] & (col < L)[None, :]
            token += share[:, None] * tl.load(plus + col[None, :], mask=here, other=0.0).to(tl.float32)
        square += tl.sum(token * token, 1)
    tl.store(out + image * T * C + row, tl.sqrt_rn(square), mask=real)


NORMS = {"BM": 128, "BN": 64, "num_warps": 8, "num_stages": 2, **FUSION}


@torch.library.custom_op("grainline::norms", mutates_args=())
def norms(weight: Tensor, keep: Tensor, basis: Tensor, plus: Tensor, total: Tensor) -> Tensor:
    """|(weight * keep) @ basis + total * plus| of each image, text and slot: [n, t, C] float32

    weight [n, C, L], keep [n, t, L], total [n, t, C], basis [n, L, L] that is 0 above its diagonal; plus
    [n, C, L], or with C = 0, which leaves it out; operands are in half precision

    As `FastCosines` in `nn/patch_selection/selector.py`, which is the reference.
    """
    weight, keep, basis, plus, total = (x.contiguous() for x in (weight, keep, basis, plus, total))
    out = torch.empty_like(total, dtype=torch.float32)
    images, texts, slots = total.shape
    tiles = triton.cdiv(texts * slots, NORMS["BM"])
    if images * tiles:
        with torch.cuda.device_of(weight):
            _norms[(images * tiles,)](
                weight, keep, basis, plus, total, out, texts, slots, tiles,
                L=weight.shape[2], PLUS=plus.shape[1] > 0, **NORMS,
            )  # fmt: skip
    return out


@norms.register_fake
def _(weight: Tensor, keep: Tensor, basis: Tensor, plus: Tensor, total: Tensor) -> Tensor:
    return torch.empty_like(total, dtype=torch.float32, memory_format=torch.contiguous_format)


@triton.jit
def _greatest(x, col, to, K: tl.constexpr):
    """The K greatest numbers above -inf of a block, in descending order; the least is repeated"""
    last, at = tl.max(x, 0, return_indices=True)
    for k in range(K):
        top, at = tl.max(x, 0, return_indices=True)
        last = tl.where(top > float("-inf"), top, last)
        tl.store(to + k, last)
        x = tl.where(col == at, float("-inf"), x)


@triton.jit
def _matched(
    cosine, weight, words, means, of_patches, of_words, leak,
    P: tl.constexpr, M: tl.constexpr, BP: tl.constexpr, BM: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    pair, p, m = tl.program_id(0).to(tl.int64), tl.arange(0, BP), tl.arange(0, BM)
    at = (pair * P + p)[:, None] * M + m[None, :]
    x = tl.load(cosine + at, mask=(p < P)[:, None] & (m < M)[None, :], other=0.0).to(tl.float32)
    x = tl.where(x < 0, leak * x, x)
    share = tl.load(weight + pair * P + p, mask=p < P, other=0.0).to(tl.float32)
    word = tl.load(words + pair * M + m, mask=m < M, other=0).to(tl.int32)
    word = tl.where((tl.sum(word, 0) == 0) & (m == 0), 1, word)
    by_patch = tl.max(tl.where((word > 0)[None, :], x, float("-inf")), 1)
    by_word = tl.max(tl.where((share > 0)[:, None], x, float("-inf")), 0)
    tl.store(means + 2 * pair, tl.sum(tl.where(p < P, by_patch * share, 0.0), 0) / tl.sum(share, 0))
    total = tl.sum(tl.where(word > 0, by_word, 0.0), 0)
    tl.store(means + 2 * pair + 1, total / tl.sum(word, 0).to(tl.float32))
    _greatest(tl.where(share > 0, by_patch, float("-inf")), p, of_patches + pair * K, K)
    _greatest(tl.where(word > 0, by_word, float("-inf")), m, of_words + pair * K, K)


def block(patches: int, words: int) -> tuple[dict[str, int], dict[str, Any]]:
    """Sizes of a pair, and launch settings."""
    sizes = {"P": patches, "M": words} | {
        name: triton.next_power_of_2(x) for name, x in (("BP", patches), ("BM", words))
    }
    return sizes, {"num_warps": min(8, max(1, sizes["BP"] * sizes["BM"] // 1024)), **FUSION}


@torch.library.custom_op("grainline::matched", mutates_args=())
def matched(
    cosine: Tensor, weight: Tensor, words: Tensor, number: int, leak: float
) -> tuple[Tensor, Tensor, Tensor]:
    """What the patches and the words of each pair find: means [N, 2], and of each the best [N, number]

    cosine [N, P, M], weight [N, P], words [N, M] bool; leak: slope of negative cosines, 1: as they are

    As `nn.selection.Relevance`, which is the reference.
    """
    cosine, weight, words = cosine.contiguous(), weight.contiguous(), words.contiguous()
    new = partial(torch.empty, dtype=torch.float32, device=cosine.device)
    pairs, patches, length = cosine.shape
    means, of_patches, of_words = new(pairs, 2), new(pairs, number), new(pairs, number)
    sizes, launch = block(patches, length)
    if pairs:
        with torch.cuda.device_of(cosine):
            _matched[(pairs,)](
                cosine, weight, words, means, of_patches, of_words, leak, K=number, **sizes, **launch
            )
    return means, of_patches, of_words


@matched.register_fake
def _(
    cosine: Tensor, weight: Tensor, words: Tensor, number: int, leak: float
) -> tuple[Tensor, Tensor, Tensor]:
    means, best = (cosine.new_empty(len(cosine), x, dtype=torch.float32) for x in (2, number))
    return means, best, torch.empty_like(best)
