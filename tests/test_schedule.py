"""Schedules against values worked out by hand."""

import math

import pytest
from pydantic import TypeAdapter, ValidationError

from grainline.training.optim import Constant, Cosine, Schedule, StepDecay, rate


def factors(schedule: Constant | Cosine | StepDecay, total: int) -> list[float]:
    return [rate(schedule, step, total) for step in range(total)]


def test_a_cosine_climbs_in_a_straight_line_and_then_falls_to_its_final_factor() -> None:
    expected = [0.25, 0.5, 0.75, 1.0]
    for done in range(8):  # a slow copy of the definition: 8 steps share half a turn
        expected.append(0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi * done / 8)))
    assert factors(Cosine(warmup=4, final=0.2), 12) == pytest.approx(expected, abs=1e-12)


def test_a_cosine_over_the_run_goes_on_under_its_warm_up() -> None:
    """The rates of GroupViT's code: 2 of 30 epochs of 705 steps from 4e-6, to 4e-5."""
    schedule = Cosine(warmup=1410, final=0.025, first=0.0025, over="run")
    expected = {0: 4e-6, 1: 8.02e-4, 2: 1.583e-3, 15: 8.2e-4, 26: 1.0743e-4, 30: 4e-5}
    actual = {epoch: 1.6e-3 * rate(schedule, 705 * epoch, 21150) for epoch in expected}
    assert actual == pytest.approx(expected, rel=1e-4)


def test_a_warm_up_from_a_first_factor_ends_at_the_base_rate() -> None:
    assert factors(Cosine(warmup=4, first=0.2), 6)[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


def test_the_last_step_of_a_cosine_still_moves_and_the_step_after_it_would_not() -> None:
    assert rate(Cosine(warmup=0), 9, 10) == pytest.approx(0.5 * (1 - math.cos(math.pi / 10)))
    assert rate(Cosine(warmup=0), 10, 10) == pytest.approx(0.0, abs=1e-15)
    assert rate(Cosine(warmup=0, final=0.3), 25, 10) == pytest.approx(0.3)


def test_a_step_decay_multiplies_once_at_each_milestone() -> None:
    by_share = StepDecay(warmup=2, milestones=(0.5, 0.8), factor=0.1)
    expected = [0.5, 1, 1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01]
    assert factors(by_share, 10) == pytest.approx(expected)
    assert factors(StepDecay(warmup=2, milestones=(5, 8)), 10) == pytest.approx(expected)


def test_a_constant_schedule_is_one_from_the_end_of_its_warm_up() -> None:
    assert factors(Constant(warmup=2), 4) == [0.5, 1.0, 1.0, 1.0]
    assert factors(Constant(), 3) == [1.0, 1.0, 1.0]


def test_a_warm_up_below_one_is_a_share_of_the_run() -> None:
    assert factors(Cosine(warmup=0.2), 20) == factors(Cosine(warmup=4), 20)
    assert factors(Constant(warmup=1), 3) == [1.0, 1.0, 1.0]  # one step, not the whole run


def test_a_warm_up_longer_than_the_run_ends_with_it() -> None:
    for schedule in (Cosine(warmup=200), Constant(warmup=200), StepDecay(warmup=200)):
        assert [rate(schedule, step, 4) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]


def test_a_schedule_is_chosen_by_its_kind() -> None:
    parse = TypeAdapter(Schedule).validate_python
    assert parse({"kind": "step", "milestones": [10, 20], "factor": 0.5}) == StepDecay(
        milestones=(10, 20), factor=0.5
    )
    assert parse({"kind": "cosine", "warmup": 0.1}) == Cosine(warmup=0.1)
    assert parse({"kind": "constant"}) == Constant()


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"kind": "linear"}, "'constant', 'cosine', 'step'"),
        ({"kind": "cosine", "milestones": [1]}, "no field milestones"),
        (
            {"kind": "cosine", "warmup": 2.5},
            "below 1 it is a share of the run, from 1 on a whole number of steps",
        ),
        ({"kind": "cosine", "warmup": -1}, "greater than or equal to 0"),
        ({"kind": "cosine", "final": math.nan}, "finite number"),
        (
            {"kind": "step", "milestones": [0.5, 20]},
            "all milestones as shares below 1, or all as numbers of steps",
        ),
        ({"kind": "step", "milestones": [0.5, 0.5]}, "milestones must grow"),
    ],
)
def test_a_bad_schedule_is_refused_with_what_is_allowed(values: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        TypeAdapter(Schedule).validate_python(values)
