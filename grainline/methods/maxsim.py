"""MaxSim: every sentence of a caption looks for its own place in the image.

Late interaction as in ColBERT (Khattab & Zaharia, arXiv 2004.12832) and FILIP (Yao et al., arXiv 2111.07783).
In four steps:
  1. encode the image into patches, and each sentence of the caption, read by itself, into one vector;
  2. let each sentence find the patches that fit it best: the mean of its cosines, weighted by their softmax;
  3. the score of image and caption is the mean over the sentences;
  4. cross-entropy both ways over the scores of the batch, and a lighter one over one vector a side, so that
     an index can find candidates by vector.

Differs from FILIP: sentences instead of words, a smooth maximum, and only texts search: an image holds more
than its caption says, so its patches need not be found in the text.
"""

from pydantic import Field
from torch import Tensor

from grainline.encoders.towers import TowersConfig
from grainline.methods.base import Method, dot
from grainline.methods.shared import both_ways
from grainline.nn.hashing import equal_texts
from grainline.nn.late import distinct_rows, late_heat, late_score
from grainline.nn.pooling import mean_pool, unit
from grainline.nn.scale import LogitScale
from grainline.types import Clock, Encoded, Images, Pair, Term, Texts, full


class MaxSimConfig(TowersConfig):
    """Encoders, how many sentences a caption has at most, and how scores are formed.

    The context of the text encoder is that of a sentence.
    """

    sentences: int = Field(32, gt=1)  # of a text; what stands behind them is cut, counted and reported
    sharpness: float = Field(10.0, gt=0)  # of the softmax over patches
    scale: float | None = Field(None, gt=0)  # at the start; None: that of the checkpoint, else 1 / 0.07
    max_scale: float | None = Field(100.0, gt=1)  # None: no bound
    coarse: float = Field(0.1, ge=0)  # weight of the loss over plain vectors

    learns_tokens = True


class MaxSim(Method):
    """Dual encoder whose pairs are scored sentence by patch."""

    config_class = MaxSimConfig
    gathers = ("vector", "tokens", "mask", "item", "image")
    pairwise = True

    def __init__(self, cfg: MaxSimConfig) -> None:
        super().__init__(cfg)
        self.parts = cfg.sentences
        self.sharpness, self.coarse = cfg.sharpness, cfg.coarse
        self.scale = LogitScale(cfg.scale or 1 / 0.07, cfg.max_scale)

    def encode_images(self, images: Images) -> Encoded:
        """tokens: patches, at length 1"""
        image_tokens = self.towers.image_tokens(images)
        tokens = unit(self.towers.to_image(image_tokens.patches))
        vector = unit(self.towers.to_image(image_tokens.pooled))
        return Encoded(
            vector, tokens, image_tokens.real(), images.image, images.image, None, image_tokens.places
        )

    def encode_texts(self, texts: Texts) -> Encoded:
        """tokens: one for each sentence, at length 1; sentences that several texts share are read once"""
        mask = texts.mask.any(-1)
        ids = texts.ids.masked_fill(~texts.mask, -1).flatten(0, 1)  # [M * S, L]
        first, back = distinct_rows(ids)
        one, real = texts.ids.flatten(0, 1)[first], texts.mask.flatten(0, 1)[first]
        with equal_texts(one, real):
            read = self.towers.text(one, real)
        tokens = full(self.towers.to_text(read.pooled))[back].unflatten(0, mask.shape)  # [M, S, D]
        return Encoded(
            unit(mean_pool(tokens, mask).vector),
            unit(tokens).masked_fill(~mask[..., None], 0.0),
            mask,
            texts.item,
            texts.image,
        )

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        return late_score(images.tokens, images.mask, texts.tokens, texts.mask, self.sharpness)

    def loss(self, local: Pair, gathered: Pair, clock: Clock) -> dict[str, Term]:  # noqa: ARG002
        scale = self.scale()
        fine = both_ways(lambda images, texts: scale * self.score(images, texts), local, gathered)
        plain = both_ways(lambda images, texts: scale * dot(images, texts), local, gathered, self.coarse)
        return fine | {f"coarse {name}": term for name, term in plain.items()}

    def heat(self, images: Encoded, texts: Encoded) -> Tensor:
        """What every patch adds to the score of its row: rows sum to the score."""
        return late_heat(images.tokens, images.mask, texts.tokens, texts.mask, self.sharpness)
