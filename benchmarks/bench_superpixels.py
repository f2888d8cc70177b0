"""Superpixels of a batch: SFCN as we run it against SFCN as it is published, k-means, pieces, and pooling.

SFCN with its normalisations folded in, channels last, in bfloat16 (G9), against the network as it is
published, with normalisations of its own, in float32. The weights are drawn, so many labels hang by
little, and the share of them that both agree on is a low guess.

Pieces: k-means before and after its superpixels are connected, on drawn scenes, whose masks are exact, and on
other sources. On a GPU the kernel is compared with torch on the CPU, pixel by pixel.

    python -m benchmarks.bench_superpixels [--batch 32] [--threads 2] [--repeats 7]
    python -m benchmarks.bench_superpixels --pieces scenes:dev photos.tar [--batch 32] [--repeats 7]
"""

import argparse
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from benchmarks.harness import interval, keep_pages, paired, report, seconds
from grainline.data.open_source import open_source
from grainline.data.record import Record
from grainline.data.transforms import EvalTransform
from grainline.encoders.superpixels import CELL, SFCN, SuperpixelConfig, Superpixels, folded
from grainline.nn import superpixels
from grainline.nn.runtime import has_bf16
from grainline.nn.superpixels import connected, hard, inside, kmeans, pool_cells

FASTER = 3.0  # times eager, G9


def main() -> None:
    keep_pages()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name, number in (("batch", 32), ("threads", 2), ("repeats", 7)):
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument(
        "--pieces", nargs="+", metavar="SOURCE", help="measure pieces alone, on these sources"
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    pixels = images(args.batch, 224).to(device)
    facts = {"device": device.type, "threads": args.threads, "batch": args.batch}
    with torch.no_grad():
        for source in args.pieces or ["scenes:dev"]:
            pieces(source, args.batch, device, args.repeats, facts)
        if args.pieces:
            return
        network(pixels, args.repeats, facts)
        for size, cell in ((224, 16), (64, 8)):
            local(images(args.batch, size).to(device), cell, args.repeats, facts)
        pooling(pixels, args.repeats, facts)


def images(number: int, size: int) -> Tensor:
    """Flat patches under noise: [N, 3, S, S] uint8"""
    flat = nn.functional.interpolate(torch.rand(number, 3, 9, 9), size)
    return ((flat + 0.03 * torch.randn(number, 3, size, size)).clamp(0, 1) * 255).to(torch.uint8)


def pieces(source: str, number: int, device: torch.device, repeats: int, facts: dict[str, object]) -> None:
    """Pieces, boundary recall and time of k-means at 224 pixels, before and after connecting."""
    name = source.rsplit("/", 1)[-1]
    if source.startswith("scenes:"):
        source += f"{'&' if '?' in source else '?'}regions=1"
    data, square = open_source(source, size=224), EvalTransform(224)
    records = [data[i] for i in range(min(number, len(data)))]
    pixels = torch.stack([square(record.image, record.key) for record in records]).to(device)
    fit = torch.cat([superpixels._fit(part, 16, 10.0, 10) for part in pixels.split(superpixels.CHUNK)])
    before = hard(fit, 16)
    facts = facts | {"images": len(pixels)}

    def connect() -> Tensor:
        if device.type != "cuda":
            return connected(before, fit, 16)
        from grainline.kernels import kmeans as kernels

        label = before.clone()
        kernels.connect(label, fit.clone(), 16)
        return label

    if device.type == "cuda":
        same = connect().cpu() == connected(before.cpu(), fit.cpu(), 16)
        report(f"{name}: pixels as by torch on a CPU", same.float().mean().item(), "share", at_least=1.0)
    masks = [mask for mask in map(things, records) if mask is not None]
    for when, label in (("before", before), ("after", connect())):
        number_of, outside = cut(label)
        found = {"pieces of a superpixel": (number_of, ""), "outside the largest piece": (outside, "share")}
        if len(masks) == len(records):
            truth = torch.stack(masks).to(device)
            found["boundary recall within a pixel"] = recall(label, truth), "share"
            found["of the thing with most of a superpixel"] = pure(label, truth), "share"
        for what, (value, unit) in found.items():
            report(f"{name}: {what}, {when}", value, unit, **facts)
    for what, call in (("k-means", lambda: kmeans(pixels, 16)), ("of it, connecting", connect)):
        run = timed(call, len(pixels))
        report(f"{name}: {what}", interval([run() for _ in range(repeats)]), "ms/image", **facts)


def things(record: Record) -> Tensor | None:
    """The number of the thing of each pixel, 0 the background: [224, 224] int64; None without masks"""
    masks = [region.mask for region in record.regions or ()]
    if not masks or any(mask is None for mask in masks):
        return None
    number = np.zeros(np.shape(masks[0]), np.uint8)
    for place, mask in enumerate(masks, 1):
        number[mask] = place
    square = EvalTransform(224, filter="nearest")
    return square(Image.fromarray(number).convert("RGB"), record.key)[0].long()


def cut(label: Tensor) -> tuple[float, float]:
    """Pieces of a superpixel, and the share of pixels outside the largest one.

    The lowest pixel of a piece spreads over it, step by step.
    """
    number, size, _ = label.shape
    own = label + 1 + torch.arange(number, device=label.device)[:, None, None] * (label.max() + 1)
    wide = F.pad(own, (1, 1, 1, 1))
    first, before = torch.arange(own.numel(), device=label.device).view_as(own), None
    while before is None or not torch.equal(first, before):
        before, edge = first, F.pad(first, (1, 1, 1, 1))
        for down, across in ((0, 1), (1, 0), (1, 2), (2, 1)):
            place = slice(down, down + size), slice(across, across + size)
            same = wide[:, *place] == own
            first = torch.where(same, torch.minimum(first, edge[:, *place]), first)
    piece, pixels = first.flatten().unique(return_counts=True)
    largest = pixels.new_zeros(int(own.max()) + 1).scatter_reduce_(0, own.flatten()[piece], pixels, "amax")
    return len(piece) / int((largest > 0).sum()), 1 - largest.sum().item() / own.numel()


def edges(x: Tensor) -> Tensor:
    """1 where a pixel differs from the one below or to the right: [N, S, S] -> [N, S, S] float"""
    out = torch.zeros_like(x, dtype=torch.bool)
    out[:, :-1] |= x[:, 1:] != x[:, :-1]
    out[..., :-1] |= x[..., 1:] != x[..., :-1]
    return out.float()


def recall(label: Tensor, truth: Tensor) -> float:
    """The share of the borders of things with a border of superpixels within one pixel."""
    near = F.max_pool2d(edges(label)[:, None], 3, 1, 1)[:, 0]
    return ((near * edges(truth)).sum() / edges(truth).sum()).item()


def pure(label: Tensor, truth: Tensor) -> float:
    """The share of pixels that show the thing that most pixels of their superpixel show."""
    numbers, most = int(label.max()) + 1, int(truth.max()) + 1
    image = torch.arange(len(label), device=label.device)[:, None, None]
    both = torch.bincount(
        ((image * numbers + label) * most + truth).flatten(), minlength=len(label) * numbers * most
    )
    return both.view(-1, most).amax(1).sum().item() / label.numel()


def network(pixels: Tensor, repeats: int, facts: dict[str, object]) -> None:
    """SFCN, from pixels to labels on both sides."""
    eager = drawn(pixels).to(pixels.device)
    ours = Superpixels(SuperpixelConfig(kind="sfcn", checkpoint="drawn"), pixels.shape[-1])
    assert ours.network is not None
    ours.network.load_state_dict(folded(eager).state_dict())
    ours = ours.to(pixels.device)

    def plain() -> Tensor:
        logits = eager(pixels.float() / 255)
        return wait(hard(logits.masked_fill(~inside(pixels.shape[-1], CELL), -torch.inf), CELL))

    def fast() -> Tensor:
        return wait(ours(pixels))

    ratio = paired(fast, plain, repeats)
    facts = facts | {"bf16": has_bf16(pixels.device), "ms": 1000 * seconds(fast) / len(pixels)}
    report("sfcn: published in float32 / folded, bf16 (G9)", ratio, "x", at_least=FASTER, **facts)
    same = (plain() == fast()).float().mean().item()
    report("sfcn: pixels with the same label", same, "share", **facts)


def drawn(pixels: Tensor) -> SFCN:
    """The published network with weights at random; its normalisations have seen these images."""
    made = SFCN(norm=True).to(pixels.device)
    for x in made.parameters():
        if x.dim() > 1:
            nn.init.kaiming_normal_(x)
    for _ in range(20):
        made(pixels[:8].float() / 255)
    return made.eval()


def local(pixels: Tensor, cell: int, repeats: int, facts: dict[str, object]) -> None:
    """Milliseconds an image of k-means."""
    call = timed(lambda: kmeans(pixels, cell), len(pixels))
    taken = interval([call() for _ in range(repeats)])
    report(f"kmeans: {pixels.shape[-1]} pixels, cells of {cell}", taken, "ms/image", **facts)


def pooling(pixels: Tensor, repeats: int, facts: dict[str, object]) -> None:
    """Milliseconds an image of the mean over superpixels, of 768 channels at a stride of 8."""
    label = kmeans(pixels, 16, steps=2)
    features = torch.randn(len(pixels), 768, 28, 28, device=pixels.device)
    call = timed(lambda: pool_cells(features, label, 16).tokens, len(pixels))
    taken = interval([call() for _ in range(repeats)])
    report("pooling: 768 channels, 28 x 28 to 196 superpixels", taken, "ms/image", **facts)


def timed(call: Callable[[], Tensor], number: int) -> Callable[[], float]:
    """Milliseconds for each of so many images; the first call is not among them."""
    wait(call())
    return lambda: 1000 * seconds(lambda: wait(call())) / number


def wait(x: Tensor) -> Tensor:
    if x.is_cuda:
        torch.cuda.synchronize()
    return x


if __name__ == "__main__":
    main()
