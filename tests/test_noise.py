"""Noise of layers by rows: who gets which numbers, and how they are spread."""

import itertools

import pytest
import torch
from make import build

from grainline.encoders.towers import Projection
from grainline.nn.hashing import (
    IMAGES,
    TEXTS,
    Dropout,
    DropPath,
    equal_texts,
    number_places,
    parts_of_rows,
    random_bits,
    rows_of,
    shares,
    some_rows,
    stays,
)
from grainline.types import Clock

CPU = torch.device("cpu")
CLOCK = Clock(step=3, seed=11)
IDS = torch.tensor([7, 2, 9, 4])


def layer(place: int = 1) -> Dropout:
    made = Dropout(0.4).train()
    made.place = place  # type: ignore[assignment]
    return made


def test_a_row_has_its_noise_whatever_stands_beside_behind_or_inside_it() -> None:
    module, x = layer(), torch.ones(4, 5, 6)
    with rows_of(CLOCK, IMAGES, IDS):
        whole = module(x)
        with some_rows(torch.tensor([3, 1])):
            assert torch.equal(module(x[:2]), whole[[3, 1]])
        longer = module(torch.ones(4, 9, 6))
        by_group = [shares(module, (4, 3, tokens), CPU) for tokens in (5, 9)]
    assert torch.equal(by_group[1][..., :5], by_group[0])
    assert torch.equal(longer[:, :5], whole)
    with rows_of(CLOCK, IMAGES, IDS[2:3]):
        assert torch.equal(module(x[:1]), whole[2:3])
        narrow = module(x[:1, :, :3])
    assert not torch.equal(narrow, narrow[:, [1, 0, 2, 3, 4]]), "tokens differ"


def test_seed_step_side_id_and_place_decide() -> None:
    x = torch.ones(4, 50)
    with rows_of(CLOCK, IMAGES, IDS):
        first = layer()(x)
        assert not torch.equal(layer(2)(x), first)
    assert len({tuple(row.tolist()) for row in first}) == 4
    for clock, side in ((CLOCK._replace(seed=12), IMAGES), (CLOCK._replace(step=4), IMAGES), (CLOCK, TEXTS)):
        with rows_of(clock, side, IDS):
            assert not torch.equal(layer()(x), first)
    with rows_of(CLOCK._replace(epoch=9.0), IMAGES, IDS):
        assert torch.equal(layer()(x), first)


def test_every_module_of_a_model_has_a_place_of_its_own() -> None:
    method = build("caft-segments")
    number_places(method)
    places = [module.place for module in method.modules()]
    assert len(set(places)) == len(places) > 20


def test_parts_of_rows_follow_one_another_and_differ() -> None:
    module = layer()
    with rows_of(CLOCK, TEXTS, IDS), parts_of_rows(3):
        three = module(torch.ones(12, 40))
    with rows_of(CLOCK, TEXTS, IDS[1:2]), parts_of_rows(2):
        assert torch.equal(module(torch.ones(2, 40)), three[3:5])
    with rows_of(CLOCK, TEXTS, IDS):  # windows of an image, which nobody announced
        windows = module(torch.ones(12, 40))
        with pytest.raises(ValueError, match="6 rows cannot be parts of 4"):
            module(torch.ones(6, 8))
    for rows in (three, windows):
        assert len({tuple(row.tolist()) for row in rows}) == 12


def test_equal_texts_have_equal_noise_whichever_row_brought_them_and_however_padded() -> None:
    module, ids = layer(), torch.tensor([[5, 6, 0], [6, 5, 0], [5, 6, 7]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 0], [1, 1, 1]]).bool()
    with rows_of(CLOCK, TEXTS, IDS), equal_texts(ids, mask):
        three = module(torch.ones(3, 30))
    with rows_of(CLOCK, TEXTS, IDS + 100), equal_texts(ids[:1, :2], mask[:1, :2]):
        assert torch.equal(module(torch.ones(1, 30)), three[:1])
    assert len({tuple(row.tolist()) for row in three}) == 3


@pytest.mark.parametrize("inside", [True, False], ids=["by rows", "by the generator"])
def test_numbers_are_spread_evenly_and_do_not_know_each_other(inside: bool) -> None:
    torch.manual_seed(0)
    ids = torch.arange(20_000)
    with rows_of(CLOCK, IMAGES, ids if inside else ids[:0]):
        module = layer()
        if inside:
            numbers, kept = shares(module, (20_000, 3, 2), CPU), module(torch.ones(20_000, 2, 6)) != 0
    if not inside:
        numbers, kept = shares(module, (20_000, 3, 2), CPU), module(torch.ones(20_000, 2, 6)) != 0
    assert 0 < float(numbers.min()) < 1e-3
    assert 1 - 1e-3 < float(numbers.max()) < 1
    assert numbers.flatten().histc(20, 0, 1).sub(6000).abs().max() < 5 * 6000**0.5
    for x in (numbers.flatten(1), kept.flatten(1).float()):
        corners = torch.corrcoef(x.T).fill_diagonal_(0)
        assert corners.abs().max() < 5 / 20_000**0.5
        along = torch.corrcoef(torch.stack([x[:-1, 0], x[1:, 0]]))  # ids that follow one another
        assert along[0, 1].abs() < 5 / 20_000**0.5
    assert kept.float().mean() == pytest.approx(0.6, abs=5 * 0.5 / 240_000**0.5)


def test_the_mean_stays_and_the_gradient_is_the_mask() -> None:
    x = torch.ones(20_000, 4, requires_grad=True)
    for module in (layer(), DropPath(0.4).train()):
        with rows_of(CLOCK, IMAGES, torch.arange(20_000)):
            out = module(x)
        assert float(out.detach().mean()) == pytest.approx(1.0, abs=0.02)
        assert out.detach().max() == pytest.approx(1 / 0.6, rel=1e-4)
        (grad,) = torch.autograd.grad(out.sum(), x)
        assert torch.equal(grad, out.detach())
        assert module.eval()(x) is x


def test_without_rows_the_generator_decides() -> None:
    module = layer()
    state = torch.get_rng_state()
    first = module(torch.ones(3, 8))
    assert not torch.equal(module(torch.ones(3, 8)), first)
    torch.set_rng_state(state)
    assert torch.equal(module(torch.ones(3, 8)), first)
    assert random_bits(module, (2, 0), CPU).shape == (2, 0)


def test_a_projection_drops_a_share_of_its_input_in_training_alone() -> None:
    made = Projection(6, 4, 0.25).double()
    x = torch.randn(4, 5, 6).double().requires_grad_()
    with rows_of(CLOCK, IMAGES, IDS):
        out = made(x)
        mask = stays(made.drop, (4, 5, 6), CPU, 0.25)
    weight = torch.randn(4, 5, 4).double()
    (out * weight).sum().backward()
    for i, j in itertools.product(range(4), range(5)):
        left = torch.stack([x[i, j, k] / 0.75 if mask[i, j, k] else x[i, j, k] * 0 for k in range(6)])
        torch.testing.assert_close(out[i, j], made.weight @ left)
        torch.testing.assert_close(x.grad[i, j], (weight[i, j] @ made.weight) * mask[i, j] / 0.75)
    assert 0 < int(mask.sum()) < mask.numel()
    torch.testing.assert_close(made.eval()(x), x @ made.weight.T)
    assert list(made.state_dict()) == ["weight"], "checkpoints of linear layers stay readable"
