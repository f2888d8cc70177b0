"""Pairs of SEPS in tiles against a loop over captions as in LAPS: scores, a training step and its memory.

    python -m benchmarks.bench_seps [--repeats 7] [--small]

The other side does as LAPS does. For each caption in turn: the patches of all pictures are sorted by their
scores, those that stay and those that do not are gathered, what stays passes the network of the slots and a
softmax; and so once more by the description. Then cosines with the true words of that caption, maxima and
means. In training the graph of all pairs is kept; both sides then take the hardest negatives. Width 512, 196
patches of which half stay as 39 tokens, captions of 8 to 20 words, decisions by the best scores.
`--processor` compares times of the processor, which say more than the clock on a machine that others share.
Gates: G7 of the performance goals, and the growth of time with pairs, as the slope of a log-log fit.
`--small` takes sizes of seconds, at which no gate is set.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.bench_pairs import slope
from benchmarks.harness import Ratio, fresh_peak, interval, keep_pages, paired, report
from grainline.losses.triplet import triplet
from grainline.methods.chosen import Choice
from grainline.methods.patches import graded, summary
from grainline.methods.selecting import Selector
from grainline.methods.triplets import Rule, both_triplets
from grainline.nn.pool import unit
from grainline.nn.select import stretched
from grainline.types import Encoded, Pair

WIDTH, PATCHES, SHORT, LONG = 512, 196, 8, 20
PICTURES, TEXTS, BATCH = 64, 160, 32
MARGIN = 0.2


class Batch:
    """Pictures with class token and description, texts, the scores of both, and what learns."""

    def __init__(self, pictures: int, texts: int) -> None:
        torch.manual_seed(0)
        choice = Choice(keep=0.5, aggregate=0.4, beta=0.4, branches="both")
        self.selector = Selector(choice, WIDTH, PATCHES)
        tokens = torch.randn(pictures, PATCHES + 2, WIDTH)
        tokens[:, -1] = unit(tokens[:, -1])
        length = torch.randint(SHORT, LONG + 1, (texts,))
        self.tokens = tokens.requires_grad_()
        self.words = torch.randn(texts, LONG, WIDTH).requires_grad_()
        self.mask = torch.arange(LONG) < length[:, None]

    def images(self) -> Encoded:
        ids = torch.arange(len(self.tokens))
        real = torch.ones(self.tokens.shape[:2], dtype=torch.bool)
        return Encoded(summary(self.tokens[:, :-2], real[:, :-2]), self.tokens, real, ids, ids)

    def texts(self) -> Encoded:
        ids = torch.arange(len(self.words))
        return Encoded(summary(self.words, self.mask), self.words, self.mask, ids, ids)

    def learnt(self) -> list[Tensor]:
        return [self.tokens, self.words, *(p for p in self.selector.parameters() if p.requires_grad)]


def looped(batch: Batch) -> Tensor:
    """The scores of all pairs, one caption at a time: [N, M]"""
    selector, images, texts = batch.selector, batch.images(), batch.texts()
    patches, cls, told = images.tokens[:, :-2], images.tokens[:, -2:-1], images.tokens[:, -1]
    beta = selector.choice.beta
    with torch.no_grad():
        directions = F.normalize(patches, dim=-1)
        by_image, by_told = (
            stretched((directions @ x[..., None])[..., 0]) for x in (images.vector.detach(), told)
        )
    assert selector.predictor is not None
    own = (1 - 2 * beta) * selector.predictor(patches) + beta * by_image
    scores = []
    for vector, tokens, mask in zip(texts.vector, texts.tokens, texts.mask, strict=True):
        with torch.no_grad():
            by_text = stretched(directions @ vector.detach())
        found, rest = zip(
            *(selected(selector, own + beta * x, patches) for x in (by_text, by_told)), strict=True
        )
        visual = torch.cat([cls, found[0] + found[1], (rest[0] + rest[1]) / 2], 1)
        cosine = F.normalize(visual, dim=-1) @ F.normalize(tokens[mask], dim=-1).T
        scores.append(cosine.amax(2).mean(1) + cosine.amax(1).mean(1))
    return torch.stack(scores, 1)


def selected(selector: Selector, score: Tensor, patches: Tensor) -> tuple[Tensor, Tensor]:
    """What one branch makes of the patches: aggregated [N, C, D] and one token of the others [N, 1, D]"""
    ordered, place = score.sort(1, descending=True)
    number = selector.staying
    kept, dropped = (
        patches.gather(1, x[..., None].expand(-1, -1, patches.shape[-1]))
        for x in (place[:, :number], place[:, number:])
    )
    assert selector.slots is not None
    weight = ordered[:, number:].softmax(1)
    return selector.slots(kept).softmax(-1) @ kept, (weight[..., None] * dropped).sum(1, keepdim=True)


@torch.no_grad()
def tiled(batch: Batch) -> Tensor:
    return batch.selector.score(batch.images(), batch.texts())


def looped_loss(batch: Batch) -> Tensor:
    """Hardest negatives both ways, over the graph of all pairs."""
    score = looped(batch)
    same = torch.eye(len(score), dtype=torch.bool)
    return torch.stack([triplet(x, same, ~same, MARGIN, True) for x in (score, score.T)]).sum()


def tiled_loss(batch: Batch) -> Tensor:
    pair = Pair(batch.images(), batch.texts())
    way = graded(batch.selector, batch.selector.top)
    terms = both_triplets(way, pair, pair, Rule(MARGIN, True, 1.0), 1.0)
    return torch.stack([term.mean.total / term.mean.number for term in terms.values()]).sum()


WAYS: dict[str, Callable[[Batch], Tensor]] = {"tiles": tiled_loss, "loop": looped_loss}


def trained(way: str, number: int) -> Callable[[], None]:
    """Forward and backward over inputs that are there already."""
    _once(way, Batch(3, 3))  # code that is loaded late is there already
    return partial(_once, way, Batch(number, number))


def _once(way: str, batch: Batch) -> None:
    torch.autograd.grad(WAYS[way](batch), batch.learnt(), allow_unused=True)


def processor(a: Callable[[], object], b: Callable[[], object], repeats: int) -> Ratio:
    """As `paired`, by the time of the processor."""

    def spent(call: Callable[[], object]) -> float:
        start = time.process_time()
        call()
        return time.process_time() - start

    a(), b()
    ratios = []
    for turn in range(repeats):
        first = spent(b) if turn % 2 else 0.0
        ours = spent(a)
        ratios.append((first or spent(b)) / ours)
    return interval(ratios)


def scores(pictures: int, texts: int, gated: bool, repeats: int, ratio_of: Callable[..., Ratio]) -> None:
    """All scores, whatever pictures say by themselves included."""
    batch = Batch(pictures, texts)
    with torch.no_grad():
        error = float((tiled(batch) - looped(batch)).abs().max())
        report("G7 scores: largest difference", error, "", at_most=1e-5)
        ratio = ratio_of(partial(tiled, batch), partial(looped, batch), repeats)
    facts = {"pictures": pictures, "texts": texts, "threads": torch.get_num_threads()}
    report("G7 scores: time loop / tiles", ratio, "x", at_least=9.0 if gated else None, **facts)
    sizes = [texts, 2 * texts, 4 * texts]
    batches = [Batch(pictures // 4, size) for size in sizes]
    times = []
    for one in batches:
        start = time.process_time()
        tiled(one)
        times.append(time.process_time() - start)
    power = slope([pictures // 4 * size for size in sizes], times)
    report("G7 scores: time grows with pairs to the power", power, "", at_most=1.15, times=times)


def training(number: int, gated: bool, repeats: int, ratio_of: Callable[..., Ratio]) -> None:
    """A loss with its gradients, in time and memory."""
    twins = [Batch(6, 6) for _ in WAYS]
    losses = [way(twin) for way, twin in zip(WAYS.values(), twins, strict=True)]
    grads = [
        torch.autograd.grad(loss, twin.learnt(), allow_unused=True)
        for loss, twin in zip(losses, twins, strict=True)
    ]
    error = max(
        float((a - b).norm() / b.norm().clamp(min=1e-3))
        for a, b in zip(*grads, strict=True)
        if a is not None and b is not None
    )
    report("G7 training: relative difference of a gradient", error, "", at_most=1e-4)
    ratio = ratio_of(trained("tiles", number), trained("loop", number), repeats)
    facts = {"pairs": number * number, "threads": torch.get_num_threads()}
    report("G7 training: time loop / tiles", ratio, "x", at_least=4.5 if gated else None, **facts)
    memory = {way: fresh_peak("benchmarks.bench_seps:trained", way, number).more for way in WAYS}
    share = memory["tiles"] / memory["loop"]
    report(
        "G7 training: memory tiles / loop", share, "x", at_most=1 / 6 if gated else None, **facts, **memory
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--small", action="store_true", help="sizes of seconds, at which no gate is set")
    parser.add_argument("--processor", action="store_true", help="the processor's time, not the clock's")
    args = parser.parse_args()
    share, ratio_of = 4 if args.small else 1, processor if args.processor else paired
    scores(PICTURES // share, TEXTS // share, not args.small, args.repeats, ratio_of)
    training(BATCH // share, not args.small, args.repeats, ratio_of)


if __name__ == "__main__":
    keep_pages()
    main()
