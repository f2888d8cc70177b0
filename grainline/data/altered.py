"""Captions of training with some of their words altered, so that no single word is enough to find a picture.

Each word, with a chance of its own, is hidden, replaced or deleted, as in LAPS and SEPS. A word is what the
tokenizer reads as one (`TextTokenizer.words`), and its pieces share its fate:
  50 %  each piece becomes the mask
  10 %  each piece becomes any piece of the vocabulary that is no special token
  40 %  it goes
With a tokenizer that has no mask an altered word always goes. In CLIP's the name of one would be read as
several words, and found by a look-up as the unknown token, which there ends the text.

What the papers leave open: one word at least stays as it is, and what goes makes room before a text is cut.
"""

from collections.abc import Sequence
from random import Random

from grainline.data.parts import Parted
from grainline.data.tokenized import Hiding, TextTokenizer, check_context

_HIDDEN, _REPLACED = 0.5, 0.1  # of the words that are altered; the others go


def altered(words: Sequence[list[int]], share: float, hiding: Hiding | None, rng: Random) -> list[list[int]]:
    """The ids of words, each altered with a chance of `share`, but one at least as it was.

    hiding  what may stand in place of a word; None: an altered word goes

    >>> altered([[7], [8, 9]], 1.0, None, Random(0)), altered([[7], [8, 9]], 0.0, None, Random(0))
    ([[], [8, 9]], [[7], [8, 9]])
    """
    touched = [rng.random() < share for _ in words]
    if words and all(touched):
        touched[rng.randrange(len(words))] = False
    return [_other(word, hiding, rng) if one else word for word, one in zip(words, touched, strict=True)]


def encode_altered(
    tokenizer: TextTokenizer, texts: Sequence[str], context: int, share: float, rng: Random
) -> Parted:
    """Encoded texts of one part of at most `context` tokens, their words altered as above; the rest is cut.

    With share 0 the same as `encode_parts` of one part.
    """
    check_context(context, tokenizer.around)
    room = context - tokenizer.around
    head = [] if tokenizer.begin is None else [tokenizer.begin]
    tail = [] if tokenizer.end is None else [tokenizer.end]
    said = [
        [piece for word in altered(tokenizer.words(text), share, tokenizer.hiding, rng) for piece in word]
        for text in texts
    ]
    return Parted([[[*head, *one[:room], *tail]] for one in said], [max(len(one) - room, 0) for one in said])


def _other(word: list[int], hiding: Hiding | None, rng: Random) -> list[int]:
    if hiding is None:
        return []
    drawn = rng.random()
    if drawn < _HIDDEN:
        return [hiding.mask] * len(word)
    return rng.choices(hiding.pieces, k=len(word)) if drawn < _HIDDEN + _REPLACED else []
