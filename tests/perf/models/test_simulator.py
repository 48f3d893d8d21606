"""The simulator: against exact formulas, against itself done the slow way, and nothing ever gets lost uncounted."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perf.models.assumptions import ModelError
from perf.models.centres import MG1, MM1, MM1K, MMc, OnOff, Unreliable
from perf.models.chains import ChainSetting, predict_chain
from perf.models.connectivity import Connectivity, Expiry, overall
from perf.models.distributions import Always, Exponential, LogNormal, MeasuredTimes
from perf.models.intervals import interval_of, replicate
from perf.models.patterns import Reliability, pattern
from perf.models.serving import Fate, serve_all, serve_some
from perf.models.simulator import (
    Alternating,
    AtTimes,
    BySlots,
    SimulatedQueue,
    SimulatedRun,
    SimulatedSource,
    SimulatedWorld,
    poisson,
    simulate,
)
from perf.models.timeline import always, drawn, measured
from perf.models.worlds import world_of


def one_queue(rate: float, queue: SimulatedQueue, **connectivity: Alternating) -> SimulatedWorld:
    return SimulatedWorld((SimulatedSource("source", poisson(rate), queue.name),), (queue,), connectivity)


def mean_of(world: SimulatedWorld, messages: int, seed: int) -> float:
    run = simulate(world, messages, seed)
    assert run.ledger.balanced
    return float(run.responses(warm_up=run.created[-1] / 20).mean())


@pytest.mark.parametrize("load", [0.25, 0.5, 0.7])
def test_theorem_2_lies_in_the_simulated_interval(load: float) -> None:
    exact = OnOff(0, 0.125, 20, 20)
    rate = load * exact.saturation
    world = one_queue(
        rate, SimulatedQueue("q", Exponential(0.125), served_while="c"), c=Alternating(Exponential(20), Exponential(20))
    )
    found = replicate(lambda seed: mean_of(world, 150_000, seed), 12, 1)
    assert found.contains(OnOff(rate, 0.125, 20, 20).mean_response())
    assert found.margin < 0.1 * found.mean


@pytest.mark.parametrize("rate", [0.5, 2.0])
def test_so_does_the_extension_to_constant_disconnections(rate: float) -> None:
    world = one_queue(
        rate, SimulatedQueue("q", Exponential(0.125), served_while="c"), c=Alternating(Exponential(20), Always(20))
    )
    found = replicate(lambda seed: mean_of(world, 40_000, seed), 12, 5)
    assert found.contains(OnOff(rate, 0.125, 20, 20, 400.0).mean_response())


def test_continuous_queues_as_the_textbook_has_them() -> None:
    for queue, exact in (
        (SimulatedQueue("q", Exponential(0.1)), MM1(6, 0.1).mean_response()),
        (SimulatedQueue("q", Always(0.1)), MG1(6, 0.1, 0.01).mean_response()),
        (SimulatedQueue("q", LogNormal(0.1, 2.0)), MG1(6, 0.1, 0.03).mean_response()),
        (SimulatedQueue("q", Exponential(0.4), servers=3), MMc(6, 0.4, 3).mean_response()),
        (SimulatedQueue("q", Exponential(0.2), places=4), MM1K(6, 0.2, 4).mean_response()),
    ):
        found = replicate(lambda seed, queue=queue: mean_of(one_queue(6.0, queue), 30_000, seed), 10, 3)
        assert abs(found.mean - exact) < 2 * found.margin, queue


def test_shares_that_are_dropped_or_lost() -> None:
    bounded = simulate(one_queue(6.0, SimulatedQueue("q", Exponential(0.2), places=4)), 100_000, 1)
    assert bounded.ledger.dropped / 100_000 == pytest.approx(MM1K(6, 0.2, 4).dropped(), abs=0.01)
    link = Alternating(Exponential(5), Exponential(2))
    lossy = simulate(one_queue(6.0, SimulatedQueue("q", Exponential(0.1), loses_on="c"), c=link), 200_000, 1)
    assert lossy.ledger.lost / 200_000 == pytest.approx(Unreliable(6, 0.1, 5, 2).lost(), abs=0.02)


def test_expiry_follows_the_closed_form_where_service_is_nothing() -> None:
    hops = (Connectivity(40, 40), Connectivity(15, 15))
    setting = ChainSetting(
        2.0, 1e-6, connectivity=dict(zip(("publisher-broker", "broker-subscriber"), hops, strict=True)), lifetime=10
    )
    run = simulate(world_of(pattern(4, Reliability.RELIABLE), setting), 150_000, 4)
    assert run.success() == pytest.approx(Expiry(hops).within(10), abs=0.03)
    assert run.ledger.lost == run.ledger.dropped == 0
    assert run.responses().max() <= 10 + 1e-3


def test_reliable_chains_lose_by_expiry_only_and_unreliable_ones_on_links_too() -> None:
    parties = {name: Connectivity(30, 10) for name in ("publisher", "broker", "publisher-broker", "broker-subscriber")}
    setting = ChainSetting(2.0, 0.02, connectivity=parties, link=Connectivity(30, 10), lifetime=8)
    reliable = simulate(world_of(pattern(4, Reliability.RELIABLE), setting), 20_000, 1).ledger
    assert reliable.lost == 0 < reliable.expired
    unreliable = simulate(world_of(pattern(4, Reliability.UNRELIABLE), setting), 20_000, 1).ledger
    assert unreliable.lost > 0 < unreliable.expired


def worlds() -> st.SearchStrategy[SimulatedWorld]:
    """Two sources, a branch, and everything that can happen to a message."""
    switching = st.builds(
        Alternating, st.builds(Exponential, st.floats(0.5, 20)), st.builds(Exponential, st.floats(0, 20))
    )

    def build(
        rate: float, lifetime: float | None, places: int | None, servers: int, share: float, link: Alternating
    ) -> SimulatedWorld:
        return SimulatedWorld(
            (
                SimulatedSource("a", poisson(rate), "first", lifetime),
                SimulatedSource("b", poisson(1.0), "second", None),
            ),
            (
                SimulatedQueue(
                    "first", Exponential(0.3), (("second", share), ("third", 1 - share)), served_while="c", expires=True
                ),
                SimulatedQueue("second", Always(0.2), servers=servers, places=places, expires=True),
                SimulatedQueue("third", LogNormal(0.1, 1.0), loses_on="both"),
            ),
            {"c": link, "d": link, "both": ("c", "d")},
        )

    return st.builds(
        build,
        st.floats(0.1, 5),
        st.none() | st.floats(0.1, 20),
        st.none() | st.integers(3, 6),
        st.integers(1, 3),
        st.floats(0, 1),
        switching,
    )


@settings(max_examples=40, deadline=None)
@given(worlds(), st.integers(0, 1000), st.none() | st.floats(1, 100))
def test_everything_that_was_made_is_accounted_for(world: SimulatedWorld, seed: int, until: float | None) -> None:
    run = simulate(world, 300, seed, until)
    assert run.ledger.balanced, run.ledger
    ends = np.bincount(run.fates, minlength=len(Fate))
    ledger = run.ledger
    assert [ledger.delivered, ledger.expired, ledger.lost, ledger.dropped] == ends[1:].tolist()
    assert ledger.in_flight == ends[0]
    for visits in run.visits.values():
        assert (visits.queued <= visits.started).all()
        assert (visits.started <= visits.done).all()
        assert (visits.found >= 0).all()


def test_one_seed_gives_one_run_and_another_seed_another() -> None:
    setting = ChainSetting(2.0, 0.05, connectivity={"publisher-broker": Connectivity(20, 10)}, lifetime=5)
    world = world_of(pattern(4, Reliability.RELIABLE), setting)
    first, same, other = (simulate(world, 2000, seed) for seed in (1, 1, 2))
    assert np.array_equal(first.ended, same.ended)
    assert not np.array_equal(first.ended, other.ended)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0, 50), max_size=40).map(sorted),
    st.integers(0, 10**6),
    st.booleans(),
)
def test_numpy_and_the_loop_serve_alike(arrived: list[float], seed: int, switching: bool) -> None:
    arrivals = np.array(arrived)
    services = np.random.default_rng(seed).exponential(1.0, len(arrived))

    def line() -> object:
        random = np.random.default_rng(seed)
        return drawn(Exponential(2), Exponential(3), random) if switching else None

    fast = serve_all(arrivals, services, line())  # type: ignore[arg-type]
    slow = serve_some(arrivals, services, line())  # type: ignore[arg-type]
    assert np.allclose(fast[0], slow[0], atol=1e-7)
    assert np.allclose(fast[1], slow[1], atol=1e-7)
    patient = serve_some(arrivals, services, line(), deadlines=np.full(len(arrived), np.inf), places=1000)  # type: ignore[arg-type]
    assert np.allclose(slow[1], patient[1])


def test_what_a_message_finds_is_who_came_before_and_has_not_left() -> None:
    run = simulate(one_queue(8.0, SimulatedQueue("q", Exponential(0.1))), 500, 3)
    visits = run.visits["q"]
    for number in range(0, 500, 37):
        there = sum(visits.done[other] > visits.queued[number] for other in range(number))
        assert visits.found[number] == there


def test_traces_drive_arrivals_services_and_connectivity() -> None:
    at = np.array([1.0, 2.0, 11.0])
    line = measured([(True, 4.0), (False, 6.0)])
    world = SimulatedWorld(
        (SimulatedSource("s", AtTimes(at), "q"),),
        (SimulatedQueue("q", MeasuredTimes(np.array([2.5, 1.0]), in_order=True), served_while="c"),),
        {"c": line},
    )
    run = simulate(world, 10, 1)
    # The second is interrupted at 4 after 0.5 s, and resumed when the trace begins again at 10.
    assert run.ended.tolist() == [3.5, 10.5, 13.5]
    assert line.connected(np.array([0.0, 4.0, 9.9, 10.0, 23.0])).tolist() == [True, False, False, True, True]
    slots = BySlots((100.0, 0.0, 300.0), 10.0).times(np.random.default_rng(1), 1000)
    assert 60 < (slots < 10).sum() < 140
    assert not ((slots >= 10) & (slots < 20)).any()


def test_connected_all_at_once_is_the_intersection() -> None:
    both = SimulatedWorld(
        (SimulatedSource("s", poisson(1.0), "q"),),
        (SimulatedQueue("q", Exponential(0.1), served_while="session"),),
        {
            "a": Alternating(Exponential(40), Exponential(20)),
            "b": Alternating(Exponential(30), Exponential(10)),
            "session": ("a", "b"),
        },
    )
    run = simulate(both, 60_000, 1)
    session = run.timelines["session"]
    expected = overall([Connectivity(40, 20), Connectivity(30, 10)])
    spells = session.ends - session.begins
    assert spells.mean() == pytest.approx(expected.on, rel=0.08)
    assert spells.sum() / session.ends[-1] == pytest.approx(expected.share, rel=0.08)
    times = np.linspace(0, 50_000, 5000)
    each = run.timelines["a"].connected(times) & run.timelines["b"].connected(times)
    assert np.array_equal(session.connected(times), each)


def test_clocks_that_stand_still_go_there_and_back() -> None:
    line = drawn(Exponential(3), Exponential(2), np.random.default_rng(5))
    times = np.sort(np.random.default_rng(6).random(1000)) * 500
    again = line.wall(line.clock(times))
    up = line.connected(times)
    assert np.allclose(again[up], times[up])
    assert np.allclose(line.clock(again), line.clock(times))
    assert always().connected(times).all()


def test_networks_that_cannot_be_are_refused() -> None:
    queue = SimulatedQueue("q", Exponential(1), (("q", 1.0),))
    with pytest.raises(ModelError, match="messages come back to q"):
        simulate(one_queue(1, queue), 1, 1)
    with pytest.raises(ModelError, match="which is no queue"):
        simulate(one_queue(1, SimulatedQueue("q", Exponential(1), (("z", 1.0),))), 1, 1)
    with pytest.raises(ModelError, match=r"must add up to 1, not 0\.5"):
        SimulatedQueue("q", Exponential(1), (("z", 0.5),))
    with pytest.raises(ModelError, match="nobody says when c"):
        simulate(one_queue(1, SimulatedQueue("q", Exponential(1), served_while="c")), 1, 1)
    with pytest.raises(ModelError, match="at least 2 runs"):
        interval_of([1.0])


def test_sums_over_a_chain_and_the_word_that_they_are_too_low() -> None:
    services = {"pub_mdw": 1 / 32, "broker_out": 1 / 32, "sub_mdw": 1 / 32}
    parties = {"publisher-broker": Connectivity(40, 40), "broker-subscriber": Connectivity(15, 15)}

    def both(rate: float) -> tuple[float, float, tuple[str, ...]]:
        setting = ChainSetting(rate, 1 / 64, services, parties)
        chain = pattern(4, Reliability.RELIABLE)
        predicted = predict_chain(chain, setting)

        def measure(seed: int) -> float:
            run: SimulatedRun = simulate(world_of(chain, setting), 60_000, seed)
            return float(run.responses().mean())

        assert predicted.mean is not None
        return predicted.mean, replicate(measure, 6, 1).mean, predicted.warnings

    low, simulated, warnings = both(0.5)
    assert low == pytest.approx(simulated, rel=0.08)
    assert not warnings
    high, simulated, warnings = both(8.0)
    assert high < 0.92 * simulated
    assert any("bursts" in warning for warning in warnings)
