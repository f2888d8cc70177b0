"""Random numbers from hashes of ids: the same in any order, batch and number of processes.

No generator has a state, and the same ids give the same number again, as recomputation needs. Layers draw
with `random_bits`, `Dropout` and `DropPath`, and have to know which rows they work on:

    with rows_of(clock, IMAGES, images.image):     # around the encoding of a batch, or of a chunk of it
        with some_rows(order): ...                 # an encoder reads them in another order
        with parts_of_rows(4): ...                 # each row becomes several

Rows of equal ids have equal noise. Outside such a block layers draw from torch's generator.
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
    """The 64-bit integer with the same last 64 bits."""
    return (x + 2**63) % 2**64 - 2**63


GOLDEN = _signed(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio
FIRST, SECOND = _signed(0xFF51AFD7ED558CCD), _signed(0xC4CEB9FE1A85EC53)


def mixed(x: Tensor) -> Tensor:
    """The last steps of MurmurHash3, int64 to int64, one to one: every bit depends on every bit."""
    for factor in (FIRST, SECOND):
        x = (x ^ (x >> 33 & (2**31 - 1))) * factor  # a shift of an int64 repeats its sign: cut that off
    return x ^ (x >> 33 & (2**31 - 1))


IMAGES, TEXTS = 0, 1  # the sides of a batch: an image and a text of the same id have different noise


class Rows(NamedTuple):
    """The rows that the layers work on now."""

    start: Tensor  # [1] int64, a hash of seed, step and side
    key: Tensor  # [N] int64, a hash of these and of the id of each row


class _Now:
    """Not a context variable, which a compiled layer cannot read. One process trains one model at a time."""

    rows: Rows | None = None


def present() -> Rows | None:
    """The rows of the innermost block, to use again when a layer is called later; None outside all blocks."""
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
def some_rows(index: Tensor, number: int | None = None) -> Iterator[None]:
    """Layers called inside work on the rows of this order [n].

    number  of rows that `index` counts. Where there are more or fewer, a layer that draws raises an error
    """
    now = _Now.rows
    known = now is not None and number in (None, len(now.key))
    with using(now and Rows(now.start, now.key[index] if known else now.key[:0])):
        yield


@contextmanager
def parts_of_rows(number: int) -> Iterator[None]:
    """Layers called inside work on so many parts of each row, all of the first row first."""
    now = _Now.rows
    if now is not None:
        part = mixed(torch.arange(number, device=now.key.device) + GOLDEN)
        now = Rows(now.start, mixed(now.key[:, None] ^ part).flatten())
    with using(now):
        yield


@contextmanager
def equal_texts(ids: Tensor, mask: Tensor) -> Iterator[None]:
    """Layers called inside work on texts (ids, mask [n, L]) that are read once for all their rows.

    Their noise depends on their tokens, because the row that a text comes from depends on the batch.
    """
    now = _Now.rows
    token = mixed(mixed(ids) ^ mixed(torch.arange(ids.shape[1], device=ids.device) + GOLDEN))
    content = (token * mask).sum(1)  # padding, however long, adds nothing
    with using(now and Rows(now.start, mixed(now.start ^ content))):
        yield


def number_places(model: nn.Module) -> None:
    """Number every module by its name, so that no two draw the same numbers."""
    for name, module in model.named_modules():
        digest = hashlib.blake2b(name.encode(), digest_size=7).digest()
        module.place = int.from_bytes(digest, "big")


def drop_by_rows(model: nn.Module) -> None:
    """Replace each nn.Dropout inside a model by `Dropout`, in place."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, Dropout(child.p).train(child.training))


def has_noise(model: nn.Module) -> bool:
    """Whether a layer inside a model drops something in training."""
    return any(getattr(layer, "p", 0) or getattr(layer, "rate", 0) for layer in model.modules())


def random_bits(module: nn.Module, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Random 64-bit integers for a module and the present rows: [N * k, ...] int64, at most three axes more

    The k parts of a row follow each other. Numbers depend on their index along each axis and not on its
    length, so padding at the ends changes nothing.
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
    """Numbers strictly between 0 and 1: float32"""
    return share_of(random_bits(module, shape, device))


def stays(module: nn.Module, shape: tuple[int, ...], device: torch.device, p: float) -> Tensor:
    """True with a chance of 1 - p, p in steps of 2**-16; a hash serves four neighbours of the last axis."""
    *front, last = shape
    four = random_bits(module, (*front, -(-last // 4)), device).view(torch.int16)[..., :last]
    return four.int() >= round(p * 2**16) - 2**15


def dropped(module: nn.Module, x: Tensor, p: float) -> Tensor:
    """x [N * k, ...] with a share p of its values 0 and the others scaled up, so that the mean stays."""
    share = 1.0 - round(p * 2**16) / 2**16
    if share == 0.0:
        return torch.zeros_like(x)
    return x * stays(module, tuple(x.shape), x.device, p) / share


class Dropout(nn.Module):
    """nn.Dropout whose noise belongs to the rows of a batch."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropped(self, x, self.p) if self.training and self.p else x

    def extra_repr(self) -> str:
        return f"p={self.p}"


class DropPath(nn.Module):
    """Stochastic depth: in training a share of the rows skips a branch (Huang et al., arXiv 1603.09382)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, branch: Tensor) -> Tensor:
        if not self.training or self.rate == 0.0:
            return branch
        keep = 1.0 - self.rate
        keeps = shares(self, (len(branch),), branch.device) < keep
        return branch * (keeps / keep).to(branch.dtype).view(-1, *[1] * (branch.dim() - 1))

    def extra_repr(self) -> str:
        return f"rate={self.rate}"


def logistic(clock: Clock, image: Tensor, item: Tensor, number: int) -> Tensor:
    """Noise of pairs from the logistic distribution: [n, t, number] float32

    image  [n] ids of images; item [1, t] or [n, t] ids of texts, or -1 for noise of the image alone
    """
    place = torch.arange(number, device=image.device)
    of_image = hash_pairs(clock, image, image.new_zeros(1))  # [n, 1]
    key = mixed(of_image ^ mixed(item + GOLDEN))
    share = share_of(mixed(key[..., None] ^ mixed(place + GOLDEN)))
    return share.log() - (-share).log1p()
