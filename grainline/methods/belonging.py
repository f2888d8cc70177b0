"""Which texts belong to which pictures, and which pictures are compared: by ids, as tensors."""

import torch
from torch import Tensor

from grainline.losses.blocks import Keys
from grainline.types import Encoded, Pair


def picture_keys(images: Encoded, group: int | None) -> Keys:
    """Keys of everyone's pictures [N]: the first `group` of them are a group, the next ones, ..."""
    place = torch.arange(len(images.image), device=images.image.device)
    return Keys(images.item, images.image, _group(place, group), torch.zeros_like(place))


def text_keys(everyone: Pair, group: int | None) -> Keys:
    """Keys of everyone's texts [M]. A foil is in no pair. Padding is in none either, but it has a group.

    What stands in a slot is known by its place: all pictures have equally many rows, padding included.
    """
    images, texts = everyone
    place, row = place_of(texts.image, images.image), torch.arange(len(texts.item), device=texts.item.device)
    slots = max(1, len(row) // max(1, len(images.image)))
    with_picture, padding = place >= 0, texts.item < 0
    of = torch.where(with_picture, place, (row // slots).clamp(max=len(images.image) - 1))
    return Keys(
        texts.item.masked_fill(~with_picture, -1),
        texts.image.masked_fill(~with_picture, -1),
        _group(of, group).masked_fill(~(with_picture | padding), -1),
        row,
    )


def _group(place: Tensor, size: int | None) -> Tensor:
    return torch.zeros_like(place) if size is None else place // size


def place_of(image: Tensor, among: Tensor) -> Tensor:
    """Where each id [m] stands among others [N], each of which is there once: [m], -1 where it does not."""
    ordered, order = among.sort()
    found = torch.searchsorted(ordered, image).clamp(max=len(among) - 1)
    return torch.where(ordered[found] == image, order[found], -1)


def rank_of(key: Tensor) -> Tensor:
    """How many rows with the same key stand before each row: [m].

    >>> rank_of(torch.tensor([7, 3, 7, 7, 3])).tolist()
    [0, 0, 1, 2, 1]
    """
    ordered, order = key.sort(stable=True)
    first = torch.searchsorted(ordered, ordered)
    return torch.empty_like(key).index_copy(0, order, torch.arange(len(key), device=key.device) - first)
