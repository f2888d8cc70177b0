"""Random numbers from hashes of ids: the same in any order, batch and number of processes.

Numbers as if at random, from a hash of ids: the same in any batch, in any chunk and on any process.

No generator has a state to keep, and the same ids give the same number however often it is computed, which is
what recomputation needs.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from grainline.types import Clock


def hash_pairs(clock: Clock, rows: Tensor, cols: Tensor) -> Tensor:
    """A number for each pair of ids [n] and [G], as if at random in 0..2**63 - 1: [n, G] int64"""
    start = mixed(mixed(torch.full_like(rows[:1], _signed(clock.seed))) ^ clock.step)
    return mixed(mixed(start ^ rows)[:, None] ^ mixed(cols + GOLDEN)) & (2**63 - 1)


def share_of(lot: Tensor) -> Tensor:
    """Random integers as float32 numbers strictly between 0 and 1, of the same shape."""
    return ((lot & (2**BITS - 1)).float() + 0.5) / 2**BITS


BITS = 23  # half a step below 1 is then still a number of float32


def _signed(x: int) -> int:
    """The 64-bit integer with the same last 64 bits.

    >>> _signed(2**64 - 1), _signed(7)
    (-1, 7)
    """
    return (x + 2**63) % 2**64 - 2**63


GOLDEN = _signed(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio
FIRST, SECOND = _signed(0xFF51AFD7ED558CCD), _signed(0xC4CEB9FE1A85EC53)


def mixed(x: Tensor) -> Tensor:
    """The last steps of MurmurHash3, int64 to int64, one to one: every bit depends on every bit."""
    for factor in (FIRST, SECOND):
        x = (x ^ (x >> 33 & (2**31 - 1))) * factor  # a shift of an int64 repeats its sign: cut that off
    return x ^ (x >> 33 & (2**31 - 1))


# Random numbers of layers in training, from a hash of seed, step, row and place in the model.
#
# A row of a batch has the same noise wherever it stands: among other rows, in a chunk, on any process, and
# when its activations are computed again. For that a layer has to know which rows it works on:
#
#     with rows_of(clock, IMAGES, images.image):     # once around the encoding of a batch, or of a chunk of
# it ... with some_rows(order): ...                 # where an encoder reads them in another order with
# parts_of_rows(4): ...                 # where each row becomes several
#
# Layers draw with `drawn`, `Dropout` and `DropPath`. Outside such a block they draw from torch's generator,
# as layers do elsewhere. Rows of equal ids have equal noise.


IMAGES, TEXTS = 0, 1
"""The sides of a batch: an image and a text of the same id have noise of their own."""


class Rows(NamedTuple):
    """Which rows the layers work on just now."""

    start: Tensor  # [1] int64, a hash of seed, step and side
    key: Tensor  # [N] int64, a hash of these and of the id of each row


class _Now:
    """Not a context variable, which a compiled layer cannot read. One process trains one model at a time."""

    rows: Rows | None = None


def present() -> Rows | None:
    """The rows of the innermost block, for whoever calls a layer again later; None outside all blocks."""
    return _Now.rows


@contextmanager
def using(rows: Rows | None) -> Iterator[None]:
    """Layers called inside work on these rows."""
    before, _Now.rows = _Now.rows, rows
    try:
        yield
    finally:
        _Now.rows = before


@contextmanager
def rows_of(clock: Clock, side: int, ids: Tensor) -> Iterator[None]:
    """Layers called inside work on the rows with these ids [N], at this step of a run."""
    start = hash_pairs(clock, ids.new_full((1,), side), ids.new_zeros(1))[0]
    with using(Rows(start, mixed(start ^ mixed(ids + GOLDEN)))):
        yield


@contextmanager
def some_rows(index: Tensor, of: int | None = None) -> Iterator[None]:
    """Layers called inside work on the rows of this order [n].

    of  the number of rows that `index` counts. Where the present rows are of another number, nobody said
        which rows these are, and a layer that draws inside ends with an error; others work as ever
    """
    now = _Now.rows
    known = now is not None and of in (None, len(now.key))
    with using(now and Rows(now.start, now.key[index] if known else now.key[:0])):
        yield


@contextmanager
def parts_of_rows(number: int) -> Iterator[None]:
    """Layers called inside work on so many parts of each row, all of the first row first."""
    now = _Now.rows
    with using(now and Rows(now.start, _inside(now.key, number).flatten())):
        yield


@contextmanager
def equal_texts(ids: Tensor, mask: Tensor) -> Iterator[None]:
    """Layers called inside work on texts that are read once for all rows that hold them.

    ids, mask  [n, L]

    Their noise depends on their tokens, because which row brought a text depends on the batch.
    """
    now = _Now.rows
    token = mixed(mixed(ids) ^ mixed(torch.arange(ids.shape[1], device=ids.device) + GOLDEN))
    content = (token * mask).sum(1)  # padding, however long, adds nothing
    with using(now and Rows(now.start, mixed(now.start ^ content))):
        yield


def number_places(model: nn.Module) -> None:
    """Tell every module its place in a model, from its name: no two draw the same numbers then."""
    for name, module in model.named_modules():
        digest = hashlib.blake2b(name.encode(), digest_size=7).digest()
        module.place = int.from_bytes(digest, "big")


def drop_by_rows(model: nn.Module) -> None:
    """Replace each nn.Dropout inside a model by `Dropout`, in place."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, Dropout(child.p).train(child.training))


def drawn(module: nn.Module, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Random 64-bit integers for a module and the present rows: [N * k, ...] int64, at most three axes more

    A row that was cut into k parts has them one after the other. Numbers depend on their place along each
    axis and not on how long the axes are, so that padding at their ends changes nothing.
    """
    now = _Now.rows
    if now is None:
        return mixed(torch.randint(-(2**62), 2**62, shape, device=device))
    whole = max(1, len(now.key))
    number, over = shape[0] // whole, shape[0] % whole  # a compiler cannot trace divmod of unknown sizes
    if over or (shape[0] and not len(now.key)):
        raise ValueError(f"{shape[0]} rows cannot be parts of {len(now.key)}: say which rows they are")
    place: int = getattr(module, "place", 0)
    index = torch.zeros((), dtype=torch.int64, device=device)
    for size in (number, *shape[1:]):
        index = (index << 16)[..., None] + torch.arange(size, device=device)
    key = mixed(now.key ^ place)
    return mixed(key.view(-1, *[1] * index.dim()) ^ mixed(index + GOLDEN)).view(shape)


def shares(module: nn.Module, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """The same as numbers strictly between 0 and 1: float32"""
    return share_of(drawn(module, shape, device))


def stays(module: nn.Module, shape: tuple[int, ...], device: torch.device, p: float) -> Tensor:
    """True with a chance of 1 - p, for p in steps of 2**-16: bool of a shape

    Every hash serves four neighbours along the last axis.
    """
    *front, last = shape
    four = drawn(module, (*front, -(-last // 4)), device).view(torch.int16)[..., :last]
    return four.int() >= round(p * 2**16) - 2**15


def dropped(module: nn.Module, x: Tensor, p: float) -> Tensor:
    """x [N * k, ...] with a share p of its values 0 and the others larger, so that the mean stays."""
    share = 1.0 - round(p * 2**16) / 2**16
    if share == 0.0:
        return torch.zeros_like(x)
    return x * stays(module, tuple(x.shape), x.device, p) / share


class Dropout(nn.Module):
    """nn.Dropout whose noise belongs to the rows of a batch, wherever they stand."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """x [N * k, ...] -> the same shape"""
        return dropped(self, x, self.p) if self.training and self.p else x

    def extra_repr(self) -> str:
        return f"p={self.p}"


class DropPath(nn.Module):
    """In training a share of the rows skips a branch (Huang et al., arXiv 1603.09382)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, branch: Tensor) -> Tensor:
        """branch [N * k, ...] -> the same, 0 in the rows that skip it and larger in the others"""
        if not self.training or self.rate == 0.0:
            return branch
        keep = 1.0 - self.rate
        kept = shares(self, (len(branch),), branch.device) < keep
        return branch * (kept / keep).to(branch.dtype).view(-1, *[1] * (branch.dim() - 1))

    def extra_repr(self) -> str:
        return f"rate={self.rate}"


def _inside(key: Tensor, number: int) -> Tensor:
    """Keys of so many parts of each row: [N, number]"""
    return mixed(key[:, None] ^ mixed(torch.arange(number, device=key.device) + GOLDEN))


# Noise for pairs, from a hash of ids: it knows neither the order of a batch nor the number of processes.
#
# The same pair gets the same noise however often it is computed, which is what recomputation needs.


def logistic(clock: Clock, image: Tensor, item: Tensor, number: int) -> Tensor:
    """Numbers as if drawn from the logistic distribution: [n, t, number] float32

    image  [n] ids of images; item [1, t] or [n, t] ids of texts, or -1 for noise of the image alone

    They depend on seed, step, both ids and the place alone.
    """
    place = torch.arange(number, device=image.device)
    of_image = hash_pairs(clock, image, image.new_zeros(1))  # [n, 1]
    key = mixed(of_image ^ mixed(item + GOLDEN))
    share = share_of(mixed(key[..., None] ^ mixed(place + GOLDEN)))
    return share.log() - (-share).log1p()
