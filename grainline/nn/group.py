"""Tokens into groups: every token is given to exactly one group, and a group takes up the mean of its tokens.

The grouping block of GroupViT (Xu et al., arXiv 2202.11094), as the Text Group Transformer puts it over the
tokens of a caption. `Assignment` is the equations alone, `GroupingBlock` has the layers around them that the
code of GroupViT has:

    A_raw[k, j] = <Q g_k, K t_j> / sqrt(W)
    A'[:, j]    = softmax over groups of (A_raw[:, j] + Gumbel noise), noise in training alone
    A           = onehot of the largest A'[:, j] in the forward pass, A' in the backward pass; 0 at padding
    out_k       = g_k + O(sum_j A[k, j] V t_j / (sum_j A[k, j] + eps))

With eps = 1, as GroupViT has it, the mean of n tokens is shrunk by n / (n + 1); without any, an empty group
would be 0 / 0. The weights of an empty group have gradients of 1 / eps: at 1e-6 they drown all others and
nothing trains. Below eps = 1 an empty group therefore gives no gradient to its assignment. At eps = 1 its
gradient is that of GroupViT's code.

A text may use fewer groups than there are: what is not used takes no token and is mixed into no other.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from grainline.nn.block import CrossAttention
from grainline.nn.noise import shares
from grainline.types import full

MIXING = 0.5
"""Hidden width of the MLP that mixes groups, as a share of the width of a group."""


class Assigned(NamedTuple):
    """Groups after they took up their tokens."""

    groups: Tensor  # [N, K, W]
    hard: Tensor  # [N, K, L] 1 where a token is given to a group, with the gradient of A'; 0 at padding
    soft: Tensor  # [N, K, L] softmax over groups without noise, for analysis; 0 at padding


def soft_assignment(raw: Tensor, mask: Tensor) -> Tensor:
    """How much of each token every group takes: raw [N, K, L], mask [N, L] -> [N, K, L]

    Columns of real tokens sum to 1. Padding is left out by a product behind the softmax: a column of -inf in
    front of it would be 0 / 0.

    >>> raw = torch.tensor([[[2.0, 0.0, 1.0], [0.0, 1.0, 3.0]]])
    >>> soft_assignment(raw, torch.tensor([[True, True, False]]))
    tensor([[[0.8808, 0.2689, 0.0000],
             [0.1192, 0.7311, 0.0000]]])
    """
    return full(raw).softmax(1) * mask[:, None]


def hard_assignment(raw: Tensor, mask: Tensor, noise: Tensor | None = None) -> Tensor:
    """1 for the group that takes a token, 0 for all others, with the gradient of the softmax: [N, K, L]

    raw    [N, K, L] how well each token fits each group
    mask   [N, L] bool, True = real; the column of padding is 0
    noise  [N, K, L] added to raw

    In the forward pass an entry is off 0 or 1 by a rounding error at most.
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

    Below eps = 1 the assignment gets no gradient from groups without tokens.

    >>> hard = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]])
    >>> pooled_groups(hard, torch.tensor([[[1.0, 0.0], [0.0, 2.0], [2.0, 2.0]]]), eps=1.0)
    tensor([[[0.5000, 0.0000],
             [0.6667, 1.3333]]])
    """
    if eps < 1:
        hard = hard.masked_fill(
            hard.detach().amax(-1, keepdim=True) < 0.5, 0.0
        )  # the value is 0 there already
    weight = hard / (hard.sum(-1, keepdim=True) + eps)
    return weight.to(values.dtype) @ values


class Assignment(nn.Module):
    """The equations alone: one head, four projections with bias."""

    def __init__(self, width: int, eps: float = 1.0) -> None:
        super().__init__()
        self.eps = eps
        self.to_query, self.to_key, self.to_value, self.to_out = (nn.Linear(width, width) for _ in range(4))
        small(self)

    def forward(self, groups: Tensor, tokens: Tensor, mask: Tensor, used: Tensor | None = None) -> Assigned:
        """groups [N, K, W], tokens [N, L, W], mask [N, L] -> Assigned; noise in training alone

        used  [N, K] bool, the groups that may take tokens, one at least; None: all
        """
        query, key = full(self.to_query(groups)), full(self.to_key(tokens))
        with torch.autocast(query.device.type, enabled=False):  # ties and noise want more than 8 bits
            raw = query @ key.mT * query.shape[-1] ** -0.5
        raw = raw if used is None else raw.masked_fill(~used[..., None], -torch.inf)
        hard = hard_assignment(raw, mask, self._noise(raw) if self.training else None)
        taken = pooled_groups(hard, self.to_value(tokens), self.eps)
        return Assigned(groups + self.to_out(taken), hard, soft_assignment(raw.detach(), mask))

    def _noise(self, raw: Tensor) -> Tensor:
        return gumbel(shares(self, tuple(raw.shape), raw.device))


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
        # Weights of 0.02 would leave less of what is mixed than the eps of the norm behind it.
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


def mlp(width: int, hidden: int) -> nn.Sequential:
    """Two layers with GELU between them."""
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


def small(module: nn.Module, gain: float | None = None) -> None:
    """Weights of layers normal and biases 0: with std 0.02, as in GroupViT, or gain / sqrt(inputs).

    With 0.02 all groups begin nearly alike.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            std = 0.02 if gain is None else gain * layer.in_features**-0.5
            nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
            nn.init.zeros_(layer.bias)
