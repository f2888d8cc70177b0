"""The parts of an encoder that learn: `tune` of a pretrained side, layers by depth, what adapters freeze.

`tune` of `model.image` and `model.text` stands for rules of the optimizer, which come before all others. It
decides over the encoder alone: the projections and the layers of a method follow the rules of the recipe.

    frozen  nothing learns
    last:N  the last N layers and what reads them
    lora    adapters beside the weights (`step.add_lora`)
    all     everything
"""

import re
from typing import NamedTuple

from torch import nn

from grainline.encoders.base import Layered
from grainline.encoders.pretrained.kind import PretrainedConfig
from grainline.errors import UserError, amount
from grainline.nn.attention import layer_lists
from grainline.weights import plain_name


def tuned(model: nn.Module) -> dict[str, PretrainedConfig]:
    """The encoders from a checkpoint that have `tune`, by their names: those of a side, or inside one."""
    config = getattr(model, "cfg", None)
    sides = {f"towers.{side}": getattr(config, side, None) for side in ("image", "text")}
    sides |= {f"{tower}.encoder": getattr(side, "encoder", None) for tower, side in sides.items()}
    return {tower: x for tower, x in sides.items() if isinstance(x, PretrainedConfig) and x.tune is not None}


def tune_rules(model: nn.Module) -> list[tuple[str, float]]:
    """Pattern and factor on the rate of the rules that `tune` stands for, the narrower ones first.

    UserError for more last layers than there are.
    """
    rules = []
    for tower, side in tuned(model).items():
        name, learns = re.escape(tower), side.rate or 1.0
        if side.tune == "lora":
            rules.append((rf"{name}\..*\.lora_[AB]\.weight", learns))
        elif str(side.tune).startswith("last:"):
            rules.append((_last_layers(model, tower, int(str(side.tune)[5:])), learns))
        rules.append((rf"{name}\..*", learns if side.tune == "all" else 0.0))
    return rules


def _last_layers(model: nn.Module, tower: str, number: int) -> str:
    """A pattern for the parameters of the last layers of a tower and of what reads them."""
    option = f"model.{tower.removeprefix('towers.')}.tune"
    (place,) = encoder_layers(model, option, tower)
    depth = len(place.layers)
    if number > depth:
        has = f"the encoder has {amount(depth, 'layer')}"
        raise UserError(f"{option} is last:{number}, and {has}; give last:{depth} or fewer, or all")
    layers = (f"{place.path}.{i}" for i in range(depth - number, depth))
    parts = (*layers, *(f"{tower}.{part}" for part in place.encoder.behind))
    return rf"({'|'.join(map(re.escape, parts))})(\..*)?"


class EncoderLayers(NamedTuple):
    """An encoder and its list of layers, by their full names in a model."""

    name: str
    encoder: Layered
    path: str  # of the list
    layers: nn.ModuleList


def encoder_layers(model: nn.Module, option: str, *towers: str) -> list[EncoderLayers]:
    """The encoders of a model with their layers. UserError for an encoder without exactly one list of layers.

    option  the recipe field that needs them, for the message
    towers  names of the encoders; none: all
    """
    lists = layer_lists(model)
    encoders = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, Layered) and name in (towers or (name,))
    }
    if not encoders:
        raise UserError(f"{option} works on encoders that name their layers; this model has none")
    result = []
    for name, encoder in encoders.items():
        paths = [path for path in lists if is_under(path, name)]
        if len(paths) != 1:
            where = f"the encoder {name or 'of this model'}, which has {len(paths)}"
            raise UserError(f"{option} needs one list of layers in {where}; leave it out")
        result.append(EncoderLayers(name, encoder, paths[0], lists[paths[0]]))
    return result


def depth_levels(model: nn.Module) -> dict[str, int]:
    """The level of each parameter by its plain name (`weights.plain_name`). In an encoder of d layers:

    d + 1  before the first layer: patch embedding, tables, class token
    d - i  layer i of `nn.attention.layer_lists`, from 0, so the last layer has level 1; for Swin and GroupViT
           these are stages, and a module between two stages belongs to the one before it
    0      after the last layer: norm, pool; and everything outside the encoders: projections, scale, bias

    UserError for a list of layers outside the encoders, and for a part of an encoder without a level.

    >>> from grainline.encoders.text import TextConfig, TextTransformer
    >>> text = TextTransformer(TextConfig(width=8, depth=2, heads=2, vocab=300, context=8))
    >>> levels = depth_levels(text)
    >>> [levels[x] for x in ("words.weight", "stack.blocks.0.norm1.bias", "stack.blocks.1.norm1.bias")]
    [3, 2, 1]
    >>> levels["norm.weight"]
    0
    """
    encoders = encoder_layers(model, "train.optimizer.layer_decay")
    for path in layer_lists(model):
        if not any(is_under(path, encoder.name) for encoder in encoders):
            wrong = f"finds the layers {path} outside the encoders, so their depth is unknown"
            raise UserError(f"train.optimizer.layer_decay {wrong}; leave it out and give rules")
    names = [name for name, _ in model.named_parameters()]
    levels = dict.fromkeys(map(plain_name, names), 0)
    for encoder in encoders:
        levels |= {plain_name(x): _level(x, encoder) for x in names if is_under(x, encoder.name)}
    return levels


def is_under(name: str, module: str) -> bool:
    """Whether a name is that of a module or of something inside it; "" is the model itself.

    >>> is_under("image.norm.bias", "image"), is_under("imagery.norm", "image"), is_under("scale", "")
    (True, False, True)
    """
    return not module or name == module or name.startswith(f"{module}.")


def _level(name: str, place: EncoderLayers) -> int:
    part_name = name.removeprefix(f"{place.name}.") if place.name else name
    if is_under(name, place.path):
        return len(place.layers) - int(name.removeprefix(f"{place.path}.").partition(".")[0])
    if any(is_under(part_name, part) for part in place.encoder.before):
        return len(place.layers) + 1
    if any(is_under(part_name, part) for part in place.encoder.behind):
        return 0
    layers = f"the layers of the encoder {place.name or 'of this model'}"
    wrong = f"does not know whether {part_name!r} is before or after {layers}"
    raise UserError(f"train.optimizer.layer_decay {wrong}; leave it out and give rules")


def frozen_names(model: nn.Module) -> set[str]:
    """Plain names of the parameters that adapters freeze; none without adapters, and where `tune` decides."""
    names = [name for name, _ in model.named_parameters()]
    adapted = {name.partition(".lora_A.")[0] for name in names if ".lora_A." in name}
    if not adapted or tuned(model):
        return set()
    places = adapted | {name for name, module in model.named_modules() if isinstance(module, Layered)}
    base = [name for name in names if ".lora_A." not in name and ".lora_B." not in name]
    return {plain_name(name) for name in base if any(is_under(name, place) for place in places)}
