"""Inputs of golden cases: float64 numbers from a seed, in the order in which they are drawn here.

Each function takes the inputs of a case as the data files give them. B images, K texts of each, L tokens of
an image, d their width.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

Case = dict[str, Any]
FLOAT = torch.float64


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(start: int | torch.Generator) -> Callable[..., Tensor]:
    """A function that draws normal numbers of a shape, one after the other."""
    source = generator(start) if isinstance(start, int) else start
    return lambda *shape: torch.randn(*shape, generator=source, dtype=FLOAT)


def sides(c: Case) -> tuple[Tensor, Tensor]:
    """Vectors of n images and n texts; `copies` (i, j): text i is a copy of text j."""
    draw = normal(c["seed"])
    images, texts = draw(c["n"], c["d"]), draw(c["n"], c["d"])
    for i, j in c.get("copies", ()):
        texts[i] = texts[j]
    return images, texts


class Flair(NamedTuple):
    """A batch of FLAIR."""

    texts: Tensor  # [B K, d]
    patches: Tensor  # [B, L, d]
    summaries: Tensor  # [B, d]
    negatives: Tensor  # [B, B] which of its K texts image j gives to image i as a negative; 0 on the diagonal


def flair(c: Case) -> Flair:
    draw, number = normal(c["seed"]), c["B"]
    parts = draw(number * c["K"], c["d"]), draw(number, c["L"], c["d"]), draw(number, c["d"])
    lots = torch.randint(0, c["K"], (number, number - 1), generator=generator(c["seed"] + 1))
    negatives = torch.zeros(number, number, dtype=torch.int64)
    negatives[~torch.eye(number, dtype=torch.bool)] = lots.flatten()
    return Flair(*parts, negatives)


class Grained(NamedTuple):
    """A batch of beta-CLIP: a caption, S sentences and P phrases of each image, so that K = 1 + S + P."""

    cls: Tensor  # [B, d]
    texts: Tensor  # [B, K, d]
    patches: Tensor  # [B, L, d]
    mask: Tensor  # [B, K] bool; `empty` counts the texts of each image that are padding, its last ones


def grained(c: Case) -> Grained:
    draw, shape = normal(c["seed"]), (c["B"], 1 + c["S"] + c["P"])
    parts = draw(c["B"], c["d"]), draw(*shape, c["d"]), draw(c["B"], c["L"], c["d"])
    mask = torch.ones(shape, dtype=torch.bool)
    for i, number in enumerate(c.get("empty", ())):
        mask[i, shape[1] - number :] = False
    return Grained(*parts, mask)


class Laps(NamedTuple):
    """Four images and five texts of 8, 1, 3, 5 and 2 words, with the weights of the aggregation of LAPS."""

    weights: list[Tensor]  # scale and shift of the norm, first layer with bias, second without, temperature
    patches: Tensor  # [4, L, d]
    cls: Tensor | None  # [4, d]
    words: Tensor  # [5, 8, d]
    mask: Tensor  # [5, 8] bool


def laps(c: Case) -> Laps:
    draw, width, number = normal(c["seed"]), c["width"], c["patches"]
    hidden, slots = int(width * 0.2), int(number * c["aggregate"] * c["keep"])
    weights = [1 + 0.1 * draw(width), 0.1 * draw(width)]
    weights += [draw(hidden, width) / width**0.5, 0.1 * draw(hidden), draw(slots, hidden) / hidden**0.5]
    patches, cls, words = draw(4, number, width), draw(4, width), draw(5, 8, width)
    mask = torch.arange(8) < torch.tensor([8, 1, 3, 5, 2])[:, None]
    scale = torch.tensor([1.3], dtype=FLOAT)
    return Laps([*weights, scale], patches, cls if c["class_token"] else None, words, mask)


LAYERS = {  # of the block of GroupViT, in the order of drawing: n norm, l linear, mix, up and down of an MLP
    "norm_groups": "n", "norm_tokens": "n", "mix.0": "mix0", "mix.2": "mix2", "norm_mixed": "n",
    "attention.to_query": "l", "attention.to_key": "l", "attention.to_value": "l", "attention.to_out": "l",
    "norm_attended": "n", "mlp_attended.0": "up", "mlp_attended.2": "down", "norm_read": "n",
    "assign.to_query": "l", "assign.to_key": "l", "assign.to_value": "l", "assign.to_out": "l",
    "norm_assigned": "n", "mlp_assigned.0": "up", "mlp_assigned.2": "down",
}  # fmt: skip


class Grouping(NamedTuple):
    """Three texts for a grouping block, with all its weights."""

    weights: dict[str, tuple[Tensor, Tensor]]  # weight and bias of each layer
    groups: Tensor  # [3, K, d]
    tokens: Tensor  # [3, L, d]
    noise: Tensor  # [3, K, L] from the Gumbel distribution


def grouping(c: Case) -> Grouping:
    source, width, count = generator(c["seed"]), c["width"], c["groups"]
    draw, weights = normal(source), {}
    shapes = {
        "l": (width, width), "up": (4 * width, width), "down": (width, 4 * width),
        "mix0": (width // 2, count), "mix2": (count, width // 2),
    }  # fmt: skip
    for layer, kind in LAYERS.items():
        if kind == "n":
            weights[layer] = 1 + 0.2 * draw(width), 0.2 * draw(width)
        else:
            shape = shapes[kind]
            weights[layer] = draw(*shape) * 1.5 / shape[1] ** 0.5, 0.2 * draw(shape[0])
    groups, tokens = draw(3, count, width), draw(3, c["length"], width)
    noise = torch.empty(3, count, c["length"], dtype=FLOAT).exponential_(generator=source)
    return Grouping(weights, groups, tokens, -noise.log())


def words(c: Case) -> tuple[Tensor, Tensor, Tensor]:
    """12 images [12, 3, 16, 16] in 0..1, and texts of 3 to 14 tokens: ids [12, 14], mask [12, 14]"""
    source = generator(c["seed"])
    pixels = torch.rand(12, 3, 16, 16, generator=source, dtype=FLOAT)
    length = torch.randint(3, 15, (12,), generator=source)
    length[0] = 14
    ids = torch.randint(1, 299, (12, 14), generator=source)
    mask = torch.arange(14) < length[:, None]
    return pixels, ids * mask, mask


def ranked(c: Case) -> Tensor:
    """float32 scores of 40 images with 200 texts, five of each image, which score 2 more: [40, 200]"""
    own = torch.eye(40).repeat_interleave(5, 1)
    return torch.randn(40, 200, generator=generator(c["seed"])) + 2 * own


def segmented(c: Case) -> list[tuple[np.ndarray, np.ndarray, int]]:
    """The group of each token [L], which tokens each phrase has [P, L], and how many groups there are."""
    source = np.random.default_rng(c["seed"])
    out: list[tuple[np.ndarray, np.ndarray, int]] = []
    while len(out) < c["number"]:
        length, groups, phrases = (int(source.integers(*ends)) for ends in ((2, 15), (1, 6), (1, 6)))
        place = source.integers(-1, phrases, length)
        gold = np.stack([place == p for p in range(phrases)])
        labels = source.integers(0, groups, length)
        if gold.any():
            out.append((labels, gold[gold.any(1)], groups))
    return out


class Several(NamedTuple):
    """Five images with two, one, three, none and one text, a foil, a text of padding, an image of padding."""

    images: Tensor  # [6, d]
    tokens: Tensor  # [6, 4, d] of images
    real_tokens: Tensor  # [6, 4] bool, which are real
    texts: Tensor  # [9, d]
    parts: Tensor  # [9, 3, d] of texts
    real_parts: Tensor  # [9, 3] bool, which are real

    image = torch.tensor([0, 1, 2, 3, 4, -1])  # of each image row; -1: padding
    owner = torch.tensor([0, 2, 0, 1, 2, 4, 2, -1, -1])  # of each text; the last but one is a foil
    item = torch.tensor([*range(8), -1])  # of each text; -1: padding


def several(c: Case) -> Several:
    draw, d = normal(c["seed"]), c["d"]
    real_tokens, real_parts = torch.ones(6, 4, dtype=torch.bool), torch.ones(9, 3, dtype=torch.bool)
    real_tokens[1, 2:], real_parts[::2, 1:] = False, False
    return Several(draw(6, d), draw(6, 4, d), real_tokens, draw(9, d), draw(9, 3, d), real_parts)
