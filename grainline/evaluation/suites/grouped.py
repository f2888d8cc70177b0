"""The groups that a model makes of the tokens of captions, and clusters of the states of these tokens.

Captions are read batch by batch, as they are and with their words in another order. States are clustered at
once and not stored.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

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
from grainline.evaluation.suites.baselines import SEED, Labelled, can_cluster, clusterings
from grainline.methods.base import HasTokenGroups, TokenGroups
from grainline.model import Model
from grainline.types import texts_of, to

BARE = "texts have no marked phrase and are left out"
UNMAPPED = "texts are left out, because their tokens cannot be told apart"
OVERFLOW = "phrases lie beyond what the model reads and are left out"


class Shuffled(NamedTuple):
    """The groups of a caption with its words in another order."""

    groups: Labelled
    in_place: np.ndarray  # [P, L] bool, phrases at the places of their words
    moved: np.ndarray  # [P, L] bool, phrases that go with their words


@dataclass
class Grouped:
    """Captions with phrases: tokens (no begin or end), the model's groups of them, clusters of states."""

    texts: list[str] = field(default_factory=list)
    tokens: list[list[Token]] = field(default_factory=list)
    image: list[int] = field(default_factory=list)  # of each caption
    gold: list[np.ndarray] = field(default_factory=list)  # [P, L] bool, the tokens of each phrase
    soft: list[np.ndarray] = field(default_factory=list)  # [K, L] share of each token in every group, if any
    shuffled: list[Shuffled] = field(default_factory=list)  # [] for a method without groups, as `soft`
    clusters: dict[str, list[Labelled]] = field(default_factory=dict)  # by clustering
    has_states: bool = True  # whether the method has a state of every token
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys((BARE, UNMAPPED, OVERFLOW), 0))

    @property
    def groups(self) -> int | None:
        """How many groups the method has."""
        return len(self.soft[0]) if self.soft else None


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
        self._grouped = Grouped()

    def add(self, sample: Sample) -> None:
        out = self._grouped
        for caption in captions_of(sample.record):
            if not caption.phrases:
                out.counts[BARE] += 1
                continue
            tokens = self._tokens_of(caption)
            if tokens is None:
                out.counts[UNMAPPED] += 1
                continue
            gold = segments(caption, tokens)
            out.counts[OVERFLOW] += len(caption.phrases) - len(gold)
            if not len(gold):
                continue
            other = self._in_other_order(up_to(caption, tokens[-1].end)) if self._has_groups else None
            if self._has_groups and other is None:
                out.counts[UNMAPPED] += 1
                continue
            out.texts.append(caption.text)
            out.tokens.append(tokens)
            out.image.append(sample.row)
            out.gold.append(gold)
            self._waiting.append((_Caption(caption.text, [one.column for one in tokens], (gold,)), other))
            if len(self._waiting) == self._batch:
                self._read_waiting()

    def result(self, data: Encodings) -> Grouped:
        """Raises UserError where no caption has a marked phrase."""
        self._read_waiting()
        unmapped = self._grouped.counts[UNMAPPED]
        if not self._grouped.texts:
            why = f"; of {unmapped} the tokens cannot be told apart" if unmapped else ""
            raise UserError(
                f"no phrase in {data.path} that the model reads is marked in its caption{why}; the phrases"
                " suite needs regions with a span, as flickr30k-entities and scenes have"
            )
        return self._grouped

    def _tokens_of(self, caption: Caption) -> list[Token] | None:
        method = self._model.method
        edges = sorted({edge for phrase in caption.phrases for run in phrase for edge in run})
        return tokens_of(self._model.tokenizer, caption.text, method.context, method.parts, edges)

    def _in_other_order(self, caption: Caption) -> _Caption | None:
        """The words of a caption in an order of its own; None where tokens or phrases have no places."""
        generator = np.random.default_rng((SEED, len(self._grouped.texts)))
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
        out, captions = self._grouped, [one for one, _ in waiting]
        texts = [one.text for one in captions]
        read = self._model.read(texts)
        self.truncated += sum(read.truncated)
        if self._has_groups:
            out.soft += self._soft_of(captions)
            others = [other for _, other in waiting if other is not None]
            for soft, other in zip(self._soft_of(others), others, strict=True):
                out.shuffled.append(Shuffled(hard(soft), *other.gold))
        if out.has_states and can_cluster():
            states = self._states(texts, [sum(map(len, ids)) for ids in read.ids])
            if states is None:
                out.has_states, out.clusters = False, {}
                return
            for one, caption in zip(states, captions, strict=True):
                for name, labelled in clusterings(one[caption.columns]).items():
                    out.clusters.setdefault(name, []).append(labelled)

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


def require_groups(model: Model) -> None:
    """Raise UserError for a figure of groups that a model does not make."""
    if not makes_groups(model):
        raise UserError("--png draws the groups of tokens, and this method makes none; leave --png out")


@torch.no_grad()
def _token_groups(model: Model, texts: Sequence[str]) -> TokenGroups:
    assert isinstance(model.method, HasTokenGroups)
    return model.method.token_groups(to(texts_of(model.read(texts).ids), model.device))


def hard(soft: np.ndarray) -> Labelled:
    """Each token to the group with its largest share, the first of equals. soft: [K, L]

    Groups behind the last one with a share of any token are not used by the caption, and are not counted.
    """
    return Labelled(soft.argmax(0), int(np.flatnonzero(soft.sum(1) > 0)[-1]) + 1)
