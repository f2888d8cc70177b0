"""MaxSim: every sentence of a caption looks for its own place in the image.

Late interaction as in ColBERT (Khattab & Zaharia, arXiv 2004.12832) and FILIP (Yao et al., arXiv 2111.07783).
In four steps:
  1. encode the image into patches, and each sentence of the caption, read by itself, into one vector;
  2. let each sentence find the patches that fit it best: the mean of its cosines, weighted by their softmax;
  3. the score of image and caption is the mean over the sentences;
  4. cross-entropy both ways over the scores of the batch, and a lighter one over one vector a side, so that
     an index can find candidates by vector.

Differs from FILIP: sentences instead of words, a smooth maximum unless `sharpness` is None, and only texts
search: an image holds more than its caption says, so its patches need not be found in the text.
"""

from typing import Any

import torch
from pydantic import Field
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from grainline.encoders.towers import TowersConfig, distinct_rows, read_parts
from grainline.losses.contrastive import both_ways
from grainline.methods.base import Method, dot
from grainline.methods.shared import LogitScale
from grainline.nn.pooling import mean_pool, unit
from grainline.types import Clock, Encoded, Images, Pair, Term, Texts

BLOCK = 2**23
"""Cosines that are stored at a time; where there are more, blocks of texts are computed again in backward."""
CACHED = 2**18
"""The same on a CPU without gradients: blocks that stay in its cache take half the time."""


class MaxSimConfig(TowersConfig):
    """Encoders, how many sentences a caption has at most, and how scores are formed.

    The context of the text encoder is that of a sentence.
    """

    sentences: int = Field(32, gt=1)  # of a text; what stands behind them is cut, counted and reported
    # of the softmax over patches; None: the plain maximum, as in ColBERT and FILIP
    sharpness: float | None = Field(10.0, gt=0)
    scale: float | None = Field(None, gt=0)  # at the start; None: that of the checkpoint, else 1 / 0.07
    max_scale: float | None = Field(100.0, gt=1)  # None: no bound
    coarse: float = Field(0.1, ge=0)  # weight of the loss over plain vectors

    learns_tokens = True


class MaxSim(Method):
    """Dual encoder whose pairs are scored sentence by patch."""

    config_class = MaxSimConfig
    reads_words = False
    gathers = ("vector", "tokens", "mask", "item", "image")
    pairwise = mean_of_parts = True

    def __init__(self, cfg: MaxSimConfig) -> None:
        super().__init__(cfg)
        self.parts = cfg.sentences
        self.sharpness, self.coarse = cfg.sharpness, cfg.coarse
        self.scale = LogitScale(cfg.scale or 1 / 0.07, cfg.max_scale)

    def encode_images(self, images: Images) -> Encoded:
        """tokens: patches, at length 1"""
        read = self.towers.encode_images(images)
        return read._replace(tokens=unit(read.tokens))

    def encode_texts(self, texts: Texts) -> Encoded:
        """tokens: one for each sentence, at length 1; sentences that several texts share are read once"""
        tokens, mask = read_parts(self.towers, texts)  # [M, S, D]
        return Encoded(unit(mean_pool(tokens, mask).vector), unit(tokens), mask, texts.item, texts.image)

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        return late_score(images.tokens, images.mask, texts.tokens, texts.mask, self.sharpness)

    def loss(self, local: Pair, gathered: Pair, clock: Clock) -> dict[str, Term]:  # noqa: ARG002
        scale = self.scale()
        fine = both_ways(lambda images, texts: scale * self.score(images, texts), local, gathered)
        plain = both_ways(lambda images, texts: scale * dot(images, texts), local, gathered, self.coarse)
        return fine | {f"coarse {name}": term for name, term in plain.items()}

    def heat(self, images: Encoded, texts: Encoded) -> Tensor:
        """The share of every patch in the score of its row: rows sum to the score."""
        return late_heat(images.tokens, images.mask, texts.tokens, texts.mask, self.sharpness)


def late_score(
    images: Tensor, image_mask: Tensor, texts: Tensor, text_mask: Tensor, sharpness: float | None
) -> Tensor:
    """Every image against every text: [N, M]

    images [N, L, D], texts [M, S, D] unit tokens; image_mask [N, L], text_mask [M, S] bool, True = real

    for n, m:
        for s with text_mask[m, s]:
            cosine = [images[n, l] @ texts[m, s] for l with image_mask[n, l]]
            best[s] = (softmax(sharpness * cosine) * cosine).sum(), or max(cosine) for sharpness = None
        score[n, m] = mean(best)    (0 for a text without tokens)

    Tokens that several texts share are compared once.
    """
    flat = texts.flatten(0, 1)
    first, back = distinct_rows(flat)
    tokens = flat[first]
    limit = BLOCK if torch.is_grad_enabled() or images.device.type != "cpu" else CACHED
    step = max(1, limit // max(1, image_mask.numel()))
    best = torch.cat(
        [_best(images, image_mask, tokens[i : i + step], sharpness) for i in range(0, len(tokens), step)], 1
    )
    each = best[:, back].unflatten(1, texts.shape[:2])  # [N, M, S]
    return each.masked_fill(~text_mask, 0.0).sum(-1) / text_mask.sum(-1).clamp(min=1)


def late_heat(
    images: Tensor, image_mask: Tensor, texts: Tensor, text_mask: Tensor, sharpness: float | None
) -> Tensor:
    """The share of every image token in the score of its own text: [N, L], rows sum to that score; N = M."""
    cosine = torch.einsum("nld,nsd->nsl", images, texts)
    weight = _weight(cosine, image_mask[:, None], sharpness) * text_mask[..., None]
    return (weight * cosine).sum(1) / text_mask.sum(-1, keepdim=True).clamp(min=1)


def _best(images: Tensor, image_mask: Tensor, tokens: Tensor, sharpness: float | None) -> Tensor:
    """The maximum of every token in every image: [N, U]"""

    def compute(images: Tensor, tokens: Tensor) -> Tensor:
        cosine = torch.einsum("nld,ud->nul", images, tokens)
        return (_weight(cosine, image_mask[:, None], sharpness) * cosine).sum(-1)

    if torch.is_grad_enabled() and len(tokens) * image_mask.numel() > BLOCK // 2:
        best: Any = checkpoint(compute, images, tokens, use_reentrant=False)
        return best
    return compute(images, tokens)


def _weight(cosine: Tensor, image_mask: Tensor, sharpness: float | None) -> Tensor:
    if sharpness is None:
        best = cosine.masked_fill(~image_mask, -torch.inf).argmax(-1, keepdim=True)
        return torch.zeros_like(cosine).scatter(-1, best, 1.0)
    return (sharpness * cosine).masked_fill(~image_mask, -torch.inf).softmax(-1)
