"""Results of a search, as tuples and as JSON."""

from typing import Any, Literal, NamedTuple

from torch import Tensor

LEVEL = 0.05  # of the queries that have no match, this share may be called sure
SUPPORT = 0.05  # of the sentences that hits do not show, this share may get the verdict "shows"
ABSENT = 0.05  # of the sentences that right images do show, this share may get the verdict "does not"

Verdict = Literal["shows", "cannot tell", "does not"]


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
    hits = [hit._asdict() for hit in result.hits]
    for hit in hits:
        hit["sentences"] = [one._asdict() for one in hit["sentences"]]
        for one in hit["sentences"]:
            del one["heat"]
    return {"query": result.query, "sure": result.sure, "hits": hits, "notes": list(result.notes)}


def verdict_of(p: float, p_if_true: float, options: Options) -> Verdict:
    """The verdict on a sentence. p_if_true: share of true sentences that score so low

    >>> [verdict_of(*p, Options()) for p in [(0.04, 0.9), (0.5, 0.9), (0.5, 0.03)]]
    ['shows', 'cannot tell', 'does not']
    """
    if p <= options.support:
        return "shows"
    return "does not" if p_if_true <= options.absent else "cannot tell"
