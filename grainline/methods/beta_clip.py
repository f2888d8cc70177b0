"""beta-CLIP: every caption, sentence and phrase is aligned with the image pooled by that text.

Zohra, Zhao et al., arXiv 2512.12678. In four steps:
  1. encode the image into a summary and patches, and every text, of any grain, into one vector;
  2. let each text pool the patches of its own image by cross-attention (equation 1);
  3. beta-CAL: match pooled images and texts; texts of one image are positives of weight beta for each other:
     by cross-entropy (equations 2, 3), or pair by pair (4, 5);
  4. InfoNCE between the summaries of images and their captions, added up.

docs/methods/beta-clip.md says what differs from the authors' code. Scores never use an image's own text: they
are cosines of summaries, or with scoring "conditioned" every image is pooled by the text it is compared with.
Foils join the loss of the summaries only: they have no image to pool.
"""

from typing import Literal, NamedTuple

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from grainline.config import Config
from grainline.distributed import local_rows
from grainline.encoders.towers import TowersConfig
from grainline.losses import calibrated
from grainline.losses.contrastive import both_ways
from grainline.losses.tiled.pair_mask import PairMatrix, RowIds
from grainline.methods.base import Method, dot
from grainline.methods.shared import LogitScale, logged, whole_captions
from grainline.nn.pooling import CrossPool, unit
from grainline.types import Clock, Encoded, Pair, Term, Texts, rows

PAIRS = 4096  # that are pooled at a time when scores are conditioned: 100 MB at width 512 and 196 patches


class CrossImageConfig(Config):
    """Images pooled by captions, and by so many other texts, of other images, as negatives (table 8)."""

    sentences: int = Field(0, ge=0)
    phrases: int = Field(0, ge=0)
    weight: float = Field(10.0, gt=0)  # of their mean, for form "bce"; "ce" puts them into its softmax
    own: bool = False  # form "ce": an image's own texts count among the negatives too, as in the code


class BetaCLIPConfig(TowersConfig):
    """Encoders, pooling and both losses."""

    scale: float | None = Field(None, gt=0)  # at the start; None: that of the checkpoint, else 1 / 0.07
    pool_scale: float = Field(1 / 0.07, gt=0)  # of pooled images with texts, at the start
    max_scale: float | None = Field(100.0, gt=1)  # of both; None: no bound
    heads: int = Field(8, gt=0)  # of the pooling
    mlp_ratio: float = Field(4.0, gt=0)
    input_norm: bool = False  # LayerNorm on what goes into the pooling: in the paper, not in the code
    whole: float = Field(1.0, ge=0)  # weight of the loss of summaries with captions
    pooled: float = Field(1.0, gt=0)  # weight of beta-CAL
    form: Literal["ce", "bce"] = "ce"
    beta: float = Field(0.5, ge=0, le=1)  # weight of texts of one image for each other
    slot_decay: float = Field(0.0, ge=0)  # it falls by exp(-decay) with each slot between them (table 13)
    divisor: calibrated.Divisor = "pairs"  # of "bce": rows (paper), their square, or that with padding
    group: int | None = Field(None, gt=1)  # images that beta-CAL compares; None: the global batch
    # empty slots, up to those of the longest image of a group: in the code they are candidates in the softmax
    # of "ce", and texts of others in either form
    padding: Literal["masked", "candidates"] = "masked"
    others: CrossImageConfig | None = None
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


class BetaCLIPExtra(NamedTuple):
    """The fields of texts that only the loss reads."""

    level: Tensor  # [M] as in Texts
    pooled: Tensor  # [M, D] its image pooled by the text, unit length; 0 without one; D = 0 when encoded


class BetaCLIP(Method):
    """Dual encoder with text-conditioned pooling."""

    config_class = BetaCLIPConfig
    reads_words = False
    cfg: BetaCLIPConfig

    def __init__(self, cfg: BetaCLIPConfig) -> None:
        super().__init__(cfg)
        self.pairwise = cfg.scoring == "conditioned"
        # Texts pool the images of others, so the patches travel too.
        patches = ("tokens", "mask") if cfg.others and cfg.form == "ce" else ()
        self.gathers = ("vector", "item", "image", "extra", *patches)
        self.scale = LogitScale(cfg.scale or 1 / 0.07, cfg.max_scale)
        self.pool = CrossPool(self.towers.space, cfg.heads, cfg.mlp_ratio, cfg.input_norm)
        self.pool_scale = LogitScale(cfg.pool_scale, cfg.max_scale)
        self.keeps_padding = cfg.padding == "candidates" and (cfg.form == "ce" or cfg.others is not None)

    def encode_texts(self, texts: Texts) -> Encoded:
        if self.keeps_padding:  # an empty slot reads as its first token alone, as in the code
            first = torch.zeros_like(texts.mask)
            first[:, 0, 0] = texts.item < 0
            texts = texts._replace(mask=texts.mask | first)
        read = self.towers.encode_texts(texts)
        extra = BetaCLIPExtra(texts.level, read.vector[:, :0])
        return read._replace(tokens=read.tokens[:, :0], mask=read.mask[:, :0], extra=extra)

    def before_gather(self, local: Pair) -> Pair:
        """Equation 1: each text of an image pools its patches."""
        images, texts = local
        place = calibrated.own_images(texts, images, self.keeps_padding)
        pooled = calibrated.pooled_by_own(self.pool, texts.vector, place, images.tokens)
        return Pair(images, texts._replace(extra=texts.extra._replace(pooled=pooled)))

    def pool_images(self, images: Encoded, texts: Encoded) -> Tensor:
        """Image i pooled by text i: [N, D], unit length. images need their tokens."""
        return unit(self.pool(texts.vector[:, None], unit(images.tokens)))[:, 0]

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        """Cosines of summaries; or each image, pooled by each text, with that text."""
        if not self.pairwise:
            return dot(images, texts)
        patches, size = unit(images.tokens), max(1, PAIRS // max(1, len(texts.vector)))
        cosines = [
            torch.cat([self._cosines(some, few) for some in texts.vector[None].split(PAIRS, 1)], 1)
            for few in patches.split(size)
        ]
        return torch.cat(cosines) if cosines else dot(images, texts)

    def loss(self, local: Pair, gathered: Pair, clock: Clock) -> dict[str, Term]:  # noqa: ARG002
        cfg = self.cfg
        # Of weight 0 too: processes that average gradients need one of every parameter.
        terms = self._summaries(local, gathered)
        all_ids = calibrated.text_ids(gathered, cfg.group, self.keeps_padding and cfg.form == "ce")
        ids = local_rows(all_ids, len(local.texts.item))
        form = self._cross_entropy if cfg.form == "ce" else self._binary
        terms |= form(local, gathered, ids, all_ids)
        return terms | logged(scale=self.scale(), pooled_scale=self.pool_scale())

    def _cosines(self, texts: Tensor, patches: Tensor) -> Tensor:
        """texts [1, K, D], patches [N, L, D] of unit length -> [N, K] of each text with what it pools"""
        return torch.einsum(
            "nkd,nkd->nk", unit(self.pool(texts, patches)), texts.expand(len(patches), -1, -1)
        )

    def _summaries(self, local: Pair, gathered: Pair) -> dict[str, Term]:
        """L_global: InfoNCE both ways of summaries and captions."""
        scale, cfg = self.scale(), self.cfg
        queries = local._replace(texts=whole_captions(local.texts))
        keys = queries
        if gathered.texts is not local.texts:
            keys = gathered._replace(texts=whole_captions(gathered.texts))
        return both_ways(
            lambda a, b: scale * dot(a, b), queries, keys, cfg.whole, detach_keys=cfg.detach_keys
        )

    def _cross_entropy(self, local: Pair, gathered: Pair, ids: RowIds, all_ids: RowIds) -> dict[str, Term]:
        """Equations 2 and 3: cross-entropy of pooled images over texts, and the other way round."""
        cfg, scale = self.cfg, self.pool_scale()
        pairs = PairMatrix(ids, all_ids, sibling=cfg.beta, decay=cfg.slot_decay)
        pooled, texts = scale * local.texts.extra.pooled, scale * local.texts.vector
        every = gathered.texts.extra.pooled, gathered.texts.vector
        if cfg.others is None:
            alone = gathered.texts is local.texts
            both = calibrated.beta_ce_ways((pooled, texts), every, pairs, alone)
        else:
            others = self._pooling_texts(gathered, cfg.others)
            images = calibrated.image_ids(gathered.images, cfg.group)
            size, owner = images.group.bincount(), others.ids.image
            owner = torch.full_like(owner, calibrated.NOBODY) if cfg.others.own else owner
            further, group = self._further(gathered, others, images, ids)
            more = pairs._replace(cols=calibrated.and_negatives(all_ids, group))
            both = (
                calibrated.repeated_ce(pooled, every[1], pairs, again=others.row, owner=owner, size=size),
                calibrated.beta_ce(texts, torch.cat([every[0], further]), more),
            )
        names = "pooled i2t", "pooled t2i"
        return {name: Term(cfg.pooled / 2, mean) for name, mean in zip(names, both, strict=True)}

    def _binary(self, local: Pair, gathered: Pair, ids: RowIds, all_ids: RowIds) -> dict[str, Term]:
        """Equations 4 and 5: binary cross-entropy of each pair of a pooled image and a text."""
        cfg, scale = self.cfg, self.pool_scale()
        pairs = PairMatrix(ids, all_ids, sibling=cfg.beta, decay=cfg.slot_decay)
        pooled = scale * local.texts.extra.pooled
        mean = calibrated.beta_bce(pooled, gathered.texts.vector, pairs, cfg.divisor)
        terms = {"pooled": Term(cfg.pooled, mean)}
        if cfg.others is None:
            return terms
        others = self._pooling_texts(gathered, cfg.others)
        images = local_rows(calibrated.image_ids(gathered.images, cfg.group), len(local.images.item))
        parameters = dict(self.pool.named_parameters())

        def pool(texts: Tensor, patches: Tensor, shared: tuple[Tensor, ...]) -> Tensor:
            *weights, scale = shared
            own = dict(zip(parameters, weights, strict=True))
            pooled = functional_call(self.pool, own, (texts, patches))
            return scale * torch.einsum("nkd,okd->nk", unit(pooled), texts)

        patches, shared = unit(local.images.tokens), (*parameters.values(), scale)
        texts = gathered.texts.vector[others.row]
        mean = calibrated.cross_image_bce(pool, shared, patches, images, texts, others.ids)
        return terms | {"others": Term(cfg.pooled * cfg.others.weight, mean)}

    def _pooling_texts(self, gathered: Pair, others: CrossImageConfig) -> calibrated.PoolingTexts:
        group, padding = self.cfg.group, self.keeps_padding
        return calibrated.first_texts(gathered, group, padding, others.sentences, others.phrases)

    def _further(
        self, gathered: Pair, others: calibrated.PoolingTexts, images: RowIds, ids: RowIds
    ) -> tuple[Tensor, Tensor]:
        """Images of local groups as `others` of the group pool them: [F, D], groups [F]"""
        patches, vectors = unit(gathered.images.tokens), gathered.texts.vector
        further, groups = [], []
        for group in ids.group[ids.group >= 0].unique().tolist():
            members, texts = (images.group == group).nonzero()[:, 0], rows(others, others.ids.group == group)
            for few in members.split(max(1, PAIRS // max(1, len(texts.row)))):
                other = images.image[few][:, None] != texts.ids.image
                pooled = checkpoint(self.pool, vectors[texts.row][None], patches[few], use_reentrant=False)
                further.append(unit(pooled)[other])
                groups.append(members.new_full((len(further[-1]),), group))
        return torch.cat(further), torch.cat(groups)
