"""A function of tensors as a CUDA graph: one launch in place of a hundred, where the host is the limit.

`Graphs.run` calls the function itself for the first calls with the same shapes. Then it runs it on a side
stream, which loads what is loaded late, and captures it once. From then on it copies the inputs into those of
the graph, replays it and returns a copy of its result. Inside such a function are

    allowed      what depends on shapes, types and settings of the key alone; weights that change in place, as
                 a graph reads their memory; tensors that the function makes and forgets
    not allowed  that the host waits (`.item()`, `nonzero`, a print); shapes that depend on values; copies
                 between host and device; tensors that are neither inputs nor named as weights; tensors that
                 outlive the call, as in a cache, since a replay writes their memory again; random numbers

The function is called as it is where gradients are stored, on a CPU, while something is captured, for large
inputs, where another thread is in here, and with GRAINLINE_GRAPHS=off.
"""

import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cache
from threading import Lock
from typing import NamedTuple

import torch
from torch import Tensor

from grainline.kernels.launch import capturing
from grainline.nn.runtime import may_round

Inputs = Sequence[Tensor | None]
Function = Callable[..., Tensor]

VARIABLE = "GRAINLINE_GRAPHS"
MOST = 8  # graphs; each has its inputs and all that it computes in memory of its own
COUNTED = 64  # shapes whose calls are counted
CALLS = 2  # of the function itself before a capture, which takes longer than ten of them
WARM = 2  # calls on the side stream
LARGE = 2**26  # bytes of inputs; copies of more take as long as launches


class _Graph(NamedTuple):
    inputs: Inputs
    replay: Callable[[], object]
    out: Tensor  # what a replay writes

    def __call__(self, tensors: Inputs) -> Tensor:
        for into, x in zip(self.inputs, tensors, strict=True):
            if into is not None and x is not None:
                into.copy_(x)
        self.replay()
        return self.out.clone()


class Graphs:
    """The graphs of one function, the least recently used of which go."""

    def __init__(self) -> None:
        self.graphs: OrderedDict[Hashable, _Graph] = OrderedDict()
        self.calls: OrderedDict[Hashable, int] = OrderedDict()
        self.failed: set[Hashable] = set()
        self._lock = Lock()

    def run(self, function: Function, tensors: Inputs, reads: Iterable[Tensor], state: Hashable) -> Tensor:
        """function(*tensors), a tensor.

        reads  the weights that it reads besides: others, elsewhere in memory, get a graph of their own
        state  whatever else the result depends on
        """
        key = _key(tensors, reads, state)
        if key is None or key in self.failed or not self._lock.acquire(blocking=False):
            return function(*tensors)
        try:
            if (graph := self._graph(key, function, tensors)) is not None:
                return graph(tensors)
        finally:
            self._lock.release()
        return function(*tensors)

    def _graph(self, key: Hashable, function: Function, tensors: Inputs) -> _Graph | None:
        """That of a key, captured now if it is time; None: not yet, or it failed."""
        if key in self.graphs:
            self.graphs.move_to_end(key)
            return self.graphs[key]
        number = self.calls.pop(key, 0)
        if number < CALLS:
            self.calls[key] = number + 1
            if len(self.calls) > COUNTED:
                self.calls.popitem(last=False)
            return None
        try:
            with torch.inference_mode(False), torch.no_grad():
                inputs = [None if x is None else torch.empty_like(x).copy_(x) for x in tensors]
                graph = self.graphs[key] = _Graph(inputs, *capture(function, inputs))
        except Exception as error:  # whatever a driver or a library raises
            both = error, error.__context__  # where a capture fails, its end may raise another error
            if any(type(x).__name__ == "OutOfMemoryError" for x in both):  # there may be room without graphs
                self.graphs.clear()
            else:
                self.failed.add(key)
                why = (str(error).strip().splitlines() or [type(error).__name__])[0]
                message = "a computation is not captured as a CUDA graph, and slower: %s"
                logging.getLogger(__name__).warning(message, why)
            return None
        if len(self.graphs) > MOST:
            self.graphs.popitem(last=False)
        return graph


def _key(tensors: Inputs, reads: Iterable[Tensor], state: Hashable) -> Hashable:
    """What a graph is for; None where the function itself is to be called."""
    given = [x for x in tensors if x is not None]
    if torch.is_grad_enabled() or not given or not all(map(_on_gpu, given)):
        return None
    if sum(x.numel() * x.element_size() for x in given) > LARGE or os.environ.get(VARIABLE) == "off":
        return None
    device, kind = given[0].device, given[0].device.type
    if (stream := stream_of(device)) is None:
        return None
    modes = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind), may_round(device)
    shapes = tuple(None if x is None else (x.shape, x.dtype, x.device) for x in tensors)
    return shapes, tuple((x.data_ptr(), x.shape, x.stride(), x.dtype) for x in reads), stream, modes, state


def _on_gpu(x: Tensor) -> bool:
    return x.device.type == "cuda"


def stream_of(device: torch.device) -> int | None:
    """The number of the current stream, on which replays follow each other; None while it is captured."""
    return None if capturing() else int(torch.cuda.current_stream(device).cuda_stream)


@cache
def _side(device: torch.device, stream: int) -> torch.cuda.Stream:  # noqa: ARG001
    """What graphs for a stream are captured on: they share the workspace of cuBLAS with none of others."""
    return torch.cuda.Stream(device)


def side_stream(device: torch.device) -> torch.cuda.Stream:
    """What graphs for the current stream are captured on."""
    return _side(device, torch.cuda.current_stream(device).cuda_stream)


def capture(function: Function, inputs: Inputs) -> tuple[Callable[[], object], Tensor]:
    """A call of the function with these tensors on a GPU: what replays it, and its result each time."""
    device = next(x.device for x in inputs if x is not None)
    here, graph = torch.cuda.current_stream(device), torch.cuda.CUDAGraph()
    side = side_stream(device)
    side.wait_stream(here)
    with torch.cuda.stream(side):  # around the capture too: where that fails, torch stays on its stream
        for _ in range(WARM):
            function(*inputs)
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            out = function(*inputs)
    here.wait_stream(side)
    return graph.replay, out
