"""Mosaic: images as the visual words that they are made of, texts as their whole and their sentences.

The method that grainline recommends, and its own. In four steps:
  1. the tokens of an image are its cells. Their mean, and how often each word of a visual vocabulary is seen
     among them, are projected into one vector (`nn/visual_words.py`); before that the square root is taken
     of both, as of any histogram that is compared by a dot product (the Hellinger kernel);
  2. a text is read whole, and each of its sentences by itself; a small network adds to the projection;
  3. the vector of a text lies between the vector of the whole and the mean of those of its sentences;
  4. cross-entropy both ways over cosines, as in CLIP.

The score is the cosine of two vectors, so that an index by vector is exact. Image tokens are what each cell
adds to the vector, so that heat is the share of each cell in the score. What was tried and did not help is in
docs/LOG.md, ablations are in docs/methods/mosaic.md.
"""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from grainline.data.texts import Chunking
from grainline.encoders.towers import Projection, TowersConfig, read_parts
from grainline.losses.contrastive import both_ways
from grainline.methods.base import Method, dot
from grainline.methods.shared import LogitScale
from grainline.nn.hashing import Dropout
from grainline.nn.pooling import unit
from grainline.nn.visual_words import VisualWords
from grainline.types import Clock, Encoded, Images, Pair, Term, Texts, full, rows


class MosaicConfig(TowersConfig):
    """Encoders, the visual vocabulary, what reads texts, and how the whole and its sentences are weighed."""

    visual_words: int = Field(1024, ge=0)  # 0: none
    temperature: float = Field(0.05, gt=0)  # of the assignment of cells to visual words
    roots: bool = True  # of the cells; for encoders whose outputs are no less than 0, as those of a ReLU
    hidden: int = Field(512, ge=0)  # width of the network beside the projection of texts; 0: none
    whole: float = Field(0.3, ge=0, le=1)  # share of the whole text; the mean over its sentences has the rest
    sentences: int = Field(32, gt=1)  # of a text at most
    scale: float | None = Field(None, gt=0)  # at the start; None: that of the checkpoint, else 1 / 0.07
    max_scale: float | None = Field(100.0, gt=1)  # None: no bound

    learns_tokens: ClassVar[bool] = True


class Mosaic(Method):
    """Dual encoder of visual words and of sentences."""

    config_class = MosaicConfig
    reads_words = False
    new_parameters = ("towers.to_text.more",)

    def __init__(self, cfg: MosaicConfig) -> None:
        super().__init__(cfg)
        towers = self.towers
        self.parts, self.chunking = 1 + cfg.sentences, Chunking(whole=True)
        self.whole, self.roots = cfg.whole, cfg.roots
        self.mean_of_cells, self.averaged = cfg.averaged, True
        self.scale = LogitScale(cfg.scale or 1 / 0.07, cfg.max_scale)
        self.visual_words: VisualWords | None = None
        if cfg.visual_words:
            self.visual_words = VisualWords(cfg.visual_words, towers.image.width, cfg.temperature)
            self.from_words = Projection(cfg.visual_words, towers.space, cfg.dropout)
            nn.init.zeros_(self.from_words.weight)  # the vector begins as that of the encoder
        if cfg.hidden and isinstance(towers.to_text, Projection):
            towers.to_text = ProjectionAndMore(towers.to_text, cfg.hidden)

    def fit(self, images: Images) -> None:
        """Find the visual words among the cells of some training images, before the first step."""
        if self.visual_words is not None and not self.visual_words.words.any():
            parts = (rows(images, slice(i, i + 32)) for i in range(0, len(images.image), 32))
            read = map(self.towers.image_tokens, parts)
            self.visual_words.fit(torch.cat([self._rooted(full(x.patches)[x.real()]) for x in read]))

    def encode_images(self, images: Images) -> Encoded:
        """tokens: what each cell adds to the vector, whose mean it is; none in training"""
        read = self.towers.image_tokens(images)
        cells, mask = full(read.patches), read.real()
        pooled = full(read.pooled)
        gain = gain_of_root(pooled) if self.roots else torch.ones_like(pooled)
        vector = full(self.towers.to_image(pooled * gain))
        seen = None
        if self.visual_words is not None:
            seen = self.visual_words(self._rooted(cells))
            histogram = mean(seen, mask)
            seen_gain = gain_of_root(histogram)
            vector = vector + full(self.from_words(histogram * seen_gain))
        if self.training:
            tokens = cells.new_zeros(len(cells), 0, vector.shape[1])
            return Encoded(unit(vector), tokens, mask[:, :0], images.image, images.image)
        whole = self.towers.to_image((cells if self.mean_of_cells else pooled[:, None]) * gain[:, None])
        tokens = full(whole).expand(-1, cells.shape[1], -1)
        if seen is not None:
            tokens = tokens + full(self.from_words(seen * seen_gain[:, None]))
        tokens = tokens.masked_fill(~mask[..., None], 0.0)
        return Encoded(unit(vector), tokens, mask, images.image, images.image, None, read.places)

    def _rooted(self, cells: Tensor) -> Tensor:
        return cells.clamp(min=0).sqrt() if self.roots else cells

    def encode_texts(self, texts: Texts) -> Encoded:
        """tokens: one for each sentence, at length 1, behind a masked one for the whole of several"""
        parts, mask = read_parts(self.towers, texts)
        parts = unit(parts)
        mask = mask.clone()
        mask[:, 0] &= ~mask[:, 1:].any(1)  # the whole of a text of several sentences is none of them
        vector = torch.lerp(mean(parts, mask), parts[:, 0], self.whole)
        return Encoded(unit(vector), parts, mask, texts.item, texts.image)

    def loss(self, local: Pair, gathered: Pair, clock: Clock) -> dict[str, Term]:  # noqa: ARG002
        scale = self.scale()
        return both_ways(lambda images, texts: scale * dot(images, texts), local, gathered)


class ProjectionAndMore(Projection):
    """A projection that a network with one hidden layer adds to, nothing at the start."""

    def __init__(self, plain: Projection, hidden: int) -> None:
        super().__init__(plain.in_features, plain.out_features, plain.drop.p)
        self.weight = plain.weight
        last = nn.Linear(hidden, plain.out_features)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        first = nn.Linear(plain.in_features, hidden)
        self.more = nn.Sequential(first, nn.GELU(), Dropout(plain.drop.p), last)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.more(self.drop(x))


def mean(x: Tensor, mask: Tensor) -> Tensor:
    """The mean of the real tokens in the precision of x, whatever autocast says: [N, L, W] -> [N, W]"""
    return (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)


def gain_of_root(x: Tensor) -> Tensor:
    """The factors by which x becomes unit(sqrt(x)), where x >= 0: [..., W], 0 where x is 0

    They make the root of a mean a sum over what was averaged: each x[l] * gain is the share of l.
    """
    root = x.clamp(min=0).sqrt()
    size = root.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    return torch.where(root > 0, 1 / (root * size).clamp(min=1e-12), 0.0)
