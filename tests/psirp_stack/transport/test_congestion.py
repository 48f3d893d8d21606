"""Flows that share a slow link, in whole networks on a virtual clock; and what reports say of the way."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psirp_stack.control.rtt import RoundTrip
from psirp_stack.emulation.bottleneck import Bottleneck, SharedLink
from psirp_stack.links.impairment import Impairment
from psirp_stack.transport.config import TransportConfig
from psirp_stack.transport.congestion import Congestion, CongestionWindow, PathMeasure
from psirp_stack.transport.messages import ArrivalReport
from tests.psirp_stack.transport.transport_network import Network, line, star

SLOW = Impairment(bandwidth=10e6, delay=0.005, queue_limit=100)
SEGMENT = 1346


def shared(flows: int, data: Path, *, receivers: int = 1) -> SharedLink:
    network = Bottleneck(flows, SLOW, data, receivers=receivers)
    try:
        return network.measure(10.0, 10.0)
    finally:
        network.close()


@pytest.mark.parametrize("flows", [1, 8, 16])
def test_flows_share_a_slow_link_and_fill_it(flows: int, tmp_path: Path) -> None:
    found = shared(flows, tmp_path)
    assert found.adjacencies_lost == 0
    assert found.utilisation >= 0.85
    assert found.fairness >= 0.9
    assert found.waste < 0.05


def test_flows_to_several_receivers_each_share_it_too(tmp_path: Path) -> None:
    found = shared(4, tmp_path, receivers=3)
    assert found.utilisation >= 0.85
    assert found.fairness >= 0.9
    assert found.waste < 0.05


def test_losses_without_a_queue_do_not_slow_down() -> None:
    """A line that loses one frame in a hundred carries at least 0.3 of what it would carry."""
    times = []
    for loss in (0.0, 0.01):
        net = Network(line(3), impairment=Impairment(delay=0.001, bandwidth=50e6, loss=loss, queue_limit=200))
        net.subscribe(2)
        net.grant(0, [2])
        for number in range(4):
            net.publish(0, bytes([number]) * 1_000_000)
        begun = net.clock.now()
        while len(net.hosts[2].arrived) < 4:
            net.run(0.05)
            assert net.clock.now() < begun + 60
        times.append(net.clock.now() - begun)
    assert times[0] / times[1] >= 0.3


def test_one_whose_way_is_narrow_slows_the_others_only_as_far_as_nothing_piles_up() -> None:
    """The slowest acceptable receiver rules; one that lets too much wait is sent to alone."""
    config = TransportConfig(max_pending_bytes=600_000)
    net = Network(star(3), impairment=Impairment(delay=0.002, bandwidth=20e6), config=config)
    net.links[1, 4].impairment = Impairment(delay=0.002, bandwidth=200_000, queue_limit=50)
    for leaf in (2, 3, 4):
        net.subscribe(leaf)
    net.grant(0, [2, 3, 4])
    for number in range(200):
        net.publish(0, b"%04d" % number + bytes(5_000))
        net.run(0.02)
    net.run(2)
    assert [len(net.hosts[leaf].arrived) for leaf in (2, 3)] == [200, 200]
    assert len(net.hosts[4].arrived) < 150
    net.run(400)
    assert net.hosts[4].numbers == list(range(1, 201))


# What reports say.


def measured(milliseconds: float, shortest: float) -> tuple[PathMeasure, RoundTrip]:
    path, round_trip = PathMeasure(), RoundTrip()
    path.measured(shortest / 1000)
    for _ in range(50):
        round_trip.answered(0.0, milliseconds / 1000, 1)
    return path, round_trip


def test_a_loss_is_congestion_when_frames_wait_or_many_are_lost() -> None:
    for now, found in ((20.0, Congestion.LOST), (10.5, Congestion.NONE)):
        path, round_trip = measured(now, 10.0)
        assert path.take(ArrivalReport(100, 0, 0), 1, round_trip) is Congestion.NONE
        assert path.take(ArrivalReport(199, 1, 0), 1, round_trip) is found
    path, round_trip = measured(10.5, 10.0)
    assert path.take(ArrivalReport(90, 10, 0), 1, round_trip) is Congestion.NONE
    assert path.take(ArrivalReport(180, 20, 0), 1, round_trip) is Congestion.LOST


def test_a_mark_is_congestion_and_old_reports_say_nothing() -> None:
    path, round_trip = measured(10.0, 10.0)
    assert path.take(ArrivalReport(10, 0, 1), 1, round_trip) is Congestion.MARKED
    assert path.take(ArrivalReport(5, 0, 0), 1, round_trip) is Congestion.NONE
    assert path.take(ArrivalReport(10, 0, 1), 1, round_trip) is Congestion.NONE
    assert path.take(ArrivalReport(11, 0, 2), 1, round_trip) is Congestion.MARKED
    assert path.take(ArrivalReport(3, 0, 1), 2, round_trip) is Congestion.MARKED, "a new life counts anew"


@given(st.lists(st.tuples(st.sampled_from(["confirmed", "marked", "lost"]), st.floats(0.001, 0.3))))
def test_a_window_stays_in_its_bounds_and_gets_smaller_once_in_a_round_trip(events: list[tuple[str, float]]) -> None:
    window = CongestionWindow(16_384, 262_144, SEGMENT)
    window.measured(0.05, True)
    now, shrunk_at = 0.0, -1.0
    for what, seconds in events:
        now += seconds
        window.was_limited(now)
        before = window.window
        if what == "confirmed":
            window.confirmed(SEGMENT, now, 0.02)
            assert before <= window.window <= 262_144
        else:
            window.congested(Congestion.MARKED if what == "marked" else Congestion.LOST, now)
            if now < shrunk_at + 0.05:
                assert window.window == before
            else:
                shrunk_at = now
                assert SEGMENT / 2 <= window.window <= max(before * 0.8, SEGMENT / 2)


def test_what_is_sent_is_spread_over_the_round_trip() -> None:
    window = CongestionWindow(14_000, 262_144, 1400)
    window.measured(0.1, True)
    now, sent = 10.0, 0
    while now < 11.0:
        if window.may_send(now):
            window.sent(1400, now)
            sent += 1400
        else:
            now = max(window.next_at, now)
    assert 0.95 <= sent / window.rate <= 1.1
