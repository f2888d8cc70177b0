"""Ids of the rows of a batch: which texts belong to which images, and which rows are compared.

Everything is a function of ids, so that it does not depend on the number of processes.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from grainline.losses.tiled.pair_mask import RowIds
from grainline.types import CAPTION, FOIL, LOOSE, PHRASE, SENTENCE, Encoded, Pair, rows


class PoolingTexts(NamedTuple):
    """Texts of a batch that pool images other than their own."""

    row: Tensor  # [C] among all texts
    ids: RowIds  # [C] with the image that each belongs to, of empty slots too


def image_ids(images: Encoded, group: int | None) -> RowIds:
    """Ids of all images [N]: each `group` images in turn are a group; None: all of them are one."""
    place = torch.arange(len(images.image), device=images.image.device)
    return RowIds(images.item, images.image, _group(place, group), torch.zeros_like(place))


def text_ids(gathered: Pair, group: int | None, padding: bool = False) -> RowIds:
    """Ids of all texts [M]. Foils are in no pair, and neither is padding, unless `padding` says so.

    Padding belongs to a group where any image of that group has a text in the same slot, as in a batch whose
    images all have as many slots as the longest. With `padding` it is a candidate there and no query.
    """
    images, texts = gathered
    place, row = owner_of(texts.image, images.image), torch.arange(len(texts.item), device=texts.item.device)
    with_image, empty = place >= 0, texts.item < 0
    item = texts.item.masked_fill(~with_image, -1)
    if padding:
        item = torch.where(empty, texts.item.max() + 1 + row, item)
    of = _group(torch.where(with_image, place, row_by_position(texts.image, images.image)), group)
    slot = slots_of(texts.image, images.image)
    used = with_image.new_zeros(max(1, len(images.image)), _slots(texts.image, images.image))
    used[of[with_image], slot[with_image]] = True
    return RowIds(
        item,
        texts.image.masked_fill(~with_image, -1),
        of.masked_fill(~(with_image | (empty & used[of, slot])), -1),
        row,
    )


def _group(place: Tensor, size: int | None) -> Tensor:
    return torch.zeros_like(place) if size is None else place // size


def owner_of(image: Tensor, images: Tensor) -> Tensor:
    """The row of the image of each text [M] among images [N], by their ids: [M], -1 where there is none.

    A batch across two epochs may hold an image twice, cropped differently. A text belongs to the one whose
    slots it has, on any number of processes.

    >>> owner_of(torch.tensor([7, -1, 7, 7, 3, 5]), torch.tensor([7, 7, 3])).tolist()
    [0, -1, 1, 1, 2, -1]
    """
    ordered, order = images.sort(stable=True)
    place = torch.searchsorted(ordered, image).clamp(max=len(images) - 1)
    by_id = torch.where(ordered[place] == image, order[place], -1)
    by_position = row_by_position(image, images)
    return torch.where(images[by_position] == image, by_position, by_id)


def row_by_position(texts: Tensor, images: Tensor) -> Tensor:
    """The row of the image in whose slots each text is. All images have equally many slots."""
    row = torch.arange(len(texts), device=texts.device)
    return (row // _slots(texts, images)).clamp(max=len(images) - 1)


def slots_of(texts: Tensor, images: Tensor) -> Tensor:
    """The slot of each text among those of its image, padding included: [M]

    >>> slots_of(torch.tensor([7, -1, 7, 3, 3, -1]), torch.tensor([7, 3])).tolist()
    [0, 1, 2, 0, 1, 2]
    """
    return torch.arange(len(texts), device=texts.device) % _slots(texts, images)


def _slots(texts: Tensor, images: Tensor) -> int:
    return max(1, len(texts) // max(1, len(images)))


def rank_of(key: Tensor) -> Tensor:
    """The number of rows with the same key before each row: [m]

    >>> rank_of(torch.tensor([7, 3, 7, 7, 3])).tolist()
    [0, 0, 1, 2, 1]
    """
    ordered, order = key.sort(stable=True)
    first = torch.searchsorted(ordered, ordered)
    return torch.empty_like(key).index_copy(0, order, torch.arange(len(key), device=key.device) - first)


def first_texts(
    gathered: Pair, group: int | None, padding: bool, sentences: int, phrases: int
) -> PoolingTexts:
    """The caption of each image, and the first so many of its sentences and phrases.

    group, padding  as in `text_ids`
    """
    images, texts = gathered
    ids = text_ids(gathered, group, padding)
    levels = 1 + max(CAPTION, SENTENCE, PHRASE, FOIL, LOOSE)
    limit = torch.zeros(levels, dtype=torch.int64, device=texts.item.device)
    limit[CAPTION], limit[SENTENCE], limit[PHRASE] = 1, sentences, phrases
    place, level = owner_of(texts.image, images.image), texts.extra.level
    if padding:  # an empty slot has the level of the texts in that slot of other images
        slot, empty = slots_of(texts.image, images.image), texts.item < 0
        of_slot = torch.zeros_like(level).scatter_reduce(0, slot, level.masked_fill(place < 0, 0), "amax")
        level = torch.where(empty, of_slot[slot], level)
        place = torch.where(empty, row_by_position(texts.image, images.image), place)
    counts = ids.real() & (place >= 0)
    order = rank_of(torch.where(counts, place * levels + level, -1))
    row = (counts & (order < limit[level])).nonzero()[:, 0]
    return PoolingTexts(row, rows(ids, row)._replace(image=images.image[place[row]]))


def whole_captions(texts: Encoded) -> Encoded:
    """The rows that are captions or foils. texts: with `level` in their extra"""
    level = texts.extra.level
    whole = ((level == CAPTION) | (level == FOIL)) & (texts.item >= 0)
    return rows(texts._replace(extra=None), whole.nonzero()[:, 0])
