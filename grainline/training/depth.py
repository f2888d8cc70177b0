"""Where every parameter stands in the depth of its encoder: the levels of layer-wise decay.

As in BEiT (Bao et al., arXiv 2106.08254) and timm. Counted from the top, in an encoder of d layers,
of which the first is layer 0:

    d + 1  what feeds the first layer: patches, tables, class token
    d - i  layer i, so that the last one stands at 1
    0      what reads the last layer: norm, pool
    0      what stands in no encoder: projections, scale, bias

A layer is what `nn.attention` says; of Swin and GroupViT that is a stage. What stands behind a layer inside
its list, such as Swin's merging of patches, belongs to that layer."""

from typing import NamedTuple

from torch import nn

from grainline.encoders.base import Layered
from grainline.errors import UserError
from grainline.nn.attention import layer_lists
from grainline.weights import plain


class Place(NamedTuple):
    """An encoder and its layers, by their full names inside a model."""

    name: str
    encoder: Layered
    list: str
    layers: nn.ModuleList


def encoders(model: nn.Module, option: str) -> list[Place]:
    """The encoders of a model, each with its one list of layers; UserError where they cannot be told.

    option  the setting that asks, for the message
    """
    lists = layer_lists(model)
    found = {name: module for name, module in model.named_modules() if isinstance(module, Layered)}
    if not found:
        raise UserError(f"{option} works on encoders that name their layers; this model has none")
    places = []
    for name, encoder in found.items():
        mine = [path for path in lists if inside(path, name)]
        if len(mine) != 1:
            raise UserError(
                f"{option} cannot tell the layers of the encoder {_said(name)}: it has {len(mine)} lists of "
                "layers, not one; leave it out"
            )
        places.append(Place(name, encoder, mine[0], lists[mine[0]]))
    return places


def levels(model: nn.Module, option: str = "train.optimizer.layer_decay") -> dict[str, int]:
    """How many levels each parameter stands below the top, by its plain name (`weights.plain`).

    UserError where a list of layers belongs to no encoder that is known, or a part of an encoder to no level.

    >>> from grainline.encoders.text import TextConfig, TextTransformer
    >>> text = TextTransformer(TextConfig(width=8, depth=2, heads=2, vocab=300, context=8))
    >>> found = levels(text)
    >>> [found[x] for x in ("words.weight", "stack.blocks.0.norm1.bias", "stack.blocks.1.norm1.bias")]
    [3, 2, 1]
    >>> found["norm.weight"]
    0
    """
    places = encoders(model, option)
    for path in layer_lists(model):
        if not any(inside(path, place.name) for place in places):
            raise UserError(
                f"{option} cannot tell how deep the layers of {path} stand, which are in no encoder; "
                "leave it out and give rules"
            )
    names = [name for name, _ in model.named_parameters()]
    found = dict.fromkeys(map(plain, names), 0)
    for place in places:
        mine = [name for name in names if inside(name, place.name)]
        found |= {plain(name): _level(name, place, option) for name in mine}
    return found


def inside(name: str, place: str) -> bool:
    """Whether a name is that of a place or of something in it; the model itself is the place "".

    >>> inside("image.norm.bias", "image"), inside("imagery.norm", "image"), inside("scale", "")
    (True, False, True)
    """
    return not place or name == place or name.startswith(f"{place}.")


def _level(name: str, place: Place, option: str) -> int:
    depth = len(place.layers)
    own = name.removeprefix(f"{place.name}.") if place.name else name
    if inside(name, place.list):
        return depth - int(name.removeprefix(f"{place.list}.").partition(".")[0])
    if any(inside(own, part) for part in place.encoder.before):
        return depth + 1
    if any(inside(own, part) for part in place.encoder.behind):
        return 0
    raise UserError(
        f"{option} cannot tell whether {own!r} stands before or behind the layers of the encoder "
        f"{_said(place.name)}; leave it out and give rules"
    )


def _said(name: str) -> str:
    return name or "of this model"
