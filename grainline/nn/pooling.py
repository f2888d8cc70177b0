"""Pooling: mean and attention, by a text, by a text that may read nothing, over rectangles."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grainline.nn.attention import attend, mlp
from grainline.types import full


class Pooled(NamedTuple):
    """A summary and the weights it was made with."""

    vector: Tensor  # [..., W]
    weight: Tensor  # [..., L] sums to 1: the heat map, for free


class AttentionPool(nn.Module):
    """One learnt query reads all tokens (the MAP head of Zhai et al., arXiv 2106.04560, as in SigLIP)."""

    def __init__(self, width: int, heads: int, mlp_ratio: float = 4.0) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Parameter(torch.randn(width) * width**-0.5)
        self.to_query = nn.Linear(width, width)
        self.to_key_value = nn.Linear(width, 2 * width)
        self.to_out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.mlp = mlp(width, int(width * mlp_ratio))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Pooled:
        """x [N, L, W], mask [N, L] bool or None -> Pooled([N, W], [N, L] mean over heads)"""
        query = self.to_query(self.query).unflatten(0, (self.heads, -1))  # [heads, W/heads]
        # [N, L, heads, W/heads]
        key, value = self.to_key_value(x).unflatten(-1, (2, self.heads, -1)).unbind(2)
        fit = torch.einsum("hc,nlhc->nhl", query, key) * query.shape[-1] ** -0.5
        if mask is not None:
            fit = fit.masked_fill(~mask[:, None], -torch.inf)
        weight = full(fit).softmax(-1)
        out = self._out(torch.einsum("nhl,nlhc->nhc", weight.to(value.dtype), value).flatten(1))
        return Pooled(out, weight.mean(1))

    def each(self, x: Tensor) -> Tensor:
        """The summary of each token alone: [N, L, W] -> [N, L, W]

        It puts tokens into the space of the summary, for heat maps (Zhou et al., arXiv 2112.01071).
        """
        return self._out(self.to_key_value(x).chunk(2, -1)[1])

    def _out(self, value: Tensor) -> Tensor:
        out = self.to_out(value)
        return out + self.mlp(self.norm(out))


def mean_pool(x: Tensor, mask: Tensor) -> Pooled:
    """The mean of the real tokens: x [N, L, W], mask [N, L]; zeros where nothing is real."""
    weight = mask.to(x.dtype) / mask.sum(-1, keepdim=True).clamp(min=1)
    return Pooled(torch.einsum("nl,nlw->nw", weight, x.masked_fill(~mask[..., None], 0.0)), weight)


def unit(x: Tensor) -> Tensor:
    """x [..., D] at length 1, in full precision: cosines of half-precision vectors lose the third digit."""
    return F.normalize(full(x), dim=-1)


class KeyValue(NamedTuple):
    """The keys and values of an image, which do not depend on the text."""

    key: Tensor  # [N, heads, L, D / heads]
    value: Tensor  # [N, heads, L, D / heads]
    mask: Tensor | None  # [N, L] bool, True = real segment; None: all are


def _init_attention(pool: "ConditionedPool | CrossPool", width: int) -> None:
    """Initialise like nn.MultiheadAttention: Xavier-uniform over the three projections stacked, biases 0."""
    bound = (6 / (width + 3 * width)) ** 0.5
    for layer in (pool.to_query, pool.to_key, pool.to_value):
        nn.init.uniform_(layer.weight, -bound, bound)
    for layer in (pool.to_query, pool.to_key, pool.to_value, pool.to_out):
        nn.init.zeros_(layer.bias)


class ConditionedPool(nn.Module):
    """Every text reads the segments of an image and an empty slot (FLAIR, arXiv 2412.03561; CAFT, 2602.02977)

    The empty slot has a key and a value of zeros. For each head:
        q, k, u = W_q LN_q(t) + b_q, W_k LN_k(v) + b_k, W_v LN_v(v) + b_v
        a[l] = exp(q . k[l] / sqrt(d)) / (1 + sum over l' of exp(q . k[l'] / sqrt(d)))
        z = sum over l of a[l] u[l]
    out = W_o (z of all heads side by side) + b_o

    This is nn.MultiheadAttention with add_zero_attn behind three LayerNorms. The text itself is not added.
    """

    def __init__(self, width: int, heads: int = 8) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width {width} is not a multiple of {heads} heads")
        self.heads = heads
        self.norm_query, self.norm_key, self.norm_value = (nn.LayerNorm(width) for _ in range(3))
        self.to_query, self.to_key, self.to_value = (nn.Linear(width, width) for _ in range(3))
        self.to_out = nn.Linear(width, width)
        _init_attention(self, width)

    def queries(self, texts: Tensor) -> Tensor:
        """texts [..., D], not of unit length -> [..., heads, D / heads], divided by sqrt(D / heads)"""
        query = self.to_query(self.norm_query(texts)).unflatten(-1, (self.heads, -1))
        return query * query.shape[-1] ** -0.5

    def keys(self, segments: Tensor, mask: Tensor | None = None) -> KeyValue:
        """segments [N, L, D], mask [N, L] bool -> keys and values"""
        key, value = (
            layer(norm(segments)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, norm in ((self.to_key, self.norm_key), (self.to_value, self.norm_value))
        )
        return KeyValue(key, value, mask)

    def read(self, queries: Tensor, key_values: KeyValue, share: Tensor | None = None) -> Pooled:
        """queries [N, K, heads, d] of the texts of each image -> Pooled([N, K, D], [N, K, L + 1])

        share  [N, L] in 0..1, a factor of exp(q . k[l] / sqrt(d)): how much of a segment is there; None: all

        The weights are means over the heads, the empty slot last. Queries [1, K, heads, d] read every image.
        An image without real segments gives `to_out.bias`.
        """
        fit = full(queries.transpose(1, 2) @ key_values.key.transpose(-1, -2))  # [N, heads, K, L]
        if share is not None:
            fit = fit + share.log()[:, None, None]
        if key_values.mask is not None:
            fit = fit.masked_fill(~key_values.mask[:, None, None], -torch.inf)
        weight = F.pad(fit, (0, 1)).softmax(-1)  # [N, heads, K, L + 1]
        pooled = weight[..., :-1].to(key_values.value.dtype) @ key_values.value  # [N, heads, K, d]
        return Pooled(self.to_out(pooled.transpose(1, 2).flatten(2)), weight.mean(1))

    def forward(self, texts: Tensor, segments: Tensor, mask: Tensor | None = None) -> Pooled:
        """texts [N, K, D] or [1, K, D], segments [N, L, D], mask [N, L] bool -> as `read`"""
        return self.read(self.queries(texts), self.keys(segments, mask))


class CrossPool(nn.Module):
    """Every text reads the patches of its image by attention; an MLP follows (beta-CLIP, arXiv 2512.12678).

    q, k, v = W_q t, W_k p, W_v p        (behind a LayerNorm each, with `input_norm`)
    o = W_o attention(q, k, v)           (without the text itself: it would leak into the image)
    out = o + W_2 quick_gelu(W_1 LN(o))
    """

    def __init__(self, width: int, heads: int = 8, mlp_ratio: float = 4.0, input_norm: bool = False) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width {width} is not a multiple of {heads} heads")
        self.heads = heads
        self.input_norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3 if input_norm else 0))
        self.to_query, self.to_key, self.to_value = (nn.Linear(width, width) for _ in range(3))
        self.to_out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, int(width * mlp_ratio))
        self.narrow = nn.Linear(int(width * mlp_ratio), width)
        _init_attention(self, width)

    def forward(self, texts: Tensor, patches: Tensor) -> Tensor:
        """texts [N, K, D], or [1, K, D] for all images, patches [N, L, D] -> [N, K, D], not of unit length"""
        keys = values = patches
        if self.input_norms:
            norm_query, norm_key, norm_value = self.input_norms
            texts, keys, values = norm_query(texts), norm_key(patches), norm_value(patches)
        q, k, v = (
            x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for x in (self.to_query(texts), self.to_key(keys), self.to_value(values))
        )  # [N, heads, K or L, D / heads]
        out = attend(q.expand(len(k), -1, -1, -1), k, v, None, causal=False)
        out = self.to_out(out.transpose(1, 2).flatten(2))
        hidden = self.widen(self.norm(out))
        return out + self.narrow(hidden * torch.sigmoid(1.702 * hidden))


CHUNK = 64  # rectangles whose maps are copied at a time


def roi_align(maps: Tensor, boxes: Tensor, owner: Tensor, scale: tuple[float, float] = (1.0, 1.0)) -> Tensor:
    """The mean of a map over rectangles by RoIAlign (He et al., arXiv 1703.06870), `aligned=True` in
    torchvision, with one bin: [R, D]

    maps     [N, H, W, D]
    boxes    [R, 4] left, top, right, bottom; times `scale` they are in cells, from 0 to W and from 0 to H
    owner    [R] int64, the map of each rectangle
    scale    cells for one unit of `boxes`, down and across

    for each rectangle, and each point y, x of its lattice, with a row and a column for each cell that it
    covers, rounded up:
        out[r] += bilinear(maps[owner[r]], y - 0.5, x - 0.5) / number of points

    The value of a cell stands at its middle. A point up to one cell outside takes the value at the rim, one
    further out counts as 0. A rectangle without height or width is 0.
    """
    box = boxes.double() * boxes.new_tensor([scale[1], scale[0]] * 2, dtype=torch.float64)
    down = _weights(box[:, 1], box[:, 3], maps.shape[1]).to(maps.dtype)  # [R, H]
    across = _weights(box[:, 0], box[:, 2], maps.shape[2]).to(maps.dtype)  # [R, W]
    parts = zip(down.split(CHUNK), across.split(CHUNK), owner.split(CHUNK), strict=True)
    return torch.cat([torch.einsum("rh,rw,rhwd->rd", y, x, maps[i]) for y, x, i in parts])


def _weights(low: Tensor, high: Tensor, cells: int) -> Tensor:
    """The weight of each cell along one side in the mean of each rectangle: [R, cells]; low, high [R]

    A lattice is the product of its rows and columns, so the mean is one weight for each of both.
    """
    length = (high - low)[:, None]
    number = length.ceil()
    point = torch.arange(int(number.max()) if number.numel() else 0, device=low.device)  # [S]
    place = low[:, None] - 0.5 + length * ((point + 0.5) / number.clamp(min=1))  # [R, S]
    counts = (point < number) & (place >= -1) & (place <= cells)
    inside = place.clamp(0, cells - 1)[..., None]  # the value at the rim continues outside
    share = (1 - (inside - torch.arange(cells, device=low.device)).abs()).clamp(min=0)  # [R, S, cells]
    return (share * counts[..., None]).sum(1) / number.clamp(min=1)
