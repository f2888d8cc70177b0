"""Small random batches and every method to test them on."""

from typing import Any

import torch

from grainline.config import override, parse
from grainline.methods import METHODS, method_class
from grainline.methods.base import Method
from grainline.types import CAPTION, FOIL, Clock, Encoded, Images, Texts

CLOCK = Clock(epoch=0.5)  # in the middle of a warm-up of one epoch
VOCAB = 300
WIDTH = 16
TINY = {
    "image": {"name": "toy/4", "size": 8},
    "text": {"name": "toy", "vocab": VOCAB, "context": 24},
    "width": WIDTH,
}
SIDE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
PIXELS = {"mean": [0.5] * 3, "spread": [0.5] * 3, "resize": "crop", "filter": "bicubic", "margin": 1.0}


def begun(kind: str) -> dict[str, Any]:
    """The config of towers as a small checkpoint of the transformers library leaves them."""
    side = SIDE | ({"hidden_size": WIDTH, "projection_size": WIDTH} if kind == "siglip" else {})
    text = side | {"vocab_size": VOCAB, "max_position_embeddings": 24}
    sides = {"vision_config": side | {"image_size": 8, "patch_size": 4}, "text_config": text}
    config = sides | ({"projection_dim": WIDTH} if kind == "clip" else {})
    own = {"pretrained": kind, "architecture": {"kind": kind, "config": config, "pad": 1, **PIXELS}}
    return {"image": own, "text": own, "width": WIDTH}


PRETRAINED = {f"{kind}-pretrained": begun(kind) for kind in ("clip", "siglip")}
SEGMENTS = {
    "image": {"name": "toy", "size": 8, "superpixels": {"cell": 2}, "stride": 2, "groups": [6, 4, 2]},
    "text": TINY["text"],
    "width": WIDTH,
}
PRETRAINED["clip-frozen-pretrained"] = override(begun("clip"), ["text.frozen_positions=3"])
CASES: dict[str, tuple[str, tuple[str, ...]]] = {name: (name, ()) for name in METHODS} | {
    "clip-sentences": ("clip", ("scoring=sentences", "dropout=0.2")),
    "clip-mean": ("clip", ("image.pool=mean", "text.causal=false", "text.pool=mean", "image.stem=conv")),
    "himo": ("himo", ("threshold=0.6",)),  # a wide gap behind the last kept component
    "himo-groups": (
        "himo",
        ("group=3", "threshold=0.6", "sides=both", "unit=true", "smoothing=0.1", "detach_keys=true"),
    ),
    "beta_clip-groups": ("beta_clip", ("group=3", "form=bce", "divisor=rows", "beta=0.2", "slot_decay=0.1")),
    "beta_clip-pairs": ("beta_clip", ("scoring=conditioned", "input_norm=true", "detach_keys=true")),
    "beta_clip-others": ("beta_clip", ("others.own=true", "group=3")),
    "beta_clip-others_bce": ("beta_clip", ("others.weight=2", "group=3", "form=bce")),
    "flair-vectors": ("flair", ("scoring=vectors", "chunks=2", "negatives=all")),
    "caft": ("caft", ("heads=2", "composer.depth=1", "composer.heads=2")),
    "caft-segments": ("caft", ("heads=2", "composer.depth=1", "composer.heads=2")),
    "flair-segments": ("flair", ()),
    "caft-plus": (
        "caft",
        ("scoring=conditioned", "negatives=all", "composer.heads=2", "composer.adapter=blend"),
    ),
    "tgt": ("tgt", ("text.groups=3", "text.later=1")),
    "tgt-shorter": ("tgt", ("text.groups=3", "text.tokens_per_group=2", "text.later=1")),
    "tgt-minimal": (
        "tgt",
        ("text.groups=3", "text.later=1", "text.form=minimal", "mean=captions", "learns_scale=true"),
    ),
    "tgt-baseline": ("tgt", ("reconstruction=0", "text.causal=false", "text.pool=mean")),
    "mosaic": ("mosaic", ("visual_words=8", "text_words=8", "dropout=0.2")),
    "mosaic-places": (
        "mosaic",
        (
            "places=true",
            "visual_words=0",
            "text_words=0",
            "roots=false",
            "hidden=0",
            "whole=0",
            "sentences=4",
        ),
    ),
    "siglip-map": ("siglip", ("image.pool=attention", "text.buckets=1")),
}
FEW = ("keep_ratio=0.75", "aggregation_ratio=0.7")  # of four patches three stay, as two tokens
CASES |= {
    "seps": ("seps", FEW),
    "seps-sparse": ("seps", (*FEW, "branches=sparse", "warmup=0", "aggregation_ratio=null")),
    "seps-dense": ("seps", (*FEW, "branches=dense", "ratio_form=apart", "use_cls=false")),
    "seps-joint": ("seps", (*FEW, "branches=joint", "matching=topk", "use_rest=false", "image.pool=mean")),
    "laps": ("laps", FEW),
    "vse-hardest": ("vse", ("warmup=0",)),
}
CASES |= {name: (name.partition("-")[0], ()) for name in PRETRAINED}


def build(case: str, *changes: str) -> Method:
    """The same weights every time; evaluation mode, so no noise."""
    torch.manual_seed(0)
    name, settings = CASES[case]
    make: Any = method_class(name)
    values = SEGMENTS if case.endswith("-segments") else PRETRAINED.get(case, TINY)
    return make(parse(make.config_class, override(values, [*settings, *changes]), "test")).eval()


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
    pixels = torch.rand(n, 3, 8, 8, generator=g)
    report = torch.randint(3, VOCAB, (n, 1, 6), generator=g)  # a description of each image
    dense = Texts(report, torch.ones_like(report).bool(), image, image, torch.full_like(image, CAPTION))
    return Images(pixels, image, dense=dense), Texts(ids, mask, item, owner, level)


def shares_or_cosines(images: Encoded, texts: Encoded) -> torch.Tensor:
    """`Method.heat` with `averaged` found in the numbers: whether the mean of tokens points as the vector."""
    heat = torch.zeros(images.mask.shape)
    for row, (tokens, real) in enumerate(zip(images.tokens, images.mask, strict=True)):
        mean = tokens[real].mean(0)
        averaged = torch.cosine_similarity(mean, images.vector[row], dim=0) > 1 - 1e-4
        for place in real.nonzero()[:, 0].tolist():
            size = mean.norm() if averaged else tokens[place].norm()
            heat[row, place] = tokens[place] @ texts.vector[row] / size
    return heat
