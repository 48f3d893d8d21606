"""Messages through a network of queues, message by message and seeded.

A network here has no way back: what leaves a queue never comes to it again. So all arrivals at a queue are known
once the queues before it are done, and the network is walked through once, queue by queue. That gives the same times
as a loop over events, without a heap: a million messages through pattern 4 take a few seconds.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
from numpy.random import Generator, SeedSequence, default_rng
from numpy.typing import NDArray

from perf.models.assumptions import ModelError, check_positive
from perf.models.distributions import Distribution, Exponential, Times
from perf.models.serving import Fate, Fates, QueueVisits, serve_all, serve_some
from perf.models.timeline import Timeline, all_at_once, drawn

_FORM: Final = "a queue's branches must add up to 1"


class Arrivals(Protocol):
    """When messages are made."""

    def times(self, random: Generator, count: int) -> Times:
        """The first `count`, in order; fewer when there are no more."""


@dataclass(frozen=True, slots=True)
class Renewals:
    """Independent spacings; exponential ones make Poisson arrivals."""

    spacing: Distribution

    def times(self, random: Generator, count: int) -> Times:
        return np.cumsum(self.spacing.draw(random, count))


def poisson(rate: float) -> Renewals:
    check_positive(rate=rate)
    return Renewals(Exponential(1 / rate))


@dataclass(frozen=True)
class AtTimes:
    """A trace of arrivals."""

    at: Times

    def times(self, random: Generator, count: int) -> Times:
        return np.sort(self.at)[:count]


@dataclass(frozen=True, slots=True)
class BySlots:
    """Poisson with another rate in each slot: `counts` messages are expected in each."""

    counts: tuple[float, ...]
    seconds: float

    def times(self, random: Generator, count: int) -> Times:
        numbers = random.poisson(self.counts)
        starts = np.repeat(np.arange(len(numbers)) * self.seconds, numbers)
        return np.sort(starts + random.random(len(starts)) * self.seconds)[:count]


@dataclass(frozen=True)
class SimulatedSource:
    name: str
    arrivals: Arrivals
    to: str
    lifetime: float | None = None


@dataclass(frozen=True)
class SimulatedQueue:
    """`served_while`: the connectivity it serves by. `loses_on`: the link behind it, which loses what leaves while it
    is down. `places`: how many fit in, with those in service. `to`: where messages go and how likely; none: delivered.
    """

    name: str
    service: Distribution
    to: tuple[tuple[str, float], ...] = ()
    servers: int = 1
    served_while: str | None = None
    loses_on: str | None = None
    expires: bool = False
    places: int | None = None

    def __post_init__(self) -> None:
        if self.to and abs(sum(share for _, share in self.to) - 1) > 1e-9:
            raise ModelError(f"{self.name}: {_FORM}, not {sum(share for _, share in self.to):g}")
        if self.servers > 1 and self.served_while is not None:
            raise ModelError(f"{self.name}: a queue that is disconnected now and then has one server")


@dataclass(frozen=True)
class Alternating:
    """Connected and disconnected in turn."""

    on: Distribution
    off: Distribution


@dataclass(frozen=True)
class SimulatedWorld:
    """`connectivity`: drawn, measured (a timeline), or several names that must all be connected."""

    sources: tuple[SimulatedSource, ...]
    queues: tuple[SimulatedQueue, ...]
    connectivity: Mapping[str, Alternating | Timeline | tuple[str, ...]] = field(default_factory=dict)
    expires_after_service: bool = False
    """Whether queues look for what is too old after they served it, as the text's listings do. Before is the rule: it
    frees the time of the service."""


@dataclass(frozen=True, slots=True)
class ConservationLedger:
    """Counted where it happened: at sources, at queues, behind links and at the end. `balanced` can be wrong."""

    emitted: int
    delivered: int
    expired: int
    lost: int
    dropped: int
    in_flight: int

    @property
    def balanced(self) -> bool:
        return self.emitted == self.delivered + self.expired + self.lost + self.dropped + self.in_flight


@dataclass(frozen=True)
class SimulatedRun:
    seed: int
    created: Times
    ended: Times
    fates: Fates
    visits: Mapping[str, QueueVisits]
    timelines: Mapping[str, Timeline]
    until: float | None
    ledger: ConservationLedger

    def responses(self, warm_up: float = 0.0) -> Times:
        """End to end, of what was delivered and made after the warm-up."""
        counted = (self.fates == Fate.DELIVERED) & (self.created >= warm_up)
        times: Times = (self.ended - self.created)[counted]
        return times

    def success(self, warm_up: float = 0.0) -> float:
        counted = self.created >= warm_up
        return float((self.fates[counted] == Fate.DELIVERED).mean()) if counted.any() else float("nan")


def simulate(world: SimulatedWorld, messages: int, seed: int, until: float | None = None) -> SimulatedRun:
    """`messages` in all sources together, or as many as are made before `until`; what is under way then is in flight.

    Without `until` the network runs until it is empty.
    """
    return _Simulation(world, seed).run(messages, until)


class _Simulation:
    def __init__(self, world: SimulatedWorld, seed: int) -> None:
        self._world = world
        self._seed = seed
        self._queues = {queue.name: queue for queue in world.queues}
        if len(self._queues) != len(world.queues):
            raise ModelError("two queues have the same name")
        names = [*(source.name for source in world.sources), *sorted(world.connectivity), *self._queues]
        seeds = SeedSequence(seed).spawn(len(names))
        self._random = {name: default_rng(one) for name, one in zip(names, seeds, strict=True)}
        self._timelines: dict[str, Timeline] = {}
        for name in world.connectivity:
            self._timeline(name)

    def _timeline(self, name: str) -> Timeline:
        if name not in self._timelines:
            match self._world.connectivity.get(name):
                case None:
                    raise ModelError(f"nobody says when {name} is connected")
                case tuple() as parties:
                    made = all_at_once([self._timeline(party) for party in parties])
                case Alternating(on, off):
                    made = drawn(on, off, self._random[name])
                case Timeline() as made:
                    pass
            self._timelines[name] = made
        return self._timelines[name]

    def run(self, messages: int, until: float | None) -> SimulatedRun:
        created, deadlines, waiting, emitted = self._make(messages, until)
        ended = np.full(len(created), np.inf)
        fates = np.zeros(len(created), np.int8)
        visits: dict[str, QueueVisits] = {}
        counts = dict.fromkeys(Fate, 0)
        for queue in self._in_order():
            here = waiting.pop(queue.name, [])
            numbers = np.concatenate([np.empty(0, np.int64), *(one for one, _ in here)])
            times = np.concatenate([np.empty(0), *(two for _, two in here)])
            order = np.argsort(times, kind="stable")
            visited = self._visit(queue, numbers[order], times[order], deadlines)
            visits[queue.name] = visited
            self._finish(visited, visited.fates != Fate.IN_FLIGHT, visited.fates, fates, ended, counts, until)
            self._pass_on(queue, visited, waiting, fates, ended, counts, until)
        ledger = ConservationLedger(
            emitted,
            counts[Fate.DELIVERED],
            counts[Fate.EXPIRED],
            counts[Fate.LOST],
            counts[Fate.DROPPED],
            _under_way(visits.values(), until),
        )
        return SimulatedRun(self._seed, created, ended, fates, visits, self._timelines, until, ledger)

    def _make(
        self, messages: int, until: float | None
    ) -> tuple[Times, Times, dict[str, list[tuple[NDArray[np.int64], Times]]], int]:
        """All messages, in the order in which they are made."""
        made = [source.arrivals.times(self._random[source.name], messages) for source in self._world.sources]
        times = np.concatenate([np.empty(0), *made])
        whose = np.repeat(np.arange(len(made)), [len(one) for one in made])
        order = np.argsort(times, kind="stable")[:messages]
        created, whose = times[order], whose[order]
        if until is not None:
            whose = whose[created < until]
            created = created[created < until]
        lifetimes = [np.inf if source.lifetime is None else source.lifetime for source in self._world.sources]
        deadlines = created + np.array([*lifetimes, 0.0])[whose]
        waiting: dict[str, list[tuple[NDArray[np.int64], Times]]] = {}
        for number, source in enumerate(self._world.sources):
            mine = np.flatnonzero(whose == number)
            waiting.setdefault(source.to, []).append((mine, created[mine]))
        return created, deadlines, waiting, len(created)

    def _in_order(self) -> Sequence[SimulatedQueue]:
        """Queues behind those that they get messages from."""
        ordered: list[SimulatedQueue] = []
        state: dict[str, bool] = {}

        def visit(name: str) -> None:
            if name not in self._queues:
                raise ModelError(f"messages are sent to {name}, which is no queue")
            if state.get(name) is False:
                raise ModelError(f"messages come back to {name}: networks here have no way back")
            if name not in state:
                state[name] = False
                for following, _ in self._queues[name].to:
                    visit(following)
                state[name] = True
                ordered.append(self._queues[name])

        for source in self._world.sources:
            visit(source.to)
        return ordered[::-1]

    def _visit(self, queue: SimulatedQueue, numbers: NDArray[np.int64], at: Times, deadlines: Times) -> QueueVisits:
        services = queue.service.draw(self._random[queue.name], len(at))
        timeline = None if queue.served_while is None else self._timeline(queue.served_while)
        mine = deadlines[numbers] if queue.expires else None
        looks_after = self._world.expires_after_service
        if queue.servers == 1 and queue.places is None and (mine is None or looks_after or np.isinf(mine).all()):
            started, done = serve_all(at, services, timeline)
            late = np.zeros(len(at), bool) if mine is None else done > mine
            ends = np.where(late, Fate.EXPIRED, Fate.IN_FLIGHT).astype(np.int8)
            return QueueVisits(numbers, at, started, done, ends, queue.served_while)
        if looks_after and mine is not None:
            raise ModelError(f"{queue.name}: expiry after service is simulated for one server without a bound only")
        started, done, fates = serve_some(
            at, services, timeline, deadlines=mine, servers=queue.servers, places=queue.places
        )
        return QueueVisits(numbers, at, started, done, fates, queue.served_while)

    def _pass_on(
        self,
        queue: SimulatedQueue,
        visited: QueueVisits,
        waiting: dict[str, list[tuple[NDArray[np.int64], Times]]],
        fates: Fates,
        ended: Times,
        counts: dict[Fate, int],
        until: float | None,
    ) -> None:
        going = visited.fates == Fate.IN_FLIGHT
        if queue.loses_on is not None:
            lost = going & ~self._timeline(queue.loses_on).connected(visited.done)
            self._finish(visited, lost, np.full(len(going), Fate.LOST, np.int8), fates, ended, counts, until)
            going &= ~lost
        if not queue.to:
            self._finish(visited, going, np.full(len(going), Fate.DELIVERED, np.int8), fates, ended, counts, until)
            return
        names = [name for name, _ in queue.to]
        chosen = np.zeros(len(going), np.int64)
        if len(names) > 1:
            edges = np.cumsum([share for _, share in queue.to])[:-1]
            chosen = np.searchsorted(edges, self._random[queue.name].random(len(going)), side="right")
        for place, name in enumerate(names):
            there = going & (chosen == place)
            waiting.setdefault(name, []).append((visited.messages[there], visited.done[there]))

    @staticmethod
    def _finish(
        visited: QueueVisits,
        who: NDArray[np.bool_],
        how: Fates,
        fates: Fates,
        ended: Times,
        counts: dict[Fate, int],
        until: float | None,
    ) -> None:
        """These messages end here, if it is not later than anybody looks."""
        if until is not None:
            who = who & (visited.done <= until)
        fates[visited.messages[who]] = how[who]
        ended[visited.messages[who]] = visited.done[who]
        for fate in (Fate.DELIVERED, Fate.EXPIRED, Fate.LOST, Fate.DROPPED):
            counts[fate] += int((how[who] == fate).sum())


def _under_way(visits: Iterable[QueueVisits], until: float | None) -> int:
    """Who came to a queue and has not left it when the run is looked at."""
    if until is None:
        return 0
    return sum(int(((one.queued <= until) & (one.done > until)).sum()) for one in visits)
