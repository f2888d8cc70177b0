"""Superpixels of a batch of pictures, by one of four ways under the contract of `nn.superpixel`."""

from pathlib import Path
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from grainline.config import Config
from grainline.encoders.pretrained.sfcn import read_sfcn
from grainline.encoders.seeds import require_seeds, seeds
from grainline.encoders.sfcn import CELL, SFCN, cells_of, folded
from grainline.errors import UserError
from grainline.nn.kmeans import kmeans
from grainline.nn.precision import has_bf16
from grainline.nn.superpixel import Cells, square_grid


class SuperpixelConfig(Config):
    """How pictures are cut into superpixels."""

    kind: Literal["kmeans", "grid", "sfcn", "seeds"] = "kmeans"
    cell: int = Field(16, ge=2)  # side of the cell that a superpixel stands for, in pixels
    compactness: float = Field(10.0, gt=0)  # kmeans: what a distance of one cell weighs, in units of Lab
    steps: int = Field(10, ge=1)  # kmeans: how often the pixels choose; seeds: sweeps over the picture
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
    """Pictures to superpixels. Nothing in it learns, and no gradient passes through it.

    The weights of SFCN are buffers: they stand in the state dict, and no rule of an optimizer reaches them.
    The network computes in bfloat16 on devices that have it, whatever autocast says; all else is float32. But
    for seeds, which OpenCV computes on the CPU, nothing waits for the device.
    """

    def __init__(self, cfg: SuperpixelConfig, size: int) -> None:
        """size: side of the pictures in pixels. UserError where the cells do not fill it"""
        super().__init__()
        if size % cfg.cell:
            raise UserError(
                f"superpixels: pictures of {size} pixels are no whole number of cells of {cfg.cell}"
            )
        if cfg.kind == "seeds":
            require_seeds()
        self.cfg, self.size = cfg, size
        self.network = _frozen(SFCN(norm=False)) if cfg.kind == "sfcn" else None

    @property
    def number(self) -> int:
        """Superpixels of a picture, empty ones included."""
        return (self.size // self.cfg.cell) ** 2

    def fill(self, path: Path) -> None:
        """Take the weights of SFCN from their published file. UserError where they are not in it."""
        if self.network is not None:
            self.network.load_state_dict(folded(read_sfcn(path)).state_dict())

    @torch.no_grad()
    def forward(self, pixels: Tensor) -> Cells:
        """pixels [N, 3, S, S] uint8 in 0..255 or float in 0..1, S the size"""
        if pixels.shape[-2:] != (self.size, self.size):
            raise ValueError(f"pictures of {tuple(pixels.shape[-2:])} pixels, not of {self.size}")
        cfg = self.cfg
        if self.network is not None:
            return self._by_network(self.network, pixels)
        if cfg.kind == "seeds":
            return seeds(pixels, cfg.cell, cfg.steps)
        if cfg.kind == "grid":
            return square_grid(pixels, cfg.cell)
        return kmeans(pixels, cfg.cell, cfg.compactness, cfg.steps)

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
