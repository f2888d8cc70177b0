"""AN ORACLE, no measure of retrieval: every caption brings a description of the image it was written for.

    python -m benchmarks.oracle.seps RUN --data DEV... --descriptions FILE [--json OUT]

The published scores of SEPS look like S(i, j) = f(image i, caption j) + f(image i, description of the
image that caption j belongs to), which gives the answer away (docs/methods/seps.md). This script scores a
trained `seps` that way, to show the marks that it leaves: the captions of one image tie, so that with five
of them descriptions alone have the same recall at 1 and at 5, and one wrong image's captions fill the first
five places, so that recall at 5 from images is below that from texts. Nothing else in the project scores
like this.

RUN has `branches: sparse`, so that f is selection by whatever text is given and no image has a description.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from grainline import load
from grainline.data.descriptions import Descriptions
from grainline.data.open_source import open_sources
from grainline.errors import UserError
from grainline.evaluation.encode import encode_source
from grainline.evaluation.statistics import ranks

DEPTHS = (1, 3, 5, 10)
HONEST, ALONE, ADDED = "captions", "descriptions (oracle)", "both (oracle)"
BANNER = "ORACLE: captions bring descriptions of their own images. These are no retrieval results."


class Recalls(NamedTuple):
    """Shares of queries whose right answer is among the first 1, 3, 5 and 10."""

    i2t: tuple[float, ...]
    t2i: tuple[float, ...]


class Measured(NamedTuple):
    """With the oracle and without."""

    recalls: dict[str, Recalls]  # by HONEST, ALONE, ADDED
    captions: int  # of each image, at least


def by_owner(score: Tensor, owner: Tensor) -> Tensor:
    """Scores of images with descriptions [N, N], as every caption has them that belongs to one: [N, M]"""
    return score[:, owner]


def recalls(score: Tensor, owner: Tensor) -> Recalls:
    """score [N, M], owner [M] the image of each caption; ties are wrong.

    >>> dense = torch.tensor([[0.9, 0.2, 0.1], [0.8, 0.7, 0.1], [0.3, 0.2, 0.6]])
    >>> owner = torch.arange(3).repeat_interleave(5)
    >>> found = recalls(by_owner(dense, owner), owner)
    >>> [round(100 * x, 1) for x in (*found.i2t, *found.t2i)]
    [66.7, 66.7, 66.7, 100.0, 100.0, 100.0, 100.0, 100.0]
    """
    positive = owner == torch.arange(len(score))[:, None]
    both = ranks(score, positive).rank, ranks(score.T, positive.T).rank
    return Recalls(*(tuple((rank <= k).float().mean().item() for k in DEPTHS) for rank in both))


def fingerprint(alone: Recalls, both: Recalls, captions: int = 5) -> dict[str, bool]:
    """The two marks of the oracle, where every image has so many captions."""
    tied = max(place for place, k in enumerate(DEPTHS) if k <= captions)
    at = DEPTHS.index(5)
    return {
        f"descriptions alone: image to text R@1 = R@{DEPTHS[tied]}": alone.i2t[0] == alone.i2t[tied],
        "with captions: image to text R@5 below text to image R@5": both.i2t[at] < both.t2i[at],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=BANNER)
    parser.add_argument("run")
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--descriptions", required=True)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    print(BANNER)
    try:
        found = measured(args.run, args.data, args.descriptions)
    except UserError as error:
        sys.exit(f"oracle: {error}")
    for name, one in found.recalls.items():
        print(f"{name:34s} {' '.join(f'{100 * x:5.1f}' for x in (*one.i2t, *one.t2i))}")
    alone, both = found.recalls[ALONE], found.recalls[ADDED]
    for mark, there in fingerprint(alone, both, found.captions).items():
        print(f"{mark}: {'yes' if there else 'no'}")
    if args.json:
        args.json.write_text(json.dumps({name: one._asdict() for name, one in found.recalls.items()}))


def measured(run: str, data: list[str], file: str) -> Measured:
    """Recalls of captions alone, which are no oracle, of descriptions alone, and of both added up."""
    model = load(run, device="cpu")
    if model.description.method != "seps" or model.method.reads_descriptions:
        raise UserError(f"{run} is no seps with branches: sparse, so its images know descriptions already")
    source, told = open_sources(data), Descriptions([file])
    encoded = encode_source(model, source, captions="each")
    descriptions = model.encode(texts=[told.require(key) for key in encoded.keys])
    owner = encoded.texts.image
    with torch.no_grad():
        images = model.method.precompute(encoded.images)
        captions = model.method.score(images, encoded.texts)
        dense = by_owner(model.method.score(images, descriptions), owner)
    scores = {HONEST: captions, ALONE: dense, ADDED: captions + dense}
    fewest = int(owner.bincount(minlength=len(dense)).min())
    return Measured({name: recalls(score, owner) for name, score in scores.items()}, fewest)


if __name__ == "__main__":
    main()
