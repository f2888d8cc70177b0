"""What the performance goals say of a GPU, measured on one: CAFT's operations at the sizes of real training.

    python -m benchmarks.bench_gpu [--repeats 7] [--share 1] [--only PART ...] [--rehearse]

Times are those of the device, from event to event, the median of some calls after two that are thrown away;
memory is what torch's allocator had in use at most, beyond the inputs. First the two ceilings of the machine:
a product of matrices and a copy. Then
  G1 to G3  losses of 2,048 images x 8 captions x 64 segments at width 512, forward and backward; beside it
            the modules of `bench_pooled` at the largest batch that they can hold
  sampled   losses of 256 images with captions of eight times as many, as on eight GPUs
  G4        scores of images with texts; keys and values are there already
  G8, G9    farthest points, SFCN and k-means for 2,048 images
  G11       100 candidates ranked anew for each of many queries, keys and values held
  steps     of CAFT with the encoders of the paper, in bfloat16; and what share of it is alignment
  profile   launches of a step of CAFT, the time of its host beside that of the device, and what takes longest
`--share N` divides the batches by N, to try the program on a small device; `--rehearse` runs it on a CPU,
where no number means anything. `benchmarks.gpu_blocks` runs the parts one by one.
"""

import argparse
import re
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import bench_caft, bench_pooled
from benchmarks.bench_superpixels import drawn, images
from benchmarks.harness import Ratio, paired, report, seconds
from grainline.encoders.superpixels import SuperpixelConfig, Superpixels, folded
from grainline.losses.text_conditioned import part_loss, part_pairs, pooled_scores
from grainline.losses.tiled.pair_mask import RowIds
from grainline.losses.tiled.scores import half_products
from grainline.nn.grouping import farthest_points
from grainline.nn.pooling import KeyValue
from grainline.nn.superpixels import kmeans
from grainline.training.step import Objective
from grainline.types import Clock, Encoded, Images, Texts, to

IMAGES = 2048
RANKS = 8  # processes whose captions sampled losses have
SIDE = 8192  # of the matrices whose product is the ceiling
GPU = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""Entered where inputs are made, left where time is taken: inside, torch asks Python at every operation. A
CPU is for rehearsals."""
WORDS = {"half": "high", "tf32": "high", "float32": "highest"}
"""How we name the precision of products in losses, and torch those of float32. "half": large ones in
bfloat16, as in training in half precision."""


class Cost(NamedTuple):
    """Of one call."""

    ms: float  # median
    mib: float  # most memory beyond what was there before


def cost(call: Callable[[], Any], repeats: int) -> Cost:
    """Time and memory of a call on the device."""
    call()
    if GPU.type == "cpu":
        return Cost(1e3 * statistics.median(seconds(call) for _ in range(repeats)), 0.0)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    return Cost(statistics.median(_ms(call) for _ in range(repeats)), peak / 2**20)


def _ms(call: Callable[[], Any]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def ceilings(number: int, repeats: int) -> None:
    """How fast the machine is at best."""
    side = SIDE * number // IMAGES
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        report(f"ceiling: product in {str(dtype)[6:]}", product_speed(dtype, side, repeats), "TFLOP/s")
    x = torch.randn(2**28 * number // IMAGES, device=GPU)
    y = torch.empty_like(x)
    report("ceiling: copy, read and written", 8 * len(x) / cost(lambda: y.copy_(x), repeats).ms / 1e6, "GB/s")


def product_speed(dtype: torch.dtype, side: int, repeats: int) -> float:
    """TFLOP/s of a product of two matrices."""
    a, b = (torch.randn(side, side, dtype=dtype, device=GPU) for _ in range(2))
    return 2 * side**3 / cost(partial(torch.matmul, a, b), repeats).ms / 1e9


def losses(number: int, repeats: int) -> None:
    """G1 to G3, and the modules where they fit."""
    most = {"G1 all": 120.0, "G2 all, one head": 45.0}
    share = {"G1 all": 40.0, "G2 all, one head": 45.0}  # of the ceiling
    top = product_speed(torch.float16, SIDE * number // IMAGES, repeats)
    for word in WORDS:
        for goal in bench_pooled.GOALS:
            with products(word):
                found = cost(prepared("tiles", goal, number), repeats)
            gate = most.get(goal.name) if word == "half" else None
            pairs = _pairs(goal, number)
            facts = {"images": number, "pairs_per_s": pairs / found.ms * 1e3}
            facts |= speed(pairs * work(), found.ms)
            report(f"{goal.name} B={number}, {word}: time", found.ms, "ms", at_most=gate, **facts)
            if gate:
                of = 100 * facts["tflops"] / top
                what = f"{goal.name} B={number}, {word}: of the ceiling"
                report(what, of, "%", at_least=share[goal.name])
            report(f"{goal.name} B={number}, {word}: memory", found.mib, "MiB", at_most=gate and 1536.0)
        for goal in bench_pooled.GOALS:
            with products(word):
                against(goal, number, word, repeats)


def work(learns: bool = True) -> int:
    """Floating-point operations of a pair of an image and a text: what is computed again counts again."""
    slots, width = bench_pooled.SLOTS, bench_pooled.WIDTH
    return 4 * slots * width + 2 * width**2 + learns * (10 * slots * width + 2 * width**2)


def speed(flops: float, ms: float) -> dict[str, float]:
    """For a line: `gpu_blocks --table` has the share of the ceiling besides."""
    return {"tflops": flops / ms / 1e9}


@contextmanager
def products(word: str) -> Iterator[None]:
    """Products of losses in this precision."""
    torch.set_float32_matmul_precision(WORDS[word])
    torch._dynamo.reset()  # a function is compiled eight times at most, and then runs as it is
    try:
        with half_products(word == "half"):
            yield
    finally:
        torch.set_float32_matmul_precision("highest")


def prepared(way: str, goal: bench_pooled.Goal, number: int) -> Callable[[], None]:
    """Forward and backward of a loss over inputs on the GPU."""
    with GPU:
        return bench_pooled.prepared(way, goal.negatives, number, goal.heads)


def _pairs(goal: bench_pooled.Goal, number: int) -> int:
    own = bench_pooled.CAPTIONS
    return number * (number * own if goal.negatives == "all" else own + number - 1)


def against(goal: bench_pooled.Goal, number: int, word: str, repeats: int) -> None:
    """The modules at the largest batch they can hold, and the tiles there."""
    least = {"G1 all": 8.0, "G2 all, one head": 12.0}.get(goal.name, 3.0)
    while number >= 8:
        try:
            theirs = cost(prepared("modules", goal, number), repeats)
        except RuntimeError:  # out of memory, or strides beyond 32 bits
            _empty()
            number //= 2
            continue
        ours = cost(prepared("tiles", goal, number), repeats)
        _empty()
        name = f"{goal.name} B={number}, {word}"
        report(f"{name}: time modules / tiles", theirs.ms / ours.ms, "x", at_least=least, ms=ours.ms)
        report(f"{name}: memory tiles / modules", ours.mib / theirs.mib, "x", at_most=goal.share)
        return


def sampled(number: int, repeats: int) -> None:
    """Sampled captions of a share of the images, with the captions of all."""
    with GPU:
        batch = bench_pooled.Batch(number, 8)
    local, texts = max(1, number // RANKS), len(batch.texts)
    images = RowIds(*(x[:local] for x in batch.images))
    segments = batch.segments.detach()[:local].requires_grad_()

    def once() -> None:
        pairs = part_pairs(images, batch.captions, "sampled", Clock())
        sides = (segments, None), batch.texts
        part_loss(batch.pool, *sides, pairs, batch.scale, batch.bias).total.backward()

    with half_products(True):
        found = cost(once, repeats)
    pairs = local * (bench_pooled.CAPTIONS + number - 1)
    facts = {"mib": found.mib} | speed(pairs * work(), found.ms)
    report(f"sampled by lists, {local} x {texts}", found.ms, "ms", **facts)


@torch.no_grad()
def scores(number: int, repeats: int) -> None:
    """G4: so many images against ten times as many texts."""
    with GPU:
        pool = bench_pooled.Batch(1, 8).pool
        segments = torch.randn(number, bench_pooled.SLOTS, bench_pooled.WIDTH)
        texts = torch.randn(10 * number, 1, bench_pooled.WIDTH)
    for dtype in (torch.float32, torch.bfloat16):
        key, value, mask = pool.keys(segments)
        keys = KeyValue(key.to(dtype), value.to(dtype), mask)
        found = cost(partial(pooled_scores, pool, keys, texts), repeats)
        rate = number * len(texts) / found.ms * 1e3
        gate = 5e8 if dtype == torch.bfloat16 else None
        facts = {"mib": found.mib} | speed(number * len(texts) * work(learns=False), found.ms)
        report(f"G4 scores in {str(dtype)[6:]}", rate, "pairs/s", at_least=gate, **facts)


@torch.no_grad()
def again(number: int, repeats: int) -> None:  # noqa: ARG001
    """G11: queries of four parts and 100 candidates, whose keys and values were computed before."""
    with GPU:
        pool = bench_pooled.Batch(1, 8).pool
        segments = torch.randn(bench_pooled.CANDIDATES, bench_pooled.SLOTS, bench_pooled.WIDTH)
    key, value, mask = pool.keys(segments)
    keys = KeyValue(key.bfloat16(), value.bfloat16(), mask)
    for queries, least in ((1, 5e3), (64, 5e4)):
        texts = torch.randn(queries, bench_pooled.PARTS, bench_pooled.WIDTH, device=GPU)
        call = partial(pooled_scores, pool, keys, texts)
        found = cost(call, repeats)
        rate, what = queries / found.ms * 1e3, f"G11 re-ranking, {queries} queries at a time"
        pairs = queries * bench_pooled.PARTS * bench_pooled.CANDIDATES
        facts = {"mib": found.mib} | speed(pairs * work(learns=False), found.ms)
        report(what, rate, "queries/s", at_least=least, **facts)


@torch.no_grad()
def superpixels(number: int, repeats: int) -> None:
    """G8 and G9, for so many images of 224 pixels."""
    x = torch.randn(number, 197, 768, device=GPU)
    found = cost(partial(farthest_points, x, None, 65), repeats)
    flops = number * x.shape[1] ** 2 * x.shape[2]  # of a triangle of each product
    facts = {"mib": found.mib} | speed(flops, found.ms)
    report(f"G8 farthest points, {number} images", found.ms, "ms", at_most=1.5, **facts)
    pixels = _photos(number)
    found = cost(lambda: kmeans(pixels, 16), repeats)
    report(f"k-means, {len(pixels)} images", found.ms, "ms", at_most=15.0, mib=found.mib)
    ours = Superpixels(SuperpixelConfig(kind="sfcn", checkpoint="drawn"), 224)
    assert ours.network is not None
    ours.network.load_state_dict(folded(drawn(pixels[:64])).state_dict())
    network = ours.to(GPU)
    parts = pixels.split(256)
    with FlopCounterMode(display=False) as counter:
        network(parts[0])
    flops = counter.get_total_flops() * len(pixels) / len(parts[0])
    found = cost(lambda: [network(part) for part in parts], repeats)
    facts = {"mib": found.mib} | speed(flops, found.ms)
    report(f"G9 SFCN, {len(pixels)} images", found.ms, "ms", at_most=60.0, **facts)


def _photos(number: int) -> Tensor:
    """So many images of 224 pixels, 64 of them different."""
    return images(min(64, number), 224).to(GPU).repeat(max(1, number // 64), 1, 1, 1)


def profile(number: int, repeats: int) -> None:
    """A loss alone, and a step of CAFT."""
    profiled("G1", prepared("tiles", bench_pooled.GOALS[0], 8 * number), repeats, 1500.0)
    images, texts = to(bench_caft.images_of(number), GPU), to(bench_caft.texts_of(number), GPU)
    method = bench_caft.made("B", "negatives=all", "heads=8").to(GPU)
    profiled("step", partial(_step, method, images, texts), repeats)


WAITS = "Command Buffer Full", "Activity Buffer Request", "cudaDeviceSynchronize"
"""What a profile has of a host that waits: a full queue of launches, the profiler, and the end."""


def profiled(name: str, call: Callable[[], Any], repeats: int, gate: float | None = None) -> None:
    """Launches of a call, how long its host takes, its waits included, and what takes longest on either side.

    The host's work alone is that of a profiled call, where each operation takes longer.

    gate  of launches
    """
    with half_products(True):
        device = cost(call, repeats).ms
        call()
        _synchronise()
        start = time.perf_counter()
        call()  # the host is through before the device is
        host = 1e3 * (time.perf_counter() - start)
        activities = [torch.profiler.ProfilerActivity.CPU]
        _synchronise()
        if GPU.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        with torch.profiler.profile(activities=activities) as record:
            call()
    events = record.key_averages()
    launches = sum(event.count for event in events if re.search("LaunchKernel", event.key))
    report(f"{name}: launches", launches, "", at_most=gate)
    report(f"{name}: time of the host / of the device", host / device, "x", at_most=0.3)
    busy = sum(x.self_cpu_time_total for x in events if x.key not in WAITS) / 1e3
    report(f"{name}: work of the host / time of the device", busy / device, "x")
    on_device = [
        (x.self_device_time_total / 1e3, x.count, x.key)
        for x in events
        if x.device_type == torch.autograd.DeviceType.CUDA
    ]
    on_host = [(x.self_cpu_time_total / 1e3, x.count, x.key) for x in events]
    total = sum(ms for ms, *_ in on_device)
    longest = {
        place: {key[:80]: (count, ms) for ms, count, key in sorted(of, reverse=True)[:number]}
        for place, of, number in (("kernels", on_device, 60), ("host", on_host, 15))
    }
    report(f"{name}: kernels in all", total, "ms", wall=device, **longest)


def steps(number: int, repeats: int) -> None:
    """Whole steps of CAFT in bfloat16, and their encoders alone, of as many images as fit."""
    images, texts = to(bench_caft.images_of(number), GPU), to(bench_caft.texts_of(number), GPU)
    for negatives, heads, most in bench_caft.WAYS:
        method = bench_caft.made("B", f"negatives={negatives}", f"heads={heads}").to(GPU)
        name = f"CAFT B, {number} images, {negatives}, {heads} heads"
        try:
            whole = cost(partial(_step, method, images, texts), repeats)
            both = (partial(_finished, f, method, images, texts) for f in (_encoders, _step))
            ratio = paired(*both, repeats)  # a host that has more to do has it for both
        except torch.OutOfMemoryError:
            whole = None
        if whole is None:  # outside of the error, which holds what the step had
            del method
            _empty()
            steps(number // 2, repeats)
            return
        report(f"{name}: step", whole.ms, "ms", mib=whole.mib)
        report(f"{name}: images", number / whole.ms * 1e3, "img/s")
        share = Ratio(*(100 * (x - 1) for x in ratio[:3]), ratio.coverage)
        report(f"{name}: what the losses add to the encoders", share, "%", at_most=most)
        del method
        _empty()


def _finished(call: Callable[..., Any], *given: Any) -> None:
    call(*given)
    _synchronise()


def _synchronise() -> None:
    if GPU.type == "cuda":
        torch.cuda.synchronize()


def _empty() -> None:
    if GPU.type == "cuda":
        torch.cuda.empty_cache()


def _step(method: Any, images: Images, texts: Texts) -> None:
    method.zero_grad(set_to_none=True)
    Objective(method, torch.bfloat16)(images, texts, Clock()).total.backward()


def _encoders(method: Any, images: Images, texts: Texts) -> None:
    method.zero_grad(set_to_none=True)
    with torch.autocast(GPU.type, torch.bfloat16):
        a, b = method.encode_images(images), method.encode_texts(texts)
    _length(a, b).backward()


def _length(a: Encoded, b: Encoded) -> Tensor:
    return torch.stack([x.float().square().sum() for x in (a.vector, a.tokens, b.vector, b.tokens)]).sum()


PARTS: dict[str, tuple[Callable[[int, int], None], int]] = {  # and by what the number of images is divided
    "ceilings": (ceilings, 1),
    "losses": (losses, 1),
    "sampled": (sampled, 1),
    "scores": (scores, 2),
    "superpixels": (superpixels, 1),
    "again": (again, 1),
    "steps": (steps, 8),
    "profile": (profile, 8),
}


def arguments(doc: str | None, parts: Iterable[str], **numbers: int) -> argparse.Namespace | None:
    """The command line of a benchmark with these parts and numbers; None where there is no GPU to measure."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0] if doc else None)
    for name, value in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--only", nargs="+", choices=list(parts), default=list(parts))
    parser.add_argument("--rehearse", action="store_true", help="on a CPU, to see that it runs")
    args = parser.parse_args()
    if GPU.type == "cpu" and not args.rehearse:
        print("# no CUDA device: nothing is measured")
        return None
    return args


def main() -> None:
    if args := arguments(__doc__, PARTS, repeats=7, share=1):  # share: divides the batches
        for name in args.only:
            part, by = PARTS[name]
            part(max(2, IMAGES // args.share // by), args.repeats)


if __name__ == "__main__":
    main()
