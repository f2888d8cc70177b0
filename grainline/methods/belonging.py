"""Which texts belong to which pictures, and which pictures are compared: by ids, as tensors."""

import torch
from torch import Tensor

from grainline.losses.blocks import Keys
from grainline.types import Encoded, Pair


def picture_keys(images: Encoded, group: int | None) -> Keys:
    """Keys of everyone's pictures [N]: the first `group` of them are a group, the next ones, ..."""
    place = torch.arange(len(images.image), device=images.image.device)
    return Keys(images.item, images.image, _group(place, group), torch.zeros_like(place))


def text_keys(everyone: Pair, group: int | None, padding: bool = False) -> Keys:
    """Keys of everyone's texts [M]. A foil is in no pair; padding has a group, and with `padding` it is a
    candidate of that group, which asks for nothing itself.
    """
    images, texts = everyone
    place, row = place_of(texts.image, images.image), torch.arange(len(texts.item), device=texts.item.device)
    with_picture, empty = place >= 0, texts.item < 0
    item = texts.item.masked_fill(~with_picture, -1)
    if padding:
        item = torch.where(empty, texts.item.max() + 1 + row, item)
    of = torch.where(with_picture, place, slot_of(images, texts))
    return Keys(
        item,
        texts.image.masked_fill(~with_picture, -1),
        _group(of, group).masked_fill(~(with_picture | empty), -1),
        row,
    )


def slot_of(images: Encoded, texts: Encoded) -> Tensor:
    """The picture in whose slots each text stands: [M]; all pictures have equally many, padding included."""
    row = torch.arange(len(texts.item), device=texts.item.device)
    slots = max(1, len(row) // max(1, len(images.image)))
    return (row // slots).clamp(max=max(0, len(images.image) - 1))


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
