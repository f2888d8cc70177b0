"""Every method over every pair of pretrained towers: it encodes, scores, learns in all layers, shows heat."""

from typing import Any

import pytest
import torch
from make import CLOCK, PIXELS, SIDE, VOCAB, WIDTH, batch, begun, shares_or_cosines

from grainline.build import Description, build
from grainline.config import parse
from grainline.methods import METHODS, method_class
from grainline.methods.base import Method
from grainline.training.step import step
from grainline.types import rows

VIT = SIDE | {"image_size": 8, "patch_size": 4}
RESNET = {"embedding_size": 8, "hidden_sizes": [16, 24], "depths": [1, 2], "image_size": 16}
IMAGES: dict[str, dict[str, Any]] = {
    "dinov2_with_registers": {"config": VIT | {"num_register_tokens": 4}, **PIXELS},
    "resnet": {"config": RESNET, **PIXELS},
}
BERT = SIDE | {"vocab_size": VOCAB, "max_position_embeddings": 24}
TEXTS: dict[str, dict[str, Any]] = {
    "bert": {"kind": "bert", "config": BERT, "pad": 0, "pool": ["mean"]},
    "clip": begun("clip")["text"]["architecture"],
}
OWN: dict[str, dict[str, Any]] = {
    "caft": {"heads": 2, "composer": {"depth": 1, "heads": 2}},
    "flair": {"heads": 2},
    "seps": {"keep_ratio": 0.75, "aggregation_ratio": 0.7},
    "laps": {"keep_ratio": 0.75, "aggregation_ratio": 0.7},
}
SUPERPIXELS = {"name": "toy", "superpixels": {"cell": 4}, "stride": 2, "groups": [3, 2, 1]}
GROUPS = {"groups": 3, "later": 1, "depth": 1, "heads": 2, "width": SIDE["hidden_size"], "context": 24}


def make(name: str, image: str, text: str) -> Method:
    torch.manual_seed(0)
    size = IMAGES[image]["config"]["image_size"]
    architecture = {"kind": image, "pad": 0, **IMAGES[image]}
    eye: dict[str, Any] = {"pretrained": image, "architecture": architecture, "size": size}
    words: dict[str, Any] = {"pretrained": text, "architecture": TEXTS[text], "context": 24}
    if name == "caft":
        eye = SUPERPIXELS | {"superpixels": {"cell": size // 4}, "size": size, "encoder": eye}
    if name == "tgt":
        words = GROUPS | {"vocab": VOCAB, "encoder": words}
    values = {"image": eye, "text": words, "width": WIDTH} | OWN.get(name, {})
    config = parse(method_class(name).config_class, values, "test")
    return build(Description(name, config))


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("name", METHODS)
def test_a_method_learns_and_scores_with_any_pair_of_towers(name: str, image: str, text: str) -> None:
    method = make(name, image, text)
    images, texts = batch()
    images = images._replace(pixels=torch.rand(4, 3, method.size, method.size))
    step(method.train(), images, texts, CLOCK)
    for tower in (method.towers.image, method.towers.text):
        for part in (tower, getattr(tower, "encoder", None) or tower):
            learning = [p.grad is not None and bool(p.grad.any()) for p in part.parameters()]
            assert sum(learning) > 0.6 * len(learning)
    method.eval()
    with torch.no_grad():
        a, b = method.encode_images(images), method.encode_texts(texts)
        whole = method.score(a, b)
        alone = method.score(rows(a, slice(1, 2)), rows(b, slice(2, 3)))
        torch.testing.assert_close(whole[1:2, 2:3], alone)
        assert whole.isfinite().all()
        assert method.has_layout
        heat = method.heat(rows(a, slice(0, 1)), rows(b, slice(0, 1)))
        assert heat.isfinite().all()
        assert heat.shape == (1, a.tokens.shape[1])
        if type(method).heat is Method.heat:
            torch.testing.assert_close(heat, shares_or_cosines(rows(a, slice(0, 1)), b))


@pytest.mark.parametrize(("image", "shares"), [("resnet", True), ("dinov2_with_registers", False)])
def test_heat_is_what_a_token_adds_where_the_vector_is_the_mean_of_tokens(image: str, shares: bool) -> None:
    method = make("clip", image, "bert").eval()
    images, texts = batch()
    with torch.no_grad():
        a = method.encode_images(images._replace(pixels=torch.rand(4, 3, method.size, method.size)))
        b = rows(method.encode_texts(texts), slice(0, 8, 2))
        heat = method.heat(a, b)
    if shares:
        torch.testing.assert_close(heat.mean(1), method.score(a, b).diagonal())
        left = a.tokens.mean(1) - a.tokens[:, 0] / a.tokens.shape[1]  # without the first token
        loss = (left * b.vector).sum(1) / a.tokens.mean(1).norm(dim=1)
        torch.testing.assert_close(heat[:, 0] / heat.shape[1], heat.mean(1) - loss)
    else:
        torch.testing.assert_close(heat, torch.cosine_similarity(a.tokens, b.vector[:, None], dim=-1))
