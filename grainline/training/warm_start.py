"""Beginning with the weights of an earlier run, of this method or of another one with the same encoders."""

import sys
from pathlib import Path
from typing import NamedTuple

import torch

from grainline.data.tokenizers.tokenized import TextTokenizer
from grainline.errors import UserError
from grainline.methods.base import Method
from grainline.model import find_run, load

TOWERS = "towers."  # encoders and projections: what a run must give whole


class Earlier(NamedTuple):
    """What an earlier run gives to a new one."""

    path: str
    weights: dict[str, torch.Tensor]
    tokenizer: TextTokenizer


def read_earlier_run(path: str) -> Earlier:
    """The weights and tokenizer of a run, or of a folder inside one. Raises UserError for anything else."""
    if find_run(Path(path)) is None:
        raise UserError(
            f"begin is {path}, which is no run of grainline; for others there is model.pretrained"
        )
    model = load(path, device="cpu")
    return Earlier(path, model.method.state_dict(), model.tokenizer)


@torch.no_grad()
def begin_with(method: Method, earlier: Earlier) -> list[str]:
    """Copy every tensor that both have; the names of those that stay as they are.

    Raises UserError where the run lacks a part of the encoders, or has a tensor of another shape.
    """
    own = method.state_dict()
    needed = [name for name in own if name.startswith(TOWERS) and not name.startswith(method.fresh)]
    lacking = [name for name in needed if name not in earlier.weights]
    if lacking:
        raise UserError(
            f"the run {earlier.path} has no {lacking[0]} ({len(lacking)} tensors are missing): it can begin "
            "only what has the same encoders"
        )
    for name, x in own.items():
        there = earlier.weights.get(name)
        if there is not None and there.shape != x.shape:
            raise UserError(
                f"{name} is {tuple(there.shape)} in the run {earlier.path} and {tuple(x.shape)} here; give "
                "the model the sizes that the run has"
            )
    for name, x in own.items():
        if name in earlier.weights:
            x.copy_(earlier.weights[name])
    return [name for name in own if name not in earlier.weights]


def say(fresh: list[str], earlier: Earlier) -> None:
    """One line about what did not come from the run."""
    parts = dict.fromkeys(name.partition(".")[0] for name in fresh)
    what = f"fresh are {len(fresh)} tensors of {', '.join(parts)}" if fresh else "nothing is fresh"
    print(f"begins with {earlier.path}; {what}", file=sys.stderr)
