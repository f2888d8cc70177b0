"""grainline aligns images with text at every grain.

    import grainline

    model = grainline.load("runs/demo")
    images = model.encode(images=["a.jpg", "b.jpg"])
    texts = model.encode(texts=["A red circle. Below it stands a small striped square."])
    model.score(images, texts)                       # [2, 1]
    model.heat("a.jpg", texts=["the small striped square"])

Importing the package loads neither torch nor transformers; the first use of a name does.
"""

from typing import Any

__version__ = "0.1.0"

__all__ = ["Model", "UserError", "__version__", "load"]


def __getattr__(name: str) -> Any:
    if name in ("Model", "load"):
        from grainline import model

        return getattr(model, name)
    if name == "UserError":
        from grainline.errors import UserError

        return UserError
    raise AttributeError(f"module 'grainline' has no attribute {name!r}")
