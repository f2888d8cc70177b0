"""VSE++: a picture and its caption are one vector each; the hardest other one of the batch is pushed away.

Faghri et al., arXiv 1707.05612. In two steps:
  1. encode picture and caption into unit vectors of one shared space;
  2. triplet loss both ways with the hardest negatives of the batch, after a warm-up with all of them, as in
     the code of LAPS, whose baseline it is.
"""

from torch import Tensor

from grainline.encoders.towers import Towers
from grainline.methods.base import Method, dot
from grainline.methods.common import cosine_heat
from grainline.methods.triplets import Rule, TripletsConfig, both_triplets
from grainline.types import Clock, Encoded, Images, Pair, Term, Texts


class VSEConfig(TripletsConfig):
    """Encoders and loss."""


class VSE(Method):
    """Dual encoder with a triplet loss."""

    def __init__(self, cfg: VSEConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.pairwise, self.distribution = False, False
        self.towers = Towers(cfg)
        self.size, self.grid = self.towers.image.size, self.towers.image.grid
        self.segmented = self.towers.segmented
        self.context = self.towers.text.context

    def encode_images(self, images: Images) -> Encoded:
        return self.towers.encode_images(images)

    def encode_texts(self, texts: Texts) -> Encoded:
        return self.towers.encode_texts(texts)

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        return dot(images, texts)

    def loss(self, mine: Pair, everyone: Pair, clock: Clock) -> dict[str, Term]:
        rule = Rule.at(clock, self.cfg)
        return both_triplets(lambda images, texts, _: dot(images, texts), mine, everyone, rule, 1.0)

    def row_loss(self, texts: Texts, encoded: Encoded) -> dict[str, Term]:  # noqa: ARG002
        return {}

    def heat(self, images: Encoded, texts: Encoded) -> Tensor:
        return cosine_heat(images, texts)
