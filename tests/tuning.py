"""Methods to fine-tune: with our own encoders, and with models of the transformers library as encoders."""

from typing import Any, NamedTuple

import checkpoints
import torch
from make import build
from torch import nn

from grainline.encoders.pretrained import build_pretrained
from grainline.methods.base import Method
from grainline.types import Images, Texts


class Sides(NamedTuple):
    """Where the encoders of a case come from; None is one of our own."""

    image: str | None
    text: str | None


DEEP = ("image.depth=3", "text.depth=2")
CASES = {
    "ours": Sides(None, None),
    "clip": Sides("clip", "clip"),
    "siglip": Sides("siglip", "siglip"),
    "vit and bert": Sides("vit", "bert"),
    "swin": Sides("swin", None),
    "groupvit": Sides("groupvit", "groupvit"),
}


def method(case: str, name: str = "clip", noise: float = 0.0) -> Method:
    """The method with the encoders of a case, the same weights every time; `noise` is dropout in them."""
    drop = (f"image.drop_path={noise}", f"text.drop_path={noise}")
    made: Any = build(name, *DEEP, *drop)
    sides = CASES[case]
    torch.manual_seed(0)
    if sides.image is not None:
        made.towers.image = encoders(sides.image, noise).image
    if sides.text is not None:
        made.towers.text = encoders(sides.text, noise).text
    made.towers.to_image = nn.Linear(made.towers.image.width, 16, bias=False)
    made.towers.to_text = nn.Linear(made.towers.text.width, 16, bias=False)
    return made.eval()


def encoders(kind: str, noise: float) -> Any:
    """The adapters around a fresh small model of a family, with dropout."""
    config = checkpoints.FAMILIES[kind]().config.to_dict()
    for part in (config, config.get("vision_config", {}), config.get("text_config", {})):
        part |= {name: noise for name in part if name in NOISES}
    architecture = {"kind": kind, "config": config, "mean": [0.5] * 3, "spread": [0.5] * 3, "pad": 0}
    return build_pretrained(architecture)


NOISES = {
    "attention_dropout",
    "dropout",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "drop_path_rate",
}


def batch(made: Method, n: int = 4) -> tuple[Images, Texts]:
    """Images 0..n-1 with one text each, of unequal lengths."""
    ids, mask = checkpoints.texts(context=10, rows=n)
    number = torch.arange(n)
    texts = Texts(ids[:, None], mask[:, None], number, number, torch.zeros_like(number))
    return Images(checkpoints.images(made.size, n), number), texts
