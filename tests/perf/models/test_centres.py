"""Formulas of single queues, against published points, each other, and a Markov chain that is solved numerically."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import lil_matrix
from scipy.sparse.linalg import spsolve

from perf.models.assumptions import Assumption, ModelError, SaturatedError
from perf.models.centres import MG1, MM1, MM1K, Centre, MMc, OnOff, Unreliable

REFERENCE = [
    # T_ON, T_OFF, D, saturation, R at 0.05/s, R at half of saturation, R at 85 %
    (20, 20, 0.125, 4.000, 10.3797, 20.5000, 68.3333),
    (40, 40, 0.125, 4.000, 20.5063, 40.5000, 135.0000),
    (60, 60, 0.125, 4.000, 30.6329, 60.5000, 201.6667),
    (146.38, 96, 0.125, 4.831, None, 76.4598, 254.8661),
    (155.88, 72.15, 0.125, 5.469, None, 46.0231, 153.4102),
]
loads = st.floats(0.01, 0.95)
times = st.floats(1e-3, 1e3)


@pytest.mark.parametrize(("on", "off", "service", "saturation", "low", "half", "high"), REFERENCE)
def test_theorem_2_gives_the_reference_points(
    on: float, off: float, service: float, saturation: float, low: float | None, half: float, high: float
) -> None:
    def response(rate: float) -> float:
        return round(OnOff(rate, service, on, off).mean_response(), 4)

    most = OnOff(0, service, on, off).saturation
    assert round(most, 3) == saturation
    assert response(most / 2) == half
    assert response(0.85 * most) == high
    if low is not None:
        assert response(0.05) == low


def mean_by_markov_chain(rate: float, service: float, on: float, off: float, room: int = 2500) -> float:
    """Queue length times connected or not, cut off at `room` messages; mean response by Little's law."""
    size = 2 * (room + 1)
    flow = lil_matrix((size, size))

    def go(start: int, end: int, at: float) -> None:
        flow[end, start] += at
        flow[start, start] -= at

    for number in range(room + 1):
        up, down = 2 * number, 2 * number + 1
        go(up, down, 1 / on)
        go(down, up, 1 / off)
        if number < room:
            go(up, up + 2, rate)
            go(down, down + 2, rate)
        if number:
            go(up, up - 2, 1 / service)
    flow[0, :] = 0.0
    flow[0, 0] = 1.0  # one balance follows from the others: weigh the first state 1, and scale afterwards
    right = np.zeros(size)
    right[0] = 1.0
    share = spsolve(flow.tocsc(), right)
    share /= share.sum()
    assert share[-2:].sum() < 1e-9, "nothing worth speaking of is cut off"
    number = np.repeat(np.arange(room + 1), 2)
    return float((number * share).sum() / rate)


@pytest.mark.parametrize(
    ("rate", "service", "on", "off"),
    [(2.0, 0.125, 20, 20), (0.425, 1.0, 40, 40), (1.0, 0.5, 3, 1), (3.0, 0.2, 1, 0.5), (0.05, 0.125, 60, 60)],
)
def test_theorem_2_agrees_with_a_markov_chain(rate: float, service: float, on: float, off: float) -> None:
    exact = mean_by_markov_chain(rate, service, on, off)
    assert OnOff(rate, service, on, off).mean_response() == pytest.approx(exact, rel=1e-6)


def test_an_off_period_of_constant_length_halves_what_is_left_of_it() -> None:
    for rate, response in ((0.5, 6.0), (2.0, 10.5), (3.0, 21.0)):
        assert OnOff(rate, 0.125, 20, 20, off_second_moment=400.0).mean_response() == pytest.approx(response)


@given(times, loads)
def test_without_disconnections_it_is_a_plain_queue(service: float, load: float) -> None:
    plain = MM1(load / service, service).mean_response()
    assert OnOff(load / service, service, 1.0, 0.0).mean_response() == pytest.approx(plain)
    assert MG1(load / service, service, 2 * service**2).mean_response() == pytest.approx(plain)
    assert MMc(load / service, service, 1).mean_response() == pytest.approx(plain)
    assert Unreliable(load / service, service, 1, 1).mean_response() == pytest.approx(plain)


@given(times, st.floats(0.01, 0.8))
def test_a_queue_with_much_room_is_one_without_bound(service: float, load: float) -> None:
    bounded, plain = MM1K(load / service, service, 400), MM1(load / service, service)
    assert bounded.mean_response() == pytest.approx(plain.mean_response(), rel=1e-6)
    assert bounded.quantile(0.95) == pytest.approx(plain.quantile(0.95), rel=1e-5)


def test_quantiles_of_a_plain_queue() -> None:
    queue = MM1(8.0, 0.1)
    assert queue.quantile(0.95) == pytest.approx(math.log(20) / 2)
    assert queue.quantile(0.99) == pytest.approx(math.log(100) / 2)


def test_several_servers_as_in_the_tables_of_erlang_c() -> None:
    # 20 Erlang for 24 servers: 29.81 % wait (Erlang's tables).
    queue = MMc(20.0, 1.0, 24)
    assert queue.waits() == pytest.approx(0.2981, abs=1e-4)
    assert queue.mean_response() == pytest.approx(1 + 0.2981 / 4, abs=1e-4)
    assert MMc(5.0, 0.1, 1).quantile(0.9) == pytest.approx(MM1(5.0, 0.1).quantile(0.9))


@pytest.mark.parametrize(("load", "places"), [(0.5, 4), (0.9, 10), (1.0, 3), (1.7, 6)])
def test_a_bounded_queue_as_printed(load: float, places: int) -> None:
    queue = MM1K(load, 1.0, places)
    if load == 1:
        assert queue.dropped() == pytest.approx(1 / (places + 1))
        return
    blocked = (1 - load) * load**places / (1 - load ** (places + 1))
    number = load / (1 - load) - (places + 1) * load ** (places + 1) / (1 - load ** (places + 1))
    assert queue.dropped() == pytest.approx(blocked)
    assert queue.mean_response() == pytest.approx(number / (load * (1 - blocked)))


SATURATED: list[Centre] = [
    MM1(10, 0.1),
    MG1(11, 0.1, 0.01),
    MMc(20, 0.1, 2),
    OnOff(4.0, 0.125, 20, 20),
    OnOff(5.0, 0.125, 20, 20),
    Unreliable(10, 0.1, 1, 1),
]


@pytest.mark.parametrize("centre", SATURATED, ids=lambda one: type(one).__name__)
def test_past_saturation_there_is_no_mean(centre: Centre) -> None:
    assert centre.utilisation >= 1
    with pytest.raises(SaturatedError, match="its queue grows without end"):
        centre.mean_response()


def test_nonsense_is_refused_with_the_name_of_what_is_wrong() -> None:
    with pytest.raises(ModelError, match="service is 0; expected a number above 0"):
        MM1(1, 0)
    with pytest.raises(ModelError, match="rate is -1"):
        OnOff(-1, 1, 1, 1)
    with pytest.raises(ModelError, match="cannot be below the mean's square"):
        MG1(1, 0.1, 0.001)
    with pytest.raises(ModelError, match="service is nan"):
        MM1(1, math.nan)


def test_every_model_says_what_it_assumes() -> None:
    for centre in SATURATED:
        assert centre.name
        assert Assumption.POISSON in centre.assumptions
    assert Assumption.EXPONENTIAL_SERVICE not in MG1.assumptions
    assert {Assumption.EXPONENTIAL_ON, Assumption.EXPONENTIAL_OFF} <= set(OnOff.assumptions)
    assert len({assumption.value for assumption in Assumption}) == len(Assumption)


@given(times, loads, times, times)
def test_more_load_and_longer_disconnections_never_help(service: float, load: float, on: float, off: float) -> None:
    queue = OnOff(0, service, on, off)
    now = OnOff(load * queue.saturation, service, on, off).mean_response()
    assert OnOff(load * queue.saturation * 1.04, service, on, off).mean_response() > now
    assert MM1(load * queue.saturation, service).mean_response() <= now
