"""SigLIP and SigLIP 2 for images of one size."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from grainline.encoders.base import ImageTokens
from grainline.encoders.pretrained.adapters import ImageEncoder, TextEncoder
from grainline.encoders.pretrained.kind import Options, sides_of
from grainline.encoders.pretrained.library import TwoSided
from grainline.encoders.pretrained.preprocess import KNOWN
from grainline.errors import UserError


class SiglipImage(ImageEncoder):
    """The image side: patches, and an attention pool that sums up."""

    def __init__(self, model: nn.Module, architecture: Mapping[str, Any]) -> None:
        config = sides_of(architecture)["image"]
        side = config["image_size"] // config["patch_size"]
        super().__init__(
            model, architecture, width=config["hidden_size"], size=config["image_size"], grid=(side, side)
        )

    def read(self, hidden: Tensor) -> ImageTokens:
        """Each patch as the attention pool would summarise an image of this patch alone."""
        head: Any = self.model.head
        width, attention = hidden.shape[-1], head.attention
        value = F.linear(hidden, attention.in_proj_weight[2 * width :], attention.in_proj_bias[2 * width :])
        each = attention.out_proj(value)
        return ImageTokens(head(hidden), None, each + head.mlp(head.layernorm(each)))


class SiglipText(TextEncoder):
    """The text side, which was trained on padding, without a mask, and sums up at the last position."""

    table = "embeddings.position_embedding"
    whole = True

    def __init__(self, model: nn.Module, architecture: Mapping[str, Any]) -> None:
        config = sides_of(architecture)["text"]
        context, vocab = config["max_position_embeddings"], config["vocab_size"]
        width = config.get("projection_size") or config["hidden_size"]
        super().__init__(model, width=width, context=context, vocab=vocab, pad=architecture["pad"])

    def read(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        model: Any = self.model
        hidden = model.head(model(input_ids=ids).last_hidden_state)
        return hidden, hidden[:, -1]


class Siglip(TwoSided):
    """SiglipModel."""

    model_class, config_class = "SiglipModel", "SiglipConfig"
    vectors = True
    grid = "vision_model.embeddings.position_embedding.weight"
    pixels: ClassVar = KNOWN["siglip"]

    def check(self, name: str, config: dict[str, Any], options: Options) -> None:
        super().check(name, config, options)
        if not config["vision_config"].get("vision_use_head", True):
            raise UserError(
                f"{name} has no attention pool (vision_use_head is false), so no vector for an image"
            )

    def sides(self, model: Any, architecture: Mapping[str, Any]) -> tuple[SiglipImage, SiglipText]:
        return SiglipImage(model.vision_model, architecture), SiglipText(model.text_model, architecture)

    def space(self, architecture: Mapping[str, Any]) -> int:
        return int(architecture["config"]["vision_config"]["hidden_size"])
