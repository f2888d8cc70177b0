"""Superpixels by a fully convolutional network (SFCN; Yang et al., "Superpixel Segmentation with Fully
Convolutional Networks", CVPR 2020, arXiv 2003.12929).

A U-Net over RGB says for each pixel which of the nine cells of 16 pixels around is its own. Here it only
runs, with weights of others: the normalisations of its convolutions are folded into them.

    down  pairs of 3 x 3 convolutions of 16, 32, 64, 128, 256 channels; all pairs but the first halve the map
    up    four times: a transposed convolution doubles the map, the pair of that size joins it, a 3 x 3
          convolution mixes both; 128, 64, 32 and 16 channels
    head  a 3 x 3 convolution to nine
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grainline.nn.superpixel import Cells, hard, inside

CELL = 16
WIDTHS = (16, 32, 64, 128, 256)
MEAN = (
    0.411,
    0.432,
    0.450,
)  # of the pictures it was trained on, R, G, B in 0..1; their spread is not divided by
SLOPE = 0.1  # of the activations below 0


class Convolution(nn.Module):
    """3 x 3 convolution, batch normalisation where it is not folded in, leaky ReLU."""

    def __init__(self, inside: int, out: int, stride: int = 1, *, norm: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inside, out, 3, stride, 1, bias=not norm)
        self.norm = nn.BatchNorm2d(out) if norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(self.norm(self.conv(x)), SLOPE, inplace=True)


class Rise(nn.Module):
    """One step up: a map of half the size joins the one that was there on the way down."""

    def __init__(self, width: int, *, norm: bool) -> None:
        super().__init__()
        self.grow = nn.ConvTranspose2d(2 * width, width, 4, 2, 1)
        self.mix = Convolution(2 * width, width, norm=norm)

    def forward(self, x: Tensor, beside: Tensor) -> Tensor:
        return self.mix(torch.cat([beside, F.leaky_relu(self.grow(x), SLOPE, inplace=True)], 1))


class SFCN(nn.Module):
    """The network. norm: with its batch normalisations, as it is trained and published; else without"""

    def __init__(self, *, norm: bool) -> None:
        super().__init__()
        pairs = zip((3, *WIDTHS), WIDTHS, strict=False)
        self.down = nn.ModuleList(
            nn.Sequential(
                Convolution(before, width, 2 if i else 1, norm=norm), Convolution(width, width, norm=norm)
            )
            for i, (before, width) in enumerate(pairs)
        )
        self.up = nn.ModuleList(Rise(width, norm=norm) for width in WIDTHS[-2::-1])
        self.head = nn.Conv2d(WIDTHS[0], 9, 3, padding=1)
        self.register_buffer("mean", torch.tensor(MEAN)[:, None, None], persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        """[N, 3, S, S] float in 0..1, S a multiple of 16 -> logits [N, 9, S, S] of the neighbours"""
        x = pixels - self.get_buffer("mean")
        seen = []
        for pair in self.down:
            x = pair(x)
            seen.append(x)
        for rise, beside in zip(self.up, seen[-2::-1], strict=True):
            x = rise(x, beside)
        out: Tensor = self.head(x)
        return out


def cells_of(logits: Tensor) -> Cells:
    """The softmax over the neighbours inside the picture, in float32; logits [N, 9, S, S]"""
    there = inside(logits.shape[-1], CELL, logits.device)
    with torch.autocast(logits.device.type, enabled=False):
        association = logits.float().masked_fill(~there, -torch.inf).softmax(1)
    return Cells(association, hard(association, CELL))


def folded(network: SFCN) -> SFCN:
    """The same network in evaluation, with its normalisations inside the convolutions before them."""
    out = SFCN(norm=False)
    mine = dict(network.named_modules())
    with torch.no_grad():
        for name, module in out.named_modules():
            source = mine[name]
            if isinstance(module, Convolution):
                assert isinstance(source, Convolution)
                _fold(source, module)
            elif isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)) and not name.endswith(".conv"):
                module.load_state_dict(source.state_dict())
    return out


def _fold(source: Convolution, target: Convolution) -> None:
    norm, bias = source.norm, target.conv.bias
    assert bias is not None
    if not isinstance(norm, nn.BatchNorm2d):
        target.conv.load_state_dict(source.conv.state_dict())
        return
    assert norm.running_mean is not None
    assert norm.running_var is not None
    factor = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
    target.conv.weight.copy_(source.conv.weight.double() * factor[:, None, None, None])
    bias.copy_(norm.bias.double() - norm.running_mean.double() * factor)
