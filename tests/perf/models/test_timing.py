"""The timing model and expiry: closed forms against the text's table, conditions, simulated windows and each other."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf.models.assumptions import ModelError
from perf.models.connectivity import Connectivity, Expiry, overall
from perf.models.timing import (
    ExchangeOutcome,
    PostOutcome,
    TimingModel,
    empty_windows,
    outcome_of_exchange,
    outcome_of_post,
    post_succeeds,
    response_of_post,
)

TIME_ON = 20.0
TABLE = [(0, 20, 0.632), (0, 40, 0.393), (10, 20, 0.777), (10, 40, 0.528), (40, 20, 0.950), (40, 40, 0.777)]
moments = st.floats(0, 100)
lengths = st.floats(0.1, 60)


@pytest.mark.parametrize(("lifetime", "spacing", "success"), TABLE)
def test_closed_form_gives_the_table(lifetime: float, spacing: float, success: float) -> None:
    assert round(TimingModel(TIME_ON, spacing).success(lifetime), 3) == success


@pytest.mark.parametrize(("lifetime", "spacing", "success"), TABLE)
def test_windows_at_poisson_times_succeed_as_often(lifetime: float, spacing: float, success: float) -> None:
    drawn = random.Random(1)
    model = TimingModel(TIME_ON, spacing)
    tries, met, waited = 4000, 0, 0.0
    for _ in range(tries):
        at, windows = -TIME_ON, []
        while at < lifetime:
            at += drawn.expovariate(1 / spacing)
            windows.append(at)
        response = response_of_post(0.0, windows, lifetime, TIME_ON)
        if response is not None:
            met += 1
            waited += response
    assert met / tries == pytest.approx(model.success(lifetime), abs=3 / math.sqrt(tries) / 2)
    assert waited / met == pytest.approx(model.mean_response(lifetime), abs=0.5)


@given(moments, st.lists(moments, max_size=5).map(sorted), lengths, lengths)
def test_success_and_failure_are_what_the_automata_say(
    post: float, windows: list[float], lifetime: float, time_on: float
) -> None:
    outcome = outcome_of_post(post, windows, lifetime, time_on)
    starts_inside = any(post < opened < post + lifetime for opened in windows)
    posted_inside = any(opened < post < opened + time_on for opened in windows)
    # 4.12: a success is a window that opens during the post, or a post into an open window.
    assert (outcome is PostOutcome.SUCCESS) == (starts_inside or posted_inside)
    # 4.13: after a failure the lifetime has passed with no window open in it.
    if outcome is PostOutcome.FAILURE:
        assert not any(opened < post + lifetime and opened + time_on > post and opened != post for opened in windows)
    # 4.14: an empty window met no post that was still valid.
    if empty_windows([post], windows, lifetime, time_on) == len(windows):
        assert outcome is PostOutcome.FAILURE


@given(moments, st.lists(moments, max_size=5).map(sorted), lengths, lengths, lengths)
def test_exchanges_end_in_one_of_three_ways(
    request_at: float, windows: list[float], serve_time: float, timeout: float, time_on: float
) -> None:
    outcome = outcome_of_exchange(request_at, windows, serve_time, timeout, time_on)
    reached = any(opened <= request_at + timeout and opened + time_on > request_at for opened in windows)
    assert (outcome is ExchangeOutcome.NOT_REACHED) != reached  # 4.22
    if outcome is ExchangeOutcome.NOT_ANSWERED:  # 4.23
        assert serve_time > timeout or not any(opened <= request_at < opened + time_on for opened in windows)
    if serve_time > timeout:
        assert outcome is not ExchangeOutcome.SUCCESS


def test_a_server_that_is_connected_already_serves_at_once() -> None:
    assert outcome_of_exchange(5.0, [0.0], 1.0, 2.0, 10.0) is ExchangeOutcome.SUCCESS
    # What was begun in a window is finished after it.
    assert outcome_of_exchange(9.5, [0.0], 1.0, 2.0, 10.0) is ExchangeOutcome.SUCCESS
    assert outcome_of_exchange(5.0, [8.0], 1.0, 2.0, 10.0) is ExchangeOutcome.NOT_REACHED
    assert outcome_of_exchange(5.0, [6.5], 1.0, 2.0, 10.0) is ExchangeOutcome.NOT_ANSWERED
    assert not post_succeeds(5.0, 8.0, 2.0, 10.0)


@given(st.floats(1, 100), st.floats(1, 100), st.floats(0, 0.999))
def test_the_smallest_lifetime_reaches_the_share_and_a_smaller_one_does_not(
    time_on: float, spacing: float, share: float
) -> None:
    model = TimingModel(time_on, spacing)
    lifetime = model.lifetime_for(share)
    assert model.success(lifetime) >= share - 1e-12
    if lifetime > 0:
        assert model.success(lifetime * 0.99) < share


@given(lengths, lengths, st.floats(0, 100), st.floats(0.1, 20))
def test_longer_lifetimes_succeed_more_often_and_later(
    time_on: float, spacing: float, lifetime: float, more: float
) -> None:
    model = TimingModel(time_on, spacing)
    assert model.success(lifetime + more) >= model.success(lifetime)
    assert model.mean_response(lifetime + more) >= model.mean_response(lifetime) - 1e-9
    assert model.within(1e9, lifetime) == model.success(lifetime)


def two_hops(a: Connectivity, b: Connectivity, seconds: float) -> float:
    """As printed, for different means."""
    qa, qb = 1 - a.share, 1 - b.share
    ea, eb = math.exp(-seconds / a.off), math.exp(-seconds / b.off)
    both = 1 - (a.off * ea - b.off * eb) / (a.off - b.off)
    return a.share * b.share + a.share * qb * (1 - eb) + qa * b.share * (1 - ea) + qa * qb * both


@given(lengths, lengths, lengths, st.floats(0, 200))
def test_expiry_on_one_and_two_hops_as_printed(on: float, off: float, other: float, seconds: float) -> None:
    a, b = Connectivity(on, off), Connectivity(20.0, other)
    assert Expiry((a,)).within(seconds) == pytest.approx(1 - (1 - a.share) * math.exp(-seconds / off), abs=1e-9)
    if abs(off - other) > 0.01 * off:
        assert Expiry((a, b)).within(seconds) == pytest.approx(two_hops(a, b, seconds), abs=1e-7)
    near = Connectivity(20.0, off * 1.0001)
    assert Expiry((a, Connectivity(20.0, off))).within(seconds) == pytest.approx(two_hops(a, near, seconds), abs=1e-3)


def test_figures_of_the_reliable_publish_subscribe_chain() -> None:
    hops = (Connectivity(40, 40), Connectivity(15, 15))
    assert round(Expiry(hops).within(10), 3) == 0.442
    assert round(Expiry(hops).within(30), 3) == 0.679
    assert round(Expiry(hops).within(1) / Expiry(hops).within(10), 3) == 0.616
    assert round(Expiry(hops).within(10) / Expiry(hops).within(30), 3) == 0.651
    assert round(Expiry((Connectivity(50, 30), Connectivity(20, 10))).within(30), 3) == 0.832
    assert Expiry(hops).mean() == pytest.approx(27.5)
    assert Expiry(hops).mean_of_delivered(3000) == pytest.approx(27.5, rel=1e-3)
    assert Expiry(hops).within(100_000) == pytest.approx(1.0)  # terms of the series would underflow


@given(st.lists(st.builds(Connectivity, lengths, lengths), min_size=1, max_size=3), st.floats(0, 0.99))
def test_lifetimes_for_a_share(hops: list[Connectivity], share: float) -> None:
    expiry = Expiry(tuple(hops))
    lifetime = expiry.lifetime_for(share)
    assert expiry.within(lifetime) >= share - 1e-7
    with pytest.raises(ModelError, match="below 1"):
        expiry.lifetime_for(1.0)


def test_connected_all_at_once() -> None:
    both = overall([Connectivity(40, 40), Connectivity(30, 10)])
    assert both.share == pytest.approx(0.375)
    assert both.on == pytest.approx(1 / (1 / 40 + 1 / 30))
    assert overall([Connectivity(5, 0), Connectivity(40, 40)]) == Connectivity(40, 40)
    assert overall([]).share == 1
