"""The pre-norm transformer block and a stack of them."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grainline.nn.hashing import DropPath

PROJECTIONS = r"attention\.(to_qkv|to_out)"
"""Names of the linear projections of attention inside a block."""


class Attention(nn.Module):
    """Multi-head self-attention through SDPA."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width {width} is not a multiple of {heads} heads")
        self.heads = heads
        self.to_qkv = nn.Linear(width, 3 * width)
        self.to_out = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """x [N, L, W], mask [N, L] bool, [N, 1, L, L] bool, or None (everything is real) -> [N, L, W]

        A mask of four dimensions says what each token reads, and goes without `causal`. With `causal`,
        padding stands on the right, where no real token reads it, and needs no mask.
        """
        q, k, v = self.to_qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attn_mask = None if causal else _key_mask(mask)
        return self.to_out(attend(q, k, v, attn_mask, causal).transpose(1, 2).flatten(2))


class ValueAttention(Attention):
    """The first token attends; every other token keeps its own value: in the last layer it stays local.

    Value-only features of CLIP's vision transformers (Zhou et al., arXiv 2112.01071).
    """

    def forward(self, x: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """x [N, L, W], without mask -> [N, L, W]"""
        assert mask is None
        assert not causal
        q, k, v = self.to_qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.to_out(first_attends(q[:, :, :1], k, v))


class CrossAttention(nn.Module):
    """Multi-head attention of some tokens to others."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width {width} is not a multiple of {heads} heads")
        self.heads = heads
        self.to_query, self.to_key, self.to_value, self.to_out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """x [N, K, W] reads tokens [N, L, W] where mask [N, L] is True (None: everywhere) -> [N, K, W]"""
        q, k, v = (
            y.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for y in (self.to_query(x), self.to_key(tokens), self.to_value(tokens))
        )  # [N, heads, K or L, W/heads]
        return self.to_out(attend(q, k, v, _key_mask(mask), causal=False).transpose(1, 2).flatten(2))


def _key_mask(mask: Tensor | None) -> Tensor | None:
    """[N, L] over keys: [N, 1, 1, L]. Where nothing is real, everything is read: no NaN."""
    if mask is None or mask.ndim == 4:
        return mask
    return (mask | ~mask.any(1, keepdim=True))[:, None, None]


def first_attends(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The values of `ValueAttention`: q [N, heads, 1, C], k, v [N, heads, L, C] -> [N, L, heads * C]"""
    first = attend(q, k, v, None, causal=False)
    return torch.cat([first, v[:, :, 1:]], 2).transpose(1, 2).flatten(2)


def attend(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, causal: bool) -> Tensor:
    """Softmax attention: q, k, v and the result [N, heads, L, C], attn_mask [N, 1, 1 or L, L] bool or None

    SDPA, except for bfloat16 on a CPU, where its kernel takes 1.8 to 9 times as long as these lines
    (docs/performance.md).
    """
    if q.device.type != "cpu" or q.dtype != torch.bfloat16:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, is_causal=causal)
    fit = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)  # [N, heads, L, L]
    if causal:
        attn_mask = torch.ones(fit.shape[-2:], dtype=torch.bool, device=q.device).tril()
    if attn_mask is not None:
        fit = fit.masked_fill(~attn_mask, -torch.inf)
    return fit.softmax(-1) @ v


def mlp(width: int, hidden: int) -> nn.Sequential:
    """Two layers with GELU between them."""
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


class Block(nn.Module):
    """x + Attention(LN(x)), then x + MLP(LN(x)); in training a share of the rows skips each branch."""

    def __init__(
        self,
        width: int,
        heads: int,
        mlp_ratio: float = 4.0,
        drop_path: float = 0.0,
        attention: type[Attention] = Attention,
    ) -> None:
        super().__init__()
        self.skip_attention, self.skip_mlp = DropPath(drop_path), DropPath(drop_path)
        self.norm1 = nn.LayerNorm(width)
        self.attention = attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = mlp(width, int(width * mlp_ratio))

    def forward(self, x: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """x [N, L, W], mask as of `Attention` -> [N, L, W]"""
        x = x + self.skip_attention(self.attention(self.norm1(x), mask, causal))
        return x + self.skip_mlp(self.mlp(self.norm2(x)))


class Stack(nn.Module):
    """Blocks one after the other."""

    def __init__(
        self,
        width: int,
        depth: int,
        heads: int,
        mlp_ratio: float = 4.0,
        drop_path: float = 0.0,
        last: type[Attention] = Attention,  # of the last block
    ) -> None:
        super().__init__()
        rates = [drop_path * i / (depth - 1) for i in range(depth)] if depth > 1 else [drop_path]
        kinds = [Attention] * (depth - 1) + [last]
        self.blocks = nn.ModuleList(
            Block(width, heads, mlp_ratio, rate, kind) for rate, kind in zip(rates, kinds, strict=True)
        )
        self._initialise(width, depth)

    def forward(self, x: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """x [N, L, W], mask as of `Attention` -> [N, L, W]"""
        for block in self.blocks:
            x = block(x, mask, causal)
        return x

    def _initialise(self, width: int, depth: int) -> None:
        """CLIP's deviations: the more blocks write into the residual stream, the smaller their weights."""
        into, out = width**-0.5, width**-0.5 * (2 * depth) ** -0.5
        for block in self.blocks:
            assert isinstance(block, Block)
            hidden, _, back = block.mlp
            for layer, std in (
                (block.attention.to_qkv, into),
                (block.attention.to_out, out),
                (hidden, (2 * width) ** -0.5),
                (back, out),
            ):
                assert isinstance(layer, nn.Linear)
                init_linear(layer, std)


def init_linear(layer: nn.Linear, std: float) -> None:
    nn.init.normal_(layer.weight, std=std)
    nn.init.zeros_(layer.bias)


def layer_lists(model: nn.Module) -> dict[str, nn.ModuleList]:
    """The lists of layers by their full name: each module of such a list is one layer for freezing, learning
    rates by depth, recomputation, compilation and sharding.

    A list inside a list is a part of a layer; a list without parameters cannot learn. Neither is returned.
    """
    lists: dict[str, nn.ModuleList] = {}
    for name, module in model.named_modules():
        learns = isinstance(module, nn.ModuleList) and any(True for _ in module.parameters())
        if learns and not any(name.startswith(f"{other}.") for other in lists):
            lists[name] = module
    return lists
