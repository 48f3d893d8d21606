"""One simulated queue: who comes when, who starts and leaves when, and who leaves unserved.

Where nobody leaves early, waiting times are a running maximum and numpy does it all; otherwise a loop looks at one
message after the other. Both give the same times for the same draws (a test compares them).
"""

import heapq
from collections import deque
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from perf.models.distributions import Times
from perf.models.timeline import Timeline, always


class Fate(IntEnum):
    """What became of a message."""

    IN_FLIGHT = 0
    DELIVERED = 1
    EXPIRED = 2
    LOST = 3
    """On a link that was down."""
    DROPPED = 4
    """It found a bounded queue full."""


Fates = NDArray[np.int8]


@dataclass(frozen=True)
class QueueVisits:
    """Of one queue, in the order of arrival. `fates` is `IN_FLIGHT` for who goes on to the next queue."""

    messages: NDArray[np.int64]
    queued: Times
    started: Times
    """When service began, or when the message left unserved."""
    done: Times
    fates: Fates
    served_while: str | None = None
    """Whose connectivity it waits for."""

    @property
    def found(self) -> NDArray[np.int64]:
        """How many were there already when each came: the one in service counts."""
        entered = self.fates != Fate.DROPPED
        left = np.sort(self.done[entered])
        before = np.cumsum(entered) - entered
        gone = np.searchsorted(left, self.queued, side="right") - (entered & (self.done <= self.queued))
        found: NDArray[np.int64] = np.maximum(before - gone, 0)
        return found

    @property
    def responses(self) -> Times:
        """Seconds that served messages stayed."""
        served = (self.fates != Fate.DROPPED) & (self.fates != Fate.EXPIRED)
        times: Times = (self.done - self.queued)[served]
        return times


def serve_all(arrivals: Times, services: Times, timeline: Timeline | None, free: float = 0.0) -> tuple[Times, Times]:
    """Started and done of one server that serves everybody. `free`: before it, it does not begin."""
    if not len(arrivals):
        return arrivals, arrivals
    on_clock = arrivals if timeline is None else timeline.clock(arrivals)
    total = np.cumsum(services)
    begun = np.maximum.accumulate(np.maximum(on_clock, free) - (total - services))
    done = begun + total
    before = np.concatenate([[free], done[:-1]])
    waits = before > on_clock
    if timeline is None:
        return np.where(waits, before, arrivals), done
    return np.where(waits, timeline.wall(before), timeline.resumed(arrivals)), timeline.wall(done)


def serve_some(
    arrivals: Times,
    services: Times,
    timeline: Timeline | None,
    *,
    deadlines: Times | None = None,
    servers: int = 1,
    places: int | None = None,
) -> tuple[Times, Times, Fates]:
    """The same where messages expire at the head (before service), find the queue full, or meet several servers."""
    line = always() if timeline is None else timeline
    line.reach(float(arrivals[-1]) if len(arrivals) else 0.0)
    begins, ends = line.begins.tolist(), line.ends.tolist()
    free = [0.0] * servers
    present: deque[float] = deque()  # when those leave who are there; in order for one server only
    started, done, fates = [], [], bytearray(len(arrivals))
    period = 0
    last = deadlines.tolist() if deadlines is not None else None
    for number, (arrived, service) in enumerate(zip(arrivals.tolist(), services.tolist(), strict=True)):
        if places is not None:
            present = deque(leaves for leaves in present if leaves > arrived) if servers > 1 else present
            while present and present[0] <= arrived:
                present.popleft()
            if len(present) >= places:
                fates[number] = Fate.DROPPED
                started.append(arrived)
                done.append(arrived)
                continue
        begin = max(arrived, free[0])
        while ends[period] <= begin:
            period += 1
            if period == len(ends):
                begins, ends = _further(line)
        begin = max(begin, begins[period])
        if last is not None and begin > last[number]:
            fates[number] = Fate.EXPIRED
            end = begin
        else:
            end, at = begin + service, period
            while end > ends[at]:
                rest = end - ends[at]
                at += 1
                if at == len(ends):
                    begins, ends = _further(line)
                end = begins[at] + rest
            heapq.heapreplace(free, end)
        started.append(begin)
        done.append(end)
        if places is not None:
            present.append(end)
    return np.array(started), np.array(done), np.frombuffer(bytes(fates), np.int8)


def _further(line: Timeline) -> tuple[list[float], list[float]]:
    line.reach(float(line.ends[-1]))
    return line.begins.tolist(), line.ends.tolist()
