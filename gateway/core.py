"""The gateway without its appliance: one store, one exchange, the control function, and protocols around them.

It knows protocols only by their descriptors, and brings up whichever are configured.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from exchange.exchange import Exchange, ExchangeConfig
from exchange.sqlite import SqliteLog, SqliteSessions
from gateway.access import AccessGuard, AccessRules
from gateway.control import Control, ControlConfig
from gateway.converters import Converters, FeedAddresses
from gateway.events import GatewayStoreFailed
from gateway.names import FILE_NAME as NAMES_FILE
from gateway.names import KnownNames
from gateway.protocols.descriptor import Figure, ProtocolHost, RunningProtocol
from gateway.protocols.listed import BUILT_IN, Descriptor
from gateway.selection import explained_selection
from gateway.store import TABLES
from gateway.web.server import WebConfig, WebServer
from identifiers import DEFAULT_NAMING, Naming
from identifiers.namespaces import STANDARD, Namespaces
from push_hub.health import QueueLevel
from storage import Database, Migration
from storage.memory import MemoryBudget
from storage.private import make_private_folder
from storage.queues import QueueObserver

DATABASE_NAME = "gateway.sqlite"
"""Secrets of subscribers are in the store."""

P = TypeVar("P", bound=RunningProtocol[Any])


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """What every gateway has, whichever protocols it speaks."""

    data: Path
    protocols: Mapping[str, object] = field(default_factory=dict)
    """The configuration of each protocol, by its label; those that are not here are off."""
    known: tuple[Descriptor, ...] = BUILT_IN
    """Protocols that could be on."""
    naming: Naming = DEFAULT_NAMING
    control: ControlConfig = field(default_factory=ControlConfig)
    name: str = "gateway"
    """What its node calls it."""
    domain: str | None = None
    """The domain whose people are user@domain here."""
    web: WebConfig | None = None
    """The port that protocols over HTTP share. None: there is none."""
    access: AccessRules = field(default_factory=AccessRules)
    """Who may publish and subscribe."""
    memory: MemoryBudget = field(default_factory=MemoryBudget)

    @property
    def on(self) -> tuple[Descriptor, ...]:
        return tuple(one for one in self.known if one.of(self.protocols) is not None)


class GatewayCore:
    def __init__(
        self,
        config: CoreConfig,
        clock: Callable[[], float],
        observer: Callable[[object], None] | None,
        tables: Iterable[Migration] = (),
        queues: QueueObserver | None = None,
    ) -> None:
        """`tables` are what parts beside the protocols keep in the store."""
        self._queues = queues
        self.config = config
        self.access = AccessGuard(config.access, observer)
        self.web: WebServer | None = None
        self.names: KnownNames | None = None
        self._clock = clock
        self._observer = observer
        self._tables = tuple(tables)
        self._opened: tuple[Database, Control] | None = None
        self._closing = AsyncExitStack()
        self.host = ProtocolHost(
            name=config.name,
            domain=config.domain,
            data=config.data,
            naming=config.naming,
            namespaces=namespaces_of(config.on),
            access=self.access,
            clock=clock,
            observer=observer,
            queues=queues,
        )
        self.protocols: dict[str, RunningProtocol[Any]] = {
            one.label: one.make(one.of(config.protocols), self.host) for one in config.on
        }
        """In the order in which they are made ready."""

    def protocol(self, kind: type[P]) -> P:
        found = next((one for one in self.protocols.values() if isinstance(one, kind)), None)
        if found is None:
            raise LookupError(f"{kind.__name__} is not configured")
        return found

    @property
    def figures(self) -> tuple[tuple[str, Figure], ...]:
        """What protocols say of themselves, each with its label."""
        return tuple((label, figure) for label, one in self.protocols.items() for figure in one.figures())

    @property
    def queues(self) -> tuple[QueueLevel, ...]:
        return tuple(level for one in self.protocols.values() for level in one.queues())

    async def explain(self, name: str) -> list[str]:
        """What protocols know of why something named so does or does not arrive."""
        told = await asyncio.gather(
            *(one.explain(name) for one in self.protocols.values()),
            explained_selection(self.control, self.host.namespaces.read(name).item(self.host.naming)),
        )
        return [sentence for sentences in told for sentence in sentences]

    @property
    def control(self) -> Control:
        return self._running[1]

    @property
    def database(self) -> Database:
        return self._running[0]

    @property
    def _running(self) -> tuple[Database, Control]:
        if self._opened is None:
            raise RuntimeError("the gateway is not running")
        return self._opened

    async def prepare(self) -> None:
        """Open the store, and make protocols ready for each other. Call `stop` also if this fails."""
        config = self.config
        make_private_folder(config.data, (DATABASE_NAME,))
        tables = [*TABLES, *self._tables, *(table for one in config.known for table in one.tables)]
        database = Database.open(config.data / DATABASE_NAME, tables, queues=self._queues)
        self._closing.callback(database.close)
        exchange = self._exchange(database)
        addresses = FeedAddresses(lambda: self.host.web_url)
        readers = {kind: read for one in config.known for kind, read in one.readers.items()}
        owners = {kind: one.label for one in config.known for kind in one.readers}
        converters = Converters(exchange.log, readers, owners, addresses, self.host.hub_url)
        control = Control(exchange, self._clock, config.control, self.access.other_refusal, converters)
        self._opened = database, control
        self._closing.callback(self._forget)
        self.names = await asyncio.to_thread(KnownNames, config.data / NAMES_FILE, config.naming, self._stumbled)
        self._closing.push_async_callback(self.names.stop)
        control.note_name = self.names.note
        self.host.open(control, database)
        # What is published while protocols stop is in the log, and is handed over at the next start.
        stopping = AsyncExitStack()
        self._closing.push_async_callback(stopping.aclose)
        self._closing.push_async_callback(exchange.stop)
        await exchange.start()
        self.web = self.host.web = None if config.web is None else WebServer(config.web, self._observer)
        for one in self.protocols.values():
            stopping.push_async_callback(one.stop)
            await one.prepare()

    def _stumbled(self, reason: str) -> None:
        if self._observer is not None:
            self._observer(GatewayStoreFailed(reason))

    def _exchange(self, database: Database) -> Exchange:
        control = self.config.control
        config = ExchangeConfig(
            max_interests=control.max_per_subscriber,
            max_lease=control.max_lease,
            sweep_every=control.sweep_every,
            first_wait=control.retry_base,
            longest_wait=control.retry_cap,
            newest_bytes=self.config.memory.newest,
        )
        return Exchange(
            SqliteLog(database), SqliteSessions(database), self._clock, config, self._observer, self._queues
        )

    async def start(self) -> None:
        """Open the doors, those last that others stand behind."""
        for one in reversed(self.protocols.values()):
            await one.start()
        if self.web is not None:
            await self.web.start()

    async def stop(self) -> None:
        """Take nothing new, write down what is known, let go of what protocols have of each other last."""
        for one in self.protocols.values():
            one.close()
        if self.web is not None:
            await self.web.stop()
        closing, self._closing = self._closing, AsyncExitStack()
        await closing.aclose()

    def _forget(self) -> None:
        self._opened = None
        self.web = self.host.web = None
        self.host.close()


def namespaces_of(protocols: Iterable[Descriptor]) -> Namespaces:
    """All kinds of names that these protocols know."""
    namespaces = STANDARD
    for one in protocols:
        for namespace in one.namespaces:
            namespaces = namespaces.plus(namespace)
    return namespaces
