"""Loads a model by path or name: run folders, saved models, checkpoints of others, the Hugging Face hub.

A run folder gives its last weights, with `train.ema` their average; its file last/raw.safetensors gives those
that were averaged. A checkpoint of others is loaded without conversion.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from grainline.build import Description, build, method_config, read_description, scored, start
from grainline.config import read_yaml, require_model_name, trusting
from grainline.data.formats.common import IMAGE_SUFFIXES
from grainline.data.tokenizers.tokenizer_files import read_tokenizer
from grainline.encoders.pretrained import kind_of, load_pretrained
from grainline.encoders.pretrained.archive import lone_weights
from grainline.encoders.pretrained.hub import PREFIX, download, package_file
from grainline.errors import UserError, checked, path_of
from grainline.files import existing_folder, original_name
from grainline.model import Model
from grainline.weights import MODEL, RAW, load_weights

DATA = dict.fromkeys((".csv", ".tsv", ".json", ".jsonl", ".parquet", ".txt"), "a table")
DATA |= dict.fromkeys((f".{suffix}" for suffix in IMAGE_SUFFIXES), "an image")
SETTINGS = ("config.json", "open_clip_config.json")  # one of them is in every folder of other programs


@checked()
def load(  # noqa: PLR0913 - each is a choice of the caller
    path: str | Path,
    *,
    device: str | None = None,
    scoring: str | None = None,
    patches: str | None = None,
    context: int | None = None,
    walk_type: str | None = None,
    revision: str | None = None,
    token: str | None = None,
    trust_code: bool = False,
) -> Model:
    """The model in a run folder or in a folder inside one: `runs/x`, `runs/x/best`, `runs/x/checkpoints/...`

    A run folder gives its last weights: `last/` when training has ended, else its newest checkpoint. A folder
    that `Model.save` wrote is read as well. Anything else is a checkpoint of others, or its name on the hub
    (docs/pretrained.md). `from_pretrained` is the same function.

    device           "cpu", "cuda", ...; None takes CUDA where there is one
    scoring          how the method scores pairs, where it has several ways; None: that of its config
    patches          what image tokens take up in the last layer of a CLIP, "attention" or "values" (as FG-OVD
                     is measured on CLIP); None: that of its config
    context          longest text in tokens, for a checkpoint of others: 77 reads an FG-CLIP by its short way
    walk_type        of the texts of an FG-CLIP 2, "short", "long" or "box"; None: by the context
    revision, token  of a name on the hub: branch, tag or commit (None: the newest), and the token for private
                     models (None: the one that you are logged in with)
    trust_code       load a run whose method or encoder is a class outside grainline, which imports its module
    """
    run, folder = find_run(path), Path(path)
    if str(path).startswith(PREFIX):
        folder = package_file(str(path))
    elif run is None and not folder.exists():
        folder = download(str(path), revision=revision, token=token)
        run = find_run(folder) if (folder / "model.json").is_file() else None
    if run is None:
        model = _load_others(path, folder, scoring, patches, context=context, walk_type=walk_type)
    elif names := [name for name, x in (("context", context), ("walk_type", walk_type)) if x is not None]:
        raise UserError(f"{names[0]} is for checkpoints of others, and {path} is a run, which has its own")
    else:
        home, weights = run
        with trusting(everything=trust_code):
            description = scored(read_description(home), scoring, patches)
        method = build(description)
        whole = weights.is_file() or (weights / "state.json").is_file()
        load_weights(weights if whole else weights / MODEL, method)
        model = Model(description, method, read_tokenizer(home), run=home)
    return model.to(device or default_device())


from_pretrained = load  # the name that users of transformers look for


def default_device() -> str:
    """CUDA where there is one, else the CPU: mps has no float64, which heat and regions need."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def _load_others(
    name: str | Path, folder: Path, scoring: str | None, patches: str | None, **options: Any
) -> Model:
    """A checkpoint that others trained, as the method that it was published with, else by its kind."""
    if options["walk_type"] not in (None, "short", "long", "box"):
        raise UserError(f"walk_type is {options['walk_type']!r}; allowed are short, long and box")
    settings = {"pretrained": str(folder.resolve() if Path(name).exists() else name)}
    checkpoint = load_pretrained(folder, **options)
    kind = checkpoint.architecture["kind"]
    if kind_of(checkpoint.architecture).space(checkpoint.architecture) is None:
        side = "image" if checkpoint.image is None else "text"
        raise UserError(f"{name} ({kind}) has no {side} side, so it cannot score; train a recipe with it")
    method = checkpoint.published.method or ("clip" if kind == "groupvit" else kind)  # cosines too
    start_point = start(Description(method, method_config(method, settings, str(name))), checkpoint)
    description = scored(start_point.description, scoring, patches)
    start_point = start_point._replace(description=description)
    return Model(start_point.description, start_point.method(), start_point.tokenizer())


def find_run(path: str | Path) -> tuple[Path, Path] | None:
    """The folder with model.json and that with the weights; None for a path that is no run.

    An existing path wins over a name of the hub. Raises UserError where a run has no weights, and for a path
    that neither exists nor can be a name.
    """
    place = path_of(path, "the path of the model").resolve()  # "." has no name of its own
    folder = existing_folder(place)  # a kill in the middle of a save may have left it under another name
    if folder is None and not place.exists():
        require_model_name(path)
        return None
    if place.is_file() and place.suffix.lower() in DATA:
        raise UserError(f"{path} is {DATA[place.suffix.lower()]}, not a model: the model comes first")
    if place.name == RAW and (
        outer := next((f for f in place.parents[:3] if (f / "model.json").is_file()), None)
    ):
        return outer, place
    if place.is_file() or any((place / settings).is_file() for settings in SETTINGS):
        return None
    home = next((f for f in (place, place.parent, place.parent.parent) if (f / "model.json").is_file()), None)
    if home is None and lone_weights(place.iterdir()):
        return None
    if home is None:
        wrong = f"no model.json of `grainline train`, no {' or '.join(SETTINGS)}, and no lone file of weights"
        raise UserError(f"{place} holds {wrong}")
    steps = {step.with_name(original_name(step)) for step in home.glob("checkpoints/*step-*")}
    steps = {step for step in steps if step.name.startswith("step-")}  # without unfinished ones
    candidates = map(existing_folder, (place, home / "last", *sorted(steps, reverse=True)))
    weights = next((path for path in candidates if path and (path / MODEL).is_file()), None)
    if weights is None or (place != home and weights != folder):
        raise UserError(f"{place} holds no weights yet; training writes its first ones to checkpoints/")
    return home, weights


def recipe_of(path: str) -> dict[str, Any]:
    """The recipe of a run, or of weights inside one; {} where none can be read."""
    with suppress(UserError, OSError):
        run = find_run(path) if path else None
        return {} if run is None else read_yaml(run[0] / "recipe.yaml")
    return {}
