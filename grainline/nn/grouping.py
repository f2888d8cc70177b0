"""Many tokens to few: graph pooling of CAST (arXiv 2210.00314) with farthest point sampling (1706.02413), and
the groups of GroupViT (2202.11094), as the Text Group Transformer has them for captions.

N images or texts   L tokens before   M, K groups   W width
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from grainline.nn.attention import Attention, CrossAttention, init_linear, mlp
from grainline.nn.hashing import Dropout, shares
from grainline.nn.pooling import mean_pool, unit
from grainline.nn.runtime import may_round
from grainline.types import full

SAME = 1e-5
"""Tokens are equal if their squared distance is at most this share of their squared distance from the mean.
Distances come out of products in float32, so those of equal tokens are not quite 0."""


SHARPNESS = 5.0
"""Factor on the cosines of graph pooling: the assignment stays soft, 0.7 at most for one of 64 groups."""

MIXING = 0.5
"""Hidden width of the MLP that mixes groups, as a share of the width of a group."""


class Picks(NamedTuple):
    """The tokens that were picked."""

    token: Tensor  # [N, M] int64, in the order of picking
    mask: Tensor  # [N, M] bool; False: no valid token was left that differs from those picked before


@torch.no_grad()
def farthest_points(x: Tensor, valid: Tensor | None, number: int) -> Picks:
    """M tokens of each set that lie far apart, in the order of picking. No value is read by the host.

    x       [N, L, C] tokens; distances are Euclidean, computed in float32 at least
    valid   [N, L] bool, the tokens that may be picked; None: all
    number  M, at most L

    pick[m] = argmax_l min(|x[l] - mean(x)|, min_{k < m} |x[l] - x[pick[k]]|)

    The mean is no token: it is where sampling starts, as in the code of CAST. Where fewer than M valid tokens
    differ (`SAME`), the mask of the rest is False and its tokens mean nothing. All distances come out of one
    product of the centred tokens: a large common offset would use up the digits in which they differ.
    """
    with torch.autocast(x.device.type, enabled=False):
        once = centred(full(x.detach()), valid)
        product = products(centred(once, valid))  # twice: the mean itself is rounded at a large offset
    length = product.diagonal(dim1=1, dim2=2).contiguous()  # [N, L] squared
    start, near = torch.arange(length.shape[0], device=length.device) * length.shape[1], SAME * length
    # Squared distance to the mean or a pick; -inf: not to be picked.
    nearest = length if valid is None else length.masked_fill(~valid, -torch.inf)
    picks, real = [], []
    for _ in range(number):
        far, pick = nearest.max(dim=1)
        own = length.flatten().index_select(0, start + pick)
        real.append(far > -torch.inf)
        distance = torch.add(length, product.flatten(0, 1).index_select(0, start + pick), alpha=-2)
        distance += own[:, None]
        # A token equal to a pick is excluded like the pick; one equal to the mean may still be picked.
        nearest = nearest.minimum(distance).masked_fill_(distance <= near, -torch.inf)
        picks.append(pick)
    return Picks(torch.stack(picks, dim=1), torch.stack(real, dim=1))


def centred(x: Tensor, valid: Tensor | None) -> Tensor:
    """x [N, L, C] less the mean of its valid tokens."""
    if valid is None:
        return x - x.mean(1, keepdim=True)
    total = x.masked_fill(~valid[..., None], 0.0).sum(1)
    return x - (total / valid.sum(1, keepdim=True).clamp(min=1))[:, None]


def products(x: Tensor) -> Tensor:
    """Scalar products of the tokens of a set, in the precision of x: [N, L, C] -> [N, L, L]

    In float64 where a GPU may round factors in float32 to 11 bits (TF32).
    """
    if x.dtype == torch.float32 and may_round(x.device):
        return (x.double() @ x.double().mT).float()
    return x @ x.mT


class Grouped(NamedTuple):
    """Tokens after pooling, and where they come from."""

    tokens: Tensor  # [N, M, W] zeros where the mask is False
    cls: Tensor  # [N, W]
    mask: Tensor  # [N, M] bool, True = a real group; False where fewer than M valid tokens differ
    weight: Tensor  # [N, L, M] how much of each token goes to each group: rows sum to 1, or to 0 if invalid
    picked: Tensor  # [N, M] int64, the token that each group is built around; no meaning outside the mask


class GraphPool(nn.Module):
    """L tokens to M; the class token takes the same way without the mean.

        y   = x + attention(LN1(x));  y -= mean(y);  y += shift
        i   = M tokens that lie far apart among x
        p   = softmax over groups of 5 cos(y, y[i]), in float32
        h   = dropout(GELU(W1 LN2(x)))
        out = W2 LN3(p-weighted mean of h) + x[i]
        cls = W2 LN3(dropout(GELU(W1 LN2(cls)))) + cls

    Invalid tokens are in no attention, mean, pick or group.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        number: int,
        *,
        mlp_ratio: float = 4.0,
        dropout: float = 0.1,
        depth: int = 1,  # layers of the whole encoder, this one included: all write into the same stream
    ) -> None:
        super().__init__()
        hidden = int(width * mlp_ratio)
        self.number = number
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(size) for size in (width, width, hidden))
        self.attention = Attention(width, heads)
        self.shift = nn.Parameter(0.01 * torch.randn(width))
        self.widen, self.narrow = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.act, self.drop, self.drop_cls = nn.GELU(), Dropout(dropout), Dropout(dropout)
        for layer, std in (
            (self.attention.to_qkv, width**-0.5),
            (self.attention.to_out, width**-0.5),
            (self.widen, (2 * width) ** -0.5),
            (self.narrow, (2 * depth * hidden) ** -0.5),  # its inputs have deviation 1
        ):
            init_linear(layer, std)

    def forward(self, x: Tensor, cls: Tensor, valid: Tensor) -> Grouped:
        """x [N, L, W], cls [N, W], valid [N, L] bool -> M = `number` groups, M <= L"""
        picked, mask = farthest_points(x, valid, self.number)
        weight = self._assigned(x, valid, picked, mask)
        share = weight / weight.sum(1, keepdim=True).clamp(min=torch.finfo(weight.dtype).tiny)
        hidden = self.drop(self.act(self.widen(self.norm2(x))))
        tokens = self.narrow(self.norm3(share.mT.to(hidden.dtype) @ hidden)) + gather_tokens(x, picked)
        alone = self.narrow(self.norm3(self.drop_cls(self.act(self.widen(self.norm2(cls))))))
        return Grouped(tokens.masked_fill(~mask[..., None], 0.0), cls + alone, mask, weight, picked)

    def _assigned(self, x: Tensor, valid: Tensor, picked: Tensor, mask: Tensor) -> Tensor:
        """How much of each token goes to each group: [N, L, M]"""
        y = full(x + self.attention(self.norm1(x), valid, causal=False))
        with torch.autocast(x.device.type, enabled=False):
            y = unit(y - mean_pool(y, valid).vector[:, None] + self.shift)
            fit = SHARPNESS * (y @ gather_tokens(y, picked).mT)
            real = mask | ~mask.any(1, keepdim=True)  # without a group, any will do: no NaN
            weight = fit.masked_fill(~real[:, None], -torch.inf).softmax(-1)
        return weight.masked_fill(~valid[..., None], 0.0)


def gather_tokens(x: Tensor, index: Tensor) -> Tensor:
    """Some tokens of each image: x [N, L, W], index [N, M] -> [N, M, W]"""
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[2]))


class Assigned(NamedTuple):
    """Groups after they took up their tokens."""

    groups: Tensor  # [N, K, W]
    hard: Tensor  # [N, K, L] 1 where a token goes to a group, with the gradient of A'; 0 at padding
    soft: Tensor  # [N, K, L] softmax over groups without noise, for analysis; 0 at padding


def soft_assignment(raw: Tensor, mask: Tensor) -> Tensor:
    """The share of each token in every group: raw [N, K, L], mask [N, L] -> [N, K, L], 0 at padding"""
    return full(raw).softmax(1) * mask[:, None]


def hard_assignment(raw: Tensor, mask: Tensor, noise: Tensor | None = None) -> Tensor:
    """1 for the group of the largest raw value of a token, else 0, with the gradient of the softmax.

    raw [N, K, L], mask [N, L], noise [N, K, L] added to raw -> [N, K, L], exact but for rounding
    """
    soft = (full(raw) if noise is None else full(raw) + noise).softmax(1)
    hard = torch.zeros_like(soft).scatter_(1, soft.argmax(1, keepdim=True), 1.0)
    return (hard - soft.detach() + soft) * mask[:, None]


def gumbel(share: Tensor) -> Tensor:
    """Noise -log(-log u) from numbers u strictly between 0 and 1; in bfloat16 some would round to 1."""
    assert share.dtype not in (torch.float16, torch.bfloat16)
    return -(-share.log()).log()


def pooled_groups(hard: Tensor, values: Tensor, eps: float) -> Tensor:
    """Mean of the tokens of each group, shrunk by eps: hard [N, K, L], values [N, L, W] -> [N, K, W]

    Empty groups have gradients of 1 / eps: below eps = 1, that of GroupViT, their assignment gets none.
    """
    if eps < 1:
        hard = hard.masked_fill(hard.detach().amax(-1, keepdim=True) < 0.5, 0.0)  # the value is 0 already
    weight = hard / (hard.sum(-1, keepdim=True) + eps)
    return weight.to(values.dtype) @ values


class Assignment(nn.Module):
    """The equations of a grouping block: one head, four projections with bias.

    A_raw[k, j] = <Q g_k, K t_j> / sqrt(W)
    A'[:, j]    = softmax over groups of (A_raw[:, j] + Gumbel noise), noise in training alone
    A           = onehot of the largest A'[:, j] forward, A' backward; 0 at padding
    out_k       = g_k + O(sum_j A[k, j] V t_j / (sum_j A[k, j] + eps))
    """

    def __init__(self, width: int, eps: float = 1.0) -> None:
        super().__init__()
        self.eps = eps
        self.to_query, self.to_key, self.to_value, self.to_out = (nn.Linear(width, width) for _ in range(4))
        small(self)

    def forward(self, groups: Tensor, tokens: Tensor, mask: Tensor, used: Tensor | None = None) -> Assigned:
        """groups [N, K, W], tokens [N, L, W], mask [N, L], used [N, K] bool or None: the groups that may take
        tokens, at least one; the others are mixed into nothing"""
        query, key = full(self.to_query(groups)), full(self.to_key(tokens))
        with torch.autocast(query.device.type, enabled=False):  # ties and noise need more than 8 bits
            raw = query @ key.mT * query.shape[-1] ** -0.5
        raw = raw if used is None else raw.masked_fill(~used[..., None], -torch.inf)
        noise = gumbel(shares(self, tuple(raw.shape), raw.device)) if self.training else None
        hard = hard_assignment(raw, mask, noise)
        means = pooled_groups(hard, self.to_value(tokens), self.eps)
        return Assigned(groups + self.to_out(means), hard, soft_assignment(raw.detach(), mask))


class GroupingBlock(nn.Module):
    """The block of GroupViT's code: mixing of groups, attention to tokens, assignment, MLP.

    g, t = LN(groups), LN(tokens)
    g = LN(MLP over the K groups of each channel (g))     K -> W / 2 -> K
    g = g + attention(g, t); g = LN(g + MLP(LN(g)))       ordinary attention, padding left out
    g = assignment(g, t)                                  adds to g
    out = g + MLP(LN(g))
    """

    def __init__(self, width: int, groups: int, heads: int, eps: float = 1.0) -> None:
        super().__init__()
        self.norm_groups, self.norm_tokens = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.norm_mixed = mlp(groups, int(MIXING * width)), nn.LayerNorm(width)
        self.attention = CrossAttention(width, heads)
        self.norm_attended, self.mlp_attended = nn.LayerNorm(width), mlp(width, 4 * width)
        self.norm_read = nn.LayerNorm(width)
        self.assign = Assignment(width, eps)
        self.norm_assigned, self.mlp_assigned = nn.LayerNorm(width), mlp(width, 4 * width)
        small(self)
        # Weights of 0.02 would leave less of the mixture than the eps of the norm behind it.
        small(self.mix, gain=1.0)

    def forward(self, groups: Tensor, tokens: Tensor, mask: Tensor, used: Tensor | None = None) -> Assigned:
        """groups [N, K, W], tokens [N, L, W], mask [N, L] -> Assigned; used as in `Assignment`"""
        x, tokens = self.norm_groups(groups), self.norm_tokens(tokens)
        x = x if used is None else x * used[..., None]
        x = self.norm_mixed(self.mix(x.mT).mT)
        x = x + self.attention(x, tokens, mask)
        x = self.norm_read(x + self.mlp_attended(self.norm_attended(x)))
        x, hard, soft = self.assign(x, tokens, mask, used)
        return Assigned(x + self.mlp_assigned(self.norm_assigned(x)), hard, soft)


def small(module: nn.Module, gain: float | None = None) -> None:
    """Weights of layers normal and biases 0: with std 0.02, as in GroupViT, or gain / sqrt(inputs)."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            std = 0.02 if gain is None else gain * layer.in_features**-0.5
            nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
            nn.init.zeros_(layer.bias)
