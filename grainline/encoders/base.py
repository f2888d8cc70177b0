"""The interface of encoders: pixels or ids in; tokens and a pooled vector of their own width out."""

from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from grainline.config import Config

Colour = tuple[float, float, float]
"""One number for red, green and blue."""


class ImageTokens(NamedTuple):
    """An image, before any projection into a shared space."""

    pooled: Tensor  # [N, W]
    cls: Tensor | None  # [N, W] the class token, where the encoder has one; never mixed in with the patches
    patches: Tensor  # [N, L, W] in reading order where the backbone has a grid
    mask: Tensor | None = None  # [N, L] bool, True = real; None: all are
    places: Tensor | None = None  # [N, H, W] patch of each pixel, outside training and without a grid

    def real(self) -> Tensor:
        """The patches that are real: [N, L] bool."""
        return self.mask if self.mask is not None else self.patches.new_ones(self.patches.shape[:2]).bool()


class TextTokens(NamedTuple):
    """A text, before any projection into a shared space."""

    pooled: Tensor  # [M, W]
    tokens: Tensor  # [M, L, W]
    mask: Tensor  # [M, L] bool, True = real token


class Layered(nn.Module):
    """Abstract: an encoder of layers one after the other that names its other parts.

    Every parameter of a subclass is in its one list of layers (`nn.attention`), or in a part named here.
    Fine-tuning reads it: rates that fall with depth, and adapters.
    """

    before: tuple[str, ...]
    """Names of the parameters and submodules that feed the first layer."""

    behind: tuple[str, ...]
    """Names of those that read the last layer."""

    attention: str
    """Regular expression for the names, inside a layer, of the linear projections of attention."""


class PixelEncoder(Layered):
    """Abstract: an encoder that normalises pixels itself, because mean and std belong to the weights."""

    mean: Tensor
    spread: Tensor  # the standard deviation; weight files have it under this name

    def __init__(self, mean: Colour, std: Colour) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1))
        self.register_buffer("spread", torch.tensor(std).view(3, 1, 1))

    def normalised(self, pixels: Tensor) -> Tensor:
        """(pixels - mean) / std, for pixels [N, 3, H, W] uint8 in 0..255 or float in 0..1."""
        x = pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels
        return (x - self.mean) / self.spread


class ImageBackbone(Protocol):
    """Anything that reads images. `grid` is None where tokens do not lie on one (superpixels)."""

    width: int
    size: int  # side of its square input in pixels
    grid: tuple[int, int] | None  # rows and columns of patches

    def __call__(self, pixels: Tensor) -> ImageTokens:
        """pixels [N, 3, H, W] uint8 in 0..255 or float in 0..1"""


class TextBackbone(Protocol):
    """Anything that reads token ids."""

    width: int
    context: int  # longest text in tokens

    def __call__(self, ids: Tensor, mask: Tensor) -> TextTokens:
        """ids [M, L] int64, mask [M, L] bool; padding stands on the right and may be of any length"""


class ImageEncoderConfig(Config):
    """The settings of an image encoder outside grainline: derive from it, add fields, and define `build`."""

    averaged: ClassVar[bool] = False  # whether the summary of an image is the mean of its tokens
    kind: str  # my_module:MyConfig, the derived class
    size: int  # side of its square input in pixels

    @abstractmethod
    def build(self) -> ImageBackbone:
        """The encoder, an nn.Module, with fresh weights."""


class TextEncoderConfig(Config):
    """The settings of a text encoder outside grainline: derive from it, add fields, and define `build`."""

    kind: str  # my_module:MyConfig, the derived class
    vocab: int  # number of token ids

    @abstractmethod
    def build(self) -> TextBackbone:
        """The encoder, an nn.Module, with fresh weights."""


def sizes_of(table: str) -> dict[str, dict[str, int]]:
    """The sizes of transformers by name, from names with their width, depth and heads."""
    rows = (row.split() for row in table.split(","))
    return {name: dict(zip(("width", "depth", "heads"), map(int, x), strict=True)) for name, *x in rows}


class ScratchConfig(Config):
    """Abstract: a transformer from scratch. `name` fills in other fields; fields given with it win."""

    sizes: ClassVar[dict[str, dict[str, Any]]]  # the fields of each name

    name: str | None = None
    width: int = Field(gt=0)
    heads: int = Field(gt=0)
    drop_path: float = Field(0.0, ge=0.0, lt=1.0)  # share of rows that skip a branch of the last block

    @classmethod
    def _size(cls, name: str) -> dict[str, Any]:
        if name not in cls.sizes:
            raise ValueError(f"name {name!r} is not known; allowed are {', '.join(cls.sizes)}")
        return cls.sizes[name]

    @model_validator(mode="before")
    @classmethod
    def _named(cls, values: Any) -> Any:
        if not isinstance(values, dict) or values.get("name") is None:
            return values
        return cls._size(str(values["name"])) | values

    @model_validator(mode="after")
    def _whole_heads(self) -> "ScratchConfig":
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of {self.heads} heads")
        return self


class ScratchImageConfig(ScratchConfig):
    """Abstract: an image encoder trained from scratch. Mean and std are those of CLIP's data."""

    size: int = Field(224, gt=0)  # side of the square input in pixels
    positions: str
    mean: Colour = (0.481, 0.458, 0.408)  # of the pixels in 0..1; drawn images differ
    std: Colour = (0.269, 0.261, 0.276)

    @model_validator(mode="after")
    def _pixels_and_waves(self) -> "ScratchImageConfig":
        if min(self.std) <= 0:
            raise ValueError(f"std {self.std} must be above 0 in every colour")
        if self.positions == "waves" and self.width % 4:
            raise ValueError(f"width {self.width} is not a multiple of 4, as positions of waves need it")
        return self
