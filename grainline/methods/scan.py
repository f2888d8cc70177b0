"""SCAN: every word attends to the patches of an image, or every patch to the words of a caption.

Lee et al., "Stacked Cross Attention for Image-Text Matching", arXiv 1803.08024, a baseline of LAPS and SEPS.
In four steps:
  1. encode the image into patches and the caption into words, all at length 1;
  2. text to image ("t2i"): each word attends to the patches. The cosines of a patch with all words, negative
     ones a tenth, are brought to length 1 ("clipped_l2norm"); softmax over the patches gives the weights of
     a word. Image to text ("i2t"): the same, with each patch attending to the words;
  3. the relevance of a word is its cosine with the mean that it attends to; the score of the pair is the
     LogSumExp of all, or their mean;
  4. triplet loss both ways with the hardest negatives of the batch.

Patches of an image encoder stand in place of regions of a detector, and words of a transformer in place of a
GRU; docs/methods/seps.md has the rest.
"""

from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from grainline.losses.contrastive import TripletSchedule
from grainline.losses.tiled.scores import exact
from grainline.methods.base import Method
from grainline.methods.patch_words import WordsConfig, encoded_patches, encoded_words, triplets
from grainline.nn.patch_selection.scoring import OTHER_TILE_SIZE, TILE_SIZE
from grainline.nn.pooling import unit
from grainline.nn.selection import LEAK
from grainline.types import Clock, Encoded, Images, Pair, Term, Texts, full

EPS = 1e-8


class SCANConfig(WordsConfig):
    """The side that attends to the other, and the way from relevances to a score."""

    direction: Literal["t2i", "i2t"] = "t2i"  # words attend to patches, or patches to words
    lambda_softmax: float = Field(9.0, gt=0)  # inverse temperature of the attention; the paper's for i2t: 4
    # of the LogSumExp; the paper's for i2t: 5; None: the mean of relevances
    lambda_lse: float | None = Field(6.0, gt=0)
    leaky_cosine: bool = True  # negative cosines are a tenth, as in the code; False: 0, as in the paper


class SCAN(Method):
    """Dual encoder whose pairs are scored by cross-attention of words and patches."""

    config_class = SCANConfig
    cfg: SCANConfig
    gathers = ("vector", "tokens", "mask", "item", "image")
    blockwise = True
    pairwise = True

    def encode_images(self, images: Images) -> Encoded:
        """tokens: patches, at length 1"""
        read = encoded_patches(self.towers, images, None, use_cls=False)
        return read._replace(tokens=unit(read.tokens), extra=None)

    def encode_texts(self, texts: Texts) -> Encoded:
        """tokens: words, at length 1; vector: the direction of the mean before"""
        read = encoded_words(self.towers, texts)
        return read._replace(tokens=unit(read.tokens))

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        if self.cfg.direction == "i2t":
            return scan_score(self.cfg, _side(images), _side(texts))
        return scan_score(self.cfg, _side(texts), _side(images)).T

    def loss(self, local: Pair, gathered: Pair, clock: Clock) -> dict[str, Term]:
        rule = TripletSchedule.at(clock, self.cfg)
        return triplets(self.cfg, lambda a, b, _: self.score(a, b), (local, gathered), rule)

    def heat(self, images: Encoded, texts: Encoded) -> Tensor:
        """The part of the score of its row that each patch adds, in cosines.

        Rows sum to the score by the mean of relevances; by LogSumExp, to the relevances weighted by softmax.
        """
        sides = (_side(images), _side(texts))
        (query, real), (context, exists) = sides if self.cfg.direction == "i2t" else sides[::-1]
        with exact(query):
            added = _relevance(self.cfg, query, context, exists, "nad,nbd->nab", "nab,nbd->nad")
            relevance = added.sum(-1)
            logit = _masked((self.cfg.lambda_lse or 0.0) * relevance, real)
            share = logit.softmax(-1) * real
        return share * relevance if self.cfg.direction == "i2t" else (share[..., None] * added).sum(1)


Side = tuple[Tensor, Tensor]
"""[N, A, D] unit tokens, zeros where there is none; [N, A] bool, True = real."""


def scan_score(cfg: SCANConfig, queries: Side, context: Side) -> Tensor:
    """Every row of queries against every row of context: [N, M]

    for n, m, with queries a of n and tokens b of m:
        clipped[a, b] = max(cosine[a, b], 0), or leaky ReLU of slope 0.1
        fit[a, b] = clipped[a, b] / sqrt(sum of clipped[:, b]^2)
        weight[a] = softmax(lambda_softmax * fit[a])
        relevance[a] = cosine of query a with the sum of weight[a, b] * token b
        score[n, m] = log(sum of exp(lambda_lse * relevance)) / lambda_lse, or the mean of relevance
                      (0 where a side has no token)

    Computed in tiles of bounded memory; with gradients these are computed again in backward.
    """

    def tile(query: Tensor, real: Tensor, context: Tensor, exists: Tensor) -> Tensor:
        added = _relevance(cfg, query, context, exists, "nad,mbd->nmab", "nmab,mbd->nmad")
        relevance, real = added.sum(-1), real[:, None]
        if cfg.lambda_lse is None:
            score = (relevance * real).sum(-1) / real.sum(-1).clamp(min=1)
        else:
            score = _masked(cfg.lambda_lse * relevance, real).logsumexp(-1) / cfg.lambda_lse
        return score.masked_fill(~(real.any(-1) & exists.any(-1)), 0.0)

    (n, a, width), (m, b, _) = queries[0].shape, context[0].shape
    room = TILE_SIZE.get(queries[0].device.type, OTHER_TILE_SIZE)
    pairs = max(1, room // (6 * a * b + 2 * a * width + 1))
    wide = max(1, min(m, max(int(pairs**0.5), pairs // max(1, n))))
    high = max(1, pairs // wide)
    again = torch.is_grad_enabled() and n * m > pairs
    compute: Any = partial(checkpoint, tile, use_reentrant=False) if again else tile
    columns = list(zip(*(x.split(wide) for x in context), strict=True))
    with exact(queries[0]):
        lines = [
            torch.cat([compute(*some, *others) for others in columns], 1)
            for some in zip(*(x.split(high) for x in queries), strict=True)
        ]
    return torch.cat(lines)


def _relevance(
    cfg: SCANConfig, query: Tensor, context: Tensor, exists: Tensor, product: str, mean: str
) -> Tensor:
    """The part of the relevance of each query that each token of the context adds: [..., A, B]

    product, mean  equations of `einsum`, for cosines [..., A, B] and for what queries attend to [..., A, D]
    """
    cosine = torch.einsum(product, query, context)
    clipped = F.leaky_relu(cosine, LEAK if cfg.leaky_cosine else 0.0)
    fit = _masked(cfg.lambda_softmax * F.normalize(clipped, dim=-2, eps=EPS), exists[:, None])
    weight = fit.softmax(-1)
    length = torch.einsum(mean, weight, context).norm(dim=-1, keepdim=True)
    return weight * cosine / length.clamp(min=EPS)


def _masked(x: Tensor, real: Tensor) -> Tensor:
    """x with the lowest number where nothing is real; minus infinity would have no gradient."""
    return x.masked_fill(~real, torch.finfo(x.dtype).min)


def _side(rows: Encoded) -> Side:
    return full(rows.tokens) * rows.mask[..., None], rows.mask
