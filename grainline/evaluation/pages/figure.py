"""Figures as PNG: score against the number of subtexts, as in HiMo-CLIP, for some pictures and several
models; heat maps of sentences, or of the texts of regions, in single outcomes.
"""

from collections.abc import Sequence
from itertools import count
from pathlib import Path, PurePath

import numpy as np

from grainline.data.formats.common import some
from grainline.errors import UserError
from grainline.evaluation.collectors.subtexts import EACH
from grainline.evaluation.compare import read_earlier, refuse_other
from grainline.evaluation.pages.examples import SHOWN as EXAMPLES
from grainline.evaluation.pages.examples import Beside, Measured, by_text, spread
from grainline.evaluation.pages.extremes import (
    best_expressions,
    best_regions,
    worst_expressions,
    worst_regions,
)
from grainline.evaluation.pages.pointing import best_choices, worst_choices
from grainline.evaluation.pages.tokened import by_position, captions, refuse_groupless
from grainline.evaluation.result import Result
from grainline.evaluation.suites.comprehension import COMPREHENSION
from grainline.evaluation.suites.fgovd import FG_OVD
from grainline.evaluation.suites.monotonicity import LEAST, LONG, MONOTONICITY, correlation
from grainline.evaluation.suites.phrases import PHRASES
from grainline.evaluation.suites.referring import REFERRING
from grainline.evaluation.suites.registry import RANKED
from grainline.model import Model
from grainline.report.case import Look
from grainline.report.charts import Line, Rising
from grainline.report.png import COLOURS, require_matplotlib, write_maps, write_png, write_strips

SHOWN = 4  # pictures, unless they are named
MOST = len(COLOURS)  # models
MAPPED = (*RANKED, FG_OVD, REFERRING, COMPREHENSION)  # suites whose outcomes have heat maps


def besides(
    suite: str, drawn: Sequence[Path | None], paths: Sequence[str] | None, samples: Sequence[str] | None
) -> Beside:
    """The options of the figure, read and checked before anything is measured.

    drawn  where to write the PNG and the page

    Raises UserError for options that do not go together and for files that are no result of this suite.
    """
    png, _ = drawn
    given = {"--png": png, "--beside": paths, "--samples": samples}
    for name, value in given.items():
        allowed = (MONOTONICITY, *((*MAPPED, PHRASES) if name == "--png" else ()))
        if value and suite not in allowed:
            raise UserError(f"{name} goes with --suite {', '.join(allowed)}, not with {suite}")
        if value and not any(drawn):
            raise UserError(f"{name} says what the figure shows; give --html FILE or --png FILE with it")
    if len(paths or ()) >= MOST:
        raise UserError(f"--beside names {len(paths or ())} results; {MOST - 1} fit beside the model")
    if png:
        require_matplotlib()
    results = tuple(read_earlier(path, suite) for path in paths or ())
    return Beside(tuple(paths or ()), results, tuple(samples or ()))


def risings(on: Measured) -> list[Rising]:
    """The pictures with the lines of all models: those that are named, else evenly from worst to best.

    Raises UserError for a result of other data and for keys that are not there.
    """
    for path, other in zip(on.beside.paths, on.beside.results, strict=True):
        refuse_other(on.result, other, path, "be drawn side by side")
    told = on.data.subtexts
    assert told is not None, "the monotonicity suite was run"
    results = [on.result, *on.beside.results]
    return [
        Rising(
            on.picture(i),
            on.data.keys[i],
            [told.strings[t] for t in told.of[EACH][i]],
            [_line(result, name, i) for result, name in zip(results, labels(results), strict=True)],
        )
        for i in _chosen(on, on.beside.samples)
    ]


def draw(path: str | Path, on: Measured) -> None:
    """Write the PNG. Raises UserError as `risings` does, and if the place cannot be written."""
    number, name = len(on.data.keys), PurePath(on.result.data["path"]).name
    if on.result.suite in MAPPED:
        write_maps(path, _looks(on), f"Heat in {on.result.suite}, {number:,} pictures of {name}")
        return
    if on.result.suite == PHRASES:
        number = len(on.result.queries["picture"])
        write_strips(path, captions(on), by_position(on), f"Groups of tokens, {number:,} captions of {name}")
        return
    write_png(path, risings(on), f"Score by subtexts, {number:,} pictures of {name}")


def refuse_unplaced(png: Path | None, suite: str, model: Model) -> None:
    """Raise UserError for heat maps of a method whose image tokens have no places, and for no groups."""
    if png and suite == PHRASES:
        refuse_groupless(model)
    if png and suite in MAPPED and not model.method.placed:
        raise UserError(
            "--png draws heat maps, and the image tokens of this model have no places in the picture"
        )


def _looks(on: Measured) -> list[Look]:
    """Pictures of the page: for retrieval from the best rank to the worst, for regions and expressions
    from both ends."""
    if on.result.suite in RANKED:
        shown = (one.look and one.look._replace(alt=f"rank {one.rank:,}, {one.name}") for one in by_text(on))
        return [look for look in shown if look is not None]
    half = EXAMPLES // 2
    if on.result.suite == REFERRING:
        both = [*worst_expressions(on, half), *best_expressions(on, half)[::-1]]
        return [one.look._replace(alt=f"IoU {100 * one.iou:.1f} %, {one.name}") for one in both]
    if on.result.suite == COMPREHENSION:
        chosen = [*worst_choices(on, half), *best_choices(on, half)[::-1]]
        return [one.look._replace(alt=one.told) for one in chosen]
    best = best_regions(on, half)[::-1]
    return [
        one.look._replace(alt=f"{one.kind}, rank {one.rank} of {one.number}, {one.name}")
        for one in [*worst_regions(on, half), *best]
    ]


def labels(results: Sequence[Result]) -> list[str]:
    """Short names that differ: the last two parts of the path, or as many as it takes, and the method."""
    paths = [PurePath(result.settings["model"]) for result in results]
    length = next(n for n in count(2) if len({path.parts[-n:] for path in paths}) == len(set(paths)))
    names = [
        f"{PurePath(*path.parts[-length:])} ({result.settings['method']})"
        for path, result in zip(paths, results, strict=True)
    ]
    same = {name for name in names if names.count(name) > 1}  # one path, measured more than once
    return [f"{name}, {i}" if name in same else name for i, name in enumerate(names, 1)]


def _line(result: Result, name: str, place: int) -> Line:
    found = result.queries["sequences"][EACH]
    scores = found["scores"][place]
    return Line(name, scores, [bool(cut) for cut in found["cut"][place]], correlation(scores))


def _chosen(on: Measured, keys: Sequence[str]) -> list[int]:
    if keys:
        place = {key: i for i, key in enumerate(on.data.keys)}
        gone = [key for key in keys if key not in place]
        if gone:
            raise UserError(
                f"--samples names {some(gone)}, of which there is no picture; keys are like {on.data.keys[0]}"
            )
        return [place[key] for key in keys]
    scores = on.result.queries["sequences"][EACH]["scores"]
    least = next(n for n in (LEAST[LONG], 2, 1) if any(len(one) >= n for one in scores))
    long = np.array([i for i, one in enumerate(scores) if len(one) >= least])
    return long[spread(np.array([correlation(scores[i]) for i in long]), SHOWN)].tolist()
