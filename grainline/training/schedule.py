"""Learning rate schedules: a linear warm-up, then cosine, step decay or constant.

A schedule is a function of the step alone, so a resumed run needs no further state. Steps count from 0. Spans
below 1 are a share of the run, from 1 on they are a number of steps.
"""

import itertools
import math
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from grainline.config import Config
from grainline.errors import UserError


def _whole_from_one(span: float) -> float:
    if span >= 1 and span != int(span):
        raise ValueError("below 1 it is a share of the run, from 1 on a whole number of steps")
    return span


def _increasing(milestones: tuple[float, ...]) -> tuple[float, ...]:
    shares = {span < 1 for span in milestones}
    if len(shares) > 1:
        raise ValueError("give all milestones as shares below 1, or all as numbers of steps")
    if any(b <= a for a, b in itertools.pairwise(milestones)):
        raise ValueError("milestones must grow from one to the next")
    return milestones


Span = Annotated[float, Field(ge=0), AfterValidator(_whole_from_one)]
"""A share of the run (below 1) or a number of steps (1, 2, 3, ...)."""

Factor = Annotated[float, Field(ge=0)]


class Constant(Config):
    """The base rate after the warm-up."""

    kind: Literal["constant"] = "constant"
    warmup: Span = 0.0


class Cosine(Config):
    """Half a cosine, from the base rate at the end of the warm-up to `final` times it after the last step.

    With `over="run"` the cosine starts at step 0 and the warm-up replaces its first part: the rate then drops
    a little at the end of the warm-up, as in the code of GroupViT.
    """

    kind: Literal["cosine"] = "cosine"
    warmup: Span = 0.05
    final: Factor = 0.0
    first: Factor | None = None  # factor at step 0, from which the warm-up climbs; None: 1 / warmup
    over: Literal["rest", "run"] = "rest"


class StepDecay(Config):
    """The base rate times `factor` once for every milestone that has been reached."""

    kind: Literal["step"] = "step"
    warmup: Span = 0.0
    milestones: Annotated[tuple[Span, ...], AfterValidator(_increasing)] = (0.5, 0.75)
    factor: Factor = 0.1


Schedule = Annotated[Constant | Cosine | StepDecay, Field(discriminator="kind")]


def rate(schedule: Constant | Cosine | StepDecay, step: int, total: int) -> float:
    """The factor on the base rate for the update at `step` of a run of `total` steps.

    The warm-up is a straight line from 1 / warmup at step 0 to 1 at its last step, or from `first` to 1 at
    the step after it. The last step of a cosine is one step short of `final`, so that no update has rate 0.
    Steps past the end have the factor of the end.

    >>> [rate(Cosine(warmup=2), step, total=6) for step in (0, 1, 2)]
    [0.5, 1.0, 1.0]
    >>> round(rate(Cosine(warmup=2, final=0.1), 4, total=6), 4), rate(Cosine(warmup=2, final=0.1), 6, total=6)
    (0.55, 0.1)
    >>> [rate(StepDecay(milestones=(0.5, 0.75), factor=0.5), step, total=8) for step in (3, 4, 6)]
    [1.0, 0.5, 0.25]

    A warm-up that is longer than the run is a UserError.
    """
    warmup = steps_of(schedule.warmup, total)
    if warmup > total:
        raise UserError(
            f"the schedule warms up for {warmup} steps, but the run has only {total}: "
            "set warmup to fewer steps, or to a share of the run below 1"
        )
    if step < warmup:
        first = schedule.first if isinstance(schedule, Cosine) else None
        return (step + 1) / warmup if first is None else first + (1.0 - first) * step / warmup
    if isinstance(schedule, Constant):
        return 1.0
    if isinstance(schedule, StepDecay):
        reached = sum(step >= steps_of(span, total) for span in schedule.milestones)
        return schedule.factor**reached
    start = warmup if schedule.over == "rest" else 0
    done = min((step - start) / max(total - start, 1), 1.0)
    return schedule.final + (1.0 - schedule.final) * (1.0 + math.cos(math.pi * done)) / 2.0


def steps_of(span: float, total: int) -> int:
    """A span in steps: a share of the run is rounded to the nearest step.

    >>> steps_of(0.05, total=1000), steps_of(30, total=1000)
    (50, 30)
    """
    return round(span * total) if span < 1 else int(span)
