"""From a module to an ONNX file, and how far onnxruntime's results are from torch's."""

import importlib.util
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from grainline.errors import UserError
from grainline.export.towers import OUTPUTS, Outputs
from grainline.nn.static import static

NEEDED = ("onnx", "onnxscript", "onnxruntime")

Axes = Mapping[str, Mapping[int, str]]
"""Input -> axis -> name, of the axes that may have any length."""


class Parity(NamedTuple):
    """Largest absolute differences between onnxruntime and torch."""

    vector: float
    tokens: float  # of real tokens, as a share of the largest number in them where that is above 1

    @property
    def worst(self) -> float:
        """The larger of both; NaN if one is."""
        return float(np.max(self))


def require_onnx() -> None:
    """Raise UserError if one of the libraries is not installed."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"export needs {', '.join(missing)}: pip install 'grainline[onnx]'")


@torch.no_grad()
def write_graph(
    module: nn.Module, example: Sequence[Tensor], axes: Axes, file: Path, longest: Mapping[str, int]
) -> int:
    """Write a module that returns Outputs as an ONNX file; the version of its operators.

    example  one tensor for each input in `axes`, with two rows at least: torch takes 1 for a constant
    longest  the greatest length of some of the named axes

    A graph of more than 2 GB is written as two files, FILE and FILE.data.
    """
    dims = {
        name: torch.export.Dim(name, min=1, max=longest.get(name))
        for name in dict.fromkeys(name for named in axes.values() for name in named.values())
    }
    shapes = {name: {axis: dims[dim] for axis, dim in named.items()} for name, named in axes.items()}
    with static(), _quiet():
        program = torch.export.export(module, tuple(example), dynamic_shapes=shapes, strict=False)
        made: Any = torch.onnx.export(
            program,
            (),
            input_names=list(axes),
            output_names=list(OUTPUTS),
            dynamic_shapes=_named_once(axes),  # here only names: what varies is settled
            dynamo=True,
            verbose=False,
        )
        made.save(file)
    return int(made.model.opset_imports[""])


def session(file: Path) -> Any:
    """The graph in onnxruntime, on the CPU."""
    import onnxruntime

    return onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])


def differences(run: Any, module: nn.Module, inputs: Sequence[Sequence[Tensor]]) -> Parity:
    """Run a session and its module on several inputs and compare all that counts.

    Padding is not compared: what stands there is no one's concern. Masks must be equal.
    """
    names = [entry.name for entry in run.get_inputs()]
    vector, tokens = [], []
    for tensors in inputs:
        feed = {name: x.numpy() for name, x in zip(names, tensors, strict=True)}
        found = Outputs(*map(torch.from_numpy, run.run(list(OUTPUTS), feed)))
        with torch.no_grad():
            wanted: Outputs = module(*tensors)
        if not torch.equal(found.token_mask, wanted.token_mask):
            return Parity(float("nan"), float("nan"))
        vector.append(_largest(found.vector, wanted.vector))
        mask = wanted.token_mask
        size = _largest(wanted.tokens[mask], torch.zeros(()))
        tokens.append(_largest(found.tokens[mask], wanted.tokens[mask]) / max(1.0, size))
    return Parity(float(np.max(vector)), float(np.max(tokens)))


def _named_once(axes: Axes) -> dict[str, dict[int, str]]:
    """The axes without those that an input before has named: torch warns of names that come again.

    >>> _named_once({"ids": {0: "texts", 1: "tokens"}, "mask": {0: "texts", 1: "tokens"}})
    {'ids': {0: 'texts', 1: 'tokens'}, 'mask': {}}
    """
    seen: set[str] = set()
    out = {}
    for name, named in axes.items():
        out[name] = {axis: dim for axis, dim in named.items() if dim not in seen}
        seen.update(named.values())
    return out


def _largest(a: Tensor, b: Tensor) -> float:
    """The largest difference; 0 where there is nothing to compare, as with texts that have no tokens."""
    apart = (a.double() - b.double()).abs()
    return float(apart.max()) if apart.numel() else 0.0


@contextmanager
def _quiet() -> Iterator[None]:
    """torch warns of its own deprecations, and that torchvision is not there."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        logging.disable(before)
