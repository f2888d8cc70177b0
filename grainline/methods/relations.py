"""Relations: where the things lie to each other that the beginning and the end of a sentence name.

"A red heart is left of the blue star": the beginning of the sentence and its end, each read alone by the text
encoder, attend to image tokens, and find two places. The displacement from one to the other, in features of
low frequency, is weighted by a vector that the sentence gives: "left of" asks for another one than "above".
A sentence such as "It is left of the star" takes its first place from the sentence before, by a share that
is learnt.

The expectation of cos(k (p - q)) over two independent places p and q is that of cos kp times that of cos kq,
plus the same of sines, so all pairs of tokens count at the cost of single ones.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grainline.encoders.towers import Towers, distinct_rows
from grainline.nn.hashing import equal_texts, mixed
from grainline.nn.pooling import unit
from grainline.types import Texts, full

WAVES = [(u * w, v * w) for w in (2.0, 4.0) for u, v in ((1, 0), (0, 1), (1, 1), (1, -1))]
"""Radians across and down that the features of a place turn by over the whole image."""
PARTS = (0.0, 0.4), (0.7, 1.0)  # of a sentence: what names its first thing, and its second
GAIN = 3.0  # times the weights of a displacement, which begin at 0


class Looks(NamedTuple):
    """The places that each sentence looks for."""

    ends: Tensor  # [M, S, 2, D] its beginning and its end, at length 1
    relation: Tensor  # [M, S, R] weights of the features of a displacement
    carry: Tensor  # [M, S] share of the first place that the sentence before gives
    key: Tensor  # [M, S, 2] equal for ends of the same tokens: 24 bits of a hash, which a float holds


class Relations(nn.Module):
    """Two places for each sentence, and how well they lie to each other as it says."""

    features: Tensor

    def __init__(self, grid: tuple[int, int], width: int, space: int) -> None:
        """grid of image tokens, width of the text encoder, and that of the shared space"""
        super().__init__()
        self.register_buffer("features", place_features(*grid), persistent=False)
        self.sizes = 2 * space, self.features.shape[1], 1, 2
        self.to_relation = nn.Linear(width, self.features.shape[1])
        self.to_carry = nn.Linear(width, 1)
        nn.init.zeros_(self.to_relation.weight)  # no text has a score of its own at the start
        nn.init.zeros_(self.to_relation.bias)
        nn.init.normal_(self.to_carry.weight, std=width**-0.5)
        nn.init.constant_(self.to_carry.bias, -2.0)

    def read(self, towers: Towers, texts: Texts, wanted: Tensor, pooled: Tensor) -> Tensor:
        """The `Looks` of the wanted parts [M, S] in one row each, 0 for others: [M, S, 2 D + R + 3]

        pooled  the summaries of all parts [M, S, W]
        """
        ids, mask = texts.ids.flatten(0, 1), (texts.mask & wanted[..., None]).flatten(0, 1)
        ids, mask = map(torch.cat, zip(*(span(ids, mask, *part) for part in PARTS), strict=True))
        first, back = distinct_rows(ids.masked_fill(~mask, -1))
        with equal_texts(ids[first], mask[first]):
            ends = unit(towers.to_text(towers.text(ids[first], mask[first]).pooled))[back]
        keys = mixed(mixed(ids) ^ mixed(torch.arange(ids.shape[1], device=ids.device))) * mask
        ends, keys = (x.unflatten(0, (2, *wanted.shape)) for x in (ends, keys.sum(1) & 0xFFFFFF))
        relation, carry = full(self.to_relation(pooled)), full(self.to_carry(pooled)).sigmoid()
        looks = torch.cat([*ends, relation, carry, keys.movedim(0, -1).to(carry)], -1)
        return looks.masked_fill(~wanted[..., None], 0.0)

    def looks(self, rows: Tensor) -> Looks:
        """`Looks` from what `read` gave, for sentences [M, S, 2 D + R + 3]."""
        ends, relation, carry, key = rows.split(self.sizes, -1)
        return Looks(ends.unflatten(-1, (2, -1)), GAIN * relation, carry[..., 0], key)


def span(ids: Tensor, mask: Tensor, begin: float, end: float) -> tuple[Tensor, Tensor]:
    """A part of each text, between its first and its last token: ids and mask [U, L] of the same shape.

    begin, end  shares of the tokens between them; one token stays at least

    >>> ids = torch.tensor([[1, 5, 6, 7, 8, 2], [1, 9, 2, 0, 0, 0]])
    >>> span(ids, ids > 0, 0.5, 1.0)[0].tolist()
    [[1, 7, 8, 2, 0, 0], [1, 9, 2, 0, 0, 0]]
    """
    length = mask.sum(1, keepdim=True)
    inner = (length - 2).clamp(min=0)
    low = (begin * inner + 1e-4).floor().long().clamp(max=(inner - 1).clamp(min=0))
    high = torch.maximum((end * inner - 1e-4).ceil().long(), low + 1).clamp(max=inner)
    place = torch.arange(ids.shape[1], device=ids.device)
    number = high - low
    source = torch.where(place == 0, 0, torch.where(place <= number, place + low, length - 1))
    real = (place <= number + 1) & (place < length)
    out = ids.gather(1, source.clamp(min=0, max=ids.shape[1] - 1))
    return out.masked_fill(~real, 0), real


def place_features(rows: int, columns: int) -> Tensor:
    """Features of the cells of a grid: [rows * columns, 2 + 2 * len(WAVES)]

    Across and down from -1 to 1, then the cosines and the sines of `WAVES`.
    """
    down, across = ((torch.arange(n) + 0.5) / n - 0.5 for n in (rows, columns))
    place = torch.stack([across.repeat(rows), down.repeat_interleave(columns)], 1)
    angle = place @ torch.tensor(WAVES).T
    return torch.cat([2 * place, angle.cos(), angle.sin()], 1)


def displacement(a: Tensor, b: Tensor) -> Tensor:
    """Features of a place seen from another one, expected over both: [..., R] twice -> [..., R]

    across and down: a - b; the cosine and the sine of each wave: those of the difference of the angles
    """
    plain, cos_a, sin_a = a.split([2, len(WAVES), len(WAVES)], -1)
    other, cos_b, sin_b = b.split([2, len(WAVES), len(WAVES)], -1)
    return torch.cat([plain - other, cos_a * cos_b + sin_a * sin_b, sin_a * cos_b - cos_a * sin_b], -1)


def relation_score(
    images: Tensor,
    image_mask: Tensor,
    texts: Tensor,
    text_mask: Tensor,
    looks: Looks,
    features: Tensor,
    sharpness: Tensor | float,
) -> Tensor:
    """How well the places of sentences lie to each other as they say, every image against every text: [N, M]

    images [N, L, D], texts [M, S, D] unit tokens; image_mask [N, L], text_mask [M, S] bool; features [L, R]

    place(n, q) = sum over l with image_mask[n, l] of softmax(sharpness * images[n] @ q)[l] * features[l]
    for n, m:
        for s with text_mask[m, s]:
            begin, end = place(n, ends[m, s, 0]), place(n, ends[m, s, 1])
            if s > 0: begin = (1 - carry[m, s]) * begin + carry[m, s] * place(n, texts[m, s - 1])
            fit[s] = displacement(begin, end) @ relation[m, s]
        score[n, m] = mean(fit)    (0 for a text without sentences)
    """
    before = F.pad(texts, (0, 0, 1, 0))[:, :-1]
    carry = (looks.carry * (torch.arange(texts.shape[1], device=texts.device) > 0))[..., None]
    every = torch.cat([looks.ends.flatten(2), before, looks.relation, carry], -1).flatten(0, 1)
    first, back = distinct_rows(every)  # a sentence behind the same one is compared once
    ends, before, relation, carry = (
        x.flatten(0, 1)[first] for x in (looks.ends, before, looks.relation, carry)
    )
    queries = torch.cat([ends[:, 0], ends[:, 1], before])
    one, again = distinct_rows(queries)
    cosine = torch.einsum("nld,ud->nul", images, queries[one])
    weight = (sharpness * cosine).masked_fill(~image_mask[:, None], -torch.inf).softmax(-1)
    begin, end, earlier = (weight @ features)[:, again].chunk(3, 1)
    begin = begin + carry * (earlier - begin)
    fit = torch.einsum("nur,ur->nu", displacement(begin, end), relation)
    each = fit[:, back].unflatten(1, texts.shape[:2])
    return each.masked_fill(~text_mask, 0.0).sum(-1) / text_mask.sum(-1).clamp(min=1)
