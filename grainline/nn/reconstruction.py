"""How well superpixels say again what they are made of: a loss for SFCN where nobody has drawn borders."""

import torch
from torch import Tensor

from grainline.nn.superpixel import around, pool_cells


def reconstruction(association: Tensor, colour: Tensor, cell: int, compactness: float = 10.0) -> Tensor:
    """The mean over the pixels of each picture of how far they are from what their superpixels say: [N]

    association  [N, 9, S, S] as in `Cells`, soft; the gradient flows into it
    colour       [N, 3, S, S] in Lab
    compactness  what a distance of one cell weighs, in units of Lab

    With x_p the place of pixel p in pixels, f_p its colour and A_ps its association with superpixel s:
        u_s = sum_p A_ps f_p / sum_p A_ps,  c_s = sum_p A_ps x_p / sum_p A_ps
        loss = mean_p |sum_s A_ps u_s - f_p| + compactness / cell * mean_p |sum_s A_ps c_s - x_p|

    SFCN (arXiv 2003.12929) was trained with the labels of regions that people drew in place of the colour.
    """
    size = colour.shape[-1]
    grid = size // cell
    with torch.autocast(colour.device.type, enabled=False):
        at = torch.arange(size, device=colour.device, dtype=colour.dtype)
        place = torch.stack(torch.meshgrid(at, at, indexing="ij")).expand(len(colour), -1, -1, -1)
        values = torch.cat([colour, place], 1)  # [N, 5, S, S]
        centre = pool_cells(values, association, cell).tokens.unflatten(1, (grid, grid))
        weight = association.to(values.dtype).unflatten(2, (grid, cell)).unflatten(4, (grid, cell))
        said = torch.einsum("narbsc,nrsav->nvrbsc", weight, around(centre)).reshape(values.shape)
        off = said - values
        return (
            torch.linalg.vector_norm(off[:, :3], dim=1)
            + compactness / cell * torch.linalg.vector_norm(off[:, 3:], dim=1)
        ).mean((1, 2))
