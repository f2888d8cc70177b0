"""The interface of a method: six verbs and seven optional ones.

`Method` is a plain dual encoder: two towers, scored by the cosine of their vectors. Only `loss` has no
default. Of the optional verbs, `fit`, `before_gather` and `precompute` have defaults too; others belong to
protocols, which callers check by `isinstance`: `TextConditioned`, `HasAttention`, `HasTokenGroups`, and
`SelectsPatches` in `nn/patch_selection/selector.py`.
"""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from torch import Tensor, einsum, nn

from grainline.data.texts import Chunking, balanced_chunks
from grainline.encoders.towers import Towers, TowersConfig
from grainline.errors import UserError
from grainline.nn.pooling import mean_pool
from grainline.types import Clock, Encoded, Images, Pair, Term, Texts


class Method(ABC, nn.Module):
    """Abstract. The class of a method takes its config as the only argument."""

    config_class: ClassVar[type[TowersConfig]]
    """The config of the subclass: the options of a recipe under `model`."""

    pairwise: bool = False
    """False promises score(a, b) == a.vector @ b.vector.T"""

    heat_is_distribution: bool = False
    """True promises that every row of `heat` is >= 0 and sums to 1, or to less where the text attends to an
    empty slot. Otherwise heat is signed."""

    gathers: tuple[str, ...] = ("vector", "item", "image")
    """Fields of Encoded that `loss` compares across images; the others are not sent to other processes."""

    parts: int = 1
    """Most parts of a text that `encode_texts` reads: 1 reads texts whole, more read sentences separately."""

    by_sentence: bool = False
    """Whether the vector of a text is the mean of those of its parts, which are then its tokens."""

    mean_of_parts: bool = False
    """Whether the score of a text is the mean of the scores of its parts, each compared by itself."""

    empty_part: bool = False
    """Whether it is that mean with one part more, which scores 0."""

    chunking: Chunking | None = None
    """How a text is split into `parts` chunks, for methods that compose them into a whole."""

    tokens_in_text_space: bool = True
    """Whether image tokens lie in the space of text vectors, so that their cosines mean something."""

    uses_images: bool = True
    """Whether training reads images. If not, captions without images can be trained on."""

    reads_descriptions: bool = False
    """Whether `encode_images` reads a description of each image besides its pixels: `Images.dense`."""

    reads_words: bool = True
    """Whether training reads the states of words. If not, the summary of a cached text is enough."""

    new_parameters: tuple[str, ...] = ()
    """Prefixes of parameters of the encoders that may be missing in the run that `init_from` names."""

    precomputed_class: ClassVar[Any] = None
    """The NamedTuple that `precompute` returns as `Encoded.precomputed`; None: there is none."""

    averaged: bool
    """Whether an image's vector is the unit mean of its tokens; not with an own `encode_images`."""

    blockwise: bool = False
    """Whether `score` goes over pairs in blocks, and holds no more of a pair than its score."""

    first_images: int = 0
    """How many training images `fit` reads before the first step, each with its texts."""

    cache: Path | None = None
    """The folder where training keeps what frozen encoders give, and methods what they compute from it."""

    def __init__(self, cfg: TowersConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.towers = Towers(cfg)
        self.averaged = self.towers.averaged and type(self).encode_images is Method.encode_images

    @property
    def size(self) -> int:
        """Side of the square images that `encode_images` reads, in pixels."""
        return self.towers.image.size

    @property
    def grid(self) -> tuple[int, int] | None:
        """Rows and columns of the image tokens; None where they do not lie on a grid."""
        return self.towers.image.grid

    @property
    def segmented(self) -> bool:
        """Whether image tokens are segments; `Encoded.places` has the segment of each pixel then."""
        return self.towers.segmented

    @property
    def context(self) -> int:
        """The longest part of a text that `encode_texts` reads, in tokens."""
        return self.towers.text.context

    @property
    def has_layout(self) -> bool:
        """Whether image tokens have places in the image, so that heat can be drawn over it."""
        return self.grid is not None or self.segmented

    def encode_images(self, images: Images) -> Encoded:
        """N images -> Encoded of N rows."""
        return self.towers.encode_images(images)

    def encode_texts(self, texts: Texts) -> Encoded:
        """M texts -> Encoded of M rows."""
        read = self.towers.encode_sentences if self.by_sentence else self.towers.encode_texts
        return read(texts)

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        """Every image against every text: [N, M], higher is closer. The score of a pair depends on it alone.

        images  as `encode_images` returns them, or as `precompute` does
        """
        return dot(images, texts)

    @abstractmethod
    def loss(self, local: Pair, gathered: Pair, clock: Clock) -> dict[str, Term]:
        """The losses that compare rows of a batch.

        local     the images and texts of this process, as `before_gather` returns them
        gathered  those of all processes; with one process, the same object
        """

    def row_loss(self, texts: Texts, encoded: Encoded) -> dict[str, Term]:  # noqa: ARG002
        """The losses that depend on one text and its encoding alone, such as a reconstruction."""
        return {}

    def heat(self, images: Encoded, texts: Encoded) -> Tensor:
        """How much each token of image i belongs to text i: [N, L]

        By default, with `averaged`, what each token adds to the score, times their number: the mean of the
        map is the score. Else the signed cosine of every token with the vector of the text. 0 at masked
        tokens.
        """
        size = mean_pool(images.tokens, images.mask).vector[:, None] if self.averaged else images.tokens
        tokens = images.tokens / size.norm(dim=-1, keepdim=True).clamp(min=1e-12)
        return einsum("nld,nd->nl", tokens, texts.vector).masked_fill(~images.mask, 0.0)

    def fit(self, images: Images, texts: Texts) -> None:
        """Find, before the first step, what training images and their texts give and what does not learn,
        where it is not there yet."""

    def before_gather(self, local: Pair) -> Pair:
        """Computed in training from local images and texts, before rows are gathered.

        For losses that need the tokens of an image and its own texts only: tokens need not be sent then.
        """
        return local

    def precompute(self, images: Encoded) -> Encoded:
        """Images with all that does not depend on the text computed beforehand, for scoring many texts.

        `Encoded.precomputed` is then a NamedTuple of tensors, and tokens and extra are empty. It may be
        stored in half precision. Images that have it already stay as they are.
        """
        return images


@runtime_checkable
class TextConditioned(Protocol):
    """A method with image vectors that depend on a text."""

    def pool_images(self, images: Encoded, texts: Encoded) -> Tensor:
        """Image i pooled by text i: [N, D], unit length. images need their tokens."""


@runtime_checkable
class HasAttention(Protocol):
    """A method whose texts attend to image tokens and an empty slot."""

    def attention(self, images: Encoded, texts: Encoded) -> Tensor:
        """Attention of each part of text i over the tokens of image i: [N, S, L + 1], the empty slot last.

        The weights of a part sum to 1; those of padding are 0.
        """


def require_attention(method: object, name: str, what: str) -> HasAttention:
    """The method, if its texts attend to image tokens; else UserError with its name and what needs it."""
    if not isinstance(method, HasAttention):
        raise UserError(
            f"texts of {name} look at no image tokens, with an empty slot beside them; {what} is for methods "
            "whose texts do, caft and flair"
        )
    return method


def parts_of(method: Method, text: str, number: int) -> list[str]:
    """The words of the parts of a text, as `HasAttention.attention` has them.

    number  of parts that have weights: 1 is the whole text, however it was read
    """
    if number == 1 or method.chunking is None:
        return [text]
    return balanced_chunks(text, number, method.chunking)


class TokenGroups(NamedTuple):
    """The tokens of M texts in K groups, without noise. L is that of `flat_parts`."""

    weight: Tensor | None  # [M, K, L] share of each token in each group; None for a model without groups
    states: Tensor  # [M, L, W] of every token, before any projection


@runtime_checkable
class HasTokenGroups(Protocol):
    """A method that puts the tokens of a text into groups."""

    def token_groups(self, texts: Texts) -> TokenGroups:
        """The groups of each text, outside training.

        The weights of a real token sum to 1; those of padding are 0. Groups that a text does not use come
        last and have weight 0.
        """


def dot(images: Encoded, texts: Encoded) -> Tensor:
    """Cosines of the vectors: [N, M]"""
    return images.vector @ texts.vector.T
