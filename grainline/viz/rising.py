"""Score against the number of sentences that are read, for single pictures and several models."""

from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import NamedTuple

from PIL import Image

from grainline.viz.charts import Chart, Series, line_chart
from grainline.viz.page import Gone, img

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


class Rising(NamedTuple):
    """A picture, its subtexts, and what models make of them."""

    picture: Image.Image | Gone
    name: str
    subtexts: Sequence[str]  # [K]
    lines: Sequence[Line]


def rising(one: Rising) -> str:
    """Picture and chart side by side, and below them a table of what each subtext adds."""
    return (
        f'<article class="card"><h3>{escape(one.name)}</h3><div class="pair">'
        f"{img(one.picture, f'picture {one.name}')}{line_chart(chart(one))}</div>{_table(one)}</article>"
    )


def models(rows: Sequence[tuple[str, Mapping[str, str]]]) -> str:
    """A table of models and their metrics, as texts."""
    names = list(dict.fromkeys(name for _, values in rows for name in values))
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    told = [(model, "".join(f"<td>{escape(of.get(name, ''))}</td>" for name in names)) for model, of in rows]
    body = "".join(f'<tr><th scope="row">{escape(model)}</th>{cells}</tr>' for model, cells in told)
    return (
        '<div class="card scroll" tabindex="0" role="region" aria-label="models side by side">'
        '<table><thead><tr><th scope="col" class="name">Model</th>'
        f"{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


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


def _table(one: Rising) -> str:
    heads = "".join(f'<th scope="col">{escape(line.model)}</th>' for line in one.lines)
    rows = "".join(
        f'<tr><th scope="row">{number}</th><td class="text">{escape(text)}</td>'
        f"{''.join(_score(line, number - 1) for line in one.lines)}</tr>"
        for number, text in enumerate(added(one.subtexts), 1)
    )
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="scores of the subtexts">'
        f'<table class="steps"><caption>What each subtext adds, and the score of all up to it</caption>'
        f'<thead><tr><th scope="col"></th><th scope="col" class="name">added</th>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _score(line: Line, place: int) -> str:
    notes = ["cut"] if line.cut[place] else []
    notes += ["tie"] if place and line.scores[place] == line.scores[place - 1] else []
    said = f" <small>{', '.join(notes)}</small>" if notes else ""
    return f"<td>{line.scores[place]:.4f}{said}</td>"
