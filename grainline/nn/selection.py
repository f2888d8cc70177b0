"""Selection, aggregation and matching of patches in SEPS.

Mao et al., arXiv 2511.01390, section 3.2, after LAPS (Fu et al., CVPR 2024). Shapes: L patches, C slots;
leading dimensions are free. Decisions are numbers, 1 = the patch is kept, so that gradients can pass through.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grainline.types import full

EDGE = 1e-6  # distance of scores from 0 and 1 before their logarithms are taken
LEAK = 0.1  # slope of negative cosines in the code of LAPS, where they pass a LeakyReLU first

Matching = Literal["both", "mean", "topk"]
"""Terms of a score: the means, the networks on the best cosines, or both."""


def number_of_patches(patches: int, keep_ratio: float) -> int:
    """How many of the patches are kept."""
    return max(1, math.ceil(keep_ratio * patches - 1e-9))  # 0.1 * 30 is more than 3


def number_of_slots(patches: int, keep_ratio: float, aggregation_ratio: float) -> int:
    """How many tokens the kept patches are aggregated into."""
    return max(1, math.floor(patches * keep_ratio * aggregation_ratio + 1e-9))


def stretched(x: Tensor) -> Tensor:
    """x [..., L] scaled to the range 0..1; zeros where all are equal ("Norm" in the paper)."""
    x = full(x)
    low = x.amin(-1, keepdim=True)
    return (x - low) / (x.amax(-1, keepdim=True) - low + 1e-8)


def weighted_score(predicted: Tensor | None, attention: Tensor, beta: float) -> Tensor:
    """(1 - 2 beta) predicted + beta attention, a sum of stretched cosines; None counts as 0"""
    return beta * attention if predicted is None else (1 - 2 * beta) * predicted + beta * attention


def hard_topk(score: Tensor, number: int) -> Tensor:
    """1 at the `number` highest scores, 0 elsewhere: [..., L]; no gradient. torch orders equal ones."""
    if number >= score.shape[-1]:
        return torch.ones_like(score)
    place = score.detach().topk(number, sorted=False).indices
    return torch.zeros_like(score).scatter_(-1, place, 1.0)


def gumbel_st(score: Tensor, noise: Tensor) -> Tensor:
    """1 with the probability of the score, else 0: [..., L]; the gradient is that of the soft decision.

    score [..., L] in 0..1; noise [..., L] from the logistic distribution, the difference of two Gumbels

    A two-class Gumbel softmax for each patch, at temperature 1. If it keeps none, the best one stays.
    """
    score = score.clamp(EDGE, 1 - EDGE)
    logit = score.log() - (-score).log1p() + noise
    hard = logit.detach() > 0
    best = torch.zeros_like(hard).scatter_(-1, score.detach().argmax(-1, keepdim=True), value=True)
    hard = hard | (best & ~hard.any(-1, keepdim=True))
    soft = logit.sigmoid()
    return hard.to(soft.dtype) + (soft - soft.detach())


def aggregated(logits: Tensor, values: Tensor, keep: Tensor) -> Tensor:
    """Weighted means of the kept patches, one for each slot: [..., C, D]

    logits  [..., C, L], values [..., L, D], keep [..., L] decisions, at least one of which is 1

    for c:
        weight[l] = keep[l] * exp(logits[c, l])
        out[c] = (weight / weight.sum()) @ values

    The gradient of the decision of a dropped patch is bounded: its logit is clamped to the greatest kept one.
    """
    dropped = (keep.detach() == 0)[..., None, :]
    if not torch.is_grad_enabled():  # the same in a third of the passes over [..., C, L]
        return _mixed(logits.masked_fill(dropped, -torch.inf).softmax(-1), values)
    top = logits.detach().masked_fill(dropped, -torch.inf).amax(-1, keepdim=True)
    weight = (logits - top).clamp(max=0).exp() * keep[..., None, :]
    return _mixed(weight / weight.sum(-1, keepdim=True), values)


def rest_token(score: Tensor, values: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of the dropped patches by the softmax of their scores: [..., D], and if there are any: [...]

    score [..., L], values [..., L, D], keep [..., L]
    """
    keeps = keep.detach() > 0
    keeps_all = keeps.all(-1)
    weight = score.masked_fill(keeps & ~keeps_all[..., None], -torch.inf).softmax(-1)
    return _mixed(weight[..., None, :], values)[..., 0, :], ~keeps_all


def _mixed(weight: Tensor, values: Tensor) -> Tensor:
    """weight [..., C, L] @ values [..., L, D]; values [n, 1, L, D] of many texts are not copied for each."""
    if weight.dim() == 4 and values.shape[1] == 1:
        return (weight.flatten(1, 2) @ values[:, 0]).unflatten(1, weight.shape[1:3])
    return weight @ values


class Predictor(nn.Module):
    """Score of each patch by itself: [..., L, D] -> [..., L] in 0..1 (equation 1)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = max(1, width // 4)
        into, out = nn.Linear(width, hidden), nn.Linear(hidden, 1)
        self.mlp = nn.Sequential(nn.LayerNorm(width), into, nn.GELU(), out)

    def forward(self, patches: Tensor) -> Tensor:
        out: Tensor = self.mlp(patches)[..., 0].sigmoid()
        return out


class Slots(nn.Module):
    """Aggregation logits: patches [..., L, D] -> [..., C, L]. A bias behind them would cancel."""

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


def best_of(cosine: Tensor, real: Tensor, number: int) -> Tensor:
    """The greatest values in descending order: [..., number]

    cosine [..., P], real [..., P] bool, at least one of them. Where fewer than `number` are real, the least
    of them is repeated: with zeros the score would depend on the length. Of equal ones, as slots of a single
    patch have, the first learns on every device; `topk` promises no order.
    """
    cosine = cosine.masked_fill(~real, -torch.inf)
    if cosine.requires_grad:
        top = cosine.sort(dim=-1, descending=True, stable=True).values[..., :number]
    else:
        top = cosine.topk(min(number, cosine.shape[-1])).values
    last = real.sum(-1, keepdim=True).clamp(max=top.shape[-1]) - 1
    place = torch.arange(number, device=cosine.device).minimum(last)
    return top.gather(-1, place)


class Relevance(nn.Module):
    """Cosines to scores (equation 5). The networks begin at zero, so learning begins with the means alone."""

    def __init__(self, number: int = 5, matching: Matching = "both", leaky: bool = False) -> None:
        """number  of best cosines that a network reads"""
        super().__init__()
        self.number, self.leaky, self.means = number, leaky, matching != "topk"
        networks = matching != "mean"
        self.patches = _network(number, zero=self.means) if networks else None
        self.words = _network(number, zero=self.means) if networks else None

    def forward(self, cosine: Tensor, weight: Tensor, words: Tensor) -> Tensor:
        """Scores [...]

        cosine  [..., P, M] of patches with words
        weight  [..., P] 1 = real, 0 = not, at least one of them; it may have a gradient
        words   [..., M] bool, True = real. In a text without real words the first one counts

        for each pair:
            patch[p] = max(cosine[p, m] for real m), word[m] = max(cosine[p, m] for real p)
            score = mean(patch) + network(best of patch) + mean(word) + network(best of word)
        """
        cosine = F.leaky_relu(cosine, LEAK) if self.leaky else cosine
        real = weight.detach() > 0
        first = torch.arange(words.shape[-1], device=words.device) == 0
        words = words | (first & ~words.any(-1, keepdim=True))
        patch = cosine.masked_fill(~words[..., None, :], -torch.inf).amax(-1)
        word = cosine.masked_fill(~real[..., None], -torch.inf).amax(-2)
        terms = []
        if self.means:
            terms += [
                (patch * weight).sum(-1) / weight.sum(-1),
                word.masked_fill(~words, 0.0).sum(-1) / words.sum(-1),
            ]
        if self.patches is not None and self.words is not None:
            words = words.expand(word.shape)
            terms.append(self.patches(best_of(patch, real.expand(patch.shape), self.number))[..., 0])
            terms.append(self.words(best_of(word, words, self.number))[..., 0])
        return torch.stack(terms).sum(0)


def _network(number: int, zero: bool) -> nn.Sequential:
    """The last layer has no bias: added to every score alike, it would change no triplet."""
    last = nn.Linear(2 * number, 1, bias=False)
    if zero:
        nn.init.zeros_(last.weight)
    return nn.Sequential(nn.Linear(number, 2 * number), nn.GELU(), last)
