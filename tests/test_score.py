"""Ranks in tiles against the dense reference, and the memory they take."""

from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from grainline.errors import UserError
from grainline.evaluation.score import Scorer, all_scores, pair_scores, retrieval_ranks, tile_side
from grainline.evaluation.statistics import ranks
from grainline.types import Encoded, same_image


class Dot(NamedTuple):
    """Scores by the vectors alone."""

    pairwise: bool = False

    blockwise = False

    def precompute(self, images: Encoded) -> Encoded:
        return images

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        return images.vector @ texts.vector.T


class Late(NamedTuple):
    """Scores by tokens: the best patch of every word, rounded so that many pairs tie."""

    pairwise: bool = True

    blockwise = False

    def precompute(self, images: Encoded) -> Encoded:
        return images

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        close = torch.einsum("nld,mtd->nmlt", images.tokens, texts.tokens).amax(2).sum(2)
        return (close * 2).round() / 2


class Blocks:
    """As Late, of images that are held: their tokens are twice as long then."""

    pairwise, blockwise = True, True

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.pairs = 0

    def precompute(self, images: Encoded) -> Encoded:
        self.asked.append(len(images.item))
        return images._replace(tokens=2 * images.tokens)

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        self.pairs += len(images.item) * len(texts.item)
        return Late().score(images._replace(tokens=images.tokens / 2), texts)


def some(n: int, image: list[int] | Tensor, width: int = 6, length: int = 0) -> Encoded:
    tokens = torch.randn(n, length, width)
    vector = F.normalize(torch.randn(n, width), dim=1)
    return Encoded(vector, tokens, torch.ones(n, length).bool(), torch.arange(n), torch.as_tensor(image))


def dense(
    score: Tensor, images: Encoded, texts: Encoded
) -> tuple[list[int], list[bool], list[int], list[bool], list[int]]:
    positive = same_image(images, texts)
    described = texts.image >= 0
    a, b = ranks(score, positive), ranks(score.T[described], positive.T[described])
    first = [one.index(max(one)) for one in score.T[described].tolist()]
    return a.rank.tolist(), a.tied.tolist(), b.rank.tolist(), b.tied.tolist(), first


def counted(method: Scorer, images: Encoded, texts: Encoded, memory: int) -> tuple[list[int], ...]:
    both = retrieval_ranks(method, images, texts, memory)
    sides = [x.tolist() for one in both[:2] for x in (one.rank, one.tied)]
    return (*sides, both.first.tolist())


def duplicated(encoded: Encoded) -> Encoded:
    """Some rows share their vector exactly, as the same figure in two chapters does."""
    vector = encoded.vector.clone()
    vector[::3] = vector[1]
    return encoded._replace(vector=vector)


@pytest.mark.parametrize("memory", [400, 2000, 10**4, 2**28])
def test_dot_ranks_in_tiles_equal_the_dense_ones_with_ties_and_many_captions(memory: int) -> None:
    images = duplicated(some(23, torch.randperm(23) + 100))
    owner = torch.cat([images.image, images.image[torch.randint(0, 23, (40,))], torch.tensor([-1, -1, -1])])
    texts = duplicated(some(66, owner[torch.randperm(66)]))
    score = (images.vector.double() @ texts.vector.double().T).float()
    expected = dense(score, images, texts)
    assert counted(Dot(), images, texts, memory) == expected
    assert any(expected[1])
    assert any(expected[3])


@pytest.mark.parametrize("memory", [2000, 10**5, 2**28])
def test_pairwise_ranks_in_tiles_equal_the_dense_ones(memory: int) -> None:
    images = some(11, torch.arange(11), length=4)
    texts = some(30, torch.arange(30) % 11, length=3)
    expected = dense(Late().score(images, texts), images, texts)
    assert counted(Late(), images, texts, memory) == expected
    assert any(expected[1])
    assert any(expected[3])


def test_equal_vectors_tie_wherever_they_stand() -> None:
    # A float32 product may differ in its last bit between the middle and the rim of a tile.
    vector = F.normalize(torch.randn(1, 301), dim=1)
    images = some(777, torch.arange(777), width=301)._replace(vector=vector.expand(777, -1).contiguous())
    texts = some(777, torch.arange(777), width=301)
    for memory in (10**6, 10**7, 2**28):
        both = retrieval_ranks(Dot(), images, texts, memory)
        assert both.t2i.rank.tolist() == [777] * 777
        assert both.t2i.tied.all()


def test_foils_are_candidates_for_images_and_no_queries() -> None:
    images = some(2, [0, 1])
    texts = some(3, [0, 1, -1])
    texts = texts._replace(vector=torch.stack([images.vector[0], images.vector[1], images.vector[0]]))
    both = retrieval_ranks(Dot(), images, texts)
    assert both.i2t.rank.tolist() == [2, 1]
    assert both.i2t.tied.tolist() == [True, False]
    assert len(both.t2i.rank) == 2


def test_nan_vectors_are_refused_with_the_number_of_scores() -> None:
    images, texts = some(3, [0, 1, 2]), some(5, [0, 1, 2, 2, 2])
    images.vector[1, 0] = torch.nan
    with pytest.raises(UserError, match=r"^5 of 15 scores are not a number"):
        retrieval_ranks(Dot(), images, texts, memory=600)


def test_images_without_texts_and_texts_without_images_are_refused() -> None:
    with pytest.raises(UserError, match=r"3 images, 1 of them without a text, and 2 texts of images"):
        retrieval_ranks(Dot(), some(3, [0, 1, 2]), some(4, [0, 1, 8, 9]))


def test_a_memory_limit_below_one_pair_is_refused() -> None:
    with pytest.raises(UserError, match=r"^a memory limit of 10 bytes is too small: one pair needs"):
        retrieval_ranks(Dot(), some(2, [0, 1]), some(2, [0, 1]), memory=10)


def test_a_gallery_is_in_memory_once_and_not_once_a_tile() -> None:
    method = Blocks()
    images, texts = some(11, torch.arange(11), length=4), some(30, torch.arange(30) % 11, length=3)
    assert tile_side(method, images, texts, 6_000) < 8
    expected = counted(Late(), images, texts, 2**28)
    assert counted(method, images, texts, 6_000) == expected
    assert method.asked == [11]
    assert method.pairs >= 11 * 30  # tiles with positives may come twice where memory is short
    method.pairs = 0
    assert counted(method, images, texts, 2**28) == expected
    assert method.pairs == 11 * 30
    method.asked.clear()
    retrieval_ranks(method, images, texts, 6_000)
    all_scores(method, images, texts, 6_000)
    pair_scores(method, images, texts, torch.zeros(30).long())
    assert method.asked == [11] * 3


@pytest.mark.parametrize("method", [Dot(), Late()])
@pytest.mark.parametrize("memory", [4000, 2**28])
def test_scores_in_tiles_are_those_of_the_dense_matrix(method: Scorer, memory: int) -> None:
    images, texts = some(13, torch.arange(13), length=3), some(31, torch.arange(31) % 13, length=2)
    score = all_scores(method, images, texts, memory)
    torch.testing.assert_close(score, method.score(images, texts))


@pytest.mark.parametrize("method", [Dot(), Late()])
def test_scores_of_chosen_pairs_are_those_of_the_matrix(method: Scorer) -> None:
    images, texts = some(5, torch.arange(5), length=3), some(9, [-1] * 9, length=2)
    of = torch.randint(0, 5, (9,))
    expected = method.score(images, texts)[of, torch.arange(9)]
    torch.testing.assert_close(pair_scores(method, images, texts, of), expected)
