"""Waits between tries: bounded, spread, and at an end."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.backoff import BackOff, RetrySchedule, Waits


@given(st.integers(0, 10**9), st.integers())
def test_a_wait_is_between_half_and_the_whole(failures: int, seed: int) -> None:
    back_off = BackOff(1, 2, 300)
    whole = back_off.most(failures)
    assert whole == min(300, 2 ** min(max(failures - 1, 0), 64))
    assert whole / 2 <= back_off.wait(failures, random.Random(seed)) <= whole
    assert back_off.wait(failures) == whole, "without randomness it is the whole"


@pytest.mark.parametrize("wrong", [(0, 2, 10), (5, 2, 1), (1, 0.5, 10), (1, 1e9, 10), (float("nan"), 2, 10)])
def test_a_back_off_that_makes_no_sense_is_refused(wrong: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="needs 0 < first <= longest"):
        BackOff(*wrong)


def test_waits_grow_with_failures_and_begin_anew_after_a_success() -> None:
    waits = Waits(BackOff(1, 4, 64), random.Random(1))
    grown = [waits.next() for _ in range(5)]
    assert grown == sorted(grown)
    assert grown[-1] <= 64
    waits.reset()
    assert waits.next() <= 1


@given(st.integers(1, 11), st.floats(0, 86_000), st.floats(0, 1e6))
def test_a_schedule_that_is_asked_to_try_at_its_end_does_and_then_gives_up(
    attempts: int, age: float, asked: float
) -> None:
    schedule = RetrySchedule(last_at_end=True)
    at = schedule.next_try(attempts, 0.0, age, asked)
    assert at is not None
    assert age < at <= schedule.max_age
    assert schedule.next_try(attempts, 0.0, schedule.max_age) is None
