"""Is the gateway alive, and is it ready? The hub's own checks, the gateway's store, and the network behind its node.

`/healthz` asks whether the process can still do its work (stores take writes): if not, a restart may help. `/readyz`
also asks for everything that must be there for publications to cross: queues below their bounds, the node attached, the
rendezvous answering. Looks that come close together share one.
"""

import asyncio
import time
from collections.abc import Callable

from exchange.model import Mark
from exchange.ports import Log
from gateway.admin.administered import Administered
from push_hub.health import Check, HealthReport
from storage import StorageError

PROBE = "health"
SHARED_SECONDS = 1.0
STORE_DEADLINE = 5.0
LIVENESS = frozenset({"store", "gateway store"})


class GatewayHealth:
    def __init__(self, gateway: Administered, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._gateway = gateway
        self._monotonic = monotonic
        self._report = HealthReport(())
        self._at: float | None = None
        self._look: asyncio.Task[HealthReport] | None = None

    @property
    def latest(self) -> HealthReport:
        return self._report

    async def ready(self) -> HealthReport:
        if self._at is not None and self._monotonic() - self._at < SHARED_SECONDS:
            return self._report
        if self._look is None or self._look.done():
            self._look = asyncio.create_task(self._all())
        self._report = await asyncio.shield(self._look)
        self._at = self._monotonic()
        return self._report

    async def alive(self) -> HealthReport:
        report = await self.ready()
        return HealthReport(tuple(check for check in report.checks if check.name in LIVENESS))

    async def stop(self) -> None:
        if self._look is not None:
            self._look.cancel()
            await asyncio.gather(self._look, return_exceptions=True)

    async def _all(self) -> HealthReport:
        joined = self._gateway.joined
        if joined is None:
            return await self._gateway.hub.health()
        protocols, log = joined.core.protocols.values(), joined.exchange.log
        of_protocols = asyncio.gather(*(one.health() for one in protocols))
        found, store = await asyncio.gather(of_protocols, self._store(log))
        return HealthReport((*(check for some in found for check in some), store))

    async def _store(self, log: Log) -> Check:
        # Whole seconds: a mark is a number, and this one says when a write last worked.
        mark = Mark(PROBE, "", int(time.time()))
        try:
            async with asyncio.timeout(STORE_DEADLINE):
                await log.put_marks([mark])
        except TimeoutError:
            return Check("gateway store", False, f"a write was not on disk within {STORE_DEADLINE:g} seconds")
        except StorageError:
            return Check("gateway store", False, "the store refused a write")
        return Check("gateway store", True, "writable")
