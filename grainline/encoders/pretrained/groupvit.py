"""GroupViT, whose image tokens are groups of patches of any shape."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_linear_bn_eval

from grainline.encoders.base import ImageTokens
from grainline.encoders.pretrained.adapters import ImageEncoder
from grainline.encoders.pretrained.clip_towers import ClipText
from grainline.encoders.pretrained.kind import Pretrained
from grainline.encoders.pretrained.library import TwoSided
from grainline.encoders.pretrained.preprocess import KNOWN
from grainline.nn.runtime import is_static


class GroupViTImage(ImageEncoder):
    """The image side: groups, which their mean sums up."""

    segmented = True

    def __init__(self, model: nn.Module, architecture: Mapping[str, Any]) -> None:
        super().__init__(model, architecture, grid=None)

    def train(self, mode: bool = True) -> "GroupViTImage":
        """No noise even where it learns: the assignment of groups stays as in evaluation."""
        super().train(mode)
        self.model.eval()
        return self

    def forward(self, pixels: Tensor) -> ImageTokens:
        placed = not self.training and not is_static()
        options = {"output_attentions": True} if placed else {}
        out = self.model(pixel_values=self.normalised(pixels), **options)
        tokens = self.read(out.last_hidden_state)
        return tokens._replace(places=group_places(out.attentions, self.size)) if placed else tokens


class GroupViTText(ClipText):
    """The text side, whose attention is one of its own."""

    packable = False


@torch.no_grad()
def group_places(maps: Sequence[Tensor], size: int) -> Tensor:
    """The group of each pixel, [N, size, size]: GroupViT's way to segment, without its threshold.

    maps  of each stage [N, K, L], how much of every token each of K groups takes; the tokens of the first
          stage are patches in a square, those of the others the groups before them

    The product of all maps is the share of a patch that each last group takes. It is interpolated between the
    centres of patches, and a pixel belongs to the group with the largest share.
    """
    share = maps[0].float()
    for later in maps[1:]:
        share = later.float() @ share
    side = math.isqrt(share.shape[2])
    small = torch.uint8 if share.shape[1] <= 256 else torch.int64
    places = []
    for images in share.unflatten(2, (side, side)).split(16):  # 26 MB of maps, for 8 groups at 224 pixels
        places.append(F.interpolate(images, (size, size), mode="bilinear").argmax(1).to(small))
    return torch.cat(places)


class GroupViT(TwoSided):
    """GroupViTModel, whose heads have two layers each."""

    averaged, image_encoder, text_encoder = True, GroupViTImage, GroupViTText
    grid = "vision_model.embeddings.position_embeddings"
    pixels = KNOWN["groupvit"]

    def split(self, model: Any, architecture: Mapping[str, Any]) -> Pretrained:
        heads = _two_layers(model.visual_projection), _two_layers(model.text_projection)
        return super().split(model, architecture)._replace(heads=heads)


def _two_layers(head: Any) -> nn.Sequential:
    """A head (linear, batch norm, ReLU, linear) with its batch norm as part of the first layer.

    The statistics of the norm stay those of the checkpoint where the head learns: those of a batch would
    depend on how the batch is cut into chunks and processes.
    """
    first, norm, relu, last = head.eval()
    return nn.Sequential(fuse_linear_bn_eval(first, norm), relu, last)
