"""A text as sub-captions of whole sentences, and loose captions of some sentences of all that is said.

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
from typing import Literal

from grainline.config import Config
from grainline.data.captions import Mode, joined, sentences


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
