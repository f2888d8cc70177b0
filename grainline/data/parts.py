"""Texts to the ids of their parts: the whole text as one, each sentence for itself, chunks of sentences, or
windows of as many sentences as fit.

How a method reads is `Method.parts` and `Method.chunking`. One part is the rule. A method that matches
sentences with pictures takes several, and one that composes sub-captions into a whole takes a fixed number of
chunks; the context is then that of one part.
"""

from collections.abc import Sequence
from sys import maxsize
from typing import NamedTuple

from grainline.data.captions import sentences
from grainline.data.chunks import Chunking, balanced_chunks
from grainline.data.tokenized import TextTokenizer

WINDOWS = 16
"""The most windows of a text: more than LLaVA's 500 tokens take of CLIP's 77, and a bound to memory."""


class Parted(NamedTuple):
    """Ids of the parts of some texts, each part from its begin token to its end token."""

    ids: list[list[list[int]]]  # text, part, token; every text has one part at least
    lost: list[int]  # tokens of each text that did not fit

    @property
    def cut(self) -> list[bool]:
        """Which texts were longer than is read."""
        return [number > 0 for number in self.lost]


def encode_parts(
    tokenizer: TextTokenizer,
    texts: Sequence[str],
    context: int,
    parts: int,
    chunking: Chunking | None = None,
) -> Parted:
    """Encoded texts of at most `parts` parts of at most `context` tokens; the rest is cut and counted.

    parts     1 takes each text as a whole; more take its first sentences, as `captions.sentences` finds them
    chunking  takes each text as exactly `parts` chunks of its sentences instead

    >>> from grainline.data.tokenizer import Tokenizer
    >>> toy = Tokenizer.train(["a cat sat. a dog ran."] * 2, vocab=530)
    >>> found = encode_parts(toy, ["A cat sat. A dog ran. A cat ran.", "A cat"], context=8, parts=2)
    >>> [len(ids) for ids in found.ids], found.lost
    ([2, 1], [4, 0])
    """
    if chunking is not None:
        return encode_told(
            tokenizer, [balanced_chunks(text, parts, chunking) for text in texts], context, parts
        )
    if parts == 1:
        whole = tokenizer.encode(texts, context)
        return Parted([[ids] for ids in whole.ids], whole.lost)
    told = [[s.text for s in sentences(text)] or [text] for text in texts]
    return encode_told(tokenizer, told, context, parts)


def encode_told(tokenizer: TextTokenizer, told: Sequence[Sequence[str]], context: int, parts: int) -> Parted:
    """The same of texts that are in parts already; each has one at least."""
    distinct = list({part: None for one in told for part in one})  # foils share most of theirs
    found = tokenizer.encode(distinct, context)
    at = {part: i for i, part in enumerate(distinct)}
    ids, lost = [], []
    for one in told:
        mine = [at[part] for part in one]
        kept, over = mine[:parts], mine[parts:]
        ids.append([found.ids[i] for i in kept])
        beyond = sum(len(found.ids[i]) - tokenizer.around + found.lost[i] for i in over)
        lost.append(sum(found.lost[i] for i in kept) + beyond)
    return Parted(ids, lost)


def windows(tokenizer: TextTokenizer, texts: Sequence[str], context: int, most: int = WINDOWS) -> Parted:
    """Texts that fit as one part, longer ones in windows of whole sentences, each as full as they make it.

    A sentence that is longer than a window fills several. What is beyond `most` windows is cut and counted.

    >>> from grainline.data.tokenizer import Tokenizer
    >>> toy = Tokenizer.train(["a cat sat. a dog ran."] * 2, vocab=530)
    >>> found = windows(toy, ["A cat sat. A dog ran. A cat ran.", "A cat"], context=10)
    >>> [[len(part) for part in ids] for ids in found.ids], found.lost
    ([[10, 6], [4]], [0, 0])
    """
    whole = tokenizer.encode(texts, context)
    ids, lost = [], []
    for text, one, beyond in zip(texts, whole.ids, whole.lost, strict=True):
        filled = _windowed(tokenizer, text, context) if beyond else [one]
        ids.append(filled[:most])
        lost.append(sum(len(part) - tokenizer.around for part in filled[most:]))
    return Parted(ids, lost)


def _windowed(tokenizer: TextTokenizer, text: str, context: int) -> list[list[int]]:
    found = tokenizer.encode([s.text for s in sentences(text)] or [text], maxsize).ids
    first, last = int(tokenizer.begin is not None), int(tokenizer.end is not None)
    head, tail = found[0][:first], found[0][len(found[0]) - last :]
    room = context - tokenizer.around
    filled: list[list[int]] = [[]]
    for whole in found:
        said = whole[first : len(whole) - last]
        if len(filled[-1]) + len(said) > room and filled[-1]:
            filled.append([])
        while len(said) > room:
            filled[-1], said = said[:room], said[room:]
            filled.append([])
        filled[-1] = filled[-1] + said
    return [[*head, *part, *tail] for part in filled]
