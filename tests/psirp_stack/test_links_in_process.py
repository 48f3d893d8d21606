"""The in-process link: order, bounds, batches, closing."""

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
