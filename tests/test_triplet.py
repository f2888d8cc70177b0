"""Triplet losses and the ratio of patches: values worked out by hand, and slow copies of definitions."""

import pytest
import torch
from make import TINY
from torch import Tensor

from grainline.config import override, parse
from grainline.errors import UserError
from grainline.losses.contrastive import TripletSchedule, both_triplets, keep_ratio, touched, triplet
from grainline.methods import method_class
from grainline.methods.shared import TripletsConfig
from grainline.training.optim import StepDecay, rate
from grainline.types import Clock, Encoded, Pair

SCORE = torch.tensor([[0.8, 0.7, 0.75], [0.65, 0.9, 0.2], [0.7, 0.75, 0.6]])
EYE = torch.eye(3).bool()


def naive(score: Tensor, positive: Tensor, against: Tensor, margin: float, hardest: bool) -> float:
    total = 0.0
    for i, j in positive.nonzero().tolist():
        costs = [
            max(0.0, margin + float(score[i, k] - score[i, j]))
            for k in range(score.shape[1])
            if against[i, k]
        ]
        total += max(costs, default=0.0) if hardest else sum(costs)
    return total


def side(image: list[int], item: list[int] | None = None) -> Encoded:
    ids = torch.tensor(image)
    nothing = torch.zeros(len(ids), 0, 2)
    return Encoded(
        torch.zeros(len(ids), 2), nothing, nothing[..., 0].bool(), torch.tensor(item or image), ids
    )


def whole(images: list[int], texts: list[int], rule: TripletSchedule, score: Tensor = SCORE) -> float:
    pair = Pair(side(images), side(texts, list(range(len(texts)))))
    terms = both_triplets(lambda *_: score, pair, pair, rule, 1.0)
    return sum(float(term.mean.total / term.mean.number) for term in terms.values())


@pytest.mark.parametrize(("hardest", "expected"), [(False, 1.45), (True, 1.00)])
def test_triplets_of_three_pairs_as_worked_out_by_hand(hardest: bool, expected: float) -> None:
    both = [triplet(s, EYE, ~EYE, 0.2, hardest) for s in (SCORE, SCORE.T)]
    assert float(sum(both)) == pytest.approx(expected)
    assert whole([7, 8, 9], [7, 8, 9], TripletSchedule(0.2, hardest, 1.0)) == pytest.approx(expected)


@pytest.mark.parametrize("hardest", [False, True])
def test_pairs_of_one_image_are_no_negatives_of_each_other(hardest: bool) -> None:
    assert whole([7, 8, 7], [7, 8, 7], TripletSchedule(0.2, hardest, 1.0)) == pytest.approx(0.55)


@pytest.mark.parametrize("hardest", [False, True])
def test_several_positives_of_a_row_each_have_a_loss_and_gradients_reach_what_is_touched(
    hardest: bool,
) -> None:
    torch.manual_seed(0)
    score = torch.rand(5, 8, dtype=torch.float64).requires_grad_()
    positive = torch.zeros(5, 8).bool()
    positive[[0, 0, 1, 2, 3], [0, 1, 2, 5, 7]] = True
    against = (torch.rand(5, 8) < 0.7) & ~positive
    against[3] = False
    actual = triplet(score, positive, against, 0.3, hardest)
    assert float(actual.detach()) == pytest.approx(naive(score.detach(), positive, against, 0.3, hardest))
    actual.backward()
    assert score.grad is not None
    mask = touched(score, positive, against, 0.3, hardest)
    assert torch.equal(mask, score.grad != 0)
    assert 0 < int(mask.sum()) <= (10 if hardest else 40)
    nothing = triplet(score[:, :0], positive[:, :0], against[:, :0], 0.3, hardest)
    assert float(nothing.detach()) == 0.0


@pytest.mark.parametrize("hardest", [False, True])
def test_scores_that_are_nearly_touched_are_those_that_rounding_may_touch(hardest: bool) -> None:
    g = torch.Generator().manual_seed(0)
    near, positive = 0.1, torch.eye(6).bool()
    score = torch.rand(6, 6, generator=g, dtype=torch.float64)
    mask, reached = touched(score, positive, ~positive, 0.3, hardest, near), torch.zeros(6, 6).bool()
    for _ in range(300):
        other = score + near * (torch.rand(6, 6, generator=g, dtype=torch.float64) - 0.5)
        reached |= touched(other, positive, ~positive, 0.3, hardest)
    assert not (reached & ~mask).any()
    assert int(touched(score, positive, ~positive, 0.3, hardest).sum()) < int(mask.sum()) < 36


def test_foils_push_images_alone_and_padding_nobody() -> None:
    texts = side([7, -1, 8, -1], [0, 1, 2, -1])  # a foil beside 7, padding beside 8
    pair = Pair(side([7, 8]), texts)
    score = torch.tensor([[0.5, 0.6, 0.1, 9.0], [0.2, 0.45, 0.5, 9.0]])
    terms = both_triplets(lambda *_: score, pair, pair, TripletSchedule(0.2, True, 0.5), 3.0)
    totals = {name: float(term.mean.total / term.mean.number) for name, term in terms.items()}
    assert totals == pytest.approx({"i2t": 0.3 + 0.15, "t2i": 0.0})
    assert {term.weight for term in terms.values()} == {1.5}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ((), {0.0: (False, 0.0), 0.75: (False, 0.75), 1.0: (True, 1.0)}),
        (("warmup=0",), {0.0: (True, 1.0)}),
        (("warmup=2", "hardest_after=0.5"), {0.25: (False, 0.125), 0.5: (True, 0.25), 3.0: (True, 1.0)}),
        (("hardest_after=3",), {0.5: (False, 0.5), 1.0: (False, 1.0), 2.9: (False, 1.0), 3.0: (True, 1.0)}),
        (("warmup=0", "hardest_after=never"), {0.0: (False, 1.0), 1e6: (False, 1.0)}),
        (("hardest_after=0",), {0.0: (True, 0.0), 0.5: (True, 0.5)}),
    ],
)
@pytest.mark.parametrize("method", ["seps", "laps", "vse"])
def test_the_weight_rises_apart_from_how_long_all_negatives_count(
    method: str, changes: tuple[str, ...], expected: dict[float, tuple[bool, float]]
) -> None:
    cfg = parse(method_class(method).config_class, override(TINY, list(changes)), "test")
    assert isinstance(cfg, TripletsConfig)
    for epoch, (hardest, weight) in expected.items():
        assert TripletSchedule.at(Clock(9, epoch), cfg) == TripletSchedule(0.2, hardest, weight)


def test_how_long_all_negatives_count_is_a_time_or_never() -> None:
    for value in ("always", "-1", "true", ".nan", ".inf"):
        with pytest.raises(UserError, match=r"'hardest_after' is .+: allowed are a number of epochs"):
            parse(method_class("vse").config_class, override(TINY, [f"hardest_after={value}"]), "test")


@pytest.mark.parametrize(
    ("weight", "means", "expected"),
    [(1.0, (0.5, 0.5), 0.25), (0.5, (0.5, 0.5), 0.0), (1.0, (0.25, 0.25), 0.0), (0.5, (0.6, 0.5), 0.0025)],
)
def test_the_ratio_of_two_branches(weight: float, means: tuple[float, float], expected: float) -> None:
    both = tuple(torch.tensor(x) for x in means)
    assert float(keep_ratio(0.5, both, (weight, weight))) == pytest.approx(expected, abs=1e-7)


def test_the_ratio_of_branches_apart_and_of_one() -> None:
    text, report = torch.tensor([[0.6, 0.4], [0.5, 0.1]]), torch.tensor([[0.7], [0.5]])
    apart = keep_ratio(0.5, (text, report), (0.5, 0.5), "apart")
    torch.testing.assert_close(apart, torch.tensor([[0.05, 0.05], [0.0, 0.16]]))
    torch.testing.assert_close(keep_ratio(0.5, (report,), (1.0,)), torch.tensor([[0.04], [0.0]]))


def test_rates_fall_at_epochs_whenever_a_run_is_resumed() -> None:
    steps = 4531  # an epoch of Flickr30K at 32 captions
    schedule = StepDecay(milestones=tuple(float(steps * epoch) for epoch in (9, 15, 20, 25)), factor=0.3)
    expected = {0: 1.0, 8: 1.0, 9: 0.3, 15: 0.09, 16: 0.09, 20: 0.027, 25: 0.0081, 29: 0.0081}
    actual = {epoch: rate(schedule, steps * epoch, 30 * steps) for epoch in expected}
    assert actual == pytest.approx(expected)
    assert rate(schedule, 9 * steps - 1, 30 * steps) == 1.0
