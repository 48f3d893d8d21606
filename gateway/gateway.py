"""The appliance: a hub, a PSIRP node, and the control function between them, put together.

gateway = Gateway(GatewayConfig(hub=HubConfig(...), node=NodeFile(...), data=Path("var/gateway")))
await gateway.start()
...
await gateway.stop()
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from exchange.exchange import Exchange, ExchangeConfig
from exchange.sqlite import SqliteLog, SqliteSessions
from gateway.access import AccessGuard, AccessRules
from gateway.adapters.chat import ChatAdapter
from gateway.adapters.chat_store import MIGRATIONS as CHAT_TABLES
from gateway.adapters.chat_store import ChatStore
from gateway.adapters.demand import MIGRATIONS as DEMAND_TABLES
from gateway.adapters.demand import NetworkDemand
from gateway.adapters.psirp import PsirpAdapter
from gateway.adapters.push import PushAdapter
from gateway.adapters.stream import StreamAdapter
from gateway.admin.config import AdminConfig
from gateway.admin.server import AdminServer
from gateway.bootstrapping import MIGRATIONS as BOOTSTRAPPING_TABLES
from gateway.bootstrapping import Bootstrapping, BootstrappingConfig
from gateway.control import Control, ControlConfig
from gateway.discovery import Discovery, DiscoveryConfig, Signpost
from gateway.network import PsirpNetwork
from gateway.scope_keys import ScopeKeys
from gateway.store import TABLES, ExportStore
from gateway.telemetry.telemetry import Telemetry, both
from gateway.tracing import TracesConfig
from gateway.web.server import WebConfig, WebServer
from identifiers import DEFAULT_NAMING, Naming
from psirp_stack.node.api import Client
from psirp_stack.node.config import NodeFile
from psirp_stack.node.shell import RunningNode
from push_hub.hub import Hub, HubConfig
from push_hub.policy import AllOf
from storage import Database
from storage.clock import steady
from storage.private import make_private_folder

DATABASE_NAME = "gateway.sqlite"
SOCKET_NAME = "node.sock"
"""Secrets of subscriptions are in the store; applications of the group may attach to the node."""


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Everything a gateway is made of. With `attach`, its node is one that runs already; otherwise it runs its own."""

    data: Path
    hub: HubConfig
    node: NodeFile | None = None
    attach: Path | None = None
    naming: Naming = DEFAULT_NAMING
    control: ControlConfig = field(default_factory=ControlConfig)
    name: str = "gateway"
    """What its node calls it."""
    domain: str | None = None
    """The domain whose people are user@domain here."""
    zones: tuple[str, ...] = ()
    """DNS zones that it answers for."""
    bootstrapping: BootstrappingConfig = field(default_factory=BootstrappingConfig)
    web: WebConfig | None = None
    """The port for people and scripts: chat page and REST facade. None: there is none."""
    discovery: DiscoveryConfig = field(default_factory=DiscoveryConfig)
    traces: TracesConfig | None = None
    """Where traces go. Whoever starts the gateway passes the observer that writes them."""
    admin: AdminConfig | None = None
    """The operator's port: dashboard, metrics and health. None: there is none, and nothing is counted."""
    scope_keys: ScopeKeys = field(default_factory=ScopeKeys)
    """What is sealed from gateway to gateway."""
    access: AccessRules = field(default_factory=AccessRules)
    """Who may publish and subscribe."""


class Gateway:
    def __init__(
        self,
        config: GatewayConfig,
        *,
        observer: Callable[[object], None] | None = None,
        telemetry: Telemetry | None = None,
        clock: Callable[[], float] = steady,
    ) -> None:
        self.config = config
        self.telemetry = Telemetry(clock) if telemetry is None and config.admin is not None else telemetry
        self.log_dropped: Callable[[], int] = lambda: 0
        """How many lines of a log that listens to this gateway were lost."""
        observer = both(None if self.telemetry is None else self.telemetry.observe, observer)
        self.bootstrapping = Bootstrapping(config.bootstrapping, config.naming, clock, observer)
        self.discovery = Discovery(config.discovery, allow_private=config.hub.allow_private, observer=observer)
        zones = Signpost(self.bootstrapping, self.discovery) if config.discovery.say_where else self.bootstrapping
        self.access = AccessGuard(config.access, observer)
        validator = AllOf([self.access, zones])
        self.hub = Hub(config.hub, validator=validator, publishers=self.access, observer=observer, clock=clock)
        self.hub.add_listener(self.bootstrapping)
        self._observer = observer
        self._clock = clock
        self._parts: _Parts | None = None
        self.node: RunningNode | None = None
        self.admin: AdminServer | None = None

    @property
    def control(self) -> Control:
        return self._running.control

    @property
    def network(self) -> PsirpNetwork:
        return self._running.network

    @property
    def exchange(self) -> Exchange:
        return self._running.control.exchange

    @property
    def store(self) -> ExportStore:
        return self._running.store

    @property
    def psirp(self) -> PsirpAdapter:
        return self._running.psirp

    @property
    def push(self) -> PushAdapter:
        return self._running.push

    @property
    def socket(self) -> Path:
        """Where its node listens: for `psph explain`, and other applications."""
        return self.config.attach or self.config.data / SOCKET_NAME

    @property
    def web(self) -> WebServer | None:
        return self._running.web

    async def start(self) -> None:
        """Start from the network upwards, so that nothing arrives before somebody can take it."""
        config = self.config
        make_private_folder(config.data, (DATABASE_NAME,))
        if config.attach is None:
            if config.node is None:
                raise ValueError("a gateway needs a node of its own, or one to attach to")
            self.node = await RunningNode.start(config.node, config.data, self._observer)
            await self.node.listen(self.socket)
        client = await Client.attach(self.socket, application=config.name)
        database = Database.open(
            config.data / DATABASE_NAME, [*TABLES, *BOOTSTRAPPING_TABLES, *CHAT_TABLES, *DEMAND_TABLES]
        )
        store = ExportStore(database)
        network = PsirpNetwork(client, self.access.admits, config.scope_keys)
        exchange = self._exchange(database)
        await exchange.start()
        control = Control(exchange, self._clock, config.control, self.access.other_refusal)
        psirp = PsirpAdapter(exchange, network, store, config.control.sweep_every, self._observer)
        control.add_source(psirp)
        push = PushAdapter(self.hub, config.naming, control, self._observer)
        demand = NetworkDemand(
            self.hub,
            config.naming,
            network,
            partial(psirp.withdraw_from, push.name),
            database,
            self._clock,
            self._observer,
        )
        web = None if config.web is None else self._web_server(config.web, control, database)
        self._parts = _Parts(client, database, store, network, control, psirp, push, demand, web)
        self.bootstrapping.prepare(self.hub, client, store, psirp)
        await self.hub.start()
        control.add(push)
        await push.start()
        demand.start()
        if web is not None:
            await web.start()
        await psirp.start()
        await self.bootstrapping.start()
        await self.discovery.start(urlsplit(self.hub.local_url).port or 80)
        if config.admin is not None and self.telemetry is not None:
            self.admin = AdminServer(config.admin, self, self.telemetry, self._observer)
            await self.admin.start()

    def _exchange(self, database: Database) -> Exchange:
        control = self.config.control
        config = ExchangeConfig(
            max_interests=control.max_per_subscriber,
            max_lease=control.max_lease,
            sweep_every=control.sweep_every,
            first_wait=control.retry_base,
            longest_wait=control.retry_cap,
        )
        return Exchange(SqliteLog(database), SqliteSessions(database), self._clock, config, self._observer)

    def _web_server(self, config: WebConfig, control: Control, database: Database) -> WebServer:
        naming = self.config.naming
        streams = StreamAdapter(config.streams, naming, control)
        control.add(streams)
        chat = None
        if config.chat is not None:
            chat = ChatAdapter(config.chat, naming, control, ChatStore(database), self._clock, self._observer)
            control.add(chat)
        return WebServer(config, streams, chat, self._observer)

    async def stop(self) -> None:
        """Take nothing new, write down what is known, let go of the network last."""
        await self.discovery.stop()
        admin, self.admin = self.admin, None
        if admin is not None:
            await admin.stop()
        parts, self._parts = self._parts, None
        if parts is not None:
            if parts.web is not None:
                await parts.web.stop()
            await self.bootstrapping.stop()
            await parts.demand.stop()
            await parts.push.stop()
            await parts.psirp.stop()
            await parts.control.exchange.stop()
            await self.hub.stop()
            await parts.client.close()
            parts.database.close()
        if self.node is not None:
            await self.node.close()
            self.node = None

    @property
    def _running(self) -> "_Parts":
        if self._parts is None:
            raise RuntimeError("the gateway is not running")
        return self._parts


@dataclass(frozen=True, slots=True)
class _Parts:
    client: Client
    database: Database
    store: ExportStore
    network: PsirpNetwork
    control: Control
    psirp: PsirpAdapter
    push: PushAdapter
    demand: NetworkDemand
    web: WebServer | None
