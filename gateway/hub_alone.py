"""A hub without a network, with the admin port that a gateway has: metrics, health and the dashboard's hub half."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.admin.config import AdminConfig
from gateway.telemetry.observers import both
from identifiers import DEFAULT_NAMING, Naming
from push_hub.hub import Hub, HubConfig
from storage.queues import QueueObserver

if TYPE_CHECKING:
    from gateway.admin.server import AdminServer
    from gateway.telemetry.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class HubAloneConfig:
    hub: HubConfig
    admin: AdminConfig | None = None
    name: str = "hub"
    naming: Naming = DEFAULT_NAMING
    domain: str | None = None
    zones: tuple[str, ...] = ()

    @property
    def data(self) -> Path:
        return self.hub.data


class HubAlone:
    def __init__(
        self,
        config: HubAloneConfig,
        observer: Callable[[object], None] | None = None,
        queues: QueueObserver | None = None,
    ) -> None:
        self.config = config
        self.telemetry: Telemetry | None = None
        told = observer
        if config.admin is not None:  # a hub without that port starts without waiting for what is behind it
            from gateway.telemetry.telemetry import Telemetry as HubTelemetry

            self.telemetry = HubTelemetry()
            told = both(self.telemetry.observe, observer)
        self.hub = Hub(config.hub, observer=told, queues=queues)
        self.joined = None
        self.log_dropped: Callable[[], int] = lambda: 0
        self.admin: AdminServer | None = None
        self._observer = observer

    async def start(self) -> None:
        await self.hub.start()
        if self.config.admin is not None and self.telemetry is not None:
            from gateway.admin.server import AdminServer as HubAdmin

            self.admin = HubAdmin(self.config.admin, self, self.telemetry, self._observer)
            try:
                await self.admin.start()
            except BaseException:
                await self.stop()
                raise

    async def stop(self) -> None:
        admin, self.admin = self.admin, None
        if admin is not None:
            await admin.stop()
        await self.hub.stop()
