"""Make a link as bad as wanted: an impairment stage of our own that wraps any carrier.

It sits on the sending side. A frame first waits for its turn on a line of limited bandwidth, in the same bounded queue
that real links have (control frames first), is then perhaps lost or doubled, and reaches the carrier after delay and
jitter. All chance comes from one seed and all time from the scheduler: with a virtual clock the same seed gives the
same history.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields

from psirp_stack.links.clock import Scheduler
from psirp_stack.links.interface import Link, LinkCounters, Receiver
from psirp_stack.links.send_queue import SendQueue, goes_first


@dataclass(frozen=True, slots=True)
class Impairment:
    """How bad a link is. The defaults change nothing."""

    delay: float = 0.0
    """Seconds from the end of transmission to arrival."""
    jitter: float = 0.0
    """The delay varies evenly by up to so many seconds both ways. Jitter alone never changes the order of frames."""
    loss: float = 0.0
    """Probability that a frame is lost."""
    duplication: float = 0.0
    """Probability that a frame arrives twice."""
    reorder: float = 0.0
    """Probability that a frame skips the delay and overtakes those before it. Needs a delay to have an effect."""
    bandwidth: float = 0.0
    """Bits a second; 0 for no limit."""
    queue_limit: int = 1000
    """Frames of data that may wait or be under way, and as many of control that may wait; further ones are refused."""

    def __post_init__(self) -> None:
        for name in ("loss", "duplication", "reorder"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}: expected a probability between 0 and 1")
        for name in ("delay", "jitter", "bandwidth"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}: expected a number that is not negative")
        if self.jitter > self.delay:
            raise ValueError(f"jitter is {self.jitter}: expected no more than the delay, {self.delay}")
        if self.queue_limit < 1:
            raise ValueError(f"queue_limit is {self.queue_limit}: expected at least 1")


@dataclass(slots=True)
class ImpairmentCounters:
    """What the stage did to the frames that were offered to it."""

    lost: int = 0
    doubled: int = 0
    reordered: int = 0
    queue_full: int = 0


class ImpairedLink:
    """A link that behaves like the one it wraps, only worse."""

    def __init__(self, link: Link, impairment: Impairment, scheduler: Scheduler, seed: int) -> None:
        self.link = link
        self.impairment = impairment
        self.impaired = ImpairmentCounters()
        self._scheduler = scheduler
        self._random = random.Random(seed)  # noqa: S311 - a simulated line, not a secret
        self._line_is_busy = False
        self._queue = SendQueue(impairment.queue_limit)
        self._last_arrival = scheduler.now()
        self._under_way = 0
        self._in_transmission = 0
        self._closed = False

    @property
    def mtu(self) -> int:
        return self.link.mtu

    @property
    def counters(self) -> LinkCounters:
        """The carrier's counters: what reached it."""
        return self.link.counters

    @property
    def under_way(self) -> int:
        return self._under_way + self._in_transmission + len(self._queue)

    def on_receive(self, receiver: Receiver | None) -> None:
        self.link.on_receive(receiver)

    def send(self, frame: bytes) -> bool:
        if self._closed:
            self.counters.after_close += 1
            return False
        if len(frame) > self.mtu:
            self.counters.oversized += 1
            return False
        if self.under_way >= self.impairment.queue_limit and not goes_first(frame):
            self.impaired.queue_full += 1
            return False
        if not self.impairment.bandwidth:
            self._leave(frame)
        elif self._queue.push(frame) is None:
            self.impaired.queue_full += 1
            return False
        elif not self._line_is_busy:
            self._transmit()
        return True

    def send_many(self, frames: Sequence[bytes]) -> int:
        return sum(map(self.send, frames))

    def close(self) -> None:
        self._closed = True
        self.link.close()

    def _transmit(self) -> None:
        """Put the next frame on the line, which takes it as long as it is."""
        frame = self._queue.pop()
        self._line_is_busy = frame is not None
        if frame is not None:
            self._in_transmission = 1
            seconds = len(frame) * 8 / self.impairment.bandwidth
            self._scheduler.call_at(self._scheduler.now() + seconds, lambda: self._transmitted(frame))

    def _transmitted(self, frame: bytes) -> None:
        self._in_transmission = 0
        self._leave(frame)
        self._transmit()

    def _leave(self, frame: bytes) -> None:
        """A frame is on its way; what becomes of it?"""
        how, chance, now = self.impairment, self._random.random, self._scheduler.now()
        # One draw for each kind of harm whatever happens, so that changing one does not change the luck of the others.
        lost, doubled, overtakes, shift = (
            chance() < how.loss,
            chance() < how.duplication,
            chance() < how.reorder,
            chance(),
        )
        if lost:
            # To the sender a frame lost on the way looks like one that was sent.
            self.impaired.lost += 1
            return
        if overtakes and how.delay:
            self.impaired.reordered += 1
            arrival = now
        else:
            arrival = max(self._last_arrival, now + how.delay + how.jitter * (2 * shift - 1))
            self._last_arrival = arrival
        self._arrive(arrival, frame)
        if doubled:
            self.impaired.doubled += 1
            self._arrive(arrival, frame)

    def _arrive(self, when: float, frame: bytes) -> None:
        self._under_way += 1

        def hand_over() -> None:
            self._under_way -= 1
            self.link.send(frame)

        self._scheduler.call_at(when, hand_over)


def impairment_from_text(text: str) -> Impairment:
    """Read `loss=0.01,delay=0.02`: names and numbers of `Impairment`, as a command line would give them."""
    known = {field.name for field in fields(Impairment)}
    values: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, equals, number = part.partition("=")
        if not equals or name not in known:
            raise ValueError(f"impairment {part!r}: expected NAME=NUMBER with a name out of {', '.join(sorted(known))}")
        try:
            values[name] = float(number)
        except ValueError:
            raise ValueError(f"impairment {part!r}: {number!r} is not a number") from None
    limit = int(values.pop("queue_limit", Impairment().queue_limit))
    return Impairment(queue_limit=limit, **values)
