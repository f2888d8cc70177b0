"""CLIP: an image and its caption are one vector each, and each finds the other among the batch.

Radford et al., arXiv 2103.00020. In three steps:
  1. encode image and caption into unit vectors of one shared space;
  2. multiply all cosines of the batch by a learnt, bounded scale;
  3. cross-entropy both ways, half each (figure 3 of the paper).

With scoring "sentences" a text is read sentence by sentence, and its vector is the mean of theirs: up to a
factor of the text its score is then the mean of the scores of its sentences.

Differs from the paper's pseudo-code: several captions of one image are positives of equal weight, an image
that comes twice in a batch is not its own negative, and foils (hard negative captions) join as candidates.
"""

from typing import ClassVar, Literal

from pydantic import Field

from grainline.encoders.towers import TowersConfig
from grainline.losses.contrastive import both_ways
from grainline.methods.base import Method, dot
from grainline.methods.shared import LogitScale
from grainline.types import Clock, Pair, Term

SENTENCES = 32  # of a text at most, where they are read one by one


class CLIPConfig(TowersConfig):
    """Encoders, the scale of the logits (1 / temperature), and how texts are read."""

    scale: float | None = Field(None, gt=0)  # at the start; None: that of the checkpoint, else 1 / 0.07
    max_scale: float | None = Field(100.0, gt=1)  # None: no bound
    scoring: Literal["whole", "sentences"] = "whole"  # how a text is read


class CLIP(Method):
    """Dual encoder with InfoNCE."""

    config_class: ClassVar[type[CLIPConfig]] = CLIPConfig
    reads_words = False

    def __init__(self, cfg: CLIPConfig) -> None:
        super().__init__(cfg)
        self.scale = LogitScale(cfg.scale or 1 / 0.07, cfg.max_scale)
        if cfg.scoring == "sentences":
            self.parts, self.by_sentence = SENTENCES, True

    def loss(self, local: Pair, gathered: Pair, clock: Clock) -> dict[str, Term]:  # noqa: ARG002
        scale = self.scale()
        return both_ways(lambda images, texts: scale * dot(images, texts), local, gathered)
