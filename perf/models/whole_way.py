"""A publication's whole way through queues that were observed: which it passes, and what that gives together.

Some queues are inside of others: a visit of the intake waits for a parser and for the store. Adding both would count
the time twice, so the way goes through the outer ones. What is not spent in a queue (the network, protocols that wait
for each other, the event loop) is taken as measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perf.models.connectivity import Connectivity, Expiry
from perf.models.distributions import MeasuredTimes, Times
from perf.models.estimates import ObservedQueue
from perf.models.prediction import PredictedTimes, QueueComparison, responses_of

INNER: Final = frozenset({"offer", "parser", "writer"})
"""Kinds of queues that are passed while another one serves."""
INWARD: Final = ("intake", "session", "source", "link", "delivery")
OUTWARD: Final = ("forwarder", "session", "delivery")
_NETWORK: Final = "session/psirp"


@dataclass(frozen=True, slots=True)
class PlacedQueue:
    """An observed queue, and where it is."""

    node: str
    resource: str
    stays: int
    not_ok: int
    lost: int
    observed: ObservedQueue
    comparison: QueueComparison

    @property
    def kind(self) -> str:
        return self.resource.partition("/")[0]


@dataclass(frozen=True, slots=True)
class WayHop:
    """Queues of one kind at one node: a publication passes one of them."""

    node: str
    kind: str
    queues: tuple[PlacedQueue, ...]
    visits: float
    """Of a publication, at most 1: acknowledgements and hellos pass links too."""

    @property
    def name(self) -> str:
        return f"{self.node} {self.kind}"

    def mean(self, of: "str") -> float | None:
        """Of the `formula`, `simulated` or `measured` times, in seconds, for each publication."""
        total = 0.0
        for queue in self.queues:
            times: PredictedTimes = getattr(queue.comparison, of)
            if times.mean is None:
                return None
            total += queue.stays * times.mean
        return self.visits * total / sum(queue.stays for queue in self.queues)


@dataclass(frozen=True, slots=True)
class WholeWay:
    """Seconds, end to end. `between` is what the measured mean has beyond the queues on the way."""

    hops: tuple[WayHop, ...]
    measured: PredictedTimes
    formula: PredictedTimes
    simulated: PredictedTimes
    between: float
    success_predicted: float
    success_measured: float

    @property
    def error(self) -> float | None:
        if self.formula.mean is None or not self.measured.mean:
            return None
        return self.formula.mean / self.measured.mean - 1

    @property
    def in_queues(self) -> float:
        return sum(hop.mean("measured") or 0.0 for hop in self.hops)


def hops_of(queues: Sequence[PlacedQueue], publications: int, entry: Sequence[str]) -> tuple[WayHop, ...]:
    """In the order in which they are passed. Queues with names of their own (of simulations) follow each other."""
    crosses = len({queue.node for queue in queues}) > 1
    known = frozenset((*INWARD, *OUTWARD, *INNER))
    if not any(queue.kind in known for queue in queues):
        in_order = sorted(queues, key=lambda one: float(one.observed.begun))
        return tuple(_hop(one.node, one.resource, [one], publications) for one in in_order)
    hops = []
    nodes = sorted({queue.node for queue in queues}, key=lambda node: (node not in entry, node))
    for node in nodes:
        is_entry = node in entry
        for kind in INWARD if is_entry else OUTWARD:
            if kind == "delivery" and is_entry and crosses:
                continue  # subscribers beside the publisher have another way
            found = [queue for queue in queues if queue.node == node and queue.kind == kind]
            if kind == "session" and crosses:
                found = [queue for queue in found if (queue.resource == _NETWORK) is is_entry]
            elif kind == "session":
                continue
            if found:
                hops.append(_hop(node, kind, found, publications))
    return tuple(hops)


def _hop(node: str, kind: str, queues: Sequence[PlacedQueue], publications: int) -> WayHop:
    stays = sum(queue.stays for queue in queues)
    return WayHop(node, kind, tuple(queues), min(1.0, stays / max(publications, 1)))


def whole_way(
    hops: Sequence[WayHop],
    measured: PredictedTimes,
    delivered: float,
    connectivity: Mapping[tuple[str, str], Connectivity],
    lifetime: float | None = None,
    seed: int = 1,
) -> WholeWay:
    means = [hop.mean("formula") for hop in hops]
    in_queues = sum(hop.mean("measured") or 0.0 for hop in hops)
    between = (measured.mean or 0.0) - in_queues
    known = [mean for mean in means if mean is not None]
    formula = sum(known) + between if len(known) == len(means) else None
    success = 1.0
    for hop in hops:
        success *= _success(hop, connectivity, lifetime)
    return WholeWay(
        tuple(hops),
        measured,
        PredictedTimes(formula, None, None),
        _in_tandem(hops, between, seed),
        between,
        success,
        delivered,
    )


def _success(hop: WayHop, connectivity: Mapping[tuple[str, str], Connectivity], lifetime: float | None) -> float:
    """What waits for a connection expires, what leaves on a link that is down is lost; all else is served."""
    shares, total = 0.0, 0
    for queue in hop.queues:
        share = 1.0
        party = connectivity.get((queue.node, queue.resource.partition("~")[2] or queue.resource))
        if party is not None and lifetime is not None:
            share *= Expiry((party,)).within(lifetime)
        link = connectivity.get((queue.node, "link"))
        if queue.lost and link is not None:
            share *= link.share
        shares += queue.stays * share
        total += queue.stays
    return 1 - hop.visits * (1 - shares / total) if total else 1.0


def _in_tandem(hops: Sequence[WayHop], between: float, seed: int) -> PredictedTimes:
    """The largest queue of each hop, one behind the other, with services as they were and independent of each other."""
    if not hops:
        return PredictedTimes(None, None, None)
    random = np.random.default_rng(seed)
    chosen = [max(hop.queues, key=lambda queue: queue.stays) for hop in hops]
    first = chosen[0].observed
    begun: Times = first.queued - first.queued[0]
    at = begun.copy()
    for hop, queue in zip(hops, chosen, strict=True):
        passes = random.random(len(at)) < hop.visits
        if not passes.any():
            continue
        there = np.flatnonzero(passes)
        order = there[np.argsort(at[there], kind="stable")]
        services = MeasuredTimes(queue.observed.services).draw(random, len(order))
        at[order] += responses_of(queue.observed, at[order], services)
    passed = at - begun + max(between, 0.0)
    p95, p99 = np.quantile(passed, (0.95, 0.99))
    return PredictedTimes(float(passed.mean()), float(p95), float(p99))
