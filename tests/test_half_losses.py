"""Losses in training in half precision on a GPU: operands in bfloat16, and what is no product compiled."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from make import CLOCK, batch, build
from torch import Tensor

from grainline import kernels as launch
from grainline.losses.tiled import pair_loss as pair_losses
from grainline.losses.tiled import scores
from grainline.losses.tiled.pair_loss import SigmoidLoss, SoftmaxLoss, pair_loss
from grainline.losses.tiled.pair_mask import PairMatrix, row_ids
from grainline.losses.tiled.scores import Dot, exact, half_operands, half_products, on_gpu
from grainline.losses.tiled.vocabulary import exponentials, vocabulary_loss
from grainline.methods import METHODS
from grainline.training.step import Objective

HALF = 1e-2


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "on_gpu", lambda _: True)


@pytest.mark.parametrize("method", METHODS)
@torch.no_grad()
def test_texts_that_share_rows_have_the_same_scores(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them without tokens, as the parts of a caption may be."""
    images, texts = batch()
    images = images._replace(pixels=images.pixels.double())
    both = []
    for packed in (False, True):
        monkeypatch.setattr("grainline.encoders.text.can_pack", lambda _, packed=packed: packed)
        one = build(method).double().eval()
        both.append(one.score(one.encode_images(images), one.encode_texts(texts)))
    torch.testing.assert_close(*both, rtol=1e-8, atol=1e-9)


def test_operands_are_half_where_training_is(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(2)
    with exact(x):
        assert not half_operands(x)
    with half_products(True), exact(x):
        assert half_operands(x)
        assert not half_operands(x.double())
    with torch.autocast("cpu", torch.bfloat16), exact(x), exact(x):
        assert not torch.is_autocast_enabled("cpu")
        assert half_operands(x)
    assert not half_operands(x)
    monkeypatch.setattr(scores, "on_gpu", on_gpu)
    with half_products(True):
        assert not half_operands(x), "on a CPU nothing is half"


@pytest.mark.parametrize("function", ["weights", "lengths", "by_pooled", "by_logit", "times"])
def test_parts_of_pooling_compile_to_one_graph(function: str) -> None:
    shapes = {
        "weights": [[2, 5, 4], [1, 1, 4]],
        "lengths": [[5, 4], [5, 4], [5, 4], [4]],
        "by_pooled": [[5, 4], [5, 4], [4], [5], [5]],
        "by_logit": [[2, 5, 4], [2, 5, 4]],
        "times": [[5, 4], [5]],
    }[function]
    plain = getattr(scores, function)
    alone = {"lengths": (3,), "by_pooled": (2,)}.get(function, ())  # without the rows of a tile
    assert_compiles(
        plain,
        lambda size: [torch.rand(*([] if i in alone else [size]), *x) for i, x in enumerate(shapes)],
    )


def assert_compiles(plain: Any, inputs: Any) -> None:
    """Check that torch.compile traces it, without a compiler: no break, and lengths that change."""
    compiled = torch.compile(plain, backend="aot_eager", fullgraph=True, dynamic=True)
    for size in (3, 4):
        tensors = inputs(size)
        torch.testing.assert_close(compiled(*tensors), plain(*tensors))
    torch._dynamo.reset()


def test_parts_of_inner_products_compile_to_one_graph() -> None:
    assert_compiles(pair_losses.log_sum, lambda n: [torch.rand(n, 5), 0])
    assert_compiles(pair_losses.log_sum, lambda n: [torch.rand(n, 5), 1])
    for sides in ([torch.rand(1, 5)], [torch.rand(1, 5), torch.rand(1, 1)]):
        assert_compiles(pair_losses.forced, lambda n, sides=sides: [torch.rand(n, 5), sides, sides])
    assert_compiles(exponentials, lambda n: [torch.rand(n, 5)])
    same, against = torch.arange(5) % 2 == 0, torch.rand(5)
    for real, of_column in ((None, None), (same, None), (None, against), (~same, against)):
        for one in (pair_losses.binary, pair_losses.binary_slopes):
            fields = real, same, torch.rand(5), of_column
            assert_compiles(one, lambda n, fields=fields: [torch.rand(n, 5), *fields])


@pytest.mark.parametrize("loss", [SoftmaxLoss(False), SoftmaxLoss(True), SigmoidLoss()])
def test_inner_products_in_half_precision_are_near(loss: Any) -> None:
    a, b = (F.normalize(torch.randn(9, 8), dim=-1).requires_grad_() for _ in range(2))
    ids = row_ids(torch.arange(9), torch.arange(9) // 2)
    both = []
    for score in (Dot(), Dot(half=True)):
        means = pair_loss(score, loss, (14 * a,), (b,), PairMatrix(ids, ids))
        total = torch.stack([mean.total for mean in means]).sum()
        both.append((total, *torch.autograd.grad(total, (a, b))))
    for exactly, half in zip(*both, strict=True):
        assert 0 < float((exactly - half).detach().norm()) <= HALF * float(exactly.detach().norm())


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("method", ["flair", "caft", "beta_clip", "tgt"])
def test_losses_of_training_in_half_precision_have_half_operands(
    method: str, precision: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[bool] = []
    real = scores.half_operands
    for place in ("text_conditioned", "calibrated", "tiled.vocabulary"):
        monkeypatch.setattr(
            f"grainline.losses.{place}.half_operands", lambda x: calls.append(real(x)) or calls[-1]
        )
    made = build(method)
    Objective(made, precision)(*batch(), CLOCK).total.backward()
    assert set(calls) == {precision == torch.bfloat16}
    assert all(p.grad is None or p.grad.isfinite().all() for p in made.parameters())


def test_a_vocabulary_in_half_precision_is_near() -> None:
    hidden, table = torch.randn(40, 8).requires_grad_(), (3 * torch.randn(50, 8)).requires_grad_()
    target = torch.randint(-1, 50, (40,))
    both = []
    for allowed in (False, True):
        with half_products(allowed):
            total = vocabulary_loss(hidden, table, target).total
        both.append((total, *torch.autograd.grad(total, (hidden, table))))
    for exactly, half in zip(*both, strict=True):
        assert 0 < float((exactly - half).detach().norm()) <= HALF * float(exactly.detach().norm())


def test_without_a_compiler_parts_run_as_they_are(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []

    def compile_(function: Any, dynamic: bool) -> Any:
        assert dynamic

        def call(*_: Any) -> Any:
            calls.append(function.__name__)
            raise torch._dynamo.exc.TorchDynamoException("no C compiler\nand more")

        return call

    monkeypatch.setattr(torch, "compile", compile_)
    monkeypatch.setattr(launch, "TRITON", "3.9.0")
    monkeypatch.setattr(launch, "_refused", set())
    call = launch.fused.__wrapped__(scores.times)
    a, b = torch.rand(2, 3, 4), torch.rand(2, 3)
    assert torch.equal(call(a, b), scores.times(a, b))
    assert calls == [], "on a CPU nothing is compiled"
    monkeypatch.setattr(launch, "_on_gpu", lambda _: True)
    for _ in range(2):
        assert torch.equal(call(a, b), scores.times(a, b))
    assert calls == ["times"]
    assert [record.getMessage() for record in caplog.records] == [
        "the kernel times is not used, torch computes instead: no C compiler"
    ]


@pytest.mark.parametrize("gpu", [False, True])
def test_a_product_is_in_float32_whatever_its_operands_are(
    gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leading axes broadcast, as torch.bmm with a type of its own does not."""
    if gpu:
        bmm = torch.bmm
        monkeypatch.setattr(Tensor, "is_cuda", True)
        monkeypatch.setattr(torch, "bmm", lambda a, b, out_dtype: bmm(a.to(out_dtype), b.to(out_dtype)))
    for left, right in (
        ((2, 1, 3, 8), (4, 8, 5)),
        ((3, 8), (8, 5)),
        ((0, 2, 3, 8), (1, 2, 8, 5)),
        ((2, 0, 8), (8, 5)),
    ):
        a, b = torch.randn(left), torch.randn(right)
        half = scores.product(a, b, half=True)
        assert half.dtype == torch.float32
        torch.testing.assert_close(half, a.bfloat16().float() @ b.bfloat16().float())
    a, b, into = torch.randn(3, 8), torch.randn(8, 5), torch.ones(3, 5)
    for operands in (False, True):
        scores.add_product(into, a, b, operands)
    torch.testing.assert_close(into, 1 + a @ b + scores.product(a, b, half=True))
