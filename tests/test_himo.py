"""HiMo-CLIP: its losses on worked numbers and against an SVD, and its gradient where an SVD has none."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from make import CLOCK
from torch import Tensor

from grainline.config import parse
from grainline.distributed import ddp_mean
from grainline.errors import UserError
from grainline.losses.hide import Principal, principal_part
from grainline.methods.himo import HiMo, HiMoConfig
from grainline.types import Encoded, Pair, Term

F64 = torch.float64
U = torch.tensor([[1, 0, 0], [0.6, 0.8, 0], [0, 0.6, 0.8], [0.8, 0, 0.6]], dtype=F64)
V = torch.tensor([[0.8, 0.6, 0], [0.6, 0.8, 0], [0, 0.8, 0.6], [0.6, 0, 0.8]], dtype=F64)
G = torch.tensor([[1, -1, 0.5], [0, 2, -1], [0.5, 0, 1], [-1, 1, 0]], dtype=F64)
ONE = [
    [1.058824, 0.044118, 0.044118],
    [0.564706, 0.373529, 0.373529],
    [0.035294, 0.726471, 0.726471],
    [0.741176, 0.255882, 0.255882],
]  # principal part of U, one component
TWO = [
    [1.058824, 0.044118, 0.044118],
    [0.564706, 0.773529, -0.026471],
    [0.035294, 0.626471, 0.826471],
    [0.741176, -0.044118, 0.555882],
]
near = dict(atol=1e-5, rtol=0.0)


def principal_of(x: Tensor, threshold: float, **how: Any) -> Principal:
    return principal_part(x, torch.ones(len(x), dtype=torch.bool), threshold, **how)


def by_svd(x: Tensor, threshold: float, detach: bool = False) -> Tensor:
    """The program of the docstring, and the gradient that autograd finds for it."""
    mean = x.mean(0, keepdim=True)
    _, s, v = torch.linalg.svd(x - mean, full_matrices=False)
    reached = (s**2).cumsum(0) / (s**2).sum()
    enough = (reached >= threshold).nonzero()
    v = v[: int(enough[0]) + 1 if len(enough) else len(s)]
    v = v.detach() if detach else v
    return (x - mean) @ v.T @ v + mean


def side(vector: Tensor, image: Tensor | None = None, item: Tensor | None = None) -> Encoded:
    key = torch.arange(len(vector))
    no_tokens = vector.new_zeros(len(vector), 0, vector.shape[1])
    return Encoded(
        vector, no_tokens, no_tokens[..., 0].bool(),
        key if item is None else item, key if image is None else image,
    )  # fmt: skip


def himo(**values: Any) -> HiMo:
    from make import TINY

    settings = TINY | {"scale": 10.0} | values
    return HiMo(parse(HiMoConfig, settings, "test")).double()


def terms(images: Tensor, texts: Tensor, **values: Any) -> dict[str, float]:
    """The summands of the loss, with their weights; facts are left out."""
    pair = Pair(side(images), side(texts))
    report = himo(**values).loss(pair, pair, CLOCK)
    return {
        k: float((t.weight * ddp_mean(t.mean)).detach()) for k, t in report.items() if t.weight is not None
    }


def whole(**values: Any) -> float:
    return sum(terms(V, U, component=0.0, **values).values())


def component(**values: Any) -> float:
    return sum(terms(V, U, whole=0.0, **values).values())


@pytest.mark.parametrize(("threshold", "m"), [(0.6, 1), (0.7, 2), (0.9, 2), (0.99, 3), (1.0, 3)])
def test_the_fewest_components_that_explain_the_share_stay(threshold: float, m: int) -> None:
    report = principal_of(U, threshold)
    assert report.components.tolist() == [m]
    share = [0.658228, 0.987342, 1.0][m - 1]
    torch.testing.assert_close(report.share, torch.tensor([share], dtype=F64), **near)


@pytest.mark.parametrize(("threshold", "expected"), [(0.6, ONE), (0.9, TWO)])
def test_principal_parts(threshold: float, expected: list[list[float]]) -> None:
    torch.testing.assert_close(principal_of(U, threshold).rows, torch.tensor(expected, dtype=F64), **near)


def test_gradient_with_two_components() -> None:
    expected = [
        [0.746022, -1.313054, 0.317829],
        [0.342606, 2.330497, -0.748033],
        [0.454788, -0.107452, 0.971078],
        [-1.043416, 1.090009, -0.040874],
    ]
    torch.testing.assert_close(gradient(U, 0.9), torch.tensor(expected, dtype=F64), **near)


def gradient(x: Tensor, threshold: float, **how: Any) -> Tensor:
    x = x.clone().requires_grad_()
    (principal_of(x, threshold, **how).rows * G).sum().backward()
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize("shape", [(9, 5), (5, 9), (6, 6)])
@pytest.mark.parametrize("detach", [False, True])
def test_value_and_gradient_are_those_of_an_svd(shape: tuple[int, int], detach: bool) -> None:
    x, g = torch.randn(shape, dtype=F64), torch.randn(shape, dtype=F64)
    for threshold in (0.3, 0.6, 0.9):
        ours, slow = x.clone().requires_grad_(), x.clone().requires_grad_()
        a, b = principal_of(ours, threshold, detach_basis=detach).rows, by_svd(slow, threshold, detach)
        torch.testing.assert_close(a, b)
        (a * g).sum().backward()
        (b * g).sum().backward()
        torch.testing.assert_close(ours.grad, slow.grad)


@pytest.mark.parametrize("shape", [(7, 4), (4, 7)])
def test_gradient_by_finite_differences_of_groups_with_gaps(shape: tuple[int, int]) -> None:
    x = torch.randn(shape, dtype=F64, requires_grad=True)
    real = torch.ones(shape[0], dtype=torch.bool)
    real[1] = False
    for group in (None, 3):
        assert torch.autograd.gradcheck(lambda x, g=group: principal_part(x, real, 0.7, group=g).rows, (x,))


def test_single_precision_is_near_double_in_value_and_gradient() -> None:
    x, g = F.normalize(torch.randn(128, 64), dim=1), torch.randn(128, 64)
    results = []
    for kind in (torch.float32, F64):
        y = x.to(kind, copy=True).requires_grad_()
        part = principal_of(y, 0.9).rows
        (part * g.to(kind)).sum().backward()
        results.append((part.detach().double(), y.grad.double()))
    (a, da), (b, db) = results
    torch.testing.assert_close(a, b, atol=2e-6, rtol=0.0)
    assert float((da - db).norm() / db.norm()) < 1e-4


def test_small_components_are_distinguished_from_the_rounding_of_large_ones() -> None:
    sizes = torch.tensor([1.0, 1e-2, 1e-3, 5e-4, 0.0], dtype=F64)
    a, b = (torch.linalg.qr(torch.randn(n, 5, dtype=F64))[0] for n in (40, 5))
    a = torch.linalg.qr(a - a.mean(0))[0]  # columns that are centred already
    x = ((a * sizes) @ b.T).float()
    report = principal_of(x, 1 - 7e-7)
    assert report.components.tolist() == [3]
    torch.testing.assert_close(report.rows.double(), by_svd(x.double(), 1 - 7e-7), atol=1e-6, rtol=0.0)


def test_groups_are_slices_of_the_real_rows_wherever_padding_stands() -> None:
    both = torch.cat([U, U[:, [1, 2, 0]]])
    local = principal_of(both, 0.7, group=4)
    assert local.components.tolist() == [2, 2]
    assert local.size.tolist() == [4, 4]
    torch.testing.assert_close(local.rows[:4], torch.tensor(TWO, dtype=F64), **near)
    torch.testing.assert_close(local.rows[4:], local.rows[:4][:, [1, 2, 0]])
    one = principal_of(both, 0.7)
    assert one.components.tolist() == [2]
    first = torch.tensor([1.084976, 0.065755, 0.084976], dtype=F64)
    torch.testing.assert_close(one.rows[0], first, **near)
    assert float(one.share) == pytest.approx(0.981322, abs=1e-6)
    assert float(principal_of(both, 0.5).share) == pytest.approx(0.598240, abs=1e-6)
    places = torch.tensor([0, 2, 3, 4, 6, 7, 8, 9])
    gappy, real = torch.full((10, 3), 7.0, dtype=F64), torch.zeros(10, dtype=torch.bool)
    gappy[places], real[places] = both, True
    spread = principal_part(gappy, real, 0.7, group=4)
    torch.testing.assert_close(spread.rows[places], local.rows)
    assert torch.equal(spread.rows[~real], gappy[~real])
    assert spread.size.tolist() == [4, 4, 0]
    assert spread.components.tolist() == [2, 2, 0]


REPEATED = torch.randn(3, 6, dtype=F64).repeat_interleave(torch.tensor([4, 1, 2]), 0)
EQUAL = torch.eye(4, 6, dtype=F64)  # all singular values alike: the cut between them is arbitrary
DEGENERATE = {
    "one text": U[:1],
    "equal texts": U[:1].repeat(3, 1),
    "repeated texts": REPEATED,
    "fewer texts than dimensions": torch.randn(3, 6, dtype=F64),
    "equal singular values": EQUAL,
    "nothing": torch.zeros(4, 3, dtype=F64),
}


@pytest.mark.parametrize("name", DEGENERATE)
@pytest.mark.parametrize("kind", [torch.float32, F64])
@pytest.mark.parametrize("threshold", [0.5, 0.9, 1.0])
def test_degenerate_batches_are_finite_both_ways(name: str, kind: torch.dtype, threshold: float) -> None:
    x = DEGENERATE[name].to(kind, copy=True).requires_grad_()
    part = principal_of(x, threshold).rows
    (part * torch.randn_like(part)).sum().backward()
    assert bool(part.isfinite().all())
    assert x.grad is not None
    assert bool(x.grad.isfinite().all())
    if name != "equal singular values":  # between those no cut is right, and no gradient
        assert float(x.grad.abs().max()) < 1e3
    if name in ("one text", "equal texts", "nothing"):
        assert torch.equal(part, x)


def test_gradient_of_an_alike_batch_is_that_of_the_identity() -> None:
    x = U[:1].repeat(3, 1).requires_grad_()
    (principal_of(x, 0.9).rows * G[:3]).sum().backward()
    assert torch.equal(x.grad, G[:3])


def test_repeated_texts_have_the_gradient_of_finite_differences() -> None:
    x = REPEATED.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: principal_of(x, 0.5).rows, (x,))


def test_what_is_not_finite_stays_so_without_an_exception() -> None:
    x = torch.randn(4, 3)
    x[1, 1] = torch.nan
    assert bool(principal_of(x, 0.9).rows.isnan().any())


def test_no_half_precision_inside_autocast() -> None:
    x = torch.randn(8, 4)
    with torch.autocast("cpu", torch.bfloat16):
        inside = principal_of(x, 0.7).rows
    assert torch.equal(inside, principal_of(x, 0.7).rows)


def test_losses_of_the_specification() -> None:
    assert whole() == pytest.approx(0.353645, abs=1e-5)
    assert whole(smoothing=0.1) == pytest.approx(0.668645, abs=1e-5)
    assert component() == pytest.approx(0.264564, abs=1e-5)
    assert component(smoothing=0.1) == pytest.approx(0.578976, abs=1e-5)
    assert component(unit=True) == pytest.approx(0.327019, abs=1e-5)
    assert component(unit=True, smoothing=0.1) == pytest.approx(0.643584, abs=1e-5)
    assert component(threshold=0.6) == pytest.approx(0.784581, abs=1e-5)
    assert component(threshold=0.6, unit=True) == pytest.approx(0.830182, abs=1e-5)
    assert sum(terms(V, U).values()) == pytest.approx(0.618209, abs=1e-5)
    assert sum(terms(V, U, smoothing=0.1).values()) == pytest.approx(1.247621, abs=1e-5)


def test_weights_of_both_losses() -> None:
    assert sum(terms(V, U, component=0.5, whole=2.0).values()) == pytest.approx(
        2 * whole() + 0.5 * component()
    )


def test_smoothed_cross_entropy_is_the_loop() -> None:
    a, b, smoothing = torch.randn(5, 3, dtype=F64), torch.randn(5, 3, dtype=F64), 0.1
    s = 10.0 * a @ b.T
    total = 0.0
    for matrix in (s, s.T):
        for i in range(5):
            q = matrix[i].softmax(0)
            total -= (1 - smoothing) * float(q[i].log()) + smoothing / 5 * sum(float(x.log()) for x in q)
    assert sum(terms(a, b, component=0.0, smoothing=0.1).values()) == pytest.approx(total / 10)


def test_with_constant_keys_a_vector_learns_as_a_query_only() -> None:
    by: dict[bool, Tensor] = {}
    for constant in (False, True):
        texts = U.clone().requires_grad_()
        pair = Pair(side(V), side(texts))
        report = himo(component=0.0, detach_keys=constant).loss(pair, pair, CLOCK)
        total_of(report).backward()
        assert texts.grad is not None
        by[constant] = texts.grad
    full = torch.tensor([-0.858868, -0.663704, 0.132248], dtype=F64)
    queries = torch.tensor([-0.053503, -0.053173, 0.106677], dtype=F64)
    torch.testing.assert_close(by[False][0], full, **near)
    torch.testing.assert_close(by[True][0], queries, **near)
    assert float(by[True].norm() / by[False].norm()) == pytest.approx(0.135800, abs=1e-5)
    cosine = F.cosine_similarity(by[True].flatten(), by[False].flatten(), dim=0)
    assert float(cosine) == pytest.approx(0.438464, abs=1e-5)


def total_of(report: dict[str, Term]) -> Tensor:
    return torch.stack([t.weight * ddp_mean(t.mean) for t in report.values() if t.weight is not None]).sum()


def test_both_sides_are_projected_onto_bases_of_their_own() -> None:
    a, b = torch.randn(6, 5, dtype=F64), torch.randn(6, 5, dtype=F64)
    both, one = (
        sum(terms(a, b, whole=0.0, sides=sides, threshold=0.7).values()) for sides in ("both", "texts")
    )
    for report, first in ((both, by_svd(a, 0.7)), (one, a)):
        s = 10.0 * first @ by_svd(b, 0.7).T
        slow = sum(F.cross_entropy(x, torch.arange(6)) for x in (s, s.T)) / 2
        assert report == pytest.approx(float(slow))
    assert abs(both - one) > 1e-3


def test_a_foil_has_no_part_in_the_basis_nor_in_the_loss_over_principal_parts() -> None:
    foil = torch.randn(1, 3, dtype=F64)
    with_foil = side(
        torch.cat([U, foil]), image=torch.tensor([0, 1, 2, 3, -1]), item=torch.tensor([0, 1, 2, 3, 4])
    )
    for part, changes in (("component", False), ("whole", True)):
        method = himo(**{"component": 0.0, "whole": 0.0} | {part: 1.0})
        pair = Pair(side(V), with_foil)
        a, b = Pair(side(V), side(U)), pair
        reports = [float(total_of(method.loss(x, x, CLOCK)).detach()) for x in (a, b)]
        assert (abs(reports[0] - reports[1]) > 1e-6) == changes


def test_facts_of_a_batch() -> None:
    pair = Pair(side(V), side(U))
    report = himo(threshold=0.9).loss(pair, pair, CLOCK)
    facts = {name: float(ddp_mean(t.mean)) for name, t in report.items() if t.weight is None}
    assert facts["components"] == 2
    assert facts["variance kept"] == pytest.approx(0.987342, abs=1e-5)
    assert facts["scale"] == pytest.approx(10.0)


def test_without_a_loss_there_is_nothing_to_learn() -> None:
    with pytest.raises(UserError, match="whole and component are both 0"):
        himo(whole=0.0, component=0.0)
