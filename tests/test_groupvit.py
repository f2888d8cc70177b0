"""GroupViT as an image encoder: where its groups lie, how images come to it, and frozen without noise."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from checkpoints import images, tokenizer, whole
from make import TINY
from PIL import Image
from runs import call
from torch import nn
from tuning import method

from grainline.build import Description, image_settings, method_config, start
from grainline.data.transforms import Box, EvalTransform
from grainline.encoders.pretrained import load_pretrained
from grainline.encoders.pretrained.clip_towers import group_places
from grainline.evaluation.result import read
from grainline.evaluation.show_panels import Photo, segment_panels
from grainline.methods.base import Method
from grainline.methods.heat import on_pixels
from grainline.model import Model
from grainline.training.optim import OptimizerConfig, ParamRule, param_groups, train_mode
from grainline.types import Images

FROZEN = (ParamRule(pattern=r"towers\.image\..*", lr_factor=0), ParamRule(pattern=".*"))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder with a small random GroupViT, and the library's model that it was made of."""
    folder = tmp_path_factory.mktemp("groupvit")
    return folder, whole("groupvit", folder)


def grouped(name: str = "clip", noise: float = 0.0) -> Method:
    return method("groupvit", name, noise)


def images_of(made: Method, number: int = 3) -> Images:
    torch.manual_seed(1)
    return Images(images(made.size, number), torch.arange(number))


def test_the_places_of_two_stages_by_hand() -> None:
    fine = torch.tensor([[[0.9, 0.2, 0.6, 0.1], [0.1, 0.8, 0.4, 0.9]]])  # two groups of four patches
    coarse = torch.tensor([[[0.3, 0.0], [0.7, 0.6], [0.0, 0.4]]])  # three groups of those two
    # Patch 0 is taken to 0.9 by the first group, so by the second of the last ones to 0.9 * 0.7 + 0.1 * 0.6.
    assert group_places((fine,), 2).tolist() == [[[0, 1], [0, 1]]]
    assert group_places((fine, coarse), 2).tolist() == [[[1, 1], [1, 1]]]
    assert group_places((fine, torch.tensor([[[0.0, 0.9], [1.0, 0.1]]])), 2).tolist() == [[[1, 0], [1, 0]]]
    assert group_places((fine,), 8)[0, 0].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


@torch.no_grad()
def test_a_pixel_belongs_to_the_group_that_the_library_says(saved: tuple[Path, Any]) -> None:
    from transformers.models.groupvit.modeling_groupvit import get_grouping_from_attentions

    folder, model = saved
    image = load_pretrained(folder).image
    pixels = images(16, 20)  # more than are laid over pixels at a time
    result = image(pixels).places
    values = (pixels / 255 - image.mean) / image.spread
    maps = model.vision_model(pixel_values=values, output_attentions=True).attentions
    theirs = get_grouping_from_attentions(maps, (16, 16))
    assert theirs.shape == (20, 3, 16, 16)
    assert torch.equal(result.long(), theirs.argmax(1))
    assert len(result.unique()) > 1


@torch.no_grad()
@pytest.mark.parametrize("name", ["clip", "siglip", "himo", "maxsim", "beta_clip", "flair"])
def test_heat_of_a_group_lies_on_its_pixels(name: str) -> None:
    made = grouped(name)
    assert made.has_layout
    images = made.encode_images(images_of(made, 2))
    assert images.places.shape == (2, made.size, made.size)
    assert not made.averaged, "the heads have two layers each"
    heat = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    place_map = on_pixels(made, images, heat, (made.size, made.size))
    for row in range(2):
        assert torch.equal(place_map[row], heat[row][images.places[row].long()])
    made.train()
    assert made.encode_images(images_of(made, 2)).places is None


@torch.no_grad()
def test_groups_are_shown_as_the_segments_of_one_stage() -> None:
    made: Any = grouped("flair")
    (result,) = made.towers.segmentations(images_of(made))
    assert torch.equal(result, made.encode_images(images_of(made)).places.long())
    description = Description("flair", method_config("flair", TINY, "test"))
    square = Image.effect_noise((made.size, made.size), 80).convert("RGB")
    photo = Photo("a", square, square, Box(0, 0, made.size, made.size))
    (row,) = segment_panels(Model(description, made, tokenizer()), photo, [], 1.0).rows
    assert row.panels[1].words.endswith(" segments")


@torch.no_grad()
def test_a_frozen_groupvit_stays_in_evaluation_mode() -> None:
    made: Any = grouped(noise=0.5)
    pixels = images_of(made).pixels
    before = made.towers.image(pixels)
    made.train()
    assert torch.equal(made.towers.image(pixels).pooled, before.pooled)  # without noise where it learns, too
    param_groups(made, OptimizerConfig(rules=FROZEN))
    train_mode(made)
    assert not any(module.training for module in made.towers.image.modules())
    assert made.towers.to_image.training
    assert made.encode_images(Images(pixels, torch.arange(3))).places is None  # training shows nothing
    assert not any(parameter.requires_grad for parameter in made.towers.image.parameters())
    for _ in range(2):
        again = made.towers.image(pixels)
        assert torch.equal(again.pooled, before.pooled)
        assert torch.equal(again.patches, before.patches)


def test_a_groupvit_that_learns_has_gradients_everywhere_and_no_noise() -> None:
    made: Any = grouped(noise=0.5)
    train_mode(made)
    made.towers.image(images_of(made).pixels).pooled.square().sum().backward()
    assert not any(module.training for module in made.towers.image.model.modules())
    still = [
        name for name, p in made.towers.image.named_parameters() if p.grad is None or not p.grad.abs().sum()
    ]
    assert not still


def begun(folder: Path, **image: Any) -> Any:
    """A clip with this image side, and a text side of its own."""
    values = {
        "image": {"pretrained": str(folder), **image},
        "text": {"name": "toy", "vocab": 300, "context": 24},
        "width": 16,
    }
    return start(Description("clip", method_config("clip", values, "test")))


def test_images_are_squashed_where_the_recipe_says_so(saved: tuple[Path, Any]) -> None:
    folder, _ = saved
    plain, squashed = begun(folder), begun(folder, resize="squash")
    assert image_settings(plain.description) == {"resize": "crop", "filter": "bicubic", "margin": 1.0}
    settings = image_settings(squashed.description)
    assert settings == {"resize": "squash", "filter": "bicubic", "margin": 1.0}
    made = squashed.method()
    assert made.towers.image.mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])
    assert made.towers.image.spread.flatten().tolist() == pytest.approx([0.229, 0.224, 0.225])
    image = Image.effect_noise((40, 20), 80).convert("RGB")
    whole_image = EvalTransform(16, "squash")(image)
    assert torch.equal(EvalTransform(16, **settings)(image), whole_image)
    assert not torch.equal(EvalTransform(16, **image_settings(plain.description))(image), whole_image)
    weights = [one.method().towers.image.state_dict() for one in (plain, squashed)]
    assert all(torch.equal(x, weights[1][name]) for name, x in weights[0].items())


def clip_of(folder: Path) -> tuple[Any, Any, torch.Tensor]:
    """A CLIP with the towers of a checkpoint, three images, and these as the library takes them."""
    made: Any = start(
        Description("clip", method_config("clip", {"pretrained": str(folder)}, "test"))
    ).method()
    images = images_of(made)
    return made, images, (images.pixels / 255 - made.towers.image.mean) / made.towers.image.spread


def test_two_heads_of_one_groupvit_are_the_librarys_before_and_while_they_learn(
    saved: tuple[Path, Any],
) -> None:
    """In training the norm inside a head keeps the statistics of the checkpoint, so chunks change nothing."""
    model = saved[1]
    made, images, values = clip_of(saved[0])
    for _ in range(2):
        expected = F.normalize(model.get_image_features(pixel_values=values).pooler_output, dim=-1)
        torch.testing.assert_close(made.encode_images(images).vector, expected, atol=1e-6, rtol=1e-5)
        made.train()
    made.encode_images(images).vector[:, 0].sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in made.towers.to_image.parameters())


@torch.no_grad()
def test_the_head_of_a_groupvit_reads_each_group_as_the_library_does(saved: tuple[Path, Any]) -> None:
    model = saved[1]
    made, images, values = clip_of(saved[0])
    groups = model.vision_model(pixel_values=values).last_hidden_state
    expected = model.visual_projection(groups.flatten(0, 1)).view(3, 3, 24)
    result = made.eval().encode_images(images).tokens
    torch.testing.assert_close(result, expected, atol=1e-6, rtol=1e-5)


def test_one_side_of_a_groupvit_has_a_new_layer_as_in_tgt(saved: tuple[Path, Any]) -> None:
    """Its head leads into the space of its own texts alone."""
    values = {"image": {"pretrained": str(saved[0])}, "text": TINY["text"] | {"groups": 3}, "width": 24}
    made: Any = start(Description("tgt", method_config("tgt", values, "test"))).method()
    assert isinstance(made.towers.to_image, nn.Linear)


@pytest.mark.parametrize(("name", "more"), [("groupvit", []), ("clip", ["--patches", "values"])])
@pytest.mark.parametrize("suite", ["referring", "probes"])
def test_checkpoints_are_the_baselines_of_papers_with_whole_images(
    name: str, more: list[str], suite: str, tmp_path: Path
) -> None:
    """Table 2 of CAFT and tables 1 and 2 of the Text Group Transformer have such rows."""
    whole(name, tmp_path)
    squash = ["--set", "resize=squash"] if suite == "probes" else []  # the other always presses images
    data = ["--data", "scenes:dev?count=3&size=32", "--suite", suite, *squash, "--json", tmp_path / "r.json"]
    assert call("evaluate", tmp_path, *more, *data) == 0
    result = read(tmp_path / "r.json")
    assert result.settings["method"] == "clip"
    if suite == "referring":
        pixels = np.array([result.queries["scores"][field] for field in ("intersection", "union")])
        assert (pixels[1] > 0).all()
        assert len(np.unique(pixels[0] / pixels[1])) > 2, "maps differ"
