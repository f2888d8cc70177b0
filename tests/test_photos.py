"""Recipes for photographs, and the remark on recipes for drawn scenes."""

import yaml

from grainline import recipes
from grainline.training.recipe import DRAWN_MEAN, read_recipe

REMARK = "this recipe normalises pixels for drawn scenes; for photographs take a recipe of photos/"


def test_photos_is_short_for_the_finetuning_of_a_checkpoint() -> None:
    assert read_recipe("photos", []) == read_recipe("photos/finetune", [])
    assert read_recipe("photos", []).model["pretrained"] == "openai/clip-vit-base-patch16"


def test_photographs_under_a_recipe_for_drawn_scenes_are_remarked_on() -> None:
    for name in recipes.names():
        if name.endswith("/scenes") or name == "clip/patches":
            assert any(REMARK in x for x in read_recipe(name, ["data.paths=[photos/]"]).remarks()), name
            assert not any(REMARK in x for x in read_recipe(name, ["data.paths=[scenes]"]).remarks()), name
    assert not read_recipe("photos/starter", ["data.paths=[photos/]"]).remarks()


def test_the_mean_of_drawn_scenes_is_that_of_their_recipes() -> None:
    values = yaml.safe_load(recipes.find("clip/scenes").read_text())
    assert tuple(values["model"]["image"]["mean"]) == DRAWN_MEAN
