"""Sentences that have nothing to do with any picture, and where they are put into a text.

Everything that is drawn depends on the seed, the key of the picture and the subtext alone: not on the order
of the pictures, nor on what else is measured.
"""

from collections.abc import Sequence
from typing import NamedTuple

from grainline.data.captions import sentences
from grainline.data.sources.common import digest
from grainline.evaluate.subtexts import Subtexts

PLAIN, NOISY = "without noise", "with noise"
START, MIDDLE, END = "at the start", "in the middle", "at the end"

SENTENCES = (
    "The committee postponed its decision until the second half of the year.",
    "Interest on the loan is calculated at the end of every quarter.",
    "Most verbs in this language take their ending from the subject.",
    "The password has to be changed at least once every six months.",
    "Nobody could remember who had proposed the rule in the first place.",
    "An even number is always the sum of two equal whole numbers.",
    "The contract ends unless one of the parties renews it in writing.",
    "Her answer was polite, but it left the question open.",
    "The second edition corrects several errors in the index.",
    "Inflation fell for the third month in a row.",
    "Please confirm your appointment by the end of the working day.",
    "The theory explains why the method fails on small samples.",
    "His pension will be reviewed when the new law takes effect.",
    "A refund can only be granted within thirty days of purchase.",
    "The translation keeps the rhythm of the original and loses its rhyme.",
    "Members vote on the budget by secret ballot every other year.",
    "The proof uses induction on the number of steps.",
    "She learned to play chess from an old manual.",
    "The deadline for applications was extended by ten days.",
    "Silence is often taken for agreement, which is a mistake.",
    "The server restarts by itself after each update.",
    "Their friendship began with a misunderstanding about the rent.",
    "The melody returns in a minor key before the end.",
    "Insurance does not cover damage that was caused on purpose.",
    "The price includes tax but not the cost of delivery.",
    "He promised to call back and then forgot about it.",
    "The survey was repeated because too few people had replied.",
    "Knowledge of a second language is an advantage for this position.",
    "The meeting started late and ended without a result.",
    "The court dismissed the appeal for lack of evidence.",
    "Every function must return a value or raise an error.",
    "The average hides large differences between the groups.",
    "Her grandfather disliked speeches of any kind.",
    "The warranty expires after two years of normal use.",
    "It took them a week to agree on the wording of the report.",
    "The word came into English through French in the twelfth century.",
    "Nothing in the minutes suggests that the vote was close.",
    "The recipe doubles well, although it needs more time.",
    "Unpaid invoices are passed on to a collection agency.",
    "The hypothesis was rejected at the usual level of significance.",
)
"""Written for this purpose: about what no picture shows, so that no caption can profit from one."""


class Drawn(NamedTuple):
    """The subtexts of a picture with its sentence of noise in each."""

    sentence: int  # which of SENTENCES
    at: tuple[int, ...]  # for each subtext the number of its sentences before the noise
    of: tuple[int, ...]  # for each subtext the number of its sentences
    texts: tuple[str, ...]


class Noise(NamedTuple):
    """The subtexts of N pictures without and with noise, encoded."""

    seed: int
    told: Subtexts  # sequences PLAIN and NOISY
    drawn: tuple[Drawn, ...]  # [N]


def drawn(seed: int, key: str, texts: Sequence[str]) -> Drawn:
    """One sentence for a picture, and for each of its subtexts a place: any with equal chance.

    key  of the picture
    """
    sentence = number_of([seed, "sentence", key]) % len(SENTENCES)
    pieces = [[piece.text for piece in sentences(text)] for text in texts]
    of = [len(one) for one in pieces]
    at = [number_of([seed, "place", key, text]) % (n + 1) for text, n in zip(texts, of, strict=True)]
    noisy = [inserted(one, SENTENCES[sentence], k) for one, k in zip(pieces, at, strict=True)]
    return Drawn(sentence, tuple(at), tuple(of), tuple(noisy))


def inserted(pieces: Sequence[str], noise: str, at: int) -> str:
    """Sentences as one text, with the noise after the first `at` of them.

    What stands before the noise gets a full stop if it lacks one, or the two would be one sentence.

    >>> inserted(["A dog runs.", "It is wet"], "Tax is due.", 1)
    'A dog runs. Tax is due. It is wet'
    >>> inserted(["A dog runs.", "It is wet"], "Tax is due.", 2)
    'A dog runs. It is wet. Tax is due.'
    """
    before = " ".join(pieces[:at])
    if before and sentences(f"{before} {noise}")[-1].text != noise:
        before += "."
    return " ".join(filter(None, [before, noise, *pieces[at:]]))


def place(at: int, of: int) -> str:
    """Where noise stands that has `at` of the `of` sentences of a text before it.

    >>> [place(at, 2) for at in range(3)]
    ['at the start', 'in the middle', 'at the end']
    """
    return START if at == 0 else END if at == of else MIDDLE


def pool() -> str:
    """A short digest of the sentences: results with others cannot be compared."""
    return digest(SENTENCES)[:8]


def number_of(parts: Sequence[str | int]) -> int:
    """A whole number below 2 ** 256 that looks random, and is the same wherever the parts are the same."""
    return int(digest(parts), 16)
