"""The interface of a provider of phrases."""

from typing import Literal, NamedTuple, Protocol

Kind = Literal["noun", "action", "relation"]


class Phrase(NamedTuple):
    """A few words of a text: text[start:end]."""

    kind: Kind
    start: int
    end: int


class Token(NamedTuple):
    """A word or mark of a text, with its part of speech in the words of Universal Dependencies."""

    text: str
    start: int
    end: int
    pos: str  # NOUN, PROPN, PRON, DET, ADJ, NUM, VERB, AUX, ADV, ADP, SCONJ, CCONJ, PART, PUNCT, ...


class Tagged(NamedTuple):
    """A sentence or a whole text as a tagger sees it."""

    tokens: list[Token]
    chunks: list[
        tuple[int, int]
    ]  # noun chunks: first token, one past the last; in order, none inside another


class Provider(Protocol):
    """Phrases of texts. The same text has the same phrases, in any process and in any order of calls."""

    name: str  # what it is and which version; another name may mean other phrases

    def phrases(self, text: str) -> list[Phrase]:
        """All phrases: noun phrases, then actions, then relations, each in the order of the text.

        Nothing is filtered, and no phrase stands twice at one place; `select` does the rest.
        """
