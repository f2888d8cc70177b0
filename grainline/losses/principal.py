"""What sets the rows of a batch apart: their principal part, with an exact gradient that is always finite.

HiDe of HiMo-CLIP (arXiv 2511.06653, eq. 1): rows are projected onto the principal components of their own
batch. The basis depends on every row, and its gradient is not cut. Differentiating an SVD for it gives NaN as
soon as two singular values agree, which is the rule where texts repeat. But the result depends only on the
projector onto the kept components, whose derivative couples kept directions with dropped ones alone. That is
what is computed here, from the eigenvectors of the smaller of the two Gram matrices.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from grainline.types import full

TINY = 1e-8
"""Total variance, summed over rows and dimensions, below which rows count as equal."""


class Principal(NamedTuple):
    """Rows along the principal components of their groups. G groups."""

    rows: Tensor  # [N, D] not of unit length, even where the inputs are
    kept: Tensor  # [G] int64 components that a group kept; 0 where it has no row
    share: Tensor  # [G] share of the variance of a group that they hold; 0 where there is none
    size: Tensor  # [G] int64 rows of a group


def principal_part(
    x: Tensor,
    real: Tensor,
    threshold: float,
    *,
    group: int | None = None,
    detach_basis: bool = False,
    gap_floor: float = 1e-6,
) -> Principal:
    """Every row kept along the fewest directions that hold `threshold` of the variance of its group.

    x             [N, D]
    real          [N] bool; other rows belong to no group and come back as they are
    threshold     in (0, 1]
    group         rows of a group: the first `group` real rows, the next ones, ...; None: one group of all
    detach_basis  treat components as constants in the backward pass (the mean is never constant)
    gap_floor     least difference of a kept and a dropped eigenvalue, as a share of the largest one, that the
                  backward pass divides by

    for each group of rows u:
        mean = u.mean(0)
        _, s, v = svd(u - mean)                              # v [components, D]
        m = the smallest number with (s[:m] ** 2).sum() >= threshold * (s ** 2).sum()
        out = (u - mean) @ v[:m].T @ v[:m] + mean

    A group of one row, or of rows whose variance is below TINY, comes back as it is. Eigenvalues are computed
    in float64, all else in the type of x, at least float32. Shapes depend on N, D and `group` alone, and the
    device is never waited for. What is not finite stays so: a loss over it shows it.

    >>> x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.1], [0.0, -0.1]])
    >>> found = principal_part(x, torch.ones(4).bool(), threshold=0.9)
    >>> found.rows.abs().tolist(), found.kept.tolist()
    ([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0], [0.0, 0.0]], [1])
    """
    x = full(x)
    number, width = x.shape
    size = max(1, min(group or number, number))
    groups = -(-number // size)
    order = (~real).to(torch.uint8).argsort(stable=True)  # real rows first, in their order
    padding = groups * size - number
    ordered = torch.cat([x[order], x.new_zeros(padding, width)]).view(groups, size, width)
    mask = torch.cat([real[order], real.new_zeros(padding)]).view(groups, size)
    part, kept, share = _PrincipalPart.apply(ordered, mask, threshold, detach_basis, gap_floor)
    back = torch.empty_like(order).scatter_(0, order, torch.arange(number, device=x.device))
    return Principal(
        torch.where(real[:, None], part.flatten(0, 1)[back], x), kept, share, mask.sum(1)
    )


class _PrincipalPart(torch.autograd.Function):
    """x [G, N, D] and mask [G, N] -> principal parts [G, N, D], components kept [G], their share [G].

    With X the centred rows and Y the one of X and X' that has fewer rows, the part is P Y with P the
    projector onto the leading eigenvectors of Y Y'. Where H is the gradient by P Y, that by Y is

        P H + K M D' Y + D M' K' Y,  M = K' (H Y' + Y H') D / (l[i] - l[j])

    for the kept eigenvectors K and the dropped ones D, with eigenvalues l[i] of the kept and l[j] of the
    dropped. Products are ordered so that each has the number of kept ones as one of its sides.
    """

    @staticmethod
    def forward(  # noqa: PLR0913 - as autograd calls it
        ctx: Any, x: Tensor, mask: Tensor, threshold: float, detach_basis: bool, gap_floor: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        with torch.autocast(x.device.type, enabled=False):
            number = mask.sum(1).clamp(min=1).to(x.dtype)[:, None, None]
            x = x.masked_fill(~mask[..., None], 0.0)
            mean = x.sum(1, keepdim=True) / number
            centred = (x - mean).masked_fill(~mask[..., None], 0.0)
            y = centred if x.shape[1] <= x.shape[2] else centred.mT
            values, vectors = _spectrum(y)
            reached = values.cumsum(-1)
            total = reached[:, -1:]
            before = torch.nn.functional.pad(reached[:, :-1], (1, 0))
            alike = (total < TINY) | (mask.sum(1, keepdim=True) < 2)  # [G, 1]
            keep = (before < threshold * total) & ~alike
            most = _most(keep)
            e = vectors.to(x.dtype)
            leading = e[..., :most] * keep[:, None, :most]
            inner = leading.mT @ y
            part = leading @ inner
            part = part if y is centred else part.mT
            part = torch.where(alike[..., None], x, part + mean)
            gap = (values[:, :most, None] - values[:, None]).clamp(min=gap_floor * values[:, :1, None])
            across = keep[:, :most, None] & ~keep[:, None]
            coupling = torch.where(across, 1 / gap, 0.0).to(x.dtype)
        ctx.turned, ctx.detach_basis = y is not centred, detach_basis
        ctx.save_for_backward(y, e, leading, inner, coupling, number, alike, mask)
        kept = torch.where(alike, mask.sum(1, keepdim=True).clamp(max=y.shape[1]), keep.sum(1, keepdim=True))
        held = torch.where(alike, 1.0, (values * keep).sum(1, keepdim=True) / total.clamp(min=TINY))
        there = mask.any(1)
        kept, share = kept[:, 0] * there, (held[:, 0] * there).to(x.dtype)
        ctx.mark_non_differentiable(kept, share)
        return part, kept, share

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        y, e, leading, inner, coupling, number, alike, mask = ctx.saved_tensors
        grad = grad.masked_fill(~mask[..., None], 0.0)
        with torch.autocast(grad.device.type, enabled=False):
            h = grad.mT if ctx.turned else grad
            along = leading.mT @ h
            by_y = leading @ along
            if not ctx.detach_basis:
                m = ((along @ y.mT + inner @ h.mT) @ e) * coupling
                turn = m @ e.mT
                by_y = by_y + leading @ (turn @ y) + turn.mT @ inner
            by_centred = by_y.mT if ctx.turned else by_y
            by_mean = (grad - by_centred).sum(1, keepdim=True)
            by_x = torch.where(alike[..., None], grad, by_centred + by_mean / number)
        return by_x.masked_fill(~mask[..., None], 0.0), None, None, None, None


def _most(keep: Tensor) -> int:
    """How many components are multiplied with: on a CPU no more than a group keeps.

    To learn that number is to wait for the device, so elsewhere it is all of them; those that are not kept
    count as zeros in either case.
    """
    return int(keep.sum(1).max()) if keep.device.type == "cpu" else keep.shape[1]


def _spectrum(y: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues of y y', the largest first, and eigenvectors as columns, both in float64.

    In float32 the squares of small singular values would drown in the rounding of the largest. LAPACK refuses
    what is not finite: it gets zeros there, and y carries the NaN on.
    """
    wide = y.double()
    gram = (wide @ wide.mT).nan_to_num(0.0, 0.0, 0.0)
    values, vectors = torch.linalg.eigh(gram)
    return values.flip(-1).clamp(min=0.0), vectors.flip(-1)
