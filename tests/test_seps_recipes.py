"""The recipes of SEPS: the encoders of table 1, and what every ablation changes."""

from typing import Any

import pytest
import torch

from grainline.losses.contrastive import keep_ratio
from grainline.nn.selection import number_of_patches, number_of_slots
from grainline.recipes import names
from grainline.training.recipe import read_recipe

ABLATIONS: dict[str, dict[str, Any]] = {
    "sparse_only": {"branches": "sparse"},
    "dense_only": {"branches": "dense"},
    "no_aggregation": {"aggregation_ratio": None},
    "mean_only": {"matching": "mean"},
    "topk_only": {"matching": "topk"},
    **{
        f"keep_{k:03d}": {"keep_ratio": k / 100, "ratio_weights": [0.5, 0.5]}
        for k in range(10, 100, 10)
        if k != 50
    },
    **{
        f"ratio_{a:03d}_{b:03d}": {"ratio_weights": [a / 100, b / 100]}
        for a in (25, 50, 100)
        for b in (25, 50, 75, 100)
        if (a, b) != (100, 100)
    },
}
TABLE_1 = {  # patches, those that stay, what they become: section 4 of the method's specification
    "vit_224": (196, 98, 39),
    "vit_384": (576, 288, 115),
    "swin_224": (49, 40, 23),
    "swin_384": (144, 116, 69),
    "clip_b16": (196, 98, 39),
    "clip_l14": (256, 128, 51),
}


def test_the_paper_has_the_values_of_section_4_3() -> None:
    """And the flip of the code of LAPS, which the other recipes leave out."""
    paper, ours = read_recipe("seps/paper", []), read_recipe("seps/vit_224", [])
    model, train = paper.model, paper.train
    assert (model["ratio"], model["ratio_weights"], model["ratio_form"]) == (1.0, [1.0, 1.0], "joint")
    assert (model["coarse"], model["margin"], model["keep_ratio"]) == (0.0, 0.2, 0.5)
    assert (train.global_batch_size, train.optimizer.lr, train.max_steps) == (32, 1e-4, 30 * 4531)
    assert (model["warmup"], model["hardest_after"]) == (5.0, None)  # five rounds over the images
    assert paper.data.crop is not None
    assert paper.data.crop.flip
    assert model | {"ratio_weights": [0.5, 0.5], "coarse": 0.1} == ours.model
    assert train == ours.train


def test_weights_of_one_keep_half_of_the_share_in_each_branch() -> None:
    """Equation 7: the loss is 0 where both branches together keep the share."""
    model, half = read_recipe("seps/paper", []).model, torch.tensor(0.25)
    weights = tuple(model["ratio_weights"])
    assert float(keep_ratio(model["keep_ratio"], (half, half), weights, model["ratio_form"])) == 0
    assert float(keep_ratio(model["keep_ratio"], (2 * half, 2 * half), weights, model["ratio_form"])) == 0.25


@pytest.mark.parametrize("method", ["seps", "laps", "vse"])
def test_all_negatives_count_throughout_on_flickr8k_with_their_weight_after_one_epoch(method: str) -> None:
    model = read_recipe(f"{method}/flickr8k", []).model
    assert (model["warmup"], model["hardest_after"]) == (1.0, "never")


def test_ablations_differ_from_the_paper_in_what_they_say() -> None:
    prefix = "seps/ablations/"
    there = {name.removeprefix(prefix) for name in names() if name.startswith(prefix)}
    assert there == set(ABLATIONS)
    paper = read_recipe("seps/paper", [])
    for name, changes in ABLATIONS.items():
        result = read_recipe(prefix + name, [])
        assert result.model == paper.model | changes, name
        assert (result.method, result.data, result.train) == (paper.method, paper.data, paper.train), name


@pytest.mark.parametrize("name", TABLE_1)
def test_encoders_keep_as_many_patches_as_in_the_paper(name: str) -> None:
    patches, staying, slots = TABLE_1[name]
    model = read_recipe(f"seps/{name}", []).model
    assert number_of_patches(patches, model["keep_ratio"]) == staying
    assert number_of_slots(patches, model["keep_ratio"], model["aggregation_ratio"]) == slots
