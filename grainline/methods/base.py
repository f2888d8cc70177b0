"""What every method can do: six verbs, and two optional steps (docs/layout.md).

As it stands here a method is a plain dual encoder: both towers, scored by the cosine of their summaries. Only
`loss` has no default; a method overrides what it does otherwise. What only some methods can do is a protocol
below, which a caller asks for by `isinstance`.
"""

from abc import ABC, abstractmethod
from typing import Protocol, runtime_checkable

import torch.nn.functional as F
from torch import Tensor, einsum, nn

from grainline.data.chunks import Chunking
from grainline.encoders.towers import Towers, TowersConfig
from grainline.methods.patch_selection.types import Kept
from grainline.nn.upsample import on_grid, on_segments
from grainline.types import Clock, Encoded, Images, Pair, Term, Texts


class Method(ABC, nn.Module):
    """Abstract: never instantiated. Subclasses are final: never subclassed again.

    A subclass takes its config as the only argument of its constructor.
    """

    pairwise: bool = False
    """False promises score(a, b) == a.vector @ b.vector.T"""

    distribution: bool = False
    """True promises that every row of `heat` is >= 0 and sums to 1, or to less: what is missing looked at
    nothing. Otherwise heat is signed."""

    gathers: tuple[str, ...] = ("vector", "item", "image")
    """The fields of Encoded that `loss` compares across images: what travels between processes."""

    parts: int = 1
    """The most parts of a text that encode_texts reads: 1 reads texts whole, more read sentences apart."""

    chunking: Chunking | None = None
    """How a text falls into `parts` chunks, for methods that compose them into a whole."""

    matched: bool = True
    """Whether image tokens lie in the space of text vectors, so that their cosines mean something."""

    sees: bool = True
    """Whether training looks at pictures: without, it can learn from captions that have none."""

    describes: bool = False
    """Whether encode_images reads a description of each picture beside its pixels: `Images.dense`."""

    fresh: tuple[str, ...] = ()
    """How names of parameters of the encoders begin that an earlier run may lack, which begins this one."""

    blockwise: bool = False
    """Whether `score` goes over pairs in blocks of its own, and holds no more of a pair than its score."""

    def __init__(self, cfg: TowersConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.towers = Towers(cfg)

    @property
    def size(self) -> int:
        """Side of the square pictures that encode_images reads, in pixels."""
        return self.towers.image.size

    @property
    def grid(self) -> tuple[int, int] | None:
        """Rows and columns of the image tokens; None where they do not lie on a grid.

        A method may have tokens behind these, which have no place.
        """
        return self.towers.image.grid

    @property
    def segmented(self) -> bool:
        """Whether image tokens are segments, and Encoded.places says which pixels are whose."""
        return self.towers.segmented

    @property
    def context(self) -> int:
        """The longest part of a text that encode_texts reads, in tokens."""
        return self.towers.text.context

    @property
    def placed(self) -> bool:
        """Whether image tokens have places in the picture, so that `on_pixels` can show heat there."""
        return self.grid is not None or self.segmented

    def encode_images(self, images: Images) -> Encoded:
        """N pictures -> Encoded of N rows."""
        return self.towers.encode_images(images)

    def encode_texts(self, texts: Texts) -> Encoded:
        """M texts -> Encoded of M rows."""
        return self.towers.encode_texts(texts)

    def meet(self, mine: Pair) -> Pair:
        """What pictures and texts of this process make of each other in training, before others come in.

        Nothing, unless a method says so. It is the place for what needs the tokens of a picture and its own
        texts alone: tokens need not travel then.
        """
        return mine

    def held(self, images: Encoded) -> Encoded:
        """Pictures as `score` reads them fastest, where many texts come one after the other.

        Only the tokens may be others: what is computed of a picture alone. `score` takes both forms, also
        tokens that were kept in half precision; pictures that are held already stay as they are.
        """
        return images

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        """Every image against every text: [N, M], higher is closer. A pair's score knows no other pair.

        Reads vectors, tokens and their masks, which is all that an index keeps, and no `extra`.
        """
        return dot(images, texts)

    @abstractmethod
    def loss(self, mine: Pair, everyone: Pair, clock: Clock) -> dict[str, Term]:
        """What depends on other rows: mine against everyone's. On one process they are the same objects."""

    def row_loss(self, texts: Texts, encoded: Encoded) -> dict[str, Term]:  # noqa: ARG002
        """What depends on one text and its encoding alone, such as a reconstruction; {} if nothing does."""
        return {}

    def heat(self, images: Encoded, texts: Encoded) -> Tensor:
        """Where text i shows in image i: [N, L] over the image tokens.

        Signed cosine of every token with the summary of the text; 0 at masked tokens.
        """
        tokens = F.normalize(images.tokens, dim=-1)
        return einsum("nld,nd->nl", tokens, texts.vector).masked_fill(~images.mask, 0.0)

    def on_pixels(self, images: Encoded, heat: Tensor, size: tuple[int, int]) -> Tensor:
        """Heat over image tokens [N, L] as heat over the square that the method sees: [N, H, W].

        images  [N] with their tokens
        size    (H, W) of the answer

        Tokens on a grid are interpolated between their centres. A segment has one heat all over, and
        segments meet at sharp borders; a smaller answer holds their means.
        """
        if self.segmented:
            assert images.places is not None, "segments without places"
            return on_segments(heat, images.places, size)
        assert self.grid is not None, "image tokens without places; ask `placed` first"
        return on_grid(heat[:, : self.grid[0] * self.grid[1]], self.grid, size)


@runtime_checkable
class Seeing(Protocol):
    """A method with image vectors that depend on a text."""

    def see(self, images: Encoded, texts: Encoded) -> Tensor:
        """Picture i as text i sees it: [N, D], unit length. images need their tokens."""


@runtime_checkable
class Attending(Protocol):
    """A method whose texts look at image tokens, or at an empty slot beside them."""

    def attend(self, images: Encoded, texts: Encoded) -> Tensor:
        """Where each part of text i looks in image i: [N, S, L + 1], the empty slot last.

        A part has a sum of 1; a place without a part has zeros.
        """


@runtime_checkable
class Grouping(Protocol):
    """A method that puts the tokens of a text into groups."""

    def groups(self, texts: Texts) -> Tensor:
        """How much of each token every group takes: [M, K, L], without noise.

        L counts the tokens of all parts of a text, one part behind the other, as `flat_parts` has them. The
        column of a real token sums to 1; that of padding is 0. Groups that a text does not use stand behind
        those that it does, and take nothing.
        """


@runtime_checkable
class Keeping(Protocol):
    """A method that compares the words of a text with some of the patches of a picture, by its choice."""

    def keeps(self, images: Encoded, texts: Encoded) -> Kept:
        """What stays of picture i for text i in its score, and what its words find there.

        images  as `encode_images` leaves them
        """


@runtime_checkable
class Stating(Protocol):
    """A method that tells the state of every token of a text, where `Encoded.tokens` are something else."""

    def states(self, texts: Texts) -> Tensor:
        """[M, L, W] before any projection, with L as in `Grouping.groups`; outside training"""


def dot(images: Encoded, texts: Encoded) -> Tensor:
    """Cosine of the two summaries: [N, M]."""
    return images.vector @ texts.vector.T
