"""Losses and scores of pictures pooled by the text they are compared with, against loops over pairs."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from grainline.losses.blocks import Blocks, Keys
from grainline.losses.conditioned import Dense, Gram
from grainline.losses.lists import Lists, lots
from grainline.losses.pooled import part_loss, part_pairs, seen
from grainline.nn.condition import ConditionedPool
from grainline.types import Clock, Mean

CLOCK = Clock(step=3, seed=11)


class Case:
    """Five pictures, the last one without any segment and one of padding; captions; foils."""

    def __init__(
        self, heads: int, dtype: torch.dtype = torch.float64, width: int = 12, slots: int = 3
    ) -> None:
        self.pool = ConditionedPool(width, heads).to(dtype)
        with torch.no_grad():
            for p in self.pool.parameters():
                p.add_(0.3 * torch.randn_like(p))
        self.segments = torch.randn(5, slots, width, dtype=dtype).requires_grad_()
        self.mask = torch.rand(5, slots) > 0.3
        self.mask[0], self.mask[4] = True, False
        image = torch.tensor([7, 7, 7, 3, 3, 12, 40, 40, 40, 40, -1, 7, -1, 3, 90])
        item = torch.arange(100, 115)
        item[[4, 12]] = -1
        self.texts = torch.randn(len(image), width, dtype=dtype).requires_grad_()
        self.scale = torch.tensor([9.0], dtype=dtype).requires_grad_()
        self.bias = torch.tensor([-2.0], dtype=dtype).requires_grad_()
        nothing = torch.zeros(5, dtype=torch.int64)
        self.pictures = Keys(
            torch.tensor([50, 51, -1, 53, 54]), torch.tensor([40, 7, 3, 3, 12]), nothing, nothing
        )
        zero = torch.zeros_like(item)
        self.captions = Keys(item, image, zero, zero)

    def learnt(self) -> list[Tensor]:
        return [self.segments, self.texts, self.scale, self.bias, *self.pool.parameters()]

    def pairs(self, negatives: Any, clock: Clock = CLOCK) -> Blocks | Lists:
        return part_pairs(self.pictures, self.captions, negatives, clock)

    def fast(self, pairs: Blocks | Lists, rows: slice = slice(None)) -> Mean:
        segments = self.segments[rows], self.mask[rows]
        return part_loss(self.pool, segments, self.texts, pairs, self.scale, self.bias)

    def cosine(self, i: int, j: int) -> Tensor:
        """Of one pair, by the module itself."""
        out = self.pool(self.texts[None, j : j + 1], self.segments[i : i + 1], self.mask[i : i + 1])
        return F.cosine_similarity(out.vector[0, 0], self.texts[j], dim=0)

    def slow(self, negatives: str, clock: Clock = CLOCK) -> Mean:
        total, number = self.texts.new_zeros(()), self.texts.new_zeros(())
        item, image = self.captions.item.tolist(), self.captions.image.tolist()
        for i in range(5):
            if self.pictures.item[i] < 0:
                continue
            number = number + 1
            for j in range(len(item)):
                if item[j] < 0:
                    continue
                logit = (self.scale * self.cosine(i, j) + self.bias)[0]
                if image[j] == self.pictures.image[i]:
                    total = total + F.softplus(-logit)
                    continue
                mine = [k for k in range(len(item)) if image[k] == image[j] and item[k] >= 0]
                if image[j] < 0:
                    share = 1.0
                elif negatives == "all":
                    share = 1 / len(mine)
                else:
                    lot = lots(clock, self.pictures.image[i : i + 1], torch.tensor([image[j]]))
                    share = float(mine[int(lot) % len(mine)] == j)
                total = total + share * F.softplus(logit)
        return Mean(total, number)


WAYS = pytest.mark.parametrize(("heads", "slots"), [(1, 3), (2, 3), (3, 7)], ids=["gram1", "gram2", "dense"])
NEGATIVES = pytest.mark.parametrize("negatives", ["sampled", "all"])


def assert_same(found: Mean, expected: Mean, learnt: list[Tensor], loss: float, gradient: float) -> None:
    assert float(found.number) == float(expected.number)
    torch.testing.assert_close(found.total, expected.total, rtol=loss, atol=0)
    for a, b in zip(*(torch.autograd.grad(x.total, learnt) for x in (found, expected)), strict=True):
        assert float((a - b).norm()) <= gradient * float(b.norm()) + gradient * 1e-2


@NEGATIVES
@WAYS
def test_loss_and_all_gradients_are_those_of_a_loop_over_pairs(
    heads: int, slots: int, negatives: str
) -> None:
    case = Case(heads, slots=slots)
    assert type(seen(case.pool, case.segments, None)[0]) is (Dense if heads == 3 else Gram)
    found, expected = case.fast(case.pairs(negatives)), case.slow(negatives)
    assert_same(found, expected, case.learnt(), 1e-11, 1e-11)
    assert found.number == 4


@NEGATIVES
@WAYS
def test_in_single_precision(heads: int, slots: int, negatives: str) -> None:
    case = Case(heads, torch.float32, slots=slots)
    assert_same(case.fast(case.pairs(negatives)), case.slow(negatives), case.learnt(), 1e-6, 1e-4)
