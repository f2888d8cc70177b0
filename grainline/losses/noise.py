"""Noise for pairs, from a hash of ids: it knows neither the order of a batch nor the number of processes.

The same pair gets the same noise however often it is computed, which is what recomputation needs.
"""

import torch
from torch import Tensor

from grainline.losses.lists import GOLDEN, lots, mixed
from grainline.types import Clock

BITS = 23  # half a step below 1 is then still a number of float32


def logistic(clock: Clock, image: Tensor, item: Tensor, number: int) -> Tensor:
    """Numbers as if drawn from the logistic distribution: [n, t, number] float32

    image  [n] ids of pictures; item [1, t] or [n, t] ids of texts, or -1 for noise of the picture alone

    They depend on seed, step, both ids and the place alone.
    """
    place = torch.arange(number, device=image.device)
    of_image = lots(clock, image, image.new_zeros(1))  # [n, 1]
    key = mixed(of_image ^ mixed(item + GOLDEN))
    lot = mixed(key[..., None] ^ mixed(place + GOLDEN)) & (2**BITS - 1)
    share = (lot.float() + 0.5) / 2**BITS
    return share.log() - (-share).log1p()
