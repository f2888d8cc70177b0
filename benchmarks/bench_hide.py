"""HiDe of HiMo-CLIP, forward and backward: a thin SVD with autograd against ours; its part of a step.

    python -m benchmarks.bench_hide [--repeats 7]

The step is that of a ViT-B/16 with CLIP's text encoder at 248 tokens, forward and backward, on a few pairs;
its time is taken as proportional to the pairs. Gates: G6 of the performance goals.
"""

import argparse
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.harness import keep_pages, paired, report, seconds
from grainline.config import parse
from grainline.losses.hide import principal_part
from grainline.methods.himo import HiMo, HiMoConfig
from grainline.training.step import step
from grainline.types import Clock, Images, Texts

THRESHOLD = 0.9
SHAPES = {(1024, 512): 1.8, (1024, 768): 1.8, (128, 512): 2.8, (128, 768): 2.8}  # gates
PAIRS = 4  # of the step that is timed


def ours(x: Tensor, g: Tensor, real: Tensor) -> None:
    x.grad = None
    (principal_part(x, real, THRESHOLD).rows * g).sum().backward()


def by_svd(x: Tensor, g: Tensor) -> None:
    x.grad = None
    mean = x.mean(0, keepdim=True)
    _, s, v = torch.linalg.svd(x - mean, full_matrices=False)
    reached = (s**2).cumsum(0) / (s**2).sum()
    v = v[: int((reached < THRESHOLD).sum()) + 1]
    (((x - mean) @ v.T @ v + mean) * g).sum().backward()


def texts_like(number: int, width: int) -> Tensor:
    """Unit vectors with the falling spectrum and the common mean that captions have."""
    x = torch.randn(number, width) * torch.arange(1, width + 1) ** -0.7 + 0.1 * torch.randn(width)
    return F.normalize(x @ torch.linalg.qr(torch.randn(width, width))[0], dim=1)


def vit_step() -> float:
    """Seconds of one step over PAIRS pairs."""
    settings = {
        "image": {"name": "B/16", "size": 224},
        "text": {"name": "B", "vocab": 49408, "context": 248},
        "width": 512,
        "component": 0.0,
    }
    method = HiMo(parse(HiMoConfig, settings, "benchmark"))
    key = torch.arange(PAIRS)
    images = Images(torch.rand(PAIRS, 3, 224, 224), key)
    ids = torch.randint(3, 49000, (PAIRS, 1, 248))
    texts = Texts(ids, torch.ones_like(ids).bool(), key, key, torch.zeros_like(key))
    return min(seconds(lambda: step(method, images, texts, Clock())) for _ in range(3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    torch.manual_seed(0)
    a_pair = vit_step() / PAIRS
    for (number, width), gate in SHAPES.items():
        x, g = texts_like(number, width), torch.randn(number, width)
        real = torch.ones(number, dtype=torch.bool)
        both = [x.clone().requires_grad_() for _ in range(2)]
        fast, slow = partial(ours, both[0], g, real), partial(by_svd, both[1], g)
        what = f"HiDe N={number} d={width}"
        facts = {
            "kept": int(principal_part(x, real, THRESHOLD).components),
            "threads": torch.get_num_threads(),
        }
        ratio = paired(fast, slow, args.repeats)
        report(f"{what}: thin SVD with autograd / ours", ratio, "x", at_least=gate, **facts)
        part = min(seconds(fast) for _ in range(args.repeats)) / (a_pair * number)
        report(f"{what}: share of a step of ViT-B/16", 100 * part, "%", at_most=1.0)


if __name__ == "__main__":
    keep_pages()
    main()
