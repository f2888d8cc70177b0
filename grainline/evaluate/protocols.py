"""Protocols: which rows of a dataset are compared with which.

plain         every picture and every caption
coco-5k       5,000 pictures with the first five captions of each
coco-1k       the same, cut into five folds of 1,000 pictures in file order; metrics are means over the folds
flickr30k-1k  1,000 pictures with the first five captions of each, as in the test split of Karpathy

Two sets of 5,000 COCO pictures are in use: the test split of Karpathy (from val2014) and val2017. Their
numbers cannot be compared, so a result says which of them the names of the pictures point to.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from grainline.errors import UserError
from grainline.types import Encoded

PROTOCOLS = ("plain", "coco-5k", "coco-1k", "flickr30k-1k")
PICTURES, CAPTIONS, FOLD = 5000, 5, 1000
FLICKR = 1000  # pictures of Flickr30k


class Fold(NamedTuple):
    """Rows that are compared with each other and with nothing else."""

    images: Tensor  # [n] int64, rows of the images
    texts: Tensor  # [m] int64, rows of the texts


def folds(protocol: str, images: Encoded, texts: Encoded, where: str = "the data") -> list[Fold]:
    """The folds of a protocol, in the order of the rows.

    images  N rows in file order; texts  M rows in file order

    Raises UserError if the protocol is unknown, or the data do not hold what it asks for.
    """
    if protocol not in PROTOCOLS:
        raise UserError(f"protocol is {protocol!r}; allowed: {', '.join(PROTOCOLS)}")
    n, m = len(images.image), len(texts.image)
    if protocol == "plain":
        return [Fold(torch.arange(n), torch.arange(m))]
    pictures = FLICKR if protocol == "flickr30k-1k" else PICTURES
    if n != pictures:
        raise UserError(f"{n} pictures in {where}; {protocol} needs exactly {pictures}")
    kept = first_captions(images.image, texts.image, CAPTIONS)
    if len(kept) != pictures * CAPTIONS:
        short = int(
            (
                torch.bincount(texts.image[kept], minlength=int(images.image.max()) + 1)[images.image]
                < CAPTIONS
            ).sum()
        )
        raise UserError(
            f"{short} pictures in {where} have fewer than {CAPTIONS} captions; {protocol} needs {CAPTIONS} "
            "of each, as separate texts (captions: each)"
        )
    size = FOLD if protocol == "coco-1k" else pictures
    owner = texts.image[kept]
    return [
        Fold(torch.arange(i, i + size), kept[torch.isin(owner, images.image[i : i + size])])
        for i in range(0, n, size)
    ]


def first_captions(images: Tensor, owner: Tensor, number: int) -> Tensor:
    """Rows of the first captions of every picture, in their own order.

    images  [N] ids of the pictures; owner  [M] id of the picture of every text

    >>> first_captions(torch.tensor([7, 3]), torch.tensor([7, 7, 3, 7, 3]), number=2)
    tensor([0, 1, 2, 4])
    """
    wanted = set(images.tolist())
    seen: dict[int, int] = {}
    out = []
    for row, image in enumerate(owner.tolist()):
        seen[image] = seen.get(image, 0) + 1
        if image in wanted and seen[image] <= number:
            out.append(row)
    return torch.tensor(out, dtype=torch.int64)


def coco_split(keys: Sequence[str]) -> str:
    """Which 5,000 pictures of COCO the names point to.

    >>> coco_split(["COCO_val2014_000000391895", "COCO_val2014_000000060623"])
    'coco-karpathy'
    >>> coco_split(["000000000139", "000000000285"])
    'coco-val2017'
    >>> coco_split(["a", "b"])
    'unknown: the names of the pictures are not those of COCO'
    """
    if all(re.search(r"COCO_val2014_\d{12}", key) for key in keys):
        return "coco-karpathy"
    if all(re.search(r"(^|/)\d{12}(\.\w+)?$", key) for key in keys):
        return "coco-val2017"
    return "unknown: the names of the pictures are not those of COCO"
