"""Pictures pooled by texts of other pictures, as further negatives of beta-CAL (arXiv 2512.12678, table 8).

Binary: each such picture is told apart from the text that pooled it. Cross-entropy: the texts join the
candidates of pooled pictures once for each other picture that they pool, which adds nothing new to them, and
what they pooled joins the candidates of texts, which does.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from grainline.losses.beta import Beta, beta_ce, shares_of
from grainline.losses.blocks import Blocks, Keys
from grainline.losses.normalised import Normalised
from grainline.losses.pairs import Logistic, pair_loss
from grainline.losses.scores import Parts, Pull, Score, add_products
from grainline.types import Mean

See = Callable[[Tensor, Tensor, Parts], Tensor]
"""texts [1, K, D], patches [N, L, D] and parameters to scaled cosines of text and what it pooled: [N, K]."""

NOBODY = -2  # the owner of a text that every picture may be compared with


class Seen(Score):
    """Scaled cosines of texts [M, D] with what they pool of patches [N, L, D]; the parameters are shared."""

    def __init__(self, see: See) -> None:
        self.see = see

    def sides(self, rows: Parts, cols: Parts, wide: int) -> tuple[int, int]:  # noqa: ARG002
        return 16, 256  # a pair holds four widths and more, several times

    def tile(self, rows: Parts, cols: Parts, shared: Parts) -> Tensor:
        return self.see(cols[0][None], rows[0], shared)


class Repeated(Score):
    """Inner products of rows ([n, D], owner [n]) with columns ([M, D], owner [M], log of how often [M]).

    A pair of one owner is no pair.
    """

    closed = True

    def tile(self, rows: Parts, cols: Parts, shared: Parts) -> Tensor:  # noqa: ARG002
        (v, image), (t, owner, often) = rows, cols
        return (v @ t.T + often).masked_fill(image[:, None] == owner, -torch.inf)

    def pulled(
        self, rows: Parts, cols: Parts, shared: Parts, known: Tensor | None = None
    ) -> tuple[Tensor, Pull]:
        def pull(by_logits: Tensor, sums: Sequence[Tensor | None]) -> None:
            add_products(by_logits, (rows[0], cols[0]), (sums[0], sums[2]))  # owners learn nothing

        return self.tile(rows, cols, shared) if known is None else known, pull


def others_bce(see: See, shared: Parts, patches: Tensor, pictures: Keys, texts: Tensor, keys: Keys) -> Mean:
    """The mean of log(1 + exp(logit)) over pictures and texts of other pictures of their group.

    patches  [n, L, D] of my pictures, with their keys [n]
    texts    [C, D] of everyone, with their keys [C]
    """
    (found,) = pair_loss(
        Seen(see), Logistic(), (patches,), (texts,), Blocks(pictures, keys, 0.0, 0.0), shared=shared
    )
    met = (pictures.group[:, None] == keys.group) & pictures.real()[:, None] & keys.real()
    pairs = met & (pictures.image[:, None] != keys.image)
    return Mean(found.total, pairs.sum().to(found.total.dtype))


def repeated_ce(
    scaled: Tensor,
    others: Tensor,
    mine: Keys,
    everyone: Keys,
    weights: Beta,
    *,
    chosen: Tensor,
    owner: Tensor,
    size: Tensor,
) -> Mean:
    """`beta_ce` of pooled pictures with texts, where chosen texts are candidates again for other pictures.

    chosen  [C] rows of everyone's texts; each stands there once more for every other picture of its group
    owner   [C] ids of their own images, for which they do not count; NOBODY: they count for it too, as in the
            published code
    size    [groups] pictures

    With every text chosen and no owners the loss is higher by the log of the number of pictures, and its
    gradient is that of `beta_ce`.
    """
    group = everyone.group[chosen]
    often = (size[group.clamp(min=0)] - 1).to(scaled.dtype).log()
    nobody = torch.full_like(everyone.image, NOBODY)
    found = pair_loss(
        Repeated(),
        Normalised(False),
        (scaled, mine.image),
        (
            torch.cat([others, others[chosen]]),
            torch.cat([nobody, owner]),
            torch.cat([often.new_zeros(len(others)), often]),
        ),
        weights.blocks(mine, and_negatives(everyone, group)),
        shares=(shares_of(mine, everyone), torch.ones(len(others) + len(group), device=others.device)),
    )
    return found[0]


def further_ce(
    scaled: Tensor, others: Tensor, mine: Keys, everyone: Keys, weights: Beta, further: Tensor, group: Tensor
) -> Mean:
    """`beta_ce` of texts with pooled pictures; further ones [F, D] of groups [F] are negatives."""
    return beta_ce(scaled, torch.cat([others, further]), mine, and_negatives(everyone, group), weights)


def and_negatives(keys: Keys, group: Tensor) -> Keys:
    """Keys with further rows behind them that are candidates of all rows of their groups [F]."""
    fresh = torch.arange(len(group), device=group.device)
    nothing = torch.full_like(fresh, -1)
    return Keys(*(torch.cat(both) for both in zip(keys, (fresh, nothing, group, fresh), strict=True)))
