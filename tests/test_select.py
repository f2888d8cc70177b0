"""Selection, aggregation and matching of SEPS: values worked out by hand, and properties."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from grainline.nn.hashing import logistic
from grainline.nn.selection import (
    Predictor,
    Relevance,
    Slots,
    aggregated,
    best_of,
    gumbel_st,
    hard_topk,
    number_of_patches,
    number_of_slots,
    rest_token,
    stretched,
    weighted_score,
)
from grainline.types import Clock

BETA = 0.4
OWN = torch.tensor([0.2, 0.9, 0.5, 0.4])
TEXT = torch.tensor([0.1, 0.3, 0.5, 0.3])
TOLD = torch.tensor([0.0, 0.4, 0.2, 0.1])
IMAGE = torch.tensor([0.6, 0.2, 0.4, 0.4])
COSINE = torch.tensor([[0.9, 0.1], [0.2, 0.6], [-0.4, -0.2]])  # of three patches with two words


def test_branches_rank_patches_apart_and_add_up_to_equation_3() -> None:
    text, report, image = stretched(TEXT), stretched(TOLD), stretched(IMAGE)
    sparse, dense = weighted_score(OWN, text + image, BETA), weighted_score(OWN, report + image, BETA)
    joint = weighted_score(OWN, text + report + 2 * image, BETA)
    torch.testing.assert_close(sparse, torch.tensor([0.44, 0.38, 0.70, 0.48]))
    torch.testing.assert_close(dense, torch.tensor([0.44, 0.58, 0.50, 0.38]))
    torch.testing.assert_close(joint, torch.tensor([0.84, 0.78, 1.10, 0.78]))
    torch.testing.assert_close(sparse + dense - (1 - 2 * BETA) * OWN, joint)
    torch.testing.assert_close(weighted_score(None, TEXT, 0.5), TEXT / 2)
    actual = [set(hard_topk(x, 2).nonzero().flatten().tolist()) for x in (sparse, dense, joint)]
    assert actual == [{2, 3}, {1, 2}, {2, 0}]
    assert hard_topk(sparse, 4).tolist() == [1.0] * 4


def test_what_does_not_stay_is_one_token_weighted_by_its_scores() -> None:
    score = torch.tensor([0.44, 0.38, 0.70, 0.48])
    values = torch.tensor([[1.0, 0], [0, 1], [1, 1], [2, 0]])
    token, there = rest_token(score, values, hard_topk(score, 2))
    torch.testing.assert_close(token, torch.tensor([0.514996, 0.485004]), atol=1e-6, rtol=0)
    assert bool(there)
    token, there = rest_token(score, values, torch.ones(4))
    assert not bool(there)
    assert token.isfinite().all()


def test_aggregation_is_a_mean_of_selected_patches_for_each_slot() -> None:
    logits = torch.tensor([[0, 1], [math.log(2), 0], [math.log(3), -1]]).mT
    values = torch.tensor([[1.0, 0], [0, 1], [1, 1]])
    kept = torch.tensor([1.0, 0, 1], requires_grad=True)
    out = aggregated(logits, values, kept)
    torch.testing.assert_close(out, torch.tensor([[1, 0.75], [1, 0.119203]]), atol=1e-6, rtol=0)
    weights = aggregated(logits, torch.eye(3), kept)
    torch.testing.assert_close(
        weights, torch.tensor([[0.25, 0, 0.75], [0.880797, 0, 0.119203]]), atol=1e-6, rtol=0
    )
    torch.testing.assert_close(weights.sum(-1), torch.ones(2))
    out.square().sum().backward()
    assert kept.grad is not None
    assert float(kept.grad.abs().max()) < 10


def test_a_dropped_patch_far_above_all_others_harms_neither_means_nor_gradients() -> None:
    logits = torch.tensor([[0.0, 300.0, 1.0]], requires_grad=True)
    kept = torch.tensor([1.0, 0.0, 1.0], requires_grad=True)
    out = aggregated(logits, torch.tensor([[1.0], [5.0], [2.0]]), kept)
    torch.testing.assert_close(out[0, 0], torch.tensor((1 + 2 * math.e) / (1 + math.e)))
    out.sum().backward()
    assert kept.grad is not None
    assert logits.grad is not None
    assert float(kept.grad.abs().max()) < 10
    assert logits.grad.isfinite().all()


class Line(nn.Module):
    """.5 of the best, .25 of the second and .1"""

    def forward(self, x: Tensor) -> Tensor:
        return (0.5 * x[..., 0] + 0.25 * x[..., 1] + 0.1)[..., None]


def test_a_score_is_what_patches_and_words_find_in_the_mean_and_what_networks_add() -> None:
    record, report = torch.ones(3), torch.ones(2).bool()
    assert float(Relevance(matching="mean")(COSINE, record, report)) == pytest.approx(1.183333, abs=1e-6)
    leaky = Relevance(matching="mean", leaky=True)
    assert float(leaky(COSINE, record, report)) == pytest.approx(1.243333, abs=1e-6)
    whole = Relevance(2)
    assert float(whole(COSINE, record, report).detach()) == pytest.approx(
        1.183333, abs=1e-6
    )  # they begin at 0
    whole.patches = whole.words = Line()  # type: ignore[assignment]
    assert float(whole(COSINE, record, report)) == pytest.approx(2.583333, abs=1e-6)
    only = Relevance(2, "topk")
    only.patches = only.words = Line()  # type: ignore[assignment]
    assert float(only(COSINE, record, report)) == pytest.approx(1.4, abs=1e-6)
    assert (
        float(Relevance(2, "topk")(COSINE, record, report).detach()) != 0
    )  # else nothing would begin to learn


def test_padding_counts_nowhere_on_either_side() -> None:
    torch.manual_seed(0)
    match = Relevance(5)
    for network in (match.patches, match.words):
        assert network is not None
        nn.init.normal_(network[-1].weight)
    cosine = torch.rand(4, 7, 6) - 0.5
    expected = match(cosine, torch.ones(7), torch.ones(6).bool())
    longer = pad(cosine, (0, 3, 0, 2), value=99.0)
    actual = match(longer, pad(torch.ones(7), (0, 2)), pad(torch.ones(6), (0, 3)).bool())
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=0)
    nothing = match(cosine, torch.ones(7), torch.zeros(6).bool())
    assert nothing.isfinite().all()


def test_of_a_short_caption_the_least_find_is_repeated() -> None:
    actual = torch.tensor([[0.3, 0.9, 0.5, 7.0]])
    best = best_of(actual, torch.tensor([[True, True, True, False]]), 5)
    torch.testing.assert_close(best, torch.tensor([[0.9, 0.5, 0.3, 0.3, 0.3]]))
    torch.testing.assert_close(best_of(actual, actual > 0, 2), torch.tensor([[7.0, 0.9]]))


def test_of_equal_finds_the_first_learn() -> None:
    actual = torch.full((2, 40), 0.5)
    actual[:, 30] = 0.9
    actual.requires_grad_()
    best = best_of(actual, torch.ones(2, 40, dtype=torch.bool), 4)
    best.sum().backward()
    assert actual.grad is not None
    expected = torch.zeros(40).index_fill(0, torch.tensor([0, 1, 2, 30]), 1.0)
    assert torch.equal(actual.grad, expected.expand(2, -1))
    assert torch.equal(best, best_of(actual.detach(), torch.ones(2, 40, dtype=torch.bool), 4))


@pytest.mark.parametrize(
    ("patches", "keep", "aggregate", "cls", "expected"),
    [
        (196, 0.5, 0.4, 1, (98, 39, 41)),
        (576, 0.5, 0.4, 1, (288, 115, 117)),
        (49, 0.8, 0.6, 0, (40, 23, 24)),
        (144, 0.8, 0.6, 0, (116, 69, 70)),
        (256, 0.5, 0.4, 1, (128, 51, 53)),
        (30, 0.1, 0.5, 0, (3, 1, 2)),
    ],
)
def test_how_many_patches_stay_and_tokens_remain(
    patches: int, keep: float, aggregate: float, cls: int, expected: tuple[int, int, int]
) -> None:
    slots = number_of_slots(patches, keep, aggregate)
    assert (number_of_patches(patches, keep), slots, slots + 1 + cls) == expected


def test_networks_have_the_sizes_of_the_specification() -> None:
    slots, predictor = Slots(512, 39), Predictor(512)
    assert [x.out_features for x in slots.mlp if isinstance(x, nn.Linear)] == [102, 39]
    assert [x.out_features for x in predictor.mlp if isinstance(x, nn.Linear)] == [128, 1]


def draws(number: int, step: int = 0) -> Tensor:
    """One for each of so many images."""
    return logistic(Clock(step, 0.0, 7), torch.arange(number), torch.tensor([[3]]), 1)[:, 0]


def test_a_lot_falls_with_the_probability_of_the_score_and_has_a_gradient() -> None:
    noise = draws(100_000).T  # one patch each would always be kept: as one row of patches
    score = torch.full_like(noise, 0.7, requires_grad=True)
    kept = gumbel_st(score, noise)
    assert set(kept.unique().tolist()) == {0.0, 1.0}
    assert float(kept.detach().mean()) == pytest.approx(0.7, abs=0.005)
    kept.sum().backward()
    assert score.grad is not None
    assert (score.grad > 0).all()


def test_sure_scores_are_finite_and_one_patch_stays_whatever_the_lot() -> None:
    score = torch.tensor([[0.0, 1.0, 0.5], [0.1, 0.2, 0.3]], requires_grad=True)
    kept = gumbel_st(score, torch.tensor([[0.0, 0.0, 30.0], [-30.0, -30.0, -30.0]]))
    assert kept.tolist() == [[0.0, 1.0, 1.0], [0.0, 0.0, 1.0]]
    kept.sum().backward()
    assert score.grad is not None
    assert score.grad.isfinite().all()


def test_noise_is_logistic_and_knows_only_seed_step_ids_and_place() -> None:
    images, items = torch.tensor([5, 9, 2]), torch.tensor([[4, 8]])
    clock = Clock(3, 0.0, 1)
    noise = logistic(clock, images, items, 6)
    assert noise.shape == (3, 2, 6)
    assert torch.equal(logistic(clock, images[1:2], items[:, 1:], 6), noise[1:2, 1:])
    assert torch.equal(logistic(clock, images, torch.tensor([[4], [8], [4]]), 6)[1, 0], noise[1, 1])
    assert noise.unique().numel() == noise.numel()
    for other in (Clock(4, 0.0, 1), Clock(3, 0.0, 2)):
        assert not (logistic(other, images, items, 6) == noise).any()
    many = draws(100_000)
    assert many.isfinite().all()
    assert float(many.mean()) == pytest.approx(0.0, abs=0.03)
    assert float(many.std()) == pytest.approx(math.pi / 3**0.5, abs=0.03)  # of the logistic distribution
