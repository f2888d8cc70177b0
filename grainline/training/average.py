"""Averages of the weights of finished runs: `grainline average`.

A run and its start give WiSE-FT (Wortsman et al., arXiv 2109.01903), which keeps more of what a checkpoint
knew than fine-tuning alone; several runs or steps of one start give a model soup (arXiv 2203.05482). The
average while training is `train.ema`.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from grainline import hub
from grainline.build import start
from grainline.config import read_yaml
from grainline.errors import UserError, checked, path_of
from grainline.files import write_text
from grainline.loading import find_run, load
from grainline.model import Model
from grainline.model_card import model_card
from grainline.training.inputs import first_model
from grainline.training.recipe import read_recipe

ALIKE = "only weights of one architecture can be averaged"
MAY_DIFFER = "dropout", "drop_path", "stretch"
"""Fields of an encoder that its vectors do not depend on once it is trained."""


@checked()
def average(
    run: str | Path, out: str | Path, *, others: Sequence[str] = (), weight: float | None = None
) -> Path:
    """Write the average of the weights of a run and of others, or of its start, into a folder to load.

    run     run folder, weights inside one, or a checkpoint; the average has its settings
    out     new folder of the average
    others  runs, weights or checkpoints of the same architecture, which share equally what WEIGHT leaves;
            none: the weights that RUN started from, `init_from` or pretrained
    weight  the share of RUN, from 0 to 1; none: as large as that of each other

    Averages are sums in float64. Integers, such as counts, are those of RUN. UserError where a tensor or an
    encoder differs. OUT/recipe.yaml names the parts, and the data of all that are runs.
    """
    place, names = path_of(out, "the folder of the average"), [str(run), *(others or [hub.START])]
    hub.require_free(place)
    share = 1 / len(names) if weight is None else weight
    if not 0 <= share <= 1:
        raise UserError(f"weight is {share}; give the share of {run}, from 0 to 1")
    places = [place.resolve(), *(Path(name).resolve() for name in names)]
    if twice := next((one for one in places if places.count(one) > 1), None):
        raise UserError(f"{twice} comes twice; give each part once, and another folder for the average")
    shares = [share] + [(1 - share) / (len(names) - 1)] * (len(names) - 1)
    first = load(run, device="cpu")
    parts = (load(name, device="cpu") for name in others) if others else [start_of(run)]
    weights = [first.method.state_dict()]
    for name, other in zip(names[1:], parts, strict=True):
        require_same(first, other, names[0], name)
        weights.append(other.method.state_dict())
    first.method.load_state_dict(weighted_mean(weights, shares))
    place.mkdir(parents=True, exist_ok=True)
    recipe = _recipe(names) | {"average": dict(zip(names, shares, strict=True))}
    write_text(place / "recipe.yaml", yaml.safe_dump(recipe, sort_keys=False))
    first.run = place  # for the card
    card = model_card(first, place.resolve().name)
    hub.save(place, first.description, first.method, first.tokenizer, card)
    return place


def start_of(run: str | Path) -> Model:
    """The model of a run before its first step. UserError where its weights are random, or for no run."""
    folders = find_run(run)
    if folders is None or not (folders[0] / "recipe.yaml").is_file():
        raise UserError(f"{run} has no recipe.yaml that names its start; name what to average with: --with")
    recipe = read_recipe(str(folders[0]), [])
    point = start(recipe.description)
    if recipe.init_from is None and point.image is None and point.text is None:
        raise UserError(f"{run} started from random weights; name what to average with: --with OTHER_RUN")
    earlier = None if recipe.init_from is None else load(recipe.init_from, device="cpu")
    return first_model(recipe, point, load(run, device="cpu").tokenizer, earlier)


def weighted_mean(states: Sequence[Mapping[str, Tensor]], shares: Sequence[float]) -> dict[str, Tensor]:
    """The sum of states times their shares, in float64; integers are those of the first one.

    >>> weighted_mean([{"a": torch.zeros(2)}, {"a": torch.ones(2)}], [0.75, 0.25])
    {'a': tensor([0.2500, 0.2500])}
    """
    out = dict(states[0])
    for name, x in states[0].items():
        if x.is_floating_point() and not all(torch.equal(x, state[name]) for state in states[1:]):
            terms = [share * state[name].double() for share, state in zip(shares, states, strict=True)]
            out[name] = torch.stack(terms).sum(0).to(x.dtype)
    return out


def require_same(first: Model, other: Model, name: str, other_name: str) -> None:
    """Raise UserError unless two models have the same tensors, encoders and tokens."""
    ours, theirs = first.method.state_dict(), other.method.state_dict()
    for tensor in dict.fromkeys((*ours, *theirs)):
        forms = [str(list(x[tensor].shape)) if tensor in x else "absent" for x in (ours, theirs)]
        if forms[0] != forms[1]:
            wrong = f"{tensor} is {forms[0]} in {name} and {forms[1]} in {other_name}"
            if "position" in tensor and "absent" not in forms:
                wrong += ", stretched for other texts or images; the start of a run is stretched as it is"
            raise UserError(f"{wrong}: {ALIKE}")
    for side in ("image", "text"):
        sides = [getattr(model.description.config, side).model_dump() for model in (first, other)]
        ours, theirs = map(hub.without_paths, sides)
        for field in (field for field in ours if field not in MAY_DIFFER):
            if ours[field] != theirs.get(field):
                wrong = f"{ours[field]} in {name} and {theirs.get(field)} in {other_name}"
                raise UserError(f"model.{side}.{field} is {wrong}: {ALIKE}")
    if first.tokenizer.to_json() != other.tokenizer.to_json():
        raise UserError(f"{name} and {other_name} have other tokenizers, so their word tables do not fit")


def _recipe(names: Iterable[str]) -> dict[str, Any]:
    """The recipe of the first part, with the data of all parts that are runs."""
    recipes = []
    for name in names:
        run = find_run(name) if name != hub.START else None
        file = None if run is None else run[0] / "recipe.yaml"
        values: dict[str, Any] = read_yaml(file) if file is not None and file.is_file() else {}
        recipes.append({"model": {"pretrained": name}, "data": {}, "train": {}} | values)
    data = {
        field: list(dict.fromkeys(path for recipe in recipes for path in recipe["data"].get(field, ())))
        for field in ("paths", "validation")
    }
    return recipes[0] | {"data": recipes[0]["data"] | data}
