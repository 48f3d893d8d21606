"""Two ends of a link inside one process: a bounded queue each way.

Frames wait in the receiver's queue until somebody drains it: a scheduler that was given to `pair` does so at the same
moment of its clock, otherwise whoever holds the end calls `drain`. `send` never calls the receiver itself, so that
forwarders that send to each other do not recurse.
"""

from collections import deque
from collections.abc import Sequence

from psirp_stack.links.clock import Scheduler
from psirp_stack.links.interface import (
    DEFAULT_BATCH,
    DEFAULT_QUEUE_LIMIT,
    CarrierListener,
    CarrierState,
    LinkCounters,
    Receiver,
)

DEFAULT_MTU = 1500


class InProcessLink:
    """One end; make both with `pair`."""

    __slots__ = (
        "_carrier",
        "_drain_due",
        "_inbox",
        "_peer",
        "_receiver",
        "_scheduler",
        "counters",
        "mtu",
        "queue_limit",
    )

    def __init__(self, mtu: int, queue_limit: int, scheduler: Scheduler | None) -> None:
        self.mtu = mtu
        self.queue_limit = queue_limit
        self.counters = LinkCounters()
        self._inbox: deque[bytes] = deque()
        self._peer: InProcessLink | None = None
        self._receiver: Receiver | None = None
        self._carrier: CarrierListener | None = None
        self._scheduler = scheduler
        self._drain_due = False

    def on_receive(self, receiver: Receiver | None) -> None:
        self._receiver = receiver

    def on_carrier(self, listener: CarrierListener | None) -> None:
        self._carrier = listener

    def send(self, frame: bytes) -> bool:
        counters = self.counters
        peer = self._peer
        if peer is None:
            counters.after_close += 1
            return False
        size = len(frame)
        if size > self.mtu:
            counters.oversized += 1
            return False
        inbox = peer._inbox
        if len(inbox) >= peer.queue_limit:
            counters.queue_full += 1
            return False
        inbox.append(frame)
        counters.sent += 1
        counters.sent_bytes += size
        if peer._scheduler is not None and not peer._drain_due:
            peer._wake()
        return True

    def send_many(self, frames: Sequence[bytes]) -> int:
        peer = self._peer
        # Sorting is the quickest way to the longest of them: most batches are of one size.
        sizes = sorted(map(len, frames))
        if not sizes:
            return 0
        if peer is None or sizes[-1] > self.mtu or len(peer._inbox) + len(sizes) > peer.queue_limit:
            # Some will be refused: let `send` find out which, and count them.
            return sum(map(self.send, frames))
        count = len(sizes)
        peer._inbox.extend(frames)
        self.counters.sent += count
        self.counters.sent_bytes += count * sizes[0] if sizes[0] == sizes[-1] else sum(sizes)
        if peer._scheduler is not None and not peer._drain_due:
            peer._wake()
        return count

    def drain(self, limit: int = DEFAULT_BATCH) -> int:
        """Hand at most `limit` waiting frames to the receiver as one batch; say how many."""
        inbox = self._inbox
        take = min(limit, len(inbox))
        frames = [inbox.popleft() for _ in range(take)]
        if frames:
            counters = self.counters
            counters.received += take
            counters.received_bytes += sum(map(len, frames))
            if self._receiver is not None:
                self._receiver(frames)
        return take

    @property
    def waiting(self) -> int:
        """Frames that arrived and were not drained yet."""
        return len(self._inbox)

    def close(self) -> None:
        """Cut the link: both ends refuse to send from now on. What waits at the other end can still be drained."""
        peer, self._peer = self._peer, None
        if peer is not None:
            peer._peer = None
            for end in (self, peer):
                if end._carrier is not None:
                    end._carrier(CarrierState.DOWN)
        self.counters.after_close += len(self._inbox)
        self._inbox.clear()

    def _wake(self) -> None:
        scheduler = self._scheduler
        if scheduler is not None:
            self._drain_due = True
            scheduler.call_at(scheduler.now(), self._drain_scheduled)

    def _drain_scheduled(self) -> None:
        self._drain_due = False
        self.drain()
        if self._inbox and not self._drain_due:
            self._wake()


def pair(
    *, mtu: int = DEFAULT_MTU, queue_limit: int = DEFAULT_QUEUE_LIMIT, scheduler: Scheduler | None = None
) -> tuple[InProcessLink, InProcessLink]:
    """The two ends of a new link."""
    one, other = InProcessLink(mtu, queue_limit, scheduler), InProcessLink(mtu, queue_limit, scheduler)
    one._peer, other._peer = other, one
    return one, other
