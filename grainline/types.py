"""A batch, and the result of an encoder.

Letters used for shapes in every file of the package:
    N images   M texts   S parts of a text   L tokens   D shared width   W width of an encoder
    H, W (after a 3) height and width of an image in pixels   G side of the patch grid
    n, m       rows of this rank, when N, M are the rows of all ranks
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

LEVELS = 5
CAPTION, SENTENCE, PHRASE, FOIL, LOOSE = range(LEVELS)  # Texts.level
SMALL = 2**22  # bytes; large tensors are pinned where they are made, or not at all


class Texts(NamedTuple):
    """All texts of a batch in one flat list, whatever image they describe.

    Texts of different granularity are different rows. An encoder composes the S parts of one row into one
    whole (the chunks of a long caption in CAFT; S is 1 elsewhere).

    A foil (hard negative) is a row with its own `item` and `image` = -1: it is a candidate for every
    image and a positive of none. A padding row has `item` = -1 as well, and is not even a candidate.

    A loose caption is a row of one part: a few sentences of a longer description, true but not the whole.
    """

    ids: Tensor  # [M, S, L] int64
    mask: Tensor  # [M, S, L] bool, True = real token
    item: Tensor  # [M] int64, id of the text itself; -1 = padding row
    image: Tensor  # [M] int64, id of the image it describes; -1 = describes none of them
    level: Tensor  # [M] int64, one of CAPTION, SENTENCE, PHRASE, FOIL, LOOSE


class Images(NamedTuple):
    """Images as they leave the loader; encoders normalise them, as mean and std belong to the weights."""

    # [N, 3, H, W] uint8 in 0..255, or float in 0..1; H and W are 0 with features. For encoders of images of
    # any shape (NaFlex) [N, 3, 1 + L, p * p]: row 0 begins with the numbers of rows and columns of patches,
    # each as two digits of base 256; then every patch is a row, in reading order, and 0 fills up.
    pixels: Tensor
    image: Tensor  # [N] int64, id in the dataset
    regions: Tensor | None = None  # [N, H, W] int64 superpixel labels (CAFT)
    dense: Texts | None = None  # [N, S, L] description of each image, in S windows, for methods that read it
    features: Tensor | None = None  # [N, 1 + L, W] output of a frozen encoder: summary, then tokens


class Encoded(NamedTuple):
    """One side of the comparison. Losses, indexes and metrics see only this."""

    vector: Tensor  # [N, D] unit length: all that an index has to store
    tokens: Tensor  # [N, L, D] patches, regions, words, parts or groups; L may be 0
    mask: Tensor  # [N, L] bool, True = real token
    item: Tensor  # [N] int64, id of the row itself; -1 = padding row
    image: Tensor  # [N] int64, id of the image behind the row; -1 = none
    extra: Any = None  # a NamedTuple of further tensors [N, ...] that only this method reads
    places: Tensor | None = None  # [N, H, W] token of each pixel, for images whose tokens lie on no grid
    precomputed: Any = None  # a NamedTuple of tensors [N, ...] in place of tokens and extra in `Method.score`
    truncated: Tensor | None = None  # [N] bool, texts longer than the method reads, or such descriptions

    def __repr__(self) -> str:  # shapes: numbers would fill screens
        shapes = (f"{name} {list(x.shape)}" for name, x in self._asdict().items() if isinstance(x, Tensor))
        return f"Encoded({', '.join(shapes)})"


class Pair(NamedTuple):
    """Both sides of one batch."""

    images: Encoded
    texts: Encoded


class Clock(NamedTuple):
    """Time of a loss: for warm-ups, and for random choices that must not depend on the rank."""

    step: int = 0
    epoch: float = 0.0
    seed: int = 0


class Mean(NamedTuple):
    """A mean in two halves, so that ranks with different numbers of rows still add up."""

    total: Tensor  # []
    number: Tensor  # [] of rows that were summed


class Term(NamedTuple):
    """One summand of a loss, or a number that is logged with it."""

    weight: float | None  # None: a fact, such as a norm; it is logged and never minimised
    mean: Mean | Any  # or a scalar: the mean over the rows of this process, or of `row_loss`

    def over(self, rows: int) -> "Term":
        """The term with its scalar as the mean over so many rows."""
        if isinstance(self.mean, Mean):
            return self
        if getattr(self.mean, "ndim", 1):
            raise TypeError("a Term takes a scalar tensor, or Mean(total, number)")
        number = torch.full_like(self.mean, float(rows)).detach()
        return Term(self.weight, Mean(self.mean * rows, number))


def description_texts(windows: list[list[list[int]]], image: Tensor) -> Texts:
    """`Images.dense` from the token ids [image][window][token]. image: [N] int64, ids of the images"""
    return Texts(*padded(windows), image, image, torch.zeros_like(image))


def texts_of(encoded: list[list[list[int]]]) -> Texts:
    """Texts from token ids [text][part][token]: numbered from 0, captions of no particular image."""
    number = torch.arange(len(encoded))
    return Texts(*padded(encoded), number, torch.full_like(number, -1), torch.zeros_like(number))


def padded(texts: list[list[list[int]]]) -> tuple[Tensor, Tensor]:
    """Ids and mask [M, S, L] of texts, parts and tokens, with padding on the right of each."""
    parts = max((len(text) for text in texts), default=1)
    length = max((len(part) for text in texts for part in text), default=1)
    lengths = [[len(part) for part in text] + [0] * (parts - len(text)) for text in texts]
    mask = torch.arange(length) < torch.tensor(lengths, dtype=torch.int64).view(len(texts), parts, 1)
    ids = torch.zeros(mask.shape, dtype=torch.int64)
    ids[mask] = torch.tensor([i for text in texts for part in text for i in part], dtype=torch.int64)
    return ids, mask


def each(f: Callable[[Tensor], Tensor], batch: T) -> T:
    """Apply f to every tensor of nested NamedTuples; everything else stays as it is."""
    out: Any = batch
    if isinstance(batch, Tensor):
        out = f(batch)
    elif isinstance(batch, tuple):
        out = type(batch)(*(each(f, field) for field in batch))
    return out


def rows(batch: T, index: Tensor | slice) -> T:
    """The rows of every tensor at an index."""
    return each(lambda x: x[index], batch)


def concat(batches: Sequence[T]) -> T:
    """Stack NamedTuples of equal trailing shapes along their rows.

    >>> one, two = Pair(torch.zeros(1), torch.zeros(2)), Pair(torch.ones(1), torch.ones(1))
    >>> concat([one, two]).texts
    tensor([0., 0., 1.])
    """
    if len(batches) == 1:
        return batches[0]
    first: Any = batches[0]
    out: Any = first
    if isinstance(first, Tensor):
        out = torch.cat([x for x in batches if isinstance(x, Tensor)])
    elif isinstance(first, tuple):
        parts: list[Any] = list(batches)
        out = type(first)(*(concat([part[i] for part in parts]) for i in range(len(first))))
    return out


def to(batch: T, device: torch.device | str) -> T:
    """Every tensor on the device. A copy to a GPU does not wait for earlier work there."""
    return each(lambda x: _sent(x, torch.device(device)), batch)


def _sent(x: Tensor, device: torch.device) -> Tensor:
    if device.type == "cuda" and x.device.type == "cpu" and x.nbytes <= SMALL:
        x = x.pin_memory()  # from other memory the driver may wait
    return x.to(device, non_blocking=True)


def to_dtype(batch: T, dtype: torch.dtype) -> T:
    """Convert every floating-point tensor; others stay as they are."""
    return each(lambda x: x.to(dtype) if x.is_floating_point() else x, batch)


def finite(x: Tensor) -> bool:
    """Whether no number is NaN or infinite, in one pass and without memory of its own."""
    if not x.is_floating_point() or not x.numel():
        return True
    return all(map(math.isfinite, (x.float() if x.itemsize == 1 else x).detach().aminmax()))


def full(x: Tensor) -> Tensor:
    """x in float32 if it was half precision, else as it is: for sums, softmaxes and cosines."""
    return x.to(torch.promote_types(x.dtype, torch.float32)) if x.is_floating_point() else x


def vectors_only(encoded: Encoded) -> Encoded:
    """The same rows with their vectors alone: 1 kB a row instead of hundreds."""
    tokens, mask = encoded.tokens[:, :0], encoded.mask[:, :0]
    return encoded._replace(tokens=tokens, mask=mask, extra=None, places=None, precomputed=None)


def without_places(encoded: Encoded) -> Encoded:
    """The same rows without `places`, which are a byte a pixel or more and which scores do not read."""
    return encoded._replace(places=None)


def same_image(a: Encoded, b: Encoded) -> Tensor:
    """The pairs of rows of the same image: [len(a), len(b)] bool. Padding and foils match nothing."""
    return (a.image[:, None] == b.image[None]) & (a.image >= 0)[:, None]
