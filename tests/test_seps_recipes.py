"""The recipes of SEPS: the encoders of table 1, and what every ablation changes."""

from typing import Any

import pytest

from grainline.nn.select import kept_number, slot_number
from grainline.recipe import names, read_recipe

ABLATIONS: dict[str, dict[str, Any]] = {
    "sparse_only": {"branches": "sparse"},
    "dense_only": {"branches": "dense"},
    "no_aggregation": {"aggregate": None},
    "mean_only": {"matching": "mean"},
    "topk_only": {"matching": "topk"},
    **{f"keep_{k:03d}": {"keep": k / 100} for k in range(10, 100, 10) if k != 50},
    **{
        f"ratio_{a:03d}_{b:03d}": {"ratio_weights": [a / 100, b / 100]}
        for a in (25, 50, 100)
        for b in (25, 50, 75, 100)
        if (a, b) != (50, 50)
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


def test_ablations_differ_from_the_paper_in_what_they_say() -> None:
    prefix = "seps/ablations/"
    there = {name.removeprefix(prefix) for name in names() if name.startswith(prefix)}
    assert there == set(ABLATIONS)
    paper = read_recipe("seps/vit_224", [])
    for name, changes in ABLATIONS.items():
        found = read_recipe(prefix + name, [])
        assert found.model == paper.model | changes, name
        assert (found.method, found.data, found.train) == (paper.method, paper.data, paper.train), name


@pytest.mark.parametrize("name", TABLE_1)
def test_encoders_keep_as_many_patches_as_in_the_paper(name: str) -> None:
    patches, staying, slots = TABLE_1[name]
    model = read_recipe(f"seps/{name}", []).model
    assert kept_number(patches, model["keep"]) == staying
    assert slot_number(patches, model["keep"], model["aggregate"]) == slots
