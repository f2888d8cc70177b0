"""What a model makes of captions with annotated phrases: groups of their tokens, clusters of their states.

Captions are read batch by batch; states of tokens are clustered at once and not kept.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from grainline.data.batches import texts_of
from grainline.evaluation.ranks import refuse_nan
from grainline.evaluation.suites.annotations import Caption, Token, segments, shuffled, tokens_of, up_to
from grainline.evaluation.suites.baselines import CLUSTERINGS, SEED, Labelled, can_cluster, clusterings
from grainline.methods.base import HasTokenGroups
from grainline.model import Model
from grainline.types import to


class Shuffled(NamedTuple):
    """A caption with its words in another order, as a method groups it."""

    found: Labelled
    staying: np.ndarray  # [P, L] bool, phrases at the places of their words
    going: np.ndarray  # [P, L] bool, phrases that go with their words


class Grouped(NamedTuple):
    """Captions with the tokens of their phrases, and what became of them. Begin and end are left out."""

    texts: tuple[str, ...]
    tokens: tuple[tuple[Token, ...], ...]
    image: tuple[int, ...]  # whose caption it is
    gold: tuple[np.ndarray, ...]  # [P, L] bool, the tokens of each phrase
    soft: (
        tuple[np.ndarray, ...] | None
    )  # [K, L] how much of a token each group takes; None: the method has none
    shuffled: tuple[Shuffled, ...] | None
    clusters: dict[str, tuple[Labelled, ...]]  # by clustering; {} where there is none
    words: bool  # whether the method keeps a state of every token
    bare: int  # texts without a phrase
    unmapped: int  # texts whose tokens could not be told apart
    lost: int  # phrases beyond what the model reads
    cut: int  # texts longer than the model reads

    @property
    def groups(self) -> int | None:
        """How many groups the method has."""
        return None if self.soft is None else len(self.soft[0])


class _Read(NamedTuple):
    """A caption that waits for its batch."""

    caption: Caption
    tokens: list[Token]
    gold: np.ndarray
    image: int


class _Mixed(NamedTuple):
    """The same with its words in another order."""

    text: str
    tokens: list[Token]
    staying: np.ndarray
    going: np.ndarray


class Groups:
    """Collects captions and reads them batch by batch.

    batch  texts that the model sees at once
    """

    def __init__(self, model: Model, batch: int) -> None:
        self._model, self._batch, self._grouping = model, batch, makes_groups(model)
        self._waiting: list[tuple[_Read, _Mixed | None]] = []
        self._read: list[_Read] = []
        self._soft: list[np.ndarray] = []
        self._shuffled: list[Shuffled] = []
        self._clusters: dict[str, list[Labelled]] = {name: [] for name in CLUSTERINGS}
        self._words = True
        self._bare = self._unmapped = self._lost = self._cut = 0

    def add(self, captions: Sequence[Caption], image: int) -> None:
        """The texts of the next image."""
        for caption in captions:
            if not caption.phrases:
                self._bare += 1
                continue
            tokens = self._tokens(caption)
            gold = None if tokens is None else segments(caption, tokens)
            if tokens is None or gold is None:
                self._unmapped += 1
                continue
            self._lost += len(caption.phrases) - len(gold)
            if not len(gold):
                continue
            self._queue(_Read(caption, tokens, gold, image))

    def found(self) -> Grouped:
        """All of them; the last batch is read now."""
        self._flush()
        clustered = self._words and can_cluster() and bool(self._read)
        return Grouped(
            tuple(one.caption.text for one in self._read),
            tuple(tuple(one.tokens) for one in self._read),
            tuple(one.image for one in self._read),
            tuple(one.gold for one in self._read),
            tuple(self._soft) if self._grouping else None,
            tuple(self._shuffled) if self._grouping else None,
            {name: tuple(found) for name, found in self._clusters.items()} if clustered else {},
            self._words,
            self._bare,
            self._unmapped,
            self._lost,
            self._cut,
        )

    def _tokens(self, caption: Caption) -> list[Token] | None:
        method = self._model.method
        return tokens_of(self._model.tokenizer, caption.text, method.context, method.parts, caption.edges)

    def _queue(self, one: _Read) -> None:
        mixed = None
        if self._grouping:
            mixed = self._mixed(one)
            if mixed is None:
                self._unmapped += 1
                return
        self._read.append(one)
        self._waiting.append((one, mixed))
        if len(self._waiting) == self._batch:
            self._flush()

    def _mixed(self, one: _Read) -> _Mixed | None:
        """The words that are read, in an order drawn for each caption."""
        generator = np.random.default_rng((SEED, len(self._read)))
        staying, going = shuffled(up_to(one.caption, one.tokens[-1].end), generator)
        tokens = self._tokens(going._replace(phrases=(*going.phrases, *staying.phrases)))
        if tokens is None:
            return None
        both = segments(staying, tokens), segments(going, tokens)
        return _Mixed(staying.text, tokens, *both) if all(len(gold) for gold in both) else None

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        reads = [one for one, _ in waiting]
        texts = [one.caption.text for one in reads]
        parted = self._model.read(texts)
        self._cut += sum(parted.truncated)
        self._soft += self._soft_of(texts, [one.tokens for one in reads])
        mixed = [one for _, one in waiting if one is not None]
        taken = self._soft_of([one.text for one in mixed], [one.tokens for one in mixed])
        self._shuffled += [
            Shuffled(hard(soft), one.staying, one.going) for soft, one in zip(taken, mixed, strict=True)
        ]
        if self._words and can_cluster():
            self._cluster(texts, reads, [sum(map(len, ids)) for ids in parted.ids])

    def _soft_of(self, texts: Sequence[str], tokens: Sequence[Sequence[Token]]) -> list[np.ndarray]:
        """How much of each token every group takes, [K, L] for each text; [] for a method without groups."""
        if not texts or not self._grouping:
            return []
        weight = _token_groups(self._model, texts)
        assert weight is not None
        taken = weight.float().cpu().numpy()
        found = [one[:, [token.column for token in mine]] for one, mine in zip(taken, tokens, strict=True)]
        refuse_nan(sum(bool(np.isnan(one).any()) for one in found), len(found))
        assert all(np.allclose(one.sum(0), 1, atol=1e-3) for one in found), "a token is not shared out"
        return found

    def _cluster(self, texts: Sequence[str], reads: Sequence[_Read], lengths: Sequence[int]) -> None:
        """Clusters of the states of each caption, if there is a state of every token."""
        states = self._states(texts, lengths)
        self._words = states is not None
        if states is None:
            return
        for one, read in zip(states, reads, strict=True):
            for name, labelled in clusterings(one[[token.column for token in read.tokens]]).items():
                self._clusters[name].append(labelled)

    @torch.no_grad()
    def _states(self, texts: Sequence[str], lengths: Sequence[int]) -> np.ndarray | None:
        """The state of every token, [n, L, W]; None where the method keeps none."""
        method = self._model.method
        if isinstance(method, HasTokenGroups):
            ids = to(texts_of(self._model.read(texts).ids), self._model.device)
            states: np.ndarray = method.token_groups(ids).states.float().cpu().numpy()
            return states
        encoded = self._model.encode(texts=texts)
        each = encoded.mask.sum(1).tolist() == list(lengths)
        return encoded.tokens.float().cpu().numpy() if each else None


def makes_groups(model: Model) -> bool:
    """Whether a model puts tokens into groups; the baseline of the Text Group Transformer does not."""
    return isinstance(model.method, HasTokenGroups) and _token_groups(model, ["a"]) is not None


@torch.no_grad()
def _token_groups(model: Model, texts: Sequence[str]) -> Tensor | None:
    """The weights of the groups of some texts; None for a model without groups."""
    assert isinstance(model.method, HasTokenGroups)
    return model.method.token_groups(to(texts_of(model.read(texts).ids), model.device)).weight


def hard(soft: np.ndarray) -> Labelled:
    """Each token to the group that takes most of it, of equals the first. soft: [K, L]

    Groups behind the last that takes anything are not used by the caption, and do not count as empty.
    """
    return Labelled(soft.argmax(0), int(np.flatnonzero(soft.sum(1) > 0)[-1]) + 1)
