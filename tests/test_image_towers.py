"""Image encoders of the table: tokens and summary as the library has them, at their own and other sizes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from checkpoints import IMAGE, VISION, close, images, shaken, vision
from torch import Tensor, nn

from grainline.encoders.pretrained import KINDS, build_pretrained, kind_of, load_pretrained
from grainline.encoders.pretrained.image_towers import TOWERS
from grainline.errors import UserError
from grainline.nn.attention import layer_lists
from grainline.training.optim import depth_levels, encoder_layers
from grainline.training.step import recompute_layers

SIDES = {"swin": 32, "swinv2": 32, "efficientnet": 72, "mobilenet_v1": 64, "mobilenet_v2": 64}
SIDES |= {"convnext": 64, "convnextv2": 64, "dinov3_convnext": 224, "resnet": 224, "regnet": 224}
LEAD = {"deit": 2, "ijepa": 0, "dinov2_with_registers": 5, "dinov3_vit": 5}


def saved(name: str, folder: Path, **processor: Any) -> Any:
    torch.manual_seed(0)
    model = vision(name)
    model.save_pretrained(folder)
    if processor:
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return model


def oracle(name: str, model: Any, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """The summary and the tokens, from the library's own outputs."""
    known = {"vit", "deit", "vit_msn", "ijepa", "swin", "swinv2"}  # others read any size
    options = {"interpolate_pos_encoding": True} if name in known else {}
    out = model(pixel_values=pixels, **options)
    hidden = out.last_hidden_state
    if hidden.ndim == 4:
        hidden = hidden.flatten(2).transpose(1, 2)
        norm = model.layernorm if name.startswith("convnext") else nn.Identity()
        if out.pooler_output is not None:
            close(out.pooler_output.flatten(1), norm(hidden.mean(1)))
        return norm(hidden.mean(1)), norm(hidden)
    if name == "beit":
        return out.pooler_output, model.pooler.layernorm(hidden[:, 1:])
    if name.startswith("swin"):
        return out.pooler_output, hidden
    lead = LEAD.get(name, 1)
    return (hidden[:, 0] if lead else hidden.mean(1)), hidden[:, lead:]


@torch.no_grad()
@pytest.mark.parametrize("larger", [False, True], ids=["own", "larger"])
@pytest.mark.parametrize("name", VISION)
def test_tokens_and_summary_are_the_librarys(name: str, larger: bool, tmp_path: Path) -> None:
    model, side = saved(name, tmp_path), SIDES.get(name, 16)
    size = (side + 63) // 32 * 32 if larger else side
    result = load_pretrained(tmp_path, size=size if larger else None)
    eye = result.image
    assert eye.size == size
    if larger and name == "swin":  # a model that read small images no longer shifts windows
        model = type(model).from_pretrained(tmp_path).eval()
    elif larger and name == "swinv2":  # nor does one that was made for them: there its windows are too
        config = type(model.config).from_dict(model.config.to_dict() | {"image_size": size})
        model = type(model).from_pretrained(tmp_path, config=config).eval()
    pixels = images(size)
    pooled, tokens = oracle(name, model, eye.normalised(pixels))
    output = eye(pixels)
    close(output.pooled, pooled)
    close(output.patches, tokens)
    assert eye.grid[0] * eye.grid[1] == tokens.shape[1]
    assert (eye.width, eye.classed) == (tokens.shape[2], output.cls is not None)
    assert kind_of(result.architecture).averaged == torch.allclose(output.pooled, tokens.mean(1), atol=1e-4)
    again = build_pretrained(json.loads(json.dumps(result.architecture))).image
    again.load_state_dict(eye.state_dict(), strict=True)
    assert torch.equal(again(pixels).pooled, output.pooled)


@pytest.mark.parametrize("name", VISION)
def test_every_parameter_learns_and_has_a_level_and_no_statistic_moves(name: str, tmp_path: Path) -> None:
    saved(name, tmp_path)
    model = nn.ModuleDict({"eye": load_pretrained(tmp_path).image}).train()
    before = {key: x.clone() for key, x in model.named_buffers()}
    eye: Any = model["eye"]
    out = eye(images(eye.size))
    (out.pooled.square().sum() + out.patches.square().sum()).backward()
    lacking = [key for key, x in model.named_parameters() if x.grad is None]
    assert lacking == []
    assert all(torch.equal(x, before[key]) for key, x in model.named_buffers())
    (place,) = encoder_layers(model, "train.lora")
    assert list(layer_lists(model)) == [place.path]
    levels = depth_levels(model)
    assert set(levels.values()) >= set(range(1, len(place.layers) + 1))
    plain = out.pooled.detach()
    recompute_layers(model)
    close(eye(images(eye.size)).pooled * 0 + plain, plain)


def test_each_row_is_a_kind_with_a_small_model() -> None:
    assert {kind for kind, row in KINDS.items() if row.place == "image_towers:Vision"} == set(TOWERS)
    assert {name.partition("-")[0] for name in VISION} == set(TOWERS)


@torch.no_grad()
@pytest.mark.parametrize("projected", [True, False])
def test_the_image_side_of_a_clip_alone(projected: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    kind = transformers.CLIPVisionModelWithProjection if projected else transformers.CLIPVisionModel
    model = shaken(kind(transformers.CLIPVisionConfig(**IMAGE, projection_dim=24)))
    model.save_pretrained(tmp_path)
    result = load_pretrained(tmp_path, size=24)
    pixels = images(24)
    theirs = model(pixel_values=result.image.normalised(pixels), interpolate_pos_encoding=True)
    output = result.image(pixels)
    if projected:
        close(output.pooled @ result.image_projection.T, theirs.image_embeds)
    else:
        assert result.image_projection is None
        close(output.pooled, theirs.pooler_output)
    assert kind_of(result.architecture).space(result.architecture) == (24 if projected else None)
    assert result.text is None
    again = build_pretrained(json.loads(json.dumps(result.architecture)))
    assert (again.image_projection is None) == (not projected)


@torch.no_grad()
def test_the_image_side_of_a_siglip_alone(tmp_path: Path) -> None:
    model = shaken(transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**IMAGE)))
    model.save_pretrained(tmp_path)
    result = load_pretrained(tmp_path, size=24)
    pixels = images(24)
    theirs = model(pixel_values=result.image.normalised(pixels), interpolate_pos_encoding=True)
    close(result.image(pixels).pooled, theirs.pooler_output)
    assert (result.text, kind_of(result.architecture).space(result.architecture)) == (None, 64)


@pytest.mark.parametrize(
    ("name", "size"), [("convnext", 48), ("resnet", 100), ("dinov2", 30), ("swinv2", 16), ("beit", 18)]
)
def test_a_size_that_does_not_fit_is_one_line(name: str, size: int, tmp_path: Path) -> None:
    saved(name, tmp_path)
    with pytest.raises(UserError, match=r"multiple of the checkpoint's .* (4|32)|which needs 32 at least"):
        load_pretrained(tmp_path, size=size)


@pytest.mark.parametrize("name", ["dinov2", "resnet", "convnext"])
def test_the_processor_of_a_model_for_any_size_decides_it(name: str, tmp_path: Path) -> None:
    saved(name, tmp_path, size={"shortest_edge": 36}, crop_size=32, do_center_crop=True, crop_pct=None)
    result = load_pretrained(tmp_path)
    assert (result.image.size, result.image(images(32)).pooled.shape[0]) == (32, 3)
    assert load_pretrained(tmp_path, size=64).image.size == 64  # type: ignore[union-attr]
    saved("vit", tmp_path / "vit", size={"height": 32, "width": 32})
    with pytest.raises(UserError, match="its model reads 16"):
        load_pretrained(tmp_path / "vit")


@pytest.mark.parametrize(
    ("head", "left_out"),
    [
        ("DeiTForImageClassificationWithTeacher", ("cls_classifier", "distillation_classifier")),
        ("BeitForMaskedImageModeling", ("layernorm", "lm_head")),
        ("ResNetForImageClassification", ("classifier",)),
        ("MobileNetV2ForSemanticSegmentation", ("segmentation_head",)),
    ],
)
def test_heads_are_left_out_and_a_norm_in_a_head_is_not_that_of_the_model(
    head: str, left_out: tuple[str, ...], tmp_path: Path
) -> None:
    library = head.partition("For")[0]
    name = "beit-class" if library == "Beit" else next(n for n, (lib, _) in VISION.items() if lib == library)
    config = getattr(transformers, f"{library}Config")(**VISION[name][1])
    model = shaken(getattr(transformers, head)(config))
    model.save_pretrained(tmp_path)
    result = load_pretrained(tmp_path)
    assert result.left_out == left_out
    inside = getattr(model, model.base_model_prefix)
    pixels = images(result.image.size)
    with torch.no_grad():
        pooled, _ = oracle(name, inside, result.image.normalised(pixels))
        close(result.image(pixels).pooled, pooled)


def test_weights_in_several_files_are_read_by_their_index(tmp_path: Path) -> None:
    model = saved("dinov3_convnext", tmp_path)
    whole = load_pretrained(tmp_path).image
    model.save_pretrained(tmp_path / "parts", max_shard_size="20KB")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 1
    parts = load_pretrained(tmp_path / "parts").image
    assert all(torch.equal(x, y) for x, y in zip(whole.parameters(), parts.parameters(), strict=True))
    next((tmp_path / "parts").glob("*-00001-*")).unlink()
    with pytest.raises(UserError, match="cannot read"):
        load_pretrained(tmp_path / "parts")
