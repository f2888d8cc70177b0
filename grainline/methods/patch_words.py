"""The parts of SEPS and LAPS around a `Selector`: encoding, triplets, settings, verbs."""

import torch
from pydantic import Field, model_validator
from torch import Tensor

from grainline.encoders.towers import Towers, flat_parts
from grainline.encoders.vit import ViTConfig
from grainline.losses.contrastive import ScoreFn, TripletSchedule, both_triplets
from grainline.methods.base import Method, dot
from grainline.methods.shared import TripletsConfig
from grainline.nn.patch_selection import scoring
from grainline.nn.patch_selection.selector import (
    Selection,
    SelectionConfig,
    SelectionExtra,
    SelectionPrecomputed,
    Selector,
)
from grainline.nn.pooling import mean_pool, unit
from grainline.types import Encoded, Images, Pair, Term, Texts, full


class PatchesConfig(TripletsConfig):
    """Encoders, triplet losses over scores of patches with words and over vectors, how many patches stay."""

    keep_ratio: float = Field(0.5, gt=0, le=1)  # share of the patches that a text keeps
    coarse: float = Field(0.1, ge=0)  # weight of the triplet loss over vectors; 0: as in the papers
    learns_tokens = True

    @model_validator(mode="after")
    def _uses_the_pool(self) -> "PatchesConfig":
        if isinstance(self.image, ViTConfig) and self.image.pool == "attention":
            raise ValueError(
                "image.pool attention would learn nothing: the mean of patches is the summary here"
            )
        return self


class PatchMethod(Method):
    """A dual encoder whose pairs are scored by a `Selector`."""

    gathers = ("vector", "tokens", "mask", "item", "image", "extra")
    precomputed_class = SelectionPrecomputed
    blockwise = True
    pairwise = True
    selector: Selector

    def new_selector(self, choice: SelectionConfig) -> Selector:
        if self.grid is None:
            name = type(self).__name__.lower()
            raise ValueError(f"{name} needs an image encoder whose patches lie on a grid")
        return Selector(choice, self.towers.space, self.grid[0] * self.grid[1])

    def encode_texts(self, texts: Texts) -> Encoded:
        """tokens: words in the shared space, not of unit length; vector: the direction of their mean"""
        tokens = self.towers.text(*flat_parts(texts))
        words = full(self.towers.to_text(tokens.tokens))
        return Encoded(summary(words, tokens.mask), words, tokens.mask, texts.item, texts.image)

    def precompute(self, images: Encoded) -> Encoded:
        """precomputed: a `SelectionPrecomputed`"""
        return self.selector.precompute(images)

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        return scoring.score(self.selector, images, texts)

    def heat(self, images: Encoded, texts: Encoded) -> Tensor:
        """The share of every patch in the score of its row, to first order, with decisions as constants."""
        return scoring.heat(self.selector, images, texts)

    def select_patches(self, images: Encoded, texts: Encoded) -> Selection:
        """The patches that text i and the description of image i keep, and the best token of each word."""
        return scoring.select(self.selector, images, texts)


def encoded_patches(towers: Towers, images: Images, description: Tensor | None, use_cls: bool) -> Encoded:
    """Images with patches as tokens. vector: the direction of their mean; extra: a `SelectionExtra`

    description  [N, D] the direction of each description, or None
    """
    tokens = towers.image_tokens(images)
    patches, real = full(towers.to_image(tokens.patches)), tokens.real()
    zeros = patches.new_zeros(patches.shape[0], patches.shape[-1])
    has_cls = use_cls and tokens.cls is not None
    extra = SelectionExtra(
        full(towers.to_image(tokens.cls)) if has_cls else zeros,
        torch.full_like(images.image, has_cls, dtype=torch.bool),
        zeros if description is None else description.to(patches.dtype),
    )
    return Encoded(summary(patches, real), patches, real, images.image, images.image, extra, tokens.places)


def summary(tokens: Tensor, mask: Tensor) -> Tensor:
    """The direction of the mean of real tokens: [N, D], unit length"""
    return unit(mean_pool(full(tokens), mask).vector)


def triplets(
    cfg: PatchesConfig, score: ScoreFn, both: tuple[Pair, Pair], rule: TripletSchedule
) -> dict[str, Term]:
    """Triplet losses over scores of pairs, and lighter ones over vectors. both: local and gathered rows"""
    terms = both_triplets(score, *both, rule, 1.0)
    if cfg.coarse:
        coarse = both_triplets(lambda a, b, _: dot(a, b), *both, rule, cfg.coarse)
        terms |= {f"coarse {name}": term for name, term in coarse.items()}
    return terms
