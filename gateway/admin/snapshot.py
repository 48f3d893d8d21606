"""One picture of the whole gateway, put together at most once a second and shared by everybody who looks."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec

from gateway import __version__
from gateway.admin.administered import Administered
from gateway.admin.health import GatewayHealth
from gateway.admin.sessions import SessionRow, SessionsView
from gateway.admin.topics import TopicRow, Topics
from gateway.telemetry.plain import Plain
from gateway.telemetry.series import Point
from gateway.telemetry.telemetry import Telemetry
from psirp_stack.node.api import NotAttachedError, PsirpError
from push_hub.health import Check, QueueLevel
from storage.clock import steady

EVENTS_SHOWN = 60
TOPICS_SHOWN = 40
SESSIONS_SHOWN = 40
MAX_NODES_DRAWN = 400
NODE_DEADLINE = 2.0

ChartPoint = tuple[int, int, float | None, float | None]


class Doubted(msgspec.Struct, frozen=True):
    """A node that claims roles which are not believed."""

    node: str
    roles: str
    reason: str


@dataclass(frozen=True, slots=True)
class NodeAccount:
    """What the gateway's node says of itself and of the network, as far as pages and metrics use it."""

    name: str = ""
    nodes: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    rendezvous: tuple[str, ...] = ()
    topology: tuple[str, ...] = ()
    doubted: tuple[Doubted, ...] = ()
    """Nodes that claim roles which nobody granted them."""
    publishes: int = 0
    subscribes: int = 0
    handed_out: int = 0
    filters: int = 0
    matches: int | None = None
    forwarder: dict[str, int] = field(default_factory=dict)
    drops: dict[str, int] = field(default_factory=dict)
    trouble: str | None = None
    """Why nothing is known now."""
    left_out: int = 0
    matched: int = 0
    """Items that are wanted here and that the rendezvous found a publisher for."""
    wanted: int = 0


class _Graph(msgspec.Struct):
    nodes: list[str]
    links: list[tuple[str, str]]


class _Said(msgspec.Struct):
    """The node's JSON, as far as it is read."""

    name: str
    graph: _Graph
    rendezvous: list[str]
    topology: list[str]
    doubted: tuple[Doubted, ...]
    publishes: int
    subscribes: int
    handed_out: int
    filters: int
    matches: int | None
    forwarder: dict[str, int]
    drops: dict[str, int]


def read_account(document: str) -> NodeAccount:
    """Raises `msgspec.MsgspecError`."""
    said = msgspec.json.decode(document, type=_Said)
    nodes = tuple(said.graph.nodes[:MAX_NODES_DRAWN])
    drawn = set(nodes)
    return NodeAccount(
        said.name,
        nodes,
        tuple((one, other) for one, other in said.graph.links if one in drawn and other in drawn),
        tuple(said.rendezvous),
        tuple(said.topology),
        said.doubted,
        said.publishes,
        said.subscribes,
        said.handed_out,
        said.filters,
        said.matches,
        said.forwarder,
        said.drops,
        None,
        len(said.graph.nodes) - len(nodes),
    )


async def ask_node(gateway: Administered) -> NodeAccount:
    joined = gateway.joined
    if joined is None:
        return NodeAccount(trouble="this hub runs alone")
    try:
        async with asyncio.timeout(NODE_DEADLINE):
            account = read_account(await joined.network.client.status())
    except TimeoutError:
        return NodeAccount(trouble=f"the node did not answer within {NODE_DEADLINE:g} seconds")
    except (NotAttachedError, PsirpError, msgspec.MsgspecError) as error:
        return NodeAccount(trouble=str(error)[:200])
    matched, wanted = joined.network.matched
    return replace(account, matched=matched, wanted=wanted)


class About(msgspec.Struct, frozen=True):
    name: str
    version: str
    hub: str
    naming: str
    domain: str | None
    zones: tuple[str, ...]
    started: float
    alone: bool = False
    """A hub without a network."""


class ProtocolPanel(msgspec.Struct, frozen=True):
    """What a protocol shows of itself."""

    title: str
    rows: list[tuple[str, str | int]]


class DashboardSnapshot(msgspec.Struct, frozen=True):
    number: int
    at: float
    about: About
    health: tuple[Check, ...]
    network: NodeAccount
    queues: tuple[QueueLevel, ...]
    totals: dict[str, int]
    charts: dict[str, list[ChartPoint]]
    topics: list[TopicRow]
    sessions: list[SessionRow]
    """The first of them."""
    protocols: list[ProtocolPanel]
    events: list[Plain]
    viewers: int


class Snapshots:
    def __init__(
        self,
        gateway: Administered,
        telemetry: Telemetry,
        health: GatewayHealth,
        topics: Topics,
        sessions: SessionsView,
        every: float,
        clock: Callable[[], float] = steady,
    ) -> None:
        self._gateway = gateway
        self._telemetry = telemetry
        self._health = health
        self._topics = topics
        self._sessions = sessions
        self._every = every
        self._clock = clock
        self._started = clock()
        self._number = 0
        self._last: tuple[float, bytes] | None = None
        self._making: asyncio.Task[bytes] | None = None
        self.node = NodeAccount(trouble="not asked yet")
        self.viewers: Callable[[], int] = lambda: 0
        self.made = 0

    async def latest(self) -> bytes:
        """As JSON, at most `every` seconds old."""
        if self._last is not None and time.monotonic() - self._last[0] < self._every:
            return self._last[1]
        if self._making is None or self._making.done():
            self._making = asyncio.create_task(self._make())
        return await asyncio.shield(self._making)

    async def refresh_node(self) -> NodeAccount:
        self.node = await ask_node(self._gateway)
        return self.node

    async def stop(self) -> None:
        if self._making is not None:
            self._making.cancel()
            await asyncio.gather(self._making, return_exceptions=True)

    async def _make(self) -> bytes:
        health, _ = await asyncio.gather(self._health.ready(), self.refresh_node())
        if not self.made:
            await self._topics.count()
        telemetry, gateway, now = self._telemetry, self._gateway, self._clock()
        self._number += 1
        config = gateway.config
        snapshot = DashboardSnapshot(
            self._number,
            now,
            About(
                config.name,
                __version__,
                gateway.hub.url,
                config.naming.announcement,
                config.domain,
                config.zones,
                self._started,
                gateway.joined is None,
            ),
            health.checks,
            self.node,
            tuple(gateway.hub.queues) if gateway.joined is None else gateway.joined.core.queues,
            self._totals(),
            {
                "delivered": _points(telemetry.delivered.points(now)),
                "failed": _points(telemetry.failed.points(now)),
                "published": _points(telemetry.published.points(now)),
                "arrived": _points(telemetry.arrived.points(now)),
                "delivery": _points(telemetry.delivery.points(now)),
                "intake": _points(telemetry.intake.points(now)),
                "export": _points(telemetry.export.points(now)),
                "crossing": _points(telemetry.crossing.points(now)),
            },
            self._topics.recent(TOPICS_SHOWN),
            await self._sessions.rows(limit=SESSIONS_SHOWN),
            _panels(gateway),
            [happened.plain() for happened in list(telemetry.events)[: -EVENTS_SHOWN - 1 : -1]],
            self.viewers(),
        )
        encoded = msgspec.json.encode(snapshot)
        self._last = (time.monotonic(), encoded)
        self.made += 1
        return encoded

    def _totals(self) -> dict[str, int]:
        telemetry = self._telemetry
        subscribers, topics = self._topics.counts
        return {
            "topics": topics,
            "subscribers": subscribers,
            "accepted": telemetry.accepted.total,
            "delivered": telemetry.delivered.total,
            "failed": telemetry.failed.total,
            "given_up": telemetry.given_up,
            "published": telemetry.published.total,
            "arrived": telemetry.arrived.total,
            "owed": self._topics.owed,
            "dead": self._topics.dead,
        }


def _panels(gateway: Administered) -> list[ProtocolPanel]:
    joined = gateway.joined
    if joined is None:
        return []
    shown = [(one.title, list(joined.core.protocols[one.label].panel())) for one in joined.core.config.on]
    return [ProtocolPanel(title, rows) for title, rows in shown if rows]


def _points(points: list[Point]) -> list[ChartPoint]:
    return [(point.second, point.count, _short(point.median), _short(point.high)) for point in points]


def _short(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 5)
