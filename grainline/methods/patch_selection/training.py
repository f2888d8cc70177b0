"""Encoding and training where texts choose patches: what `seps` and `laps` do alike around a `Selector`."""

from collections.abc import Callable

import torch
from pydantic import Field, model_validator
from torch import Tensor

from grainline.encoders.towers import Towers, flat_parts
from grainline.encoders.vit import ViTConfig
from grainline.methods.base import dot
from grainline.methods.patch_selection import scoring
from grainline.methods.patch_selection.selector import Selector
from grainline.methods.patch_selection.types import Decide, Seen, told_of
from grainline.methods.shared import Graded, Rule, TripletsConfig, both_triplets
from grainline.nn.pooling import mean_pool, unit
from grainline.types import Encoded, Images, Pair, Term, Texts, full

MOST = 0.5
"""Share of the pairs of a batch from which on it is cheaper to score all of them with gradients."""


class PatchesConfig(TripletsConfig):
    """Encoders, how many patches stay, and the triplet losses."""

    keep: float = Field(0.5, gt=0, le=1)  # share of the patches that stays for a text
    coarse: float = Field(0.1, ge=0)  # weight of the triplet loss over summaries; 0: as in the papers
    learns_tokens = True

    @model_validator(mode="after")
    def _reads_the_pool(self) -> "PatchesConfig":
        if isinstance(self.image, ViTConfig) and self.image.pool == "attention":
            raise ValueError(
                "image.pool attention would learn nothing: the mean of patches is the summary here"
            )
        return self


def encoded_patches(towers: Towers, images: Images, told: Tensor | None, use_cls: bool) -> Encoded:
    """Pictures with their patches, and behind them the class token and the description's direction as tokens.

    told  [N, D] that direction, or None

    What there is not is masked. vector: the direction of the mean of the patches.
    """
    seen = towers.see(images)
    patches = full(towers.to_image(seen.patches))
    number = len(patches)
    real = seen.real()
    nothing, absent = patches.new_zeros(number, patches.shape[-1]), real.new_zeros(number)
    classed = use_cls and seen.cls is not None
    cls = full(towers.to_image(seen.cls)) if classed else nothing
    behind = torch.stack([cls, nothing if told is None else told.to(patches.dtype)], 1)
    flags = torch.stack([~absent if there else absent for there in (classed, told is not None)], 1)
    tokens, mask = torch.cat([patches, behind], 1), torch.cat([real, flags], 1)
    return Encoded(summary(patches, real), tokens, mask, images.image, images.image, None, seen.places)


def encoded_words(towers: Towers, texts: Texts) -> Encoded:
    """Texts with their words as tokens, begin and end included. vector: the direction of their mean"""
    read = towers.text(*flat_parts(texts))
    words = full(towers.to_text(read.tokens))
    return Encoded(summary(words, read.mask), words, read.mask, texts.item, texts.image)


def summary(tokens: Tensor, mask: Tensor) -> Tensor:
    """The direction of the mean of real tokens: [N, D], unit length"""
    return unit(mean_pool(full(tokens), mask).vector)


def triplets(
    cfg: PatchesConfig, selector: Selector, decide: Decide, both: tuple[Pair, Pair], rule: Rule
) -> dict[str, Term]:
    """Triplet losses over scores of pairs, and lighter ones over summaries. both: my rows, everyone's"""
    terms = both_triplets(graded(selector, decide), *both, rule, 1.0)
    if cfg.coarse:
        coarse = both_triplets(lambda a, b, _: dot(a, b), *both, rule, cfg.coarse)
        terms |= {f"coarse {name}": term for name, term in coarse.items()}
    return terms


def graded(selector: Selector, decide: Decide) -> Graded:
    """Scores of a batch, with gradients for those pairs alone that a loss may touch.

    All pairs are scored in tiles without gradient first. Those that may count are scored again with gradient,
    and what counts is decided by their second scores: both scores of a pair differ by rounding, and where
    those of a batch lie as close, decisions by the first would not be those that the gradient is of. Where
    most pairs may count, all of them are scored again.
    """

    def score(images: Encoded, texts: Encoded, counts: Callable[[Tensor], Tensor]) -> Tensor:
        seen, told = selector.seen(images, decide), told_of(texts)
        everything = scoring.scores(selector, Seen(*(x.detach() for x in seen)), told, decide)
        count = counts(everything)
        count[0, 0] |= ~count.any()  # with processes that train together every parameter needs a gradient
        if int(count.sum()) > MOST * count.numel():
            return scoring.dense(selector, seen, told, decide)
        row, column = count.nonzero(as_tuple=True)
        found = scoring.pairs(selector, seen, told, (row, column), decide)
        return everything.index_put((row, column), found)

    return score
