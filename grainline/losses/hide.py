"""HiDe and MoLo of HiMo-CLIP (arXiv 2511.06653): principal parts of a batch, and the losses with them.

HiDe, equation 1: rows are projected onto the principal components of their own batch, with exact gradient.
Differentiating an SVD gives NaN as soon as two singular values agree, as they do where texts repeat. But the
result depends only on the projector onto the leading components, whose derivative couples these with the
dropped ones alone. It is computed here from the eigenvectors of the smaller of the two Gram matrices.

MoLo: equation 2 is cross-entropy both ways between images and captions, equation 3 the same between images
and the principal parts of captions, equation 4 their weighted sum.
"""

from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from grainline.distributed import local_rows
from grainline.losses.contrastive import both_ways
from grainline.types import Encoded, Mean, Pair, Term, full

TINY = 1e-8  # total variance, summed over rows and dimensions, below which rows count as equal
GAP = 1e-6  # least difference of eigenvalues that backward divides by, as a share of the largest one
BLOCK = 64  # rows of a Gram matrix that are computed at a time


class Principal(NamedTuple):
    """Rows along the principal components of their groups. G groups."""

    rows: Tensor  # [N, D] not of unit length, even where the inputs are
    components: Tensor  # [G] int64 principal components of a group; 0 where it has no row
    share: Tensor  # [G] their share of the variance of the group; 0 where there is none
    size: Tensor  # [G] int64 rows of a group


def principal_part(
    x: Tensor, real: Tensor, threshold: float, *, group: int | None = None, detach_basis: bool = False
) -> Principal:
    """Every row along the fewest directions that hold `threshold` of the variance of its group.

    x             [N, D]
    real          [N] bool; other rows belong to no group and come back as they are
    threshold     in (0, 1]
    group         rows of a group: the first `group` real rows, the next ones, ...; None: one group of all
    detach_basis  treat components as constants in the backward pass (the mean is never constant)

    for each group of rows u:
        mean = u.mean(0)
        _, s, v = svd(u - mean)                              # v [components, D]
        m = the smallest number with (s[:m] ** 2).sum() >= threshold * (s ** 2).sum()
        out = (u - mean) @ v[:m].T @ v[:m] + mean

    A group of one row, or of rows whose variance is below TINY, comes back as it is. Eigenvalues are computed
    in float64, all else in the type of x, at least float32. NaN and infinity stay.
    """
    return Principal(*_PrincipalPart.apply(full(x), real, threshold, group, detach_basis))


class _PrincipalPart(torch.autograd.Function):
    """The fields of Principal, in order.

    With X the centred rows of a group and Y the one of X and X' that has fewer rows, the part is P Y with P
    the projector onto the leading eigenvectors of Y Y'. Where H is the gradient by P Y, that by Y is

        P H + K M D' Y + D M' K' Y,  M = K' (H Y' + Y H') D / (l[i] - l[j])

    for the leading eigenvectors K and the dropped ones D, with eigenvalues l[i] of K and l[j] of D. Products
    are ordered so that each has the number of leading ones as one of its sides.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, real: Tensor, threshold: float, group: int | None, detach_basis: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        with torch.autocast(x.device.type, enabled=False):
            order = _Order(real, group)
            ordered, members = order.sorted(x), order.real
            weight = members.to(x.dtype)[:, None]  # [G, 1, n]
            size = members.sum(1, keepdim=True)  # [G, 1]
            number = size.clamp(min=1).to(x.dtype)[..., None]
            mean = weight @ ordered / number
            centred = (ordered - mean).masked_fill_(~members[..., None], 0.0)
            y = centred if centred.shape[1] <= centred.shape[2] else centred.mT
            values, vectors = _spectrum(y)
            reached = values.cumsum(-1)
            total = reached[:, -1:]
            alike = (total < TINY) | (size < 2)  # [G, 1]
            keep = (F.pad(reached[:, :-1], (1, 0)) < threshold * total) & ~alike
            limit = int(keep.sum(1).max())  # no more components than a group keeps
            e = vectors.to(x.dtype)
            leading = e[..., :limit] * keep[:, None, :limit]
            inner = leading.mT @ y
            part = leading @ inner if y is centred else inner.mT @ leading.mT
            passing = (alike | ~members)[..., None]  # rows that come back as they are
            part = torch.where(passing, ordered, part.add_(mean))
            gap = (values[:, :limit, None] - values[:, None]).clamp_(min=GAP * values[:, :1, None])
            across = keep[:, :limit, None] & ~keep[:, None]
            coupling = (across / gap).to(x.dtype)
        ctx.order, ctx.detach_basis = order, detach_basis
        ctx.save_for_backward(centred, e, leading, inner, coupling, number, passing)
        components = torch.where(alike, size.clamp(max=y.shape[1]), keep.sum(1, keepdim=True))
        explained = torch.where(alike, 1.0, (values * keep).sum(1, keepdim=True) / total.clamp(min=TINY))
        facts = components[:, 0], (explained * (size > 0))[:, 0].to(x.dtype), size[:, 0]
        ctx.mark_non_differentiable(*facts)
        return order.back(part), *facts

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        centred, e, leading, inner, coupling, number, passing = ctx.saved_tensors
        with torch.autocast(grad.device.type, enabled=False):
            whole = ctx.order.sorted(grad)
            ordered = whole.masked_fill(passing, 0.0)
            turned = centred.shape[1] > centred.shape[2]
            y, h = (centred.mT, ordered.mT) if turned else (centred, ordered)
            along = leading.mT @ h
            if not ctx.detach_basis:
                m = ((along @ y.mT + inner @ h.mT) @ e) * coupling
                turn = m @ e.mT
                by_y = torch.baddbmm(leading @ (along + turn @ y), turn.mT, inner)
            elif turned:
                by_y = leading @ along
            else:  # components are rows of inner, at the length of their singular values
                by_y = h @ (inner.mT / inner.square().sum(-1)[:, None].clamp(min=TINY)) @ inner
            by_centred = by_y.mT if turned else by_y
            by_mean = (ordered.sum(1, keepdim=True) - by_centred.sum(1, keepdim=True)) / number
            by_x = ctx.order.back(torch.where(passing, whole, by_centred + by_mean))
        return by_x, None, None, None, None


class _Order:
    """Rows sorted into groups of equal size, those that are not real behind all others, and back."""

    def __init__(self, real: Tensor, group: int | None) -> None:
        number = len(real)
        size = max(1, min(group or number, number))
        self.groups, self.real = -(-number // size), real[None]
        if self.groups > 1:
            order = (~real).to(torch.uint8).argsort(stable=True)
            place = torch.arange(self.groups * size, device=real.device)
            self.place = torch.empty_like(order).scatter_(0, order, place[:number])
            self.source = F.pad(order, (0, len(place) - number))  # any row: what fills the last group is none
            self.real = (place < real.sum()).view(self.groups, size)

    def sorted(self, x: Tensor) -> Tensor:
        """[N, D] -> [G, n, D]"""
        if self.groups == 1:
            return x[None]
        return x.index_select(0, self.source).view(*self.real.shape, -1)

    def back(self, x: Tensor) -> Tensor:
        """[G, n, D] -> [N, D]"""
        return x[0] if self.groups == 1 else x.flatten(0, 1).index_select(0, self.place)


def _spectrum(y: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues of y y', the largest first, and eigenvectors as columns, both in float64.

    In float32 the squares of small singular values would drown in the rounding of the largest. LAPACK refuses
    NaN and infinity: it gets zeros there, and y carries them on. It reads the lower triangle alone, so most
    of the upper one is not computed.
    """
    wide = y.double()
    size = y.shape[1]
    gram = wide.new_zeros(len(y), size, size)
    for end in range(BLOCK, size + BLOCK, BLOCK):
        gram[:, end - BLOCK : end, :end] = wide[:, end - BLOCK : end] @ wide[:, :end].mT
    values, vectors = torch.linalg.eigh(gram.nan_to_num_(0.0, 0.0, 0.0), UPLO="L")
    return values.flip(-1).clamp(min=0.0), vectors.flip(-1)


class MoLo(NamedTuple):
    """The settings, as `HiMoConfig` has them."""

    whole: float = 1.0
    component: float = 1.0
    threshold: float = 0.9
    group: int | None = None
    sides: Literal["texts", "both"] = "texts"
    unit: bool = False
    detach_basis: bool = False
    smoothing: float = 0.0
    detach_keys: bool = False


def molo(local: Pair, gathered: Pair, scales: tuple[Tensor, Tensor], cfg: MoLo) -> dict[str, Term]:
    """Equation 4: the terms of both losses, and facts about the principal parts.

    scales  of the logits, of one element each: of captions, and of principal parts
    """
    terms: dict[str, Term] = {}
    if cfg.whole > 0:
        terms |= _contrast(local, gathered, scales[0], cfg.whole, cfg)
    if cfg.component > 0:
        texts, principal = _principal(gathered.texts, cfg)
        images = _principal(gathered.images, cfg)[0] if cfg.sides == "both" else gathered.images
        parts = Pair(images, texts)
        own = parts
        if local.images is not gathered.images or local.texts is not gathered.texts:  # several processes
            own = Pair(*(local_rows(part, len(x.item)) for part, x in zip(parts, local, strict=True)))
        named = _contrast(own, parts, scales[1], cfg.component, cfg)
        terms |= {f"component {name}": term for name, term in named.items()}
        terms |= _statistics(principal)
    return terms


def _contrast(local: Pair, gathered: Pair, scale: Tensor, weight: float, cfg: MoLo) -> dict[str, Term]:
    """Equations 2 and 3: cross-entropy both ways over scaled dot products."""
    return both_ways(
        lambda a, b: scale * (a.vector @ b.vector.T), local, gathered, weight, cfg.smoothing, cfg.detach_keys
    )


def _principal(side: Encoded, cfg: MoLo) -> tuple[Encoded, Principal]:
    """Equation 1: the principal parts of captions, or of images. Foils and padding become padding."""
    real = (side.item >= 0) & (side.image >= 0)
    parts = principal_part(side.vector, real, cfg.threshold, group=cfg.group, detach_basis=cfg.detach_basis)
    rows = F.normalize(parts.rows, dim=-1) if cfg.unit else parts.rows
    return side._replace(vector=rows, item=side.item.masked_fill(~real, -1)), parts


def _statistics(principal: Principal) -> dict[str, Term]:
    """Principal components of a group, and the share of the variance that they hold, for the log."""
    groups = (principal.size > 0).float()
    facts = {"components": principal.components, "variance kept": principal.share}
    return {name: Term(None, Mean((x * groups).sum(), groups.sum())) for name, x in facts.items()}
