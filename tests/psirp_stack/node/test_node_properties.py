"""Random histories of a small network: whatever happened, in the end every subscriber has what is current.

Applications come and go, nodes are killed and start again, links are cut and mended, frames get lost. Within one life
of a subscription versions come in order and each once, at any time. When everything works again, everybody who
subscribes has the current version of everything that is published.
"""

import tempfile
from pathlib import Path

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from psirp_stack.emulation.simulation import SimulatedApplication, SimulatedNetwork
from psirp_stack.links.impairment import Impairment
from psirp_stack.rendezvous import RendezvousConfig
from tests.psirp_stack.simulated import item, ring

NODES = [f"n{number}" for number in range(5)]
ITEMS = [item(1), item(2)]
HOMES = dict(zip(ITEMS, ("n1", "n3"), strict=True))
"""Where each item is published."""
SECONDS_TO_SETTLE = 300.0

node = st.sampled_from(NODES)
wanted = st.sampled_from(ITEMS)


class NetworkHistory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.data = tempfile.TemporaryDirectory()
        self.network: SimulatedNetwork | None = None
        self.publishers: dict[int, SimulatedApplication] = {}
        self.subscribers: dict[tuple[str, int], SimulatedApplication] = {}
        self.dead: set[str] = set()
        self.cut: set[int] = set()
        self.published = 0
        self.current: dict[int, bytes] = {}

    @initialize(seed=st.integers(0, 1000), loss=st.sampled_from([0.0, 0.05, 0.2]))
    def begin(self, seed: int, loss: float) -> None:
        self.network = SimulatedNetwork(
            ring(len(NODES)),
            Path(self.data.name),
            seed=seed,
            impairment=Impairment(delay=0.002, loss=loss, reorder=0.05, duplication=0.02),
            rendezvous=RendezvousConfig(lease=20.0),
        )
        self.network.run(5)

    def net(self) -> SimulatedNetwork:
        assert self.network is not None
        return self.network

    @rule(at=wanted, size=st.sampled_from([10, 3000]), times=st.integers(1, 4))
    def publish(self, at: object, size: int, times: int) -> None:
        place = ITEMS.index(at)  # type: ignore[arg-type]
        home = HOMES[ITEMS[place]]
        if home in self.dead:
            return
        publisher = self.publishers.get(place)
        if publisher is None:
            publisher = self.publishers[place] = self.net().application(home)
        for _ in range(times):
            self.published += 1
            self.current[place] = b"%08d" % self.published + b"x" * size
            publisher.publish(ITEMS[place], self.current[place])

    @rule(at=wanted)
    def stop_publishing(self, at: object) -> None:
        place = ITEMS.index(at)  # type: ignore[arg-type]
        publisher = self.publishers.pop(place, None)
        if publisher is not None:
            publisher.detach()
            self.current.pop(place, None)

    @rule(where=node, at=wanted)
    def subscribe(self, where: str, at: object) -> None:
        place = ITEMS.index(at)  # type: ignore[arg-type]
        if where not in self.dead and (where, place) not in self.subscribers:
            subscriber = self.subscribers[where, place] = self.net().application(where)
            subscriber.subscribe(ITEMS[place])

    @rule(where=node, at=wanted, politely=st.booleans())
    def unsubscribe(self, where: str, at: object, politely: bool) -> None:
        place = ITEMS.index(at)  # type: ignore[arg-type]
        subscriber = self.subscribers.pop((where, place), None)
        if subscriber is not None:
            if politely:
                subscriber.unsubscribe(ITEMS[place])
            subscriber.detach()

    @rule(where=node, at=wanted)
    def subscribe_anew_at_once(self, where: str, at: object) -> None:
        self.unsubscribe(where, at, True)
        self.subscribe(where, at)

    @rule(where=node)
    def kill(self, where: str) -> None:
        if where in self.dead or len(self.dead) >= 2:
            return
        self.dead.add(where)
        self.net().kill(where)
        for key in [key for key in self.subscribers if key[0] == where]:
            del self.subscribers[key]
        for place, home in enumerate(HOMES.values()):
            if home == where:
                self.publishers.pop(place, None)
                self.current.pop(place, None)

    @precondition(lambda self: self.dead)
    @rule()
    def start(self) -> None:
        where = min(self.dead)
        self.dead.discard(where)
        self.net().start(where)

    @rule(number=st.integers(0, len(NODES) - 1))
    def cut_or_mend(self, number: int) -> None:
        ends = NODES[number], NODES[(number + 1) % len(NODES)]
        if number in self.cut:
            self.cut.discard(number)
            self.net().mend(*ends)
        else:
            self.cut.add(number)
            self.net().cut(*ends)

    @rule(seconds=st.sampled_from([0.01, 0.3, 1.0, 4.0, 15.0]))
    def wait(self, seconds: float) -> None:
        self.net().run(seconds)

    @invariant()
    def in_order_and_each_once(self) -> None:
        for (_, place), subscriber in self.subscribers.items():
            got = subscriber.contents(ITEMS[place])
            assert got == sorted(set(got)), [content[:8] for content in got]

    def teardown(self) -> None:
        try:
            if self.network is not None:
                self.everything_works_again()
        finally:
            if self.network is not None:
                self.network.close()
            self.data.cleanup()

    def everything_works_again(self) -> None:
        for where in sorted(self.dead):
            self.net().start(where)
        self.dead.clear()
        for number in sorted(self.cut):
            self.net().mend(NODES[number], NODES[(number + 1) % len(NODES)])
        self.cut.clear()
        self.net().run_until(self.all_have_what_is_current, SECONDS_TO_SETTLE, 1.0)
        self.in_order_and_each_once()
        for (where, place), subscriber in self.subscribers.items():
            if place in self.current:
                got = [content[:8] for content in subscriber.contents(ITEMS[place])]
                assert got[-1:] == [self.current[place][:8]], (where, place, got, subscriber.told[-3:])

    def all_have_what_is_current(self) -> bool:
        return all(
            subscriber.contents(ITEMS[place])[-1:] == [self.current[place]]
            for (_, place), subscriber in self.subscribers.items()
            if place in self.current
        )


class TestNetworkHistory(NetworkHistory.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(max_examples=25, stateful_step_count=20, phases=(Phase.generate,))
