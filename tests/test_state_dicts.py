"""State dicts of OpenAI, open_clip and Long-CLIP, against their model written plainly (checkpoints.py)."""

import argparse
import json
import os
import pickle
import re
import zipfile
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import JSON_FORMS, LongCLIP, OpenAI, close, images, read_damaged, save_state, shaken, texts
from safetensors.torch import load_file, save_file
from torch import Tensor

from grainline.encoders.pretrained import Pretrained, load_pretrained
from grainline.encoders.pretrained.archive import read_tensors
from grainline.encoders.pretrained.convert import to_hugging_face, to_open_clip
from grainline.errors import UserError
from grainline.export.huggingface import parity
from grainline.nn.positions import stretch_keep

MEAN, SPREAD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


@torch.no_grad()
def same(actual: Pretrained, model: Any, pad: int = 0) -> None:
    """Vectors of both sides before they are made unit vectors, and the scale."""
    pixels = images(16)
    x = (pixels / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(SPREAD).view(3, 1, 1)
    close(actual.image(pixels).pooled @ actual.image_projection.T, model.encode_image(x))
    ids, mask = texts(actual.text.context, pad=pad)
    close(actual.text(ids, mask).pooled @ actual.text_projection.T, model.encode_text(ids))
    close(actual.scale, model.logit_scale.exp().view(1))


@pytest.fixture
def model() -> Any:
    return shaken(OpenAI())


@pytest.fixture
def file(model: Any, tmp_path: Path) -> Path:
    save_state(model, tmp_path / "clip-quickgelu.safetensors")
    return tmp_path / "clip-quickgelu.safetensors"


def test_a_state_dict_is_the_model_it_came_from(file: Path, model: Any) -> None:
    result = load_pretrained(file)
    same(result, model)
    assert (result.image.width, result.image.size, result.image.grid) == (128, 16, (4, 4))
    assert (result.text.width, result.text.context, result.text.vocab) == (64, 30, 300)
    assert (result.tokenizer, result.left_out) == (None, ())
    config = result.architecture["config"]
    assert [config[side]["num_attention_heads"] for side in ("vision_config", "text_config")] == [2, 1]
    assert [config[side]["num_hidden_layers"] for side in ("vision_config", "text_config")] == [2, 3]


@pytest.mark.parametrize("quick", [True, False])
def test_the_activation_is_what_the_caller_says(quick: bool, tmp_path: Path) -> None:
    model = shaken(OpenAI(quick))
    save_state(model, tmp_path / "x.safetensors")
    same(load_pretrained(tmp_path / "x.safetensors", quick_gelu=quick), model)


def plain_file(state: Any) -> Any:
    return state


def of_openai(state: Any) -> Any:
    numbers = {"input_resolution": 16, "context_length": 30, "vocab_size": 300}
    return state | {name: torch.tensor(x) for name, x in numbers.items()}


def named(state: Any) -> Any:
    return {"epoch": 1, "name": "run-model_ViT-X-4-quickgelu-lr_1e-3", "state_dict": state}


@pytest.mark.parametrize(("form", "quick"), [(plain_file, False), (of_openai, True), (named, True)])
def test_the_activation_is_what_the_file_shows_and_a_guess_is_said(
    form: Any, quick: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = shaken(OpenAI(quick))
    torch.save(form(model.state_dict()), tmp_path / "x.pt")
    same(load_pretrained(tmp_path / "x.pt"), model)
    line = capsys.readouterr().err
    assert (line.count("\n"), "does not say its activation" in line) == ((0, False) if quick else (1, True))


@pytest.mark.parametrize("form", [plain_file, lambda state: own_text_tower(state)])
def test_long_clip_has_two_tables_of_positions_and_quick_gelu(form: Any, tmp_path: Path) -> None:
    model = shaken(LongCLIP())
    torch.save(form(model.state_dict()), tmp_path / "longclip.pt")
    result = load_pretrained(tmp_path / "longclip.pt")
    same(result, model)
    assert torch.equal(result.text.model.embeddings.position_embedding.weight, model.positions())


@torch.no_grad()
def test_positions_of_a_state_dict_are_stretched_as_long_clip_does(file: Path, model: Any) -> None:
    result = load_pretrained(file, context=60)
    model.positional_embedding = torch.nn.Parameter(stretch_keep(model.positional_embedding))
    same(result, model)


def trained(state: dict[str, Tensor]) -> Any:
    return {"epoch": 3, "state_dict": {f"module.{name}": x for name, x in state.items()}}


def own_text_tower(state: dict[str, Tensor]) -> Any:
    """open_clip's CustomTextCLIP."""
    loose = ("logit_scale", "visual.")
    return {name if name.startswith(loose) else f"text.{name}": x for name, x in state.items()}


def prefixed(*prefixes: str, **beside: Any) -> Any:
    def form(state: dict[str, Tensor]) -> Any:
        return {"".join(prefixes) + name: x for name, x in state.items()} | beside

    return form


def nested(*keys: str, **beside: Any) -> Any:
    def form(state: dict[str, Tensor]) -> Any:
        for key in reversed(keys):
            state = {key: state, **beside}  # type: ignore[dict-item]
        return state

    return form


WRAPPED = {
    "compiled": prefixed("_orig_mod."),
    "lightning": prefixed("model."),
    "both": prefixed("module.", "_orig_mod."),
    "parameters": lambda state: {name: torch.nn.Parameter(x) for name, x in state.items()},
    "swa": prefixed("module.", n_averaged=torch.tensor(3)),
    "model": nested("model"),
    "module": nested("module"),
    "two": nested("model", "state_dict"),
    "averaged": nested("model_ema"),
    "beside": nested("model_state_dict", args=argparse.Namespace(lr=1), best=np.float64(0.5), at=Path("x")),
}


def old(state: dict[str, Tensor]) -> Any:
    """Of OpenAI's days: numbers among the weights, half precision, and the mask that open_clip once saved."""
    numbers = {"input_resolution": 16, "context_length": 30, "vocab_size": 300}
    extra = {name: torch.tensor(x) for name, x in numbers.items()} | {
        "attn_mask": torch.full((30, 30), -torch.inf)
    }
    return {name: x.half() for name, x in state.items()} | extra


@pytest.mark.parametrize("form", [trained, own_text_tower, old, *WRAPPED.values()])
def test_the_forms_in_which_such_state_dicts_lie_around_are_read(
    form: Callable[[dict[str, Tensor]], Any], model: Any, tmp_path: Path
) -> None:
    model.load_state_dict({name: x.half().float() for name, x in model.state_dict().items()})
    torch.save(form(model.state_dict()), tmp_path / "x.pt")
    result = load_pretrained(tmp_path / "x.pt", quick_gelu=True)
    same(result, model)
    assert {p.dtype for p in result.image.parameters()} == {torch.float32}


def test_what_is_chosen_or_not_known_among_wrappers_is_said(
    model: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state, place = model.state_dict(), tmp_path / "x-quickgelu.pt"
    torch.save({"model": state, "model_ema": {name: x + 1 for name, x in state.items()}}, place)
    same(load_pretrained(place), model)
    assert capsys.readouterr().err.endswith("also holds averaged weights (model_ema), not read\n")
    save_file({f"module.{name}": x for name, x in state.items()}, tmp_path / "y-quickgelu.safetensors")
    same(load_pretrained(tmp_path / "y-quickgelu.safetensors"), model)
    loop: dict[str, Any] = {"epoch": 1}
    loop["state_dict"] = loop
    for content, message in (
        ({f"net.{name}": x for name, x in state.items()}, "but net.ln_final.bias, net.ln_final.weight;"),
        ({"net": state, "epoch": 1}, r"but net, epoch; tensors may stand under one of state_dict, "),
        ({"model": state, "state_dict": state, "epoch": 1}, "but model, state_dict, epoch"),
        (loop, "but epoch, state_dict"),
        ([1], "but list"),
        ({"state_dict": state, "by": Fraction(1, 2)}, r"asks for fractions\.Fraction, which was not run"),
    ):
        torch.save(content, place)
        with pytest.raises(UserError, match=message):
            load_pretrained(place)


def test_a_folder_of_open_clip_says_activation_pixels_and_tokenizer(model: Any, tmp_path: Path) -> None:
    save_state(model, tmp_path / "open_clip_model.safetensors")
    text = {"context_length": 30, "vocab_size": 300, "width": 64, "heads": 1, "layers": 3}
    body = {
        "embed_dim": 24,
        "quick_gelu": True,
        "vision_cfg": {"width": 128, "head_width": 64},
        "text_cfg": text,
    }
    config = {"model_cfg": body, "preprocess_cfg": {"mean": list(MEAN), "std": list(SPREAD)}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").write_text("{}")
    result = load_pretrained(tmp_path)
    same(result, model)
    assert result.tokenizer == str(tmp_path)
    (tmp_path / "open_clip_config.json").write_text(json.dumps(body))
    same(load_pretrained(tmp_path), model)  # a config without model_cfg, as in open_clip's own list of models
    del body["quick_gelu"]
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": body, "preprocess_cfg": None}))
    config = load_pretrained(tmp_path).architecture["config"]
    assert {config[side]["hidden_act"] for side in ("vision_config", "text_config")} == {"gelu"}
    (tmp_path / "open_clip_config.json").unlink()
    with pytest.raises(UserError, match=r"no config.json, no open_clip_config.json"):
        load_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("part", "field", "value", "message"),
    [
        ("text_cfg", "no_causal_mask", True, "text_cfg, has .* obeyed: no_causal_mask True"),
        ("text_cfg", "pool_type", "last", "pool_type 'last'"),
        ("text_cfg", "text_mask", "syntax", "text_mask 'syntax'"),
        ("text_cfg", "tokenizer_kwargs", {"clean": "canonicalize"}, "tokenizer_kwargs {'clean'"),
        ("text_cfg", "hf_tokenizer_name", "bert-base-uncased", "hf_tokenizer_name 'bert"),
        ("text_cfg", "context_length", 77, "the weights: context_length is 77, in the weights 30"),
        ("text_cfg", "layers", "three", "layers is three, in the weights 3"),
        ("vision_cfg", "pool_type", "avg", "pool_type 'avg'"),
        ("vision_cfg", "norm_kwargs", {"eps": 1e-6}, "norm_kwargs {'eps': 1e-06}"),
        ("vision_cfg", "image_size", [16, 24], r"image_size is \[16, 24\], in the weights 16"),
        ("vision_cfg", "image_size", 32, "image_size is 32, in the weights 16"),
        ("text_cfg", "heads", True, "head_width or heads in .* is no positive whole number"),
        ("model_cfg", "quick_gelu", "no", "quick_gelu in .* is 'no'; allowed are true and false"),
        ("vision_cfg", "head_width", 0, "head_width or heads in .* is no positive whole number"),
        ("model_cfg", "multimodal_cfg", {"width": 1}, "multimodal_cfg"),
        ("model_cfg", "text_cfg", [1], "text_cfg in .* not settings by name"),
        ("preprocess_cfg", "size", 32, "images of size 32, its model reads 16"),
        ("", "vision", {}, "vision {}"),
    ],
)  # fmt: skip
def test_a_field_of_open_clip_is_obeyed_or_named(
    part: str, field: str, value: Any, message: str, model: Any, tmp_path: Path
) -> None:
    save_state(model, tmp_path / "open_clip_model.safetensors")
    known = {"timm_model_name": None, "output_tokens": True, "ls_init_value": None, "mlp_ratio": 4.0}
    body: dict[str, Any] = {"embed_dim": 24, "init_logit_scale": 2.6, "custom_text": False}
    body |= {
        "vision_cfg": known | {"image_size": [16, 16]},
        "text_cfg": known | {"heads": 1, "pool_type": "argmax"},
    }
    config: dict[str, Any] = {"model_cfg": body, "preprocess_cfg": {"size": 16}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    load_pretrained(tmp_path)
    {"": config, **config, **body}[part][field] = value
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=message):
        load_pretrained(tmp_path)


def test_patches_may_leave_a_rest_at_the_edge_of_an_image(model: Any, tmp_path: Path) -> None:
    save_state(model, tmp_path / "open_clip_model.safetensors")
    body = {"vision_cfg": {"image_size": 18}, "text_cfg": {"heads": 1}, "quick_gelu": True}
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": body}))
    image = load_pretrained(tmp_path).image
    assert (image.size, image.grid) == (18, (4, 4))


def test_heads_of_the_large_models_are_those_of_open_clip() -> None:
    from grainline.encoders.pretrained.clip_towers import heads_of

    assert [heads_of("image", x) for x in (100, 768, 1024, 1280, 1408, 1664)] == [0, 12, 16, 16, 16, 16]
    assert [heads_of("text", width) for width in (100, 512, 768, 1024, 1280)] == [0, 8, 12, 16, 20]


# Strict


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("visual.ln_post.weight", None, r"1 missing \(visual.ln_post.weight\)"),
        ("transformer.resblocks.1.attn.in_proj_weight", None, "1 missing"),
        ("logit_scale", None, "1 missing"),
        ("visual.trunk.weight", torch.ones(2), r"1 unknown \(visual.trunk.weight\)"),
        ("visual.positional_embedding", torch.ones(16, 128), "1 of another form"),
        ("text_projection", torch.ones(24, 64), "1 of another form"),
        (
            "visual.conv1.weight",
            None,
            "no visual.conv1.weight in it, but ln_final.bias, ln_final.weight; allowed",
        ),
        ("visual.proj", None, "no visual.proj in it"),
        ("visual.conv1.weight", torch.ones(100, 3, 4, 4), "heads of width 100"),
        ("transformer.resblocks.0.mlp.c_fc.bias", None, "has no transformer.resblocks.0.mlp.c_fc.bias"),
        ("logit_bias", torch.ones(1), "give the Hugging Face folder"),
    ],
)
def test_what_is_missing_unknown_or_misshapen_is_one_line(
    name: str, value: Tensor | None, message: str, file: Path
) -> None:
    state = load_file(file)
    state.pop(name, None)
    save_file(state if value is None else state | {name: value}, file)
    with pytest.raises(UserError, match=message) as caught:
        load_pretrained(file)
    assert "\n" not in str(caught.value)


# TorchScript archives


def archive(model: Any, file: Path) -> Path:
    """As OpenAI published theirs: the traced program with its weights in half precision."""
    ids, _ = texts()
    traced = torch.jit.trace(model.float(), (torch.rand(4, 3, 16, 16), ids), check_trace=False)
    traced.half().save(str(file))
    return file


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # nobody should write such files any more
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_an_archive_like_openais_is_read_for_its_tensors(model: Any, tmp_path: Path) -> None:
    model.load_state_dict({name: x.half().float() for name, x in model.state_dict().items()})
    place = archive(model, tmp_path / "ViT-X-4.pt")
    model.float()
    stored = read_tensors(place)
    tensors = stored.tensors
    assert stored.script
    assert tensors.keys() == model.state_dict().keys()
    for name, x in model.state_dict().items():
        assert tensors[name].dtype == torch.float16
        assert torch.equal(tensors[name].float(), x)
    same(load_pretrained(place), model)  # quick GELU, because it is an archive


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("kind", ["zip", "old", "script", "safetensors", "folder"])
def test_flipped_bytes_of_weights_are_read_or_one_line(kind: str, model: Any, tmp_path: Path) -> None:
    file = tmp_path / ("x-quickgelu.safetensors" if kind == "safetensors" else "x-quickgelu.pt")
    read, forms = partial(load_pretrained, file), ()
    if kind == "script":
        archive(model, file)
    elif kind == "safetensors":
        save_state(model, file)
    elif kind == "folder":
        save_state(model, tmp_path / "open_clip_model.safetensors")
        file, read, forms = tmp_path / "open_clip_config.json", partial(load_pretrained, tmp_path), JSON_FORMS
        body = {"embed_dim": 24, "vision_cfg": {"width": 128, "head_width": 64}, "text_cfg": {"heads": 1}}
        pixels = {"mean": list(MEAN), "size": 16, "interpolation": "bicubic"}
        file.write_text(json.dumps({"model_cfg": body, "preprocess_cfg": pixels}))
    else:
        torch.save(model.state_dict(), file, _use_new_zipfile_serialization=kind == "zip")
    ends = read_damaged(file, read, 30, forms)
    assert not any("\n" in end for end in ends)
    assert ends.count("read") < len(ends)


class Evil:
    """Runs a command when a careless reader unpickles it."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("form", ["state dict", "archive"])
@pytest.mark.parametrize("damage", [float("nan"), -float("inf"), "integers"])
def test_weights_that_are_no_numbers_are_refused_by_tensor_and_file(
    damage: float | str, form: str, model: Any, tmp_path: Path
) -> None:
    if (form, damage) == ("archive", "integers"):
        pytest.skip("a program holds floats")
    name, layer = "transformer.resblocks.0.mlp.c_fc.weight", model.transformer.resblocks[0].mlp.c_fc
    if damage == "integers":
        layer.weight = torch.nn.Parameter(layer.weight.to(torch.int32), requires_grad=False)
    else:
        layer.weight.data[1, 2] = damage
    file = tmp_path / "weights.pt"
    if form == "archive":
        archive(model, file)
    else:
        torch.save(model.state_dict(), file)
    kind = "without floats" if damage == "integers" else "with NaN or infinite numbers"
    with pytest.raises(UserError, match=re.escape(f"{file} cannot be weights: 1 {kind} ({name})")):
        load_pretrained(file)


def forged(file: Path, data: bytes) -> Path:
    with zipfile.ZipFile(file, "w") as out:
        out.writestr("archive/constants.pkl", b"")
        out.writestr("archive/data.pkl", data)
        out.writestr("archive/data/0", bytes(8))
    return file


def test_an_archive_runs_nothing(tmp_path: Path) -> None:
    trace = tmp_path / "was-run"
    place = forged(tmp_path / "x.pt", pickle.dumps({"a": Evil(f"touch {trace}")}))
    with pytest.raises(UserError, match=r"asks for (posix|nt)\.system, which was not run"):
        load_pretrained(place)
    assert not trace.exists()
    torch.save(Evil(f"touch {trace}"), tmp_path / "y.pt")
    with pytest.raises(UserError, match="cannot read tensors"):
        load_pretrained(tmp_path / "y.pt")
    assert not trace.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        b"c__builtin__\neval\n(S'1'\ntR.",
        b"ctorch._utils\n_rebuild_parameter\n.",
        b"ctorch\nFloatStorage\n(tR.",  # calls a dtype
        b"ctorch._utils\n_rebuild_tensor_v2\n((S'storage'\nctorch\nFloatStorage\nS'0'\nS'cpu'\nI2\ntQI0\n(I9\nt(I1\nttR.",
    ],
)
def test_a_forged_archive_is_one_line(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        load_pretrained(forged(tmp_path / "x.pt", data))
    assert "\n" not in str(caught.value)


def test_files_that_are_cut_or_hold_something_else_are_one_line(file: Path, tmp_path: Path) -> None:
    torch.save(load_file(file), tmp_path / "x.pt")
    whole = (tmp_path / "x.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.pt").write_text("hello")
    (tmp_path / "text.safetensors").write_text("hello")
    (tmp_path / "cut.safetensors").write_bytes(file.read_bytes()[:3000])
    torch.save([1, 2], tmp_path / "list.pt")
    for name in ("cut.pt", "text.pt", "text.safetensors", "cut.safetensors", "list.pt"):
        with pytest.raises(UserError, match=r"cannot read tensors|holds no state dict") as caught:
            load_pretrained(tmp_path / name)
        assert "\n" not in str(caught.value)


# Back again


@torch.no_grad()
def test_a_clip_goes_to_open_clips_form_and_back(file: Path, model: Any, tmp_path: Path) -> None:
    result = load_pretrained(file)
    to_open_clip(result, tmp_path / "out" / "x.safetensors")
    written = load_file(tmp_path / "out" / "x.safetensors")
    assert written.keys() == model.state_dict().keys()
    for name, x in model.state_dict().items():
        close(written[name], x)
    assert max(parity(result, tmp_path / "out" / "x.safetensors")) < 1e-6


@torch.no_grad()
def test_a_clip_of_openai_goes_to_a_hugging_face_folder_where_the_library_finds_its_end_token(
    file: Path, model: Any, tmp_path: Path
) -> None:
    from transformers import CLIPModel

    result = load_pretrained(file)
    to_hugging_face(result, tmp_path / "hf")
    assert max(parity(result, tmp_path / "hf")) < 1e-6
    theirs = CLIPModel.from_pretrained(tmp_path / "hf").eval()
    ids, mask = texts()
    close(theirs.get_text_features(input_ids=ids, attention_mask=mask).pooler_output, model.encode_text(ids))


@torch.no_grad()
def test_parity_sees_a_tower_that_moved(file: Path) -> None:
    result = load_pretrained(file)
    result.image.model.post_layernorm.bias += torch.randn(128)
    moved = parity(result, file)
    assert moved.image > 1e-3
    assert moved.text == 0.0
