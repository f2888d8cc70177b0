"""Image encoders of the transformers library that know no texts: ViT and Swin."""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from grainline.encoders.base import ImageTokens
from grainline.encoders.pretrained.adapters import ImageEncoder
from grainline.encoders.pretrained.kind import sides_of
from grainline.encoders.pretrained.library import LibraryKind
from grainline.encoders.pretrained.preprocess import KNOWN
from grainline.errors import UserError


class ViTImage(ImageEncoder):
    """A ViT: patches, and a class token that sums up."""

    classed = True

    def __init__(self, model: nn.Module, architecture: Mapping[str, Any]) -> None:
        config = sides_of(architecture)["image"]
        side = config["image_size"] // config["patch_size"]
        super().__init__(
            model, architecture, width=config["hidden_size"], size=config["image_size"], grid=(side, side)
        )

    def read(self, hidden: Tensor) -> ImageTokens:
        return ImageTokens(hidden[:, 0], hidden[:, 0], hidden[:, 1:])


class SwinImage(ImageEncoder):
    """A Swin: every stage but the last halves its sides, rounded up, and doubles the width."""

    def __init__(self, model: nn.Module, architecture: Mapping[str, Any]) -> None:
        config = sides_of(architecture)["image"]
        side, width = config["image_size"] // config["patch_size"], config["embed_dim"]
        for _ in config["depths"][1:]:
            side, width = -(-side // 2), 2 * width
        super().__init__(model, architecture, width=width, size=config["image_size"], grid=(side, side))


class ViT(LibraryKind):
    """ViTModel."""

    model_class, config_class = "ViTModel", "ViTConfig"
    grid, lead = "embeddings.position_embeddings", 1
    headless = True
    left_out = r"(pooler|classifier|decoder|embeddings\.mask_token)\b.*"
    pixels: ClassVar = KNOWN["vit"]

    def sides(self, model: Any, architecture: Mapping[str, Any]) -> tuple[ViTImage, None]:
        return ViTImage(model, architecture), None


class Swin(LibraryKind):
    """SwinModel."""

    model_class, config_class = "SwinModel", "SwinConfig"
    averaged = True
    grid = "embeddings.position_embeddings"
    left_out = r"(classifier|decoder|embeddings\.mask_token)\b.*"
    pixels: ClassVar = KNOWN["swin"]

    def check_size(self, config: Mapping[str, Any], size: int) -> None:
        super().check_size(config, size)
        patch, stages = config["patch_size"], len(config["depths"])
        if (size // patch) >> (stages - 1) < config["window_size"]:
            least = (config["window_size"] * patch) << (stages - 1)
            raise UserError(
                f"size {size} is smaller than a window of the last stage; this Swin needs {least} at least"
            )

    def sides(self, model: Any, architecture: Mapping[str, Any]) -> tuple[SwinImage, None]:
        return SwinImage(model, architecture), None
