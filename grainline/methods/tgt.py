"""TGT (Text Group Transformer): the tokens of a caption fall into groups that an image can be found by.

"Discovering Meaningful Units with Visually Grounded Semantics from Image Captions", Behjati & Henderson,
openreview.net/forum?id=kndKGnEOtb. In five steps:
  1. a caption is read together with K learnt group vectors; every token is given to one of them, by a
     straight-through Gumbel softmax, and the groups are read once more (`encoders/tgt_text.py`);
  2. the text vector is the mean of the projected groups, at length 1;
  3. the image vector is the projected mean of the image tokens of an encoder that does not learn (GroupViT in
     the paper), at length 1;
  4. InfoNCE both ways at a fixed temperature;
  5. a small decoder reconstructs the caption from the groups alone, with the word vectors of the encoder.

The baseline is the same with a plain transformer as text encoder: leave `text.groups` out.

docs/methods/text-group-transformer.md says what differs from the paper.
"""

from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from grainline.encoders.base import TextEncoderConfig
from grainline.encoders.pretrained.kind import PretrainedTextConfig
from grainline.encoders.text import TextTransformer
from grainline.encoders.tgt_text import Decoder, DecoderConfig, GroupedTokens, Grouper
from grainline.encoders.towers import TowersConfig, flat_parts
from grainline.encoders.vit import ViTConfig
from grainline.errors import UserError
from grainline.losses.contrastive import both_ways
from grainline.losses.tiled.pair_loss import vocabulary_loss
from grainline.methods.base import Method, TokenGroups, dot
from grainline.methods.shared import LogitScale
from grainline.nn.pooling import mean_pool, unit
from grainline.types import FOIL, Clock, Encoded, Images, Mean, Pair, Term, Texts, full

UNSEEN = r"towers\.(image|to_image|to_text)\..*"
"""Parameters that learn nothing where no image is compared with a text."""


class TGTConfig(TowersConfig):
    """Encoders, decoder and both losses. A text side with `groups` is a Grouper, without it the baseline."""

    contrastive: float = Field(1.0, ge=0)  # weight of the loss of images and texts; 0: images are not read
    reconstruction: float = Field(1.0, ge=0)  # weight of the other; 0: there is no decoder
    mean: Literal["tokens", "captions"] = "tokens"  # of reconstruction: over tokens, or of sums over captions
    decoder: DecoderConfig = DecoderConfig()
    scale: float = Field(1 / 0.07, gt=0)  # of the cosines
    learns_scale: bool = False  # as in GroupViT; in the paper the scale is fixed
    max_scale: float | None = Field(100.0, gt=1)  # of a learnt one; None: no bound

    @property
    def reads_tokens(self) -> bool:
        """False where the summary of the image encoder is the mean of its tokens already."""
        return not self.averaged

    @model_validator(mode="after")
    def _fits(self) -> "TGTConfig":
        if self.contrastive == self.reconstruction == 0:
            raise ValueError("contrastive and reconstruction are both 0: nothing is left to learn")
        if isinstance(self.text, PretrainedTextConfig | TextEncoderConfig):
            raise ValueError(
                "tgt groups tokens: name the checkpoint of texts as text.encoder, beside text.groups"
            )
        if isinstance(self.image, ViTConfig) and self.image.pool == "attention":
            raise ValueError("image.pool attention would learn nothing: tgt takes the mean of image tokens")
        if self.reconstruction and self.text.width % self.decoder.heads:
            raise ValueError(
                f"text.width {self.text.width} is no multiple of decoder.heads {self.decoder.heads}"
            )
        return self


class TGTExtra(NamedTuple):
    """Fields of texts of this method alone."""

    vectors: Tensor  # [M, K, W] what the decoder reads: groups, or the one vector of the baseline
    used: Tensor  # [M, K] bool, which of them are real
    unsure: Tensor  # [M] entropy of the soft assignment, added up over tokens
    tokens: Tensor  # [M] how many there are
    counts: Tensor  # [M, K] how many of them each group takes, without noise; K = 0 for the baseline


class TGT(Method):
    """Dual encoder whose texts are groups of tokens, with a decoder."""

    config_class = TGTConfig
    cfg: TGTConfig
    new_parameters = ("towers.text.groups", "towers.text.stack.blocks.")

    def __init__(self, cfg: TGTConfig) -> None:
        super().__init__(cfg)
        self.averaged = True
        self.uses_images = cfg.contrastive > 0
        text = self.towers.text
        assert isinstance(text, Grouper | TextTransformer)
        self.scale = LogitScale(cfg.scale, cfg.max_scale) if cfg.learns_scale else None
        self.decoder = Decoder(cfg.decoder, text.width, text.context) if cfg.reconstruction else None

    @property
    def words(self) -> nn.Embedding:
        """The word vectors of the text encoder, which the decoder reads and writes with."""
        text = self.towers.text
        words = text.word_vectors if isinstance(text, Grouper) else text.words
        assert isinstance(words, nn.Embedding)
        return words

    def encode_images(self, images: Images) -> Encoded:
        """tokens: image tokens in the shared space; their mean is the vector before it has length 1"""
        if self.training and not self.uses_images:
            return self._unseen(images)
        read = self.towers.image_tokens(images)
        real = read.real()
        mean = mean_pool(read.patches, real).vector if self.cfg.reads_tokens else read.pooled
        vector = unit(self.towers.to_image(mean))
        keep = 0 if self.training else real.shape[1]
        tokens = full(self.towers.to_image(read.patches[:, :keep]))
        return Encoded(vector, tokens, real[:, :keep], images.image, images.image, None, read.places)

    def _unseen(self, images: Images) -> Encoded:
        """Rows without content. UserError where something waits for gradients that cannot come."""
        parts = (self.towers.image, self.towers.to_image, self.towers.to_text)
        if any(p.requires_grad for part in parts for p in part.parameters()):
            raise UserError(
                "model.contrastive is 0, so images teach nothing: freeze what reads them, by a first rule "
                f"{{pattern: '{UNSEEN}', lr: 0}} in train.optimizer.rules"
            )
        number, like = len(images.image), self.words.weight
        nothing = like.new_zeros(number, 0, self.towers.space)
        mask = nothing.new_zeros(number, 0).bool()
        return Encoded(like.new_zeros(number, self.towers.space), nothing, mask, images.image, images.image)

    def encode_texts(self, texts: Texts) -> Encoded:
        """tokens: groups in the shared space, or the words of the baseline"""
        ids, mask = flat_parts(texts)
        read = self.towers.text(ids, mask)
        vector = unit(self.towers.to_text(read.pooled))
        keep = 0 if self.training else read.tokens.shape[1]
        tokens = full(self.towers.to_text(read.tokens[:, :keep]))
        extra = _extra(read, mask)
        return Encoded(vector, tokens, read.mask[:, :keep], texts.item, texts.image, extra)

    def token_groups(self, texts: Texts) -> TokenGroups:
        """Groups, and states as the grouping reads them, or after the last layer of the baseline."""
        read: Any = self.towers.text(*flat_parts(texts))
        if isinstance(read, GroupedTokens):
            return TokenGroups(read.soft, read.states)
        return TokenGroups(None, read.tokens)

    def loss(self, local: Pair, gathered: Pair, clock: Clock) -> dict[str, Term]:  # noqa: ARG002
        if not self.uses_images:
            return {}
        scale = self.cfg.scale if self.scale is None else self.scale()
        return both_ways(
            lambda images, texts: scale * dot(images, texts), local, gathered, self.cfg.contrastive
        )

    def row_loss(self, texts: Texts, encoded: Encoded) -> dict[str, Term]:
        """Reconstruction of true captions, foils left out, and facts about the groups."""
        terms = _facts(encoded.extra, (texts.item >= 0).nonzero()[:, 0])
        if self.decoder is None:
            return terms
        ids, mask = flat_parts(texts)
        part = slice(1, self.context)
        learnt = mask[:, part] & _true(texts.item, texts.level)[:, None]
        target = ids[:, part].masked_fill(~learnt, -1).flatten()
        extra: TGTExtra = encoded.extra
        known = self.decoder(self.words(ids[:, : self.context][:, :-1]), extra.vectors, extra.used)
        mean = vocabulary_loss(known.flatten(0, 1), self.words.weight, target)
        if self.cfg.mean == "captions":
            mean = mean._replace(number=_true(texts.item, texts.level).sum())
        return {"reconstruction": Term(self.cfg.reconstruction, mean)} | terms


def _true(item: Tensor, level: Tensor) -> Tensor:
    """[M] bool: texts that are neither padding nor foils."""
    return (item >= 0) & (level != FOIL)


def _extra(read: Any, mask: Tensor) -> TGTExtra:
    if not isinstance(read, GroupedTokens):
        none = read.pooled.new_zeros(len(mask))
        return TGTExtra(
            read.pooled[:, None], mask.new_ones(len(mask), 1), none, none, none.new_zeros(len(mask), 0)
        )
    soft = read.soft
    unsure = -(soft * soft.clamp(min=1e-30).log()).sum((1, 2))
    groups = torch.arange(soft.shape[1], device=soft.device)
    hard = (soft.argmax(1)[..., None] == groups) & mask[..., None]  # [M, L, K]
    return TGTExtra(read.tokens, read.mask, unsure, mask.sum(1).to(soft.dtype), hard.sum(1).to(soft.dtype))


def _facts(extra: TGTExtra, rows: Tensor) -> dict[str, Term]:
    """Entropy of each token in nats, tokens of each group that has any, share of empty groups: means.

    rows  [m] int64 numbers of the texts that are no padding
    """
    if not extra.counts.shape[1]:
        return {}
    unsure, tokens, counts, used = (
        x.detach()[rows] for x in (extra.unsure, extra.tokens, extra.counts, extra.used)
    )
    empty = (counts == 0) & used
    facts = {
        "entropy": Mean(unsure.sum(), tokens.sum()),
        "tokens of a group": Mean(tokens.sum(), (used & ~empty).sum()),
        "empty groups": Mean(empty.sum(), used.sum()),
    }
    return {name: Term(None, mean) for name, mean in facts.items()}
