"""LAPS: the patches of an image that a caption calls for, as fewer tokens, against its words.

Fu et al., "Linguistic-Aware Patch Slimming Framework for Fine-grained Cross-Modal Alignment", CVPR 2024, in
the form of its code, on which SEPS builds. In four steps:
  1. encode the image into patches and the caption into words;
  2. rank the patches by the sum of their cosines with the mean of the words and with that of the patches; the
     best stay;
  3. aggregate them into fewer tokens, beside one token of the others and the class token;
  4. the mean of what every token finds on the other side, by triplet loss both ways.

Differs from its code: no network predicts scores, because nothing teaches it there; the ratio of patches is
no loss, because it is fixed; the summaries learn by a lighter triplet loss, so that an index can find
candidates by vector. With `attention` "stretched" each cosine is scaled to 0..1 over the patches before both
are added, as in SEPS.
"""

from typing import Literal

from pydantic import Field

from grainline.losses.contrastive import TripletSchedule
from grainline.methods.patch_words import PatchesConfig, PatchMethod, encoded_patches, triplets
from grainline.nn.patch_selection.scoring import graded
from grainline.nn.patch_selection.selector import SelectionConfig
from grainline.types import Clock, Encoded, Images, Pair, Term


class LAPSConfig(PatchesConfig):
    """And how patches become fewer."""

    aggregation_ratio: float = Field(0.4, gt=0, lt=1)  # share of those that is left
    leaky_cosine: bool = True  # negative cosines are a tenth
    attention: Literal["raw", "stretched"] = "raw"  # cosines that choose: as they are, or at range 0..1


class LAPS(PatchMethod):
    """Dual encoder whose pairs are scored by the patches that a text selects."""

    config_class = LAPSConfig
    cfg: LAPSConfig

    def __init__(self, cfg: LAPSConfig) -> None:
        super().__init__(cfg)
        raw = cfg.attention == "raw"
        ratios, beta = (cfg.keep_ratio, cfg.aggregation_ratio), 1.0 if raw else 0.5
        choice = SelectionConfig(*ratios, beta, leaky_cosine=cfg.leaky_cosine, stretch=not raw)
        self.selector = self.new_selector(choice)

    def encode_images(self, images: Images) -> Encoded:
        """tokens: patches; extra: the class token"""
        return encoded_patches(self.towers, images, None, use_cls=True)

    def loss(self, local: Pair, gathered: Pair, clock: Clock) -> dict[str, Term]:
        rule = TripletSchedule.at(clock, self.cfg)
        return triplets(self.cfg, graded(self.selector, self.selector.top), (local, gathered), rule)
