"""The transformers library: imported late, kept quiet, and its errors in one line."""

import logging as python_logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from grainline.errors import UserError


def library() -> Any:
    """The transformers library, or one line about why it cannot be imported (often a broken torchvision)."""
    try:
        import transformers

        transformers.CLIPModel  # noqa: B018  modules of models are imported when they are asked for
        return transformers
    except (ImportError, RuntimeError, AttributeError, OSError) as error:
        cause: BaseException = error
        while cause.__cause__ is not None:  # the library wraps what happened, once for each module on the way
            cause = cause.__cause__
        reason = next(reversed(str(cause).strip().splitlines()), repr(cause))
        if any(found.name == "torchvision" for found in metadata.distributions()):
            hint = (
                "the torchvision that is installed may not fit torch: `pip uninstall torchvision` mends that"
            )
        else:
            hint = "install it with `pip install 'transformers>=5,<6'`"
        raise UserError(f"transformers cannot be imported ({reason}); {hint}") from error


@contextmanager
def readable(folder: Path) -> Iterator[None]:
    """What the library raises about a folder, as one line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # it passes on those of whatever it reads with: safetensors, pickle, checks
        lines = str(error).strip().splitlines() or [repr(error)]
        reason = " ".join(lines[: 2 if lines[0].endswith(":") else 1])
        raise UserError(f"cannot read the model in {folder}: {reason}; fetch it again") from None


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and reports: what is wrong becomes an error, and the rest is no news."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(python_logging.ERROR)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
