"""Models of the Hugging Face hub as folders of its cache: fetched once, read from there ever after.

All that follows reads a folder, so a name costs one question to the hub, and nothing waits for a network that
is not there: without one the libraries ask again and again, for half a minute a file.
"""

import re
from collections.abc import Collection
from pathlib import Path

from grainline.errors import UserError

NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
"""What can be a name of the hub: `owner/model`, or `model` alone for a few old ones."""

PATIENCE = 10.0  # seconds until a hub that does not answer counts as out of reach
SETTINGS = ["*.json", "*.txt", "*.model", "*.jinja"]  # settings, tokenizers, chat templates
WEIGHTS = {  # the first of these files that there is, and what belongs to it
    "model.safetensors": "model.safetensors",
    "model.safetensors.index.json": "model-*.safetensors",
    "pytorch_model.bin": "pytorch_model.bin",
    "pytorch_model.bin.index.json": "pytorch_model-*.bin",
    "open_clip_model.safetensors": "open_clip_model.safetensors",
    "open_clip_pytorch_model.bin": "open_clip_pytorch_model.bin",
}


def fetched(name: str) -> Path:
    """The folder of a model in the cache of the hub, brought up to date where the hub can be reached.

    Raises UserError where neither hub nor cache has it.
    """
    from huggingface_hub import HfApi, snapshot_download, try_to_load_from_cache

    try:
        found = HfApi().model_info(name, timeout=PATIENCE).siblings or []
        return Path(snapshot_download(name, allow_patterns=wanted({file.rfilename for file in found})))
    except Exception as error:  # the library passes on those of whatever it speaks HTTP with
        said = next(iter(str(error).strip().splitlines()), repr(error))
    for settings in ("config.json", "open_clip_config.json"):
        held = try_to_load_from_cache(name, settings)
        if isinstance(held, str) and any(Path(held).with_name(file).is_file() for file in WEIGHTS):
            return Path(held).parent  # half a model would hide why the rest did not come
    raise UserError(
        f"no folder {name} here, and the Hugging Face hub gave no model of that name ({said.rstrip('.')}); "
        "download the folder where the hub can be reached and give its path, or set HF_HOME to a cache that "
        "holds it"
    )


def wanted(files: Collection[str]) -> list[str]:
    """Which files of a model to fetch: settings, tokenizer, and the weights in one of their forms.

    >>> wanted({"config.json", "pytorch_model.bin", "model.safetensors", "tf_model.h5"})
    ['*.json', '*.txt', '*.model', '*.jinja', 'model.safetensors']
    """
    weights = next((pattern for file, pattern in WEIGHTS.items() if file in files), None)
    return SETTINGS if weights is None else [*SETTINGS, weights]
