"""Superpixels of a batch of images: k-means and squares of `nn.superpixels`, or SFCN with published weights.

SFCN is a fully convolutional network (Yang et al., CVPR 2020, arXiv 2003.12929).
"""

import copy
import re
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from grainline.config import Config
from grainline.encoders.pretrained.archive import read_tensors
from grainline.errors import UserError
from grainline.nn.runtime import has_bf16
from grainline.nn.superpixels import hard, inside, kmeans, neighbour_of, square_grid
from grainline.weights import state_dict_mismatch

CELL = 16  # side in pixels of the cells of SFCN
WIDTHS = (16, 32, 64, 128, 256)
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
    """One step up: a map of half the size is doubled and mixed with the map of that size on the way down."""

    def __init__(self, width: int, *, norm: bool) -> None:
        super().__init__()
        self.grow = nn.ConvTranspose2d(2 * width, width, 4, 2, 1)
        self.mix = Convolution(2 * width, width, norm=norm)

    def forward(self, x: Tensor, skipped: Tensor) -> Tensor:
        return self.mix(torch.cat([skipped, F.leaky_relu(self.grow(x), SLOPE, inplace=True)], 1))


class SFCN(nn.Module):
    """A U-Net over RGB that gives each pixel to one of the nine cells around it."""

    def __init__(self, *, norm: bool) -> None:
        """norm: with batch normalisations, as published; False: they are folded into the convolutions"""
        super().__init__()
        pairs = zip((3, *WIDTHS), WIDTHS, strict=False)
        self.down = nn.ModuleList(  # all pairs but the first halve the map
            nn.Sequential(
                Convolution(before, width, 2 if i else 1, norm=norm), Convolution(width, width, norm=norm)
            )
            for i, (before, width) in enumerate(pairs)
        )
        self.up = nn.ModuleList(Rise(width, norm=norm) for width in WIDTHS[-2::-1])
        self.head = nn.Conv2d(WIDTHS[0], 9, 3, padding=1)
        mean = torch.tensor((0.411, 0.432, 0.450))  # R, G, B of its training images; no std
        self.register_buffer("mean", mean[:, None, None], persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        """[N, 3, S, S] float in 0..1, S a multiple of 16 -> logits [N, 9, S, S] of the neighbours"""
        x = pixels - self.get_buffer("mean")
        maps = []
        for pair in self.down:
            x = pair(x)
            maps.append(x)
        for rise, skipped in zip(self.up, maps[-2::-1], strict=True):
            x = rise(x, skipped)
        out: Tensor = self.head(x)
        return out


def folded(network: SFCN) -> SFCN:
    """The same network in evaluation, with its normalisations inside the convolutions before them."""
    network = copy.deepcopy(network).eval().double()
    for module in network.modules():
        if isinstance(module, Convolution) and isinstance(module.norm, nn.BatchNorm2d):
            module.conv, module.norm = fuse_conv_bn_eval(module.conv, module.norm), nn.Identity()
    return network.float()


UNUSED = re.compile(r"pred_mask[1-3]\.(weight|bias)")  # heads of training that nothing reads
TOP = len(WIDTHS) - 2  # the number of the first step up


def read_sfcn(path: Path) -> SFCN:
    """The network of a published file (github.com/fuy34/superpixel_fcn). UserError for any other file."""
    tensors = {name: x for name, x in read_tensors(path)[0].items() if not UNUSED.fullmatch(name)}
    network = SFCN(norm="conv0a.1.weight" in tensors)
    state = {own_name(name): x for name, x in tensors.items()}
    if wrong := state_dict_mismatch(state, network.state_dict()):
        raise UserError(f"{path} is not a published SpixelNet: {wrong}; fetch it again")
    network.load_state_dict(state)
    return network.eval()


def own_name(name: str) -> str:
    """The name of a published tensor in our state dict; in quotes where it is not known.

    >>> own_name("conv3a.0.weight"), own_name("conv3_1.1.bias"), own_name("deconv0.0.bias")
    ('down.3.0.conv.weight', 'up.0.mix.norm.bias', 'up.3.grow.bias')
    """
    if match := re.fullmatch(r"conv(\d)([ab]|_1)\.([01])\.(\w+)", name):
        number, letter, place, tensor = match.groups()
        block = f"up.{TOP - int(number)}.mix" if letter == "_1" else f"down.{number}.{'ab'.index(letter)}"
        return f"{block}.{'norm' if place == '1' else 'conv'}.{tensor}"
    if match := re.fullmatch(r"deconv(\d)\.0\.(\w+)", name):
        return f"up.{TOP - int(match[1])}.grow.{match[2]}"
    return name.replace("pred_mask0.", "head.") if name.startswith("pred_mask0.") else repr(name)


class SuperpixelConfig(Config):
    """How images are cut into superpixels."""

    kind: Literal["kmeans", "grid", "sfcn"] = "kmeans"
    cell: int = Field(16, ge=2)  # side of the cell that a superpixel stands for, in pixels
    compactness: float = Field(10.0, gt=0)  # kmeans: what a distance of one cell weighs, in units of Lab
    iterations: int = Field(10, ge=1)  # kmeans: assignments of the pixels
    checkpoint: str | None = None  # sfcn: the published weights; read at the start of a run, not needed later

    @model_validator(mode="after")
    def _fits(self) -> "SuperpixelConfig":
        if self.kind == "sfcn" and self.cell != CELL:
            raise ValueError(f"sfcn was trained for cells of {CELL}; cell is {self.cell}")
        if self.kind == "sfcn" and not self.checkpoint:
            raise ValueError("sfcn wants checkpoint: a file with its published weights; kmeans needs none")
        if self.kind != "sfcn" and self.checkpoint:
            raise ValueError(f"checkpoint is for sfcn; {self.kind} has no weights")
        return self


class Superpixels(nn.Module):
    """Images to superpixels. Nothing in it learns, and no gradient passes through it.

    The weights of SFCN are buffers: they are in the state dict, and no rule of an optimizer applies to them.
    The network computes in bfloat16 on devices that have it, independent of autocast; all else is float32.
    """

    def __init__(self, cfg: SuperpixelConfig, size: int) -> None:
        """size: side of the images in pixels. UserError where the cells do not fill it"""
        super().__init__()
        if size % cfg.cell:
            raise UserError(f"superpixels: images of {size} pixels are no multiple of cells of {cfg.cell}")
        self.cfg, self.size = cfg, size
        self.network = SFCN(norm=False) if cfg.kind == "sfcn" else None
        for module in list(self.network.modules()) if self.network else ():  # parameters become buffers
            for name, parameter in list(module.named_parameters(recurse=False)):
                order = torch.channels_last if parameter.dim() == 4 else torch.contiguous_format
                delattr(module, name)
                module.register_buffer(name, parameter.detach().contiguous(memory_format=order))

    def fill(self, path: Path) -> None:
        """Take the weights of SFCN from their published file. UserError where they are not in it."""
        if self.network is not None:
            self.network.load_state_dict(folded(read_sfcn(path)).state_dict())

    def neighbours(self, pixels: Tensor) -> Tensor:
        """The labels as `nn.superpixels.neighbour_of` encodes them: [N, S, S] uint8"""
        return neighbour_of(self(pixels), self.cfg.cell).to(torch.uint8)

    @torch.no_grad()
    def forward(self, pixels: Tensor) -> Tensor:
        """pixels [N, 3, S, S] uint8 in 0..255 or float in 0..1, S the size -> labels [N, S, S] int64"""
        if pixels.shape[-2:] != (self.size, self.size):
            raise ValueError(f"images of {tuple(pixels.shape[-2:])} pixels, not of {self.size}")
        cfg = self.cfg
        if self.network is not None:
            x = pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels.float()
            device = pixels.device.type
            with torch.autocast(device, torch.bfloat16, enabled=has_bf16(pixels.device)):
                logits = self.network(x.contiguous(memory_format=torch.channels_last))
            return hard(logits.float().masked_fill(~inside(self.size, CELL, logits.device), -torch.inf), CELL)
        if cfg.kind == "grid":
            return square_grid(pixels, cfg.cell)
        return kmeans(pixels, cfg.cell, cfg.compactness, cfg.iterations)
