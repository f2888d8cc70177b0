"""Ranks of a 5,000 x 25,000 retrieval in tiles, against sorting the whole score matrix.

Both ways find the same ranks. Their times are taken in turns; their memory in processes of their own, from
the moment when the inputs are there. The tiles promise to stay within a stated memory.

    python -m benchmarks.bench_evaluation [--images 5000] [--captions 5] [--width 512] [--repeats 3]
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.harness import fresh_peak, keep_pages, paired, report
from grainline.evaluation.score import MEMORY, retrieval_ranks
from grainline.types import Encoded

MIB = 2**20


class Dot:
    """The smallest scorer there is."""

    pairwise = False
    blockwise = False

    def precompute(self, images: Encoded) -> Encoded:
        return images

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        return images.vector @ texts.vector.T


class Inputs(NamedTuple):
    """Vectors of images and of their captions."""

    images: Encoded
    texts: Encoded


def inputs(images: int, captions: int, width: int) -> Inputs:
    """Captions scattered around their images, so that ranks spread over the whole range."""
    torch.manual_seed(0)
    image = torch.randn(images, width)
    text = image.repeat_interleave(captions, 0) + 5 * torch.randn(images * captions, width)
    owner = torch.arange(images)
    return Inputs(encoded(image, owner), encoded(text, owner.repeat_interleave(captions)))


def encoded(vector: Tensor, owner: Tensor) -> Encoded:
    empty = torch.zeros(len(vector), 0, vector.shape[1])
    unit = F.normalize(vector, dim=1)
    return Encoded(unit, empty, empty[..., 0].bool(), torch.arange(len(vector)), owner)


def in_tiles(given: Inputs) -> tuple[Tensor, Tensor]:
    """Ranks of images and of captions, our way."""
    both = retrieval_ranks(Dot(), given.images, given.texts)
    return both.i2t.rank, both.t2i.rank


def by_sorting(given: Inputs) -> tuple[Tensor, Tensor]:
    """The usual way: one score matrix, sorted in both directions, positives looked up in the order."""
    score = given.images.vector @ given.texts.vector.T  # [N, M]
    owner, own = given.texts.image, given.images.image
    order = score.argsort(dim=1, descending=True)
    i2t = (owner[order] == own[:, None]).int().argmax(1) + 1
    del order
    order = score.T.argsort(dim=1, descending=True)
    t2i = (own[order] == owner[:, None]).int().argmax(1) + 1
    return i2t, t2i


WAYS = {"tiles": in_tiles, "sorting": by_sorting}


def prepare(way: str, images: int, captions: int, width: int) -> Callable[[], object]:
    """What `fresh_peak` measures: one way, once its inputs are there."""
    given = inputs(images, captions, width)
    torch.ones(300, 300) @ torch.ones(300, 300)  # the libraries' own buffers
    return partial(WAYS[way], given)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--captions", type=int, default=5)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    sizes = (args.images, args.captions, args.width)
    given = inputs(*sizes)
    same = all(torch.equal(a, b) for a, b in zip(in_tiles(given), by_sorting(given), strict=True))
    assert same, "both ways find the same ranks"
    ratio = paired(lambda: in_tiles(given), lambda: by_sorting(given), args.repeats)
    report("evaluation: time of sorting / tiles", ratio, "x", at_least=1.0, sizes=sizes)
    for way in WAYS:
        bound = MEMORY / MIB if way == "tiles" else None
        more = fresh_peak("benchmarks.bench_evaluation:prepare", way, *sizes).more
        report(f"evaluation: memory of {way} beyond the inputs", more, "MiB", at_most=bound, sizes=sizes)


if __name__ == "__main__":
    keep_pages()
    main()
