"""Noise for pairs, from a hash of ids: it knows neither the order of a batch nor the number of processes.

The same pair gets the same noise however often it is computed, which is what recomputation needs.
"""

import torch
from torch import Tensor

from grainline.lots import GOLDEN, lots, mixed, share_of
from grainline.types import Clock


def logistic(clock: Clock, image: Tensor, item: Tensor, number: int) -> Tensor:
    """Numbers as if drawn from the logistic distribution: [n, t, number] float32

    image  [n] ids of pictures; item [1, t] or [n, t] ids of texts, or -1 for noise of the picture alone

    They depend on seed, step, both ids and the place alone.
    """
    place = torch.arange(number, device=image.device)
    of_image = lots(clock, image, image.new_zeros(1))  # [n, 1]
    key = mixed(of_image ^ mixed(item + GOLDEN))
    share = share_of(mixed(key[..., None] ^ mixed(place + GOLDEN)))
    return share.log() - (-share).log1p()
