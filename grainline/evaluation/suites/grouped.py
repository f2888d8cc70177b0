"""The groups that a model makes of the tokens of captions, and clusters of the states of these tokens.

Captions are read batch by batch, as they are and with their words in another order. States are clustered at
once and not stored.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from grainline.data.batches import texts_of
from grainline.errors import UserError
from grainline.evaluation.encode import Collector, Encodings, Sample
from grainline.evaluation.ranks import refuse_nan
from grainline.evaluation.suites.annotations import (
    Caption,
    Token,
    captions_of,
    segments,
    shuffled,
    tokens_of,
    up_to,
)
from grainline.evaluation.suites.baselines import CLUSTERINGS, SEED, Labelled, can_cluster, clusterings
from grainline.methods.base import HasTokenGroups, TokenGroups
from grainline.model import Model
from grainline.types import to


class Shuffled(NamedTuple):
    """The groups of a caption with its words in another order."""

    groups: Labelled
    in_place: np.ndarray  # [P, L] bool, phrases at the places of their words
    moved: np.ndarray  # [P, L] bool, phrases that go with their words


class Grouped(NamedTuple):
    """Captions with the tokens of their phrases, in groups and clusters; without begin and end tokens."""

    texts: tuple[str, ...]
    tokens: tuple[tuple[Token, ...], ...]
    image: tuple[int, ...]  # of each caption
    gold: tuple[np.ndarray, ...]  # [P, L] bool, the tokens of each phrase
    soft: tuple[np.ndarray, ...] | None  # [K, L] the share of each token in every group; None: without groups
    shuffled: tuple[Shuffled, ...] | None
    clusters: dict[str, tuple[Labelled, ...]]  # by clustering; {} where there is none
    has_states: bool  # whether the method has a state of every token
    counts: dict[str, int]  # what was left out, in words -> how many

    @property
    def groups(self) -> int | None:
        """How many groups the method has."""
        return None if self.soft is None else len(self.soft[0])


class _Caption(NamedTuple):
    """A caption, or its words in another order, with the tokens of phrases."""

    text: str
    columns: list[int]  # [L] of the tokens
    gold: tuple[np.ndarray, ...]  # [P, L] bool; of shuffled words in place and moved


class GroupCollector(Collector):
    """Reads captions with marked phrases batch by batch.

    batch  texts that the model sees at once

    Raises UserError for a method that composes texts of chunks, which are no run of words.
    """

    def __init__(self, model: Model, batch: int) -> None:
        if model.method.chunking is not None:
            raise UserError(
                f"{model.description.method} reads a text as chunks that it composes; --suite phrases is for"
                " methods that read its words one after the other"
            )
        self._model, self._batch, self._has_groups = model, batch, makes_groups(model)
        self.truncated = 0
        self._waiting: list[tuple[_Caption, _Caption | None]] = []
        self._texts: list[str] = []
        self._tokens: list[tuple[Token, ...]] = []
        self._image: list[int] = []
        self._gold: list[np.ndarray] = []
        self._soft: list[np.ndarray] = []
        self._shuffled: list[Shuffled] = []
        self._clusters: dict[str, list[Labelled]] = {name: [] for name in CLUSTERINGS}
        self._has_states = True
        self._bare = self._unmapped = self._overflow = 0

    def add(self, sample: Sample) -> None:
        for caption in captions_of(sample.record):
            if not caption.phrases:
                self._bare += 1
                continue
            tokens = self._tokens_of(caption)
            if tokens is None:
                self._unmapped += 1
                continue
            gold = segments(caption, tokens)
            self._overflow += len(caption.phrases) - len(gold)
            if not len(gold):
                continue
            other = self._in_other_order(up_to(caption, tokens[-1].end)) if self._has_groups else None
            if self._has_groups and other is None:
                self._unmapped += 1
                continue
            self._texts.append(caption.text)
            self._tokens.append(tuple(tokens))
            self._image.append(sample.row)
            self._gold.append(gold)
            self._waiting.append((_Caption(caption.text, [one.column for one in tokens], (gold,)), other))
            if len(self._waiting) == self._batch:
                self._read_waiting()

    def result(self, data: Encodings) -> Grouped:
        """Raises UserError where no caption has a marked phrase."""
        self._read_waiting()
        if not self._texts:
            why = f"; of {self._unmapped} the tokens cannot be told apart" if self._unmapped else ""
            raise UserError(
                f"no phrase in {data.path} that the model reads is marked in its caption{why}; the phrases"
                " suite needs regions with a span, as flickr30k-entities and scenes have"
            )
        clusters = self._clusters if self._has_states and can_cluster() else {}
        return Grouped(
            tuple(self._texts),
            tuple(self._tokens),
            tuple(self._image),
            tuple(self._gold),
            tuple(self._soft) if self._has_groups else None,
            tuple(self._shuffled) if self._has_groups else None,
            {name: tuple(labelled) for name, labelled in clusters.items()},
            self._has_states,
            {
                "texts have no marked phrase and are left out": self._bare,
                "texts are left out, because their tokens cannot be told apart": self._unmapped,
                "phrases lie beyond what the model reads and are left out": self._overflow,
            },
        )

    def _tokens_of(self, caption: Caption) -> list[Token] | None:
        method = self._model.method
        return tokens_of(self._model.tokenizer, caption.text, method.context, method.parts, caption.edges)

    def _in_other_order(self, caption: Caption) -> _Caption | None:
        """The words of a caption in an order of its own; None where tokens or phrases have no places."""
        generator = np.random.default_rng((SEED, len(self._texts)))
        in_place, moved = shuffled(caption, generator)
        tokens = self._tokens_of(moved._replace(phrases=(*moved.phrases, *in_place.phrases)))
        if tokens is None:
            return None
        gold = segments(in_place, tokens), segments(moved, tokens)
        return _Caption(moved.text, [one.column for one in tokens], gold) if all(map(len, gold)) else None

    def _read_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        captions = [one for one, _ in waiting]
        texts = [one.text for one in captions]
        read = self._model.read(texts)
        self.truncated += sum(read.truncated)
        if self._has_groups:
            self._soft += self._soft_of(captions)
            others = [other for _, other in waiting if other is not None]
            for soft, other in zip(self._soft_of(others), others, strict=True):
                self._shuffled.append(Shuffled(hard(soft), *other.gold))
        if self._has_states and can_cluster():
            states = self._states(texts, [sum(map(len, ids)) for ids in read.ids])
            if states is None:
                self._has_states = False
                return
            for one, caption in zip(states, captions, strict=True):
                for name, labelled in clusterings(one[caption.columns]).items():
                    self._clusters[name].append(labelled)

    def _soft_of(self, captions: Sequence[_Caption]) -> list[np.ndarray]:
        """The share of each token in every group: [K, L] for each caption"""
        weight = _token_groups(self._model, [one.text for one in captions]).weight
        assert weight is not None
        soft = [x[:, one.columns] for x, one in zip(weight.float().cpu().numpy(), captions, strict=True)]
        refuse_nan(sum(bool(np.isnan(one).any()) for one in soft), len(soft))
        assert all(np.allclose(one.sum(0), 1, atol=1e-3) for one in soft), "shares of a token sum to 1"
        return soft

    @torch.no_grad()
    def _states(self, texts: Sequence[str], lengths: Sequence[int]) -> np.ndarray | None:
        """The state of every token, [n, L, W]; None where the method has none."""
        model = self._model
        if isinstance(model.method, HasTokenGroups):
            states: np.ndarray = _token_groups(model, texts).states.float().cpu().numpy()
            return states
        truncated = model.cut
        encoded = model.encode(texts=texts)
        self.truncated -= model.cut - truncated  # they are counted already
        return encoded.tokens.float().cpu().numpy() if encoded.mask.sum(1).tolist() == lengths else None


def makes_groups(model: Model) -> bool:
    """Whether a model puts tokens into groups; the baseline of the Text Group Transformer does not."""
    return isinstance(model.method, HasTokenGroups) and _token_groups(model, ["a"]).weight is not None


@torch.no_grad()
def _token_groups(model: Model, texts: Sequence[str]) -> TokenGroups:
    assert isinstance(model.method, HasTokenGroups)
    return model.method.token_groups(to(texts_of(model.read(texts).ids), model.device))


def hard(soft: np.ndarray) -> Labelled:
    """Each token to the group with its largest share, the first of equals. soft: [K, L]

    Groups behind the last one with a share of any token are not used by the caption, and are not counted.
    """
    return Labelled(soft.argmax(0), int(np.flatnonzero(soft.sum(1) > 0)[-1]) + 1)
