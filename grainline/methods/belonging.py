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
    """Keys of everyone's texts [M]. A foil is in no pair, nor is padding by itself.

    Padding has a group where any image of that group has a text in the same slot, as in a batch whose images
    all have as many slots as the longest. With `padding` it is a candidate there, which asks for nothing.
    """
    images, texts = everyone
    place, row = owner_of(texts.image, images.image), torch.arange(len(texts.item), device=texts.item.device)
    with_picture, empty = place >= 0, texts.item < 0
    item = texts.item.masked_fill(~with_picture, -1)
    if padding:
        item = torch.where(empty, texts.item.max() + 1 + row, item)
    of = _group(torch.where(with_picture, place, standing(texts.image, images.image)), group)
    slot = slots_of(texts.image, images.image)
    used = with_picture.new_zeros(max(1, len(images.image)), _slots(texts.image, images.image))
    used[of[with_picture], slot[with_picture]] = True
    return Keys(
        item,
        texts.image.masked_fill(~with_picture, -1),
        of.masked_fill(~(with_picture | (empty & used[of, slot])), -1),
        row,
    )


def _group(place: Tensor, size: int | None) -> Tensor:
    return torch.zeros_like(place) if size is None else place // size


def owner_of(image: Tensor, pictures: Tensor) -> Tensor:
    """Where the picture of each text [M] stands among some [N], by their ids: [M], -1 where it does not.

    A batch that lies across two epochs may hold a picture twice, cut out in two ways. A text belongs to the
    one among whose rows it stands, so that it does on any number of processes.

    >>> owner_of(torch.tensor([7, -1, 7, 7, 3, 5]), torch.tensor([7, 7, 3])).tolist()
    [0, -1, 1, 1, 2, -1]
    """
    ordered, order = pictures.sort(stable=True)
    found = torch.searchsorted(ordered, image).clamp(max=len(pictures) - 1)
    by_id = torch.where(ordered[found] == image, order[found], -1)
    beside = standing(image, pictures)
    return torch.where(pictures[beside] == image, beside, by_id)


def standing(texts: Tensor, pictures: Tensor) -> Tensor:
    """Among the rows of which picture each text stands: all pictures have equally many, padding included."""
    row = torch.arange(len(texts), device=texts.device)
    return (row // _slots(texts, pictures)).clamp(max=len(pictures) - 1)


def slots_of(texts: Tensor, pictures: Tensor) -> Tensor:
    """Which slot of its image each text has, padding included: [M]

    >>> slots_of(torch.tensor([7, -1, 7, 3, 3, -1]), torch.tensor([7, 3])).tolist()
    [0, 1, 2, 0, 1, 2]
    """
    return torch.arange(len(texts), device=texts.device) % _slots(texts, pictures)


def _slots(texts: Tensor, pictures: Tensor) -> int:
    return max(1, len(texts) // max(1, len(pictures)))


def rank_of(key: Tensor) -> Tensor:
    """How many rows with the same key stand before each row: [m].

    >>> rank_of(torch.tensor([7, 3, 7, 7, 3])).tolist()
    [0, 0, 1, 2, 1]
    """
    ordered, order = key.sort(stable=True)
    first = torch.searchsorted(ordered, ordered)
    return torch.empty_like(key).index_copy(0, order, torch.arange(len(key), device=key.device) - first)
