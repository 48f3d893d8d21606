"""The wait for an answer follows what was measured, and only what can be trusted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psirp_stack.control.rtt import RoundTrip


def test_steady_round_trips_are_followed() -> None:
    estimate = RoundTrip()
    assert estimate.timeout == 0.5
    for number in range(100):
        estimate.answered(number, number + 0.1, 1)
    assert estimate.smoothed == pytest.approx(0.1)
    assert 0.1 < estimate.timeout < 0.13


def test_each_timeout_doubles_the_wait_up_to_the_maximum_until_a_first_attempt_succeeds() -> None:
    estimate = RoundTrip(initial=1.0, maximum=10.0)
    waits = []
    for _ in range(6):
        waits.append(estimate.timeout)
        estimate.timed_out()
    assert waits == [1, 2, 4, 8, 10, 10]
    estimate.answered(0.0, 0.2, 2)  # an answer to a repetition: nothing is learnt
    assert estimate.timeout == 10
    assert estimate.smoothed is None
    estimate.answered(0.0, 0.2, 1)
    assert estimate.timeout < 1


def test_bounds_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="minimum <= initial"):
        RoundTrip(initial=0.1, minimum=1.0)


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 3)) | st.none(), max_size=50))
def test_the_wait_stays_within_its_bounds(history: list[tuple[float, int] | None]) -> None:
    estimate = RoundTrip(initial=0.5, minimum=0.05, maximum=4.0)
    for step in history:
        if step is None:
            estimate.timed_out()
        else:
            estimate.answered(0.0, *step)
        assert 0.05 <= estimate.timeout <= 4.0
