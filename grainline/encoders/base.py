"""What an encoder is to a method: pixels or ids in; tokens and a pooled vector of its own width out."""

from typing import NamedTuple, Protocol

from torch import Tensor, nn

from grainline.config import Config


class ImageTokens(NamedTuple):
    """An image, before any projection into a shared space."""

    pooled: Tensor  # [N, W]
    cls: Tensor | None  # [N, W] the class token, where the encoder has one; never mixed in with the patches
    patches: Tensor  # [N, L, W] in reading order where the backbone has a grid
    mask: Tensor | None = None  # [N, L] bool, True = real; None: all are
    places: Tensor | None = (
        None  # [N, H, W] the patch of each pixel, where they lie on no grid, outside training
    )

    def real(self) -> Tensor:
        """Which patches are real: [N, L] bool."""
        return self.mask if self.mask is not None else self.patches.new_ones(self.patches.shape[:2]).bool()


class TextTokens(NamedTuple):
    """A text, before any projection into a shared space."""

    pooled: Tensor  # [M, W]
    tokens: Tensor  # [M, L, W]
    mask: Tensor  # [M, L] bool, True = real token


class Layered(nn.Module):
    """Abstract: an encoder of layers one after the other that says where its other parts stand.

    Every parameter of a subclass is in its one list of layers (`nn.attention`), or in a part named here.
    Fine-tuning reads it: rates that fall with depth, and adapters.
    """

    before: tuple[str, ...]
    """Names of the parameters and submodules that feed the first layer."""

    behind: tuple[str, ...]
    """Names of those that read the last layer."""

    attention: str
    """Regular expression for the names, inside a layer, of the linear projections of attention."""


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

    kind: str  # my_module:MyConfig, the derived class
    size: int  # side of its square input in pixels

    def build(self) -> ImageBackbone:
        """The encoder, an nn.Module, with fresh weights."""
        raise NotImplementedError


class TextEncoderConfig(Config):
    """The settings of a text encoder outside grainline: derive from it, add fields, and define `build`."""

    kind: str  # my_module:MyConfig, the derived class
    vocab: int  # number of token ids

    def build(self) -> TextBackbone:
        """The encoder, an nn.Module, with fresh weights."""
        raise NotImplementedError
