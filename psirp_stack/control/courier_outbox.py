"""The sending half of a courier for one other node: what waits, what is under way, and when to say it again."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from psirp_stack.control.courier_wire import MAX_PIECES, WINDOW, Piece, Received, Speaker, parts_in
from psirp_stack.control.rtt import RoundTrip

FIRST_CONTACT = 0.5
"""Seconds at most until a node whose token is not known is asked again: a message to it takes a round trip more."""
MAX_FLYING = 32
"""Pieces under way to one node: what a socket's buffer takes at once, with room to spare."""

OVERTAKEN_IS_LOST = 3
"""So many later messages arrive first only when a piece was lost; fewer may be mere reordering."""


@dataclass(slots=True)
class OutgoingMessage:
    """One message on its way."""

    ticket: int
    function: int
    body: bytes
    give_up_at: float
    number: int = -1
    cut: int = -1
    piece_bytes: int = 0
    parts: int = 0
    waiting: deque[int] = field(default_factory=deque)
    """Parts to send as soon as there is room."""
    flying: dict[int, float] = field(default_factory=dict)
    """Parts that were sent and not heard of, and when they were sent."""
    asking: bool = False
    """Whether an answer about its parts is awaited."""
    attempts: int = 0
    """How often its most repeated part was sent."""
    overtaken: int = 0
    """Messages that were sent later and are there already, since this was last sent."""
    sent_at: float = 0.0
    retry_at: float | None = None

    def cut_to(self, piece_bytes: int) -> None:
        """Divide into pieces of so many bytes."""
        self.cut += 1
        self.piece_bytes = piece_bytes
        self.parts = max(1, -(-len(self.body) // piece_bytes))
        self.send_again(range(self.parts))

    def send_again(self, parts: "range | set[int]") -> None:
        self.waiting = deque(sorted(parts))
        self.flying.clear()
        self.asking = False
        self.retry_at = None
        self.overtaken = 0


@dataclass(slots=True)
class PeerOutbox:
    """Messages of this life to one other node."""

    round_trip: RoundTrip
    next_number: int
    peer_boot: int | None = None
    queue: deque[OutgoingMessage] = field(default_factory=deque)
    """Not begun: they get a number when there is room in the window."""
    window: dict[int, OutgoingMessage] = field(default_factory=dict)
    """Begun and not settled, by number, lowest first."""
    flying: int = 0
    backed_off_until: float = 0.0

    @property
    def floor(self) -> int:
        return next(iter(self.window), self.next_number)

    @property
    def unsettled(self) -> int:
        return len(self.queue) + len(self.window)

    def next_piece(self, speaker: Speaker, piece_bytes: int, now: float) -> Piece | None:
        """The next piece to send, if the window has room for one."""
        # Until the peer's token is known it takes nothing: one piece is enough to be told.
        max_flying = MAX_FLYING if speaker.shown else 1
        while self.queue and self.next_number < self.floor + WINDOW:
            message = self.queue.popleft()
            message.number = self.next_number
            self.next_number += 1
            message.cut_to(piece_bytes)
            self.window[message.number] = message
        for message in self.window.values():
            if message.waiting and self.flying < max_flying:
                if message.piece_bytes > piece_bytes:
                    self.flying -= len(message.flying)
                    message.cut_to(piece_bytes)
                return self._take(message, speaker, now)
        return None

    def _take(self, message: OutgoingMessage, speaker: Speaker, now: float) -> Piece:
        part = message.waiting.popleft()
        message.flying[part] = now
        self.flying += 1
        message.sent_at = now
        timeout = self.round_trip.timeout
        message.retry_at = now + (timeout if speaker.shown else min(timeout, FIRST_CONTACT))
        # A single piece is answered by its handler; only when that was not heard of one asks what happened.
        ask = message.attempts > 0 if message.parts == 1 else not (message.waiting and self.flying < MAX_FLYING)
        ask = ask and not (message.asking and message.waiting)
        message.asking = message.asking or ask
        start = part * message.piece_bytes
        return Piece(
            source=speaker.source,
            boot=speaker.boot,
            shown=speaker.shown,
            token=speaker.token,
            floor=self.floor,
            number=message.number,
            function=message.function,
            cut=message.cut,
            part=part,
            parts=message.parts,
            ask=ask,
            body=message.body[start : start + message.piece_bytes],
        )

    def heard(self, received: Received, now: float) -> Iterator[OutgoingMessage]:
        """Take in an answer; yields the messages that it settles."""
        for bit in range(received.done.bit_length()):
            if received.done >> bit & 1 and (message := self.window.pop(received.base + bit, None)) is not None:
                self.flying -= len(message.flying)
                if message.retry_at is not None:
                    self.round_trip.answered(message.sent_at, now, message.attempts + 1)
                yield message
        for held in received.held:
            waits = self.window.get(held.number)
            if waits is not None and waits.cut == held.cut:
                there = parts_in(held.bits, waits.parts)
                if len(there) == waits.parts and waits.flying:
                    self._overtook(waits)
                self._held(waits, there, now)

    def _overtook(self, message: OutgoingMessage) -> None:
        """A message is there: earlier ones that are not were probably lost, if it is not the first to overtake them."""
        for number, earlier in self.window.items():
            if number >= message.number:
                break
            if earlier.flying and not earlier.waiting and earlier.sent_at <= message.sent_at:
                earlier.overtaken += 1
                if earlier.overtaken == OVERTAKEN_IS_LOST:
                    self._repeat(earlier)

    def _held(self, message: OutgoingMessage, there: set[int], now: float) -> None:
        if message.retry_at is not None:
            self.round_trip.answered(message.sent_at, now, message.attempts + 1)
        message.asking = False
        missing = set(range(message.parts)) - there
        self.flying -= len(message.flying)
        # A part is lost when one that was sent clearly later is there. What was only overtaken a little is not.
        newest = max((sent for part, sent in message.flying.items() if part in there), default=0.0)
        tolerated = newest - self.round_trip.variation
        still = {part: sent for part, sent in message.flying.items() if part in missing and sent >= tolerated}
        if len(still) < len(missing & message.flying.keys()):
            message.attempts += 1
        message.flying = still
        self.flying += len(still)
        message.waiting = deque(sorted(missing - still.keys()))
        message.retry_at = now + self.round_trip.timeout if message.flying or not missing else None

    def retry(self, now: float) -> bool:
        """Send again what was not heard of in time; says whether there was something."""
        late = [message for message in self.window.values() if message.retry_at is not None and message.retry_at <= now]
        for message in late:
            self._repeat(message)
        if late and now >= self.backed_off_until:
            self.round_trip.timed_out()
            self.backed_off_until = now + self.round_trip.timeout
        return bool(late)

    def give_up(self, now: float) -> Iterator[OutgoingMessage]:
        """Take out the messages whose time is over. They were accepted in order, so the oldest come first."""
        while self.window and (first := next(iter(self.window.values()))).give_up_at <= now:
            self.flying -= len(first.flying)
            del self.window[first.number]
            yield first
        while not self.window and self.queue and self.queue[0].give_up_at <= now:
            yield self.queue.popleft()

    def take_new_path(self) -> None:
        """What is under way may have been lost with the old path: send it again without waiting."""
        for message in self.window.values():
            if message.retry_at is not None:
                self._repeat(message)
        self.round_trip.backoff = 1
        self.backed_off_until = 0.0

    def _repeat(self, message: OutgoingMessage) -> None:
        self.flying -= len(message.flying)
        message.attempts += 1
        # Nothing under way means that everything is there: a single piece suffices to ask.
        message.send_again(message.flying.keys() | set(message.waiting) or {0})

    def begin_again(self) -> None:
        """The peer is in a new life: all of everything is sent anew."""
        self.flying = 0
        for message in self.window.values():
            message.attempts += 1
            message.send_again(range(message.parts))
        self.round_trip.backoff = 1
        self.backed_off_until = 0.0

    def next_time(self) -> float | None:
        """When something is late or its time is over."""
        times = [message.retry_at for message in self.window.values() if message.retry_at is not None]
        first = next(iter(self.window.values()), None) or (self.queue[0] if self.queue else None)
        if first is not None:
            times.append(first.give_up_at)
        return min(times, default=None)


def smallest_piece(body_limit: int) -> int:
    """The least room for bytes of a message that lets the longest message through."""
    return -(-body_limit // MAX_PIECES)
