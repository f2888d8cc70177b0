"""Single outcomes of a suite: retrievals from the best rank to the worst; probes and classes most wrong and
most right.

The pictures are read again from the source. One that is not there any more is said so in its place.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from grainline.data.captions import sentences
from grainline.data.decode import decode
from grainline.data.record import Damaged, Source
from grainline.evaluation.collectors.long import LONG_RETRIEVAL, PLAIN
from grainline.evaluation.collectors.probes import probe_scores
from grainline.evaluation.encode import Encodings
from grainline.evaluation.pages.look import look_at
from grainline.evaluation.ranks import Fold, folds
from grainline.evaluation.result import Result
from grainline.evaluation.score import MEMORY, Top, topk
from grainline.evaluation.shortlist import candidates
from grainline.evaluation.suites.zeroshot import Classified, Confusion, contests
from grainline.model import ImageLike, Model, given
from grainline.nn.upsample import FEWEST, NULL_TEXTS
from grainline.report.page import Gone
from grainline.report.table import Comparison, Example, Hit, Rival
from grainline.types import Encoded, rows

SHOWN = 6  # examples of a kind
HITS = 5  # candidates of an example


class Beside(NamedTuple):
    """What the figure of monotonicity shows beside the model that was measured."""

    paths: tuple[str, ...] = ()
    results: tuple[Result, ...] = ()  # of other models
    samples: tuple[str, ...] = ()  # keys of pictures; none: from the worst to the best


class Measured(NamedTuple):
    """A result with what it was measured on."""

    model: Model
    source: Source
    data: Encodings
    result: Result
    beside: Beside = Beside()

    def picture(self, row: int) -> Image.Image | Gone:
        """The square that the model sees of an encoded picture, or why it cannot be shown."""
        key = self.data.keys[row]
        try:
            record = self.source[self.data.positions[row]]
            if record.key != key:
                return Gone(f"{key} is not where it was when it was encoded")
            return self.model.seen(decode(record))
        except Damaged as error:
            return Gone(f"{key} cannot be shown: {error.cause}")

    def null(self, row: int) -> list[str] | None:
        """Sentences about other images, to measure heat against; None where there are too few."""
        others = [i for i, image in enumerate(self.data.texts.image.tolist()) if image != row]
        some = [others[i] for i in spread(np.arange(len(others)), NULL_TEXTS)]
        said = [(sentences(self.data.strings[i]), i) for i in some]
        single = list(dict.fromkeys(parts[i % len(parts)].text for parts, i in said if parts))
        return single if len(single) >= FEWEST else None

    def given(self, row: int, picture: Image.Image) -> ImageLike:
        """A picture as the model is asked about it: with its description, where it reads one."""
        return given(picture, self.data.described[row] if self.data.described else None)


def by_text(on: Measured, number: int = SHOWN) -> list[Example]:
    """Pictures found for texts, with the sentences of the text in the right picture."""
    chosen = _chosen(on, "t2i", number)
    return [_text_example(on, query) for query in chosen]


def by_picture(on: Measured, number: int = SHOWN) -> list[Example]:
    """Texts found for pictures."""
    chosen = _chosen(on, "i2t", number)
    return [_picture_example(on, query) for query in chosen]


def worst_probes(on: Measured, number: int = SHOWN) -> list[Comparison]:
    """The comparisons in which the wrong pair wins by most, or the right one by least; each of another
    picture.
    """
    return _comparisons(on, number, lambda margin: margin)


def best_probes(on: Measured, number: int = SHOWN) -> list[Comparison]:
    """The comparisons in which the right pair wins by most; each of another picture."""
    return _comparisons(on, number, lambda margin: -margin)


def worst_classes(on: Measured, number: int = SHOWN) -> list[Classified]:
    """The pictures whose class loses by most against another, or wins by least."""
    return _classified(on, number, lambda margin: margin)


def best_classes(on: Measured, number: int = SHOWN) -> list[Classified]:
    """The pictures whose class wins by most."""
    return _classified(on, number, lambda margin: -margin)


def confused(on: Measured) -> list[Confusion]:
    """The most frequent mistakes among the classes, each with its share of the pictures of the true class."""
    of = {row["class"]: row["pictures"] for row in on.result.queries["per_class"]}
    return [
        Confusion(row["true"], row["predicted"], row["pictures"], of[row["true"]])
        for row in on.result.queries["confusions"]
    ]


def spread(rank: np.ndarray, number: int) -> list[int]:
    """Places of some values, evenly from the lowest value to the highest, both included.

    >>> spread(np.array([5, 1, 9, 1, 2]), 3)
    [1, 4, 2]
    """
    order = np.argsort(rank, kind="stable")
    ends = np.linspace(0, len(order) - 1, min(number, len(order)))
    return [int(place) for place in order[np.rint(ends).astype(int)]]


class _Query(NamedTuple):
    """A query of a retrieval suite."""

    fold: Fold
    row: int  # of the picture or text among all
    rank: int
    tied: bool


def _chosen(on: Measured, way: str, number: int) -> list[_Query]:
    told = on.result.queries["folds"]
    protocol = PLAIN if on.result.suite == LONG_RETRIEVAL else on.result.protocol
    parts = folds(protocol, on.data.images, on.data.texts, on.data.path)
    every = [
        _Query(fold, row, rank, bool(tied))
        for fold, one in zip(parts, told, strict=True)
        for row, rank, tied in zip(
            (fold.texts if way == "t2i" else fold.images).tolist(),
            one[way]["rank"],
            one[way]["tied"],
            strict=True,
        )
    ]
    return [every[i] for i in spread(np.array([query.rank for query in every]), number)]


def _text_example(on: Measured, query: _Query) -> Example:
    data, text = on.data, on.data.strings[query.row]
    own = int(data.texts.image[query.row])
    images, texts = rows(data.images, query.fold.images), rows(data.texts, slice(query.row, query.row + 1))
    near = _near(on, images, texts)[1]
    top = topk(on.model.method, rows(images, near), texts, HITS, _memory(on)).t2i
    hits = [
        Hit(on.picture(row), score, row == own, place, data.keys[row])
        for place, row, score in _listed(top, query.fold.images[near.cpu()])
    ]
    return Example(
        text,
        data.keys[own],
        hits,
        query.rank,
        query.tied,
        len(query.fold.images),
        look_at(
            on.model,
            on.picture(own),
            text,
            data.described[own] if data.described else None,
            on.null(own),
        ),
    )


def _picture_example(on: Measured, query: _Query) -> Example:
    data, picture = on.data, on.picture(query.row)
    images = rows(data.images, slice(query.row, query.row + 1))
    texts = rows(data.texts, query.fold.texts)
    near = _near(on, images, texts)[0]
    top = topk(on.model.method, images, rows(texts, near), HITS, _memory(on)).i2t
    hits = [
        Hit(data.strings[row], score, int(data.texts.image[row]) == query.row, place)
        for place, row, score in _listed(top, query.fold.texts[near.cpu()])
    ]
    return Example(picture, data.keys[query.row], hits, query.rank, query.tied, len(query.fold.texts))


def _near(on: Measured, images: Encoded, texts: Encoded) -> tuple[torch.Tensor, torch.Tensor]:
    """The texts, and the pictures, that are scored for the first query of the other side."""
    most = on.result.settings.get("shortlist") or max(len(images.image), len(texts.image))
    texts_of, images_of = candidates(images, texts, most, _memory(on))
    return texts_of[0], images_of[0]


def _listed(top: Top, of: torch.Tensor) -> list[tuple[int, int, float]]:
    """Place, row among all and score of the best candidates of one query."""
    found = zip(of[top.row[0].cpu()].tolist(), top.score[0].tolist(), strict=True)
    return [(place, row, score) for place, (row, score) in enumerate(found, 1)]


def _memory(on: Measured) -> int:
    return int(on.result.settings.get("memory", MEMORY))


def _comparisons(on: Measured, number: int, order: Callable[[np.ndarray], np.ndarray]) -> list[Comparison]:
    probes, data = on.data.probes, on.data
    assert probes is not None, "the probes suite was run"
    right, wrong = probe_scores(on.model.method, data.images, probes).cpu().numpy()
    pictures, told = probes.pictures.cpu().numpy(), probes.told.tolist()
    sorted_rows = np.argsort(order(right - wrong), kind="stable")
    _, first = np.unique(pictures[sorted_rows, 0], return_index=True)  # the first comparison of each picture
    out = []
    for i in sorted_rows[np.sort(first)[:number]].tolist():
        own, other = pictures[i].tolist()
        true, false = (probes.strings[row] for row in told[i])
        rival = None if own == other else Rival(on.picture(other), data.keys[other])
        out.append(
            Comparison(
                on.picture(own), data.keys[own], probes.kind[i], true, false,
                (float(right[i]), float(wrong[i])), rival,
            )
        )  # fmt: skip
    return out


def _classified(on: Measured, number: int, order: Callable[[np.ndarray], np.ndarray]) -> list[Classified]:
    classes, told = on.data.classes, on.result.queries
    assert classes is not None, "the zeroshot suite was run"
    found = contests(on.model.method, on.data.images, classes, _memory(on))
    true, false = found.true.numpy(), found.false.numpy()
    return [
        Classified(
            on.picture(i),
            on.data.keys[i],
            (classes.names[told["label"][i]], classes.names[int(found.other[i])]),
            (float(true[i]), float(false[i])),
            told["rank"][i],
            len(classes.names),
        )
        for i in np.argsort(order(true - false), kind="stable")[:number].tolist()
    ]
