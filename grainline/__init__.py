"""Train, evaluate and search with CLIP-like models.

    import grainline

    model = grainline.load("runs/demo")          # or a folder, or a name of the Hugging Face hub
    images = model.encode(images=["a.jpg", "b.jpg"])
    texts = model.encode(texts="A red circle. Below it stands a small striped square.")
    model.similarity(images, texts)              # [2, 1]
    model.heat("a.jpg", texts=["the small striped square"])
    model.heat_image("a.jpg", "the small striped square").save("look.png")

    grainline.train("clip/scenes", "runs/x", data="photos/")
    result = grainline.evaluate("runs/x", "photos/")
    result["text to image R@1"].value

load             a run folder, a saved model, or a checkpoint by name -> Model
from_pretrained  the same function, by the name it has in transformers
train            a recipe and data -> the folder of the trained weights
evaluate         a model, or vectors of another program, and data -> Result, with intervals and chance
compare          models and data -> a table of all, with ranks; two results -> every difference
Result           print, ["text to image R@1"], save, load, to_dict, compare
Model            encode, similarity, heat, heat_image, segment, save, push_to_hub
Callback         what `train` calls after steps and validations; StopTraining ends a run
UserError        what is raised when an input is wrong: one line that says what is allowed

Importing the package loads neither torch nor transformers; the first use of a name does.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grainline.errors import UserError
    from grainline.evaluation.evaluate_model import evaluate
    from grainline.evaluation.result import Result
    from grainline.evaluation.run_comparison import compare
    from grainline.loading import from_pretrained, load
    from grainline.model import Model
    from grainline.training.log import Callback, StopTraining
    from grainline.training.run import train

__version__ = "0.1.0"

__all__ = [
    "Callback",
    "Model",
    "Result",
    "StopTraining",
    "UserError",
    "__version__",
    "compare",
    "evaluate",
    "from_pretrained",
    "load",
    "train",
]

# Threads of torch that wait spin for 3 ms by default, and take the cores from every other process. Here they
# sleep after 10 us, which spans the gap between two small operations of one model: sleeping at once would
# double the time of a tile. libgomp reads the count, other runtimes the policy, when torch is loaded; later
# neither has an effect. A value that somebody has set wins.
if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
    os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}

_MODULES = {
    "Callback": "grainline.training.log",
    "Model": "grainline.model",
    "StopTraining": "grainline.training.log",
    "UserError": "grainline.errors",
    "Result": "grainline.evaluation.result",
    "compare": "grainline.evaluation.run_comparison",
    "evaluate": "grainline.evaluation.evaluate_model",
    "from_pretrained": "grainline.loading",
    "load": "grainline.loading",
    "train": "grainline.training.run",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'grainline' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
