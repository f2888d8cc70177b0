"""Layers that are computed again, layers that are compiled, and towers that do not learn."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import tuning
from make import CLOCK
from torch import Tensor, nn

from grainline.errors import UserError
from grainline.methods.base import Method
from grainline.nn.attention import layer_lists
from grainline.nn.hashing import IMAGES, number_places, rows_of
from grainline.training.optim import OptimizerConfig, ParamRule, param_groups, train_mode
from grainline.training.step import compile_layers, recompute_layers, step
from grainline.types import Clock

compiles = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor"
)  # torch's own, while it compiles


def stepped(method: Method, run: Callable[..., dict[str, Tensor]] = step) -> dict[str, Tensor]:
    """The terms of one noisy step, always with the same noise; gradients are left in the method."""
    torch.manual_seed(0)
    data = tuning.batch(method)
    torch.manual_seed(1)
    return run(method.train(), *data, CLOCK)


def assert_same(
    a: Method, b: Method, one: dict[str, Tensor], other: dict[str, Tensor], atol: float = 1e-5
) -> None:
    torch.testing.assert_close(one, other)
    for (name, p), q in zip(a.named_parameters(), b.parameters(), strict=True):
        assert p.grad is not None, name
        torch.testing.assert_close(
            p.grad, q.grad, rtol=1.3e-6, atol=atol, msg=lambda m, name=name: f"{name}: {m}"
        )


def kept_bytes(method: Method) -> int:
    """What a forward pass keeps for the backward pass: saved tensors, and inputs of layers."""
    kept: dict[int, int] = {}

    def keep(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    layers = [layer for layers in layer_lists(method).values() for layer in layers]
    hooks = [
        layer.register_forward_pre_hook(lambda _, x: [keep(y) for y in x if isinstance(y, Tensor)] and None)
        for layer in layers
    ]
    images, texts = tuning.batch(method)
    weights = {p.untyped_storage().data_ptr() for p in method.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        out = method.encode_images(images).vector.sum() + method.encode_texts(texts).vector.sum()
    for hook in hooks:
        hook.remove()
    total = sum(size for place, size in kept.items() if place not in weights)
    out.backward()
    return total


@pytest.mark.parametrize("case", tuning.CASES)
def test_layers_are_computed_again_with_the_same_noise_and_keep_less(case: str) -> None:
    plain = tuning.method(case, noise=0.3)
    saving = copy.deepcopy(plain)
    recompute_layers(saving)
    assert_same(plain, saving, stepped(plain), stepped(saving))
    noise = stepped(plain), stepped(plain.eval(), lambda m, *rest: step(m.eval(), *rest))
    assert not torch.allclose(noise[0]["i2t"], noise[1]["i2t"]), "else there was no noise to repeat"
    full, less = kept_bytes(plain.train()), kept_bytes(saving.train())
    assert less < 0.5 * full, (less, full)


def test_a_layer_that_does_not_learn_above_one_that_does_is_computed_again_too() -> None:
    method = tuning.method("clip")
    rules = [
        ParamRule(pattern=r"towers\.image\.model\.encoder\.layers\..*", lr_factor=0),
        ParamRule(pattern=".*"),
    ]
    param_groups(method, OptimizerConfig(rules=tuple(rules)))
    saving = copy.deepcopy(method)
    recompute_layers(saving)
    for m in (method, saving):
        train_mode(m)
    assert not saving.get_submodule("towers.image.model.encoder.layers.0").training
    assert kept_bytes(saving) < 0.5 * kept_bytes(method)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.gain * x
        return x if float(x.sum()) > 0 else -x  # a compiler cannot know


def test_what_has_no_layers_or_would_count_a_batch_twice_is_refused() -> None:
    for prepare, option in (
        (recompute_layers, "train.activation_checkpointing"),
        (compile_layers, "train.compile"),
    ):
        with pytest.raises(UserError, match=f"{option} finds no list of layers in this model"):
            prepare(nn.Linear(2, 2))
        method: Any = tuning.method("ours")
        method.towers.text.stack = nn.Identity()
        with pytest.raises(UserError, match=f"{option} finds no list of layers in the encoder towers.text"):
            prepare(method)
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.BatchNorm1d(2)])})
    with pytest.raises(UserError, match=r"cannot compute layers.0 twice: its running statistics"):
        recompute_layers(model)


def few_layers(method: Method, number: int) -> Method:
    """The method with so many layers in each list at most: each of them is traced anew."""
    for layers in layer_lists(method).values():
        del layers[number:]
    return method


@compiles
def test_compiled_noise_takes_batches_of_any_size() -> None:
    """As batches and groups of texts of similar length have; the noise is that of the rows in either."""
    torch._dynamo.reset()
    plain = tuning.method("ours", noise=0.3)
    fast = copy.deepcopy(plain)
    for method in (plain, fast):
        number_places(method)
    compile_layers(fast, lambda graph, inputs: graph)  # noqa: ARG005
    for number in (5, 3, 7, 4):
        torch.manual_seed(number)
        images, _ = tuning.batch(plain, number)
        actual = []
        for method in (plain, fast):
            with rows_of(Clock(), IMAGES, images.image):
                actual.append(method.train().encode_images(images).vector)
        torch.testing.assert_close(*actual)


@compiles
@pytest.mark.parametrize("case", ["ours", "clip", "vit and bert"])
def test_compiled_layers_compute_the_same(case: str) -> None:
    """Every layer is traced as a whole, alone and with recomputation; what makes code of it is left out."""
    torch._dynamo.reset()
    graphs = []

    def backend(graph: Any, inputs: list[Tensor]) -> Callable[..., Any]:  # noqa: ARG001
        def ran(*args: Any) -> Any:
            graphs.append(graph)
            return graph(*args)

        return ran

    plain = few_layers(tuning.method(case, noise=0.3), 2 if case == "ours" else 1)
    fast, both = copy.deepcopy(plain), copy.deepcopy(plain)
    compile_layers(fast, backend)
    expected = stepped(plain)
    # Texts have other shapes there, and sums over them another order.
    assert_same(plain, fast, expected, stepped(fast), atol=3e-5)
    layers = sum(map(len, layer_lists(plain).values()))
    assert len(graphs) >= layers
    compile_layers(both, backend)
    recompute_layers(both)
    graphs.clear()
    assert_same(plain, both, expected, stepped(both), atol=3e-5)
    assert len(graphs) >= 2 * layers, "forward, and again in the backward pass"
    torch.manual_seed(0)
    images, _ = tuning.batch(plain, 5)
    with torch.no_grad():
        torch.testing.assert_close(
            fast.eval().encode_images(images).vector, plain.eval().encode_images(images).vector
        )


@compiles
def test_gradients_are_traced_through_autograd_too() -> None:
    torch._dynamo.reset()
    plain = few_layers(tuning.method("clip"), 1)
    both = copy.deepcopy(plain)
    compile_layers(both, "aot_eager")
    recompute_layers(both)
    assert_same(plain, both, stepped(plain), stepped(both))


@compiles
def test_a_layer_that_cannot_be_compiled_is_an_error_and_not_slow() -> None:
    torch._dynamo.reset()
    model: Any = nn.ModuleDict({"layers": nn.ModuleList([Layer()])})
    compile_layers(model, "eager")
    with pytest.raises(UserError, match=r"train.compile cannot compile layers.0: .*; leave it out"):
        model.layers[0](torch.ones(2))


@compiles
def test_many_unlike_layers_are_compiled_each() -> None:
    """More variants than torch's default limit of 8."""
    torch._dynamo.reset()
    model: Any = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(n, n + 1) for n in range(2, 14)])})
    compile_layers(model, "eager")
    x = torch.ones(3, 2)
    for layer in model.layers:
        x = layer(x)
    assert x.shape == (3, 14)


# Towers that do not learn

LOCKED = {"tower": (r"towers\.image\..*",), "side": (r"towers\.image\..*", r"towers\.to_image\..*")}


@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize("locked", LOCKED)
@pytest.mark.parametrize("case", ["ours", "clip"])
def test_a_frozen_tower_runs_without_a_graph(case: str, locked: str, chunk: int | None) -> None:
    """Its output asks for no gradient, nothing in it is kept, and it is in evaluation mode throughout."""
    method: Any = tuning.method(case, noise=0.5)
    rules = [
        *(ParamRule(pattern=pattern, lr_factor=0) for pattern in LOCKED[locked]),
        ParamRule(pattern=".*"),
    ]
    param_groups(method, OptimizerConfig(rules=tuple(rules)))
    train_mode(method)
    tower = method.towers.image
    assert not any(module.training for module in tower.modules())
    assert method.towers.text.training
    graphs: list[bool] = []
    hooks = [
        module.register_forward_hook(lambda _, __, out: graphs.extend(x.requires_grad for x in flat(out)))
        for module in tower.modules()
    ]
    calls: list[int] = []
    tower.register_forward_hook(lambda _, x, __: calls.append(len(x[0])))
    torch.manual_seed(0)
    images, texts = tuning.batch(method)
    if chunk is None:
        step(method, images, texts, CLOCK)
    else:
        step(method, images, texts, CLOCK, chunk)
    assert graphs
    assert not any(graphs)
    assert all(p.grad is None for p in tower.parameters())
    assert all(p.grad is not None for p in method.towers.text.parameters())
    once = [len(images.image)] if chunk is None else [3, 1]
    again = chunk is not None and locked == "tower"  # the projection learns and was not kept
    assert sorted(calls) == sorted(once * 2 if again else once)
    for hook in hooks:
        hook.remove()


def flat(values: Any) -> list[Tensor]:
    """All tensors with numbers that a module gave."""
    if isinstance(values, Tensor):
        return [values] if values.is_floating_point() else []
    parts = (
        values.values() if isinstance(values, dict) else values if isinstance(values, tuple | list) else ()
    )
    return [x for part in parts for x in flat(part)]
