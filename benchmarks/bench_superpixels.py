"""Superpixels of a batch: SFCN as we run it against SFCN as it is published, k-means, and pooling.

SFCN with its normalisations folded in, channels last, in bfloat16 (G9), against the network as it is
published, with normalisations of its own, in float32. The weights are drawn, so many labels hang by
little, and the share of them that both agree on is a low guess.

    python -m benchmarks.bench_superpixels [--batch 32] [--threads 2] [--repeats 7]
"""

import argparse
from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.harness import interval, keep_pages, paired, report, seconds
from grainline.encoders.superpixels import SFCN, SuperpixelConfig, Superpixels, cells_of, folded
from grainline.nn.runtime import has_bf16
from grainline.nn.superpixels import kmeans, one_hot, pool_cells

FASTER = 3.0  # times eager, G9


def main() -> None:
    keep_pages()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name, number in (("batch", 32), ("threads", 2), ("repeats", 7)):
        parser.add_argument(f"--{name}", type=int, default=number)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    pixels = images(args.batch, 224).to(device)
    facts = {"device": device.type, "threads": args.threads, "batch": args.batch}
    with torch.no_grad():
        network(pixels, args.repeats, facts)
        for size, cell in ((224, 16), (64, 8)):
            local(images(args.batch, size).to(device), cell, args.repeats, facts)
        pooling(pixels, args.repeats, facts)


def images(number: int, size: int) -> Tensor:
    """Flat patches under noise: [N, 3, S, S] uint8"""
    flat = nn.functional.interpolate(torch.rand(number, 3, 9, 9), size)
    return ((flat + 0.03 * torch.randn(number, 3, size, size)).clamp(0, 1) * 255).to(torch.uint8)


def network(pixels: Tensor, repeats: int, facts: dict[str, object]) -> None:
    """SFCN, from pixels to labels on both sides."""
    eager = drawn(pixels).to(pixels.device)
    ours = Superpixels(SuperpixelConfig(kind="sfcn", checkpoint="drawn"), pixels.shape[-1])
    assert ours.network is not None
    ours.network.load_state_dict(folded(eager).state_dict())
    ours = ours.to(pixels.device)

    def plain() -> Tensor:
        return wait(cells_of(eager(pixels.float() / 255)).label)

    def fast() -> Tensor:
        return wait(ours(pixels).label)

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
    call = timed(lambda: kmeans(pixels, cell).label, len(pixels))
    taken = interval([call() for _ in range(repeats)])
    report(f"kmeans: {pixels.shape[-1]} pixels, cells of {cell}", taken, "ms/image", **facts)


def pooling(pixels: Tensor, repeats: int, facts: dict[str, object]) -> None:
    """Milliseconds an image of the mean over superpixels, of 768 channels at a stride of 8."""
    weight = one_hot(kmeans(pixels, 16, steps=2).label, 16)
    features = torch.randn(len(pixels), 768, 28, 28, device=pixels.device)
    call = timed(lambda: pool_cells(features, weight, 16).tokens, len(pixels))
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
