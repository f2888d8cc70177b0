"""Superpixels of a batch of images, by one of four ways under the contract of `nn.superpixels`."""

import importlib
import re
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from grainline.config import Config
from grainline.encoders.pretrained.archive import read_tensors
from grainline.errors import UserError
from grainline.nn.runtime import has_bf16
from grainline.nn.superpixels import Cells, hard, inside, kmeans, one_hot, square_grid

# Superpixels by SEEDS (van den Bergh et al., arXiv 1309.3848), the ones of CAST; extra `seeds`.
#
# OpenCV's segments are few and free: one may reach over several cells, and several may share one. Under the
# contract of `nn.superpixels` each segment is given to a cell, and each pixel to the cell of its segment:
#
#     home of a segment = the cell that holds most of its pixels, the first of equal ones
#     label of a pixel  = the home of its segment, if that is one of the nine cells around the pixel;
#                         else the nearest of the nine: row and column are clipped to one cell away


LEVELS, PRIOR, BINS = 2, 2, 5
"""Levels of blocks, smoothing of shapes from 0 to 5, and bins of the histogram of each colour."""


def require_seeds() -> ModuleType:
    """OpenCV with its extra modules; UserError where it is not there."""
    try:
        cv2 = importlib.import_module("cv2")
        importlib.import_module("cv2.ximgproc")
    except ImportError:
        raise UserError(
            "superpixels by seeds need OpenCV with its extra modules: pip install grainline[seeds]; where "
            "opencv-python is installed, remove it first: both bring the module cv2"
        ) from None
    return cv2


def seeds(pixels: Tensor, cell: int, steps: int) -> Cells:
    """pixels [N, 3, S, S] uint8 or float in 0..1 -> Cells of zeros and ones; computed on the CPU

    steps  sweeps over the image at each level
    """
    cv2 = require_seeds()
    whole = pixels if pixels.dtype == torch.uint8 else (pixels * 255).round().clamp(0, 255).to(torch.uint8)
    images = whole.permute(0, 2, 3, 1).cpu().numpy()
    labels = np.stack([at_home(_segments(cv2, image, cell, steps), cell) for image in images])
    label = torch.from_numpy(labels).to(pixels.device)
    return Cells(one_hot(label, cell), label)


def at_home(segment: np.ndarray, cell: int) -> np.ndarray:
    """Any segments as labels under the contract: [S, S] int in 0..K-1 -> [S, S] int64

    >>> at_home(np.array([[0, 0, 0, 0], [0, 1, 1, 1], [0, 1, 1, 1], [0, 1, 1, 1]]), cell=2)
    array([[0, 0, 0, 0],
           [0, 3, 3, 3],
           [0, 3, 3, 3],
           [0, 3, 3, 3]])
    """
    size = segment.shape[0]
    grid = size // cell
    at = np.arange(size) // cell
    own = grid * at[:, None] + at
    number = int(segment.max()) + 1
    shared = np.bincount((segment * grid**2 + own).ravel(), minlength=number * grid**2)
    home = shared.reshape(number, grid**2).argmax(1)[segment]
    row = np.clip(home // grid, at[:, None] - 1, at[:, None] + 1)
    column = np.clip(home % grid, at - 1, at + 1)
    return (grid * row + column).astype(np.int64)


def _segments(cv2: Any, image: np.ndarray, cell: int, steps: int) -> np.ndarray:
    """OpenCV's segments of one image [S, S, 3] uint8 RGB, about one for each cell: [S, S] int"""
    size = image.shape[0]
    number = (size // cell) ** 2
    found = cv2.ximgproc.createSuperpixelSEEDS(size, size, 3, number, LEVELS, PRIOR, BINS)
    found.iterate(cv2.cvtColor(image, cv2.COLOR_RGB2LAB), steps)
    return np.asarray(found.getLabels())


# Superpixels by a fully convolutional network (SFCN; Yang et al., "Superpixel Segmentation with Fully
# Convolutional Networks", CVPR 2020, arXiv 2003.12929).
#
# A U-Net over RGB says for each pixel which of the nine cells of 16 pixels around is its own. Here it only
# runs, with weights of others: the normalisations of its convolutions are folded into them.
#
#     down  pairs of 3 x 3 convolutions of 16, 32, 64, 128, 256 channels; all pairs but the first halve the
# map up    four times: a transposed convolution doubles the map, the pair of that size joins it, a 3 x 3
# convolution mixes both; 128, 64, 32 and 16 channels head  a 3 x 3 convolution to nine


CELL = 16
WIDTHS = (16, 32, 64, 128, 256)
MEAN = (
    0.411,
    0.432,
    0.450,
)  # of the images it was trained on, R, G, B in 0..1; their spread is not divided by
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
    """The softmax over the neighbours inside the image, in float32; logits [N, 9, S, S]"""
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


# The published weights of SFCN: a torch file of `arch` and `state_dict` (github.com/fuy34/superpixel_fcn).
#
# conv0a, conv0b, ..., conv4b   down: 0 the convolution, 1 its normalisation
# deconv3, conv3_1, ..., 0      up: the transposed convolution, and the one that mixes
# pred_mask0                    head; pred_mask1 to 3 are heads of training that nothing reads


UNUSED = re.compile(r"pred_mask[1-3]\.(weight|bias)")
TOP = len(WIDTHS) - 2  # the number of the first step up
_NAMES = (  # published, ours
    (re.compile(r"conv(\d)([ab])\.([01])\.(\w+)"), "down"),
    (re.compile(r"conv(\d)(_1)\.([01])\.(\w+)"), "mix"),
    (re.compile(r"deconv(\d)()\.(0)\.(\w+)"), "grow"),
)


def read_sfcn(path: Path) -> SFCN:
    """The network of a published file, normalisations and all. UserError where it holds anything else."""
    tensors = {name: x for name, x in read_tensors(path).tensors.items() if not UNUSED.fullmatch(name)}
    network = SFCN(norm="conv0a.1.weight" in tensors)
    ours = {}
    expected = network.state_dict()
    for name, tensor in tensors.items():
        mine = own_name(name)
        if mine not in expected:
            raise UserError(
                f"{path}: {name} is no part of SFCN; give the file of a SpixelNet as it is published"
            )
        if tensor.shape != expected[mine].shape:
            raise UserError(
                f"{path}: {name} is {_shape(tensor)}, and SFCN has {_shape(expected[mine])} there"
            )
        ours[mine] = tensor
    lost = sorted(name for name in expected if name not in ours)
    if lost:
        raise UserError(
            f"{path}: {len(lost)} of the {len(expected)} tensors of SFCN are missing, such as {lost[0]}"
        )
    network.load_state_dict(ours)
    return network.eval()


def own_name(name: str) -> str:
    """The name in our state dict of a published one; itself where it is none of them.

    >>> own_name("conv3a.0.weight"), own_name("conv3_1.1.bias"), own_name("deconv0.0.bias")
    ('down.3.0.conv.weight', 'up.0.mix.norm.bias', 'up.3.grow.bias')
    """
    for pattern, kind in _NAMES:
        match = pattern.fullmatch(name)
        if match:
            number, letter, place, tensor = match.groups()
            part = "norm" if place == "1" else "conv"
            if kind == "down":
                return f"down.{number}.{'ab'.index(letter)}.{part}.{tensor}"
            return f"up.{TOP - int(number)}.{f'mix.{part}' if kind == 'mix' else 'grow'}.{tensor}"
    return name.replace("pred_mask0.", "head.") if name.startswith("pred_mask0.") else f"published {name}"


def _shape(x: Tensor) -> str:
    return " x ".join(map(str, x.shape)) or "a number"


class SuperpixelConfig(Config):
    """How images are cut into superpixels."""

    kind: Literal["kmeans", "grid", "sfcn", "seeds"] = "kmeans"
    cell: int = Field(16, ge=2)  # side of the cell that a superpixel stands for, in pixels
    compactness: float = Field(10.0, gt=0)  # kmeans: what a distance of one cell weighs, in units of Lab
    iterations: int = Field(10, ge=1)  # kmeans: how often the pixels choose; seeds: sweeps over the image
    checkpoint: str | None = (
        None  # sfcn: the published weights; read when a run begins, not needed afterwards
    )

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

    The weights of SFCN are buffers: they stand in the state dict, and no rule of an optimizer reaches them.
    The network computes in bfloat16 on devices that have it, whatever autocast says; all else is float32. But
    for seeds, which OpenCV computes on the CPU, nothing waits for the device.
    """

    def __init__(self, cfg: SuperpixelConfig, size: int) -> None:
        """size: side of the images in pixels. UserError where the cells do not fill it"""
        super().__init__()
        if size % cfg.cell:
            raise UserError(
                f"superpixels: images of {size} pixels are no whole number of cells of {cfg.cell}"
            )
        if cfg.kind == "seeds":
            require_seeds()
        self.cfg, self.size = cfg, size
        self.network = _frozen(SFCN(norm=False)) if cfg.kind == "sfcn" else None

    @property
    def number(self) -> int:
        """Superpixels of an image, empty ones included."""
        return (self.size // self.cfg.cell) ** 2

    def fill(self, path: Path) -> None:
        """Take the weights of SFCN from their published file. UserError where they are not in it."""
        if self.network is not None:
            self.network.load_state_dict(folded(read_sfcn(path)).state_dict())

    @torch.no_grad()
    def forward(self, pixels: Tensor) -> Cells:
        """pixels [N, 3, S, S] uint8 in 0..255 or float in 0..1, S the size"""
        if pixels.shape[-2:] != (self.size, self.size):
            raise ValueError(f"images of {tuple(pixels.shape[-2:])} pixels, not of {self.size}")
        cfg = self.cfg
        if self.network is not None:
            return self._by_network(self.network, pixels)
        if cfg.kind == "seeds":
            return seeds(pixels, cfg.cell, cfg.iterations)
        if cfg.kind == "grid":
            return square_grid(pixels, cfg.cell)
        return kmeans(pixels, cfg.cell, cfg.compactness, cfg.iterations)

    def _by_network(self, network: nn.Module, pixels: Tensor) -> Cells:
        device = pixels.device
        x = pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels.float()
        with torch.autocast(device.type, torch.bfloat16, enabled=has_bf16(device)):
            logits = network(x.contiguous(memory_format=torch.channels_last))
        return cells_of(logits)


def _frozen(network: SFCN) -> SFCN:
    """Its parameters as buffers, the channels of each place side by side in memory."""
    for module in list(network.modules()):
        for name, parameter in list(module.named_parameters(recurse=False)):
            order = torch.channels_last if parameter.dim() == 4 else torch.contiguous_format
            delattr(module, name)
            module.register_buffer(name, parameter.detach().contiguous(memory_format=order))
    return network
