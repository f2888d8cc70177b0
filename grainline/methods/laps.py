"""LAPS: the patches of an image that a caption calls for, as fewer tokens, against its words.

Fu et al., "Linguistic-Aware Patch Slimming Framework for Fine-grained Cross-Modal Alignment", CVPR 2024, in
the form of its code, on which SEPS builds. In four steps:
  1. encode the image into patches and the caption into words;
  2. rank the patches by the sum of their cosines with the mean of the words and with that of the patches; the
     best stay;
  3. aggregate them into fewer tokens, beside one token of the others and the class token;
  4. the mean of what every token finds on the other side, by triplet loss both ways.

Differs from its code: the network that predicts scores is left out, because nothing teaches it there; the
ratio of patches is no loss, because a fixed number of patches always keeps it; the summaries learn by a
lighter triplet loss, so that an index can find candidates by vector. With `attention` "stretched" each cosine
is brought to the range 0..1 over the patches before both are added, as in SEPS.
"""

from typing import Literal

from pydantic import Field
from torch import Tensor

from grainline.methods.base import Method
from grainline.methods.patch_selection import scoring
from grainline.methods.patch_selection.selector import Selector
from grainline.methods.patch_selection.training import PatchesConfig, encoded_patches, encoded_words, triplets
from grainline.methods.patch_selection.types import Selection, SelectionConfig, SelectionPrecomputed
from grainline.methods.shared import TripletSchedule
from grainline.types import Clock, Encoded, Images, Pair, Term, Texts


class LAPSConfig(PatchesConfig):
    """And how patches become fewer."""

    aggregation_ratio: float = Field(0.4, gt=0, lt=1)  # share of those that is left
    leaky_cosine: bool = True  # negative cosines are a tenth
    attention: Literal["raw", "stretched"] = "raw"  # cosines that choose: as they are, or at range 0..1


class LAPS(Method):
    """Dual encoder whose pairs are scored by the patches that a text chooses."""

    config_class = LAPSConfig
    cfg: LAPSConfig
    gathers = ("vector", "tokens", "mask", "item", "image", "extra")
    precomputed_class = SelectionPrecomputed
    blockwise = True

    def __init__(self, cfg: LAPSConfig) -> None:
        super().__init__(cfg)
        self.pairwise, self.heat_is_distribution = True, False
        if self.grid is None:
            raise ValueError("laps needs an image encoder whose patches lie on a grid")
        raw = cfg.attention == "raw"
        choice = SelectionConfig(
            cfg.keep_ratio,
            cfg.aggregation_ratio,
            1.0 if raw else 0.5,
            leaky_cosine=cfg.leaky_cosine,
            stretch=not raw,
        )
        self.selector = Selector(choice, self.towers.space, self.grid[0] * self.grid[1])

    def encode_images(self, images: Images) -> Encoded:
        """tokens: patches; extra: the class token"""
        return encoded_patches(self.towers, images, None, use_cls=True)

    def encode_texts(self, texts: Texts) -> Encoded:
        """tokens: words in the shared space, not of unit length; vector: the direction of their mean"""
        return encoded_words(self.towers, texts)

    def precompute(self, images: Encoded) -> Encoded:
        """precomputed: a `SelectionPrecomputed`"""
        return self.selector.precompute(images)

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        return scoring.score(self.selector, images, texts)

    def loss(self, local: Pair, gathered: Pair, clock: Clock) -> dict[str, Term]:
        rule = TripletSchedule.at(clock, self.cfg)
        return triplets(self.cfg, self.selector, self.selector.top, (local, gathered), rule)

    def heat(self, images: Encoded, texts: Encoded) -> Tensor:
        """What every patch adds to the score of its row, to first order, with decisions as constants."""
        return scoring.heat(self.selector, images, texts)

    def select_patches(self, images: Encoded, texts: Encoded) -> Selection:
        """The patches that text i and the description of image i keep, and the best token of each word."""
        return scoring.select(self.selector, images, texts)
