"""The lists of layers inside our encoders and those of other libraries."""

import checkpoints
import pytest

from grainline.encoders.cast import Cast, CastConfig
from grainline.encoders.towers import Towers, TowersConfig
from grainline.nn.attention import layer_lists


def test_our_towers_have_one_list_a_side() -> None:
    side = {"width": 16, "depth": 3, "heads": 2}
    cfg = {"image": side | {"patch": 4, "size": 8}, "text": side | {"vocab": 300, "context": 8}, "width": 8}
    result = layer_lists(Towers(TowersConfig.model_validate(cfg)))
    assert [len(layers) for layers in result.values()] == [3, 3]
    assert [name.partition(".")[0] for name in result] == ["image", "text"]


def test_a_network_whose_weights_are_buffers_has_no_layers() -> None:
    cfg = {"name": "toy", "size": 32, "groups": [3], "depths": [1, 1]}
    network = {"superpixels": {"kind": "sfcn", "cell": 16, "checkpoint": "weights.tar"}}
    model = Cast(CastConfig.model_validate(cfg | network))
    assert list(model.superpixels.buffers())
    assert [(name, len(layers)) for name, layers in layer_lists(model).items()] == [("layers", 3)]


@pytest.mark.parametrize(
    ("kind", "depths"), [("clip", [3, 2]), ("siglip", [2, 2]), ("vit", [2]), ("bert", [2]), ("swin", [2])]
)
def test_models_of_the_library_have_one_list_a_side_and_stages_count_as_layers(
    kind: str, depths: list[int]
) -> None:
    result = layer_lists(checkpoints.FAMILIES[kind]())
    assert [len(layers) for layers in result.values()] == depths, list(result)
