"""Which rows belong together, and what happens to nested batches."""

import pytest
import torch

from grainline.types import Encoded, Images, Term, concat, rows, same_image


def encoded(item: list[int], image: list[int]) -> Encoded:
    n = len(item)
    return Encoded(
        torch.ones(n, 2),
        torch.ones(n, 3, 2),
        torch.ones(n, 3).bool(),
        torch.tensor(item),
        torch.tensor(image),
    )


def test_texts_and_images_match_by_the_id_of_the_image() -> None:
    texts, images = encoded([0, 1, 2], [7, 5, 7]), encoded([0, 1], [5, 7])
    assert same_image(texts, images).tolist() == [[False, True], [True, False], [False, True]]


def test_foils_and_padding_match_nothing_not_even_each_other() -> None:
    texts = encoded([0, 1, -1, -1], [7, -1, -1, -1])  # a caption, a foil, two rows of padding
    assert same_image(texts, texts).int().tolist() == [[1, 0, 0, 0], [0] * 4, [0] * 4, [0] * 4]


def test_a_scalar_of_a_method_is_the_mean_over_its_rows() -> None:
    """Two chunks of 3 rows and 1 row add up to the mean over all four."""
    parts = Term(1.0, torch.tensor(2.0)).over(3), Term(1.0, torch.tensor(6.0)).over(1)
    assert sum(float(x.mean.total) for x in parts) / sum(float(x.mean.number) for x in parts) == 3.0
    assert parts[0].over(7) is parts[0]
    for wrong in (torch.ones(2), 2.0):
        with pytest.raises(TypeError, match="takes a scalar tensor, or Mean"):
            Term(1.0, wrong).over(1)


def test_rows_are_chosen_in_every_tensor_and_absent_fields_stay_absent() -> None:
    images = Images(torch.arange(24).view(3, 1, 2, 4), torch.tensor([4, 5, 6]))
    chosen = rows(images, torch.tensor([2, 0]))
    assert chosen.image.tolist() == [6, 4]
    assert chosen.pixels[0, 0, 0].tolist() == [16, 17, 18, 19]
    assert chosen.regions is None
    whole = concat([rows(images, slice(0, 1)), rows(images, slice(1, 3))])
    assert torch.equal(whole.pixels, images.pixels)
    assert whole.dense is None
