"""What a protocol tells a gateway of itself, and what it is given. CONTRIBUTING.md shows how to add one.

    CHAT = ProtocolDescriptor(label="chat", ..., configured=chat_config, make=ChatProtocol)

The gateway reads its sections of the configuration (`configured`), makes it (`make`), and takes it through its life:

    prepare -> start -> ... take_up, keep_to_rules, health, figures, panel, explain ... -> close -> stop

A protocol subscribes and publishes with `host.control`; the exchange hands its sessions what they lack.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from msgspec import Struct

from exchange.model import SessionKey
from gateway.access.guard import AccessGuard
from gateway.control import Control
from gateway.converters.readable import Readers
from gateway.sections import Sections
from gateway.web.server import WebServer
from identifiers import Naming
from identifiers.namespaces import Namespace, Namespaces
from push_hub.health import Check, QueueLevel
from serving.tls import TlsFiles
from storage import Database, Migration
from storage.queues import QueueObserver

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class ListeningDoor:
    """An address that a configuration opens."""

    what: str
    """For people: «the hub»."""
    host: str
    port: int
    udp: bool = False
    section: str = ""
    """Of the configuration, where its certificate is named."""
    tls: TlsFiles | None = None
    public_url: str | None = None
    behind_proxy: bool = False


@dataclass(frozen=True, slots=True)
class OpenDoor:
    """Where a protocol that runs can be reached."""

    what: str
    url: str
    local_url: str = ""
    """Where it listens, if people are told another address."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A number for Prometheus: `psph_LABEL_NAME`."""

    name: str
    text: str
    value: float
    counts: bool = False
    """It only grows."""
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class LiveSetting:
    """A setting that can be replaced while requests are under way: a dotted path in the protocol's configuration."""

    path: str
    may_begin: bool = True
    """Whether something may take the place of nothing."""
    may_end: bool = True
    """Whether nothing may take the place of something."""


class ProtocolHost:
    """What the gateway gives a protocol. `control`, `database` and `web` are there from `prepare` on."""

    def __init__(
        self,
        *,
        name: str,
        domain: str | None,
        data: Path,
        naming: Naming,
        namespaces: Namespaces,
        access: AccessGuard,
        clock: Callable[[], float],
        observer: Callable[[object], None] | None,
        queues: QueueObserver | None = None,
    ) -> None:
        self.name = name
        self.domain = domain
        self.data = data
        """Its own folder is below this."""
        self.naming = naming
        self.namespaces = namespaces
        self.access = access
        """The operator's rules. `control` asks them for whoever it knows only by name; a protocol whose `keeps_rules`
        is set asks by itself, with all that is known of who asks."""
        self.clock = clock
        self.observer = observer
        """Is told typed events; never waits, never raises."""
        self.queues = queues
        """Is told how long things wait in queues, from any thread, if somebody follows that."""
        self.web: WebServer | None = None
        """The port that protocols over HTTP share."""
        self.takes_feeds: Callable[[], str | None] = lambda: None
        """Where the address of a feed can be subscribed to; a protocol that takes such subscriptions says so."""
        self._ready: tuple[Control, Database] | None = None

    def hub_url(self) -> str | None:
        return self.takes_feeds()

    @property
    def web_url(self) -> str | None:
        """Where people find the port that protocols over HTTP share; None while there is none."""
        return None if self.web is None or not self.web.is_open else self.web.url

    def open(self, control: Control, database: Database) -> None:
        self._ready = control, database

    def close(self) -> None:
        self._ready = None

    @property
    def control(self) -> Control:
        return self._opened[0]

    @property
    def database(self) -> Database:
        """The gateway's store, with the tables that the descriptor asked for."""
        return self._opened[1]

    @property
    def _opened(self) -> tuple[Control, Database]:
        if self._ready is None:
            raise RuntimeError("the gateway is not running")
        return self._ready

    def tell(self, event: object) -> None:
        if self.observer is not None:
            self.observer(event)


class RunningProtocol(Generic[C]):
    """A protocol in one gateway. What is not overridden does nothing."""

    def __init__(self, config: C, host: ProtocolHost) -> None:
        """Opens nothing yet."""
        self.config = config
        self.host = host

    # Its life.

    async def prepare(self) -> None:
        """Whatever others may need at their start: tables are there, `host.control` too, and no door is open."""

    async def start(self) -> None:
        """Add the readers of its sessions to `host.control`, and open the doors."""

    def close(self) -> None:
        """Let go of connections that would stay open; their users come back to whoever listens then."""

    async def stop(self) -> None:
        """End what is left. The exchange hands over nothing any more; what is in its log is handed over at the next
        start. Called after a start that failed, too."""

    # While it runs.

    def take_up(self, config: C) -> None:
        """Put live settings of another configuration into force."""
        self.config = config

    async def keep_to_rules(self) -> int:
        """End what the operator's rules forbid by now; says how much."""
        return 0

    async def end_session(self, key: SessionKey) -> bool:
        """The operator ends a session of this protocol; False when there is none. `RefusedError` says why that is not
        how it ends."""
        return await self.host.control.exchange.end(key)

    def doors(self) -> Iterable[OpenDoor]:
        """Said when the gateway is up, in this order."""
        return ()

    async def health(self) -> Sequence[Check]:
        """What must be well for the gateway to be ready."""
        return ()

    def queues(self) -> Sequence[QueueLevel]:
        """What waits in it, and from how many on it refuses more."""
        return ()

    def figures(self) -> Iterable[Figure]:
        """For Prometheus, collected when somebody asks."""
        return ()

    def panel(self) -> Iterable[tuple[str, str | int]]:
        """Rows for the dashboard: what, and how much."""
        return ()

    async def explain(self, name: str) -> Sequence[str]:
        """What it knows of why something named so does or does not arrive, a sentence each."""
        return ()

    def warnings(self) -> Sequence[str]:
        """What an operator should know although it works."""
        return ()


@dataclass(frozen=True, slots=True)
class ProtocolDescriptor(Generic[C]):
    """One protocol."""

    label: str
    """What its sessions, its publications in the log and its figures are called by. For good: it is in stores."""
    title: str
    """What it is, in a line for people."""
    sections: Mapping[str, type[Struct] | None]
    """Its sections of the configuration with their keys; None: it reads all of the section itself."""
    configured: Callable[[Sections], C | None]
    """Its configuration out of a file that names its sections or does not; None: it is off. Raises `SectionError`."""
    make: Callable[[C, ProtocolHost], RunningProtocol[C]]
    readers: Readers = field(default_factory=dict)
    """How messages in content types of its own are read, and which of them are not for everybody."""
    namespaces: tuple[Namespace, ...] = ()
    """Kinds of names that it brings along; URLs, user@domain and ids of items are known without it."""
    tables: tuple[Migration, ...] = ()
    """What it keeps in the gateway's store, under an owner of its own."""
    listening: Callable[[C], Iterable[ListeningDoor]] = field(default=lambda _: ())
    """Ports of its own, for checks before the start. Routes on the shared port are no doors of its own."""
    live: tuple[LiveSetting, ...] = ()
    """What `take_up` can put into force."""
    example: str = ""
    """Its sections with every key at its default and a comment, for `psph config example`."""

    @property
    def section(self) -> str:
        """The section that its settings are known by."""
        return next(iter(self.sections), self.label)

    def of(self, protocols: Mapping[str, object]) -> C | None:
        """This protocol's configuration among those of all."""
        found: C | None = protocols.get(self.label)  # type: ignore[assignment]
        return found
