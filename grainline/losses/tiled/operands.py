"""The precision of products in losses: no less than float32, but on a GPU in training in half precision.

There operands are float16 and sums float32. float16 has eight times the digits of bfloat16, and less range.
So operands are in units of a power of two, which is exact: none is too large for it, and what is too small is
less than the rounding of the sum. Gradients of losses are right to about 1e-3 then. What is no product is
compiled there (`fused`): a pass over a large tensor takes as long as a product of it.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

SPARE = 2.0**-4
"""Of the unit of the largest gradient, which is 2**4 then: float16 has 2**12 above it and 2**28 below."""

NEW_ADDMM = tuple(map(int, torch.__version__.split(".")[:2])) >= (
    2,
    10,
)  # older ones add to half precision alone

_HALF: ContextVar[bool] = ContextVar("_HALF", default=False)


@contextmanager
def half_products(allowed: bool) -> Iterator[None]:
    """A block whose losses may have operands in half precision. Training puts its losses, which stand outside
    autocast, into one."""
    before = _HALF.set(allowed)
    try:
        yield
    finally:
        _HALF.reset(before)


@contextmanager
def exact(x: Tensor) -> Iterator[None]:
    """A block in which autocast lowers no precision; where it was on, `operands` may all the same."""
    kind = x.device.type
    with half_products(_HALF.get() or torch.is_autocast_enabled(kind)), torch.autocast(kind, enabled=False):
        yield


def on_gpu(x: Tensor) -> bool:
    """Whether products are to be few and large, rather than stay in a cache."""
    return x.device.type == "cuda"


def operands(x: Tensor) -> "Operands":
    """The operands for products of tensors like this one, at least in float32 themselves."""
    half = _HALF.get() and x.dtype == torch.float32 and on_gpu(x)
    return Operands(torch.float16 if half else None)


class Scaled(NamedTuple):
    """Operands of products: `x * unit` is the tensor that they stand for."""

    x: Tensor
    unit: Tensor  # [] a power of two


class Operands:
    """Products of operands of a type, with sums in float32; None: all in the type of the tensors."""

    def __init__(self, dtype: torch.dtype | None) -> None:
        self.dtype, self.size = dtype, 4 if dtype is None else dtype.itemsize

    def scaled(self, x: Tensor) -> Scaled:
        """In units of the power of two above the largest value; bfloat16 has the range of float32."""
        if self.dtype in (None, x.dtype, torch.bfloat16):
            return Scaled(self.cast(x), x.new_ones((), dtype=torch.promote_types(x.dtype, torch.float32)))
        unit = power_above(x)
        return Scaled(torch.div(x, unit, out=torch.empty_like(x, dtype=self.dtype)), unit)  # in one pass

    def slopes(self, by: Tensor, unit: Tensor) -> Tensor:
        """The unit of gradients that are about as large as `by` times a unit."""
        return unit if self.dtype is None else power_above(by) * unit * SPARE

    def cast(self, x: Tensor) -> Tensor:
        return x if self.dtype is None else x.to(self.dtype)

    def wide(self, a: Tensor, b: Tensor) -> Tensor:
        """a @ b, of two or three axes each, in float32."""
        if self.dtype is None:
            return a @ b
        if a.is_cuda and "dtype" in torch.ops.aten.bmm.overloads():  # torch 2.8 and newer
            return (torch.mm if a.dim() == 2 else torch.bmm)(a, b, out_dtype=torch.float32)
        return a.float() @ b.float()

    def add_product(self, into: Tensor, a: Tensor, b: Tensor) -> None:
        """into += a @ b, of two axes each; into is float32."""
        if a.dtype == into.dtype:
            into.addmm_(a, b)
        elif a.is_cuda and NEW_ADDMM:
            torch.addmm(into, a, b, out_dtype=into.dtype, out=into)
        else:
            into += self.wide(a, b)

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """a @ b of float32 tensors."""
        if self.dtype is None:
            return a @ b
        one, other = self.scaled(a), self.scaled(b)
        return self.wide(one.x, other.x) * (one.unit * other.unit)

    def narrow(self, a: Tensor, b: Tensor) -> Tensor:
        """a @ b as operands of further products."""
        return a @ b if self.dtype is None or a.is_cuda else self.cast(a.float() @ b.float())


def power_above(x: Tensor) -> Tensor:
    """The power of two above the largest value: []; 1 for zeros. The host does not wait for it."""
    top = torch.linalg.vector_norm(x.detach(), torch.inf) if x.numel() else x.new_zeros(())
    return torch.ldexp(torch.ones_like(top), torch.frexp(top).exponent)


@cache
def fused(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, compiled for tensors on a GPU; TORCH_COMPILE_DISABLE=1 switches that off."""
    fast: Any = None

    def call(*args: Any) -> Any:
        nonlocal fast
        if fast is function or not args[0].is_cuda:
            return function(*args)
        try:
            fast = fast or (torch.compile(function, dynamic=True) if find_spec("triton") else function)
            return fast(*args)
        except torch._dynamo.exc.TorchDynamoException as error:  # such as a machine without a C compiler
            why = (str(error).strip().splitlines() or [""])[0]
            logging.getLogger(__name__).warning("parts of losses are not compiled, and slower: %s", why)
            fast = function
            return function(*args)

    return call
