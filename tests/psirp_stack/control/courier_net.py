"""Couriers joined by a network that loses, doubles and reorders what it is told to."""

import random
from collections import defaultdict
from dataclasses import dataclass, field

from psirp_stack.control.codes import Function
from psirp_stack.control.courier import Courier, CourierArrival, CourierConfig, Datagram, SendFailed, Sent
from psirp_stack.control.courier_wire import Challenge, encode

PAYLOAD_ROOM = 1280


@dataclass(slots=True)
class Life:
    """One life of a node, and what it saw."""

    courier: Courier
    handed: dict[tuple[str, int], list[bytes]] = field(default_factory=lambda: defaultdict(list))
    """Bodies by source and its life, in order."""
    handled: set[bytes] = field(default_factory=set)
    """Bodies whose handler has acknowledged."""
    unhandled: list[CourierArrival] = field(default_factory=list)
    sent: dict[int, tuple[str, bytes]] = field(default_factory=dict)
    outcomes: list[Sent | SendFailed] = field(default_factory=list)


def introduce(courier: Courier, to: Courier) -> None:
    """Let a courier know what the other one wants to be shown."""
    said = Challenge(to.name, to.token_for(courier.name), courier.token_for(to.name))
    courier.receive(encode(said), 0.0)


class CourierNet:
    """Nodes by name. Datagrams wait in `under_way` until somebody delivers or drops them."""

    def __init__(self, names: list[str], config: CourierConfig | None = None, *, introduced: bool = True) -> None:
        """`introduced`: all know each other's tokens, as after their first contact."""
        self.now = 0.0
        self.introduced = introduced
        self.config = config if config is not None else CourierConfig()
        self.room: int | None = PAYLOAD_ROOM
        self.lives: dict[str, list[Life]] = {name: [] for name in names}
        self.under_way: list[Datagram] = []
        self.datagrams = 0
        for name in names:
            self.restart(name)

    def restart(self, name: str) -> None:
        boot = len(self.lives[name]) + 1
        key = f"nobody knows this of {name} {boot}".encode()
        self.lives[name].append(Life(Courier(name, boot, lambda to: self.room, self.config, token_key=key)))
        others = [other for other in self.lives if other != name and self.lives[other]] if self.introduced else []
        for other in others:
            for one, two in ((name, other), (other, name)):
                introduce(self.life(one).courier, self.life(two).courier)

    def life(self, name: str) -> Life:
        return self.lives[name][-1]

    def send(self, source: str, to: str, body: bytes) -> None:
        life = self.life(source)
        ticket = life.courier.send(to, Function.NODE, body, self.now)
        life.sent[ticket] = (to, body)

    def collect(self, acknowledge: bool = True) -> None:
        """Move everything that the couriers have to say."""
        for lives in self.lives.values():
            life = lives[-1]
            while (arrival := life.courier.next_arrival()) is not None:
                life.handed[arrival.source, arrival.source_boot].append(arrival.body)
                life.unhandled.append(arrival)
            if acknowledge:
                while life.unhandled:
                    self.acknowledge(life, 0)
            while (datagram := life.courier.next_datagram(self.now)) is not None:
                assert self.room is not None
                assert len(datagram.payload) <= self.room
                self.under_way.append(datagram)
                self.datagrams += 1
            while (outcome := life.courier.next_outcome()) is not None:
                life.outcomes.append(outcome)

    def acknowledge(self, life: Life, index: int) -> None:
        arrival = life.unhandled.pop(index)
        life.handled.add(arrival.body)
        life.courier.acknowledge(arrival.token, self.now)

    def deliver(self, index: int, keep: bool = False) -> None:
        datagram = self.under_way[index] if keep else self.under_way.pop(index)
        self.life(datagram.to).courier.receive(datagram.payload, self.now)

    def tick(self) -> bool:
        """Go to the next moment at which a courier wants to be called; false when none does."""
        times = [t for lives in self.lives.values() if (t := lives[-1].courier.next_timer()) is not None]
        if not times:
            return False
        self.now = max(self.now, min(times))
        for lives in self.lives.values():
            lives[-1].courier.handle_timer(self.now)
        return True

    def unsettled(self) -> int:
        return sum(
            lives[-1].courier.waiting(name) for lives in self.lives.values() for name in self.lives
        )  # to every name, own included

    def run(
        self, rng: random.Random, loss: float, duplication: float, delay: float = 0.01, within: float = 1000
    ) -> None:
        """Let time pass with a bad network until every message is settled."""
        pending: list[tuple[float, Datagram]] = []
        until = self.now + within
        while True:
            self.collect()
            for datagram in self.under_way:
                for _ in range(1 + (rng.random() < duplication)):
                    if rng.random() >= loss:
                        pending.append((self.now + delay * rng.uniform(0.5, 1.5), datagram))
            self.under_way.clear()
            if not self.unsettled() and not pending:
                return
            assert self.now < until, "not settled in time"
            timers = [t for lives in self.lives.values() if (t := lives[-1].courier.next_timer()) is not None]
            self.now = max(self.now, min([*timers, *(when for when, _ in pending)]))
            due = [entry for entry in pending if entry[0] <= self.now]
            pending = [entry for entry in pending if entry[0] > self.now]
            for _, datagram in due:
                self.life(datagram.to).courier.receive(datagram.payload, self.now)
            for lives in self.lives.values():
                lives[-1].courier.handle_timer(self.now)

    def check(self) -> None:
        """What holds at all times: handed up once and in the order sent; what was sent was handled."""
        for name, lives in self.lives.items():
            for life in lives:
                for (source, boot), bodies in life.handed.items():
                    assert len(set(bodies)) == len(bodies), "handed up twice"
                    order = [b for to, b in self.lives[source][boot - 1].sent.values() if to == name]
                    places = [order.index(body) for body in bodies]
                    assert places == sorted(places), "out of order"
                settled = [outcome.ticket for outcome in life.outcomes]
                assert len(set(settled)) == len(settled), "settled twice"
                for outcome in life.outcomes:
                    to, body = life.sent[outcome.ticket]
                    assert outcome.to == to
                    if isinstance(outcome, Sent):
                        assert any(body in other.handled for other in self.lives[to]), "never handled"
