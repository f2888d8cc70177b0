"""SEPS: the patches of an image that a caption and a description call for, against the words of the caption.

Mao et al., arXiv 2511.01390. In five steps:
  1. encode the image into patches, the caption into words, and a generated description of the image into
     one direction, without gradient (docs/methods/seps.md says why it is a description of the image);
  2. score each patch by a small network and by its cosines with the caption, or the description, and the mean
     of all patches; a share of them stays, at random in training and the best elsewhere;
  3. aggregate what stays into fewer tokens, which the branches of caption and description add up;
  4. the score of the pair: the mean of what every token finds on the other side, and a network of the best;
  5. triplet loss both ways, with all negatives first and the hardest later, and a loss that holds the share.

docs/methods/seps.md says what the paper leaves open.
"""

from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from grainline.errors import UserError
from grainline.losses.contrastive import Shares, TripletSchedule, keep_ratio
from grainline.methods.patch_words import PatchesConfig, PatchMethod, encoded_patches, summary, triplets
from grainline.nn.hashing import parts_of_rows
from grainline.nn.patch_selection import scoring
from grainline.nn.patch_selection.selector import (
    Branches,
    Decide,
    SelectionConfig,
    gumbel_decisions,
    selection_texts,
)
from grainline.nn.runtime import is_static
from grainline.nn.selection import Matching
from grainline.types import Clock, Encoded, Images, Mean, Pair, Term


class SEPSConfig(PatchesConfig):
    """And aggregation, branches, matching and the loss of the share."""

    aggregation_ratio: float | None = Field(0.4, gt=0, lt=1)  # share of those that is left; None: all
    branches: Branches = "both"  # all but "sparse" need a description of every image
    decision: Literal["gumbel_st", "hard_topk"] = "gumbel_st"  # in training: by lot, or the best
    beta: float = Field(0.4, ge=0, le=0.5)  # weight of each attention score; 1 - 2 beta: of the predictor
    matching: Matching = "both"
    top_k: int = Field(5, gt=0)  # finds that the networks of the matching read
    leaky_cosine: bool = False  # negative cosines are a tenth, as in the code of LAPS
    use_rest: bool = True  # one token of the patches that do not stay
    use_cls: bool = True  # the class token, where the encoder has one
    ratio: float = Field(1.0, ge=0)  # weight of the loss that holds the share
    ratio_weights: tuple[float, float] = (0.5, 0.5)  # of caption and description in it, where both choose
    ratio_form: Shares = "joint"

    @model_validator(mode="after")
    def _fits(self) -> "SEPSConfig":
        if (self.decision == "hard_topk") != (self.beta == 0.5):
            raise ValueError(
                f"decision {self.decision} with beta {self.beta:g}: the predictor of scores learns by "
                "gumbel_st alone and has no weight at beta 0.5, so hard_topk needs beta 0.5, gumbel_st less"
            )
        return self


class SEPS(PatchMethod):
    """Dual encoder whose pairs are scored by the patches that a text and a description select."""

    config_class = SEPSConfig
    cfg: SEPSConfig

    def __init__(self, cfg: SEPSConfig) -> None:
        super().__init__(cfg)
        self.reads_descriptions = cfg.branches != "sparse"
        choice = SelectionConfig(*(getattr(cfg, name) for name in SelectionConfig._fields[:-1]))
        self.selector = self.new_selector(choice)

    def encode_images(self, images: Images) -> Encoded:
        """tokens: patches; extra: the class token and the direction of the description.

        UserError where a description is needed and missing.
        """
        description = self._described(images) if self.reads_descriptions else None
        return encoded_patches(self.towers, images, description, self.cfg.use_cls)

    @torch.no_grad()
    def _described(self, images: Images) -> Tensor:
        """The direction of the description of each image: [N, D]. Its parts are read one by one."""
        if images.dense is None:
            raise UserError(
                f"seps with branches: {self.cfg.branches} reads a description of every image, and these "
                "have none; give them, or set model.branches to sparse"
            )
        texts = images.dense
        number, parts = texts.mask.shape[:2]
        with parts_of_rows(parts):
            read = self.towers.text(texts.ids.flatten(0, 1), texts.mask.flatten(0, 1))
        words = self.towers.to_text(read.tokens).unflatten(0, (number, parts)).flatten(1, 2)
        mask = read.mask.unflatten(0, (number, parts)).flatten(1, 2)
        if not is_static() and not mask.any(1).all():
            lacking = int(images.image[~mask.any(1)][0])
            raise UserError(f"the description of image {lacking} is empty; seps needs one of every image")
        return summary(words, mask)

    def loss(self, local: Pair, gathered: Pair, clock: Clock) -> dict[str, Term]:
        cfg, rule = self.cfg, TripletSchedule.at(clock, self.cfg)
        decide = gumbel_decisions(clock) if cfg.decision == "gumbel_st" else self.selector.top
        terms = triplets(cfg, scoring.graded(self.selector, decide), (local, gathered), rule)
        return terms | self._ratio(local.images, gathered.texts, decide, rule)

    def _ratio(
        self, images: Encoded, texts: Encoded, decide: Decide, rule: TripletSchedule
    ) -> dict[str, Term]:
        """How far from the share that should stay, over all pairs of my images; and these shares."""
        if self.selector.predictor is None:
            return {}
        image_side, text_side = self.selector.image_side(images, decide), selection_texts(texts)
        real = (images.item >= 0)[:, None] & (texts.item >= 0)
        number = real.sum()
        means = {}
        if self.selector.sparse:
            means["kept by texts"] = scoring.keep_shares(self.selector, image_side, text_side, decide)
        if self.selector.dense:
            means["kept by descriptions"] = image_side.keep.mean(-1, keepdim=True)
        weights = self.cfg.ratio_weights if len(means) == 2 else (1.0,)
        off = keep_ratio(self.cfg.keep_ratio, tuple(means.values()), weights, self.cfg.ratio_form)
        facts = {name: Term(None, Mean((x.detach() * real).sum(), number)) for name, x in means.items()}
        return {"ratio": Term(rule.weight * self.cfg.ratio, Mean((off * real).sum(), number))} | facts
