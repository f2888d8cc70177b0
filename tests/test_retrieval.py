"""Ranks, recalls and chance levels against loops and against drawn rankings."""

import math

import pytest
import torch

from grainline.errors import UserError
from grainline.evaluation.statistics import chance_recall, ranks


def slow_ranks(score: list[list[float]], positive: list[list[bool]]) -> tuple[list[int], list[bool]]:
    """The definition, in loops."""
    rank, tied = [], []
    for row, truth in zip(score, positive, strict=True):
        best = max(s for s, p in zip(row, truth, strict=True) if p)
        wrong = [s for s, p in zip(row, truth, strict=True) if not p]
        rank.append(1 + sum(s >= best for s in wrong))
        tied.append(any(s == best for s in wrong))
    return rank, tied


@pytest.mark.parametrize("seed", range(5))
def test_ranks_equal_the_loop_under_many_ties(seed: int) -> None:
    torch.manual_seed(seed)
    score = torch.randint(-3, 3, (20, 9)).float()
    positive = torch.rand(20, 9) < 0.3
    positive[torch.arange(20), torch.randint(0, 9, (20,))] = True
    got = ranks(score, positive)
    rank, tied = slow_ranks(score.tolist(), positive.tolist())
    assert got.rank.tolist() == rank
    assert got.tied.tolist() == tied
    assert any(tied)
    assert not all(tied)


def test_minus_infinity_is_a_score_and_may_tie() -> None:
    score = torch.tensor([[-torch.inf, -torch.inf, 1.0]])
    got = ranks(score, torch.tensor([[True, False, False]]))
    assert got.rank.tolist() == [3]
    assert got.tied.tolist() == [True]


def test_nan_scores_are_refused_with_their_number() -> None:
    score = torch.zeros(3, 4)
    score[1, 2] = score[2, 0] = torch.nan
    with pytest.raises(UserError, match=r"^2 of 12 scores are not a number"):
        ranks(score, torch.eye(3, 4).bool())


@pytest.mark.parametrize(
    ("m", "c", "k"), [(1, 50, 5), (5, 1000, 10), (3, 7, 5), (2, 9, 9), (4, 4, 1), (1, 3, 10)]
)
def test_chance_recall_is_the_binomial_formula(m: int, c: int, k: int) -> None:
    k_there = min(k, c)
    expected = 1 - math.comb(c - m, k_there) / math.comb(c, k_there)
    assert chance_recall([m], c, k) == pytest.approx(expected, abs=1e-12)
