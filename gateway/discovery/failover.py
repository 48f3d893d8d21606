"""Which gateways have failed lately, and the order to try a domain's gateways in because of it. Sans-I/O.

A gateway that failed goes to the end of the order until its back-off is over; then it stands where its priority and
weight put it, and one more failure sends it away for longer. A success forgets its failures, and so does time. Those
that wait are not left out: when every gateway of a domain has failed, the one whose wait ends first is the best.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from gateway.discovery.model import DiscoveryError, GatewayRecord, check_seconds
from gateway.discovery.order import order_to_try
from storage.backoff import BackOff


@dataclass(frozen=True, slots=True)
class FailoverConfig:
    back_off: BackOff = field(default_factory=BackOff)
    forget_after: float = 3600.0
    """Seconds after the end of a back-off until the failures no longer count."""
    max_failed: int = 4096
    """How many failed gateways are remembered; the one that failed longest ago is forgotten first."""

    def __post_init__(self) -> None:
        check_seconds("failover forget_after", self.forget_after, zero=True)
        if self.max_failed < 1:
            raise DiscoveryError("the memory of failures needs room for one gateway")


@dataclass(slots=True)
class FailoverCounts:
    failed: int = 0
    recovered: int = 0
    forgotten_for_room: int = 0


@dataclass(frozen=True, slots=True)
class FailureRecord:
    times: int
    until: float


class Failover:
    """The memory of failures for gateways of any number of domains."""

    def __init__(self, config: FailoverConfig, rng: random.Random) -> None:
        self.counts = FailoverCounts()
        self._config = config
        self._rng = rng
        self._failures: dict[tuple[str, int], FailureRecord] = {}

    def mark_failed(self, gateway: GatewayRecord, now: float) -> float:
        """Somebody could not reach it; answers until when it stands back."""
        known = self._failures.pop(gateway.endpoint, None)
        times = 1 if known is None or self._is_over(known, now) else known.times + 1
        until = now + self._config.back_off.wait(times, self._rng)
        if known is not None:
            until = max(until, known.until)
        self._failures[gateway.endpoint] = FailureRecord(times, until)
        self.counts.failed += 1
        if len(self._failures) > self._config.max_failed:
            del self._failures[next(iter(self._failures))]
            self.counts.forgotten_for_room += 1
        return until

    def mark_good(self, gateway: GatewayRecord) -> bool:
        """Somebody reached it; answers whether it had failed before."""
        if self._failures.pop(gateway.endpoint, None) is None:
            return False
        self.counts.recovered += 1
        return True

    def waits_until(self, gateway: GatewayRecord, now: float) -> float | None:
        """Until when this gateway stands back; None: it does not."""
        failure = self._failures.get(gateway.endpoint)
        return failure.until if failure is not None and now < failure.until else None

    def order(self, gateways: Iterable[GatewayRecord], now: float) -> list[GatewayRecord]:
        """The gateways that have an address, in the order to try them at this time."""
        ready: list[GatewayRecord] = []
        waiting: list[tuple[float, GatewayRecord]] = []
        for gateway in order_to_try((each for each in gateways if each.addresses), self._rng):
            until = self.waits_until(gateway, now)
            if until is None:
                ready.append(gateway)
            else:
                waiting.append((until, gateway))
        waiting.sort(key=lambda pair: pair[0])
        return ready + [gateway for _, gateway in waiting]

    def _is_over(self, failure: FailureRecord, now: float) -> bool:
        return now >= failure.until + self._config.forget_after
