"""Methods that begin with checkpoints of others: equal to the library's models, and whole without them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import SENTENCE, OpenAI, save_state, tokenizer, whole
from indexes import photos, texts
from PIL import Image
from runs import call, complaint
from torch import Tensor, nn

from grainline.build import (
    Description,
    Start,
    build,
    image_settings,
    method_config,
    read_description,
    start,
    write_description,
)
from grainline.config import parse
from grainline.data.tokenizers import tokenizer_files
from grainline.encoders.pretrained import load_pretrained
from grainline.errors import UserError
from grainline.index.reader import fingerprint
from grainline.loading import load
from grainline.methods import method_class
from grainline.methods.shared import clamp_scales
from grainline.model import Model

Saved = Callable[[str], tuple[Path, Any]]
TEXTS = [SENTENCE[:9], SENTENCE[15:40], "sleeps", "a sleeps by a red house"]
SCRATCH = {"image": {"name": "toy/4", "size": 16}, "text": {"name": "toy", "vocab": 556, "context": 24}}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """A folder of each family with its tokenizer, and the library's model."""
    home, made = tmp_path_factory.mktemp("saved"), dict[str, tuple[Path, Any]]()

    def get(family: str) -> tuple[Path, Any]:
        if family not in made:
            made[family] = home / family, whole(family, home / family)
        return made[family]

    return get


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Files of several shapes, all sides even so that the middle is no question of rounding."""
    folder = tmp_path_factory.mktemp("images")
    for i, (height, width) in enumerate([(40, 30), (16, 64), (50, 50)]):
        pixels = np.random.default_rng(i).integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    return sorted(folder.iterdir())


def begun(method: str, **values: Any) -> Start:
    return start(Description(method, method_config(method, values, "test")))


def both(folder: Path) -> dict[str, Any]:
    return {"image": {"pretrained": str(folder)}, "text": {"pretrained": str(folder)}}


def same_weights(a: nn.Module, b: nn.Module) -> None:
    for (name, x), y in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        assert torch.equal(x, y), name


# Equal to the library, from files and strings to scores


@torch.no_grad()
def librarys_cosines(family: str, folder: Path, model: Any, files: list[Path]) -> Tensor:
    """By the image processor, tokenizer and model of the library alone."""
    from transformers import CLIPImageProcessorPil, PreTrainedTokenizerFast, SiglipImageProcessorPil

    side = {"height": 16, "width": 16}
    if family == "clip":
        processor = CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size=side)
    elif family == "groupvit":
        mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
        processor = CLIPImageProcessorPil(
            size={"shortest_edge": 16}, crop_size=side, image_mean=mean, image_std=std
        )
    else:
        mean = [0.5, 0.5, 0.5]
        processor = SiglipImageProcessorPil(size=side, image_mean=mean, image_std=mean)
    read = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    context = model.config.text_config.max_position_embeddings
    read.pad_token_id = model.config.text_config.pad_token_id
    read.add_special_tokens({"pad_token": read.convert_ids_to_tokens(read.pad_token_id)})
    ids = read(TEXTS, padding="max_length", max_length=context, return_tensors="pt")
    pixels = processor([Image.open(file) for file in files], return_tensors="pt")["pixel_values"]
    images = model.get_image_features(pixel_values=pixels).pooler_output
    mask = {"attention_mask": ids["attention_mask"]} if family != "siglip" else {}
    texts = model.get_text_features(input_ids=ids["input_ids"], **mask).pooler_output
    return nn.functional.normalize(images, dim=-1) @ nn.functional.normalize(texts, dim=-1).T


@pytest.mark.parametrize("family", ["clip", "siglip", "groupvit"])
def test_scores_are_the_cosines_of_the_librarys_own_model(
    family: str, saved: Saved, images: list[Path]
) -> None:
    folder, model = saved(family)
    ours = load(folder).score(images, TEXTS)
    theirs = librarys_cosines(family, folder, model, images)
    assert theirs.std() > 0.01
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", ["clip", "siglip"])
def test_scale_and_bias_are_those_of_the_checkpoint_unless_the_config_says_otherwise(
    family: str, saved: Saved
) -> None:
    folder, model = saved(family)
    method: Any = begun(family, **both(folder)).method()
    torch.testing.assert_close(method.scale(), model.logit_scale.exp().view(1))
    if family == "siglip":
        torch.testing.assert_close(method.bias, model.logit_bias)
    said: Any = begun(
        family, **both(folder), scale=7.0, **({"bias": -3.0} if family == "siglip" else {})
    ).method()
    torch.testing.assert_close(said.scale(), torch.tensor([7.0]))
    if family == "siglip":
        assert said.bias.item() == -3.0


def test_a_checkpoint_of_others_has_one_way_to_score(saved: Saved) -> None:
    with pytest.raises(
        UserError, match=r"^scoring is 'conditioned'; siglip has one way to score: leave it out$"
    ):
        load(saved("siglip")[0], scoring="conditioned")


def test_a_scale_has_the_bound_of_the_method_and_does_not_go_with_another_bias(saved: Saved) -> None:
    folder, model = saved("clip")
    assert model.logit_scale.exp() > 5
    method: Any = begun("clip", **both(folder), max_scale=5.0).method()
    torch.testing.assert_close(method.scale(), torch.tensor([5.0]))
    method = begun("siglip", **both(folder)).method()  # a CLIP has no bias
    torch.testing.assert_close(method.scale(), torch.tensor([10.0]))
    assert method.bias.item() == -10.0


@pytest.mark.parametrize("name", ["clip", "siglip", "maxsim"])
def test_without_a_bound_the_scale_begins_where_the_checkpoint_left_it(name: str, saved: Saved) -> None:
    folder, model = saved("siglip" if name == "siglip" else "clip")
    method: Any = begun(name, **both(folder), max_scale=None).method()
    torch.testing.assert_close(method.scale(), model.logit_scale.detach().exp().reshape(1))
    clamp_scales(method)
    torch.testing.assert_close(method.scale(), model.logit_scale.detach().exp().clamp(min=1).reshape(1))


# Sides


def test_one_name_for_both_sides_is_the_same_as_two(saved: Saved) -> None:
    folder, _ = saved("clip")
    shared = begun("clip", pretrained=str(folder), text={"context": 40, "stretch": "linear"})
    apart = begun(
        "clip", **both(folder) | {"text": {"pretrained": str(folder), "context": 40, "stretch": "linear"}}
    )
    same_weights(shared.method(), apart.method())
    config: Any = shared.description.config
    assert (config.image.size, config.text.context, config.width) == (16, 40, 24)


def test_a_side_may_name_another_checkpoint_than_the_shared_one(saved: Saved) -> None:
    result = begun("clip", pretrained=str(saved("clip")[0]), image={"pretrained": str(saved("vit")[0])})
    config: Any = result.description.config
    assert (config.image.architecture["kind"], config.text.architecture["kind"]) == ("vit", "clip")


@pytest.mark.parametrize(
    ("image", "text", "width", "method"),
    [  # others than clip in some of them: all share how sides are made
        ("clip", "clip", 24, "clip"), ("siglip", "siglip", 64, "clip"), ("vit", "bert", 512, "clip"),
        ("swin", "clip", 24, "clip"), ("groupvit", "groupvit", 24, "clip"), ("clip", "scratch", 24, "clip"),
        ("scratch", "siglip", 64, "clip"), ("siglip", "siglip", 64, "siglip"), ("swin", "clip", 24, "siglip"),
        ("clip", "clip", 24, "maxsim"), ("groupvit", "scratch", 512, "maxsim"),
    ],
)  # fmt: skip
def test_methods_take_every_mixture_of_sides(
    image: str, text: str, width: int, method: str, saved: Saved, images: list[Path]
) -> None:
    sides = {
        "image": SCRATCH["image"] if image == "scratch" else {"pretrained": str(saved(image)[0])},
        "text": SCRATCH["text"] if text == "scratch" else {"pretrained": str(saved(text)[0])},
    }
    result = begun(method, **sides)
    made = result.method()
    model = Model(result.description, made, tokenizer())
    assert model.encode(images=images).vector.shape == (3, width)
    assert model.score(images, TEXTS).shape == (3, 4)
    towers: Any = made.towers
    for name, side, projection in (("image", image, "to_image"), ("text", text, "to_text")):
        if side != "scratch":
            theirs: Any = load_pretrained(saved(side)[0])
            same_weights(towers.get_submodule(name), theirs._asdict()[name])
            matrix = theirs._asdict()[f"{name}_projection"]
            if side == "clip":
                assert torch.equal(towers.get_submodule(projection).weight, matrix)
            elif side == "siglip":
                assert not list(towers.get_submodule(projection).parameters())


def test_sides_that_cannot_be_are_one_line(saved: Saved) -> None:
    clip, siglip, bert = ({"pretrained": str(saved(family)[0])} for family in ("clip", "siglip", "bert"))
    for sides, message in (
        ({"image": clip, "text": siglip}, r"image side 24 and that of the text side 64; give model\.width"),
        ({"image": bert, "text": SCRATCH["text"]}, r"\(bert\) has no image side; name another for model.im"),
        (SCRATCH | {"text": clip | {"architecture": {}}}, r"text\.architecture is filled in .* leave it out"),
    ):
        with pytest.raises(UserError, match=message):
            begun("clip", **sides)
    assert begun("clip", image=clip, text=siglip, width=24).method()


def test_a_finetuned_model_is_built_again_without_the_checkpoint(saved: Saved, tmp_path: Path) -> None:
    """From model.json alone, sizes other than the checkpoint's included."""
    gone = tmp_path / "gone"
    shutil.copytree(saved("clip")[0], gone)
    result = begun(
        "clip",
        image={"pretrained": str(gone), "size": 24},
        text={"pretrained": str(gone), "context": 40, "stretch": "linear"},
    )
    made = result.method()
    write_description(tmp_path, result.description)
    shutil.rmtree(gone)
    description = read_description(tmp_path)
    assert description == result.description
    again = build(description)
    again.load_state_dict(made.state_dict(), strict=True)
    assert (again.size, again.context, again.grid) == (24, 40, (6, 6))


def test_a_tokenizer_of_another_vocabulary_is_an_error(saved: Saved, tmp_path: Path) -> None:
    from grainline.data.tokenizers.tokenizer import Tokenizer

    Tokenizer.train(["a b c d"] * 2, vocab=520).save(tmp_path)
    result = begun("clip", **both(saved("clip")[0]))
    assert result.tokenizer().to_json() == tokenizer().to_json()
    with pytest.raises(UserError, match=r"has 51\d tokens, the model 556"):
        result.tokenizer(str(tmp_path))


# Mistakes in both forms of a side


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"image": {"pretrained": "x", "sise": 3}}, "'image.sise' (did you mean size?); allowed here: pretr"),
        ({"text": {"pretraind": "x"}}, "unknown field 'text.pretraind'; allowed here: name, width"),
        ({"text": {"pretrained": "x", "stretch": "long"}}, "'text.stretch' is 'long': it must be 'keep' or"),
        ({"image": {"pretrained": "x", "size": 0}}, "field 'image.size' is 0: it must be greater than 0"),
        ({"image": {"pretrained": None}}, "field 'image.pretrained' is null: it must be a valid string"),
        ({"image": {"name": "toy/4", "size": 15}}, "field 'image': size 15 is not a multiple of patch 4"),
        ({"image": {"width": 3}}, "field 'image.heads' is missing"),
        ({"image": 3}, "field 'image' is 3: it must be a valid dictionary"),
        ({"pretrained": "x", "image": {"patch": 4}}, "unknown field 'image.patch' (did you mean patches?)"),
        ({"pretrained": 3}, "field 'pretrained' is 3: it must be a valid string"),
    ],
)  # fmt: skip
def test_mistakes_in_a_side_name_the_field_as_it_was_written(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as error:
        parse(method_class("clip").config_class, SCRATCH | changes, "here")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


# By name


def test_a_checkpoint_is_a_model_by_its_folder_or_file(
    saved: Saved, images: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(saved("clip")[0].parent)
    assert load("clip").description.method == "clip"
    assert torch.equal(load("clip").score(images, TEXTS), load(saved("clip")[0]).score(images, TEXTS))
    assert saved("siglip")[0].parent == Path.cwd()
    assert load("siglip").description.method == "siglip"
    model = OpenAI(vocab=556)
    save_state(model, tmp_path / "weights.safetensors")
    tokenizer().save(tmp_path)
    result = load(tmp_path / "weights.safetensors")
    assert result.description.method == "clip"
    assert result.tokenizer.vocab == 556
    assert result.score(images, TEXTS).shape == (3, 4)


@pytest.mark.parametrize(
    ("family", "lack"), [("vit", "no text side"), ("swin", "no text side"), ("bert", "no image side")]
)
def test_what_has_no_two_sides_in_one_space_cannot_score(family: str, lack: str, saved: Saved) -> None:
    with pytest.raises(UserError, match=rf"\({family}\) has {lack}, so it cannot score; train a recipe"):
        load(saved(family)[0])


def test_a_run_folder_wins_over_what_a_name_could_mean(
    saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from indexes import saved as written
    from indexes import tiny_model

    written(tiny_model("clip"), tmp_path / "openai" / "clip-vit-base-patch16")
    monkeypatch.chdir(tmp_path)
    assert load("openai/clip-vit-base-patch16").method.size == 8
    shutil.copytree(saved("clip")[0], tmp_path / "openai" / "clip-vit-base-patch16" / "exported")
    inside = load("openai/clip-vit-base-patch16/exported")
    assert inside.method.size == 16, "a folder of others stays one inside a run"


def test_the_fingerprint_knows_the_weights_and_not_the_place(saved: Saved, tmp_path: Path) -> None:
    folder, _ = saved("clip")
    shutil.copytree(folder, tmp_path / "moved")
    model, moved = load(folder), load(tmp_path / "moved")
    assert fingerprint(model) == fingerprint(moved)
    with torch.no_grad():
        next(moved.method.parameters()).add_(1e-3)
    assert fingerprint(model) != fingerprint(moved)
    assert fingerprint(model) != fingerprint(load(saved("siglip")[0]))


def test_the_commands_take_a_checkpoint_as_their_model(
    saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, index = saved("clip")[0], tmp_path / "index"
    monkeypatch.chdir(folder.parent)
    scenes, calibration = "scenes:dev?count=4&size=32", ("--calibration-texts", texts(tmp_path))
    assert call("evaluate", "clip", "--data", scenes) == 0
    assert call("encode", "clip", scenes, "--out", tmp_path / "vectors") == 0
    build = ("index", "build", photos(tmp_path / "photos", 5), "--model", "clip", "--out", index)
    assert call(*build, *calibration) == 0
    monkeypatch.chdir(tmp_path)  # it is found by where it lay
    assert call("search", index, "a red dog") == 0
    shutil.copytree(folder, tmp_path / "moved")
    assert call("search", index, "a red dog", "--model", "moved") == 0


# The hub


STORY = """
import os, sys, time
from pathlib import Path
from hub import hub

home, *folders = map(Path, sys.argv[1:])
with hub({f"some/{folder.name}": folder for folder in folders}) as server:
    os.environ |= {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(home)}
    import transformers
    from grainline.errors import UserError
    from grainline.loading import load

    slept = []  # between two attempts the libraries sleep; a clock would tell of a busy machine too
    time.sleep = slept.append

    def read(name):
        slept.clear()
        server.asked.clear()
        try:
            line = load(name).description.config.text.pretrained
        except UserError as error:
            line = error
        files = [asked.rpartition("/")[2] for asked in server.asked if asked.startswith("GET /some/")]
        print(name, line, *sorted(files), "at once" if sum(slept) < 1 else f"after {sum(slept)} s")

    for name in ("clip", "clip", "other", "one", "two", "two/b.pt", "two/c.pt"):
        read(f"some/{name}")
for name in ("clip", "other", "one", "two/b.pt"):
    read(f"some/{name}")
"""


def test_a_name_is_fetched_once_and_nothing_waits_for_a_hub_that_is_gone(
    saved: Saved, tmp_path: Path
) -> None:
    """A folder, a lone file of weights, and one of several files by its name."""
    shutil.copytree(saved("clip")[0], tmp_path / "clip")
    (tmp_path / "clip" / "tf_model.h5").write_text("of another library")
    (tmp_path / "clip" / "pytorch_model.bin").write_text("the same weights in another form")
    tokenizer().save(tmp_path / "one")
    torch.save(OpenAI(vocab=556).state_dict(), tmp_path / "one" / "a.pt")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    shutil.copy(tmp_path / "two" / "a.pt", tmp_path / "two" / "b.pt")
    tests = Path(__file__).parent
    env = {**os.environ, "PYTHONPATH": f"{tests}{os.pathsep}{tests.parent}"}
    command = [sys.executable, "-c", STORY, *(tmp_path / name for name in ("home", "clip", "one", "two"))]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    clip, again, other, one, several, b, absent, *cached = done.stdout.splitlines()
    settings = "tokenizer.json tokenizer_meta.json at once"
    assert clip == f"some/clip some/clip config.json model.safetensors {settings}"
    assert again == cached[0] == "some/clip some/clip at once"
    for line in (other, cached[1]):
        assert "no folder some/other here, and the Hugging Face hub gave no model of that name" in line
        assert line.endswith("give a folder, or set HF_HOME to a cache that holds it at once")
    assert one == f"some/one some/one a.pt {settings}"
    assert cached[2] == "some/one some/one at once"
    assert "holds several files of weights, a.pt, b.pt: give one of them" in several
    assert b.startswith("some/two/b.pt some/two/b.pt b.pt ")
    assert "some/two on the hub has no file c.pt; it has a.pt, b.pt" in absent
    assert cached[3] == "some/two/b.pt some/two/b.pt at once"


@pytest.mark.parametrize("path", ["runs/of/mine", "/none/such", "../none"])
def test_a_path_that_is_not_there_says_what_was_tried(path: str) -> None:
    with pytest.raises(
        UserError, match="that is no name of the Hugging Face hub; give the folder of"
    ) as error:
        load(path)
    assert str(error.value).startswith("no model at ")


def test_a_checkpoint_without_its_tokenizer_is_named(
    saved: Saved, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_files, "_in_open_clip", lambda: None)  # it may be installed
    folder = tmp_path / "bare"
    shutil.copytree(saved("clip")[0], folder)
    (folder / "tokenizer.json").unlink()
    assert f"no tokenizer found in {folder}; " in complaint(capsys, "encode", folder, tmp_path, "--out", "o")


def test_a_folder_of_something_else_says_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no model\.json.*no config\.json or open_clip_config\.json"):
        load(tmp_path)


def test_an_encoder_inside_a_side_begins_with_its_checkpoint(saved: Saved) -> None:
    """Superpixels pool the cells of a ViT; groups take up the states of a BERT."""
    vit, bert = saved("vit")[0], saved("bert")[0]
    towers = load_pretrained(vit), load_pretrained(bert)
    cast = {"name": "toy", "size": 16, "superpixels": {"cell": 4}, "stride": 4, "groups": [8, 4, 2]}
    eye = cast | {"encoder": {"pretrained": str(vit)}}
    width = towers[1].text.width
    groups = {"groups": 3, "width": width, "depth": 1, "heads": 2, "encoder": {"pretrained": str(bert)}}
    caft = {"image": eye, "text": SCRATCH["text"], "heads": 2, "width": 16, "composer": {"heads": 2}}
    for name, values in (("caft", caft), ("tgt", {"image": SCRATCH["image"], "text": groups})):
        begin = begun(name, **values)
        method = begin.method()
        again = build(begin.description)
        assert method.state_dict().keys() == again.state_dict().keys()
        if name == "caft":
            same_weights(method.towers.image.encoder, towers[0].image)
            assert image_settings(begin.description)["resize"] == towers[0].architecture["resize"]
        else:
            same_weights(method.towers.text.encoder, towers[1].text)
            assert begin.description.config.text.context == towers[1].text.context
            model = Model(begin.description, method, begin.tokenizer(str(saved("clip")[0])))
            moved = begun(name, **values | {"text": groups | {"encoder": {"pretrained": f"{bert}/"}}})
            assert fingerprint(model) == fingerprint(Model(moved.description, method, model.tokenizer))
    wrong = groups | {"width": 2 * width}
    with pytest.raises(UserError, match=f"text.encoder: .* does not have states of width {2 * width}"):
        begun("tgt", image=SCRATCH["image"], text=wrong).method()
