"""Captions with what the groups of a method take of their tokens, from the lowest tIoU to the highest."""

from collections.abc import Sequence

import numpy as np

from grainline.errors import UserError
from grainline.evaluation.collectors.grouped import makes_groups
from grainline.evaluation.pages.examples import SHOWN, Measured, spread
from grainline.evaluation.suites.phrases import AS_MANY, GROUPS, MEASURES, uniform
from grainline.model import Model
from grainline.report.tokens import Tokened

BINS = 24  # places along a caption
SUFFIX = "</w>"  # of pieces of words in CLIP's vocabulary; no word holds it


def refuse_groupless(model: Model) -> None:
    """Raise UserError for a model that makes no groups."""
    if not makes_groups(model):
        raise UserError("--png draws the groups of tokens, and this method makes none; leave --png out")


def captions(on: Measured, number: int = SHOWN) -> list[Tokened]:
    """Captions evenly spaced by their tIoU. [] for a method without groups."""
    found, scores = on.data.grouped, on.result.queries["scores"]
    assert found is not None, "the phrases suite was run"
    if found.soft is None:
        return []
    tiou = scores[GROUPS][MEASURES[0]]
    chunks = AS_MANY if AS_MANY in scores else uniform(len(found.soft[0]))
    beside = scores[chunks][MEASURES[0]]
    return [
        Tokened(
            on.data.keys[found.picture[i]],
            pieces(on.model, found.texts[i], [token.column for token in found.tokens[i]]),
            found.soft[i],
            [tuple(np.flatnonzero(phrase).tolist()) for phrase in found.gold[i]],
            tiou[i],
            beside[i],
        )
        for i in spread(np.array(tiou), number)
    ]


def by_position(on: Measured) -> np.ndarray:
    """The mean share of each group along a caption: [K, BINS]"""
    found = on.data.grouped
    assert found is not None, "the phrases suite was run"
    assert found.soft is not None, "ask `captions` first"
    return along(found.soft)


def along(soft: Sequence[np.ndarray]) -> np.ndarray:
    """The mean share of each group along captions, each stretched to the same length: [K, BINS]

    soft  [K, L] of each caption

    >>> along([np.eye(2), np.eye(2)])[0].tolist() == [1.0] * (BINS // 2) + [0.0] * (BINS // 2)
    True
    """
    middle = (np.arange(BINS) + 0.5) / BINS
    return np.asarray(np.mean([one[:, (middle * one.shape[1]).astype(int)] for one in soft], axis=0))


def pieces(model: Model, text: str, columns: Sequence[int]) -> list[str]:
    """Some of the tokens of a text, by their numbers, as they are written."""
    ids = [number for part in model.read([text]).ids[0] for number in part]
    return [piece.removesuffix(SUFFIX) for piece in model.tokenizer.pieces(ids[i] for i in columns)]
