"""Small random batches and every method to test them on."""

from collections.abc import Callable
from typing import Any

import torch

from grainline.config import override, parse
from grainline.methods import METHODS
from grainline.methods.base import Method
from grainline.types import CAPTION, FOIL, Clock, Images, Texts

CLOCK = Clock()
VOCAB = 300
WIDTH = 16
TINY = {
    "image": {"name": "toy/4", "size": 8},
    "text": {"name": "toy", "vocab": VOCAB, "context": 24},
    "width": WIDTH,
}
CASES: dict[str, tuple[str, tuple[str, ...]]] = {name: (name, ()) for name in METHODS} | {
    "clip-mean": ("clip", ("image.pool=mean", "text.causal=false", "text.pool=mean", "image.stem=conv")),
    "siglip-map": ("siglip", ("image.pool=attention", "text.buckets=1")),
}


def build(case: str, *changes: str) -> Method:
    """The same weights every time; evaluation mode, so no noise."""
    torch.manual_seed(0)
    name, settings = CASES[case]
    cls, config = METHODS[name]
    make: Callable[[Any], Method] = cls
    return make(parse(config, override(TINY, [*settings, *changes]), "test")).eval()


def batch(n: int = 4, seed: int = 0) -> tuple[Images, Texts]:
    """Images 0..n-1 with two texts of two parts; the second is padding for odd images, a foil for image 0."""
    g = torch.Generator().manual_seed(seed)
    image = torch.arange(n)
    owner, item = image.repeat_interleave(2), torch.arange(2 * n)
    padding = (owner % 2 == 1) & (item % 2 == 1)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]).bool() & ~padding[:, None, None]
    owner, item = owner.masked_fill(padding, -1), item.masked_fill(padding, -1)
    level = torch.full_like(item, CAPTION)
    owner[1], level[1] = -1, FOIL
    ids = torch.randint(3, VOCAB, mask.shape, generator=g)
    return Images(torch.rand(n, 3, 8, 8, generator=g), image), Texts(ids, mask, item, owner, level)
