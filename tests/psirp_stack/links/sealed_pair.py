"""Two ends of a sealed link on a virtual clock, whose wire a test can hear, cut and speak on."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from psirp_stack.links.clock import VirtualClock
from psirp_stack.links.impairment import ImpairedLink, Impairment
from psirp_stack.links.in_process import pair
from psirp_stack.links.interface import Link, LinkCounters, Receiver
from psirp_stack.links.sealed import SealedLink
from psirp_stack.sealing.channel import SealConfig
from psirp_stack.sealing.keys import DomainKeys

SECRET = b"the secret of a domain"
OTHER_SECRET = b"the secret of another domain"


class Socket:
    """One end of the wire. It stays when a node that used it ends; what arrives is kept for whoever plays the thief."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.heard: list[bytes] = []
        self._receiver: Receiver | None = None
        link.on_receive(self._arrived)

    @property
    def mtu(self) -> int:
        return self.link.mtu

    @property
    def counters(self) -> LinkCounters:
        return self.link.counters

    def on_receive(self, receiver: Receiver | None) -> None:
        self._receiver = receiver

    def send(self, frame: bytes) -> bool:
        return self.link.send(frame)

    def send_many(self, frames: Sequence[bytes]) -> int:
        return sum(map(self.link.send, frames))

    def close(self) -> None:
        self._receiver = None

    def inject(self, *frames: bytes) -> None:
        """As if they came by the wire."""
        if self._receiver is not None:
            self._receiver(list(frames))

    def _arrived(self, frames: Sequence[bytes]) -> None:
        self.heard += frames
        self.inject(*frames)


@dataclass
class End:
    """One node's end of the link, through all its lives."""

    socket: Socket
    start: Callable[[Socket], SealedLink]
    got: list[bytes] = field(default_factory=list)
    proved: int = 0

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        if hasattr(self, "link"):
            self.link.close()
        self.link = self.start(self.socket)
        self.link.on_receive(self.got.extend)
        self.link.when_proved(self._proved)

    def _proved(self) -> None:
        self.proved += 1


class SealedPair:
    def __init__(
        self,
        *,
        impairment: Impairment | None = None,
        seed: int = 1,
        config: SealConfig | None = None,
        secrets: tuple[bytes, bytes] = (SECRET, SECRET),
    ) -> None:
        self.clock = VirtualClock()
        self._entropy = random.Random(f"entropy {seed}").randbytes
        self.wires: list[ImpairedLink] = []
        self.ends: list[End] = []
        for side, carrier in enumerate(pair(scheduler=self.clock, queue_limit=100_000)):
            wire = ImpairedLink(carrier, impairment or Impairment(), self.clock, seed * 2 + side)
            self.wires.append(wire)
            domain = DomainKeys.of(secrets[side])
            self.ends.append(
                End(
                    Socket(wire),
                    lambda socket, domain=domain: SealedLink(socket, domain, self.clock, self._entropy, config),  # type: ignore[misc]
                )
            )

    @property
    def a(self) -> End:
        return self.ends[0]

    @property
    def b(self) -> End:
        return self.ends[1]

    def run(self, seconds: float = 1.0) -> None:
        self.clock.run(self.clock.now() + seconds)

    def set_impairment(self, impairment: Impairment) -> None:
        for wire in self.wires:
            wire.impairment = impairment

    def works_both_ways(self) -> bool:
        """Send a frame each way; whether both arrive."""
        done = []
        for end, other in (self.ends, self.ends[::-1]):
            word = b"word %d" % len(other.got)
            end.link.send(word)
            self.run(0.5)
            done.append(other.got[-1:] == [word])
        return all(done)
