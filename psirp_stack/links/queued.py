"""A link that does not drop what its carrier has no room for at the moment: it waits here, control frames first.

The kernel's queues do not know what a frame is for: full of data, they refuse the next hello. So what they refuse is
kept for a while and offered again. The carrier below must refuse only from some frame of a batch on to its end, as
all carriers do.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from psirp_stack.links.clock import Scheduler
from psirp_stack.links.interface import BatchLink, Link, LinkCounters, Receiver
from psirp_stack.links.send_queue import DEFAULT_LIMIT, SendQueue
from storage.queues import OpenStay, QueueWatch

Sent = TypeVar("Sent", bool, int)

MARK_FROM = 1
"""What finds others waiting is marked: the carrier's own queue is full, and others who share it lose frames by that."""
RETRY_AFTER = 0.001
"""Seconds until a carrier that had no room is offered something again."""


class QueuedLink:
    """A link that behaves like the one it wraps, with a queue in front."""

    def __init__(self, link: Link, scheduler: Scheduler, limit: int = DEFAULT_LIMIT) -> None:
        self.link = link
        self._scheduler = scheduler
        self._queue = SendQueue(limit, MARK_FROM)
        self._send_many = link.send_many if isinstance(link, BatchLink) else self._one_by_one
        self._retry_due = False
        self._closed = False
        self._watch: QueueWatch | None = None
        self._stays: dict[int, OpenStay] = {}
        """Of frames that wait, by the object's number."""

    def follow(self, watch: QueueWatch | None) -> None:
        """Have it told how long batches take that go at once, and how long frames wait that do not."""
        self._watch = watch

    @property
    def mtu(self) -> int:
        return self.link.mtu

    @property
    def counters(self) -> LinkCounters:
        """The carrier's counters; what waits here is in none of them yet."""
        return self.link.counters

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def on_receive(self, receiver: Receiver | None) -> None:
        self.link.on_receive(receiver)

    def send(self, frame: bytes) -> bool:
        if self._queue:
            return self._keep((frame,)) == 1
        counters = self.link.counters
        full = counters.queue_full
        if self._now(partial(self.link.send, frame)) if self._watch is not None else self.link.send(frame):
            return True
        if counters.queue_full == full:
            return False
        counters.queue_full = full
        return self._keep((frame,)) == 1

    def send_many(self, frames: Sequence[bytes]) -> int:
        if self._queue:
            return self._keep(frames)
        counters = self.link.counters
        full = counters.queue_full
        sent = self._now(partial(self._send_many, frames)) if self._watch is not None else self._send_many(frames)
        refused = counters.queue_full - full
        if not refused:
            return sent
        counters.queue_full = full
        return sent + self._keep(frames[len(frames) - refused :])

    def close(self) -> None:
        self._closed = True
        self.counters.after_close += len(self._queue)
        self._queue = SendQueue(self._queue.limit, MARK_FROM)
        self._stays.clear()
        self.link.close()

    def _now(self, send: Callable[[], Sent]) -> Sent:
        """Follow what goes at once; what has to wait is followed by itself."""
        assert self._watch is not None  # noqa: S101 - it is only called when somebody watches
        stay = self._watch.came()
        stay.begins()
        sent = send()
        if sent:
            stay.ends()
        else:
            stay.leaves()
        return sent

    def _one_by_one(self, frames: Sequence[bytes]) -> int:
        counters = self.link.counters
        sent = 0
        for place, frame in enumerate(frames):
            full = counters.queue_full
            if self.link.send(frame):
                sent += 1
            elif counters.queue_full > full:
                counters.queue_full += len(frames) - place - 1
                break
        return sent

    def _keep(self, frames: Sequence[bytes]) -> int:
        counters, queue = self.counters, self._queue
        if self._closed:
            counters.after_close += len(frames)
            return 0
        kept = 0
        for frame in frames:
            if len(frame) > self.mtu:
                counters.oversized += 1
            elif (waiting := queue.push(frame)) is not None:
                kept += 1
                if self._watch is not None:
                    self._stays[id(waiting)] = self._watch.came()
            else:
                counters.queue_full += 1
        self._arm()
        return kept

    def _arm(self) -> None:
        if self._queue and not self._retry_due:
            self._retry_due = True
            self._scheduler.call_at(self._scheduler.now() + RETRY_AFTER, self._retry)

    def _retry(self) -> None:
        self._retry_due = False
        counters = self.link.counters
        while not self._closed and (frame := self._queue.pop()) is not None:
            full = counters.queue_full
            stay = self._stays.get(id(frame))
            if stay is not None:
                stay.begins()
            is_sent = self.link.send(frame)
            if not is_sent and counters.queue_full > full:
                counters.queue_full = full
                self._queue.put_back(frame)
                break
            if stay is not None:
                self._stays.pop(id(frame)).ends("ok" if is_sent else "lost")
        self._arm()
