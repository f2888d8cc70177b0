"""How much of a training step of CAFT is its alignment, and where the time of a step goes.

    python -m benchmarks.bench_caft [--repeats 7] [--size B] [--images 4]

A step encodes images and sub-captions, forward and backward; alignment is both losses with the pooling, for
a batch of 256 images of 8 sub-captions, width 512 and 64 segments. Encoders are those of the recipe
caft/paper; they take as long for each image whatever the batch, so that some images stand for all.
Superpixels are computed in the step. Sub-captions have 36 tokens on average, as those of long captions.
Gates: the shares of the performance goals, section "end to end". The profile is that of a whole step with its
own batch.
"""

import argparse
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks.harness import Ratio, interval, keep_pages, report, seconds
from grainline.config import override
from grainline.methods.caft import CAFT, CAFTConfig
from grainline.training.recipe import read_recipe
from grainline.training.step import step
from grainline.types import CAPTION, LOOSE, Clock, Encoded, Images, Pair, Texts

BATCH, PARTS, LOOSE_ONES = 256, 4, 4
WAYS = (("sampled", 8, 2.0), ("all", 8, 15.0), ("all", 1, 5.0))  # negatives, heads, percent of the encoders


def made(size: str, *changes: str) -> CAFT:
    """The method of the paper with encoders of a size, in training."""
    values = read_recipe("caft/paper", [f"model.image.name={size}"] if size == "B" else []).model
    if size != "B":
        image = {"name": size, "size": 224, "superpixels": {"kind": "kmeans"}}
        values = values | {"image": image}
    torch.manual_seed(0)
    return CAFT(CAFTConfig.model_validate(override(values, list(changes)))).train()


def texts_of(images: int) -> Texts:
    """A long caption of four parts for each image, and four loose ones."""
    g = torch.Generator().manual_seed(0)
    rows = images * (1 + LOOSE_ONES)
    lengths = torch.normal(36.0, 14.0, (rows, PARTS), generator=g).round().clamp(8, 77)
    loose = torch.arange(rows) % (1 + LOOSE_ONES) > 0
    lengths[loose, 1:] = 0
    mask = torch.arange(77) < lengths[..., None]
    ids = torch.randint(3, 40_000, mask.shape, generator=g)
    owner = torch.arange(images).repeat_interleave(1 + LOOSE_ONES)
    return Texts(ids, mask, torch.arange(rows), owner, torch.where(loose, LOOSE, CAPTION))


def images_of(images: int) -> Images:
    g = torch.Generator().manual_seed(1)
    return Images(torch.rand(images, 3, 224, 224, generator=g), torch.arange(images))


def encode(method: CAFT, images: Images, texts: Texts) -> None:
    """Both encoders and all projections, forward and backward."""
    a, b = method.encode_images(images), method.encode_texts(texts)
    total = sum((x.square().sum() for x in (a.vector, a.tokens, b.vector, b.tokens)), torch.zeros(()))
    total.backward()


def encoded(width: int) -> tuple[Encoded, Encoded]:
    """What encoders leave of the batch, as leaves of a graph."""
    g = torch.Generator().manual_seed(2)

    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g).requires_grad_()

    key, rows = torch.arange(BATCH), BATCH * (1 + LOOSE_ONES)
    texts = texts_of(BATCH)
    images = Encoded(leaf(BATCH, width), leaf(BATCH, 64, width), torch.ones(BATCH, 64).bool(), key, key)
    tokens, mask = leaf(rows, PARTS, width), texts.mask.any(-1)
    return images, Encoded(leaf(rows, width), tokens, mask, texts.item, texts.image)


def align(method: CAFT, images: Encoded, texts: Encoded, level: Tensor) -> None:
    """Both losses, forward and backward."""
    extra = method.encode_texts(texts_of(1)).extra._replace(level=level)
    both = method.before_gather(Pair(images, texts._replace(extra=extra)))
    terms = method.loss(both, both, Clock())
    sum((t.weight * t.mean.total for t in terms.values() if t.weight), torch.zeros(())).backward()


def shares(a: Callable[[], None], b: Callable[[], None], repeats: int, times: float) -> Ratio:
    """Time of a over `times` the time of b in percent, in turns."""
    a(), b()
    found = []
    for turn in range(repeats):
        pair = {c: seconds(c) for c in ((a, b) if turn % 2 else (b, a))}
        found.append(100 * pair[a] / (times * pair[b]))
    return interval(found)


def profile(size: str, number: int) -> None:
    """The parts of a whole step by their time, in percent."""
    method, images, texts = made(size), images_of(number), texts_of(number)
    cast = method.towers.image
    label = cast.superpixels(images.pixels).label
    known = images._replace(regions=label)
    a, b = method.encode_images(images), method.encode_texts(texts)

    def backward(call: Callable[[], Tensor]) -> Callable[[], None]:
        return lambda: call().float().square().sum().backward()

    parts = {
        "superpixels": lambda: cast.superpixels(images.pixels),
        "superpixel tokens": backward(lambda: cast.superpixel_tokens(images.pixels, label).tokens),
        "image encoder without superpixels": backward(lambda: method.encode_images(known).vector),
        "text encoder": backward(lambda: method.encode_texts(texts).vector),
        "composer of it": backward(lambda: method.composer(b.tokens.detach(), b.mask)),
        "pooling and losses": partial(align, method, _leaves(a), _leaves(b), texts.level),
    }
    step(method, images, texts, Clock())
    whole = min(seconds(lambda: step(method, images, texts, Clock())) for _ in range(3))
    for name, call in parts.items():
        call()
        took = min(seconds(call) for _ in range(3))
        report(f"profile, {number} images of size {size}: {name}", 100 * took / whole, "% of step")
    report(f"profile, {number} images of size {size}: step", whole, "s")


def _leaves(encoded: Encoded) -> Encoded:
    vector, tokens = (x.detach().requires_grad_() for x in (encoded.vector, encoded.tokens))
    return encoded._replace(vector=vector, tokens=tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--size", default="B")
    parser.add_argument("--images", type=int, default=4)
    args = parser.parse_args()
    profile(args.size, args.images)
    encoders = made(args.size)
    images, texts = images_of(args.images), texts_of(args.images)
    level = texts_of(BATCH).level
    for negatives, heads, most in WAYS:
        method = made("toy", f"negatives={negatives}", f"heads={heads}")
        mine = encoded(method.towers.space)
        found = shares(
            partial(align, method, *mine, level),
            partial(encode, encoders, images, texts),
            args.repeats,
            BATCH / args.images,
        )
        what = f"alignment of {BATCH}, {negatives}, {heads} head{'s' * (heads > 1)} / encoders {args.size}"
        report(what, found, "%", at_most=most)


if __name__ == "__main__":
    keep_pages()
    main()
