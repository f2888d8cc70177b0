"""grainline aligns images with text at every grain.

    import grainline

    model = grainline.load("runs/demo")
    images = model.encode(images=["a.jpg", "b.jpg"])
    texts = model.encode(texts=["A red circle. Below it stands a small striped square."])
    model.score(images, texts)                       # [2, 1]
    model.heat("a.jpg", texts=["the small striped square"])

    grainline.train("clip/scenes", "runs/x", data=["photos/"])
    grainline.evaluate("runs/x", "scenes:dev", "retrieval").metrics

Importing the package loads neither torch nor transformers; the first use of a name does.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grainline.errors import UserError
    from grainline.evaluation.evaluate_model import evaluate
    from grainline.model import Model, load
    from grainline.training.run import train

__version__ = "0.1.0"

__all__ = ["Model", "UserError", "__version__", "evaluate", "load", "train"]

_MODULES = {
    "Model": "grainline.model",
    "UserError": "grainline.errors",
    "evaluate": "grainline.evaluation.evaluate_model",
    "load": "grainline.model",
    "train": "grainline.training.run",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'grainline' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
