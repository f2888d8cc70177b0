"""CUDA graphs without a GPU: a replay is the same call again, or its operations with the same tensors."""

import logging
from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest
import torch
from make import batch as batch_of
from make import build
from test_beta import Beta, pairs_of, slot_keys
from test_chunked import Waits
from test_pooled import Case
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from grainline import types
from grainline.kernels import launch
from grainline.losses import text_conditioned
from grainline.losses.calibrated import beta_bce, beta_ce, beta_ce_both
from grainline.losses.text_conditioned import pooled_scores
from grainline.losses.tiled import operands as precision
from grainline.losses.tiled import pair_loss, replayed
from grainline.losses.tiled.operands import half_products
from grainline.losses.tiled.pair_mask import PairMatrix
from grainline.nn import graphs
from grainline.nn.graphs import CALLS, MOST, Graphs
from grainline.nn.pooling import KeyValue
from grainline.types import Mean


class Tape(TorchDispatchMode):
    """Operations with their tensors; `replay` runs them again and writes into the same results."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.steps.append((func, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        for func, args, kwargs, out in self.steps:
            both = zip(tree_leaves(out), tree_leaves(func(*args, **kwargs)), strict=True)
            for into, x in both:
                if isinstance(x, Tensor) and x.data_ptr() != into.data_ptr():
                    into.copy_(x)


Capture = tuple[Callable[[], object], Tensor]


def again(function: Callable[..., Tensor], inputs: Any) -> Capture:
    out = function(*inputs)
    return lambda: out.copy_(function(*inputs)), out


def taped(function: Callable[..., Tensor], inputs: Any) -> Capture:
    with Tape() as tape:
        out = function(*inputs)
    return tape.replay, out


@pytest.fixture(autouse=True)
def captures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The inputs of each capture. Tensors count as those of a GPU."""
    inputs: list[Any] = []
    monkeypatch.setattr(graphs, "_on_gpu", lambda _: True)
    monkeypatch.setattr(graphs, "stream_of", lambda _: 0)
    monkeypatch.setattr(graphs, "capture", lambda f, x: inputs.append(x) or again(f, x))
    return inputs


class Layer:
    """A layer that counts its calls, and its graphs."""

    def __init__(self) -> None:
        self.linear, self.calls, self.graphs = nn.Linear(3, 2), 0, Graphs()

    def __call__(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        self.calls += 1
        return self.linear(x if y is None else x + y)

    def run(self, *tensors: Any, state: Any = None) -> Tensor:
        return self.graphs.run(self, tensors, self.linear.parameters(), state)

    def warm(self, *tensors: Any) -> None:
        """Until there is a graph."""
        for _ in range(CALLS + 1):
            self.run(*tensors)


@torch.no_grad()
def test_a_graph_follows_some_calls_and_its_results_stay(captures: list[Any]) -> None:
    layer, inputs = Layer(), [torch.randn(4, 3) for _ in range(6)]
    found = [layer.run(x) for x in inputs]
    assert len(captures) == 1
    for i, (x, out) in enumerate(zip(inputs, found, strict=True)):
        assert torch.equal(out, layer.linear(x)), f"call {i}"
    assert captures[0][0] is not inputs[CALLS], "inputs have a place of their own"
    assert torch.equal(captures[0][0], inputs[-1])


@torch.no_grad()
def test_each_shape_type_and_state_has_its_graph(captures: list[Any]) -> None:
    layer, x = Layer(), torch.randn(4, 3)
    layer.warm(x)
    layer.warm(x[:2])
    layer.warm(x, x)
    layer.warm(x, x[:1])
    assert [len(some) for some in captures] == [1, 1, 2, 2]
    layer.warm(x.T.contiguous().T)
    assert len(captures) == 4, "strides are no reason"
    assert torch.equal(layer.run(x, x[:1]), layer.linear(x + x[:1]))
    for _ in range(CALLS + 1):
        layer.run(x, state="half")
    assert len(captures) == 5
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(CALLS + 1):
            assert layer.run(x).dtype == torch.bfloat16
    assert layer.run(x).dtype == torch.float32
    layer.linear.double()
    layer.warm(x.double())
    assert torch.equal(layer.run(x.double()), layer.linear(x.double()))
    assert len(captures) == 7


@torch.no_grad()
def test_products_in_tf32_have_graphs_of_their_own(
    captures: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, x = Layer(), torch.randn(4, 3)
    for rounds in (False, True):
        monkeypatch.setattr(graphs, "may_round", lambda _, rounds=rounds: rounds)
        layer.warm(x)
    assert len(captures) == 2


@torch.no_grad()
@pytest.mark.parametrize("way", [again, taped])
def test_weights_are_read_where_they_are(
    way: Any, captures: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "capture", lambda f, x: captures.append(x) or way(f, x))
    layer, x = Layer(), torch.randn(4, 3)
    layer.warm(x)
    layer.linear.weight.mul_(3)
    assert torch.equal(layer.run(x), layer.linear(x))
    assert len(captures) == 1
    old, layer.linear.weight = layer.linear.weight, nn.Parameter(torch.randn(2, 3))
    for _ in range(CALLS + 2):
        assert torch.equal(layer.run(x), layer.linear(x))
    assert len(captures) == 2
    layer.linear.weight = old
    assert torch.equal(layer.run(x), layer.linear(x))
    assert len(captures) == 2, "the graph of the old weights is still there"


@torch.no_grad()
def test_the_least_recently_used_graph_goes(captures: list[Any]) -> None:
    layer, inputs = Layer(), [torch.randn(i + 1, 3) for i in range(MOST + 1)]
    for x in inputs[:-1]:
        layer.warm(x)
    layer.run(inputs[0])
    layer.warm(inputs[-1])
    assert len(layer.graphs.graphs) == MOST
    assert len(captures) == MOST + 1
    layer.run(inputs[0])
    assert len(captures) == MOST + 1
    layer.warm(inputs[1])
    assert len(captures) == MOST + 2
    assert torch.equal(layer.run(inputs[1]), layer.linear(inputs[1]))


@torch.no_grad()
def test_shapes_that_do_not_come_back_are_forgotten(captures: list[Any]) -> None:
    layer = Layer()
    for i in range(graphs.COUNTED + 5):
        layer.run(torch.randn(i + 1, 3))
    assert captures == []
    assert len(layer.graphs.calls) == graphs.COUNTED


@torch.no_grad()
def test_what_cannot_be_captured_is_tried_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[Any] = []

    def fails(_: Any, inputs: Any) -> Any:
        tried.append(inputs)
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr(graphs, "capture", fails)
    layer, x = Layer(), torch.randn(4, 3)
    with caplog.at_level(logging.INFO):
        for _ in range(CALLS + 4):
            assert torch.equal(layer.run(x), layer.linear(x))
    assert len(tried) == 1
    assert [record.getMessage() for record in caplog.records] == [
        "a computation is not captured as a CUDA graph, and slower: "
        "operation not permitted when stream is capturing"
    ]
    layer.warm(x[:2])
    assert len(tried) == 2, "other shapes are"


@torch.no_grad()
def test_a_full_memory_frees_the_graphs_and_is_no_failure(
    captures: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    layer, x = Layer(), torch.randn(4, 3)
    layer.warm(x[:2])
    works = graphs.capture

    def full(*_: Any) -> Any:
        try:
            raise torch.OutOfMemoryError("full")
        finally:
            raise RuntimeError("the capture was invalidated")

    monkeypatch.setattr(graphs, "capture", full)
    layer.warm(x)
    assert torch.equal(layer.run(x), layer.linear(x))
    assert (len(layer.graphs.graphs), layer.graphs.failed, caplog.records) == (0, set(), [])
    monkeypatch.setattr(graphs, "capture", works)
    layer.warm(x)
    assert len(captures) == 2


def test_gradients_large_inputs_and_a_capture_around_it_call_the_function(
    captures: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, x = Layer(), torch.randn(4, 3)
    for _ in range(CALLS + 2):
        assert layer.run(x).requires_grad
    with torch.no_grad():
        with monkeypatch.context() as patch:
            patch.setattr(graphs, "LARGE", 47)
            layer.warm(x)
        with monkeypatch.context() as patch:
            patch.setattr(graphs, "stream_of", lambda _: None)
            layer.warm(x)
        with monkeypatch.context() as patch:
            patch.setattr(graphs, "_on_gpu", lambda some: some is not x)
            layer.warm(x)
            layer.warm(x[:1], x)
        with monkeypatch.context() as patch:
            patch.setenv(graphs.VARIABLE, "off")
            layer.warm(x)
        assert captures == []
        monkeypatch.setattr(graphs, "LARGE", 48)
        layer.warm(x)
    assert len(captures) == 1


@torch.no_grad()
def test_another_thread_does_not_wait(captures: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x, others = Layer(), torch.randn(4, 3), list[Tensor]()
    for _ in range(CALLS):
        layer.run(x)

    def meanwhile(function: Any, inputs: Any) -> Capture:
        thread = Thread(target=lambda: others.append(torch.no_grad()(layer.run)(2 * x)))
        thread.start()
        thread.join(20)
        return again(function, inputs)

    monkeypatch.setattr(graphs, "capture", meanwhile)
    assert torch.equal(layer.run(x), layer.linear(x))
    assert torch.equal(others[0], layer.linear(2 * x))
    assert captures == []


def test_graphs_of_inference_mode_serve_outside_of_it() -> None:
    layer, x = Layer(), torch.randn(4, 3)
    with torch.inference_mode():
        layer.warm(torch.randn(4, 3))
    with torch.no_grad():
        found = layer.run(x)
        assert torch.equal(found, layer.linear(x))
    with torch.inference_mode():
        assert torch.equal(layer.run(x), found)
    assert len(layer.graphs.graphs) == 1


def test_a_kernel_that_fails_in_a_capture_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise RuntimeError("the capture was invalidated")

    assert not launch.capturing()
    monkeypatch.setattr(launch, "_refused", set())
    monkeypatch.setattr(launch, "capturing", lambda: True)
    with pytest.raises(RuntimeError, match="invalidated"):
        launch.run("attend", fails, lambda: None)
    assert launch._refused == set()


# Scores of few pairs

WAYS = pytest.mark.parametrize(("heads", "slots"), [(1, 3), (3, 3), (3, 7)], ids=["gram", "few", "dense"])


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (text_conditioned, precision):
        monkeypatch.setattr(place, "on_gpu", lambda _: True)
    monkeypatch.setattr(text_conditioned, "_GRAPHS", Graphs())


@WAYS
@pytest.mark.parametrize("way", [again, taped])
@pytest.mark.parametrize("half", [None, "operands", "keys"])
@pytest.mark.parametrize("masks", [True, False])
@pytest.mark.usefixtures("as_on_a_gpu")
def test_scores_by_a_graph_are_those_of_the_function(
    heads: int,
    slots: int,
    way: Any,
    half: str | None,
    masks: bool,
    captures: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Replayed as operations with the same tensors too: no branch and no cache depends on what a call was
    given."""
    monkeypatch.setattr(graphs, "capture", lambda f, x: captures.append(x) or way(f, x))
    case = Case(heads, torch.float32, slots=slots)
    plain = text_conditioned._scores
    for i in range(CALLS + 3):
        texts = torch.randn(4, 3, 12)
        real = torch.rand(4, 3) > 0.4 if masks else None
        segments = (torch.rand(5, slots) > 0.4) if masks else None
        with torch.no_grad(), half_products(half == "operands"):
            keys = case.pool.keys(torch.randn(5, slots, 12), segments)
            if half == "keys":
                keys = KeyValue(keys.key.bfloat16(), keys.value.bfloat16(), segments)
            found = pooled_scores(case.pool, keys, texts, real)
            assert torch.equal(found, plain(case.pool, texts, real, *keys)), f"call {i}"
        if i == CALLS + 1:
            with torch.no_grad():
                for p in case.pool.parameters():
                    p.mul_(1.1)
    assert len(captures) == 1


@pytest.mark.usefixtures("as_on_a_gpu")
def test_many_pairs_gradients_and_no_pairs_have_no_graph(
    captures: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(3, torch.float32)
    keys, texts = case.pool.keys(case.segments, case.mask), case.texts.detach()[:, None]
    most = text_conditioned.FEW_IN_GRAPH
    assert most < text_conditioned.FEW_ON_GPU, "a QR cannot be captured"
    for _ in range(CALLS + 1):
        assert pooled_scores(case.pool, keys, texts).requires_grad
        with torch.no_grad():
            assert pooled_scores(case.pool, keys, texts[:0]).shape == (5, 0)
            monkeypatch.setattr(text_conditioned, "FEW_IN_GRAPH", 5 * 15 - 1)
            pooled_scores(case.pool, keys, texts)
            monkeypatch.setattr(text_conditioned, "FEW_IN_GRAPH", most)
    assert captures == []
    assert text_conditioned._GRAPHS.calls == {}


@torch.no_grad()
@pytest.mark.usefixtures("as_on_a_gpu")
def test_half_operands_have_graphs_of_their_own(captures: list[Any]) -> None:
    case = Case(3, torch.float32)
    keys, texts, found = case.pool.keys(case.segments), case.texts[:, None], []
    for half in (False, True):
        with half_products(half):
            found += [pooled_scores(case.pool, keys, texts) for _ in range(CALLS + 1)]
    assert len(captures) == 2
    assert not torch.equal(found[0], found[-1])


@torch.no_grad()
@WAYS
@pytest.mark.parametrize("masks", [True, False])
@pytest.mark.usefixtures("as_on_a_gpu")
def test_nothing_waits_in_what_is_captured(
    heads: int, slots: int, masks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, waits = Case(heads, torch.float32, slots=slots), Waits()
    monkeypatch.setattr(types, "_here", lambda x: x not in waits.device)
    keys = case.pool.keys(case.segments, case.mask if masks else None)
    real = torch.rand(4, 3) > 0.4 if masks else None
    texts = case.texts[:12].unflatten(0, (4, 3)).detach()
    waits.put([x for x in (*keys, texts, real, *case.pool.parameters()) if x is not None])
    with waits, half_products(True):
        text_conditioned._scores(case.pool, texts, real, *keys)
    assert waits.files == set()


@torch.no_grad()
@pytest.mark.parametrize("case", ["flair", "caft-plus"])
@pytest.mark.usefixtures("as_on_a_gpu")
def test_methods_score_by_graphs(case: str, captures: list[Any]) -> None:
    method, (images, texts) = build(case), batch_of()
    method.eval()
    pair = method.precompute(method.encode_images(images)), method.encode_texts(texts)
    scores = [method.score(*pair) for _ in range(CALLS + 2)]
    assert len(captures) == 1
    assert all(torch.equal(x, scores[0]) for x in scores)


# Losses of few pairs by inner products

LOSSES: dict[str, Callable[[Tensor, Tensor, PairMatrix], list[Mean]]] = {
    "both": lambda v, t, pairs: list(beta_ce_both(v, t, pairs)),
    "rows": lambda v, t, pairs: [beta_ce(v, t, pairs)],
    "bce": lambda v, t, pairs: [beta_bce(v, t, pairs, "pairs")],
}


def compared(loss: str, padded: bool, seed: int) -> tuple[list[Tensor], list[Tensor]]:
    """Means of a loss, and its gradients with other weights for the two means."""
    g = torch.Generator().manual_seed(seed)
    v, t = (torch.randn(12, 8, generator=g, requires_grad=True) for _ in range(2))
    item = torch.arange(12)
    if padded:
        item = item.masked_fill(torch.rand(12, generator=g) < 0.3, -1)
    keys = slot_keys(item, torch.arange(12) // 3, 3, 2)
    means = LOSSES[loss](v, t, pairs_of(keys, keys, Beta(0.3, 0.5)))
    values = [mean.total / mean.number for mean in means]
    whole = sum((0.7 + i) * value for i, value in enumerate(values))
    return [x.detach() for x in values], list(torch.autograd.grad(whole, (v, t)))


@pytest.fixture
def losses_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replayed, "on_gpu", lambda _: True)
    monkeypatch.setattr(replayed, "_GRAPHS", Graphs())


@pytest.mark.usefixtures("losses_on_a_gpu")
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("way", [again, taped])
def test_losses_by_a_graph_are_those_of_the_tiles(
    loss: str, way: Any, captures: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and the gradients by each mean; the ids of a batch are inputs too."""
    monkeypatch.setattr(graphs, "capture", lambda f, x: captures.append(x) or way(f, x))
    for seed in range(CALLS + 4):
        found = compared(loss, seed % 2 == 0, seed)
        with monkeypatch.context() as plain:
            plain.setattr(replayed, "FEW", 0)
            expected = compared(loss, seed % 2 == 0, seed)
        for a, b in zip([*found[0], *found[1]], [*expected[0], *expected[1]], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
    assert len(captures) == 1


@pytest.mark.usefixtures("losses_on_a_gpu")
def test_each_kind_of_loss_has_a_graph_of_its_own(captures: list[Any]) -> None:
    for loss in LOSSES:
        for seed in range(CALLS + 2):
            compared(loss, False, seed)
    assert len(captures) == len(LOSSES)


@pytest.mark.usefixtures("losses_on_a_gpu")
def test_other_losses_have_no_graph(captures: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Many pairs, weights of negatives, several tiles, nothing that learns; nor has a second derivative."""
    v = torch.randn(6, 4, requires_grad=True)
    keys = slot_keys(torch.arange(6), torch.arange(6) // 3, 3)
    pairs = pairs_of(keys, keys, Beta(0.3))

    def calls(rows: Tensor, pairs: PairMatrix) -> None:
        for _ in range(CALLS + 2):
            beta_bce(rows, rows.detach(), pairs, "pairs")

    calls(v, pairs._replace(against=torch.ones(6)))
    calls(v.detach(), pairs)
    with torch.no_grad():
        calls(v, pairs)
    for name, value in (("FEW", 35), ("on_gpu", lambda _: False)):
        with monkeypatch.context() as patch:
            patch.setattr(replayed, name, value)
            calls(v, pairs)
    with monkeypatch.context() as patch:
        patch.setattr("grainline.losses.tiled.scores.CACHED", 3)
        calls(v, pairs)
    assert captures == []
    calls(v, pairs)
    assert len(captures) == 1
    loss = beta_bce(v, v.detach(), pairs, "pairs").total
    with pytest.raises(RuntimeError, match="differentiable once"):
        torch.autograd.grad(loss, v, create_graph=True)


@pytest.mark.usefixtures("losses_on_a_gpu")
@pytest.mark.parametrize("loss", LOSSES)
def test_nothing_waits_in_a_loss_that_is_captured(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waits, whole = Waits(), replayed._whole
    monkeypatch.setattr(types, "_here", lambda x: x not in waits.device)
    for place in (precision, pair_loss):
        monkeypatch.setattr(place, "on_gpu", lambda _: True)

    def watched(function: Any, walk: Any, wanted: Any, *given: Tensor) -> Tensor:
        waits.put(list(given))
        with waits:
            return whole(function, walk, wanted, *given)

    monkeypatch.setattr(replayed, "_whole", watched)
    with half_products(True):
        compared(loss, True, 0)
    assert waits.files == set()
