"""Superpixels without weights: local k-means over colour and place, for a whole batch at once.

SLIC (Achanta et al., IEEE TPAMI 34(11), 2012) under the contract of `nn.superpixel`: a pixel chooses among
the centres of its own cell and of those around it, so none is far from its superpixel, and none left over.

A pixel is [L, a, b, s*y, s*x] with s = compactness / cell: colour in CIELAB, place in pixels. Distances are
squared. Everything is kept relative to where the centre of the pixel's cell began, so that the products below
are differences of small numbers, and float32 is enough.
"""

import torch
from torch import Tensor

from grainline.nn.superpixel import Cells, around, first_rank, hard, inside, shifted

Row = tuple[float, float, float]

_TO_XYZ: tuple[
    Row, Row, Row
] = (  # linear sRGB to XYZ over the white of D65 (IEC 61966-2-1), so that white is 1, 1, 1
    (0.4124564 / 0.95047, 0.3575761 / 0.95047, 0.1804375 / 0.95047),
    (0.2126729, 0.7151522, 0.0721750),
    (0.0193339 / 1.08883, 0.1191920 / 1.08883, 0.9503041 / 1.08883),
)
_TO_LAB: tuple[Row, Row, Row] = ((0.0, 116.0, 0.0), (500.0, -500.0, 0.0), (0.0, 200.0, -200.0))
_FAR = -1e30  # the fit of a centre outside the picture
CHUNK = 64  # pictures at a time: some 300 MB at 224 pixels


def lab(pixels: Tensor) -> Tensor:
    """CIELAB of sRGB under D65: [N, 3, ...] uint8 or float in 0..1 -> [N, 3, ...] float32

    Each of linear R, G, B:  c / 12.92 up to 0.04045, else ((c + 0.055) / 1.055)^2.4
    Each of X, Y, Z over white, f:  t^(1/3) above (6/29)^3, else t / (3 (6/29)^2) + 4/29
    L = 116 f(Y) - 16, a = 500 (f(X) - f(Y)), b = 200 (f(Y) - f(Z))
    """
    with torch.autocast(pixels.device.type, enabled=False):
        c = pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels.float()
        linear = torch.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
        t = _mixed(_TO_XYZ, linear)
        f = torch.where(t > (6 / 29) ** 3, t.clamp(min=0) ** (1 / 3), t * (29 / 6) ** 2 / 3 + 4 / 29)
        found = _mixed(_TO_LAB, f)
        found[:, 0] -= 16
    return found


@torch.no_grad()
def kmeans(pixels: Tensor, cell: int, compactness: float = 10.0, steps: int = 10) -> Cells:
    """Local k-means: [N, 3, S, S] uint8 or float in 0..1 -> Cells of zeros and ones

    compactness  what a distance of one cell weighs, in units of Lab; 10 to 20 is usual
    steps        how often the pixels choose; between two choices the centres move to the mean of their pixels

    Centres begin at the mean colour and the middle of their cell. A centre that no pixel chooses stays where
    it was. Equal distances go to the neighbour with the lower number.
    """
    with torch.autocast(pixels.device.type, enabled=False):
        parts = [_associated(part, cell, compactness, steps) for part in pixels.split(CHUNK)]
    association = torch.cat(parts) if len(parts) > 1 else parts[0]
    return Cells(association, hard(association, cell))


def _associated(pixels: Tensor, cell: int, compactness: float, steps: int) -> Tensor:
    """The association of a few pictures: [N, 9, S, S] of zeros and ones"""
    grid = pixels.shape[-1] // cell
    values, apart = _features(lab(pixels), cell, compactness)
    there = inside(grid, 1, pixels.device).permute(1, 2, 0)[..., None]  # [G, G, 9, 1]
    moved = torch.zeros_like(apart[..., 0, :])  # [N, G, G, 5] of the centres, since they began
    chosen = values
    for step in range(steps):
        if step:
            total = (chosen @ values.mT).view(*apart.shape[:-1], 6)
            total = _sums(total, apart)
            moved = torch.where(total[..., 5:] > 0, total[..., :5] / total[..., 5:].clamp(min=1), moved)
        centre = around(moved) + apart
        # |x - u|^2 = |x|^2 - 2 (x u - |u|^2 / 2), and |x|^2 is the same for all nine
        offset = torch.where(there, centre.square().sum(-1, keepdim=True) / -2, _FAR)
        fit = torch.cat([centre, offset], -1).flatten(0, 2) @ values  # [N*G*G, 9, c*c]
        chosen = fit.eq_(first_rank(fit))  # 1 at the first of the largest, else 0
    chosen = chosen.view(len(pixels), grid, grid, 9, cell, cell)
    return chosen.permute(0, 3, 1, 4, 2, 5).reshape(len(pixels), 9, *pixels.shape[2:])


def _features(colour: Tensor, cell: int, compactness: float) -> tuple[Tensor, Tensor]:
    """Pixels relative to where the centre of their cell began, and where those around it began.

    colour [N, 3, S, S] in Lab -> [N*G*G, 6, c*c], the last of the six a 1, and [N, G, G, 9, 5]
    """
    number, grid = len(colour), colour.shape[-1] // cell
    blocks = colour.unflatten(2, (grid, cell)).unflatten(4, (grid, cell)).permute(0, 2, 4, 1, 3, 5)
    begun = blocks.mean((4, 5))  # [N, G, G, 3]
    scale = compactness / cell
    place = (torch.arange(cell, device=colour.device) - (cell - 1) / 2) * scale
    values = torch.ones(number, grid, grid, 6, cell, cell, device=colour.device)
    values[..., :3, :, :] = blocks - begun[..., None, None]
    values[..., 3, :, :] = place[:, None]
    values[..., 4, :, :] = place
    away = torch.arange(9, device=colour.device)
    steps = torch.stack([away // 3 - 1, away % 3 - 1], -1) * compactness  # [9, 2]
    apart = around(begun) - begun[..., None, :]
    return values.flatten(4).flatten(0, 2), torch.cat([apart, steps.expand(*apart.shape[:-1], 2)], -1)


def _sums(total: Tensor, apart: Tensor) -> Tensor:
    """Sums and numbers of pixels, by cell and neighbour, to those of each centre, relative to where it began:
    [N, G, G, 9, 6] -> [N, G, G, 6]
    """
    own = total[..., :5] - total[..., 5:] * apart
    return shifted(torch.cat([own, total[..., 5:]], -1).permute(3, 0, 1, 2, 4))


def _mixed(table: tuple[Row, Row, Row], x: Tensor) -> Tensor:
    """x [N, 3, ...] with its channels mixed by a table of three rows."""
    first, second, third = x.unbind(1)
    return torch.stack([a * first + b * second + c * third for a, b, c in table], 1)
