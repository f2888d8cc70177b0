"""Checkpoints of the transformers library: loaded strictly, and equal to what the library computes itself."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import FAMILIES, IMAGE, JSON_FORMS, clip, close, images, read_damaged, siglip, texts, whole
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import grainline
from grainline.encoders.pretrained import Pretrained, build_pretrained, load_pretrained
from grainline.encoders.pretrained.convert import to_hugging_face, to_open_clip
from grainline.errors import UserError
from grainline.export.huggingface import convert, parity
from grainline.loading import load
from grainline.nn.positions import stretch_keep, stretch_linear

Saved = Callable[[str], tuple[Path, Any]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """A folder of each family, as save_pretrained writes it, and the library's model that it was made of."""
    home, made = tmp_path_factory.mktemp("saved"), dict[str, tuple[Path, Any]]()

    def get(family: str) -> tuple[Path, Any]:
        if family not in made:
            torch.manual_seed(0)
            model = FAMILIES[family]()
            model.save_pretrained(home / family)
            made[family] = home / family, model
        return made[family]

    return get


def scaled(pixels: Tensor, mean: list[float], spread: list[float]) -> Tensor:
    """What the image processors of the library do behind resizing."""
    return (pixels / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(spread).view(3, 1, 1)


def processed(pixels: Tensor, actual: Pretrained) -> Tensor:
    return scaled(pixels, actual.architecture["mean"], actual.architecture["spread"])


def both(actual: Pretrained) -> tuple[Any, Any]:
    return actual.image, actual.text


def altered(folder: Path, to: Path, change: Callable[[dict[str, Tensor]], None]) -> Path:
    """A copy of a folder with other weights."""
    to.mkdir()
    (to / "config.json").write_bytes((folder / "config.json").read_bytes())
    state = load_file(folder / "model.safetensors")
    change(state)
    save_file(state, to / "model.safetensors", {"format": "pt"})
    return to


def unchanged(state: dict[str, Tensor]) -> None:
    """A copy as it is."""


# Equal to the library


@torch.no_grad()
def test_clip_is_the_librarys_clip(saved: Saved) -> None:
    folder, model = saved("clip")
    result = load_pretrained(folder)
    image, text = both(result)
    pixels, (ids, mask) = images(16), texts()
    output, read = image(pixels), text(ids, mask)
    theirs = model.get_image_features(pixel_values=processed(pixels, result))
    close(output.pooled @ result.image_projection.T, theirs.pooler_output)
    patches = model.vision_model.post_layernorm(theirs.last_hidden_state)
    close(output.patches, patches[:, 1:])
    close(output.cls, patches[:, 0])
    theirs = model.get_text_features(input_ids=ids, attention_mask=mask.long())
    close(read.pooled @ result.text_projection.T, theirs.pooler_output)
    close(read.tokens[mask], theirs.last_hidden_state[mask])
    close(result.scale, model.logit_scale.exp().view(1))
    assert image.grid == (4, 4)
    assert (image.size, image.width, text.width, text.context, text.vocab) == (16, 64, 64, 30, 300)


@torch.no_grad()
def test_siglip_is_the_librarys_siglip_though_our_padding_is_another(saved: Saved) -> None:
    folder, model = saved("siglip")
    result = load_pretrained(folder)
    image, text = both(result)
    pixels, (ids, mask) = images(16), texts(12)
    output, read = image(pixels), text(ids[:, :8], mask[:, :8])
    theirs = model.get_image_features(pixel_values=processed(pixels, result))
    close(output.pooled, theirs.pooler_output)
    head = model.vision_model.head
    for place in range(16):
        close(output.patches[:, place], head(theirs.last_hidden_state[:, place : place + 1]))
    padded = ids.masked_fill(~mask | (torch.arange(12) >= 8), 1)  # 1 is SigLIP's padding
    theirs = model.get_text_features(input_ids=padded)
    close(read.pooled, theirs.pooler_output)
    close(read.tokens, model.text_model.head(theirs.last_hidden_state[:, :8]))
    close(result.scale, model.logit_scale.exp())
    close(result.bias, model.logit_bias)
    assert result.image_projection is None
    assert result.text_projection is None


@torch.no_grad()
def test_groupvit_gives_the_librarys_groups_and_words(saved: Saved) -> None:
    folder, model = saved("groupvit")
    result = load_pretrained(folder)
    image, text = both(result)
    pixels, (ids, mask) = images(16), texts()
    output, read = image(pixels), text(ids, mask)
    theirs = model.vision_model(pixel_values=processed(pixels, result))
    close(output.patches, theirs.last_hidden_state)
    close(output.pooled, theirs.pooler_output)
    assert output.patches.shape == (3, 3, 64)
    assert image.grid is None
    theirs = model.text_model(input_ids=ids, attention_mask=mask.long())
    close(read.pooled, theirs.pooler_output)
    close(read.tokens[mask], theirs.last_hidden_state[mask])
    assert result.left_out == ()
    vectors = result.heads[0](output.pooled), result.heads[1](read.pooled)
    close(vectors[0], model.get_image_features(pixel_values=processed(pixels, result)).pooler_output)
    close(vectors[1], model.get_text_features(input_ids=ids, attention_mask=mask.long()).pooler_output)
    assert vectors[0].shape == (3, 24)


@torch.no_grad()
@pytest.mark.parametrize("family", ["clip", "siglip", "bert", "groupvit"])
def test_a_text_does_not_depend_on_its_padding_or_on_other_texts(family: str, saved: Saved) -> None:
    text = load_pretrained(saved(family)[0]).text
    ids, mask = texts(12)
    together = text(ids, mask)
    for row in range(len(ids)):
        length = int(mask[row].sum())
        alone = text(ids[row : row + 1, :length], mask[row : row + 1, :length])
        close(together.pooled[row], alone.pooled[0])
        close(together.tokens[row, :length], alone.tokens[0])
    longer = text(nn.functional.pad(ids, (0, 40), value=5), nn.functional.pad(mask, (0, 40)))
    close(longer.pooled, together.pooled)
    assert longer.tokens.shape[1] == 52
    empty = text(ids, torch.zeros_like(mask))
    assert torch.equal(empty.pooled, torch.zeros_like(empty.pooled))
    assert empty.tokens.isfinite().all()


def test_sides_written_as_lists_are_numbers_and_must_be_equal(saved: Saved, tmp_path: Path) -> None:
    folder = altered(saved("vit")[0], tmp_path / "x", unchanged)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"image_size": [16, 16], "patch_size": [4, 4]}))
    assert load_pretrained(folder, size=24).architecture["config"]["image_size"] == 24
    for change, said in (
        ({"image_size": [16, 32]}, "only square images"),
        ({"num_channels": 1}, "3 colours"),
    ):
        (folder / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(UserError, match=said):
            load_pretrained(folder)


@torch.no_grad()
def test_a_setting_of_the_form_of_results_changes_none(saved: Saved, tmp_path: Path) -> None:
    before, folder = (
        load_pretrained(saved("bert")[0]).text,
        altered(saved("bert")[0], tmp_path / "x", unchanged),
    )
    config = json.loads((folder / "config.json").read_text())
    form = {"return_dict": False, "chunk_size_feed_forward": 2, "architectures": 3}
    (folder / "config.json").write_text(json.dumps(config | form))
    after = load_pretrained(folder).text
    ids, mask = texts()
    assert torch.equal(after(ids, mask).pooled, before(ids, mask).pooled)


def test_an_adapter_beside_the_weights_is_refused(saved: Saved, tmp_path: Path) -> None:
    folder = altered(saved("bert")[0], tmp_path / "x", unchanged)
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match="merge it into the weights"):
        load_pretrained(folder)


@torch.no_grad()
@pytest.mark.parametrize("end", [2, 299])
def test_the_end_of_a_text_follows_both_rules_of_the_library(end: int, tmp_path: Path) -> None:
    """eos_token_id 2 means the highest id there, any other the first such token."""
    model = clip(eos_token_id=end)
    model.save_pretrained(tmp_path / "clip")
    result = load_pretrained(tmp_path / "clip")
    ids, mask = texts(pad=299)  # the library pads with the end token
    ours = both(result)[1](ids, mask).pooled @ result.text_projection.T
    close(ours, model.get_text_features(input_ids=ids).pooler_output)


def test_siglip_pads_with_what_its_tokenizer_pads_with(saved: Saved, tmp_path: Path) -> None:
    folder = altered(saved("siglip")[0], tmp_path / "x", unchanged)
    tokens = [{"content": "<pad>", "id": 9}, {"content": "<eos>", "id": 1}]
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": tokens}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"pad_token": "<pad>"}))
    _, text = both(load_pretrained(folder))
    assert text.pad == 9
    assert both(load_pretrained(saved("siglip")[0]))[1].pad == 1


def test_mean_and_spread_come_from_the_checkpoint(saved: Saved, tmp_path: Path) -> None:
    folder = altered(saved("clip")[0], tmp_path / "x", unchanged)
    assert load_pretrained(folder).architecture["mean"] == [0.48145466, 0.4578275, 0.40821073]
    settings = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    assert load_pretrained(folder).architecture["spread"] == [0.4, 0.5, 0.6]
    nested = {"image_processor": settings | {"image_mean": [0.7, 0.8, 0.9]}}  # which the library reads first
    (folder / "processor_config.json").write_text(json.dumps(nested))
    close(load_pretrained(folder).image.mean.flatten(), torch.tensor([0.7, 0.8, 0.9]))


def test_heads_of_other_tasks_are_left_out_by_name_and_half_precision_is_widened(tmp_path: Path) -> None:
    from transformers import ViTConfig, ViTForImageClassification

    ViTForImageClassification(ViTConfig(**IMAGE)).half().save_pretrained(tmp_path / "vit")
    result = load_pretrained(tmp_path / "vit")
    assert result.left_out == ("classifier",)
    assert {p.dtype for p in result.image.parameters()} == {torch.float32}
    assert {p.dtype for p in build_pretrained(result.architecture).image.parameters()} == {torch.float32}


# Other sizes and lengths


@torch.no_grad()
@pytest.mark.parametrize("family", ["clip", "siglip", "vit"])
@pytest.mark.parametrize("size", [8, 24, 28])
def test_other_sizes_of_images_are_those_of_the_library(family: str, size: int, saved: Saved) -> None:
    folder, model = saved(family)
    result = load_pretrained(folder, size=size)
    pixels = images(size)
    eye = model if family == "vit" else model.vision_model
    theirs = eye(pixel_values=processed(pixels, result), interpolate_pos_encoding=True)
    output = result.image(pixels)
    close(output.pooled, theirs.last_hidden_state[:, 0] if family == "vit" else theirs.pooler_output)
    assert result.image.grid == (size // 4, size // 4)
    assert output.patches.shape[1] == (size // 4) ** 2


@torch.no_grad()
def test_groupvit_and_swin_read_larger_images(saved: Saved) -> None:
    from transformers import SwinModel

    groups = load_pretrained(saved("groupvit")[0], size=24).image
    folder, _ = saved("swin")
    result = load_pretrained(folder, size=64)
    model = SwinModel.from_pretrained(folder).eval()  # one that read small images no longer shifts windows
    assert groups(images(24)).patches.shape == (3, 3, 64)
    pixels = images(64)
    close(result.image(pixels).patches, model(pixel_values=processed(pixels, result)).last_hidden_state)
    assert result.image.grid == (8, 8)


def test_its_own_size_fits_though_patches_leave_a_rest(tmp_path: Path) -> None:
    """The sizes of google/siglip-so400m-patch14-384."""
    make = FAMILIES["vit"]().config.to_dict() | {"image_size": 18}
    from transformers import ViTConfig, ViTModel

    ViTModel(ViTConfig.from_dict(make)).save_pretrained(tmp_path)
    image = load_pretrained(tmp_path, size=18).image
    assert (image.size, image.grid, image(images(18)).patches.shape[1]) == (18, (4, 4), 16)
    assert load_pretrained(tmp_path, size=20).image.grid == (5, 5)  # type: ignore[union-attr]
    with pytest.raises(UserError, match="patch side 4"):
        load_pretrained(tmp_path, size=19)


@torch.no_grad()
@pytest.mark.parametrize("family", ["clip", "bert"])
def test_longer_texts_have_stretched_positions_and_shorter_ones_their_beginning(
    family: str, saved: Saved
) -> None:
    folder, model = saved(family)
    rows = (model if family == "bert" else model.text_model).embeddings
    rows = (rows.position_embeddings if family == "bert" else rows.position_embedding).weight

    def positions(**how: Any) -> Tensor:
        text = load_pretrained(folder, **how).text
        table = text.model.embeddings
        assert text.context == how["context"]
        return (table.position_embeddings if family == "bert" else table.position_embedding).weight

    close(positions(context=60), stretch_keep(rows, 4))
    close(positions(context=50, stretch="linear"), stretch_linear(rows, 50))
    close(positions(context=12), rows[:12])


def test_a_context_that_cannot_be_had_is_one_line(saved: Saved) -> None:
    for context in (14, 24):
        with pytest.raises(UserError, match="choose stretch='linear'"):
            load_pretrained(saved("siglip")[0], context=context)
    with pytest.raises(UserError, match="at least 3"):
        load_pretrained(saved("clip")[0], context=2)


@torch.no_grad()
def test_the_activation_of_a_clip_can_be_set(saved: Saved) -> None:
    folder, model = saved("clip")
    pixels = images(16)
    plain, _ = both(load_pretrained(folder, quick_gelu=False))
    quick, _ = both(load_pretrained(folder, quick_gelu=True))
    assert model.config.vision_config.hidden_act == "quick_gelu"
    close(quick(pixels).pooled, both(load_pretrained(folder))[0](pixels).pooled)
    assert not torch.allclose(plain(pixels).pooled, quick(pixels).pooled)
    with pytest.raises(UserError, match="quick_gelu is for CLIP"):
        load_pretrained(saved("vit")[0], quick_gelu=True)


# Strict


@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_missing_an_unknown_and_a_misshapen_tensor_are_one_line(
    family: str, saved: Saved, tmp_path: Path
) -> None:
    folder, _ = saved(family)

    def without(state: dict[str, Tensor]) -> None:
        del state[next(name for name in state if "layernorm" in name.lower() or "layer_norm" in name)]

    def more(state: dict[str, Tensor]) -> None:
        state["extra.weight"] = torch.ones(2)

    def wider(state: dict[str, Tensor]) -> None:
        name = next(name for name, x in state.items() if x.ndim == 2 and "position" not in name)
        state[name] = torch.ones(3, 5)

    for change, message in (
        (without, "1 missing"),
        (more, "1 unknown .extra.weight"),
        (wider, "1 of another form"),
    ):
        place = altered(folder, tmp_path / change.__name__, change)
        with pytest.raises(UserError, match=message) as caught:
            load_pretrained(place)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("family", list(FAMILIES))
def test_the_architecture_builds_the_same_modules_without_the_checkpoint(family: str, saved: Saved) -> None:
    result = load_pretrained(
        saved(family)[0], size=32, context=None if family == "swin" else 24, stretch="linear"
    )
    again = build_pretrained(json.loads(json.dumps(result.architecture)))
    assert again.architecture == result.architecture
    for ours, theirs in ((again.image, result.image), (again.text, result.text)):
        if ours is None or theirs is None:
            assert ours is theirs
            continue
        ours.load_state_dict(theirs.state_dict(), strict=True)
        assert (ours.width, type(ours)) == (theirs.width, type(theirs))
    pixels, (ids, mask) = images(32), texts(24)
    with torch.no_grad():
        if result.image is not None and again.image is not None:
            assert torch.equal(result.image(pixels).pooled, again.image(pixels).pooled)
        if result.text is not None and again.text is not None:
            assert torch.equal(result.text(ids, mask).pooled, again.text(ids, mask).pooled)


def test_gradients_reach_every_parameter_of_both_towers(saved: Saved) -> None:
    image, text = both(load_pretrained(saved("clip")[0]))
    output, read = image.train()(images(16)), text.train()(*texts())
    (output.pooled.sum() + read.pooled.sum()).backward()
    assert all(p.grad is not None for p in (*image.parameters(), *text.parameters()))


# Code of a folder


def with_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts a program into a folder; returns the file that it would write. A question is an error."""
    ran = folder / "RAN"
    (folder / "own.py").write_text(
        f"open({str(ran)!r}, 'w').close()\nfrom transformers import PretrainedConfig\n"
        "class Own(PretrainedConfig):\n    model_type = 'own'\n"
    )
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("it asks"))
    return ran


@pytest.mark.parametrize("settings", [{}, {"model_type": "own"}])
def test_a_kind_with_code_of_its_own_is_refused_and_nothing_runs(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = with_code(tmp_path, monkeypatch)
    settings = settings | {"auto_map": {"AutoConfig": "own.Own", "AutoModel": "own.Own"}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(
        UserError, match=r"has model_type (own|\(none\)) with code of its own, which is never run"
    ):
        load_pretrained(tmp_path)
    assert not ran.exists()


def test_a_known_kind_with_code_of_its_own_is_read_without_it(
    saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(saved("clip")[0], tmp_path / "own"))
    ran, config = with_code(folder, monkeypatch), json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "own.Own", "AutoModel": "own.Own"}
    (folder / "config.json").write_text(json.dumps(config))
    assert load_pretrained(folder).image is not None
    assert not ran.exists()


def test_settings_that_the_library_does_not_know_are_named(
    saved: Saved, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(saved("clip")[0], tmp_path / "other")
    file = tmp_path / "other" / "config.json"
    config = json.loads(file.read_text()) | {"torchscript": False, "top_k": 50, "rope": True}
    config["text_config"]["position_embedding_type"] = "absolute"
    config["vision_config"] |= {"position_embedding_type": "relative_key", "registers": 4}
    file.write_text(json.dumps(config))
    capsys.readouterr()
    for place in (saved("clip")[0], tmp_path / "other"):
        load_pretrained(place)
    said, names = (
        capsys.readouterr().err,
        "rope, vision_config.position_embedding_type, vision_config.registers",
    )
    assert said.startswith(f"{file} has fields that transformers ")
    assert said.endswith(f" does not know, so they are not obeyed: {names}\n")


@pytest.mark.parametrize(
    "file", ["config.json", "preprocessor_config.json", "processor_config.json", "tokenizer_config.json"]
)
def test_a_kind_that_we_know_is_read_whatever_code_lies_beside_it(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "in"
    whole("clip", folder)
    ran, place = with_code(folder, monkeypatch), folder / file
    content = json.loads(place.read_text()) if place.exists() else {}
    classes = ("AutoConfig", "AutoModel", "AutoImageProcessor", "AutoProcessor", "AutoTokenizer")
    content["auto_map"] = dict.fromkeys(classes, "own.Own")
    place.write_text(json.dumps(content))
    assert load(folder).encode(texts=["a red dog"]).vector.shape == (1, 24)
    convert(str(folder), tmp_path / "out")
    assert not ran.exists()


def test_no_call_of_the_library_may_run_code_of_a_folder() -> None:
    """Each of them has trust_remote_code=False: without it the library asks on standard input."""
    calls = 0
    for path in Path(grainline.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(node.func, "attr", None) if isinstance(node, ast.Call) else None
            if isinstance(node, ast.Call) and name in ("from_pretrained", "from_config"):
                trust = {word.arg: ast.unparse(word.value) for word in node.keywords}.get("trust_remote_code")
                assert trust == "False", f"{path}:{node.lineno}"
                calls += 1
    assert calls >= 5


# What people give by mistake


def test_models_of_another_kind_are_one_line(saved: Saved, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(UserError, match=r"has model_type gpt2; allowed are .*clip, siglip"):
        load_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config.json is no JSON"):
        load_pretrained(tmp_path)
    (tmp_path / "config.json").write_bytes((saved("clip")[0] / "config.json").read_bytes())
    with pytest.raises(UserError, match="cannot read the model in"):
        load_pretrained(tmp_path)  # no weights
    with pytest.raises(UserError, match="no file or folder"):
        load_pretrained("no such/folder/here")


def test_a_siglip_without_a_pool_is_one_line(tmp_path: Path) -> None:
    model = siglip()
    model.config.vision_config.vision_use_head = False
    model.save_pretrained(tmp_path / "x")
    with pytest.raises(UserError, match="no attention pool"):
        load_pretrained(tmp_path / "x")


def run(code: str, **surroundings: str) -> str:
    """What a fresh Python prints; it may only print one line and no traceback."""
    begin = (
        "from grainline.encoders.pretrained import load_pretrained\nfrom grainline.errors import UserError\n"
    )
    body = f"{begin}try:\n    {code}\nexcept UserError as error:\n    print(error)\n"
    paths = [
        surroundings.pop("PYTHONPATH", ""),
        os.environ.get("PYTHONPATH", ""),
        str(Path(__file__).parent.parent),
    ]
    env = {**os.environ, **surroundings, "PYTHONPATH": os.pathsep.join(x for x in paths if x)}
    done = subprocess.run([sys.executable, "-c", body], env=env, capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 1, done.stdout
    return done.stdout


def test_a_hub_out_of_reach_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    line = run("load_pretrained('openai/clip-vit-base-patch32')", HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path))
    assert "no folder openai/clip-vit-base-patch32 here" in line
    assert "give a folder, or set HF_HOME" in line


def test_a_thread_that_loads_while_another_imports_gets_the_whole_library(tmp_path: Path) -> None:
    late = (
        "import sys, time, types; time.sleep(2); sys.modules[__name__] = types.SimpleNamespace(CLIPModel=0)"
    )
    (tmp_path / "transformers.py").write_text(late)  # as the library, it replaces itself in the end
    begin = "import threading, time; from grainline.encoders.pretrained.hub import library"
    code = f"{begin}; threading.Thread(target=library).start(); time.sleep(1); print(library().CLIPModel)"
    assert run(code, PYTHONPATH=str(tmp_path)) == "0\n"


def test_a_broken_torchvision_beside_us_is_one_line_that_says_what_to_do(
    saved: Saved, tmp_path: Path
) -> None:
    package, info = tmp_path / "torchvision", tmp_path / "torchvision-0.28.0.dist-info"
    package.mkdir()
    info.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 0.28.0\n")
    line = run(f"load_pretrained({str(saved('clip')[0])!r})", PYTHONPATH=str(tmp_path))
    assert "operator torchvision::nms does not exist" in line
    assert "pip uninstall torchvision" in line


def test_the_tokenizer_of_two_tokens_is_an_error(tmp_path: Path) -> None:
    from transformers import CLIPTokenizer

    from grainline.data.tokenizers.tokenizer_files import load_tokenizer

    CLIPTokenizer().save_pretrained(tmp_path)
    with pytest.raises(UserError, match="holds only 2 tokens, a real vocabulary at least 256"):
        load_tokenizer(tmp_path)


# Back again


@torch.no_grad()
@pytest.mark.parametrize("family", ["clip", "siglip"])
def test_towers_written_as_a_folder_are_read_by_the_library_and_by_us(
    family: str, saved: Saved, tmp_path: Path
) -> None:
    from transformers import AutoModel

    folder, model = saved(family)
    result = load_pretrained(folder)
    to_hugging_face(result, tmp_path / "out")
    assert max(parity(result, tmp_path / "out")) < 1e-6
    again = AutoModel.from_pretrained(tmp_path / "out").state_dict()
    for name, x in model.state_dict().items():
        close(again[name], x)
        assert again[name].shape == x.shape
    assert load_pretrained(tmp_path / "out").architecture == result.architecture
    with pytest.raises(UserError, match="is there already"):
        to_hugging_face(result, tmp_path / "out")


def test_heads_that_a_state_dict_cannot_tell_are_not_written_as_one(saved: Saved, tmp_path: Path) -> None:
    towers = load_pretrained(saved("clip")[0])
    towers.architecture["filter"] = "bilinear"
    obstacles = (
        r"image side has 2 heads.*for 1 heads; the text side has 2 heads.*for 1 heads; images are "
        r"prepared.* has no field for that; write a Hugging Face folder"
    )
    with pytest.raises(UserError, match=obstacles):
        to_open_clip(towers, tmp_path / "x.safetensors")


def test_what_has_no_such_form_is_not_written(saved: Saved, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^vit cannot be written as a Hugging Face folder"):
        to_hugging_face(load_pretrained(saved("vit")[0]), tmp_path / "x")
    with pytest.raises(UserError, match=r"^siglip cannot be written as a state dict of open_clip"):
        to_open_clip(load_pretrained(saved("siglip")[0]), tmp_path / "x.safetensors")


# What was damaged on the way


@pytest.mark.parametrize("form", ["safetensors", "bin"])
@pytest.mark.parametrize("damage", [float("nan"), float("inf"), "integers"])
def test_weights_that_are_no_numbers_are_refused_by_tensor_and_file(
    damage: float | str, form: str, saved: Saved, tmp_path: Path
) -> None:
    name = "text_model.encoder.layers.0.mlp.fc1.weight"

    def change(state: dict[str, Tensor]) -> None:
        state["text_model.embeddings.position_ids"] = torch.arange(16)[None]  # in older files: no weights
        if damage == "integers":
            state[name] = state[name].to(torch.int8)
        else:
            state[name][1, 2] = damage

    folder = altered(saved("clip")[0], tmp_path / "m", change)
    file = folder / "model.safetensors"
    if form == "bin":
        torch.save(load_file(file), folder / "pytorch_model.bin")
        file.unlink()
        file = folder / "pytorch_model.bin"
    kind = "without floats" if damage == "integers" else "with NaN or infinite numbers"
    with pytest.raises(UserError, match=re.escape(f"{file} cannot be weights: 1 {kind} ({name})")):
        load_pretrained(folder)


def damaged(folder: Path, **files: Any) -> Path:
    """A CLIP with other files, `_json` in place of `.json`; a text is written as it is, all else as JSON."""
    whole("clip", folder)
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name.replace("_json", ".json")).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"preprocessor_config_json": [1]}, "preprocessor_config.json holds a list"),
        ({"preprocessor_config_json": {"resample": 9}}, "cannot read the model in"),
        ({"preprocessor_config_json": {"resample": -1}}, "cannot read the model in"),
        ({"preprocessor_config_json": {"image_mean": [0.5]}}, "mean and std"),
        ({"preprocessor_config_json": {"image_mean": "x"}}, "cannot read the model in"),
        ({"preprocessor_config_json": {"image_std": [0, 1, 1]}}, "mean and std"),
        ({"preprocessor_config_json": '{"image_std": [NaN, 1, 1]}'}, "mean and std"),
        ({"preprocessor_config_json": {"size": "large"}}, "cannot read the model in"),
        ({"processor_config_json": {"image_processor": [1]}}, "cannot read the model in"),
        ({"tokenizer_config_json": [1]}, "tokenizer_config.json holds a list"),
        ({"tokenizer_config_json": {"pad_token": {"id": 3}}}, "cannot read the model in"),
        ({"tokenizer_json": {"added_tokens": 3}}, "cannot read the model in"),
    ],
    ids=str,
)
def test_settings_of_another_form_are_one_line(files: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        load_pretrained(damaged(tmp_path, **files))


@pytest.mark.parametrize("file", ["config.json", "preprocessor_config.json", "model.safetensors"])
def test_flipped_bytes_of_a_folder_are_read_or_one_line(file: str, tmp_path: Path) -> None:
    processor = {"image_mean": [0.1, 0.2, 0.3], "size": {"shortest_edge": 16}, "crop_size": 16, "resample": 2}
    place = damaged(tmp_path, preprocessor_config_json=processor) / file
    ends = read_damaged(place, lambda: load_pretrained(tmp_path), 20, JSON_FORMS)
    assert not any("\n" in end for end in ends)
    assert ends.count("read") < len(ends)
