"""Texts as parts: sentences, sub-captions of whole sentences, windows.

A text as sub-captions of whole sentences, and loose captions of some sentences of all that is said.

CAFT (Woo et al., arXiv 2602.02977), section 3.2 and appendix B.2. A method that composes N sub-captions into
one whole reads each of them with the whole of its context:
  - in training the sentences of one long caption fall into N chunks at random, anew in every epoch;
  - elsewhere into N chunks as even as they can be, always the same ones;
  - beside it stand loose captions, each of a few sentences (the "diverse sampling" of FLAIR).

What the paper leaves open: random sizes are uniform over all ways to cut; a text with fewer sentences than
chunks repeats some of them, in training by chance and elsewhere in turn. Differs from FLAIR: sentences in a
row are of one caption, and the last of it can be among them.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from random import Random
from sys import maxsize
from typing import Literal, NamedTuple

from grainline.config import Config
from grainline.data.captions import Mode, joined, sentences
from grainline.data.tokenizers.tokenized import TextTokenizer


class Chunking(Config):
    """How a text falls into chunks where nothing is left to chance."""

    by: Literal["sentences", "characters"] = "sentences"  # what is spread evenly over the chunks
    splitter: Mode = "rules"


@lru_cache(maxsize=4096)
def ways(count: int, number: int, most: int) -> int:
    """In how many ways `count` sentences fall into `number` chunks, in order, of 1 to `most` sentences each.

    >>> [ways(count, 4, 3) for count in range(3, 14)]
    [0, 1, 4, 10, 16, 19, 16, 10, 4, 1, 0]
    """
    if number == 0 or count < number:
        return int(number == count == 0)
    return sum(ways(count - size, number - 1, most) for size in range(1, min(most, count) + 1))


def random_sizes(count: int, number: int, most: int, rng: Random) -> list[int]:
    """Sizes of `number` chunks, each 1 to `most`, `count` in sum: any of the `ways`, all equally likely."""
    sizes = []
    for left in range(number, 0, -1):
        drawn = rng.randrange(ways(count, left, most))
        size = 1
        while drawn >= (share := ways(count - size, left - 1, most)):
            drawn -= share
            size += 1
        sizes.append(size)
        count -= size
    return sizes


def random_chunks(pieces: Sequence[str], number: int, most: int, rng: Random, splitter: Mode) -> list[str]:
    """Sentences as `number` sub-captions, in order, of 1 to `most` sentences each.

    Of more than number * most sentences the first ones are taken. Of fewer than `number` each is a
    sub-caption of its own, and some, by chance, stand again behind them.
    """
    assert pieces, "no sentence"
    if len(pieces) < number:
        return [*pieces, *rng.choices(pieces, k=number - len(pieces))]
    kept = pieces[: number * most]
    return _grouped(kept, random_sizes(len(kept), number, most, rng), splitter)


def balanced_sizes(count: int, number: int) -> list[int]:
    """Sizes of `number` chunks that differ by one at most, the larger ones first.

    >>> balanced_sizes(6, 4), balanced_sizes(11, 4), balanced_sizes(20, 4)
    ([2, 2, 1, 1], [3, 3, 3, 2], [5, 5, 5, 5])
    """
    least, larger = divmod(count, number)
    return [least + (k < larger) for k in range(number)]


def even_sizes(lengths: Sequence[int], number: int) -> list[int]:
    """Sizes of `number` chunks whose summed lengths have the least sum of squares; no chunk is empty.

    Of several best ones that with more in its first chunk, then in its second, and so on.

    >>> even_sizes([9, 1, 1, 1, 1, 1], 2), even_sizes([1] * 11, 4)
    ([1, 5], [3, 3, 3, 2])
    """
    count = len(lengths)
    assert 0 < number <= count, (number, count)
    before = [0, *accumulate(lengths)]
    cost = [(before[count] - start) ** 2 for start in before]  # of all from a place on in one chunk
    steps = []
    for behind in range(1, number):
        best: dict[int, tuple[int, int]] = {}
        for i in range(count - behind):
            places = range(i + 1, count - behind + 1)  # where the first chunk may end
            best[i] = min(((before[j] - before[i]) ** 2 + cost[j], -j) for j in places)
        cost = [best[i][0] if i in best else 0 for i in range(count + 1)]
        steps.append({i: -found for i, (_, found) in best.items()})
    ends = [0]
    for step in reversed(steps):
        ends.append(step[ends[-1]])
    return [b - a for a, b in zip(ends, [*ends[1:], count], strict=True)]


def balanced_chunks(text: str, number: int, chunking: Chunking) -> list[str]:
    """A text as `number` sub-captions of whole sentences, always the same ones.

    One with fewer sentences repeats them in turn. One without any gives empty sub-captions.

    >>> balanced_chunks("A dog. A cat. A bird.", 2, Chunking()), balanced_chunks("A dog.", 2, Chunking())
    (['A dog. A cat.', 'A bird.'], ['A dog.', 'A dog.'])
    """
    pieces = [sentence.text for sentence in sentences(text, chunking.splitter)] or [""]
    if len(pieces) < number:
        return [pieces[k % len(pieces)] for k in range(number)]
    if chunking.by == "sentences":
        return _grouped(pieces, balanced_sizes(len(pieces), number), chunking.splitter)
    return _grouped(pieces, even_sizes([len(piece) for piece in pieces], number), chunking.splitter)


def loose_caption(told: Sequence[Sequence[str]], most: int, rng: Random, splitter: Mode) -> str:
    """A few sentences of what is said of a picture, as one text.

    told  captions, each as its sentences; one of them has a sentence at least

    One to `most` sentences. Several are, as often as not, sentences in a row of one caption, any row of so
    many; else, and where no caption has so many, any ones in any order, none twice.
    """
    pieces = [piece for caption in told for piece in caption]
    number = min(rng.randint(1, most), len(pieces))
    rows = [caption[i : i + number] for caption in told for i in range(len(caption) - number + 1)]
    if rows and rng.random() < 0.5:
        return joined(rng.choice(rows), splitter)
    return joined(rng.sample(pieces, number), splitter)


def _grouped(pieces: Sequence[str], sizes: Sequence[int], splitter: Mode) -> list[str]:
    ends = list(accumulate(sizes))
    return [joined(pieces[end - size : end], splitter) for size, end in zip(sizes, ends, strict=True)]


def cropped(text: str, share: float, rng: Random) -> str:
    """The text, or with a chance of `share` a run of its words: any number of them, from any place.

    >>> cropped("a dog runs over wet sand", 1.0, Random(3)), cropped("a dog runs", 0.0, Random(3))
    ('a dog runs over wet', 'a dog runs')
    """
    words = text.split()
    if not share or rng.random() >= share or len(words) < 2:
        return text
    number = rng.randint(1, len(words))
    start = rng.randrange(len(words) - number + 1)
    return " ".join(words[start : start + number])


# Texts to the ids of their parts: the whole text as one, each sentence for itself, chunks of sentences, or
# windows of as many sentences as fit.
#
# How a method reads is `Method.parts` and `Method.chunking`. One part is the rule. A method that matches
# sentences with pictures takes several, and one that composes sub-captions into a whole takes a fixed number
# of chunks; the context is then that of one part.


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

    >>> from grainline.data.tokenizers.tokenizer import Tokenizer
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

    >>> from grainline.data.tokenizers.tokenizer import Tokenizer
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
