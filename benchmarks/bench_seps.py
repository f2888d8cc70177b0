"""Pairs of SEPS in tiles against a loop over captions as in LAPS: scores, a training step and its memory.

    python -m benchmarks.bench_seps [--repeats 7] [--small]

The other side does as the code of LAPS and the release of SEPS do. For each caption in turn: the patches of
all images are sorted by their scores, those that stay and those that do not are gathered, what stays passes
the network of the slots and a softmax; and so once more by the description. The gates are about that, though
the description of an image knows no caption: a loop that makes its branch once stands beside it. Then
cosines with the true words of the caption, maxima and means; the networks of the best finds are left out. In
training the graph of all pairs is kept; both sides then take the hardest negatives, to which the gates
belong, or all of them, as in the first epochs. Width 512, 196 patches of which half stay as 39 tokens,
captions of 8 to 20 words, decisions by the best scores.
`--processor` compares times of the processor, which say more than the clock on a machine that others share.
Gates: G7 of the performance goals, and the growth of time with pairs, as the slope of a log-log fit.
`--small` takes sizes of seconds, at which no gate is set.
"""

import argparse
import copy
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.bench_pairs import slope
from benchmarks.harness import Ratio, fresh_peak, interval, keep_pages, paired, report
from grainline.losses.contrastive import TripletSchedule, both_triplets, triplet
from grainline.methods.patch_words import summary
from grainline.nn.patch_selection.scoring import graded
from grainline.nn.patch_selection.scoring import score as score_in_tiles
from grainline.nn.patch_selection.selector import SelectionConfig, SelectionExtra, Selector
from grainline.nn.pooling import unit
from grainline.nn.selection import stretched
from grainline.types import Encoded, Pair

WIDTH, PATCHES, SHORT, LONG = 512, 196, 8, 20
IMAGES, TEXTS, BATCH = 64, 160, 32
MARGIN = 0.2


def images_of(tokens: Tensor) -> Encoded:
    """Images from their patches, with a class token and a description behind them: [N, PATCHES + 2, WIDTH]"""
    patches, cls, description = tokens[:, :-2], tokens[:, -2], tokens[:, -1]
    ids = torch.arange(len(tokens), device=tokens.device)
    real = torch.ones(patches.shape[:2], dtype=torch.bool, device=tokens.device)
    extra = SelectionExtra(cls, real[:, 0], description)
    return Encoded(summary(patches, real), patches, real, ids, ids, extra)


class Batch:
    """Images with class token and description, texts, the scores of both, and what learns."""

    def __init__(self, images: int, texts: int) -> None:
        torch.manual_seed(0)
        choice = SelectionConfig(keep_ratio=0.5, aggregation_ratio=0.4, beta=0.4, branches="both")
        self.selector = Selector(choice, WIDTH, PATCHES)
        tokens = torch.randn(images, PATCHES + 2, WIDTH)
        tokens[:, -1] = unit(tokens[:, -1])
        length = torch.randint(SHORT, LONG + 1, (texts,))
        self.tokens = tokens.requires_grad_()
        self.words = torch.randn(texts, LONG, WIDTH).requires_grad_()
        self.mask = torch.arange(LONG) < length[:, None]

    def images(self) -> Encoded:
        return images_of(self.tokens)

    def texts(self) -> Encoded:
        ids = torch.arange(len(self.words))
        return Encoded(summary(self.words, self.mask), self.words, self.mask, ids, ids)

    def double(self) -> "Batch":
        """The same in float64."""
        other = copy.deepcopy(self)
        other.selector.double()
        other.tokens, other.words = (x.detach().double().requires_grad_() for x in (self.tokens, self.words))
        return other

    def learnt(self) -> list[Tensor]:
        return [self.tokens, self.words, *(p for p in self.selector.parameters() if p.requires_grad)]


def looped(batch: Batch, once: bool = False) -> Tensor:
    """The scores of all pairs, one caption at a time: [N, M]

    once  the branch of the description is made before them
    """
    selector, images, texts = batch.selector, batch.images(), batch.texts()
    patches, cls, description = images.tokens, images.extra.cls[:, None], images.extra.description
    beta = selector.choice.beta
    with torch.no_grad():
        directions = F.normalize(patches, dim=-1)
        by_image, by_description = (
            stretched((directions @ x[..., None])[..., 0]) for x in (images.vector.detach(), description)
        )
    assert selector.predictor is not None
    own = (1 - 2 * beta) * selector.predictor(patches) + beta * by_image
    alone = partial(selected, selector, own + beta * by_description, patches)
    known = alone() if once else None
    scores = []
    for vector, tokens, mask in zip(texts.vector, texts.tokens, texts.mask, strict=True):
        with torch.no_grad():
            by_text = stretched(directions @ vector.detach())
        found, rest = zip(selected(selector, own + beta * by_text, patches), known or alone(), strict=True)
        visual = torch.cat([cls, found[0] + found[1], (rest[0] + rest[1]) / 2], 1)
        cosine = F.normalize(visual, dim=-1) @ F.normalize(tokens[mask], dim=-1).T
        scores.append(cosine.amax(2).mean(1) + cosine.amax(1).mean(1))
    return torch.stack(scores, 1)


def selected(selector: Selector, score: Tensor, patches: Tensor) -> tuple[Tensor, Tensor]:
    """What one branch makes of the patches: aggregated [N, C, D] and one token of the others [N, 1, D]"""
    ordered, place = score.sort(1, descending=True)
    number = selector.keep_number
    kept, dropped = (
        patches.gather(1, x[..., None].expand(-1, -1, patches.shape[-1]))
        for x in (place[:, :number], place[:, number:])
    )
    assert selector.slots is not None
    weight = ordered[:, number:].softmax(1)
    return selector.slots(kept).softmax(-1) @ kept, (weight[..., None] * dropped).sum(1, keepdim=True)


def _apart(batch: Batch) -> Tensor:
    """Of the scores of both ways. Where two patches are as good but for rounding, another one may stay."""
    return (tiled(batch) - looped(batch)).abs()


@torch.no_grad()
def tiled(batch: Batch) -> Tensor:
    return score_in_tiles(batch.selector, batch.images(), batch.texts())


def looped_loss(batch: Batch, hardest: bool = True, once: bool = False) -> Tensor:
    """Both ways, over the graph of all pairs."""
    score = looped(batch, once)
    same = torch.eye(len(score), dtype=torch.bool)
    return torch.stack([triplet(x, same, ~same, MARGIN, hardest) for x in (score, score.T)]).sum()


def tiled_loss(batch: Batch, hardest: bool = True) -> Tensor:
    pair = Pair(batch.images(), batch.texts())
    way = graded(batch.selector, batch.selector.top)
    terms = both_triplets(way, pair, pair, TripletSchedule(MARGIN, hardest, 1.0), 1.0)
    return torch.stack([term.mean.total / term.mean.number for term in terms.values()]).sum()


WAYS: dict[str, Callable[[Batch], Tensor]] = {
    "tiles": tiled_loss,
    "loop": looped_loss,
    "loop, description once": partial(looped_loss, once=True),
    "tiles, all negatives": partial(tiled_loss, hardest=False),
    "loop, all negatives": partial(looped_loss, hardest=False),
}


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


def scores(images: int, texts: int, gated: bool, repeats: int, ratio_of: Callable[..., Ratio]) -> None:
    """All scores, whatever images say by themselves included."""
    batch = Batch(images, texts)
    with torch.no_grad():
        exact = batch.double()
        report("G7 scores: largest difference, float64", _apart(exact).amax().item(), "", at_most=1e-11)
        found = _apart(batch)
        report("scores in float32: pairs of which another patch stays", int((found > 1e-5).sum()), "")
        report("scores in float32: largest difference of the others", found[found <= 1e-5].max().item(), "")
        ratio = ratio_of(partial(tiled, batch), partial(looped, batch), repeats)
    facts = {"images": images, "texts": texts, "threads": torch.get_num_threads()}
    report("G7 scores: time loop / tiles", ratio, "x", at_least=4.5 if gated else None, **facts)
    with torch.no_grad():
        ratio = ratio_of(partial(tiled, batch), partial(looped, batch, once=True), repeats)
    report("scores: time loop that makes the description's branch once / tiles", ratio, "x", **facts)
    sizes = [texts, 2 * texts, 4 * texts]
    times = [_median_time(partial(tiled, Batch(images // 4, size))) for size in sizes]
    power = slope([images // 4 * size for size in sizes], times)
    report("G7 scores: time grows with pairs to the power", power, "", at_most=1.15, times=times)


def _median_time(call: Callable[[], object], times: int = 3) -> float:
    """The processor's time of a call that has run before."""
    call()
    found = []
    for _ in range(times):
        start = time.process_time()
        call()
        found.append(time.process_time() - start)
    return sorted(found)[times // 2]


def training(number: int, gated: bool, repeats: int, ratio_of: Callable[..., Ratio]) -> None:
    """A loss with its gradients, in time and memory."""
    for hardest in (True, False):
        report(
            f"G7 training: relative difference of a gradient, {'hardest' if hardest else 'all'} negatives",
            _difference(hardest), "", at_most=1e-4,
        )  # fmt: skip
    facts = {"pairs": number * number, "threads": torch.get_num_threads()}
    ratio = ratio_of(trained("tiles", number), trained("loop", number), repeats)
    report("G7 training: time loop / tiles", ratio, "x", at_least=4.5 if gated else None, **facts)
    once = ratio_of(trained("tiles", number), trained("loop, description once", number), repeats)
    report("training: time loop that makes the description's branch once / tiles", once, "x", **facts)
    every = ratio_of(trained("tiles, all negatives", number), trained("loop, all negatives", number), repeats)
    report("training with all negatives: time loop / tiles", every, "x", **facts)
    memory = {way: fresh_peak("benchmarks.bench_seps:trained", way, number).more for way in WAYS}
    shares = (
        ("G7 training", "tiles", "loop", 1 / 6 if gated else None),
        ("training", "tiles", "loop, description once", None),
        ("training", "tiles, all negatives", "loop, all negatives", None),
    )
    for what, ours, theirs, gate in shares:
        both = {"ours": memory[ours], "theirs": memory[theirs]}
        report(
            f"{what}: memory {ours} / {theirs}", memory[ours] / memory[theirs], "x",
            at_most=gate, **facts, **both,
        )  # fmt: skip


def _difference(hardest: bool) -> float:
    """The largest relative difference of a gradient, of those that both have.

    The loop has no networks of the best finds; all else has to have a gradient on both sides.
    """
    ours, theirs = Batch(6, 6), Batch(6, 6)
    losses = (tiled_loss(ours, hardest), ours), (looped_loss(theirs, hardest), theirs)
    a, b = (torch.autograd.grad(loss, one.learnt(), allow_unused=True) for loss, one in losses)
    networks = {id(p) for p in theirs.selector.relevance.parameters()}
    found = []
    for mine, other, leaf in zip(a, b, theirs.learnt(), strict=True):
        if other is None or mine is None:
            assert id(leaf) in networks or mine is other, "a gradient is missing on one side"
        else:
            found.append(float((mine - other).norm() / other.norm().clamp(min=1e-3)))
    return max(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--small", action="store_true", help="sizes of seconds, at which no gate is set")
    parser.add_argument("--processor", action="store_true", help="the processor's time, not the clock's")
    args = parser.parse_args()
    share, ratio_of = 4 if args.small else 1, processor if args.processor else paired
    scores(IMAGES // share, TEXTS // share, not args.small, args.repeats, ratio_of)
    training(BATCH // share, not args.small, args.repeats, ratio_of)


if __name__ == "__main__":
    keep_pages()
    main()
