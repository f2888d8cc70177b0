"""beta-CLIP: every caption, sentence and phrase is aligned with the picture as that text sees it.

Zohra, Zhao et al., arXiv 2512.12678. In four steps:
  1. encode the picture into a summary and patches, and every text, whatever its grain, into one vector;
  2. let each text pool the patches of its own picture by cross-attention (equation 1);
  3. beta-CAL: tell pooled pictures apart by texts and texts by pooled pictures; texts of one picture are
     positives of weight beta for each other: by cross-entropy (equations 2, 3), or pair by pair (4, 5);
  4. InfoNCE between the summaries of pictures and their captions, added up.

Differs from the authors' code: a group of pictures is as large as `group` says, whatever the number of
processes, and the matrix of its pairs is never stored; padding is in no softmax; vectors learn as queries and
as candidates, unless `detach_keys` says otherwise. Scores of pairs never use a picture's own text: they are
cosines of summaries, or with scoring "conditioned" every picture is pooled by the text it is compared with.
Foils join the loss of the summaries only: they have no picture that they could see.
"""

from typing import Literal, NamedTuple

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from grainline.config import Config
from grainline.distributed import own_rows
from grainline.encoders.towers import TowersConfig
from grainline.losses.beta_cal import (
    NOBODY,
    Beta,
    Divisor,
    beta_bce,
    beta_ce,
    beta_ce_both,
    further_ce,
    others_bce,
    repeated_ce,
)
from grainline.losses.tiled.pair_mask import Keys
from grainline.methods.base import Method, dot
from grainline.methods.shared import (
    both_ways,
    constant,
    owner_of,
    picture_keys,
    rank_of,
    slots_of,
    standing,
    text_keys,
)
from grainline.nn.pooling import CrossPool, unit
from grainline.nn.scale import LogitScale
from grainline.types import (
    CAPTION,
    FOIL,
    LOOSE,
    PHRASE,
    SENTENCE,
    Clock,
    Encoded,
    Images,
    Mean,
    Pair,
    Term,
    Texts,
    full,
    rows,
)

PAIRS = 4096
"""Pairs that are pooled at a time when scores are conditioned; some 100 MB at width 512 and 196 patches."""


class OthersConfig(Config):
    """Pictures as texts of other pictures of their group see them, as further negatives (table 8).

    A picture is pooled by the caption of each other one, and by the first so many of its other texts.
    """

    sentences: int = Field(0, ge=0)
    phrases: int = Field(0, ge=0)
    weight: float = Field(10.0, gt=0)  # of their mean, for form "bce"; "ce" puts them into its softmax
    own: bool = False  # form "ce": a picture's own texts count among the negatives too, as in the code


class Chosen(NamedTuple):
    """The texts that pool images of others."""

    row: Tensor  # [C] among everyone's texts
    keys: Keys  # [C] with the image that each belongs to, empty slots too


class BetaCLIPConfig(TowersConfig):
    """Encoders, pooling and both losses."""

    scale: float | None = Field(None, gt=0)  # at the start; None: that of the checkpoint, else 1 / 0.07
    pool_scale: float = Field(1 / 0.07, gt=0)  # of pooled pictures with texts, at the start
    max_scale: float | None = Field(100.0, gt=1)  # of both; None: no bound
    heads: int = Field(8, gt=0)  # of the pooling
    mlp_ratio: float = Field(4.0, gt=0)
    input_norm: bool = False  # LayerNorm on what goes into the pooling: in the paper, not in the code
    whole: float = Field(1.0, ge=0)  # weight of the loss of summaries with captions
    pooled: float = Field(1.0, gt=0)  # weight of beta-CAL
    form: Literal["ce", "bce"] = "ce"
    beta: float = Field(0.5, ge=0, le=1)  # weight of texts of one picture for each other
    decay: float = Field(0.0, ge=0)  # it falls by exp(-decay) with each slot between them (table 13)
    divisor: Divisor = "pairs"  # of "bce": rows, as in the paper, or their square; slots: with padding
    group: int | None = Field(None, gt=1)  # pictures that beta-CAL compares; None: the global batch
    # empty slots, up to those of the longest image of a group: in the code they are candidates in the softmax
    # of "ce", and texts of others in either form
    padding: Literal["masked", "candidates"] = "masked"
    others: OthersConfig | None = None
    detach_keys: bool = False  # summaries and captions learn as queries only
    scoring: Literal["vectors", "conditioned"] = "vectors"

    learns_tokens = True

    @model_validator(mode="after")
    def _fits(self) -> "BetaCLIPConfig":
        if self.width is not None and self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of {self.heads} heads of the pooling")
        if self.others and self.others.own and self.form == "bce":
            raise ValueError("others.own goes with form ce: leave it out, or train with form=ce")
        if self.max_scale is not None and self.pool_scale > self.max_scale:
            raise ValueError(f"pool_scale {self.pool_scale:g} is above max_scale {self.max_scale:g}")
        return self


class Grained(NamedTuple):
    """What only this method reads of texts."""

    level: Tensor  # [M] as in Texts
    seen: Tensor  # [M, D] its picture as the text sees it, unit length; 0 without one; D = 0 until they meet


class BetaCLIP(Method):
    """Dual encoder with text-conditioned pooling."""

    cfg: BetaCLIPConfig

    def __init__(self, cfg: BetaCLIPConfig) -> None:
        super().__init__(cfg)
        self.pairwise, self.distribution = cfg.scoring == "conditioned", False
        # Texts see the pictures of others only where those are: then patches travel too.
        patches = ("tokens", "mask") if cfg.others and cfg.form == "ce" else ()
        self.gathers = ("vector", "item", "image", "extra", *patches)
        self.scale = LogitScale(cfg.scale or 1 / 0.07, cfg.max_scale)
        self.pool = CrossPool(self.towers.space, cfg.heads, cfg.mlp_ratio, cfg.input_norm)
        self.pool_scale = LogitScale(cfg.pool_scale, cfg.max_scale)
        self.keeps_padding = cfg.padding == "candidates" and (cfg.form == "ce" or cfg.others is not None)

    def encode_images(self, images: Images) -> Encoded:
        """tokens: patches in the shared space, not of unit length"""
        seen = self.towers.see(images)
        vector, tokens = unit(self.towers.to_image(seen.pooled)), full(self.towers.to_image(seen.patches))
        return Encoded(vector, tokens, seen.real(), images.image, images.image, None, seen.places)

    def encode_texts(self, texts: Texts) -> Encoded:
        if self.keeps_padding:  # an empty slot reads as its first token alone, as in the code
            first = torch.zeros_like(texts.mask)
            first[:, 0, 0] = texts.item < 0
            texts = texts._replace(mask=texts.mask | first)
        read = self.towers.encode_texts(texts)
        extra = Grained(texts.level, read.vector[:, :0])
        return read._replace(tokens=read.tokens[:, :0], mask=read.mask[:, :0], extra=extra)

    def meet(self, mine: Pair) -> Pair:
        """Equation 1: each text of a picture pools its patches.

        How many texts a picture has at most is read on the host.
        """
        images, texts = mine
        place = owner_of(texts.image, images.image)
        if self.keeps_padding:
            place = torch.where(texts.item < 0, standing(texts.image, images.image), place)
        with_picture = (place >= 0).nonzero()[:, 0]
        of = place[with_picture]
        order = rank_of(of)
        table = of.new_zeros(len(images.image), int(order.max()) + 1 if len(of) else 0)
        table[of, order] = with_picture
        found = self.pool(texts.vector[table], unit(images.tokens))  # [n, K, D]
        seen = torch.zeros_like(texts.vector).index_copy(0, with_picture, unit(found[of, order]))
        return Pair(images, texts._replace(extra=texts.extra._replace(seen=seen)))

    def see(self, images: Encoded, texts: Encoded) -> Tensor:
        """Picture i as text i sees it: [N, D], unit length. images need their tokens."""
        return unit(self.pool(texts.vector[:, None], unit(images.tokens)))[:, 0]

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        """Cosines of summaries; or each picture, pooled by each text, with that text."""
        if not self.pairwise:
            return dot(images, texts)
        patches, size = unit(images.tokens), max(1, PAIRS // max(1, len(texts.vector)))
        cosines = [
            torch.cat([self._cosines(some, few) for some in texts.vector[None].split(PAIRS, 1)], 1)
            for few in patches.split(size)
        ]
        return torch.cat(cosines) if cosines else dot(images, texts)

    def loss(self, mine: Pair, everyone: Pair, clock: Clock) -> dict[str, Term]:  # noqa: ARG002
        cfg = self.cfg
        scales = {"scale": self.scale().detach(), "pooled scale": self.pool_scale().detach()}
        # Of weight 0 too: what a step leaves out altogether is an error where processes average gradients.
        terms = self._summaries(mine, everyone)
        every = text_keys(everyone, cfg.group, self.keeps_padding and cfg.form == "ce")
        own = own_rows(every, len(mine.texts.item))
        form = self._cross_entropy if cfg.form == "ce" else self._binary
        terms |= form(mine, everyone, own, every)
        terms |= {name: Term(None, Mean(x.sum(), x.new_ones(()))) for name, x in scales.items()}
        return terms | {"pooled similarity": Term(None, _similarity(mine))}

    def _cosines(self, texts: Tensor, patches: Tensor) -> Tensor:
        """texts [1, K, D], patches [N, L, D] of unit length -> [N, K] of each text with what it pools"""
        return torch.einsum(
            "nkd,nkd->nk", unit(self.pool(texts, patches)), texts.expand(len(patches), -1, -1)
        )

    def _summaries(self, mine: Pair, everyone: Pair) -> dict[str, Term]:
        """L_global: InfoNCE both ways of summaries and captions."""
        scale, asks = self.scale(), _captions(mine)
        keys = asks if everyone.texts is mine.texts else _captions(everyone)
        if self.cfg.detach_keys:
            keys = Pair(*map(constant, keys))
        return both_ways(lambda a, b: scale * dot(a, b), asks, keys, self.cfg.whole)

    def _cross_entropy(self, mine: Pair, everyone: Pair, own: Keys, every: Keys) -> dict[str, Term]:
        """Equations 2 and 3: cross-entropy of pooled pictures over texts, and the other way round."""
        cfg, scale, weights = self.cfg, self.pool_scale(), Beta(self.cfg.beta, self.cfg.decay)
        seen, said = scale * mine.texts.extra.seen, scale * mine.texts.vector
        all_seen, all_said = everyone.texts.extra.seen, everyone.texts.vector
        if cfg.others is not None:
            chosen = self._chosen(everyone, cfg.others)
            pictures = picture_keys(everyone.images, cfg.group)
            size, owner = pictures.group.bincount(), chosen.keys.image
            owner = torch.full_like(owner, NOBODY) if cfg.others.own else owner
            further, group = self._further(everyone, chosen, pictures, own)
            both = (
                repeated_ce(seen, all_said, own, every, weights, chosen=chosen.row, owner=owner, size=size),
                further_ce(said, all_seen, own, every, weights, further, group),
            )
        elif everyone.texts is mine.texts:  # one process: both directions out of one matrix
            both = beta_ce_both(seen, all_said, every, weights)
        else:
            both = (
                beta_ce(seen, all_said, own, every, weights),
                beta_ce(said, all_seen, own, every, weights),
            )
        names = "pooled i2t", "pooled t2i"
        return {name: Term(cfg.pooled / 2, mean) for name, mean in zip(names, both, strict=True)}

    def _binary(self, mine: Pair, everyone: Pair, own: Keys, every: Keys) -> dict[str, Term]:
        """Equations 4 and 5: each pair of a pooled picture and a text is a question of its own."""
        cfg, scale, weights = self.cfg, self.pool_scale(), Beta(self.cfg.beta, self.cfg.decay)
        seen = scale * mine.texts.extra.seen
        found = beta_bce(seen, everyone.texts.vector, own, every, weights, cfg.divisor)
        terms = {"pooled": Term(cfg.pooled, found)}
        if cfg.others is None:
            return terms
        chosen = self._chosen(everyone, cfg.others)
        pictures = own_rows(picture_keys(everyone.images, cfg.group), len(mine.images.item))
        parameters = dict(self.pool.named_parameters())

        def see(texts: Tensor, patches: Tensor, shared: tuple[Tensor, ...]) -> Tensor:
            *weights, scale = shared
            own = dict(zip(parameters, weights, strict=True))
            pooled = functional_call(self.pool, own, (texts, patches))
            return scale * torch.einsum("nkd,okd->nk", unit(pooled), texts)

        others = others_bce(
            see,
            (*parameters.values(), scale),
            unit(mine.images.tokens),
            pictures,
            everyone.texts.vector[chosen.row],
            chosen.keys,
        )
        return terms | {"others": Term(cfg.pooled * cfg.others.weight, others)}

    def _chosen(self, everyone: Pair, others: OthersConfig) -> Chosen:
        """The texts that pool images of others: the first ones of each image and level."""
        images, texts = everyone
        keys = text_keys(everyone, self.cfg.group, self.keeps_padding)
        levels = 1 + max(CAPTION, SENTENCE, PHRASE, FOIL, LOOSE)
        most = torch.zeros(levels, dtype=torch.int64, device=texts.item.device)
        most[CAPTION], most[SENTENCE], most[PHRASE] = 1, others.sentences, others.phrases
        place, level = owner_of(texts.image, images.image), texts.extra.level
        if self.keeps_padding:  # an empty slot has the level of the texts in that slot of other images
            slot, empty = slots_of(texts.image, images.image), texts.item < 0
            of_slot = torch.zeros_like(level).scatter_reduce(0, slot, level.masked_fill(place < 0, 0), "amax")
            level = torch.where(empty, of_slot[slot], level)
            place = torch.where(empty, standing(texts.image, images.image), place)
        counts = keys.real() & (place >= 0)
        order = rank_of(torch.where(counts, place * len(most) + level, -1))
        row = (counts & (order < most[level])).nonzero()[:, 0]
        return Chosen(row, rows(keys, row)._replace(image=images.image[place[row]]))

    def _further(self, everyone: Pair, chosen: Chosen, pictures: Keys, own: Keys) -> tuple[Tensor, Tensor]:
        """Pictures of my groups as chosen texts of others there see them: [F, D], groups [F]"""
        patches, said = unit(everyone.images.tokens), everyone.texts.vector
        found, groups = [], []
        for group in own.group[own.group >= 0].unique().tolist():
            here, texts = (pictures.group == group).nonzero()[:, 0], rows(chosen, chosen.keys.group == group)
            for few in here.split(max(1, PAIRS // max(1, len(texts.row)))):
                other = pictures.image[few][:, None] != texts.keys.image
                pooled = checkpoint(self.pool, said[texts.row][None], patches[few], use_reentrant=False)
                found.append(unit(pooled)[other])
                groups.append(here.new_full((len(found[-1]),), group))
        return torch.cat(found), torch.cat(groups)


def _captions(pair: Pair) -> Pair:
    """The pair with captions and foils as its only texts."""
    level, item = pair.texts.extra.level, pair.texts.item
    kept = ((level == CAPTION) | (level == FOIL)) & (item >= 0)
    return Pair(pair.images, rows(pair.texts, kept.nonzero()[:, 0]))


def _similarity(mine: Pair) -> Mean:
    """The mean cosine of what two texts of one picture see, over pictures with two texts or more."""
    place, seen = owner_of(mine.texts.image, mine.images.image), mine.texts.extra.seen.detach()
    of = place.clamp(min=0)
    real = (place >= 0).to(seen.dtype)
    total = seen.new_zeros(len(mine.images.image), seen.shape[1]).index_add(0, of, real[:, None] * seen)
    number = seen.new_zeros(len(total)).index_add(0, of, real)
    pairs = number * (number - 1)
    cosine = (total.square().sum(1) - number) / pairs.clamp(min=1)
    return Mean((cosine * (pairs > 0)).sum(), (pairs > 0).sum())
