"""Which patches stay for a text and how they become fewer, and the score of what stays (SEPS).

Which patches of a picture stay for a text, and how they become fewer: selection and aggregation of SEPS.

Mao et al., arXiv 2511.01390, section 3.2, after LAPS (Fu et al., CVPR 2024). Shapes: L patches, C slots;
leading dimensions are free. Decisions are numbers, 1 = the patch stays, so that gradients can pass through.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grainline.types import full

EDGE = 1e-6
"""Scores are kept so far from 0 and 1 before their logarithms are taken."""


def kept_number(patches: int, keep: float) -> int:
    """How many of the patches stay.

    >>> kept_number(196, 0.5), kept_number(49, 0.8)
    (98, 40)
    """
    return max(1, math.ceil(keep * patches - 1e-9))  # 0.1 * 30 is more than 3


def slot_number(patches: int, keep: float, aggregate: float) -> int:
    """How many tokens the patches that stay become.

    >>> slot_number(196, 0.5, 0.4), slot_number(49, 0.8, 0.6)
    (39, 23)
    """
    return max(1, math.floor(patches * keep * aggregate + 1e-9))


def stretched(x: Tensor) -> Tensor:
    """x [..., L] with its least number at 0 and its greatest at 1; zeros where all are equal. ("Norm")"""
    x = full(x)
    low = x.amin(-1, keepdim=True)
    return (x - low) / (x.amax(-1, keepdim=True) - low + 1e-8)


def rated(predicted: Tensor | None, attention: Tensor, beta: float) -> Tensor:
    """(1 - 2 beta) predicted + beta attention, a sum of stretched cosines; None counts as 0"""
    return beta * attention if predicted is None else (1 - 2 * beta) * predicted + beta * attention


def hard_topk(score: Tensor, number: int) -> Tensor:
    """1 at the `number` highest scores, 0 elsewhere: [..., L]; no gradient"""
    if number >= score.shape[-1]:
        return torch.ones_like(score)
    place = score.detach().topk(number, sorted=False).indices
    return torch.zeros_like(score).scatter_(-1, place, 1.0)


def gumbel_st(score: Tensor, noise: Tensor) -> Tensor:
    """1 with the probability of the score, else 0: [..., L]; the gradient is that of the soft decision.

    score  [..., L] in 0..1
    noise  [..., L] from the logistic distribution, which is that of the difference of two Gumbel variables

    A two-class Gumbel softmax for each patch, at temperature 1. Where no patch stays, the best one does.
    """
    score = score.clamp(EDGE, 1 - EDGE)
    logit = score.log() - (-score).log1p() + noise
    hard = logit.detach() > 0
    best = torch.zeros_like(hard).scatter_(-1, score.detach().argmax(-1, keepdim=True), value=True)
    hard = hard | (best & ~hard.any(-1, keepdim=True))
    soft = logit.sigmoid()
    return hard.to(soft.dtype) + (soft - soft.detach())


def aggregated(logits: Tensor, values: Tensor, kept: Tensor) -> Tensor:
    """Means of the patches that stay, one for each slot: [..., C, D]

    logits  [..., C, L], values [..., L, D], kept [..., L] decisions, at least one of which is 1

    for c:
        weight[l] = kept[l] * exp(logits[c, l])
        out[c] = (weight / weight.sum()) @ values

    The greatest logit among kept patches is subtracted first. That of a dropped patch may be greater still:
    it counts as if it were equal then, which bounds the gradient by its decision.
    """
    dropped = (kept.detach() == 0)[..., None, :]
    if not torch.is_grad_enabled():  # the same in a third of the passes over [..., C, L]
        return _mixed(logits.masked_fill(dropped, -torch.inf).softmax(-1), values)
    top = logits.detach().masked_fill(dropped, -torch.inf).amax(-1, keepdim=True)
    weight = (logits - top).clamp(max=0).exp() * kept[..., None, :]
    return _mixed(weight / weight.sum(-1, keepdim=True), values)


def rest(score: Tensor, values: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """One token of the patches that do not stay: [..., D], and whether there are any: [...] bool

    score [..., L], values [..., L, D]: the mean of dropped values, weighted by the softmax of their scores.
    """
    stays = kept.detach() > 0
    everything = stays.all(-1)
    weight = score.masked_fill(stays & ~everything[..., None], -torch.inf).softmax(-1)
    return _mixed(weight[..., None, :], values)[..., 0, :], ~everything


def _mixed(weight: Tensor, values: Tensor) -> Tensor:
    """weight [..., C, L] @ values [..., L, D]; values [n, 1, L, D] of many texts are not copied for each."""
    if weight.dim() == 4 and values.shape[1] == 1:
        return (weight.flatten(1, 2) @ values[:, 0]).unflatten(1, weight.shape[1:3])
    return weight @ values


class Predictor(nn.Module):
    """How much a patch matters, whatever the text: [..., L, D] -> [..., L] in 0..1 (equation 1)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = max(1, width // 4)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, 1)
        )

    def forward(self, patches: Tensor) -> Tensor:
        out: Tensor = self.mlp(patches)[..., 0].sigmoid()
        return out


class Slots(nn.Module):
    """What each patch gives to each slot: [..., L, D] -> logits [..., C, L].

    The last layer has no bias: a softmax over patches does not see it.
    """

    def __init__(self, width: int, slots: int) -> None:
        super().__init__()
        hidden = max(1, width // 5)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, slots, bias=False)
        )
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, patches: Tensor) -> Tensor:
        out: Tensor = self.scale * self.mlp(patches).transpose(-1, -2)
        return out


# The score of a picture and a text from the cosines of their tokens: relevance-aware matching of SEPS.
#
# Mao et al., arXiv 2511.01390, equation 5. Every token looks for its best counterpart on the other side; the
# score is the mean of what they find, both ways, and what a small network makes of the few best finds.


Matching = Literal["both", "mean", "topk"]
"""Which terms a score has: the means, the networks over the best finds, or both."""

LEAK = 0.1
"""Slope of negative cosines in the code of LAPS, where they pass a LeakyReLU first."""


def best_of(found: Tensor, real: Tensor, number: int) -> Tensor:
    """The greatest values, in descending order: [..., number]

    found [..., P], real [..., P] bool, at least one of them. Where there are fewer than `number`, the least
    of them is repeated: with zeros the score would depend on the length.
    """
    top = found.masked_fill(~real, -torch.inf).topk(min(number, found.shape[-1])).values
    last = real.sum(-1, keepdim=True).clamp(max=top.shape[-1]) - 1
    place = torch.arange(number, device=found.device).minimum(last)
    return top.gather(-1, place)


class Relevance(nn.Module):
    """Cosines to scores. The networks begin at zero, so learning begins with the means alone."""

    def __init__(self, number: int = 5, matching: Matching = "both", leaky: bool = False) -> None:
        """number  of best finds that a network reads"""
        super().__init__()
        self.number, self.leaky, self.means = number, leaky, matching != "topk"
        networks = matching != "mean"
        self.patches = _network(number, zero=self.means) if networks else None
        self.words = _network(number, zero=self.means) if networks else None

    def forward(self, cosine: Tensor, seen: Tensor, told: Tensor) -> Tensor:
        """Scores [...]

        cosine  [..., P, M] of patches with words
        seen    [..., P] 1 = real, 0 = not, at least one of them; it may have a gradient
        told    [..., M] bool, True = real; of a text without real words, whose score nobody reads, the first
                counts, so that it does not depend on how many there are

        for each pair:
            patch[p] = max(cosine[p, m] for real m), word[m] = max(cosine[p, m] for real p)
            score = mean(patch) + network(best of patch) + mean(word) + network(best of word)
        """
        cosine = F.leaky_relu(cosine, LEAK) if self.leaky else cosine
        real = seen.detach() > 0
        first = torch.arange(told.shape[-1], device=told.device) == 0
        told = told | (first & ~told.any(-1, keepdim=True))
        patch = cosine.masked_fill(~told[..., None, :], -torch.inf).amax(-1)
        word = cosine.masked_fill(~real[..., None], -torch.inf).amax(-2)
        terms = []
        if self.means:
            terms += [(patch * seen).sum(-1) / seen.sum(-1), _mean(word, told)]
        if self.patches is not None and self.words is not None:
            told = told.expand(word.shape)
            terms.append(self.patches(best_of(patch, real.expand(patch.shape), self.number))[..., 0])
            terms.append(self.words(best_of(word, told, self.number))[..., 0])
        return torch.stack(terms).sum(0)


def _mean(x: Tensor, real: Tensor) -> Tensor:
    return x.masked_fill(~real, 0.0).sum(-1) / real.sum(-1)


def _network(number: int, zero: bool) -> nn.Sequential:
    """The last layer has no bias: added to every score alike, it would change no triplet."""
    last = nn.Linear(2 * number, 1, bias=False)
    if zero:
        nn.init.zeros_(last.weight)
    return nn.Sequential(nn.Linear(number, 2 * number), nn.GELU(), last)
