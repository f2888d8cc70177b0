"""Checkpoints of methods that papers published, against what their authors' own code computes with them."""

import argparse
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from grainline import build, loading
from grainline.encoders.pretrained import load_pretrained, published
from grainline.nn.pooling import unit
from grainline.types import Images, texts_of

GOLDEN = Path(__file__).parents[2] / "shared" / "data" / "checkpoints"
golden = pytest.mark.skipif(not GOLDEN.is_dir(), reason=f"no golden files in {GOLDEN}")


class Bare:
    """In place of a tokenizer: the vocabularies of small checkpoints have none."""

    def to_json(self) -> str:
        return "{}"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The small towers of LAPS have two heads of 32; their widths say nothing."""
    monkeypatch.setattr(published, "HEADS", 2)
    monkeypatch.setattr(build, "load_tokenizer", lambda *_, **__: Bare())


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


def stored(name: str, folder: Path, state: dict[str, Tensor]) -> Path:
    """A file or folder as it was published."""
    file, form = FORMS[name]
    if not file.endswith(".safetensors"):
        torch.save(form(state), folder / file)
        return folder / file
    save_file(state, folder / file)
    for config in ("config", "open_clip_config"):
        if (GOLDEN / f"{name}.{config}.json").is_file():
            shutil.copy(GOLDEN / f"{name}.{config}.json", folder / f"{config}.json")
    return folder


def weights(name: str) -> dict[str, Tensor]:
    return {key: x.float() for key, x in load_file(GOLDEN / f"{name}.weights.safetensors").items()}


class Both:
    """A model, and the inputs and outputs of the authors' code."""

    def __init__(self, name: str, folder: Path, **options: Any) -> None:
        self.out = load_file(GOLDEN / f"{name}.io.safetensors")
        self.model = loading.load(stored(name, folder, weights(name)), device="cpu", **options)
        pixels = self.out["images_uint8"]
        with torch.no_grad():
            self.images = self.model.method.encode_images(Images(pixels, torch.arange(len(pixels))))
        here = json.loads((GOLDEN / f"{name}.json").read_text())["here"]
        self.end = here.get("end", 102)

    @torch.no_grad()
    def texts(self, ids: Tensor) -> Any:
        """Texts up to their first end token."""
        rows = [row[: row.index(self.end) + 1] for row in ids.tolist()]
        return self.model.method.encode_texts(texts_of([[row] for row in rows]))

    @torch.no_grad()
    def score(self, texts: Any) -> Tensor:
        return self.model.method.score(self.images, texts)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@golden
def test_flair(tmp_path: Path) -> None:
    both = Both("flair", tmp_path)
    out, texts = both.out, both.texts(both.out["ids"])
    close(both.images.vector, unit(out["image_global"]))
    close(both.images.tokens, out["image_tokens"])
    close(texts.tokens[:, 0], out["text_global"])
    method: Any = both.model.method
    close(method.scale()[0], out["logit_scale_exp"])
    close(method.bias[0], out["logit_bias"])
    score = both.score(texts)
    close(score * method.scale(), out["score_conditioned_as_ranked"])
    close(score * method.scale() + method.bias, out["score_conditioned"])
    vectors = Both("flair", tmp_path, scoring="vectors")
    close(vectors.score(texts) * method.scale(), out["score_global"])


@golden
def test_beta_clip(tmp_path: Path) -> None:
    both = Both("bclip", tmp_path)
    out, texts = both.out, both.texts(both.out["ids"])
    close(both.images.vector, unit(out["image_tokens"][:, 0]))
    close(both.images.tokens, out["image_tokens"][:, 1:])
    close(texts.vector, unit(out["text_vectors"]))
    close(both.score(texts), out["score_vectors"])
    method: Any = both.model.method
    close(method.scale()[0], out["logit_scale_exp"])
    close(method.pool_scale()[0], out["pool_logit_scale_exp"])
    close(method.pool_images(both.images, texts), unit(out["pooled_own_text"]))
    conditioned = Both("bclip", tmp_path, scoring="conditioned")
    close(conditioned.score(texts), out["score_conditioned_every_pair"])
    whole = Both("bclip", tmp_path, patches="attention")
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


@golden
@pytest.mark.parametrize("form", [dict, with_masks, own_text_tower])
def test_long_clip_and_the_layouts_that_follow_it(
    form: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FORMS, "longclip", ("longclip-B.pt", form))
    both = Both("longclip", tmp_path)
    out, texts = both.out, both.texts(both.out["ids"])
    close(both.images.vector, unit(out["image_vectors"]))
    close(texts.vector, unit(out["text_vectors"]))
    close(both.score(texts), out["score"])
    close(both.model.method.scale()[0], out["logit_scale_exp"])  # type: ignore[operator]
    left_out = load_pretrained(tmp_path / "longclip-B.pt").left_out
    assert left_out == (("mask_net",) if form is with_masks else ())


@golden
@pytest.mark.filterwarnings("ignore:Model config")
def test_fg_clip_by_both_ways(tmp_path: Path) -> None:
    for way, context in (("long", None), ("short", 77)):
        both = Both("fgclip", tmp_path, context=context)
        out, texts = both.out, both.texts(both.out[f"ids_{way}"])
        assert both.model.method.context == (context or 248)
        close(both.images.vector, unit(out["image_vectors"]))
        close(texts.vector, unit(out[f"text_vectors_{way}"]))
        close(both.score(texts), out[f"score_{way}"])
        close(both.images.tokens, out["image_dense"])
    close(unit(both.images.tokens) @ texts.vector.T, out["score_dense_short"])
    close(both.model.method.scale()[0], out["logit_scale_exp"])  # type: ignore[operator]
    assert (both.model.transform.resize, both.model.method.size) == ("squash", 20)


@golden
def test_laps(tmp_path: Path) -> None:
    both = Both("laps_vit", tmp_path)
    out = both.out
    rows = [[row[:n]] for row, n in zip(out["ids"].tolist(), out["lengths"].tolist(), strict=True)]
    with torch.no_grad():
        texts = both.model.method.encode_texts(texts_of(rows))
    close(both.images.extra.cls, out["image_tokens"][:, 0])
    close(both.images.tokens, out["image_tokens"][:, 1:])
    real = texts.mask
    close(texts.tokens[real], out["word_tokens"][:, : real.shape[1]][real])
    close(both.score(texts), out["score"])


@golden
def test_siglip_of_open_clip(tmp_path: Path) -> None:
    both = Both("openclip_siglip", tmp_path)
    out, texts = both.out, both.texts(both.out["ids"])
    close(both.images.vector, unit(out["image_vectors"]))
    close(texts.vector, unit(out["text_vectors"]))
    method: Any = both.model.method
    close(both.score(texts), out["score"])
    close(method.scale() * both.score(texts) + method.bias, out["logits"])
    close(method.scale()[0], out["logit_scale_exp"])
    close(method.bias[0], out["logit_bias"])
