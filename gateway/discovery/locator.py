"""Find a domain's gateways in the order to try them, and learn from what became of the tries."""

import random
import time
from collections.abc import Callable

from gateway.discovery.events import GatewayFailed, GatewayRecovered, Observer
from gateway.discovery.failover import Failover, FailoverConfig
from gateway.discovery.model import GatewayRecord
from gateway.discovery.resolver import Resolver


class Locator:
    """Joins the look-up to the memory of failures.

    for gateway in await locator.candidates("example.org"):
        if await reached(gateway):
            locator.mark_good(gateway)
            break
        locator.mark_failed(gateway)
    """

    def __init__(
        self,
        resolver: Resolver,
        config: FailoverConfig | None = None,
        *,
        rng: random.Random | None = None,
        observer: Observer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.resolver = resolver
        self.failover = Failover(config or FailoverConfig(), rng or random.Random())  # noqa: S311 - shares load, no secret
        self._observer = observer
        self._clock = clock

    async def candidates(self, domain: str) -> list[GatewayRecord]:
        """The gateways to try, best first; none when the domain has none. LookupFailedError: it cannot be said now."""
        return self.failover.order(await self.resolver.gateways(domain), self._clock())

    def mark_failed(self, gateway: GatewayRecord) -> None:
        until = self.failover.mark_failed(gateway, self._clock())
        if self._observer is not None:
            self._observer(GatewayFailed(gateway.target, gateway.port, until))

    def mark_good(self, gateway: GatewayRecord) -> None:
        if self.failover.mark_good(gateway) and self._observer is not None:
            self._observer(GatewayRecovered(gateway.target, gateway.port))
