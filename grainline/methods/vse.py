"""VSE++: an image and its caption are one vector each; the hardest other one of the batch is pushed away.

Faghri et al., arXiv 1707.05612. In two steps:
  1. encode image and caption into unit vectors of one shared space;
  2. triplet loss both ways with the hardest negatives of the batch, after a warm-up with all of them, as in
     the code of LAPS, whose baseline it is.
"""

from grainline.losses.contrastive import TripletSchedule, both_triplets
from grainline.methods.base import Method, dot
from grainline.methods.shared import TripletsConfig
from grainline.types import Clock, Pair, Term


class VSEConfig(TripletsConfig):
    """Encoders and loss."""


class VSE(Method):
    """Dual encoder with a triplet loss."""

    config_class = VSEConfig
    cfg: VSEConfig

    def loss(self, local: Pair, gathered: Pair, clock: Clock) -> dict[str, Term]:
        rule = TripletSchedule.at(clock, self.cfg)
        return both_triplets(lambda images, texts, _: dot(images, texts), local, gathered, rule, 1.0)
