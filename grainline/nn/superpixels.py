"""Superpixels: each pixel belongs to the cell it lies in or to one of the eight cells around it.

An image of S x S pixels has G x G square cells, G = S / cell, one for each superpixel. The nine neighbours of
a pixel are numbered row by row, from 0, above and to the left, over 4, its own, to 8. So a map of superpixels
is nine numbers for each pixel.

    C   channels of a feature map      h, w   its height and width
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from grainline import kernels
from grainline.types import full

OWN = 4  # the neighbour that is the pixel's own cell


class CellPool(NamedTuple):
    """Means over superpixels."""

    tokens: Tensor  # [N, G*G, C] zeros where the mass is 0
    mass: Tensor  # [N, G*G] in pixels; 0: an empty superpixel


def neighbour_of(label: Tensor, cell: int) -> Tensor:
    """The neighbour of each label: [N, S, S] int64 in 0..G*G-1, one cell away at most -> [N, S, S] in 0..8"""
    home, grid = torch.arange(label.shape[-1], device=label.device) // cell, label.shape[-1] // cell
    down, across = label // grid - home[:, None], label % grid - home
    return 3 * (down + 1) + across + 1


def label_of(neighbour: Tensor, cell: int) -> Tensor:
    """The labels of neighbours, the inverse of `neighbour_of`: [N, S, S] int64 -> [N, S, S] int64"""
    size, device = neighbour.shape[-1], neighbour.device
    grid = size // cell
    home, step = torch.arange(size, device=device) // cell, torch.arange(-1, 2, device=device)
    return grid * home[:, None] + home + (grid * step[:, None] + step).flatten()[neighbour]


def inside(size: int, cell: int, device: torch.device | None = None) -> Tensor:
    """The neighbours of each pixel that lie inside the image: [9, S, S] bool"""
    near = torch.arange(size, device=device) // cell + torch.arange(-1, 2, device=device)[:, None]
    real = (near >= 0) & (near < size // cell)  # [3, S]
    return (real[:, None, :, None] & real[None, :, None, :]).flatten(0, 1)


def square_grid(pixels: Tensor, cell: int) -> Tensor:
    """Every pixel belongs to its own cell: [N, 3, S, S] -> labels [N, S, S] int64"""
    number, _, size, _ = pixels.shape
    label = label_of(torch.full((1, size, size), OWN, device=pixels.device), cell)
    return label.expand(number, -1, -1)


def pool_cells(features: Tensor, label: Tensor, cell: int) -> CellPool:
    """Means of features over superpixels. The sums are in float32 at least.

    features  [N, C, h, w]; every value stands for a square of S/h pixels, and S/h divides the cell
    label     [N, S, S] int64

    for each pixel p: total[label[p]] += features[p], mass[label[p]] += 1
    tokens = total / mass

    By a matrix of all superpixels and all values of an image, how many pixels they share. Most of it is
    zeros; all the same at 224 pixels its product is faster than sums over neighbours.
    """
    size, wide = label.shape[-1], features.shape[-1]
    stride, number = size // wide, (size // cell) ** 2
    if wide * stride != size or cell % stride or size % cell:
        raise ValueError(f"features of side {wide} do not fit cells of {cell} in {size} pixels")
    with torch.autocast(features.device.type, enabled=False):
        values = full(features).flatten(2).mT  # [N, h*w, C]
        place = torch.arange(size, device=label.device) // stride
        index = (label * wide**2 + wide * place[:, None] + place).flatten(1)
        matrix = values.new_zeros(index.shape[0], number * wide**2)  # len would fix it in an exported graph
        matrix = matrix.scatter_add(1, index, torch.ones_like(index, dtype=values.dtype))
        matrix = matrix.unflatten(1, (number, wide**2))
        mass = matrix.sum(2)
        tokens = (matrix @ values) / torch.where(mass > 0, mass, 1.0)[..., None]
    return CellPool(tokens, mass)


def hard(association: Tensor, cell: int) -> Tensor:
    """The most associated neighbour as a label, the lower number of equal ones: [N, 9, S, S] -> [N, S, S]"""
    return label_of((9 - first_rank(association.clone())).long()[:, 0], cell)


def first_rank(x: Tensor) -> Tensor:
    """9 less the number of the first of the largest along dimension 1: [N, 9, ...] -> [N, 1, ...]

    x is overwritten by 9 less the number at each of the largest, 0 elsewhere. A few passes in place are many
    times as fast on a CPU as argmax along a dimension of nine.
    """
    rank = torch.arange(9, 0, -1, device=x.device, dtype=x.dtype).view(9, *[1] * (x.dim() - 2))
    return x.eq_(x.amax(1, keepdim=True)).mul_(rank).amax(1, keepdim=True)


def shifted(parts: Tensor) -> Tensor:
    """Sums of what each cell gives to the nine around it: [9, N, G, G, C] -> [N, G, G, C]"""
    out = F.pad(torch.zeros_like(parts[OWN]), (0, 0, 1, 1, 1, 1))  # a rim for what falls outside
    for neighbour, part in enumerate(parts):  # by padding: writing into slices makes a graph 20 times as long
        top, left = divmod(neighbour, 3)
        out = out + F.pad(part, (0, 0, left, 2 - left, top, 2 - top))
    return out[:, 1:-1, 1:-1]


def around(x: Tensor) -> Tensor:
    """The values of the nine cells around each cell, 0 outside: [N, G, G, C] -> [N, G, G, 9, C]"""
    grid = x.shape[1]
    wide = F.pad(x, (0, 0, 1, 1, 1, 1))
    parts = [wide[:, top : top + grid, left : left + grid] for top in range(3) for left in range(3)]
    return torch.stack(parts, 3)


_TO_XYZ = (  # linear sRGB to XYZ over the white of D65 (IEC 61966-2-1), so that white is 1, 1, 1
    (0.4124564 / 0.95047, 0.3575761 / 0.95047, 0.1804375 / 0.95047),
    (0.2126729, 0.7151522, 0.0721750),
    (0.0193339 / 1.08883, 0.1191920 / 1.08883, 0.9503041 / 1.08883),
)
_TO_LAB = ((0.0, 116.0, 0.0), (500.0, -500.0, 0.0), (0.0, 200.0, -200.0))
_FAR = -1e30  # the fit of a centre outside the image
CHUNK = 64  # images at a time: some 300 MB at 224 pixels
WIDEST = 256  # pixels along a cell that a kernel takes: it has a lane for each column


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
        out = _mixed(_TO_LAB, f)
        out[:, 0] -= 16
    return out


@torch.no_grad()
def kmeans(pixels: Tensor, cell: int, compactness: float = 10.0, steps: int = 10) -> Tensor:
    """Local k-means, SLIC (Achanta et al., TPAMI 34(11), 2012): [N, 3, S, S] uint8 or float in 0..1 -> labels
    [N, S, S] int64

    compactness  what a distance of one cell weighs, in units of Lab; 10 to 20 is usual
    steps        how often the pixels choose; between two choices the centres move to the mean of their pixels

    A pixel is [L, a, b, s*y, s*x] with s = compactness / cell, relative to the middle of its cell, so that
    float32 is enough; distances are squared. It chooses among the nine centres around it, the lower number of
    equal ones; at last pieces are joined (`connected`). Centres begin at the mean colour and the middle of
    their cell; without pixels they stay.
    """
    how = pixels, cell, compactness, steps
    size = pixels.shape[-1]
    fits = pixels.shape[2] == size and size % cell == 0 and cell <= WIDEST and steps > 0 and len(pixels)
    with torch.autocast(pixels.device.type, enabled=False):
        if kernels.use(pixels) and fits:
            return kernels.run("kmeans", lambda: _by_kernel(*how), lambda: _by_products(*how))
        return _by_products(*how)


def _by_kernel(pixels: Tensor, cell: int, compactness: float, steps: int) -> Tensor:
    from grainline.kernels.kmeans import assign

    colour = torch.cat([lab(part) for part in pixels.split(CHUNK)])
    middle = _cells(colour, cell).mean((4, 5))
    offset = _offset(middle, compactness)
    moved = torch.zeros_like(offset[..., 0, :])
    for _ in range(steps - 1):
        moved = _moved(assign(colour, middle, moved, cell, compactness, last=False), offset, moved)
    return assign(colour, middle, moved, cell, compactness, last=True)


def _by_products(pixels: Tensor, cell: int, compactness: float, steps: int) -> Tensor:
    fits = (_fit(part, cell, compactness, steps) for part in pixels.split(CHUNK))
    return torch.cat([connected(hard(fit, cell), fit, cell) for fit in fits])


def _fit(pixels: Tensor, cell: int, compactness: float, steps: int) -> Tensor:
    """How near the nine centres are to the pixels of a few images, the largest the nearest: [N, 9, S, S]"""
    grid = pixels.shape[-1] // cell
    values, middle = _features(_cells(lab(pixels), cell), compactness)
    offset = _offset(middle, compactness)
    exists = inside(grid, 1, pixels.device).permute(1, 2, 0)[..., None]  # [G, G, 9, 1]
    moved = torch.zeros_like(offset[..., 0, :])  # [N, G, G, 5] of the centres, since they began
    fit = values
    for step in range(steps):
        if step:
            total = (fit.eq_(first_rank(fit)) @ values.mT).view(*offset.shape[:-1], 6)
            moved = _moved(total, offset, moved)
        centre = around(moved) + offset
        # |x - u|^2 = |x|^2 - 2 (x u - |u|^2 / 2), and |x|^2 is the same for all nine
        shift = torch.where(exists, centre.square().sum(-1, keepdim=True) / -2, _FAR)
        fit = torch.cat([centre, shift], -1).flatten(0, 2) @ values  # [N*G*G, 9, c*c]
    fit = fit.view(len(pixels), grid, grid, 9, cell, cell)
    return fit.permute(0, 3, 1, 4, 2, 5).reshape(len(pixels), 9, *pixels.shape[2:])


@torch.library.custom_op("grainline::connected", mutates_args=())
def connected(label: Tensor, fit: Tensor, cell: int) -> Tensor:
    """The labels with each superpixel in one piece: [N, S, S] int64 -> [N, S, S] int64

    fit  [N, 9, S, S] of each pixel with its nine neighbours, the largest the best

    Pixels of a piece touch by a side. The largest piece of each superpixel stays, of equal ones the one that
    begins first, row by row. Then other pixels join, ring by ring, as long as any do: those that touch, by a
    side, a superpixel among their nine neighbours; of several the one that fits best, of equal ones the lower
    number. Pixels that no such superpixel reaches keep their label. The host waits for the device.
    """
    size, grid = label.shape[-1], label.shape[-1] // cell
    out = F.pad(label.masked_fill(~_largest(label, grid**2), -1), (1, 1, 1, 1), value=-1)  # a rim of no label
    image, y, x = (out[:, 1:-1, 1:-1] < 0).nonzero().unbind(1)
    row, column, pixel = y // cell - 1, x // cell - 1, image * 9 * size**2 + y * size + x
    home, out = (image * (size + 2) + y + 1) * (size + 2) + x + 1, out.flatten()
    steps = torch.tensor([[-size - 2], [-1], [1], [size + 2]], device=label.device)
    left, fit = torch.arange(len(home), device=label.device), fit.flatten()
    while len(left):
        near = out[home[left] + steps]  # [4, left]
        down, across = near // grid - row[left], near % grid - column[left]
        real = (near >= 0) & (down >= 0) & (down < 3) & (across >= 0) & (across < 3)
        neighbour = torch.where(real, 3 * down + across, 0)
        value = fit[pixel[left] + neighbour * size**2].masked_fill(~real, -torch.inf)
        near = torch.where(real & (value == value.amax(0)), near, grid**2).amin(0)
        joins = near < grid**2
        if not joins.any():
            break
        out[home[left[joins]]] = near[joins]
        left = left[~joins]
    out = out.view(len(label), size + 2, size + 2)[:, 1:-1, 1:-1]
    return torch.where(out < 0, label, out)


connected.register_fake(lambda label, *_: torch.empty_like(label))


def _largest(label: Tensor, number: int) -> Tensor:
    """True for pixels in the largest piece of their superpixel: [N, S, S] -> [N, S, S] bool

    Runs of a row are joined with those below that they touch. A piece is known by its first run.
    """
    begins = torch.ones_like(label, dtype=torch.bool)
    begins[..., 1:] = label[..., 1:] != label[..., :-1]
    run = (begins.flatten().cumsum(0) - 1).view_as(label)
    touch = (label[:, 1:] == label[:, :-1]) & (begins[:, 1:] | begins[:, :-1])
    edges = torch.stack([run[:, :-1][touch], run[:, 1:][touch]])
    image, y, x = begins.nonzero().unbind(1)
    first = torch.arange(len(image), device=label.device)
    while edges.numel():
        first.scatter_reduce_(0, edges.amax(0), edges.amin(0), "amin")
        while not torch.equal(first, further := first[first]):
            first = further
        edges = first[edges]
        edges = edges[:, edges[0] != edges[1]]
    runs = torch.arange(len(image), device=label.device)
    pixels = torch.zeros_like(runs).scatter_add_(0, first, torch.bincount(run.flatten()))
    rank, owner = pixels * len(runs) - runs, image * number + label[image, y, x]
    best = runs.new_zeros(len(label) * number).scatter_reduce_(0, owner, rank, "amax")
    return (rank[first] == best[owner])[run]


def _cells(colour: Tensor, cell: int) -> Tensor:
    """Pixels [N, 3, S, S] by cells: [N, G, G, 3, c, c], a view"""
    grid = colour.shape[-1] // cell
    return colour.unflatten(2, (grid, cell)).unflatten(4, (grid, cell)).permute(0, 2, 4, 1, 3, 5)


def _features(blocks: Tensor, compactness: float) -> tuple[Tensor, Tensor]:
    """Pixels [N, G, G, 3, c, c] relative to the middle of their cell: [N*G*G, 6, c*c], the last of the six a
    1; and the middles: [N, G, G, 3]"""
    cell, middle = blocks.shape[-1], blocks.mean((4, 5))
    place = (torch.arange(cell, device=blocks.device) - (cell - 1) / 2) * (compactness / cell)
    values = torch.ones(*blocks.shape[:3], 6, cell, cell, device=blocks.device)
    values[..., :3, :, :] = blocks - middle[..., None, None]
    values[..., 3, :, :] = place[:, None]
    values[..., 4, :, :] = place
    return values.flatten(4).flatten(0, 2), middle


def _offset(middle: Tensor, compactness: float) -> Tensor:
    """The middles of the nine cells around each cell, less its own: [N, G, G, 3] -> [N, G, G, 9, 5]"""
    away = torch.arange(9, device=middle.device)
    steps = torch.stack([away // 3 - 1, away % 3 - 1], -1) * compactness  # [9, 2]
    offset = around(middle) - middle[..., None, :]
    return torch.cat([offset, steps.expand(*offset.shape[:-1], 2)], -1)


def _moved(total: Tensor, offset: Tensor, moved: Tensor) -> Tensor:
    """The centres at the mean of their pixels, without pixels where they were: [N, G, G, 5]

    total  [N, G, G, 9, 6] sums and numbers of pixels, by cell and chosen neighbour
    """
    own = total[..., :5] - total[..., 5:] * offset
    total = shifted(torch.cat([own, total[..., 5:]], -1).permute(3, 0, 1, 2, 4))
    return torch.where(total[..., 5:] > 0, total[..., :5] / total[..., 5:].clamp(min=1), moved)


def _mixed(table: tuple[tuple[float, float, float], ...], x: Tensor) -> Tensor:
    """x [N, 3, ...] with its channels mixed by a table of three rows"""
    first, second, third = x.unbind(1)
    return torch.stack([a * first + b * second + c * third for a, b, c in table], 1)
