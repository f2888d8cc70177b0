"""Which parts of a model are its layers: the blocks that stand one after the other inside an encoder.

Our own encoders and those of other libraries keep them in an `nn.ModuleList`; what such a list holds is one
layer each for freezing, for rates that fall with depth, for recomputation, compilation and sharding.
"""

from torch import nn


def layer_lists(model: nn.Module) -> dict[str, nn.ModuleList]:
    """The lists of layers by their full name, in the order of the model.

    A list inside a list is a part of a layer, and not named. Nor is one without parameters, such as that of a
    network whose weights are buffers: nothing in it can learn.

    >>> layer = nn.ModuleDict({"heads": nn.ModuleList([nn.Linear(2, 2)])})
    >>> model = nn.ModuleDict({"image": nn.ModuleList([layer] * 3)})
    >>> [(name, len(found)) for name, found in layer_lists(model).items()]
    [('image', 3)]
    """
    found: dict[str, nn.ModuleList] = {}
    for name, module in model.named_modules():
        outer = any(name.startswith(f"{other}.") for other in found)
        learns = isinstance(module, nn.ModuleList) and any(True for _ in module.parameters())
        if learns and not outer:
            found[name] = module
    return found
