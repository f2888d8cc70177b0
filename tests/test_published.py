"""Checkpoints of methods that papers published, against what their authors' own code computes with them."""

import argparse
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import FAMILIES, IMAGE, TEXT, LongCLIP, OpenAI, bert, close, shaken, tokenizer, whole
from PIL import Image
from runs import call
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import SiglipConfig, SiglipModel

from grainline import build, loading
from grainline.encoders.pretrained import load_pretrained, published
from grainline.errors import UserError
from grainline.loading import load
from grainline.nn.pooling import unit
from grainline.training.inputs import copy_weights
from grainline.types import Images, texts_of

MEAN, SPREAD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
IMAGENET, HALF = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


class Bare:
    """In place of a tokenizer: the vocabularies of small checkpoints have none."""

    def to_json(self) -> str:
        return "{}"


@pytest.fixture(autouse=True)
def two_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The small towers of LAPS have two; their widths say nothing."""
    monkeypatch.setattr(published, "HEADS", 2)


def flair_form(state: dict[str, Tensor]) -> Any:
    rate = {"param_groups": [{"lr": np.float64(5e-4)}]}
    return {"epoch": 29, "name": "flair", "state_dict": prefixed(state), "optimizer": rate}


def prefixed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"module.{name}": x for name, x in state.items()}


def beta_form(state: dict[str, Tensor]) -> Any:
    own = {"optimizer_conditioner": {}, "scaler": {}, "best_acc1": np.float32(3), "epoch": 10}
    return own | {"state_dict": prefixed(state), "args": argparse.Namespace(lr=1e-4, at=Path("x"))}


def laps_form(state: dict[str, Tensor]) -> Any:
    opt = argparse.Namespace(sparse_ratio=0.5, aggr_ratio=0.4, img_res=32, vit_type="vit")
    return {"model": state, "opt": opt, "epoch": 1, "best_rsum": np.float64(500), "Eiters": 9}


FORMS: dict[str, tuple[str, Callable[..., Any]]] = {
    "flair": ("flair-merged30m.pt", flair_form),
    "bclip": ("ce_checkpoint_10.pt", beta_form),
    "longclip": ("longclip-B.pt", dict),
    "laps_vit": ("model_best.pth", laps_form),
    "fgclip": ("model.safetensors", dict),
    "openclip_siglip": ("open_clip_model.safetensors", dict),
}


class Both:
    """A model from the files that were published, and the inputs and outputs of the authors' code."""

    def __init__(self, name: str, golden: Path, folder: Path, **options: Any) -> None:
        state = {key: x.float() for key, x in load_file(golden / f"{name}.weights.safetensors").items()}
        self.out = load_file(golden / f"{name}.io.safetensors")
        self.model = loading.load(stored(name, folder, state, golden), device="cpu", **options)
        self.method: Any = self.model.method
        pixels = self.out["images_uint8"]
        with torch.no_grad():
            self.images = self.method.encode_images(Images(pixels, torch.arange(len(pixels))))
        self.end = json.loads((golden / f"{name}.json").read_text())["here"].get("end")

    @torch.no_grad()
    def texts(self, ids: Tensor, lengths: Tensor | None = None) -> Any:
        """Texts of such lengths, or up to their first end token."""
        rows = ids.tolist()
        ends = lengths.tolist() if lengths is not None else [row.index(self.end) + 1 for row in rows]
        return self.method.encode_texts(texts_of([[row[:n]] for row, n in zip(rows, ends, strict=True)]))

    @torch.no_grad()
    def score(self, texts: Any) -> Tensor:
        score: Tensor = self.method.score(self.images, texts)
        return score


def stored(name: str, folder: Path, state: dict[str, Tensor], configs: Path) -> Path:
    """A file or folder as it was published."""
    file, form = FORMS[name]
    if not file.endswith(".safetensors"):
        torch.save(form(state), folder / file)
        return folder / file
    save_file(state, folder / file)
    config = "open_clip_config.json" if "open_clip" in file else "config.json"
    shutil.copy(configs / f"{name}.{config}", folder / config)
    return folder


Golden = Callable[..., Both]


@pytest.fixture
def golden(shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Golden:
    monkeypatch.setattr(build, "load_tokenizer", lambda *_, **__: Bare())
    return lambda name, **options: Both(name, shared_data / "checkpoints", tmp_path, **options)


def test_flair(golden: Golden) -> None:
    both = golden("flair")
    out, texts = both.out, both.texts(both.out["ids"])
    close(both.images.vector, unit(out["image_global"]))
    close(both.images.tokens, out["image_tokens"])
    close(texts.tokens[:, 0], out["text_global"])
    method = both.method
    close(method.scale()[0], out["logit_scale_exp"])
    close(method.bias[0], out["logit_bias"])
    score = both.score(texts)
    close(score * method.scale(), out["score_conditioned_as_ranked"])
    close(score * method.scale() + method.bias, out["score_conditioned"])
    vectors = golden("flair", scoring="vectors")
    close(vectors.score(texts) * method.scale(), out["score_global"])


def test_beta_clip(golden: Golden) -> None:
    both = golden("bclip")
    out, texts = both.out, both.texts(both.out["ids"])
    close(both.images.vector, unit(out["image_tokens"][:, 0]))
    close(both.images.tokens, out["image_tokens"][:, 1:])
    close(texts.vector, unit(out["text_vectors"]))
    close(both.score(texts), out["score_vectors"])
    method = both.method
    close(method.scale()[0], out["logit_scale_exp"])
    close(method.pool_scale()[0], out["pool_logit_scale_exp"])
    close(method.pool_images(both.images, texts), unit(out["pooled_own_text"]))
    conditioned = golden("bclip", scoring="conditioned")
    close(conditioned.score(texts), out["score_conditioned_every_pair"])
    whole = golden("bclip", patches="attention")
    close(whole.images.tokens, out["image_tokens_whole_last_block"][:, 1:])


def with_masks(state: dict[str, Tensor]) -> Any:
    """SmartCLIP."""
    return state | {
        "mask_net.resblocks.0.ln_1.weight": torch.ones(4),
        "mask_net.attn_pool.bias": torch.ones(4),
    }


def own_text_tower(state: dict[str, Tensor]) -> Any:
    """DeBias-CLIP."""
    loose = ("logit_scale", "visual.")
    tensors = {key if key.startswith(loose) else f"text.{key}": x for key, x in state.items()}
    return {"epoch": 3, "name": "debias", "state_dict": tensors, "optimizer": {}, "scaler": {}}


@pytest.mark.parametrize("form", [dict, with_masks, own_text_tower])
def test_long_clip_and_the_layouts_that_follow_it(
    form: Callable[..., Any], golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FORMS, "longclip", ("longclip-B.pt", form))
    both = golden("longclip")
    out, texts = both.out, both.texts(both.out["ids"])
    close(both.images.vector, unit(out["image_vectors"]))
    close(texts.vector, unit(out["text_vectors"]))
    close(both.score(texts), out["score"])
    close(both.method.scale()[0], out["logit_scale_exp"])
    left_out = load_pretrained(tmp_path / "longclip-B.pt").left_out
    assert left_out == (("mask_net",) if form is with_masks else ())


@pytest.mark.filterwarnings("ignore:Model config")
def test_fg_clip_by_both_ways(golden: Golden) -> None:
    for way, context in (("long", None), ("short", 77)):
        both = golden("fgclip", context=context)
        out, texts = both.out, both.texts(both.out[f"ids_{way}"])
        assert both.method.context == (context or 248)
        close(both.images.vector, unit(out["image_vectors"]))
        close(texts.vector, unit(out[f"text_vectors_{way}"]))
        close(both.score(texts), out[f"score_{way}"])
        close(both.images.tokens, out["image_dense"])
    close(unit(both.images.tokens) @ texts.vector.T, out["score_dense_short"])
    close(both.method.scale()[0], out["logit_scale_exp"])
    assert (both.model.transform.resize, both.method.size) == ("squash", 20)


def test_laps(golden: Golden) -> None:
    both = golden("laps_vit")
    out = both.out
    texts = both.texts(out["ids"], out["lengths"])
    close(both.images.extra.cls, out["image_tokens"][:, 0])
    close(both.images.tokens, out["image_tokens"][:, 1:])
    real = texts.mask
    close(texts.tokens[real], out["word_tokens"][:, : real.shape[1]][real])
    close(both.score(texts), out["score"])


def test_siglip_of_open_clip(golden: Golden) -> None:
    both = golden("openclip_siglip")
    out, texts = both.out, both.texts(both.out["ids"])
    close(both.images.vector, unit(out["image_vectors"]))
    close(texts.vector, unit(out["text_vectors"]))
    method = both.method
    close(both.score(texts), out["score"])
    close(method.scale() * both.score(texts) + method.bias, out["logits"])
    close(method.scale()[0], out["logit_scale_exp"])
    close(method.bias[0], out["logit_bias"])


# Small checkpoints of the same layouts, against the models that they were made of.

VOCAB = 556  # of the tokenizer that lies beside them


def pooled(state: dict[str, Tensor], pool: str, *layers: tuple[str, nn.Module]) -> dict[str, Tensor]:
    return state | {
        f"{pool}.{name}.{key}": x for name, layer in layers for key, x in layer.state_dict().items()
    }


def attention() -> Any:
    return shaken(nn.MultiheadAttention(24, 8, add_zero_attn=True, batch_first=True))


def norm() -> Any:
    return shaken(nn.LayerNorm(24))


def flair_parts(model: Any) -> dict[str, Tensor]:
    state = model.state_dict() | {"logit_bias": torch.tensor(-7.0)}
    state["image_post.proj"], state["text_post.proj"] = state.pop("visual.proj"), state.pop("text_projection")
    return pooled(state, "visual_proj", ("attn", attention()), *((f"ln_{x}", norm()) for x in "qkv"))


def beta_parts(model: Any) -> dict[str, Tensor]:
    """Names of timm for images; queries, keys and values of texts apart."""
    names = {
        "visual.transformer.resblocks.": "visual.blocks.", ".ln_1.": ".norm1.", ".ln_2.": ".norm2.",
        ".attn.in_proj_": ".attn.qkv.", ".attn.out_proj.": ".attn.proj.", "c_fc": "fc1", "c_proj": "fc2",
        "visual.conv1.": "visual.patch_embed.proj.", "visual.class_embedding": "visual.cls_token",
        "visual.positional_embedding": "visual.pos_embed", "visual.ln_pre": "visual.norm_pre",
        "visual.ln_post": "visual.norm", "visual.proj": "image_projection",
    }  # fmt: skip
    state = dict[str, Tensor]()
    for name, x in model.state_dict().items():
        if name.startswith("visual."):
            for ours, theirs in names.items():
                name = name.replace(ours, theirs)
            state[name] = x[None, None] if "cls_token" in name else x[None] if "pos_embed" in name else x
        elif ".in_proj_" in name:
            for letter, part in zip("qkv", x.chunk(3), strict=True):
                state[name.replace("in_proj_", f"{letter}_proj.")] = part
        else:
            state[name] = x
    pool = "text_conditioned_patches_block"
    mlp = (("mlp.c_fc", shaken(nn.Linear(24, 96))), ("mlp.c_proj", shaken(nn.Linear(96, 24))))
    state = pooled(state, pool, ("attn", attention()), ("ln_2", norm()), *mlp)
    return state | {f"{pool}.logit_scale": torch.tensor(3.0)}


Vectors = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def normalised(pixels: Tensor, mean: Any, spread: Any) -> Tensor:
    return (pixels / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(spread).view(3, 1, 1)


def clip_of(parts: Callable[[Any], dict[str, Tensor]], form: Callable[..., Any], kind: Any) -> Any:
    def write(folder: Path) -> Vectors:
        model = shaken(kind(vocab=VOCAB))
        torch.save(form(parts(model)), folder / "it.pt")

        def vectors(pixels: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
            return model.encode_image(normalised(pixels, MEAN, SPREAD)), model.encode_text(ids)

        return vectors

    return write


def fg_clip(folder: Path) -> Vectors:
    model, file = whole("clip", folder), folder / "model.safetensors"
    table, first, rest = "text_model.embeddings.position_embedding", torch.randn(40, 64), torch.randn(40, 64)
    own = {f"{table}_ori.weight": first, f"{table}_res.weight": rest}
    own |= {"text_filip_projection.weight": torch.randn(24, 64)}
    own |= {f"logit_scale_{name}": torch.tensor(1.0) for name in ("finegraind", "hardneg")}
    save_file(load_file(file) | own, file)
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["FGCLIPModel"], "auto_map": {"AutoModel": "code.FGCLIPModel"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text("raise SystemExit('code of the folder was run')")
    positions = torch.cat([first[:20], rest[20:]])
    model.text_model.embeddings.position_embedding = nn.Embedding.from_pretrained(positions)
    model.text_model.embeddings.register_buffer("position_ids", torch.arange(40)[None])
    model.text_projection.weight = nn.Parameter(own["text_filip_projection.weight"])
    return vectors_of(model, MEAN, SPREAD)


def vectors_of(model: Any, mean: Any, spread: Any) -> Vectors:
    """The vectors by a model of the library."""

    def vectors(pixels: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        out = model(pixel_values=normalised(pixels, mean, spread), input_ids=ids)
        return out.image_embeds, out.text_embeds

    return vectors


def laps_of(image: str) -> Any:
    """By the names that the library gives to files."""

    def write(folder: Path) -> Vectors:
        sides = FAMILIES[image](), bert(vocab_size=VOCAB)
        width, number, state = sides[0].config.hidden_size, 16, dict[str, Tensor]()
        heads = [shaken(nn.Linear(width, 24)), shaken(nn.Linear(64, 24))]
        slots = nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 4), nn.GELU(), nn.Linear(4, 3))
        for prefix, side in zip(("img_enc.visual_encoder.", "txt_enc.bert."), sides, strict=True):
            side.save_pretrained(folder / "side")
            tensors = load_file(folder / "side" / "model.safetensors")
            state |= {prefix + key: x for key, x in tensors.items()}
            shutil.rmtree(folder / "side")
        layers = (
            ("img_enc.vision_proj", heads[0]),
            ("txt_enc.fc", heads[1]),
            ("cross_net.aggr_net.weight", slots),
        )
        state |= {f"{name}.{key}": x for name, layer in layers for key, x in layer.state_dict().items()}
        state |= {"cross_net.aggr_net.scale": torch.full((1, 1, 1), 1.5)}
        torch.save(laps_form(state), folder / "it.pth")

        def vectors(pixels: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
            patches = heads[0](sides[0](normalised(pixels, *IMAGENET)).last_hidden_state)
            return patches[:, -number:].mean(1), heads[1](sides[1](ids).last_hidden_state).mean(1)

        return vectors

    return write


TIMM = {
    "encoder.layers.": "blocks.", "embeddings.patch_embedding.": "patch_embed.proj.", ".layer_norm": ".norm",
    "embeddings.position_embedding.weight": "pos_embed", "head.probe": "attn_pool.latent",
    "post_layernorm.": "norm.", "head.attention.out_proj.": "attn_pool.proj.", "head.mlp.": "attn_pool.mlp.",
    "head.layernorm.": "attn_pool.norm.", "self_attn.": "attn.", "out_proj.": "proj.",
}  # fmt: skip
TEXTS = {
    "final_layer_norm.": "ln_final.", "encoder.layers.": "transformer.resblocks.", "layer_norm": "ln_",
    "embeddings.position_embedding.weight": "positional_embedding", "self_attn.": "attn.", "fc1": "c_fc",
    "embeddings.token_embedding.": "token_embedding.", "head.": "text_projection.", "fc2": "c_proj",
}  # fmt: skip


def open_clip_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A SigLIP of transformers by the names of open_clip and timm."""
    out, joint = dict[str, Tensor](), {"vision_model": "qkv.", "text_model": "in_proj_"}
    for name, x in state.items():
        side, _, rest = name.partition(".")
        if ".q_proj." in name:
            parts = [state[name.replace(".q_proj.", f".{letter}_proj.")] for letter in "qkv"]
            rest, x = rest.replace("q_proj.", joint[side]), torch.cat(parts)
        if ".k_proj." in name or ".v_proj." in name:
            continue
        if "attention.in_proj_" in name:
            last = name.rpartition("_")[2]
            out[f"visual.trunk.attn_pool.q.{last}"] = x[: len(x) // 3]
            out[f"visual.trunk.attn_pool.kv.{last}"] = x[len(x) // 3 :]
            continue
        for ours, theirs in ({"vision_model": TIMM, "text_model": TEXTS}.get(side) or {}).items():
            rest = rest.replace(ours, theirs)
        new = {"vision_model": f"visual.trunk.{rest}", "text_model": f"text.{rest}"}.get(side, name)
        out[new] = x[None] if rest == "pos_embed" else x
    return {name: x.contiguous().clone() for name, x in out.items()}


def siglip_of(timm: str, act: str) -> Any:
    """timm: its name of the image side; empty: a state dict without open_clip_config.json"""

    def write(folder: Path) -> Vectors:
        text = TEXT | {"vocab_size": VOCAB, "max_position_embeddings": 12, "projection_size": 64}
        text |= {"pad_token_id": 1, "hidden_act": act}
        image = IMAGE | {"hidden_act": act}
        if not timm:  # heads by the width of texts
            image |= {"hidden_size": 48, "num_attention_heads": 12}
            text |= {"hidden_size": 768, "num_attention_heads": 12, "projection_size": 48}
        model = shaken(SiglipModel(SiglipConfig(vision_config=image, text_config=text)))
        state = open_clip_names(model.state_dict())
        if not timm:
            torch.save(state, folder / "it.pt")
            return vectors_of(model, *HALF)
        save_file(state, folder / "open_clip_model.safetensors")
        images = {"timm_model_name": timm, "timm_pool": "map"}
        texts: dict[str, Any] = {"heads": 2, "pool_type": "last", "norm_kwargs": {"eps": 1e-6}}
        if "tanh" in act:
            texts["act_kwargs"] = {"approximate": "tanh"}
        config = {"model_cfg": {"embed_dim": 64, "vision_cfg": images, "text_cfg": texts}}
        (folder / "open_clip_config.json").write_text(json.dumps(config))
        return vectors_of(model, *HALF)

    return write


SMALL = {
    "siglip": siglip_of("vit_base_patch16_siglip_224", "gelu"),
    "siglip alone": siglip_of("", "gelu"),
    "siglip tanh": siglip_of("vit_so400m_patch16_siglip_384", "gelu_pytorch_tanh"),
    "flair": clip_of(flair_parts, flair_form, partial(OpenAI, quick=False)),
    "beta_clip": clip_of(beta_parts, beta_form, OpenAI),
    "long-clip": clip_of(lambda model: model.state_dict(), with_masks, LongCLIP),
    "fg-clip": fg_clip,
    "laps vit": laps_of("vit"),
    "laps swin": laps_of("swin"),
}


@pytest.mark.parametrize("kind", SMALL)
def test_a_small_one_is_its_model_and_a_saved_one_needs_no_file(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokenizer().save(tmp_path / "in")
    vectors = SMALL[kind](tmp_path / "in")
    model = loading.load(tmp_path / "in", device="cpu")
    assert model.description.method == {"long-clip": "clip", "fg-clip": "clip"}.get(kind, kind.split()[0])
    ids, pixels = (
        torch.randint(3, 500, (4, 12)),
        torch.randint(0, 256, (3, 3, model.method.size, model.method.size)),
    )
    ids[:, -1] = 555
    with torch.no_grad():
        images = model.method.encode_images(Images(pixels.byte(), torch.arange(3)))
        texts = model.method.encode_texts(texts_of([[row] for row in ids.tolist()]))
        for ours, theirs in zip((images.vector, texts.vector), vectors(pixels, ids), strict=True):
            close(ours, unit(theirs))
        score = model.method.score(images, texts)
    model.save(tmp_path / "out")
    shutil.rmtree(tmp_path / "in")
    again = loading.load(tmp_path / "out", device="cpu")
    with torch.no_grad():
        assert torch.equal(again.method.score(images, texts), score)
    state = again.method.state_dict()
    assert all(torch.equal(x, state[key]) for key, x in model.method.state_dict().items())


QUICK = (
    "train.max_steps=2", "train.global_batch_size=6", "train.precision=fp32", "data.workers=0",
    'data.paths=["scenes:train?count=12"]', "model.image.size=32", "train.optimizer.lr=1e-9",
)  # fmt: skip


def written(kind: str, folder: Path) -> Path:
    """A small checkpoint beside its tokenizer: its file."""
    torch.manual_seed(0)
    tokenizer().save(folder)
    SMALL[kind](folder)
    return next(folder.glob("it.*"))


@pytest.mark.parametrize("kind", ["flair", "laps swin"])
def test_a_published_file_is_measured_shown_indexed_and_trained_further(kind: str, tmp_path: Path) -> None:
    file, scenes = written(kind, tmp_path / "in"), "scenes:dev?count=4&size=32"
    method = kind.split()[0]
    assert call("evaluate", file, "--data", scenes) == 0
    (tmp_path / "photos").mkdir()
    photo = tmp_path / "photos" / "a.png"
    Image.effect_noise((40, 40), 90).convert("RGB").save(photo)
    (tmp_path / "null.txt").write_text("\n".join(f"{n} blue houses" for n in range(40)))
    null = ("--calibration-texts", tmp_path / "null.txt")
    assert (
        call("index", "build", tmp_path / "photos", "--model", file, "--out", tmp_path / "index", *null) == 0
    )
    assert call("search", tmp_path / "index", "a red dog") == 0
    assert call("show", file, photo, "--text", "a red dog", "--out", tmp_path / "look.png") == 0
    recipe = tmp_path / "own.yaml"
    inputs = {"method": method, "model": {"pretrained": str(file)}, "train": {"max_steps": 2}}
    recipe.write_text(json.dumps(inputs))
    assert call("train", recipe, "--out", tmp_path / "run", "--set", *QUICK) == 0
    before = loading.load(file, device="cpu").method.state_dict()
    file.unlink()
    model = loading.load(tmp_path / "run", device="cpu")
    assert model.description.config.model_dump()["keep_ratio" if method == "laps" else "heads"] in (0.5, 8)
    for name, x in model.method.state_dict().items():
        if "position_embedding" not in name:  # they became another grid
            torch.testing.assert_close(x, before[name], rtol=1e-4, atol=1e-6)


def test_init_from_and_another_method_take_what_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, plain = written("flair", tmp_path / "flair"), tmp_path / "clip.pt"
    torch.save(shaken(OpenAI(vocab=VOCAB)).state_dict(), plain)
    method, source = started("flair", plain), load(str(file), device="cpu").method.state_dict()
    assert copy_weights(method, source, str(file)) == []
    assert all(torch.equal(x, source[name]) for name, x in method.state_dict().items())
    capsys.readouterr()
    started("clip", file)
    assert (
        f"{file} has layers of flair too, which go with that method and both sides" in capsys.readouterr().err
    )


def started(method: str, file: Path) -> Any:
    values = {"pretrained": str(file)}
    return build.start(build.Description(method, build.method_config(method, values, "here"))).method()


def spoilt(content: Any, path: tuple[str, ...], value: Any) -> None:
    """Another value at a place of a checkpoint; None: nothing there."""
    *path, last = path
    for key in path:
        content = content[key]
    if value is None:
        del content[last]
    else:
        content[last] = value


@pytest.mark.parametrize(
    ("kind", "path", "value", "message"),
    [
        ("flair", ("state_dict", "module.visual_proj.ln_q.bias"), None, r"settings: 1 missing \(pool.norm_q"),
        ("flair", ("state_dict", "module.visual.ln_post.bias"), None, r"1 missing \(visual.ln_post.bias\)"),
        ("beta_clip", ("state_dict", "module.more"), torch.zeros(2), r"1 unknown \(more\)"),
        ("flair", ("state_dict", "module.visual_proj.attn.in_proj_bias"), torch.zeros(2), "cannot read"),
        ("laps vit", ("opt",), argparse.Namespace(aggr_ratio=0.4), "a LAPS without sparse_ratio"),
        ("laps vit", ("opt",), argparse.Namespace(aggr_ratio=0.8, sparse_ratio=0.5), "1 of another form"),
        ("laps vit", ("model", "head.bias"), torch.zeros(2), "a LAPS with head.bias; give"),
        ("laps vit", ("model", "txt_enc.fc.bias"), None, r"1 missing \(to_text.0.bias\)"),
        ("laps vit", ("model", "txt_enc.bert.embeddings.word_embeddings.weight"), None, "cannot read"),
        ("laps vit", ("model", "txt_enc.bert.encoder.layer.1.output.dense.bias"), None, "1 missing"),
    ],
)  # fmt: skip
def test_a_part_that_is_missing_or_unknown_is_named(
    kind: str, path: tuple[str, ...], value: Any, message: str, tmp_path: Path
) -> None:
    file = written(kind, tmp_path)
    content = torch.load(file, weights_only=False)
    spoilt(content, path, value)
    torch.save(content, file)
    with pytest.raises(UserError, match=message):
        loading.load(file, device="cpu")


def test_what_has_no_kind_or_several_files_is_refused_by_name(tmp_path: Path) -> None:
    towers = {"visual.trunk.blocks.0.attn.rope": torch.zeros(2), "text.positional_embedding": torch.zeros(2)}
    torch.save(towers, tmp_path / "eva.pt")
    with pytest.raises(UserError, match="of timm SigLIP alone"):
        loading.load(tmp_path / "eva.pt")
    torch.save(towers, tmp_path / "other.pt")
    with pytest.raises(UserError, match=r"holds several files of weights, eva.pt, other.pt: give one"):
        loading.load(tmp_path)
