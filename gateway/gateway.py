"""The appliance: protocols around an exchange, and what joins hubs of different domains over the network.

config = gateway_config(Path("var/gateway"), HubConfig(...), node=NodeFile(...))
gateway = Gateway(config)
await gateway.start()
...
await gateway.stop()
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from exchange.exchange import Exchange
from gateway.admin.config import AdminConfig
from gateway.admin.server import AdminServer
from gateway.bootstrapping import MIGRATIONS as BOOTSTRAPPING_TABLES
from gateway.bootstrapping import Bootstrapping, BootstrappingConfig
from gateway.control import Control
from gateway.core import DATABASE_NAME as DATABASE_NAME
from gateway.core import CoreConfig, GatewayCore
from gateway.discovery import Discovery, DiscoveryConfig, Signpost
from gateway.protocols.chat.adapter import ChatConfig
from gateway.protocols.chat.protocol import CHAT
from gateway.protocols.psirp.adapter import PsirpAdapter
from gateway.protocols.psirp.exports import ExportStore
from gateway.protocols.psirp.network import PsirpNetwork
from gateway.protocols.psirp.protocol import PSIRP, PsirpConfig, PsirpProtocol
from gateway.protocols.psirp.scope_keys import ScopeKeys
from gateway.protocols.rest.adapter import RestConfig
from gateway.protocols.rest.protocol import REST
from gateway.protocols.websub.protocol import WEBSUB, WebsubProtocol
from gateway.telemetry.observers import both
from gateway.telemetry.telemetry import Telemetry
from gateway.tracing import TracesConfig
from gateway.web.server import WebConfig, WebServer
from psirp_stack.node.config import NodeFile
from psirp_stack.node.shell import RunningNode
from push_hub.hub import Hub, HubConfig
from storage.clock import steady
from storage.queues import QueueObserver


@dataclass(frozen=True, slots=True)
class GatewayConfig(CoreConfig):
    """Everything an appliance is made of."""

    zones: tuple[str, ...] = ()
    """DNS zones that it answers for."""
    bootstrapping: BootstrappingConfig = field(default_factory=BootstrappingConfig)
    discovery: DiscoveryConfig = field(default_factory=DiscoveryConfig)
    traces: TracesConfig | None = None
    """Where traces go. Whoever starts the gateway passes the observer that writes them."""
    admin: AdminConfig | None = None
    """The operator's port: dashboard, metrics and health. None: there is none, and nothing is counted."""

    @property
    def hub(self) -> HubConfig:
        found = WEBSUB.of(self.protocols)
        if found is None:
            raise LookupError("an appliance has a hub")
        return found

    @property
    def network(self) -> PsirpConfig:
        return PSIRP.of(self.protocols) or PsirpConfig()


def gateway_config(
    data: Path,
    hub: HubConfig,
    *,
    node: NodeFile | None = None,
    attach: Path | None = None,
    scope_keys: ScopeKeys | None = None,
    web: WebConfig | None = None,
    rest: RestConfig | None = None,
    chat: ChatConfig | None = None,
    **more: Any,
) -> GatewayConfig:
    """An appliance of the built-in protocols; `more` as in `GatewayConfig`. With `web`, there is REST."""
    network = PsirpConfig(node, attach, scope_keys or ScopeKeys())
    protocols: dict[str, object] = {WEBSUB.label: hub, PSIRP.label: network}
    if web is not None:
        protocols[REST.label] = rest or RestConfig()
        if chat is not None:
            protocols[CHAT.label] = chat
    return GatewayConfig(data, protocols | more.pop("protocols", {}), web=web, **more)


class Gateway:
    def __init__(
        self,
        config: GatewayConfig,
        *,
        observer: Callable[[object], None] | None = None,
        telemetry: Telemetry | None = None,
        clock: Callable[[], float] = steady,
        queues: QueueObserver | None = None,
    ) -> None:
        """`queues` is told of every stay in a queue, and of what comes and goes."""
        self.config = config
        self.telemetry = Telemetry(clock) if telemetry is None and config.admin is not None else telemetry
        self.log_dropped: Callable[[], int] = lambda: 0
        """How many lines of a log that listens to this gateway were lost."""
        observer = both(None if self.telemetry is None else self.telemetry.observe, observer)
        self.core = GatewayCore(config, clock, observer, BOOTSTRAPPING_TABLES, queues)
        self.access = self.core.access
        self.bootstrapping = Bootstrapping(config.bootstrapping, config.naming, clock, observer)
        self.discovery = Discovery(config.discovery, allow_private=config.hub.allow_private, observer=observer)
        zones = Signpost(self.bootstrapping, self.discovery) if config.discovery.say_where else self.bootstrapping
        websub = self.core.protocol(WebsubProtocol)
        websub.validators.append(zones)
        self.hub: Hub = websub.hub
        self.hub.add_listener(self.bootstrapping)
        self._observer = observer
        self._network = self.core.protocol(PsirpProtocol)
        self.admin: AdminServer | None = None

    @property
    def joined(self) -> "Gateway":
        """For whoever shows hubs: this one has a network."""
        return self

    @property
    def control(self) -> Control:
        return self.core.control

    @property
    def exchange(self) -> Exchange:
        return self.control.exchange

    @property
    def network(self) -> PsirpNetwork:
        return self._network.network

    @property
    def store(self) -> ExportStore:
        return self._network.exports

    @property
    def psirp(self) -> PsirpAdapter:
        return self._network.adapter

    @property
    def node(self) -> RunningNode | None:
        """Its own; None when it is attached to one that runs already."""
        return self._network.node

    @property
    def socket(self) -> Path:
        """Where its node listens: for `psph explain`, and other applications."""
        return self._network.socket

    @property
    def web(self) -> WebServer | None:
        return self.core.web

    async def start(self) -> None:
        """Start from the network upwards, so that nothing arrives before somebody can take it."""
        config = self.config
        await self.core.prepare()
        self.bootstrapping.prepare(self.hub, self._network.client, self.store, self.psirp)
        await self.core.start()
        await self.bootstrapping.start()
        await self.discovery.start(urlsplit(self.hub.local_url).port or 80)
        if config.admin is not None and self.telemetry is not None:
            self.admin = AdminServer(config.admin, self, self.telemetry, self._observer)
            await self.admin.start()

    async def stop(self) -> None:
        """Take nothing new, write down what is known, let go of the network last."""
        await self.discovery.stop()
        admin, self.admin = self.admin, None
        if admin is not None:
            await admin.stop()
        await self.bootstrapping.stop()
        await self.core.stop()
