"""How much may be under way along one filter, and how evenly it is sent. Sans-I/O.

One window for all who are reached by a filter, ruled by the one whose path takes least (as in PGMCC); who takes too
little for what is published is left behind by `stragglers`, and catches up with a window of its own. The window grows
and shrinks as TCP's CUBIC does (RFC 9438), so that both get like shares of a link. It shrinks

- for a mark, which a forwarder sets when its queue fills up (`links/send_queue.py`), before anything is lost;
- for a loss while frames wait somewhere: their round trip is longer than it needs to be;
- for losses beyond `TOLERATED`, with or without a queue: somebody drops what is beyond a rate.

A loss without a queue is a bad line, which sending less does not mend: what is lost is repaired, and that is all.
"""

from enum import Enum, auto

from psirp_stack.control.rtt import RoundTrip
from psirp_stack.transport.messages import ArrivalReport

SHRINK = 0.7
SHRINK_FOR_MARK = 0.8
"""A mark comes before anything is lost: less has to be taken back (RFC 8511)."""
GROWTH = 0.4
"""Segments a cubic second, CUBIC's C."""
FRIENDLY = 3 * (1 - SHRINK) / (1 + SHRINK)
"""Segments a round trip: where this is more than the cubic curve it is what TCP would do."""
MIN_SEGMENTS = 0.5
"""A window of less than one segment sends one at a time, with pauses."""
MIN_SEGMENTS_WITHOUT_QUEUE = 2.0
"""On a line that is bad whatever is sent."""
TOLERATED = 0.035
"""The share of frames that may get lost without a queue."""
LOSS_MEMORY = 256
"""Frames after which a loss counts for a third."""
QUEUE_SECONDS = 0.004
QUEUE_SHARE = 8
"""Frames wait somewhere when the round trip is longer than the shortest by so many seconds, and by this part of it."""
PACE = 1.15
PACE_AT_START = 2.0
BURST_SECONDS = 0.001
LATE_SECONDS = 0.004
"""What could not be sent because the process was busy may follow at once, as far as it is so little."""
UNKNOWN_ROUND_TRIP = 0.5
NEVER = float("-inf")


class Congestion(Enum):
    """What a receiver's report says of the way to it."""

    NONE = auto()
    MARKED = auto()
    LOST = auto()


class PathMeasure:
    """What one receiver's reports tell of the way to it."""

    __slots__ = ("_boot", "_frames", "_marked", "_missed", "loss", "pressure", "shortest")

    def __init__(self) -> None:
        self._boot = -1
        self._frames = self._missed = self._marked = 0
        self.loss = 0.0
        """The share of frames that got lost lately."""
        self.pressure = 0.0
        """The share of frames that said lately that the way is full."""
        self.shortest = float("inf")
        """The shortest round trip on this way."""

    def forget_way(self) -> None:
        """Frames take another way from now on."""
        self.shortest = float("inf")

    def measured(self, seconds: float) -> None:
        self.shortest = min(self.shortest, seconds)

    def queues(self, round_trip: RoundTrip) -> bool:
        """Whether frames wait somewhere on the way."""
        smoothed = round_trip.smoothed
        if smoothed is None:
            return True
        return smoothed - self.shortest > max(QUEUE_SECONDS, self.shortest / QUEUE_SHARE)

    def take(self, arrivals: ArrivalReport, boot: int, round_trip: RoundTrip) -> Congestion:
        """Take in a report; what is new in it since the last one."""
        if boot != self._boot:
            self._boot = boot
            self._frames = self._missed = self._marked = 0
        came = arrivals.frames - self._frames
        missed, marked = arrivals.missed - self._missed, arrivals.marked - self._marked
        if came < 0 or missed < 0 or marked < 0 or came + missed == 0:
            return Congestion.NONE  # overtaken by a later one
        self._frames, self._missed, self._marked = arrivals.frames, arrivals.missed, arrivals.marked
        weight = 1 - (1 - 1 / LOSS_MEMORY) ** (came + missed)
        self.loss += weight * (missed / (came + missed) - self.loss)
        found = Congestion.NONE
        if missed and (self.loss > TOLERATED or self.queues(round_trip)):
            found = Congestion.LOST
        elif marked:
            found = Congestion.MARKED
        told = marked + missed if found is not Congestion.NONE else 0
        self.pressure += weight * (min(told / (came + missed), 1.0) - self.pressure)
        return found

    def price(self, round_trip: RoundTrip) -> float:
        """The higher, the less TCP would send on this way."""
        return (round_trip.smoothed or round_trip.initial) ** 2 * self.pressure


class CongestionWindow:
    """Bytes that may be under way, and when the next may be sent."""

    __slots__ = (
        "_epoch",
        "_friendly",
        "_inflection",
        "_limited_at",
        "_most",
        "_next_at",
        "_peak",
        "_queues",
        "_quiet_until",
        "_round_trip",
        "is_starting",
        "segment",
        "shrunk",
        "window",
    )

    def __init__(self, window: int, most: int, segment: int) -> None:
        self.window = float(min(window, most))
        self.segment = segment
        self.is_starting = True
        """The window doubles with each round trip until something says that the way is full."""
        self.shrunk = 0
        self._most = most
        self._round_trip: float | None = None
        self._peak = 0.0
        self._epoch: float | None = None
        self._inflection = 0.0
        self._friendly = 0.0
        self._quiet_until = NEVER
        self._queues = True
        self._limited_at = NEVER
        self._next_at = NEVER

    @property
    def rate(self) -> float:
        """Bytes a second."""
        if self._round_trip is None:
            return self.window / UNKNOWN_ROUND_TRIP
        return self.window * (PACE_AT_START if self.is_starting else PACE) / self._round_trip

    def bound(self, ack_delay: float, ack_bytes: int) -> float:
        """Bytes that may be sent and not confirmed: what is under way, and what a receiver holds back word of."""
        return self.window + min(self.rate * ack_delay, ack_bytes)

    # Pacing.

    def may_send(self, now: float) -> bool:
        return self._next_at <= now + BURST_SECONDS

    @property
    def next_at(self) -> float:
        """When something may be sent again."""
        return self._next_at

    def sent(self, size: int, now: float) -> None:
        # A whole window may go out at once while nothing is known of the way.
        late = LATE_SECONDS if self._round_trip is not None else UNKNOWN_ROUND_TRIP
        self._next_at = max(self._next_at, now - late) + size / self.rate

    def was_limited(self, now: float) -> None:
        """There was more to send than may be: the window was too small, or is just right."""
        self._limited_at = now

    # What receivers say.

    def measured(self, round_trip: float, queues: bool) -> None:
        """The smoothed round trip to the receiver that rules, and whether frames wait on the way."""
        self._round_trip = max(round_trip, BURST_SECONDS)
        self._queues = queues
        if queues and self.is_starting:
            self._leave_start()

    def confirmed(self, size: int, now: float, ack_delay: float) -> None:
        """So many bytes more have arrived everywhere."""
        round_trip = self._round_trip or ack_delay
        if now < self._quiet_until:
            return
        if now - self._limited_at > round_trip + 2 * ack_delay:
            self._epoch = None
            return
        if self.is_starting:
            self.window += size
        else:
            self._grow(size, now, round_trip)
        if self.window >= self._most:
            self.window = float(self._most)
            self._leave_start()

    def _grow(self, size: int, now: float, round_trip: float) -> None:
        segment, window = self.segment, self.window
        if self._epoch is None:
            self._epoch = now
            self._peak = max(self._peak, window)
            self._inflection = ((self._peak - window) / segment / GROWTH) ** (1 / 3)
            self._friendly = window
        self._friendly += FRIENDLY * segment * size / window
        seconds = now - self._epoch + round_trip
        target = min(self._peak + GROWTH * segment * (seconds - self._inflection) ** 3, 1.5 * window)
        if target > window:
            window += (target - window) * min(size / window, 1.0)
        self.window = max(window, self._friendly)

    def congested(self, congestion: Congestion, now: float) -> None:
        """The way is full: at most once in a round trip there is less."""
        if now < self._quiet_until:
            return
        self._quiet_until = now + (self._round_trip or 0.0)
        factor = SHRINK_FOR_MARK if congestion is Congestion.MARKED else SHRINK
        self.shrunk += 1
        self._peak = self.window * (1 + factor) / 2 if self.window < self._peak else self.window
        least = MIN_SEGMENTS if self._queues or congestion is Congestion.MARKED else MIN_SEGMENTS_WITHOUT_QUEUE
        self.window = max(least * self.segment, self.window * factor)
        self.is_starting = False
        self._epoch = None

    def _leave_start(self) -> None:
        self.is_starting = False
        self._peak = self.window
        self._epoch = None
