"""SigLIP 2 NaFlex and FG-CLIP 2: images of any shape, against the library and the authors' outputs."""

import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import SIDE, TEXT, close, shaken, siglip, tokenizer
from PIL import Image
from runs import call, complaint, logged
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Siglip2Config, Siglip2Model
from transformers.models.siglip2 import image_processing_pil_siglip2 as theirs

from grainline.build import Description, method_config, start
from grainline.data.decode import Patches
from grainline.data.transforms import CropConfig, EvalTransform, TrainTransform, in_rows, resize
from grainline.encoders.pretrained import load_pretrained
from grainline.encoders.pretrained.siglip_towers import patch_places
from grainline.errors import UserError
from grainline.loading import load
from grainline.methods import METHODS
from grainline.methods.heat import over_image, read_area
from grainline.model import Model
from grainline.nn.pooling import unit
from grainline.types import rows

MOST = 12
PIXELS = {"patch_size": 4, "max_num_patches": MOST, "image_processor_type": "Siglip2ImageProcessor"}
SHAPES = ((40, 30), (90, 20), (10, 77), (5, 5))  # width and height


def made(folder: Path) -> Any:
    """A small random NaFlex in a folder with tokenizer and settings of images."""
    torch.manual_seed(0)
    read = tokenizer()
    text = TEXT | {"vocab_size": read.vocab, "max_position_embeddings": 12, "projection_size": 64}
    text |= {"bos_token_id": read.begin, "eos_token_id": read.end, "pad_token_id": 0}
    vision = SIDE | {"patch_size": 4, "num_patches": 16}
    model: Any = shaken(Siglip2Model(Siglip2Config(vision_config=vision, text_config=text)))
    model.save_pretrained(folder)
    read.save(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PIXELS))
    return model


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("naflex")
    return folder, made(folder)


def photos() -> list[Image.Image]:
    draws = np.random.default_rng(0)
    return [Image.fromarray(draws.integers(0, 256, (h, w, 3), np.uint8)) for w, h in SHAPES]


def test_images_get_the_sides_that_the_library_gives_them() -> None:
    draws = Random(0)
    for _ in range(300):
        width, height = draws.randint(1, 900), draws.randint(1, 900)
        side, most = draws.choice((4, 14, 16)), draws.randint(1, 1024)
        expected = theirs.get_image_size_for_max_num_patches(height, width, side, most)
        assert Patches(side, (most,)).sides((width, height)) == expected[::-1], (width, height, side, most)


@pytest.mark.parametrize(
    ("size", "most"),
    [((128, 256), 128), ((129, 272), 256), ((272, 272), 576), ((384, 400), 784), ((448, 464), 1024)],
)
def test_the_number_of_patches_by_the_size_of_an_image(size: tuple[int, int], most: int) -> None:
    steps = Patches(16, (128, 256, 576, 784, 1024))
    assert steps.sides(size) == Patches(16, (most,)).sides(size)
    assert steps.sides((4000, 3000)) == Patches(16, (1024,)).sides((4000, 3000))


@pytest.mark.parametrize("steps", [(MOST,), (8, 30, 60)])
def test_what_a_server_keeps_of_an_upload_reads_the_same(steps: tuple[int, ...]) -> None:
    transform = EvalTransform(16, "squash", "bilinear", patches=Patches(4, steps))
    for image in photos():
        assert torch.equal(transform(transform.square.cut(image, rim=True)), transform(image))
    assert transform.pressed().square == transform.square


@torch.no_grad()
def test_it_is_the_librarys_for_images_of_several_shapes_in_one_batch(saved: tuple[Path, Any]) -> None:
    folder, library = saved
    model = load(folder, device="cpu")
    encoded = model.encode(images=photos())
    inputs = theirs.Siglip2ImageProcessorPil(**PIXELS)(photos(), return_tensors="pt")
    out = library.get_image_features(**inputs)
    close(encoded.vector, unit(out.pooler_output))
    mask = inputs["pixel_attention_mask"].bool()
    assert torch.equal(encoded.mask, mask)
    assert len(set(mask.sum(1).tolist())) > 1
    alone = library.vision_model.head(out.last_hidden_state[mask][:, None])  # images of one patch
    close(encoded.tokens[mask], alone)
    assert model.description.method == "siglip"
    assert model.facts()["image encoder"].endswith(", 12 patches")
    one = model.encode(images=photos()[3:])  # fewer patches in the batch
    close(one.vector, encoded.vector[3:])
    close(one.tokens[one.mask], encoded.tokens[3:][one.mask])
    towers, pixels = model.method.towers, torch.stack([model.transform(image) for image in photos()])
    again = towers.image(pixels / 255)
    close(again.pooled, towers.image(pixels).pooled)
    ids = torch.randint(3, 250, (3, 12))
    read = towers.text(ids, torch.ones(3, 12).bool()).pooled
    close(read, library.get_text_features(input_ids=ids).pooler_output)


def with_colours(size: tuple[int, int], box: tuple[int, int, int, int]) -> Image.Image:
    image = Image.new("RGB", size, "black")
    image.paste("white", box)
    return image


@torch.no_grad()
@pytest.mark.parametrize(
    ("size", "box", "grid"), [((120, 40), (80, 20, 100, 40), (6, 2)), ((40, 120), (20, 60, 40, 80), (2, 6))]
)
def test_heat_of_a_patch_lies_on_it_in_a_wide_and_in_a_tall_image(
    size: tuple[int, int], box: tuple[int, int, int, int], grid: tuple[int, int], saved: tuple[Path, Any]
) -> None:
    model, image = load(saved[0], device="cpu"), with_colours(size, box)
    columns, rows = (side // 4 for side in model.transform.square.patches.sides(size))
    assert (columns, rows) == grid
    white = model.transform(image)[0, 1:].float().mean(1)  # the patch of the box, in reading order
    place = box[1] // 20 * columns + box[0] // 20
    assert white.argmax() == place
    encoded, area = model.encode(images=[image]), read_area(model.transform, size)
    assert area == (0, 0, *size)
    heat = torch.zeros(MOST)
    heat[place] = 1
    place_map = over_image(model.method, encoded, heat, area, size)
    assert place_map[box[1] + 8 : box[3] - 8, box[0] + 8 : box[2] - 8].min() == 1
    place_map[box[1] - 8 : box[3] + 8, box[0] - 8 : box[2] + 8] = 0
    assert place_map.max() == 0
    shown = model.heat(image, ["a red dog"])
    assert shown.shape == (1, model.method.size, model.method.size)
    assert model.cropped(image).size == (model.method.size,) * 2


def test_places_by_hand() -> None:
    assert patch_places(torch.tensor([[1, 2], [2, 2]]), 4).tolist() == [
        [[0, 0, 1, 1]] * 4,
        [[0, 0, 1, 1]] * 2 + [[2, 2, 3, 3]] * 2,
    ]


def test_a_crop_of_training_keeps_its_shape() -> None:
    image, cfg = np.random.default_rng(0).integers(0, 256, (40, 80, 3), np.uint8), CropConfig(scale=(1, 1))
    patches, wide = Patches(4, (8,)), CropConfig(scale=(1, 1), ratio=(2, 2))
    expected = in_rows(resize(image, (8, 16)), patches)
    assert torch.equal(TrainTransform(12, wide, patches)(image, Random(0)), expected)
    assert expected[0, 0, :4].tolist() == [0, 2, 0, 4]
    assert torch.equal(expected[:, 6], resize(image, (8, 16))[:, 4:, 4:8].flatten(1))
    assert TrainTransform(12, cfg, patches)(image, Random(0))[0, 0, :4].tolist() == [0, 2, 0, 3]
    dark = TrainTransform(12, wide.model_copy(update={"jitter": 0.5}), patches)(image, Random(0))
    assert torch.equal(dark[:, 0], expected[:, 0])
    assert not torch.equal(dark, expected)


def written(folder: Path) -> Path:
    """The photos in a folder, each with a text."""
    data = folder / "photos"
    data.mkdir()
    for number, image in enumerate(photos()):
        image.save(data / f"{number}.png")
        (data / f"{number}.txt").write_text(f"A red dog runs. It is number {number}.")
    return data


def test_evaluation_index_search_and_figures(saved: tuple[Path, Any], tmp_path: Path) -> None:
    folder, data = saved[0], written(tmp_path)
    assert call("evaluate", folder, "--data", data, "--html", tmp_path / "x.html") == 0
    assert call("index", "build", data, "--model", folder, "--out", tmp_path / "index") == 0
    assert call("search", tmp_path / "index", "a red dog", "--html", tmp_path / "hits.html") == 0
    figure = tmp_path / "look.png"
    assert call("show", folder, data / "1.png", "--text", "A red dog.", "--out", figure) == 0
    assert figure.stat().st_size > 1000


def recipe(folder: Path, place: Path, method: str = "siglip", **data: Any) -> Path:
    content = {
        "method": method,
        "model": {"pretrained": str(folder), "image": data.pop("image", {})},
        "data": {"paths": [str(written(place.parent))], "texts": {"captions": "whole"}, "workers": 0} | data,
        "train": {"max_steps": 2, "global_batch_size": 4, "precision": "bf16"},
    }
    place.write_text(json.dumps(content))
    return place


@pytest.mark.parametrize(
    "data",
    [{}, {"crop": {"scale": [0.5, 1.0]}}, {"image": {"tune": "frozen"}, "crop": None, "features": "auto"}],
)
def test_training(
    data: dict[str, Any], saved: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAINLINE_CACHE", str(tmp_path / "cache"))
    file, out = recipe(saved[0], tmp_path / "x.yaml", **data), tmp_path / "run"
    assert call("train", file, "--out", out) == 0
    assert all(np.isfinite(line["loss"]) for line in logged(out) if "loss" in line)
    before, after = load(saved[0], device="cpu"), load(out, device="cpu")
    assert after.transform.square == before.transform.square
    a, b = (one.encode(images=photos()).vector for one in (before, after))
    assert torch.equal(a, b) == ("features" in data)


@torch.no_grad()
@pytest.mark.parametrize("name", METHODS)
def test_every_method_leaves_masked_patches_out_or_says_that_it_cannot(
    name: str, saved: tuple[Path, Any]
) -> None:
    side = {"pretrained": str(saved[0])}
    texts = {"groups": 3, "width": 64, "heads": 2, "depth": 1, "encoder": side} if name == "tgt" else side
    description = Description(name, method_config(name, {"image": side, "text": texts}, "test"))
    if name in ("beta_clip", "maxsim", "laps", "seps"):
        with pytest.raises(UserError, match=r"masked patches, which only siglip, clip, .* leave out"):
            start(description)
        return
    begun = start(description)
    model = Model(begun.description, begun.method(), begun.tokenizer())
    images, read = model.encode(images=photos()), model.encode(texts=["A red dog runs.", "Wet sand."])
    other = images._replace(tokens=torch.where(images.mask[..., None], images.tokens, 99.0))
    assert torch.equal(model.similarity(images, read), model.similarity(other, read))
    heat = model.method.heat(images, rows(read, torch.zeros(len(SHAPES), dtype=torch.int64)))
    assert not heat[~images.mask].any()


def test_what_does_not_fit_is_one_line(
    saved: tuple[Path, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved[0]
    for options, message in (
        ({"size": 32}, "for siglip2 give max_num_patches, and leave size out"),
        ({"resize": "crop"}, "in their own shape; leave resize out"),
        ({"walk_type": "box"}, "walk_type is for FG-CLIP 2, not for siglip2"),
    ):
        with pytest.raises(UserError, match=message):
            load_pretrained(folder, **options)
    siglip().save_pretrained(tmp_path / "square")
    with pytest.raises(UserError, match="for siglip give size, and leave max_num_patches out"):
        load_pretrained(tmp_path / "square", max_num_patches=9)
    shutil.copytree(folder, tmp_path / "other")
    for change, message in (
        ({"patch_size": 8}, "other patches than its model reads, of 4 pixels"),
        ({"size": {"height": 8, "width": 8}}, "settings that cannot be obeyed: size"),
        ({"do_resize": False}, "do_resize is false"),
        ({"image_processor_type": "SiglipImageProcessor"}, "for another kind of model"),
    ):
        (tmp_path / "other" / "preprocessor_config.json").write_text(json.dumps(PIXELS | change))
        with pytest.raises(UserError, match=message):
            load_pretrained(tmp_path / "other")
    assert "reads images of any shape" in complaint(capsys, "export", folder, tmp_path / "onnx")
    complaint(capsys, "convert", folder, tmp_path / "converted")
    short = "evaluate", folder, "--data", "scenes:dev?count=4", "--walk-type", "short"
    assert "walk_type is for FG-CLIP 2" in complaint(capsys, *short)
    assert "give --text" in complaint(capsys, "show", folder, tmp_path / "x.png", "--out", tmp_path / "y.png")


# FG-CLIP 2


def as_fg_clip_2(model: Any, folder: Path) -> dict[str, Tensor]:
    """The weights of a NaFlex and those that FG-CLIP 2 has beside them, written as a folder."""
    state = {name: x.clone() for name, x in model.state_dict().items()}
    pool = {name: x for name, x in state.items() if name.startswith("vision_model.head.")}
    state |= {f"dense_feature_{name[13:]}": torch.randn_like(x) / 9 for name, x in pool.items()}
    table = "text_model.embeddings.position_embedding"
    state |= {f"{table}{part}.weight": torch.randn(40, 64) for part in ("_ori", "_res")}
    for head in ("long", "box"):
        state |= {
            f"{head}text_head.weight": torch.randn(64, 64) / 8,
            f"{head}text_head.bias": torch.randn(64),
        }
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "fgclip2"}
    config["auto_map"] = {"AutoModelForCausalLM": "own.Own"}
    for side in ("text", "vision"):
        config[f"{side}_config"]["model_type"] = f"fgclip2_{side}_model"
    (folder / "config.json").write_text(json.dumps(config))
    return state


@torch.no_grad()
def test_fg_clip_2_by_its_three_ways(tmp_path: Path) -> None:
    library = made(tmp_path)
    state = as_fg_clip_2(library, tmp_path)
    ids = torch.randint(3, 250, (3, 40))
    table = "text_model.embeddings.position_embedding"
    for way, context in (("long", 40), ("short", 12), ("box", 12)):
        options: dict[str, Any] = {"short": {"context": 12}, "box": {"walk_type": "box"}, "long": {}}[way]
        result = load_pretrained(tmp_path, **options)
        text: Any = result.text
        assert text.context == context
        if way == "long":
            rows = torch.cat([state[f"{table}_ori.weight"][:20], state[f"{table}_res.weight"][20:]])
        else:
            rows = state[f"{table}.weight"]
        inside = library.text_model
        hidden = inside.embeddings.token_embedding(ids[:, :context]) + rows
        for layer in inside.encoder.layers:
            hidden = layer(hidden, None)
        last = inside.final_layer_norm(hidden)[:, -1]
        head = "text_model.head" if way == "short" else f"{way}text_head"
        expected = last @ state[f"{head}.weight"].T + state[f"{head}.bias"]
        close(text(ids[:, :context], torch.ones(3, context).bool()).pooled, expected)
        assert len(result.left_out) == {"long": 2, "short": 6, "box": 4}[way]
        assert not any(name.startswith(f"{way}text_head") for name in result.left_out)
    assert load(tmp_path, device="cpu", walk_type="box").method.context == 12
    with pytest.raises(UserError, match="walk_type is 'boxes'; allowed are short, long and box"):
        load(tmp_path, walk_type="boxes")
    del state["longtext_head.bias"]
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"an FG-CLIP 2 that lacks one of .*longtext_head"):
        load_pretrained(tmp_path)


@torch.no_grad()
def test_fg_clip_2_is_that_of_its_authors(shared_data: Path, tmp_path: Path) -> None:
    golden = shared_data / "checkpoints"
    state = {key: x.float() for key, x in load_file(golden / "fgclip2.weights.safetensors").items()}
    save_file(state, tmp_path / "model.safetensors")
    shutil.copy(golden / "fgclip2.config.json", tmp_path / "config.json")
    out = load_file(golden / "fgclip2.io.safetensors")
    rows = [in_rows(out[f"image_uint8_{i}"], Patches(4, (20,))) for i in range(3)]
    for way in ("short", "long", "box"):
        result = load_pretrained(tmp_path, max_num_patches=20, walk_type=way)
        image, text = result.image, result.text
        images = image(torch.stack(rows))
        mask = out["pixel_attention_mask"].bool()
        assert torch.equal(images.mask, mask)
        close(images.pooled, out["image_vectors"])
        close(images.patches[mask], out["image_dense"][mask])
        ids = out["ids_long" if way == "long" else "ids_short"]
        texts = text(ids, ids != 0)
        close(texts.pooled, out[f"text_vectors_{way}"])
        if way != "box":
            close(unit(images.pooled) @ unit(texts.pooled).T, out[f"score_{way}"])
    close(result.scale, out["logit_scale_exp"])
    close(result.bias, out["logit_bias"])
