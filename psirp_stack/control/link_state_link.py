"""One link as link state sees it: who is at the other end, and what that node still has to be told."""

from dataclasses import dataclass, field

from psirp_stack.control import messages
from psirp_stack.control.link_state_database import MILLISECONDS, Key, LinkStateDatabase, Version
from psirp_stack.control.rtt import RoundTrip

STATES_IN_FLIGHT = 256
"""Parts of link states: some ten frames, since many fit into one."""
LISTING_BYTES = 16
"""What a frame of link states costs beside them."""
LAZY = 1.0
"""Seconds that refreshed states wait for others, so that they cost few frames."""
ACKNOWLEDGED_BYTES = 900
ACKNOWLEDGED_FIELDS = 1 + 2 + 9 + 9 + 3


@dataclass(slots=True)
class InFlight:
    """A part of a link state that was sent and not acknowledged."""

    version: Version
    sent_at: float
    attempts: int


@dataclass(slots=True)
class NeighbourLink:
    """A link, its neighbour, and the flooding on it."""

    number: int
    mtu: int
    next_hello: float
    round_trip: RoundTrip
    neighbour: str | None = None
    boot: int = 0
    neighbour_mtu: int = 0
    heard_at: float = 0.0
    up: bool = False
    unlisted: int = 0
    """Hellos in a row in which an up neighbour did not name us: it does not hear us."""
    timer: float | None = None
    flood_at: float = 0.0
    """When link states may be sent again."""
    lazy_at: float = 0.0
    """When those may that only say again what was said before."""
    urgent: bool = False
    """Something that waits is new."""
    doubted_at: float | None = None
    """Since when it is in doubt whether the neighbour is there."""
    probe_at: float = 0.0
    hello_due: bool = True
    acknowledgements: dict[tuple[str, int, int, int], None] = field(default_factory=dict)
    pending: dict[Key, None] = field(default_factory=dict)
    in_flight: dict[Key, InFlight] = field(default_factory=dict)
    attempts: dict[Key, int] = field(default_factory=dict)

    @property
    def common_mtu(self) -> int:
        return min(self.mtu, self.neighbour_mtu)

    def tell(self, key: Key, now: float, *, urgent: bool = True) -> None:
        """The neighbour must get this part, in its present version; a little later, if it is not urgent."""
        if urgent:
            self.urgent = True
        elif not self.pending:
            self.lazy_at = now + LAZY
        self.in_flight.pop(key, None)
        self.attempts.pop(key, None)
        self.pending[key] = None

    def knows(self, key: Key, version: Version, current: Version | None, now: float) -> None:
        """The neighbour has this part in this version; `current` is the version that we hold."""
        flight = self.in_flight.get(key)
        if flight is not None and flight.version <= version:
            del self.in_flight[key]
            if flight.version == version:
                self.round_trip.answered(flight.sent_at, now, flight.attempts)
        if current is None or current <= version:
            self.pending.pop(key, None)
            self.attempts.pop(key, None)

    def silence(self) -> None:
        """Nobody is there to be told anything."""
        self.up = False
        self.unlisted = 0
        self.doubted_at = None
        self.acknowledgements.clear()
        self.pending.clear()
        self.in_flight.clear()
        self.attempts.clear()

    def next_parts(
        self, database: LinkStateDatabase, now: float, pace: float, room: int
    ) -> tuple[messages.AgedState, ...]:
        """The next link states to send here, if the neighbour can take some now: as many as fit into `room` bytes."""
        if not self.pending or now < self.sending_at:
            return ()
        parts: list[messages.AgedState] = []
        size = LISTING_BYTES
        while self.pending and len(self.in_flight) < STATES_IN_FLIGHT:
            key = next(iter(self.pending))
            found = database.part(key)
            if found is not None:
                part, said_at = found
                size += part.size
                if size > room and parts:
                    return tuple(parts)
                attempts = self.attempts.get(key, 0) + 1
                self.attempts[key] = attempts
                self.in_flight[key] = InFlight(part.version, now, attempts)
                parts.append(messages.AgedState(max(0, int((now - said_at) * MILLISECONDS)), part.body))
            del self.pending[key]
        # The first news go out at once; what comes right after them is sent together.
        self.flood_at = now + pace
        self.urgent = self.urgent and bool(self.pending)
        return tuple(parts)

    @property
    def sending_at(self) -> float:
        return self.flood_at if self.urgent else max(self.flood_at, self.lazy_at)

    def next_acknowledgement(self, sender: str) -> messages.LinkStateReceived | None:
        if not self.acknowledgements:
            return None
        chosen = []
        size = 0
        for entry in self.acknowledgements:
            size += len(entry[0]) + ACKNOWLEDGED_FIELDS
            if size > ACKNOWLEDGED_BYTES:
                break
            chosen.append(entry)
        for entry in chosen:
            del self.acknowledgements[entry]
        return messages.LinkStateReceived(sender, tuple(chosen))

    def next_time(self, silence: float, flooding: bool) -> float:
        """When there is something to do here."""
        wanted = self.next_hello
        if self.neighbour is not None:
            wanted = min(wanted, self.heard_at + silence)
        if self.doubted_at is not None:
            wanted = min(wanted, self.probe_at)
        if flooding and self.pending and len(self.in_flight) < STATES_IN_FLIGHT:
            wanted = min(wanted, self.sending_at)
        retry = self.retry_at()
        return wanted if retry is None else min(wanted, retry)

    def retry_at(self) -> float | None:
        flight = next(iter(self.in_flight.values()), None)
        return None if flight is None else flight.sent_at + self.round_trip.timeout

    def retry(self, now: float) -> int:
        """Send again what was not acknowledged in time; says how many."""
        wait = self.round_trip.timeout
        late = [key for key, flight in self.in_flight.items() if flight.sent_at + wait <= now]
        for key in late:
            del self.in_flight[key]
            self.pending[key] = None
            self.urgent = True
        if late:
            self.round_trip.timed_out()
        return len(late)
