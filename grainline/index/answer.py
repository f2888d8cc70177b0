"""What a search says, as plain tuples and as JSON."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

LEVEL = 0.05  # of the queries that have no match, this share may be called sure
SUPPORT = 0.2  # of the sentences that do not speak of a picture, this share may be called supported


class Sentence(NamedTuple):
    """One sentence of the query, in the picture that was found."""

    text: str
    score: float
    chance: (
        float  # share of sentences about other pictures that score at least as high, each at its own level
    )
    supported: bool  # chance <= Options.support: no part of the picture shows it otherwise
    heat: Tensor | None = None  # [size, size], where it shows in the square that the model sees


class Hit(NamedTuple):
    """A picture that was found."""

    path: str  # below the folder of pictures
    score: float  # of the method, higher is closer
    chance: float  # share of queries without a match whose best score is at least as high
    sure: bool  # chance <= Options.level
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
    sentences: bool = True  # score each sentence of the query in each hit
    heat: bool = False  # with sentences: where each of them shows; reads the picture files


def as_json(answer: Answer) -> dict[str, Any]:
    """An answer as what JSON can hold, without heat.

    >>> as_json(Answer("a dog", (Hit("a.jpg", 0.5, 0.25, False),)))["hits"]
    [{'path': 'a.jpg', 'score': 0.5, 'chance': 0.25, 'sure': False, 'sentences': []}]
    """
    hits = [
        {**hit._asdict(), "sentences": [_without_heat(sentence) for sentence in hit.sentences]}
        for hit in answer.hits
    ]
    return {"query": answer.query, "sure": answer.sure, "hits": hits, "notes": list(answer.notes)}


def unsupported(hit: Hit) -> Sequence[str]:
    """The sentences of the query that the picture does not show."""
    return [sentence.text for sentence in hit.sentences if not sentence.supported]


def _without_heat(sentence: Sentence) -> dict[str, Any]:
    return {name: value for name, value in sentence._asdict().items() if name != "heat"}
