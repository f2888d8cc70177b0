"""Tables of learnt positions, for longer texts and larger images than they were learnt on."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

KEEP = 20
"""Positions that Long-CLIP keeps: captions on the web are short, so only the first are well learnt."""

Stretch = Literal["keep", "linear"]


class PartlyFrozen(nn.Module):
    """A table of positions whose first rows never learn, in place of an nn.Embedding.

    Those rows are a buffer, which no rule, decay or adapter can reach.
    """

    frozen: Tensor

    def __init__(self, table: Tensor, count: int) -> None:
        """table [P, W]; its first `count` rows are frozen, 0 < count < P"""
        super().__init__()
        if not 0 < count < len(table):
            raise ValueError(f"{count} of {len(table)} positions cannot be frozen while others learn")
        self.register_buffer("frozen", table[:count].detach().clone())
        self.learnt = nn.Parameter(table[count:].detach().clone())

    @property
    def weight(self) -> Tensor:
        """The whole table: [P, W]"""
        return torch.cat([self.frozen, self.learnt])

    def forward(self, ids: Tensor) -> Tensor:
        """ids [...] int64 -> rows of the table [..., W]"""
        return F.embedding(ids, self.weight)


def stretch_keep(table: Tensor, ratio: int = 4, keep: int = KEEP) -> Tensor:
    """Long-CLIP's stretch (Zhang et al., arXiv 2403.15378): 77 positions become 248.

    table    [P, W] with P > keep
    returns  [ratio * P - (ratio - 1) * keep, W]

    for i in range(keep):
        new[i] = table[i]
    for j in range(P - keep):
        for r in range(ratio):
            this, following = table[keep + j], table[keep + j + 1]
            new[keep + ratio * j + r] = ((ratio - r) * this + r * following) / ratio

    Behind the last position the line through the last two continues.
    """
    if len(table) <= max(keep, 1):
        raise ValueError(f"a table of {len(table)} positions has nothing to stretch behind the first {keep}")
    this = table[keep:]
    following = torch.cat([this[1:], 2 * table[-1:] - table[-2:-1]])
    r = torch.arange(ratio, dtype=table.dtype, device=table.device)[:, None]
    between = ((ratio - r) * this[:, None] + r * following[:, None]) / ratio  # [P - keep, ratio, W]
    return torch.cat([table[:keep], between.flatten(0, 1)])


def stretch_linear(table: Tensor, length: int) -> Tensor:
    """Straight lines from position to position, first and last kept: table [P, W] -> [length, W]

    for i in range(length):
        place = i * (P - 1) / (length - 1)
        below, part = floor(place), place - floor(place)
        new[i] = (1 - part) * table[below] + part * table[below + 1]
    """
    return F.interpolate(table.T[None], size=length, mode="linear", align_corners=True)[0].T


def to_context(table: Tensor, length: int, stretch: Stretch) -> Tensor:
    """A table of text positions for `length` tokens: [P, W] -> [length, W]

    A shorter context is the beginning of the table. "keep" takes the smallest whole ratio that is long enough
    and the beginning of its table: from 77 positions ratio 2 up to 134, 3 up to 191, 4 (Long-CLIP) up to 248.
    """
    if length <= len(table):
        return table[:length]
    if stretch == "linear":
        return stretch_linear(table, length)
    ratio = -(-(length - KEEP) // max(1, len(table) - KEEP))  # rounded up
    return stretch_keep(table, ratio)[:length]


def to_grid(
    table: Tensor, old: tuple[int, int], new: tuple[int, int], lead: int, antialias: bool = False
) -> Tensor:
    """Positions of a grid of patches, bicubic, for another grid: [lead + R * C, W] -> [lead + R' * C', W]

    old, new  rows and columns
    lead      first rows of the table that are no patches (the class token)

    Bicubic as in Keys (1981) with a = -0.75, corners not aligned, borders repeated, no antialias, as in most
    published models.
    """
    if old == new:
        return table
    if len(table) != lead + old[0] * old[1]:
        raise ValueError(f"a table of {len(table)} positions is no grid of {old[0]} x {old[1]} behind {lead}")
    grid = table[lead:].unflatten(0, old).permute(2, 0, 1)[None]  # [1, W, R, C]
    grid = F.interpolate(grid, size=new, mode="bicubic", align_corners=False, antialias=antialias)
    return torch.cat([table[:lead], grid[0].permute(1, 2, 0).flatten(0, 1)])
