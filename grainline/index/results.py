"""What a search says, as plain tuples and as JSON."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from torch import Tensor

LEVEL = 0.05  # of the queries that have no match, this share may be called sure
SUPPORT = 0.05  # of the sentences that hits do not show, this share may be said to be shown
LACK = 0.05  # of the sentences that right images do show, this share may be said not to be shown

Verdict = Literal["shows", "cannot tell", "does not"]
"""Whether an image shows a sentence."""


class Sentence(NamedTuple):
    """One sentence of the query, in the image that was found."""

    text: str
    score: float
    p: float  # share of sentences about other images that do as well in the best hits of their texts
    verdict: Verdict
    heat: Tensor | None = None  # [size, size], where it shows in the square that the model sees


class Hit(NamedTuple):
    """A picture that was found."""

    path: str  # below the folder of pictures
    score: float  # of the method, higher is closer
    p: float  # share of queries without a match whose best score is at least as high
    sure: bool  # p <= Options.level
    sentences: tuple[Sentence, ...] = ()


class Answer(NamedTuple):
    """All that was found for one query, best first."""

    query: str
    hits: tuple[Hit, ...]
    notes: tuple[str, ...] = ()  # what weakens the answer, in plain words

    @property
    def sure(self) -> bool:
        """Whether there is a match at all."""
        return bool(self.hits) and self.hits[0].sure


class Options(NamedTuple):
    """How to search."""

    shortlist: int | None = 200  # candidates by vector that are scored exactly; None: all pictures
    level: float = LEVEL
    support: float = SUPPORT
    lack: float = LACK
    sentences: bool = True  # score each sentence of the query in each hit
    heat: bool = False  # with sentences: where each of them shows; reads the picture files


def as_json(answer: Answer) -> dict[str, Any]:
    """An answer as what JSON can hold, without heat.

    >>> as_json(Answer("a dog", (Hit("a.jpg", 0.5, 0.25, False),)))["hits"]
    [{'path': 'a.jpg', 'score': 0.5, 'p': 0.25, 'sure': False, 'sentences': []}]
    """
    hits = [
        {**hit._asdict(), "sentences": [_without_heat(sentence) for sentence in hit.sentences]}
        for hit in answer.hits
    ]
    return {"query": answer.query, "sure": answer.sure, "hits": hits, "notes": list(answer.notes)}


def judged(hit: Hit, verdict: Verdict) -> Sequence[str]:
    """The sentences of the query with this verdict."""
    return [sentence.text for sentence in hit.sentences if sentence.verdict == verdict]


def verdict_of(p: float, lacking: float, options: Options = Options()) -> Verdict:  # noqa: B008
    """What is said of a sentence.

    lacking  share of true sentences that score so low

    >>> verdict_of(0.04, 0.9), verdict_of(0.5, 0.9), verdict_of(0.5, 0.03)
    ('shows', 'cannot tell', 'does not')
    """
    if p <= options.support:
        return "shows"
    return "does not" if lacking <= options.lack else "cannot tell"


def _without_heat(sentence: Sentence) -> dict[str, Any]:
    return {name: value for name, value in sentence._asdict().items() if name != "heat"}
