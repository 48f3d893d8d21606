"""The hard case for delivery, as an experiment that can be repeated: a ring that loses and reorders frames, and a
forwarder that is killed in the middle of it and comes back later.

Four nodes publish an item each, four others subscribe to all of them; publications follow each other faster than a
round trip. Everything happens on a virtual clock, so that it takes as long as the computing takes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from identifiers import Identifier, ItemId
from psirp_stack.emulation.simulation import SimulatedApplication, SimulatedNetwork
from psirp_stack.graph import Graph
from psirp_stack.links.impairment import Impairment

NODES = 20
PUBLISHERS = ("n1", "n6", "n11", "n16")
SUBSCRIBERS = ("n3", "n8", "n13", "n18")
VICTIM = "n5"
BATCH = 20
BATCH_SECONDS = 0.1
LEAST_PUBLICATIONS = 100
SECONDS_TO_SETTLE = 600.0
BAD = Impairment(delay=0.002, loss=0.1, reorder=0.05)


@dataclass(frozen=True, slots=True)
class RingReport:
    """What became of the publications. `wrong` names subscribers and items whose versions are not exactly those that
    were published, each once and in order."""

    published: int
    subscribers: int
    delivered: int
    wrong: tuple[str, ...]
    skipped: int
    frames: int
    frames_lost: int
    virtual_seconds: float
    killed: bool
    returned: bool

    @property
    def passed(self) -> bool:
        return not self.wrong and not self.skipped and self.delivered == self.published * self.subscribers


def run_ring(
    data: Path, publications: int = 10_000, seed: int = 1, progress: Callable[[int], None] = lambda done: None
) -> RingReport:
    """Run the experiment; `data` is a directory for the rendezvous' store."""
    if publications < LEAST_PUBLICATIONS:
        raise ValueError(f"publications: at least {LEAST_PUBLICATIONS}, not {publications}")
    names = [f"n{number}" for number in range(NODES)]
    graph = Graph.from_edges(names, [(number, (number + 1) % NODES) for number in range(NODES)])
    network = SimulatedNetwork(graph, data, seed=seed, impairment=BAD)
    try:
        return _Experiment(network, publications, progress).run()
    finally:
        network.close()


class _Experiment:
    def __init__(self, network: SimulatedNetwork, publications: int, progress: Callable[[int], None]) -> None:
        self._network = network
        self._publications = publications
        self._progress = progress
        self._items = [
            ItemId(Identifier(b"\1" * 32), Identifier(bytes([number]) * 32)) for number, _ in enumerate(PUBLISHERS, 1)
        ]
        self._sent: dict[ItemId, list[bytes]] = {item: [] for item in self._items}

    def run(self) -> RingReport:
        network = self._network
        network.run(5.0)
        subscribers = {name: network.application(name) for name in SUBSCRIBERS}
        publishers = [network.application(name) for name in PUBLISHERS]
        for subscriber in subscribers.values():
            for item in self._items:
                subscriber.subscribe(item)
        self._publish_first(publishers, list(subscribers.values()))
        done = 0
        killed = returned = False
        while done < self._publications:
            for _ in range(min(BATCH, self._publications - done)):
                place = done % len(self._items)
                content = b"publication %d" % done
                self._sent[self._items[place]].append(content)
                publishers[place].publish(self._items[place], content)
                done += 1
            network.run(BATCH_SECONDS)
            if not killed and done >= self._publications / 3:
                network.kill(VICTIM)
                killed = True
            if killed and not returned and done >= 2 * self._publications / 3:
                network.start(VICTIM)
                returned = True
            self._progress(done)
        network.run_until(lambda: self._all_there(list(subscribers.values())), SECONDS_TO_SETTLE, 0.5)
        wrong = tuple(
            f"{name}: {item}"
            for name, subscriber in subscribers.items()
            for item in self._items
            if subscriber.contents(item) != self._sent[item]
        )
        carried, lost = network.frames_sent_and_lost()
        return RingReport(
            published=done,
            subscribers=len(subscribers),
            delivered=sum(len(subscriber.contents(item)) for subscriber in subscribers.values() for item in self._items)
            - len(subscribers) * len(self._items),
            wrong=wrong,
            skipped=sum(skip.count for subscriber in subscribers.values() for skip in subscriber.skipped),
            frames=carried,
            frames_lost=lost,
            virtual_seconds=network.clock.now(),
            killed=killed,
            returned=returned,
        )

    def _publish_first(self, publishers: list[SimulatedApplication], subscribers: list[SimulatedApplication]) -> None:
        """A first version of each item, so that nobody comes late to those that are counted."""
        for item, publisher in zip(self._items, publishers, strict=True):
            self._sent[item].append(b"first")
            publisher.publish(item, b"first")
        if not self._network.run_until(lambda: self._all_there(subscribers), SECONDS_TO_SETTLE, 0.5):
            raise RuntimeError("the ring did not match its publishers with its subscribers")

    def _all_there(self, subscribers: list[SimulatedApplication]) -> bool:
        return all(
            len(subscriber.received[item]) >= len(self._sent[item])
            for subscriber in subscribers
            for item in self._items
        )
