"""The in-process link: order, bounds, batches, closing."""

from collections.abc import Sequence

import pytest

from psirp_stack.links.clock import VirtualClock
from psirp_stack.links.in_process import pair


def test_frames_arrive_in_order_and_in_batches() -> None:
    one, other = pair()
    batches: list[list[bytes]] = []
    other.on_receive(lambda frames: batches.append(list(frames)))
    assert all(one.send(bytes((n,))) for n in range(5))
    assert [other.drain(3), other.drain(3), other.drain(3)] == [3, 2, 0]
    assert batches == [[b"\x00", b"\x01", b"\x02"], [b"\x03", b"\x04"]]
    assert (one.counters.sent, one.counters.sent_bytes) == (5, 5)
    assert (other.counters.received, other.counters.received_bytes) == (5, 5)


def test_both_directions_are_separate() -> None:
    one, other = pair()
    one.send(b"there")
    assert (one.waiting, other.waiting) == (0, 1)


def test_a_frame_longer_than_the_mtu_is_refused_and_counted() -> None:
    one, other = pair(mtu=100)
    assert one.send(bytes(100))
    assert not one.send(bytes(101))
    assert (one.counters.sent, one.counters.oversized, other.waiting) == (1, 1, 1)


def test_a_full_queue_refuses_and_counts() -> None:
    one, other = pair(queue_limit=2)
    assert [one.send(b"x") for _ in range(4)] == [True, True, False, False]
    assert one.counters.queue_full == 2
    other.drain()
    assert one.send(b"x")


def test_a_closed_link_refuses_at_both_ends_and_closes_twice() -> None:
    one, other = pair()
    one.send(b"x")
    one.close()
    one.close()
    assert not one.send(b"x")
    assert not other.send(b"x")
    assert (one.counters.after_close, other.counters.after_close) == (1, 1)


def test_a_scheduler_drains_without_recursion() -> None:
    clock = VirtualClock()
    one, other = pair(scheduler=clock)
    bounces = 0

    def bounce_back(frames: object) -> None:
        nonlocal bounces
        bounces += 1
        if bounces < 5000:
            (one if bounces % 2 == 0 else other).send(b"x")

    one.on_receive(bounce_back)
    other.on_receive(bounce_back)
    one.send(b"x")
    clock.run()
    assert bounces == 5000


def test_a_scheduler_drains_more_than_one_batch() -> None:
    clock = VirtualClock()
    one, other = pair(scheduler=clock)
    got: list[bytes] = []
    other.on_receive(got.extend)
    for n in range(200):
        one.send(bytes((n,)))
    clock.run()
    assert got == [bytes((n,)) for n in range(200)]


@pytest.mark.parametrize("sizes", [[], [1, 2, 3], [100, 101, 99], [1] * 7, [101] * 3])
@pytest.mark.parametrize("closed", [False, True])
def test_a_batch_is_taken_and_counted_as_its_frames_would_be(sizes: Sequence[int], closed: bool) -> None:
    frames = [bytes(size) for size in sizes]
    ends = [pair(mtu=100, queue_limit=5) for _ in range(2)]
    if closed:
        for one, _ in ends:
            one.close()
    (single, single_peer), (batch, batch_peer) = ends
    accepted = sum(single.send(frame) for frame in frames)
    assert batch.send_many(frames) == accepted
    assert batch.counters == single.counters
    got: list[list[bytes]] = [[], []]
    single_peer.on_receive(got[0].extend)
    batch_peer.on_receive(got[1].extend)
    assert single_peer.drain() == batch_peer.drain()
    assert got[0] == got[1]


def test_a_batch_wakes_the_scheduler() -> None:
    clock = VirtualClock()
    one, other = pair(scheduler=clock)
    got: list[bytes] = []
    other.on_receive(got.extend)
    one.send_many([b"a", b"b"])
    clock.run()
    assert got == [b"a", b"b"]
