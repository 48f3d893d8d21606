"""Two gateways in each of two domains: publishers that go back, kills, partitions, and arrivals in any interleaving.

The gateways' own parts are real, each on a store of its own: log, sessions, exchange, control function, the network's
adapter. The network between them is one that a test deals out: whichever version of whichever gateway comes next is
chosen by a seed. A kill leaves exactly what was committed.

A version says what its gateway knew of others, and comes after that here: the network serves a subscriber from one
publisher at a time. After a kill it goes on exactly where it was.
"""

import asyncio
import hashlib
import random
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest

from exchange.exchange import Exchange, ExchangeConfig
from exchange.model import Draft, Interest, LogEntry, Profile, SessionKey
from exchange.ports import Wanted
from exchange.sqlite import SqliteLog, SqliteSessions
from gateway.control import Control
from gateway.model import Crossing, Listener
from gateway.protocols.psirp.adapter import PsirpAdapter
from gateway.protocols.psirp.exports import ExportStore
from gateway.store import TABLES
from identifiers import DEFAULT_NAMING, Identifier, ItemId
from storage import Database
from tests.waiting import until

DOMAINS = {"a1": "a", "a2": "a", "b1": "b", "b2": "b"}
STEPS = 60
SEEDS = 8
LEAST = 5
"""States that a journey has at least."""


@dataclass(frozen=True)
class Sent:
    draft: Draft
    version: Identifier


@dataclass
class Following:
    listener: Listener
    next: dict[str, int]
    """Of each gateway that publishes, the place of the version that comes next."""


class DealtNetwork:
    """What each gateway published of each item, and who follows it from where."""

    def __init__(self) -> None:
        self.gateways: dict[bytes, str] = {}
        self.sent: dict[tuple[str, ItemId], list[Sent]] = {}
        self.following: dict[tuple[str, ItemId], Following] = {}
        self.reached: dict[tuple[str, ItemId], dict[str, int]] = {}
        """How far a gateway that was killed had what others published."""
        self.cut: set[frozenset[str]] = set()

    def pending(self) -> list[tuple[str, ItemId, str]]:
        """Reader, item and publisher of all that could come next."""
        return [
            (reader, item, sender)
            for (reader, item), following in self.following.items()
            for sender in DOMAINS
            if sender != reader
            and frozenset((reader, sender)) not in self.cut
            and following.next.setdefault(sender, 0) < len(self.sent.get((sender, item), ()))
            and self._knew_of_nothing_else(reader, item, sender)
        ]

    def _knew_of_nothing_else(self, reader: str, item: ItemId, sender: str) -> bool:
        """Whether all that the next version's gateway knew of has come."""
        following = self.following[reader, item]
        for known in self.sent[sender, item][following.next[sender]].draft.known:
            other = self.gateways[known.gateway]
            left = self.sent.get((other, item), [])[following.next.setdefault(other, 0) :]
            if other != reader and any(sent.draft.origin and sent.draft.origin.number <= known.number for sent in left):
                return False
        return True

    async def deal(self, reader: str, item: ItemId, sender: str) -> None:
        following = self.following[reader, item]
        sent = self.sent[sender, item][following.next[sender]]
        await following.listener(Crossing(sent.draft, sent.version))
        following.next[sender] += 1


def _copy(store: Path, to: Path) -> None:
    to.mkdir()
    with sqlite3.connect(store / "gateway.sqlite") as now, sqlite3.connect(to / "gateway.sqlite") as then:
        now.backup(then)


class GatewaysNetwork:
    """The network as one gateway has it."""

    def __init__(self, name: str, network: DealtNetwork) -> None:
        self._name = name
        self._network = network

    async def publish(self, draft: Draft) -> Identifier:
        version = Identifier(hashlib.sha256(draft.body).digest())
        versions = self._network.sent.setdefault((self._name, draft.item), [])
        # What the exchange does not know to be published is published again after a kill: it is known by its origin.
        if all(sent.draft.origin != draft.origin for sent in versions):
            versions.append(Sent(draft, version))
        return version

    async def subscribe(self, item: ItemId, listener: Listener, since: Identifier | None) -> None:
        starts = dict(self._network.reached.get((self._name, item), {}))
        self._network.following[self._name, item] = Following(listener, starts)

    async def advertise(self, item: ItemId) -> None: ...
    async def withdraw(self, item: ItemId) -> None: ...
    async def unsubscribe(self, item: ItemId) -> None: ...

    def is_wanted(self, item: ItemId) -> bool:
        return True

    def watch_demand(self, listener: Callable[[ItemId, bool], None]) -> None: ...


class Reader:
    """A protocol whose subscriber writes down what it is handed, and now and then cannot take it."""

    name = "notes"
    hears_own = True
    keeps_rules = True

    def __init__(self, taken: dict[ItemId, list[tuple[int, bytes]]], chance: random.Random) -> None:
        self.taken = taken
        self._chance = chance

    def item_of(self, what: str) -> ItemId:
        return DEFAULT_NAMING.of_user(what)

    async def deliver(self, key: SessionKey, entry: LogEntry, interests: Sequence[Interest]) -> None:
        if self._chance.random() < 0.1:
            raise OSError("not now")
        self.taken.setdefault(entry.item, []).append((entry.position, entry.draft.body))


@dataclass
class OneGateway:
    name: str
    folder: Path
    network: DealtNetwork
    chance: random.Random
    items: Sequence[str]
    taken: dict[ItemId, list[tuple[int, bytes]]] = field(default_factory=dict)

    async def start(self) -> None:
        self.database = Database.open(self.folder / "gateway.sqlite", TABLES)
        config = ExchangeConfig(sweep_every=0.01, first_wait=0.001, longest_wait=0.002)
        self.exchange = Exchange(SqliteLog(self.database), SqliteSessions(self.database), lambda: 1000.0, config)
        self.network.gateways[self.exchange.gateway] = self.name
        self.control = Control(self.exchange, lambda: 1000.0)
        self.reader = Reader(self.taken, self.chance)
        network = GatewaysNetwork(self.name, self.network)
        self.psirp = PsirpAdapter(self.exchange, network, ExportStore(self.database), 0.01)
        self.control.add_source(self.psirp)
        await self.exchange.start()
        self.control.add(self.reader)
        await self.psirp.start()
        for name in self.items:
            await self.control.subscribe(self.reader, "somebody", name)
        await until(
            lambda: all((self.name, self.reader.item_of(name)) in self.network.following for name in self.items)
        )

    async def ping(self, name: str, state: bytes) -> None:
        """As a hub does: what was fetched is news if it is not what is known to be current."""
        item = self.reader.item_of(name)
        newest = await self.exchange.log.newest(Wanted(item))
        if newest is None or newest.draft.body != state:
            await self.control.publish(self.reader, Draft(item, name, Profile.DOCUMENT, "text/plain", state))

    async def stop(self) -> None:
        await self.psirp.stop()
        await self.exchange.stop()
        self.database.close()

    async def kill(self, folder: Path) -> None:
        """What was committed is there again, and nothing else."""
        _copy(self.folder, folder)
        for key in [key for key in self.network.following if key[0] == self.name]:
            self.network.reached[key] = self.network.following.pop(key).next
        sent = {key: list(versions) for key, versions in self.network.sent.items()}
        before = {item: list(got) for item, got in self.taken.items()}
        await self.stop()
        # Whatever was done while it stopped, was not.
        self.network.sent = sent | {k: v for k, v in self.network.sent.items() if k[0] != self.name}
        self.taken = before
        self.folder = folder
        await self.start()

    def states(self, name: str) -> list[bytes]:
        """One after a kill may come again; it is known by its place in the log."""
        seen: dict[int, bytes] = {}
        for position, body in self.taken.get(self.reader.item_of(name), []):
            assert seen.setdefault(position, body) == body
        return [seen[position] for position in seen]


@dataclass
class Author:
    """A publisher: pings both gateways of its domain for each state, or now the one and now the other."""

    name: str
    domain: str
    both: bool
    states: list[bytes] = field(default_factory=list)

    def next(self, chance: random.Random, fresh: "count[int]") -> bytes:
        earlier = [state for state in self.states if state != self.states[-1]]
        goes_back = earlier and chance.random() < 0.4
        self.states.append(chance.choice(earlier) if goes_back else b"%s %d" % (self.name.encode(), next(fresh)))
        return self.states[-1]


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_every_subscriber_sees_every_state_once_in_the_publishers_order(tmp_path: Path, seed: int) -> None:
    for name, seen, said in await journey(tmp_path, seed):
        assert seen == said, name


async def journey(folder: Path, seed: int) -> list[tuple[str, list[bytes], list[bytes]]]:
    """At each gateway, for each publisher: what its subscriber saw, and what there was to see."""
    chance = random.Random(seed)
    network, fresh, lives = DealtNetwork(), count(), count()
    authors = [Author("p@b.example", "b", True), Author("q@a.example", "a", True), Author("r@b.example", "b", False)]
    names = [author.name for author in authors]
    gateways = [OneGateway(name, folder / name, network, chance, names) for name in DOMAINS]
    for one in gateways:
        one.folder.mkdir()
        await one.start()

    async def publish(author: Author) -> None:
        own = [one for one in gateways if DOMAINS[one.name] == author.domain]
        if not author.both:
            # It goes to the other gateway when that has heard of what was last.
            own = [one for one in own if one.states(author.name) == author.states]
            if not own:
                return
            own = [chance.choice(own)]
        state = author.next(chance, fresh)
        for one in chance.sample(own, len(own)):
            await one.ping(author.name, state)
            await deal(chance.randrange(3))
        if not author.both:
            await until(lambda: own[0].states(author.name) == author.states)

    async def deal(some: int) -> None:
        for _ in range(some):
            await asyncio.sleep(0)
            pending = network.pending()
            if pending:
                await network.deal(*chance.choice(pending))

    for _ in range(STEPS):
        match chance.randrange(10):
            case 0 | 1 | 2 | 3:
                await publish(chance.choice(authors))
            case 4 | 5 | 6:
                await deal(chance.randrange(1, 12))
            case 7:
                network.cut.add(frozenset(chance.sample(list(DOMAINS), 2)))
            case 8 if network.cut:
                network.cut.remove(chance.choice(sorted(network.cut, key=sorted)))
            case _:
                one = chance.choice(gateways)
                await one.kill(folder / f"{one.name}-{next(lives)}")
    network.cut.clear()

    async def all_told() -> bool:
        while network.pending():
            await deal(len(network.pending()))
        return all(one.states(author.name) == author.states for one in gateways for author in authors)

    try:
        await until(all_told, seconds=10.0)
    except AssertionError:
        pass  # whoever asked says what is wrong
    finally:
        for one in gateways:
            await one.stop()
    assert sum(len(author.states) for author in authors) > LEAST
    return [
        (f"{one.name} of {author.name}", one.states(author.name), author.states)
        for one in gateways
        for author in authors
    ]
