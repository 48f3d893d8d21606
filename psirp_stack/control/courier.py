"""Messages between any two nodes: acknowledged, repeated until they are, each handed up once, in order.

A message that was accepted ends in `Sent` (its receiver's handler acknowledged it) or `SendFailed` (nobody did in time:
it may or may not have been handled). Between two lives messages are handed up in the order in which they were sent,
those that failed left out. A receiver that restarts may get again what its former life has handled, since nobody can
know whether that life's answer was only lost.

What is said counts when it shows this node's token for the source. A node learns it by a challenge, which is sent by
the way that leads to that node and answers a datagram of its own. So a member of the network that writes another's name
under a datagram changes nothing, unless it is on the way between the two. It costs a round trip at the first contact.

Sans-I/O: whoever runs a courier moves datagrams, finds filters and watches the clock.
"""

import heapq
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b

from psirp_stack.control.codes import Code, Function
from psirp_stack.control.courier_inbox import Inbox
from psirp_stack.control.courier_outbox import OutgoingMessage, PeerOutbox, smallest_piece
from psirp_stack.control.courier_wire import (
    MAX_PIECE_FIELDS,
    Challenge,
    CourierWireError,
    Piece,
    Received,
    Speaker,
    decode,
    encode,
)
from psirp_stack.control.messages import MAX_MESSAGE_BYTES
from psirp_stack.control.rtt import RoundTrip

MtuTo = Callable[[str], int | None]
"""How many bytes of payload one datagram to a node may have; None when no path leads there."""

MAX_CHALLENGES = 256
"""That wait to be sent; of more, the oldest are dropped: who needs one asks again."""
TOKEN_BYTES = 8
MIN_DATAGRAM = MAX_PIECE_FIELDS + smallest_piece(MAX_MESSAGE_BYTES)


class CourierError(ValueError):
    """A message that cannot be sent at all."""


class CourierFull(CourierError):  # noqa: N818  (a state, not a mistake)
    """Too much waits already: try again when something was settled."""


@dataclass(frozen=True, slots=True)
class CourierConfig:
    """Bounds and times (seconds) of a courier."""

    give_up_after: float = 30.0
    initial_timeout: float = 0.2
    min_timeout: float = 0.02
    max_timeout: float = 2.0
    max_queued: int = 4096
    """Messages that may wait for one node."""
    max_queued_bytes: int = 64 * 1024 * 1024
    """Bytes of all messages that were accepted and not settled."""
    max_held_bytes: int = 16 * 1024 * 1024
    """Bytes of messages that arrived and were not handed up."""
    reassembly_timeout: float = 30.0
    max_peers: int = 4096
    forget_after: float = 600.0
    """A node that nothing was exchanged with for so long is forgotten: far longer than any datagram lives."""


class CourierDrop(StrEnum):
    """Why a datagram had no effect."""

    MALFORMED = "malformed"
    UNKNOWN_FUNCTION = "unknown function"
    OLD_LIFE = "from or for a former life"
    DUPLICATE = "duplicate"
    DIFFERENT_CUT = "does not fit the pieces that are there"
    NO_ROOM = "no room"
    TOO_MANY_PEERS = "too many peers"
    OWN_NAME = "from a node with our name"
    UNPROVED = "without this node's token for its source"


Token = tuple[str, int, int]
"""Source, its life, number."""


@dataclass(frozen=True, slots=True)
class Datagram:
    """To be sent in one control frame."""

    to: str
    function: Function
    payload: bytes


@dataclass(frozen=True, slots=True)
class CourierArrival:
    """A message for a handler, which calls `acknowledge(token)` when it has done what the message asks."""

    source: str
    source_boot: int
    function: Function
    body: bytes
    token: Token


@dataclass(frozen=True, slots=True)
class Sent:
    """The message was handled."""

    ticket: int
    to: str


@dataclass(frozen=True, slots=True)
class SendFailed:
    """Nobody acknowledged the message in time."""

    ticket: int
    to: str
    reason: Code


@dataclass(frozen=True, slots=True)
class ControlSent:
    """A message left for another node, perhaps not for the first time."""

    source: str
    boot: int
    to: str
    number: int


@dataclass(frozen=True, slots=True)
class ControlArrived:
    """It is there, for the first time. Who notes the time of both ends can compare their clocks."""

    source: str
    boot: int
    to: str
    number: int


ControlEvent = ControlSent | ControlArrived


@dataclass(slots=True)
class _Peer:
    """Everything about one other node."""

    name: str
    outbox: PeerOutbox
    token: int
    """To be shown in what it says."""
    shows: int = 0
    """Its token for this node; 0 while it is not known."""
    inbox: Inbox | None = None
    heard_at: float = 0.0
    timer: float | None = None
    ready: bool = False


class Courier:
    """One node's courier, for one life of the node."""

    def __init__(
        self,
        name: str,
        boot: int,
        mtu_to: MtuTo,
        config: CourierConfig | None = None,
        tell: Callable[[ControlEvent], None] | None = None,
        *,
        token_key: bytes,
    ) -> None:
        """`tell` hears of messages of one piece only: others take as long as their pieces do. `token_key`: 16 to 64
        bytes that nobody else knows, other ones in each life."""
        self.name = name
        self._tell = tell
        self.boot = boot
        self.config = config if config is not None else CourierConfig()
        self.drops: Counter[CourierDrop] = Counter()
        self.repeated = 0
        """Times something was sent again because nobody answered."""
        self._mtu_to = mtu_to
        self._peers: dict[str, _Peer] = {}
        self._token_key = token_key
        self._challenges: dict[tuple[str, int], None] = {}
        """Whom to tell its token, with the echo."""
        self._ready: deque[_Peer] = deque()
        self._timers: list[tuple[float, str]] = []
        self._arrivals: deque[CourierArrival] = deque()
        self._outcomes: deque[Sent | SendFailed] = deque()
        self._local: dict[int, tuple[int, float]] = {}
        self._tickets = 0
        self._high_water = 0
        self._queued_bytes = 0
        self._held_bytes = 0

    @property
    def queued_bytes(self) -> int:
        return self._queued_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes of messages that arrived and were not handed up."""
        return self._held_bytes

    @property
    def peers(self) -> int:
        return len(self._peers)

    def room(self, to: str) -> int:
        """How many more messages to a node are accepted now, as far as their number is concerned."""
        if to == self.name:
            return self.config.max_queued - len(self._local)
        peer = self._peers.get(to)
        if peer is None:
            return self.config.max_queued if len(self._peers) < self.config.max_peers else 0
        return self.config.max_queued - len(peer.outbox.queue)

    def waiting(self, to: str) -> int:
        """Messages to a node that are not settled."""
        peer = self._peers.get(to)
        return len(self._local) if to == self.name else 0 if peer is None else peer.outbox.unsettled

    # What the node wants.

    def send(self, to: str, function: Function, body: bytes, now: float) -> int:
        """Accept a message; its outcome will name the ticket that is returned."""
        if len(body) > MAX_MESSAGE_BYTES:
            raise CourierError(f"a message has at most {MAX_MESSAGE_BYTES} bytes, not {len(body)}")
        if self.room(to) < 1 or self._queued_bytes + len(body) > self.config.max_queued_bytes:
            raise CourierFull(f"too many messages to {to} wait already")
        self._tickets += 1
        give_up_at = now + self.config.give_up_after
        if to == self.name:
            self._local[self._tickets] = (self._tickets, give_up_at)
            token = (self.name, self.boot, self._tickets)
            self._arrivals.append(CourierArrival(self.name, self.boot, function, body, token))
            return self._tickets
        peer = self._peer(to, now)
        self._queued_bytes += len(body)
        peer.outbox.queue.append(OutgoingMessage(self._tickets, function, body, give_up_at))
        self._wake(peer)
        self._reschedule(peer, now)
        return self._tickets

    def acknowledge(self, token: Token, now: float) -> None:
        """A handler has done what a message asked for. Harmless when its sender no longer waits."""
        source, boot, number = token
        if source == self.name and boot == self.boot:
            if self._local.pop(number, None) is not None:
                self._outcomes.append(Sent(number, self.name))
            return
        peer = self._peers.get(source)
        if peer is not None and peer.inbox is not None and peer.inbox.boot == boot and peer.inbox.acknowledge(number):
            self._wake(peer)

    def paths_changed(self, now: float) -> None:
        """The network is another: what waits for an answer is sent again at once, on the new paths."""
        for peer in self._peers.values():
            peer.outbox.take_new_path()
            if peer.outbox.unsettled:
                self._wake(peer)
                self._reschedule(peer, now)

    # What the network brings.

    def receive(self, payload: bytes, now: float) -> None:
        """Take in the payload of a control frame that reached this node."""
        try:
            said = decode(payload)
        except CourierWireError:
            self.drops[CourierDrop.MALFORMED] += 1
            return
        if said.source == self.name:
            self.drops[CourierDrop.OWN_NAME] += 1
            return
        if said.source not in self._peers and isinstance(said, Received):
            self.drops[CourierDrop.OLD_LIFE] += 1
            return
        if isinstance(said, Challenge):
            self._challenged(said, now)
            return
        if said.shown != self.token_for(said.source):
            self.drops[CourierDrop.UNPROVED] += 1
            self._challenges[said.source, said.token] = None
            if len(self._challenges) > MAX_CHALLENGES:
                del self._challenges[next(iter(self._challenges))]
            return
        if said.source not in self._peers and len(self._peers) >= self.config.max_peers:
            self.drops[CourierDrop.TOO_MANY_PEERS] += 1
            return
        peer = self._peer(said.source, now)
        known = peer.outbox.peer_boot
        if known is not None and said.boot < known:
            self.drops[CourierDrop.OLD_LIFE] += 1
            return
        peer.heard_at = now
        peer.shows = said.token
        if known != said.boot:
            peer.outbox.peer_boot = said.boot
            if known is not None:
                # The peer began a new life and knows nothing of what its former life had.
                peer.outbox.begin_again()
                self._wake(peer)
        if isinstance(said, Piece):
            self._receive_piece(peer, said, now)
        elif said.to_boot != self.boot:
            self.drops[CourierDrop.OLD_LIFE] += 1
        else:
            for message in peer.outbox.heard(said, now):
                self._settle(message, Sent(message.ticket, peer.name))
            self._wake(peer)
        self._reschedule(peer, now)

    def token_for(self, name: str) -> int:
        """What a node has to show in this life of ours."""
        peer = self._peers.get(name)
        if peer is not None:
            return peer.token
        digest = blake2b(name.encode(), key=self._token_key, digest_size=TOKEN_BYTES).digest()
        return int.from_bytes(digest, "big") >> 1 or 1

    def _challenged(self, said: Challenge, now: float) -> None:
        """A node says what it wants to be shown, in answer to something that it was sent."""
        if said.echo != self.token_for(said.source) or not said.token:
            self.drops[CourierDrop.UNPROVED] += 1
            return
        if said.source not in self._peers and len(self._peers) >= self.config.max_peers:
            self.drops[CourierDrop.TOO_MANY_PEERS] += 1
            return
        peer = self._peer(said.source, now)
        if peer.shows != said.token:
            peer.shows = said.token
            # It took nothing of what was sent so far.
            peer.outbox.begin_again()
            self._wake(peer)
            self._reschedule(peer, now)

    def _receive_piece(self, peer: _Peer, piece: Piece, now: float) -> None:
        if piece.function not in _FUNCTIONS:
            self.drops[CourierDrop.UNKNOWN_FUNCTION] += 1
            return
        inbox = peer.inbox
        if inbox is None or inbox.boot != piece.boot:
            if inbox is not None:
                self._held_bytes -= inbox.held_bytes
            inbox = peer.inbox = Inbox(piece.boot)
        self._held_bytes -= inbox.raise_floor(piece.floor)
        if inbox.is_settled(piece.number) or piece.number in inbox.handed:
            self.drops[CourierDrop.DUPLICATE] += 1
            if piece.ask:
                inbox.asked.add(piece.number)
            if piece.ask or piece.number in inbox.done:
                inbox.answer_due = True
                self._wake(peer)
        else:
            kept = self._keep(inbox, piece, now)
            if kept and self._tell is not None and piece.parts == 1:
                self._tell(ControlArrived(peer.name, piece.boot, self.name, piece.number))
            overtook = piece.number > inbox.expected and inbox.is_whole(piece.number)
            # The handler of a message that is whole will answer soon; everything else is answered here.
            if overtook or (piece.ask and not (kept and inbox.is_whole(piece.number))):
                inbox.asked.add(piece.number)
                inbox.answer_due = True
                self._wake(peer)
        # Also when nothing was kept: a raised floor may have freed messages that waited for one that failed.
        self._hand_up(peer.name, inbox)

    def _hand_up(self, source: str, inbox: Inbox) -> None:
        for number, function, body in inbox.next_whole():
            self._held_bytes -= len(body)
            token = (source, inbox.boot, number)
            self._arrivals.append(CourierArrival(source, inbox.boot, _FUNCTIONS[function], body, token))

    def _keep(self, inbox: Inbox, piece: Piece, now: float) -> bool:
        if inbox.has(piece):
            self.drops[CourierDrop.DUPLICATE] += 1
            return False
        room = self.config.max_held_bytes - self._held_bytes
        if len(piece.body) > room and not (piece.number == inbox.expected and self._make_room(inbox, len(piece.body))):
            self.drops[CourierDrop.NO_ROOM] += 1
            return False
        grown = inbox.add(piece, now)
        if grown is None:
            self.drops[CourierDrop.DIFFERENT_CUT] += 1
            return False
        self._held_bytes += grown
        return True

    def _make_room(self, inbox: Inbox, needed: int) -> bool:
        """Drop messages that wait for earlier ones, newest first, so that the one that all wait for gets in."""
        for number in sorted(inbox.partials, reverse=True):
            if self.config.max_held_bytes - self._held_bytes >= needed:
                return True
            if number != inbox.expected:
                self._held_bytes -= inbox.drop(number)
        return self.config.max_held_bytes - self._held_bytes >= needed

    # What goes out.

    def next_datagram(self, now: float) -> Datagram | None:
        """The next datagram to send, None when there is none now."""
        while self._challenges:
            source, echo = next(iter(self._challenges))
            del self._challenges[source, echo]
            if self._mtu_to(source) is not None:
                said = Challenge(self.name, self.token_for(source), echo)
                return Datagram(source, Function.NODE, encode(said))
        while self._ready:
            peer = self._ready.popleft()
            peer.ready = False
            room = self._mtu_to(peer.name)
            if room is None or room < MIN_DATAGRAM:
                # Tried again when paths change, or after a while; an answer that is not sent will be asked for.
                if peer.outbox.unsettled:
                    self._timer_by(peer, now + self.config.max_timeout)
                continue
            inbox = peer.inbox
            speaker = Speaker(self.name, self.boot, peer.shows, peer.token)
            if inbox is not None and inbox.answer_due:
                self._wake(peer)
                return Datagram(peer.name, Function.NODE, encode(inbox.answer(speaker, room)))
            piece = peer.outbox.next_piece(speaker, room - MAX_PIECE_FIELDS, now)
            if piece is not None:
                if self._tell is not None and piece.parts == 1:
                    self._tell(ControlSent(self.name, self.boot, peer.name, piece.number))
                self._wake(peer)
                self._reschedule(peer, now)
                return Datagram(peer.name, _FUNCTIONS[piece.function], encode(piece))
        return None

    def next_arrival(self) -> CourierArrival | None:
        return self._arrivals.popleft() if self._arrivals else None

    def next_outcome(self) -> Sent | SendFailed | None:
        return self._outcomes.popleft() if self._outcomes else None

    # Time.

    def next_timer(self) -> float | None:
        """When to call `handle_timer`."""
        while self._timers and not self._is_current(*self._timers[0]):
            heapq.heappop(self._timers)
        times = [self._timers[0][0]] if self._timers else []
        if self._local:
            times.append(next(iter(self._local.values()))[1])
        return min(times, default=None)

    def handle_timer(self, now: float) -> None:
        while self._timers and self._timers[0][0] <= now:
            when, name = heapq.heappop(self._timers)
            peer = self._peers.get(name)
            if peer is not None and peer.timer == when:
                peer.timer = None
                self._late(peer, now)
        while self._local and (first := next(iter(self._local.values())))[1] <= now:
            del self._local[first[0]]
            self._outcomes.append(SendFailed(first[0], self.name, Code.UNREACHABLE))

    def _late(self, peer: _Peer, now: float) -> None:
        for message in peer.outbox.give_up(now):
            self._settle(message, SendFailed(message.ticket, peer.name, Code.UNREACHABLE))
        if peer.outbox.retry(now):
            self.repeated += 1
        inbox = peer.inbox
        if inbox is not None:
            for number, partial in list(inbox.partials.items()):
                if not partial.whole and partial.touched + self.config.reassembly_timeout <= now:
                    self._held_bytes -= inbox.drop(number)
        if peer.outbox.unsettled:
            self._wake(peer)
        elif peer.heard_at + self.config.forget_after <= now and not (inbox and inbox.handed):
            self._forget(peer)
            return
        self._reschedule(peer, now)

    # Within.

    def _peer(self, name: str, now: float) -> _Peer:
        peer = self._peers.get(name)
        if peer is None:
            config = self.config
            round_trip = RoundTrip(config.initial_timeout, config.min_timeout, config.max_timeout)
            # A node that was forgotten may remember our numbers: they go on above all that were ever used.
            outbox = PeerOutbox(round_trip, self._high_water)
            peer = self._peers[name] = _Peer(name, outbox, self.token_for(name), heard_at=now)
        return peer

    def _forget(self, peer: _Peer) -> None:
        self._high_water = max(self._high_water, peer.outbox.next_number)
        if peer.inbox is not None:
            self._held_bytes -= peer.inbox.held_bytes
        del self._peers[peer.name]

    def _settle(self, message: OutgoingMessage, outcome: Sent | SendFailed) -> None:
        self._queued_bytes -= len(message.body)
        self._outcomes.append(outcome)

    def _wake(self, peer: _Peer) -> None:
        if not peer.ready:
            peer.ready = True
            self._ready.append(peer)

    def _is_current(self, when: float, name: str) -> bool:
        peer = self._peers.get(name)
        return peer is not None and peer.timer == when

    def _reschedule(self, peer: _Peer, now: float) -> None:
        wanted = peer.outbox.next_time()
        inbox = peer.inbox
        if inbox is not None and inbox.partials:
            oldest = min(partial.touched for partial in inbox.partials.values()) + self.config.reassembly_timeout
            # A whole message that waits for another is not late itself: look again a little later.
            oldest = max(oldest, now + self.config.min_timeout)
            wanted = oldest if wanted is None else min(wanted, oldest)
        if wanted is None:
            wanted = max(peer.heard_at + self.config.forget_after, now + self.config.min_timeout)
        self._timer_by(peer, wanted)

    def _timer_by(self, peer: _Peer, wanted: float) -> None:
        # An entry that comes too early is harmless, so only earlier times need a new one.
        if peer.timer is None or wanted < peer.timer:
            peer.timer = wanted
            heapq.heappush(self._timers, (wanted, peer.name))


_FUNCTIONS = {int(function): function for function in (Function.RENDEZVOUS, Function.TOPOLOGY, Function.NODE)}
