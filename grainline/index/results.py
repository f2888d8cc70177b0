"""Results of a search, as tuples and as JSON."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from torch import Tensor

LEVEL = 0.05  # of the queries that have no match, this share may be called sure
SUPPORT = 0.05  # of the sentences that hits do not show, this share may be said to be shown
ABSENT = 0.05  # of the sentences that right images do show, this share may be said not to be shown

Verdict = Literal["shows", "cannot tell", "does not"]
"""Whether an image shows a sentence."""


class Sentence(NamedTuple):
    """A sentence of the query and its score in a hit."""

    text: str
    score: float
    p: float  # share of sentences about other images that do as well in the best hits of their texts
    verdict: Verdict
    heat: Tensor | None = None  # [size, size], where it shows in the square that the model sees


class Hit(NamedTuple):
    """An image that matches a query."""

    path: str  # below the folder of images
    score: float  # of the method, higher is closer
    p: float  # share of queries without a match whose best score is at least as high
    sure: bool  # p <= Options.level
    sentences: tuple[Sentence, ...] = ()


class QueryHits(NamedTuple):
    """The hits of one query, best first."""

    query: str
    hits: tuple[Hit, ...]
    notes: tuple[str, ...] = ()  # limits of the hits, for users

    @property
    def sure(self) -> bool:
        """Whether the best hit is sure."""
        return bool(self.hits) and self.hits[0].sure


class Options(NamedTuple):
    """How to search."""

    shortlist: int | None = 200  # candidates by vector that are scored exactly; None: all images
    level: float = LEVEL
    support: float = SUPPORT
    absent: float = ABSENT
    sentences: bool = True  # score each sentence of the query in each hit
    heat: bool = False  # with sentences: where each of them shows; reads the image files


def as_json(result: QueryHits) -> dict[str, Any]:
    """The hits of a query as JSON values, without heat.

    >>> as_json(QueryHits("a dog", (Hit("a.jpg", 0.5, 0.25, False),)))["hits"]
    [{'path': 'a.jpg', 'score': 0.5, 'p': 0.25, 'sure': False, 'sentences': []}]
    """
    hits = [
        {**hit._asdict(), "sentences": [_without_heat(sentence) for sentence in hit.sentences]}
        for hit in result.hits
    ]
    return {"query": result.query, "sure": result.sure, "hits": hits, "notes": list(result.notes)}


def sentences_with(hit: Hit, verdict: Verdict) -> Sequence[str]:
    """The sentences of the query with this verdict."""
    return [sentence.text for sentence in hit.sentences if sentence.verdict == verdict]


def verdict_of(p: float, p_if_true: float, options: Options = Options()) -> Verdict:  # noqa: B008
    """The verdict on a sentence.

    lacking  share of true sentences that score so low

    >>> verdict_of(0.04, 0.9), verdict_of(0.5, 0.9), verdict_of(0.5, 0.03)
    ('shows', 'cannot tell', 'does not')
    """
    if p <= options.support:
        return "shows"
    return "does not" if p_if_true <= options.absent else "cannot tell"


def _without_heat(sentence: Sentence) -> dict[str, Any]:
    return {name: value for name, value in sentence._asdict().items() if name != "heat"}
