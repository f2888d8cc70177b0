"""Samples of unequal texts side by side in one batch."""

import torch

from grainline.data.batches import collate
from grainline.data.dataset import Draw, Sample, Text
from grainline.types import CAPTION, FOIL


def sample(position: int, *texts: Text) -> Sample:
    draw = Draw(position, 0, image=7 - position)
    return Sample(torch.full((3, 2, 2), position, dtype=torch.uint8), draw, list(texts), 2, 0, ())


def test_every_text_is_masked_behind_its_own_end_and_stands_in_its_own_row() -> None:
    first = sample(4, Text([[1, 8, 2]], CAPTION), Text([[1, 9, 9, 9, 2]], FOIL))
    second = sample(5, Text([[1, 2]], CAPTION))
    texts = collate([first, second]).texts
    assert texts.mask[:, 0].int().tolist() == [[1, 1, 1, 0, 0], [1] * 5, [1, 1, 0, 0, 0], [0] * 5]
    assert texts.ids[:, 0].tolist() == [[1, 8, 2, 0, 0], [1, 9, 9, 9, 2], [1, 2, 0, 0, 0], [0] * 5]
    assert texts.item.tolist() == [8, 9, 10, -1]
    assert texts.image.tolist() == [3, -1, 2, -1]
    assert texts.level.tolist()[:3] == [CAPTION, FOIL, CAPTION]


def test_every_part_is_masked_behind_its_own_end() -> None:
    two, one = Text([[1, 2], [1, 8, 2]], CAPTION), Text([[1, 2]], CAPTION)
    texts = collate([sample(4, two), sample(5, one)]).texts
    assert texts.ids.tolist()[0] == [[1, 2, 0], [1, 8, 2]]
    assert texts.ids.tolist()[2] == [[1, 2, 0], [0, 0, 0]]
    assert texts.mask.sum(-1).tolist() == [[2, 3], [0, 0], [2, 0], [0, 0]]
    assert texts.mask[0, 0].tolist() == [True, True, False]


def test_images_keep_their_order_and_their_ids() -> None:
    images = collate([sample(2, Text([[1, 2]], CAPTION)), sample(3, Text([[1, 2]], CAPTION))]).images
    assert images.image.tolist() == [5, 4]
    assert images.pixels[:, 0, 0, 0].tolist() == [2, 3]
