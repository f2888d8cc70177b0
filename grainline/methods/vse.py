"""VSE++: a picture and its caption are one vector each; the hardest other one of the batch is pushed away.

Faghri et al., arXiv 1707.05612. In two steps:
  1. encode picture and caption into unit vectors of one shared space;
  2. triplet loss both ways with the hardest negatives of the batch, after a warm-up with all of them, as in
     the code of LAPS, whose baseline it is.
"""

from grainline.methods.base import Method, dot
from grainline.methods.shared import Rule, TripletsConfig, both_triplets
from grainline.types import Clock, Pair, Term


class VSEConfig(TripletsConfig):
    """Encoders and loss."""


class VSE(Method):
    """Dual encoder with a triplet loss."""

    cfg: VSEConfig

    def __init__(self, cfg: VSEConfig) -> None:
        super().__init__(cfg)

    def loss(self, mine: Pair, everyone: Pair, clock: Clock) -> dict[str, Term]:
        rule = Rule.at(clock, self.cfg)
        return both_triplets(lambda images, texts, _: dot(images, texts), mine, everyone, rule, 1.0)
