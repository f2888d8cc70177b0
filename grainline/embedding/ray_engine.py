"""The units of `grainline encode` by Ray Data (extra `ray`): actors with the model, on nodes of a cluster.

Ray hands out units, waits where actors are behind, and gives units of a dead node to others. As for processes
it is the done-record that counts, so actors and processes may share the work.
"""

import logging
import os
from typing import Any

import torch

from grainline.data.descriptions import Descriptions
from grainline.embedding.work import Settings, Work
from grainline.errors import UserError
from grainline.loading import load
from grainline.progress import Progress


class Actor:
    """A process of Ray with a model and an opened source."""

    def __init__(self, model: str, out: str, settings: Settings, names: tuple[str, ...], folder: str) -> None:
        """names: of files of descriptions; folder: that relative paths begin in"""
        if os.path.isdir(folder):
            os.chdir(folder)
        self.work = Work(load(model), out, settings, Descriptions(names) if names else None)
        self.units = {unit.name: unit for unit in self.work.units}

    def __call__(self, rows: dict[str, Any]) -> dict[str, Any]:
        """Encode the units of a block."""
        for name in map(str, rows["unit"]):
            self.work.encode(self.units[name])
        return {"unit": rows["unit"]}


def encode_units(work: Work, model: str, address: str | None, actors: int, progress: Progress | None) -> None:
    """Encode the units that are left. Raises UserError without Ray, and where no cluster answers.

    model    path of the model, at which each node finds it
    address  None: start Ray on this machine; actors: how many at a time
    """
    try:
        import ray
        import ray.data
    except ImportError:
        raise UserError("--engine ray needs a package: pip install 'grainline[ray]'") from None
    done = work.folder.done()
    left = [{"unit": unit.name} for unit in work.units if unit.name not in done]
    if not left:
        return
    if not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UserError(f"no Ray cluster at {address}: {str(error).splitlines()[0]}") from None
    names = () if work.descriptions is None else work.descriptions.names
    data = ray.data.from_items(left, override_num_blocks=len(left)).map_batches(
        Actor,
        fn_constructor_args=(model, work.folder.out, work.settings, names, os.getcwd()),
        batch_size=1,
        concurrency=min(actors, len(left)),
        num_gpus=1 if torch.cuda.is_available() or ray.cluster_resources().get("GPU") else 0,
    )
    for number, _ in enumerate(data.iter_rows(), len(work.units) - len(left) + 1):
        if progress is not None:
            progress(number, len(work.units))
