"""The score of a picture and a text from the cosines of their tokens: relevance-aware matching of SEPS.

Mao et al., arXiv 2511.01390, equation 5. Every token looks for its best counterpart on the other side; the
score is the mean of what they find, both ways, and what a small network makes of the few best finds.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
