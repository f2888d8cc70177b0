"""Score against the number of sentences that are read, for single pictures and several models."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from markupsafe import Markup
from PIL import Image

from grainline.viz.charts import Chart, Series, line_chart
from grainline.viz.page import Gone, render

TIE = "="  # set over two neighbours of equal score
RULES = (
    "Every point is the score of the picture with one subtext: the caption from its beginning to there. "
    "rho is Pearson's correlation of score and number. A ring: the subtext was longer than the model reads, "
    f"and cut. {TIE}: exactly the same score twice."
)


class Line(NamedTuple):
    """The scores that one model gives the subtexts of a picture."""

    model: str
    scores: Sequence[float]  # [K]
    cut: Sequence[bool]  # [K] the subtext is longer than the model reads
    rho: float

    def tied(self, place: int) -> bool:
        """Whether the score at a place is exactly that of the place before; places count from 0."""
        return place > 0 and self.scores[place] == self.scores[place - 1]


class Rising(NamedTuple):
    """A picture, its subtexts, and what models make of them."""

    picture: Image.Image | Gone
    name: str
    subtexts: Sequence[str]  # [K]
    lines: Sequence[Line]


def rising(shown: Sequence[Rising]) -> Markup:
    """Picture and chart side by side, and below them a table of what each subtext adds."""
    return render("rising.html", shown=[(one, line_chart(chart(one)), added(one.subtexts)) for one in shown])


def models(rows: Sequence[tuple[str, Mapping[str, str]]]) -> Markup:
    """A table of models and their metrics, as texts."""
    names = list(dict.fromkeys(name for _, values in rows for name in values))
    return render("models.html", rows=rows, names=names)


def chart(one: Rising) -> Chart:
    """The lines of all models."""
    number = list(range(1, len(one.subtexts) + 1))
    series = [
        Series(f"{line.model}: rho {line.rho:.2f}", number, line.scores, line.cut, ties(line))
        for line in one.lines
    ]
    return Chart("Score by subtexts read", "subtext", "score", series, whole=True)


def ties(line: Line) -> list[tuple[float, float, str]]:
    """The places between neighbours of equal score, with the sign."""
    return [(i + 0.5, a, TIE) for i, (a, b) in enumerate(pairwise(line.scores), 1) if a == b]


def added(subtexts: Sequence[str]) -> list[str]:
    """What each subtext says beyond the one before; dots where it does not simply go on.

    >>> added(["A dog.", "A dog. It is wet.", "A dog, it is wet, and old."])
    ['A dog.', 'It is wet.', '... dog, it is wet, and old.']
    """
    out = list(subtexts[:1])
    for before, after in pairwise(subtexts):
        if after.startswith(before):
            out.append(after[len(before) :].strip())
            continue
        old, words = before.split(), after.split()
        pairs = enumerate(zip(old, words, strict=False))
        same = next((i for i, (a, b) in pairs if a != b), min(len(old), len(words)))
        out.append(" ".join(["...", *words[same:]] if same else words))
    return out
