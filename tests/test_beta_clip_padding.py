"""Empty slots under `padding: candidates`, written slot by slot as the authors' code lays a batch out.

Their batch holds B images with K texts each: the caption, as many sentences as the image with most of them,
then as many phrases. Empty slots are texts like others, but for the targets and the rows that are averaged.
"""

import itertools
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from make import CLOCK, TINY
from torch import Tensor

from grainline.config import parse
from grainline.distributed import ddp_mean
from grainline.methods.beta_clip import BetaCLIP, BetaCLIPConfig, BetaCLIPExtra
from grainline.types import CAPTION, PHRASE, SENTENCE, Encoded, Pair, concat, rows

SENTENCES, PHRASES = 3, 4  # slots
COUNTS = [
    (2, 1),
    (1, 0),
    (0, 2),
    (3, 0),
    (1, 0),
    (2, 0),
]  # sentences and phrases of six images, in two groups
GROUP, SLOTS, BETA = 3, 1 + SENTENCES + PHRASES, 0.3


class Batch(NamedTuple):
    """Leaves, and the pair that the method reads."""

    said: Tensor  # [B * SLOTS, D]
    patches: Tensor  # [B, L, D]
    pair: Pair


def made(**values: Any) -> BetaCLIP:
    torch.manual_seed(0)
    settings = TINY | {"pool_scale": 7.0, "group": GROUP, "beta": BETA, "padding": "candidates"} | values
    return BetaCLIP(parse(BetaCLIPConfig, settings, "test")).double().eval()


def drawn() -> Batch:
    g = torch.Generator().manual_seed(3)
    number = len(COUNTS)
    said, patches, cls = (
        F.normalize(torch.randn(*shape, 16, generator=g, dtype=torch.float64), dim=-1)
        for shape in ((number * SLOTS,), (number, 5), (number,))
    )
    said, patches = said.requires_grad_(), patches.requires_grad_()
    kinds = [CAPTION] + [SENTENCE] * SENTENCES + [PHRASE] * PHRASES
    there = torch.tensor([[k < 1 + s or 0 <= k - 1 - SENTENCES < p for k in range(SLOTS)] for s, p in COUNTS])
    row, ids = torch.arange(number * SLOTS), torch.tensor([5, 3, 9, 0, 7, 2])
    real, image = there.flatten(), ids.repeat_interleave(SLOTS)
    level = torch.tensor(kinds).repeat(number).masked_fill(~real, 0)  # as batches are made
    none = said[:, None].detach()[:, :0]
    texts = Encoded(
        said,
        none,
        none[..., 0].bool(),
        row.masked_fill(~real, -1),
        image.masked_fill(~real, -1),
        BetaCLIPExtra(level, said[:, :0]),
    )
    images = Encoded(cls, patches, torch.ones(number, 5).bool(), ids, ids)
    return Batch(said, patches, Pair(images, texts))


class Laid(NamedTuple):
    """One group as their code lays it out."""

    images: list[int]
    slots: list[int]  # of all images, those that nobody fills left out
    selected: list[int]  # those of them that pool other images


def laid(first: int, sentences: int, phrases: int) -> Laid:
    images = list(range(first, first + GROUP))
    most = [max(COUNTS[b][kind] for b in images) for kind in (0, 1)]
    here = [list(range(1, 1 + most[0])), list(range(1 + SENTENCES, 1 + SENTENCES + most[1]))]
    return Laid(images, [0, *here[0], *here[1]], [0, *here[0][:sentences], *here[1][:phrases]])


def valid(b: int, k: int) -> bool:
    return k < 1 + COUNTS[b][0] or 0 <= k - 1 - SENTENCES < COUNTS[b][1]


def pooled(method: BetaCLIP, batch: Batch, b: int, text: Tensor) -> Tensor:
    actual = method.pool(text[None, None], F.normalize(batch.patches[b : b + 1], dim=-1))
    return F.normalize(actual[0, 0], dim=-1)


def cross_entropies(method: BetaCLIP, batch: Batch, group: Laid, others: bool, own: bool) -> list[Tensor]:
    """Both directions: pooled images over texts, texts over pooled images."""
    scale = method.pool_scale()[0]
    cells = list(itertools.product(group.images, group.slots))
    said = {(b, k): batch.said[b * SLOTS + k] for b, k in cells}
    calls = {(b, k): pooled(method, batch, b, said[b, k]) for b, k in cells}
    pairs = [(b, c, k) for b, c, k in itertools.product(group.images, group.images, group.selected) if b != c]
    out = []
    for asks, keys in ((calls, said), (said, calls)):
        losses = []
        for b, k in cells:
            if not valid(b, k):
                continue
            logits = [scale * asks[b, k] @ keys[cell] for cell in cells]
            further = []
            for image, c, j in pairs if others else []:
                if keys is calls:
                    further.append(scale * asks[b, k] @ pooled(method, batch, image, said[c, j]))
                elif own or c != b:
                    further.append(scale * asks[b, k] @ said[c, j])
            weight = [
                valid(*cell) * (1.0 if cell == (b, k) else BETA if cell[0] == b else 0.0) for cell in cells
            ]
            lse = torch.stack([*logits, *further]).logsumexp(0)
            total = torch.stack([w * (lse - x) for w, x in zip(weight, logits, strict=True)]).sum()
            losses.append(total / sum(weight))
        out.append(torch.stack(losses).mean())
    return out


def binaries(method: BetaCLIP, batch: Batch, group: Laid) -> list[Tensor]:
    """The pairs of the group by the square of its slots; and the mean over texts of others."""
    scale = method.pool_scale()[0]
    cells = list(itertools.product(group.images, group.slots))
    said = {(b, k): batch.said[b * SLOTS + k] for b, k in cells}
    total = torch.zeros((), dtype=torch.float64)
    for (b, k), (c, j) in itertools.product(cells, cells):
        if not (valid(b, k) and valid(c, j)):
            continue
        logit = scale * pooled(method, batch, b, said[b, k]) @ said[c, j]
        weight = BETA if b == c and k != j else 1.0
        total = total + weight * F.softplus(-logit if b == c else logit)
    pairs = [(b, c, k) for b, c, k in itertools.product(group.images, group.images, group.selected) if b != c]
    others = [F.softplus(scale * pooled(method, batch, b, said[c, k]) @ said[c, k]) for b, c, k in pairs]
    return [total / len(cells) ** 2, torch.stack(others).mean()]


def close(actual: Tensor, expected: Tensor, method: BetaCLIP, batch: Batch) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-7, atol=1e-10)
    leaves = (batch.said, batch.patches, method.pool.to_key.weight, method.pool_scale.log_scale)
    both = [torch.autograd.grad(x.sum(), leaves, retain_graph=True) for x in (actual, expected)]
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    "others", [None, {"sentences": 2, "phrases": 1}, {"sentences": 2, "phrases": 1, "own": True}, {}]
)
def test_cross_entropy_over_slots_up_to_those_of_the_longest_image(others: dict[str, Any] | None) -> None:
    method, batch = made(others=others, whole=0), drawn()
    pair = method.before_gather(batch.pair)
    terms = method.loss(pair, pair, CLOCK)
    actual = torch.stack([ddp_mean(terms[f"pooled {way}"].mean) for way in ("i2t", "t2i")])
    few = others or {}
    groups = [laid(i, few.get("sentences", 0), few.get("phrases", 0)) for i in (0, GROUP)]
    assert [len(group.slots) for group in groups] == [5, 4]
    each = [
        torch.stack(cross_entropies(method, batch, group, others is not None, bool(few.get("own"))))
        for group in groups
    ]
    close(actual, torch.stack(each).mean(0), method, batch)


@pytest.mark.parametrize("counts", [(2, 1), (0, 0)])
def test_binary_form_over_slots_up_to_those_of_the_longest_image(counts: tuple[int, int]) -> None:
    others = {"sentences": counts[0], "phrases": counts[1]}
    method, batch = made(form="bce", divisor="slots", others=others, whole=0), drawn()
    pair = method.before_gather(batch.pair)
    terms = method.loss(pair, pair, CLOCK)
    actual = torch.stack([ddp_mean(terms[name].mean) for name in ("pooled", "others")])
    groups = [laid(i, *counts) for i in (0, GROUP)]
    first, second = (torch.stack(binaries(method, batch, group)) for group in groups)
    number = [len(group.selected) for group in groups]  # the mean over texts of others goes over both groups
    others_of = (number[0] * first[1] + number[1] * second[1]) / sum(number)
    close(actual, torch.stack([(first[0] + second[0]) / 2, others_of]), method, batch)


@pytest.mark.parametrize("form", ["ce", "bce"])
def test_shares_of_two_processes_add_up_where_groups_lie_across_both(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which slots are empty, and in whose image, is decided by everyone's rows."""
    others = {"sentences": 2, "phrases": 1}
    method, batch = made(form=form, divisor="slots", others=others, group=2, whole=0), drawn()
    images, texts = batch.pair
    half = len(COUNTS) // 2
    parts = [
        method.before_gather(
            Pair(rows(images, slice(i, i + half)), rows(texts, slice(i * SLOTS, (i + half) * SLOTS)))
        )
        for i in (0, half)
    ]
    everyone = concat(parts)
    whole = method.loss(everyone, everyone, CLOCK)
    shares = []
    for number, local in enumerate(parts):
        monkeypatch.setattr("grainline.distributed.rank", lambda number=number: number)
        shares.append(method.loss(local, everyone, CLOCK))
    names = ("pooled i2t", "pooled t2i") if form == "ce" else ("pooled", "others")
    for name in names:
        for field in ("total", "number"):
            both = torch.stack([getattr(share[name].mean, field) for share in shares])
            torch.testing.assert_close(both.sum(), getattr(whole[name].mean, field), check_dtype=False)
