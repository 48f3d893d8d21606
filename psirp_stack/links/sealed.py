"""A link that is sealed: wraps any carrier, impaired or not, and lets only the neighbour's frames through.

The shell around `psirp_stack.sealing`: it moves bytes, asks the scheduler for time and decides nothing. A tap above it
shows frames as the node sees them; one below, or a capture of the interface, shows them sealed.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from psirp_stack.links.clock import Scheduler
from psirp_stack.links.interface import BatchLink, Link, LinkCounters, Receiver
from psirp_stack.sealing.channel import SealConfig, SealedChannel
from psirp_stack.sealing.keys import DomainKeys, Entropy
from psirp_stack.sealing.session import SealDrop
from psirp_stack.wire.numbers import OFFER_BYTES, SEALED_OVERHEAD


class SealedLink:
    """A link whose every frame is sealed for the neighbour that proved the domain's secret."""

    def __init__(
        self, link: Link, domain: DomainKeys, scheduler: Scheduler, entropy: Entropy, config: SealConfig | None = None
    ) -> None:
        """`link` is this one's from now on: begins the handshake at once."""
        if link.mtu < OFFER_BYTES:
            raise ValueError(f"the link takes frames of {link.mtu} bytes: the handshake needs {OFFER_BYTES}")
        self.link = link
        self._scheduler = scheduler
        self._channel = SealedChannel(domain, entropy, scheduler.now(), config)
        self._send_many = link.send_many if isinstance(link, BatchLink) else self._one_by_one
        self._receiver: Receiver | None = None
        self._when_proved: Callable[[], object] | None = None
        self._wake_at: float | None = None
        self._closed = False
        link.on_receive(self._arrived)
        self._after(sessions=0)

    @property
    def mtu(self) -> int:
        """What is left of the carrier's when frames are sealed."""
        return self.link.mtu - SEALED_OVERHEAD

    @property
    def counters(self) -> LinkCounters:
        """The carrier's counters: sealed frames and offers."""
        return self.link.counters

    @property
    def drops(self) -> Counter[SealDrop]:
        """What was dropped here, by reason."""
        return self._channel.drops

    @property
    def proved(self) -> bool:
        return self._channel.proved

    @property
    def sessions(self) -> int:
        """Handshakes that succeeded since the link was opened."""
        return self._channel.sessions

    def on_receive(self, receiver: Receiver | None) -> None:
        self._receiver = receiver

    def when_proved(self, action: Callable[[], object] | None) -> None:
        """Say what to do each time the neighbour has proved itself: it can be spoken to now, perhaps in a new life."""
        self._when_proved = action

    def send(self, frame: bytes) -> bool:
        return self.send_many((frame,)) == 1

    def send_many(self, frames: Sequence[bytes]) -> int:
        if self._closed:
            self.counters.after_close += len(frames)
            return 0
        sent = self._send_many(self._channel.seal(frames))
        if self._channel.worn:
            self._tick()
        return sent

    def close(self) -> None:
        self._closed = True
        self.link.on_receive(None)
        self.link.close()

    def _one_by_one(self, frames: Sequence[bytes]) -> int:
        return sum(map(self.link.send, frames))

    def _arrived(self, frames: Sequence[bytes]) -> None:
        sessions = self._channel.sessions
        opened = self._channel.open(frames, self._scheduler.now())
        self._after(sessions=sessions)
        if opened and self._receiver is not None:
            self._receiver(opened)

    def _after(self, *, sessions: int) -> None:
        """Send what the handshake has to say, and be there when it next has something to do."""
        channel = self._channel
        while (offer := channel.next_frame()) is not None:
            self.link.send(offer)
        when = channel.next_timer()
        if when is not None and (self._wake_at is None or when < self._wake_at):
            self._wake_at = when
            self._scheduler.call_at(when, lambda: self._wake(when))
        if channel.sessions > sessions and self._when_proved is not None:
            self._when_proved()

    def _wake(self, when: float) -> None:
        if self._closed or self._wake_at != when:
            return
        self._wake_at = None
        self._tick()

    def _tick(self) -> None:
        sessions = self._channel.sessions
        self._channel.handle_timer(self._scheduler.now())
        self._after(sessions=sessions)
