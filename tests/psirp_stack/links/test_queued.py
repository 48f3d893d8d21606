"""What waits for a link: control frames first, bounded, and nothing dropped that the carrier takes a moment later."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from psirp_stack.control.codes import Function
from psirp_stack.control.frames import build_control
from psirp_stack.forwarding_model import BROADCAST_FID
from psirp_stack.links.clock import VirtualClock
from psirp_stack.links.impairment import ImpairedLink, Impairment
from psirp_stack.links.in_process import pair
from psirp_stack.links.queued import QueuedLink
from psirp_stack.links.send_queue import SendQueue, goes_first, with_mark
from psirp_stack.transport.frames import control_frame, is_marked, segment_frame, segment_prefix
from psirp_stack.wire.numbers import MARKS_OFFSET, HeaderType
from storage.queues import QueueStay, QueueWatch

FID = bytes(31) + b"\x00"
ITEM, VERSION = bytes(64), bytes(32)


def hello(number: int) -> bytes:
    return build_control(BROADCAST_FID, Function.LINK_STATE, None, b"%d" % number)


def data(number: int) -> bytes:
    return segment_frame(segment_prefix(FID, ITEM, VERSION), number, bytes(200))


def acknowledgement() -> bytes:
    return control_frame(HeaderType.SUBSCRIBE_METADATA, FID, ITEM, VERSION, 1, FID, b"")


def announcement() -> bytes:
    return control_frame(HeaderType.PUBLISH_METADATA, FID, ITEM, VERSION, 1, FID, b"")


def test_control_frames_and_acknowledgements_go_first() -> None:
    assert goes_first(hello(1))
    assert goes_first(acknowledgement())
    assert goes_first(build_control(FID, Function.NODE, "n1", b"courier"))
    assert not goes_first(data(1))
    assert not goes_first(announcement())
    assert not goes_first(b"")


@given(st.lists(st.one_of(st.tuples(st.just(True), st.integers(0, 999)), st.tuples(st.just(False), st.integers(0, 9)))))
def test_a_queue_keeps_the_order_of_each_kind_and_its_bounds(pushed: list[tuple[bool, int]]) -> None:
    queue = SendQueue(limit=5)
    frames = [hello(number) if first else data(number) for first, number in pushed]
    kept = [frame for frame in frames if queue.push(frame) is not None]
    assert len(queue) == len(kept)
    control = [frame for frame in frames if goes_first(frame)][:5]
    others = [frame for frame in frames if not goes_first(frame)][:5]
    others = [with_mark(frame) if place * 2 >= queue.limit else frame for place, frame in enumerate(others)]
    assert [queue.pop() for _ in range(len(kept))] == control + others
    assert queue.pop() is None
    assert queue.marked == sum(map(is_marked, others))


def test_only_data_is_marked_and_nothing_else_of_it_changes() -> None:
    marked = with_mark(data(1))
    assert is_marked(marked)
    assert not is_marked(data(1))
    assert [place for place, byte in enumerate(data(1)) if marked[place] != byte] == [MARKS_OFFSET]
    queue = SendQueue(limit=2)
    for number in range(2):
        queue.push(data(number))
        queue.push(hello(number))
    assert [is_marked(queue.pop() or b"") for _ in range(4)] == [False, False, False, True]


def test_a_line_that_is_full_of_data_still_takes_hellos() -> None:
    clock = VirtualClock()
    one, other = pair(scheduler=clock)
    line = ImpairedLink(one, Impairment(bandwidth=1e6, queue_limit=10), clock, 1)
    got: list[bytes] = []
    other.on_receive(got.extend)
    assert [line.send(data(number)) for number in range(12)] == [True] * 10 + [False] * 2
    assert line.send(hello(1))
    clock.run()
    assert got[:2] == [data(0), hello(1)], "all but what is on the line already"
    assert len(got) == 11
    assert line.impaired.queue_full == 2
    assert line.under_way == 0


class NarrowLink:
    """A carrier that takes a few frames at a time, as kernels do."""

    def __init__(self) -> None:
        self.link = pair(mtu=1500)[0]
        self.counters = self.link.counters
        self.mtu = 1500
        self.room = 0
        self.taken: list[bytes] = []

    def on_receive(self, receiver: object) -> None:
        """Nothing comes by it."""

    def send(self, frame: bytes) -> bool:
        return self.send_many([frame]) == 1

    def send_many(self, frames: Sequence[bytes]) -> int:
        for place, frame in enumerate(frames):
            if not self.room:
                self.counters.queue_full += len(frames) - place
                return place
            self.room -= 1
            self.counters.sent += 1
            self.taken.append(frame)
        return len(frames)

    def close(self) -> None:
        self.link.close()


def test_what_the_carrier_has_no_room_for_is_offered_again_control_first() -> None:
    clock = VirtualClock()
    carrier = NarrowLink()
    link = QueuedLink(carrier, clock, limit=4)
    carrier.room = 2
    assert link.send_many([data(number) for number in range(5)]) == 5
    assert link.send(hello(1))
    assert carrier.taken == [data(0), data(1)]
    assert link.waiting == 4
    assert link.send_many([data(5), data(6)]) == 1, "no room for more than four"
    assert carrier.counters.queue_full == 1
    carrier.room = 2
    clock.run(0.0015)
    assert carrier.taken[2:] == [hello(1), data(2)]
    carrier.room = 10
    clock.run(0.01)
    assert carrier.taken[4:] == [with_mark(data(3)), with_mark(data(4)), with_mark(data(5))]
    assert (link.waiting, clock.pending, carrier.counters.queue_full) == (0, 0, 1)


def test_a_closed_link_keeps_nothing() -> None:
    clock = VirtualClock()
    carrier = NarrowLink()
    link = QueuedLink(carrier, clock)
    link.send(data(1))
    link.close()
    clock.run()
    assert (link.waiting, carrier.taken, carrier.counters.after_close) == (0, [], 1)


def test_who_follows_a_link_sees_what_goes_at_once_and_what_waits() -> None:
    clock = VirtualClock()
    carrier = NarrowLink()
    told: list[object] = []
    link = QueuedLink(carrier, clock, limit=4)
    link.follow(QueueWatch("link/1", told.append, lambda: round(clock.now() * 1e9)))
    carrier.room = 2
    assert link.send_many([data(number) for number in range(4)]) == 4
    assert [(one.queued_ns, one.done_ns) for one in told if isinstance(one, QueueStay)] == [(0, 0)], "a batch"
    carrier.room = 10
    clock.run(0.01)
    waited = [one for one in told if isinstance(one, QueueStay)][1:]
    assert [one.found for one in waited] == [0, 1]
    assert all(one.started_ns == one.done_ns == 1_000_000 and one.queued_ns == 0 for one in waited)
    assert carrier.taken == [*map(data, range(3)), with_mark(data(3))]
