"""What one end of a sealed link does: handshake, sessions, and every frame between them.

Frames leave under the session that was proved last. Those of the session before it still open for a moment, because
they may be on their way when the keys are renewed. Everything that does not open is dropped unread and counted.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from psirp_stack.sealing.handshake import Handshake, HandshakeTimes
from psirp_stack.sealing.keys import DomainKeys, Entropy, SessionKeys
from psirp_stack.sealing.session import MAX_COUNTER, SealDrop, SealSession
from psirp_stack.wire.numbers import COUNTER_OFFSET, OFFER_TYPE, SEALED_TYPE

_LABEL = slice(0, COUNTER_OFFSET)
RENEWAL_JITTER = 0.1
"""Keys are renewed up to this share earlier than they have to be, so that not all links of a node do it at once."""


@dataclass(frozen=True, slots=True)
class SealConfig:
    """When keys are renewed. Seconds, and frames."""

    renew_after: float = 300.0
    renew_after_frames: int = 1 << 24
    dead_after: float = 900.0
    """Keys that could not be renewed seal and open nothing any more after this time."""
    overlap: float = 10.0
    """How long the keys before still open frames."""
    silence: float = 5.0
    """After so long without a frame from the neighbour a new handshake is tried: it may have begun a new life."""
    handshake: HandshakeTimes = field(default_factory=HandshakeTimes)

    def __post_init__(self) -> None:
        if not 0 < self.renew_after < self.dead_after or not 0 < self.renew_after_frames < MAX_COUNTER:
            raise ValueError("expected 0 < renew_after < dead_after, and renew_after_frames below 2^32")


class SealedChannel:
    """One end. `seal` and `open` frames; send what `next_frame` gives; call `handle_timer` at `next_timer`."""

    def __init__(self, domain: DomainKeys, entropy: Entropy, now: float, config: SealConfig | None = None) -> None:
        self.config = config if config is not None else SealConfig()
        self.drops: Counter[SealDrop] = Counter()
        self.sessions = 0
        """Handshakes that succeeded."""
        self._entropy = entropy
        self._handshake = Handshake(domain, entropy, self.drops, self.config.handshake)
        self._current: SealSession | None = None
        self._former: SealSession | None = None
        self._former_until = 0.0
        self._renew_at = 0.0
        self._dead_at = 0.0
        self._heard_at = now
        self._receiving: dict[bytes, SealSession] = {}
        self._candidates: dict[bytes, SealSession] = {}
        self._handshake.want(now)

    @property
    def proved(self) -> bool:
        """Whether the neighbour has proved that it knows the secret: only then anything is sent or let in."""
        return self._current is not None

    @property
    def worn(self) -> bool:
        """Whether so much was sealed that `handle_timer` should be called now, and new keys be made."""
        session = self._current
        return (
            session is not None
            and session.sending.counter >= self.config.renew_after_frames
            and not self._handshake.wanted
        )

    # Frames.

    def seal(self, frames: Sequence[bytes]) -> list[bytes]:
        """The frames as they go to the carrier; none while nobody has proved to be there."""
        session = self._current
        if session is None:
            self.drops[SealDrop.NOT_PROVED] += len(frames)
            return []
        sending = session.sending
        if sending.counter + len(frames) > MAX_COUNTER:
            self.drops[SealDrop.WORN_OUT] += len(frames)
            return []
        return sending.seal_many(frames)

    def open(self, arrived: Sequence[bytes], now: float) -> list[bytes]:
        """The neighbour's frames among what arrived, in order. Offers among it go to the handshake."""
        if not arrived:
            return []
        receiving = self._receiving
        session = receiving.get(arrived[0][_LABEL])
        if session is not None and (frames := session.receiving.open_in_order(arrived)) is not None:
            self._heard_at = now
            return frames
        opened = []
        for data in arrived:
            session = receiving.get(data[_LABEL])
            frame = self._open_other(data, now) if session is None else session.receiving.open(data)
            if isinstance(frame, bytes):
                opened.append(frame)
            elif frame is not None:
                self.drops[frame] += 1
        if opened:
            self._heard_at = now
        return opened

    def _open_other(self, data: bytes, now: float) -> bytes | SealDrop | None:
        """A frame under no session of ours: an offer, or the first frame of a session that the neighbour has made."""
        kind = data[:1]
        if kind == _OFFER:
            keys = self._handshake.receive(data, now)
            if keys is not None:
                self._made(self._candidates.get(_label(keys)) or SealSession(keys), now)
            self._follow_candidates()
            return None
        if kind != _SEALED:
            return SealDrop.UNSEALED
        session = self._candidates.get(data[_LABEL])
        if session is None:
            return SealDrop.UNKNOWN_KEY
        frame = session.receiving.open(data)
        if isinstance(frame, bytes):
            self._handshake.made(session.keys)
            self._made(session, now)
            self._candidates = {}
        return frame

    # Sessions.

    def _follow_candidates(self) -> None:
        """Hold what opens frames for every agreement of the handshake, and for no other."""
        wanted = {_label(keys): keys for keys in self._handshake.candidates}
        if wanted.keys() != self._candidates.keys():
            self._candidates = {
                label: self._candidates.get(label) or SealSession(keys) for label, keys in wanted.items()
            }

    def _made(self, session: SealSession, now: float) -> None:
        config = self.config
        self.sessions += 1
        self._former, self._former_until = self._current, now + config.overlap
        self._current = session
        self._heard_at = now
        early = RENEWAL_JITTER * int.from_bytes(self._entropy(2), "big") / (1 << 16)
        self._renew_at = now + config.renew_after * (1 - early)
        self._dead_at = now + config.dead_after
        self._keep()

    # Handshake and time.

    def next_frame(self) -> bytes | None:
        """The next frame of the handshake: it goes to the carrier as it is."""
        return self._handshake.next_frame()

    def next_timer(self) -> float | None:
        times = [self._handshake.next_timer()]
        if self._former is not None:
            times.append(self._former_until)
        if self._current is not None:
            times.append(self._dead_at)
            if not self._handshake.wanted:
                times += [self._renew_at, self._heard_at + self.config.silence]
        return min((when for when in times if when is not None), default=None)

    def handle_timer(self, now: float) -> None:
        if self._former is not None and self._former_until <= now:
            self._former = None
            self._keep()
        if self._current is not None and self._dead_at <= now:
            self._current = None
            self._keep()
        overdue = min(self._renew_at, self._heard_at + self.config.silence) <= now
        if self._current is None or overdue or self.worn:
            self._handshake.want(now)
        self._handshake.handle_timer(now)
        self._follow_candidates()

    def _keep(self) -> None:
        # In place: a batch that is being opened goes on with the new keys.
        self._receiving.clear()
        for session in (self._former, self._current):
            if session is not None:
                self._receiving[session.receiving.label] = session


_OFFER = bytes((OFFER_TYPE,))
_SEALED = bytes((SEALED_TYPE,))


def _label(keys: SessionKeys) -> bytes:
    return _SEALED + keys.receive.label
