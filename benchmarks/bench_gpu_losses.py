"""Losses and scores that are no pooling, on a GPU: beta-CAL, the loss over a vocabulary, scores of SEPS.

    python -m benchmarks.bench_gpu_losses [--repeats 7] [--only G5 G7 G10] [--rehearse]

Times are those of the device; memory is beyond the inputs. Operands are bfloat16 as in training, and float32.
  G5   beta-CAL (cross-entropy both ways) of 73,728 rows: 2,048 images with 36 texts each, at width 512; of
       2,304 rows, as a group of beta_clip/paper has
  G7   scores of 5,000 images of 196 patches with 25,000 captions of 8 to 20 words, as COCO has
  G10  the loss over a vocabulary of 49,408 of 4,096 captions of 16 tokens, at width 512; beside it the plain
       way and, where it is installed, the fused loss of Liger-Kernel
`--rehearse` runs all in tiny shapes on a CPU, where no number means anything.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import bench_pairs, bench_seps
from benchmarks.bench_gpu import GPU, arguments, cost, profiled, speed
from benchmarks.harness import report
from grainline.losses.tiled.scores import half_products
from grainline.losses.tiled.vocabulary import vocabulary_loss
from grainline.methods.patch_words import summary
from grainline.nn.patch_selection.scoring import score
from grainline.types import Encoded

WORDS = {"half": True, "float32": False}


def moved(x: Tensor) -> Tensor:
    return x.detach().to(GPU).requires_grad_(x.requires_grad)


def backward(loss: Callable[[], Tensor], leaves: list[Tensor]) -> None:
    torch.autograd.grad(loss(), leaves)


def pairs(repeats: int, tiny: bool) -> None:
    for images in (2, 4) if tiny else (64, 2048):
        large = images == 2048
        v, t, keys = bench_pairs.inputs(36 * images)
        v, t = moved(v), moved(t)
        keys = type(keys)(*(x.to(GPU) for x in keys))
        loss = partial(backward, partial(bench_pairs.tiles_ce, v, t, keys), [v, t])
        for word, half in WORDS.items():
            gate = large and half
            with half_products(half):
                loss()
                found = cost(loss, repeats)
                name = f"G5 beta-CAL N={len(v)}, {word}"
                facts = speed(8 * len(v) ** 2 * v.shape[1], found.ms)  # logits twice, two gradients
                report(name, found.ms, "ms", at_most=60.0 if gate else None, **facts)
                report(f"{name}: memory", found.mib, "MiB", at_most=600.0 if gate else None)
        if not large:
            profiled(f"G5 beta-CAL N={len(v)}", loss, repeats)


def patches(repeats: int, tiny: bool) -> None:  # noqa: ARG001, once: it takes seconds
    """Patches in bfloat16, as encoders give them in half precision; a tenth of the images in float32."""
    images, texts = (8, 16) if tiny else (5000, 25_000)
    batch = bench_seps.Batch(8, texts)
    selector = batch.selector.to(GPU).eval()
    words, mask = batch.words.detach().to(GPU), batch.mask.to(GPU)
    ids = torch.arange(texts, device=GPU)
    of_texts = Encoded(summary(words, mask), words, mask, ids, ids)
    for dtype, share, gate in ((torch.bfloat16, 1, 5.0), (torch.float32, 10, None)):
        number = max(2, images // share)
        tokens = torch.randn(number, bench_seps.PATCHES + 2, bench_seps.WIDTH, device=GPU, dtype=dtype)
        of_images = bench_seps.images_of(tokens)
        with torch.no_grad():
            found = cost(partial(score, selector, of_images, of_texts), 1)
        facts = {"pairs_per_s": 1e3 * number * texts / found.ms, "mib": found.mib}
        what = f"G7 SEPS, {number} x {texts}, {str(dtype)[6:]}"
        report(what, found.ms / 1e3, "s", at_most=gate, **facts)


def vocabulary(repeats: int, tiny: bool) -> None:
    tokens, entries, width = (64, 512, 32) if tiny else (16 * 4096, 49_408, 512)
    g = torch.Generator().manual_seed(0)
    hidden = moved(torch.randn(tokens, width, generator=g).requires_grad_())
    table = moved((0.02 * torch.randn(entries, width, generator=g)).requires_grad_())
    target = torch.randint(entries, (tokens,), generator=g).to(GPU)

    def ours() -> Tensor:
        mean = vocabulary_loss(hidden, table, target)
        return mean.total.float() / mean.number

    def plain() -> Tensor:
        with torch.autocast(GPU.type, torch.bfloat16):
            return F.cross_entropy(hidden @ table.T, target)

    ways: dict[str, Callable[[], Tensor]] = {"ours": ours, "plain in bfloat16": plain}
    with suppress(ImportError):
        if GPU.type == "cpu":  # a rehearsal, which has no driver for its kernel
            raise ImportError
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

        loss = LigerFusedLinearCrossEntropyLoss()
        ways["Liger"] = lambda: loss(table.bfloat16(), hidden.bfloat16(), target)
    times = {}
    for name, way in ways.items():
        with half_products(True):
            try:
                found = cost(partial(backward, way, [hidden, table]), repeats)
            except torch.OutOfMemoryError:
                print(f"# G10 {name}: does not fit")
                continue
        times[name] = found.ms
        gate = name == "ours"
        facts = speed(6 * tokens * entries * width, found.ms)
        report(f"G10 {name}: {tokens} tokens", found.ms, "ms", at_most=40.0 if gate else None, **facts)
        report(f"G10 {name}: memory", found.mib, "MiB", at_most=1024.0 if gate else None)
    if "Liger" in times:
        report("G10 time Liger / ours", times["Liger"] / times["ours"], "x", at_least=1.0)


PARTS = {"G5": pairs, "G7": patches, "G10": vocabulary}


def main() -> None:
    if args := arguments(__doc__, PARTS, repeats=7):
        for name in args.only:
            PARTS[name](1 if args.rehearse else args.repeats, args.rehearse)


if __name__ == "__main__":
    main()
