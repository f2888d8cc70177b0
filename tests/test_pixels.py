"""Images as checkpoints want them: by the settings of image processors, and equal to those processors."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import OpenAI, save_state, tokenizer, whole
from PIL import Image

from grainline.data.transforms import EvalTransform
from grainline.encoders.pretrained import load_pretrained
from grainline.encoders.pretrained.preprocess import KNOWN, of_hugging_face, of_open_clip, to_hugging_face
from grainline.errors import UserError
from grainline.loading import load

FILE = "preprocessor_config.json"
SHAPES = [(40, 30), (30, 41), (16, 90), (17, 16), (200, 33), (64, 64), (5, 7), (61, 37)]


def image(height: int, width: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8))


def processor(settings: dict[str, Any]) -> Any:
    import transformers

    return getattr(transformers, settings["image_processor_type"] + "Pil")(**settings)


def square(settings: dict[str, Any], shown: Image.Image) -> np.ndarray:
    """[3, side, side] uint8: what the library's processor does before it normalises."""
    bare = processor(settings | {"do_rescale": False, "do_normalize": False})
    result: np.ndarray = np.asarray(bare(shown)["pixel_values"][0])
    return result.astype(np.uint8)


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "clip": ("clip", {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}),
    "clip-margin": ("clip", {"size": {"shortest_edge": 20}, "crop_size": {"height": 16, "width": 16}}),
    "clip-bilinear": ("clip", {"size": 16, "crop_size": 16, "resample": 2, "do_center_crop": True}),
    "siglip": ("siglip", {"size": {"height": 16, "width": 16}, "resample": 3}),
    "siglip-lanczos": ("siglip", {"size": {"height": 16, "width": 16}, "resample": 1}),
    "vit": ("vit", {"size": {"height": 16, "width": 16}}),
    "vit-number": ("vit", {"size": 16, "resample": 3}),
}
CASES |= {
    "deit": ("deit", {"size": {"height": 20, "width": 20}, "crop_size": {"height": 16, "width": 16}}),
    "deit-number": ("deit", {"size": 20, "crop_size": 16}),
    "beit": ("beit", {"size": 16, "do_reduce_labels": False}),
    "bit": ("bit", {"size": {"shortest_edge": 18}, "crop_size": 16, "size_divisor": 8}),
    "convnext": ("convnext", {"size": {"shortest_edge": 16}, "crop_pct": 0.8}),
    "convnext-number": ("convnext", {"size": 16}),
    "efficientnet": ("efficientnet", {"size": 16, "resample": 0, "include_top": False}),
    "mobilenet": ("mobilenetv2", {"size": {"shortest_edge": 18}, "crop_size": {"height": 16, "width": 16}}),
    "efficientnet-offset": ("efficientnet", {"size": 16, "rescale_offset": True, "include_top": False}),
    "unresized": ("bit", {"do_resize": False, "crop_size": 16}),
}
TYPES = {
    "clip": "CLIP", "siglip": "Siglip", "vit": "ViT", "deit": "DeiT", "beit": "Beit", "bit": "Bit",
    "convnext": "ConvNext", "efficientnet": "EfficientNet", "mobilenetv2": "MobileNetV2",
}  # fmt: skip
TYPES = {kind: f"{name}ImageProcessor" for kind, name in TYPES.items()}


@pytest.mark.parametrize("case", CASES)
def test_a_square_is_the_one_of_the_librarys_processor(case: str) -> None:
    """Exactly, but where the remainder is odd: there the library rounds down, and torchvision to even."""
    kind, settings = CASES[case]
    settings = settings | {"image_processor_type": TYPES[kind]}
    ours = of_hugging_face(KNOWN["clip"], settings, "test")
    assert ours["size"] == 16
    transform = EvalTransform(16, **{name: ours[name] for name in ("resize", "filter", "margin")})
    odd = 0
    for height, width in SHAPES:
        shown = image(height, width)
        first, theirs = transform(shown).numpy(), square(settings, shown)
        larger = transform.larger or min(height, width)
        across, down = (int(larger * side / min(height, width)) - 16 for side in (width, height))
        if transform.resize == "squash" or (across % 2 == 0 and down % 2 == 0):
            assert np.array_equal(first, theirs), (height, width)
        else:  # by one pixel at most
            odd += 1
            shifted = [first, np.roll(first, 1, 1), np.roll(first, 1, 2)]
            assert any(np.array_equal(x[:, 1:, 1:], theirs[:, 1:, 1:]) for x in shifted), (height, width)
    assert odd < len(SHAPES)


FLAGS = [
    {"do_normalize": False},
    {"do_rescale": False},
    {"rescale_factor": 1 / 127.5},
    {"do_normalize": False, "rescale_factor": 0.5},
    {"do_convert_rgb": None, "do_pad": False, "image_mean": [0.1, 0.2, 0.3]},
]


@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("case", ["clip", "siglip", "vit", "efficientnet", "efficientnet-offset"])
def test_numbers_of_pixels_are_those_of_the_librarys_processor(case: str, flags: dict[str, Any]) -> None:
    kind, settings = CASES[case]
    settings = settings | flags | {"image_processor_type": TYPES[kind]}
    ours = of_hugging_face(KNOWN[kind], settings, "test")
    x = EvalTransform(16, ours["resize"], ours["filter"])(image(16, 16)).double() / 255
    mean, spread = (torch.tensor(ours[name]).double().view(3, 1, 1) for name in ("mean", "spread"))
    theirs = torch.tensor(processor(settings)(image(16, 16))["pixel_values"][0]).double()
    torch.testing.assert_close((x - mean) / spread, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("height", [height for height, _ in SHAPES])
def test_the_processor_of_dinov3_is_its_formula(height: int) -> None:
    """It needs torchvision: floats are resized, bilinear with antialias, where Pillow rounds to bytes."""
    shown, settings = image(height, 50), {"image_processor_type": "DINOv3ViTImageProcessorFast"}
    settings |= {"resample": 2}
    settings |= {"size": {"height": 16, "width": 16}, "default_to_square": True, "device": None}
    ours = of_hugging_face(KNOWN["vit"], settings, "test")
    assert (ours["mean"], ours["spread"]) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    own_square = EvalTransform(16, ours["resize"], ours["filter"], ours["margin"])(shown) / 255
    pixels = torch.tensor(np.asarray(shown)).permute(2, 0, 1)[None] / 255
    theirs = torch.nn.functional.interpolate(pixels, (16, 16), mode="bilinear", antialias=True)[0]
    assert (own_square - theirs).abs().max() <= 1.01 / 255


REFUSED = [
    ({"do_resize": False}, "do_resize is false"),
    ({"do_center_crop": False, "size": {"shortest_edge": 16}}, "no do_center_crop"),
    ({"size": 20, "do_center_crop": True, "crop_size": 18}, "squares of 18 pixels out of 20.*reads 16"),
    ({"do_center_crop": True, "crop_size": 16}, "no size says of which"),
    ({"size": {"height": 24, "width": 24}, "do_center_crop": False}, "squares of 24.*reads 16"),
    ({"size": 12, "do_center_crop": True, "crop_size": 16}, "squares of 16 pixels out of 12"),
    ({"do_pad": True, "pad_size": None}, "cannot be obeyed: do_pad True"),
    ({"crop_pct": 0.875, "auto_map": {}}, "cannot be obeyed: crop_pct 0.875"),
    ({"rescale_factor": 0}, "cannot read the model in"),
    ({"rescale_factor": "x"}, "cannot read the model in"),
    (
        {"image_processor_type": "DPTImageProcessor"},
        "names DPTImageProcessor, an image processor that is not",
    ),
    ({"size": {"shortest_edge": 16, "longest_edge": 20}}, "cannot be obeyed: longest_edge 20"),
    ({"size": 16, "size_divisor": 3}, "no multiple of its size_divisor"),
]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", ["clip", "siglip", "groupvit", "vit"])
@pytest.mark.parametrize(("flags", "message"), REFUSED, ids=str)
def test_flags_that_cannot_be_obeyed_are_named(
    kind: str, flags: dict[str, Any], message: str, nested: bool, tmp_path: Path, folders: dict[str, Path]
) -> None:
    place = shutil.copytree(folders[kind], tmp_path / "x")
    name, content = ("processor_config.json", {"image_processor": flags}) if nested else (FILE, flags)
    (place / name).write_text(json.dumps(content))
    with pytest.raises(UserError, match=message):
        load_pretrained(place)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("kinds")
    for kind in ("clip", "siglip", "groupvit", "vit"):
        whole(kind, home / kind)
    return {path.name: path for path in home.iterdir()}


def test_what_a_processor_leaves_out_is_that_of_its_kind() -> None:
    for kind, known in KNOWN.items():
        own = {x: False for x in ("crop_pct", "rescale_offset", "include_top") if x in known}
        expected = {x: [y] if x == "max_num_patches" else y for x, y in known.items() if x not in own}
        assert of_hugging_face(known, own, "test") == expected, kind


@pytest.mark.parametrize("kind", ["clip", "siglip"])
@pytest.mark.parametrize("margin", [1.0, 1.25])
@pytest.mark.parametrize("resize", ["crop", "squash"])
def test_settings_go_to_the_library_and_back(kind: str, margin: float, resize: str) -> None:
    own_settings = KNOWN[kind] | {"mean": [0.1, 0.2, 0.3], "filter": "lanczos"}
    own_settings |= {"resize": resize, "margin": margin}
    theirs = to_hugging_face(kind, own_settings, 32)
    expected = own_settings | {"spread": list(own_settings["spread"]), "size": 32}
    assert of_hugging_face(KNOWN[kind], theirs, "test") == expected
    transform = EvalTransform(32, resize, "lanczos", margin)
    shown = image(60, 90)
    assert np.array_equal(transform(shown).numpy(), square(theirs, shown))


def test_open_clip_says_it_in_its_own_words() -> None:
    actual = of_open_clip(
        {"resize_mode": "squash", "interpolation": "bilinear", "mean": [0.5] * 3}, "test", 16
    )
    assert (actual["resize"], actual["filter"], actual["mean"]) == ("squash", "bilinear", [0.5] * 3)
    assert of_open_clip({}, "test", 16) == KNOWN["clip"]
    assert of_open_clip({"interpolation": "random"}, "test", 16)["filter"] == "bicubic"
    refused = {
        "resize_mode 'longest'; known are shortest and squash": {"resize_mode": "longest"},
        "cannot be obeyed: mode 'L'": {"mode": "L"},
        "cannot be obeyed: crop 0.9": {"crop": 0.9},
        "size 24, its model reads 16": {"size": 24},
    }
    for message, settings in refused.items():
        with pytest.raises(UserError, match=message):
            of_open_clip(settings, "test", 16)
    assert of_open_clip({"size": [16, 16], "mode": "RGB", "fill_color": 0}, "test", 16) == KNOWN["clip"]


def test_images_that_are_no_squares_are_refused() -> None:
    with pytest.raises(UserError, match=r"x makes images of size .*; only squares can be read"):
        of_hugging_face(KNOWN["siglip"], {"size": {"height": 16, "width": 24}}, "x")


def test_the_settings_reach_the_images_of_a_model(tmp_path: Path) -> None:
    whole("clip", tmp_path / "clip")
    plain = load(tmp_path / "clip").cropped(image(40, 90))
    settings = {"resample": 2, "size": {"height": 16, "width": 16}, "do_center_crop": False}
    (tmp_path / "clip" / "preprocessor_config.json").write_text(json.dumps(settings))
    squashed = load(tmp_path / "clip").cropped(image(40, 90))
    assert not np.array_equal(plain, squashed)
    assert np.array_equal(squashed, image(40, 90).resize((16, 16), Image.Resampling.BILINEAR))


def test_a_state_dict_keeps_only_the_settings_that_all_take_for_granted(tmp_path: Path) -> None:
    from grainline.encoders.pretrained.convert import to_open_clip

    torch.manual_seed(0)
    save_state(OpenAI(vocab=tokenizer().vocab), tmp_path / "x.safetensors")
    towers = load_pretrained(tmp_path / "x.safetensors")
    to_open_clip(towers, tmp_path / "same.safetensors")
    towers.architecture["filter"] = "bilinear"
    with pytest.raises(UserError, match="in another way than for OpenAI's"):
        to_open_clip(towers, tmp_path / "y.safetensors")
    assert not (tmp_path / "y.safetensors").exists()
