"""The admin port: the dashboard's files and API, metrics and health, on an aiohttp application of its own."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from aiohttp import web

from exchange.model import SessionKey
from gateway.admin.access import AdminAccess, AdminRole
from gateway.admin.actions import Actions
from gateway.admin.administered import Administered
from gateway.admin.audit import AuditLog
from gateway.admin.config import AdminConfig
from gateway.admin.health import GatewayHealth
from gateway.admin.peers import PeerPath, Peers
from gateway.admin.sessions import FIRST, PAGE, SessionsAsked, SessionsView
from gateway.admin.snapshot import Snapshots
from gateway.admin.topics import Topics
from gateway.admin.viewers import Viewers
from gateway.telemetry.metrics import Gauges, exposition
from gateway.telemetry.telemetry import Telemetry
from identifiers import IdentifierSyntaxError, ItemId, TopicError
from push_hub.health import HealthReport
from push_hub.protocol.urls import UrlError, normalised
from serving.answers import AnswerMiddleware, HttpError, body_of, json_answer
from serving.port import Port, PortConfig
from serving.static import add_files
from serving.tls import CertificateRefused, CertificateReplaced, TlsFiles

STATIC = Path(__file__).parent / "static"
FILES = {
    "/": ("index.html", "text/html"),
    "/dashboard.css": ("dashboard.css", "text/css"),
    "/dashboard.js": ("dashboard.js", "text/javascript"),
    "/picture.js": ("picture.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
}
AUDIT_NAME = "audit.jsonl"
AUDIT_SHOWN = 50
MAX_BODY = 16 * 1024
BODY_SECONDS = 5.0
HEADER_TIMEOUT = 10.0
MAX_CONNECTIONS = 2_000
STOP_GRACE = 1.0
T = TypeVar("T", bound=msgspec.Struct)
METRICS_TYPE = "text/plain; version=1.0.0; charset=utf-8"


class _Asked(msgspec.Struct, forbid_unknown_fields=True):
    """The body of an action."""

    topic: str
    callback: str | None = None
    letter: Annotated[int, msgspec.Meta(ge=1, le=1 << 60)] | None = None
    """A delivery that was given up."""


class AdminServer:
    def __init__(
        self,
        config: AdminConfig,
        gateway: Administered,
        telemetry: Telemetry,
        observer: Callable[[object], None] | None = None,
    ) -> None:
        self.config = config
        self.telemetry = telemetry
        self._gateway = gateway
        self._observer = observer
        self._port: Port | None = None
        self.access = AdminAccess(config)
        self.audit = AuditLog(gateway.config.data / AUDIT_NAME, config.audit_bytes)
        self.actions = Actions(gateway.hub, self.audit)
        self.health = GatewayHealth(gateway)
        self.peers = Peers(config)
        self.topics = Topics(gateway, telemetry, self.peers)
        self.sessions = SessionsView(gateway, self.audit)
        self.snapshots = Snapshots(gateway, telemetry, self.health, self.topics, self.sessions, config.snapshot_every)
        self.viewers = Viewers(self.snapshots, config.max_viewers, config.snapshot_every)
        self._app = web.Application(middlewares=[AnswerMiddleware(None, (), None).middleware])
        self._add_routes(self._app)

    @property
    def url(self) -> str:
        if self._port is None:
            raise RuntimeError("the admin port is not open")
        return self._port.url

    async def start(self) -> None:
        config = self.config
        port = self._port = Port(
            PortConfig(
                config.host,
                config.port,
                config.tls,
                header_timeout=HEADER_TIMEOUT,
                max_connections=MAX_CONNECTIONS,
                stop_grace=STOP_GRACE,
                cancel_handlers=True,
            ),
            self._of_certificates,
        )
        try:
            await port.serve(self._app)
        except BaseException:
            await port.stop()
            raise

    def take_up(self, tls: TlsFiles | None) -> None:
        """Look at the certificate now, or at another one."""
        if self._port is not None:
            self._port.take_up(tls)

    def _of_certificates(self, event: object) -> None:
        """What strangers do here is not the hub's business, so its observer is told of certificates only."""
        if self._observer is not None and isinstance(event, CertificateReplaced | CertificateRefused):
            self._observer(event)

    def take_up_tokens(self, viewer_tokens: tuple[str, ...], operator_tokens: tuple[str, ...]) -> None:
        """Other tokens from now on, for open pages too. Raises `ValueError` when there would be none."""
        if self.access.take_up(viewer_tokens, operator_tokens):
            self.viewers.turn_out()

    async def stop(self) -> None:
        await self.viewers.stop()
        if self._port is not None:
            await self._port.stop()
        await self.snapshots.stop()
        await self.topics.stop()
        await self.health.stop()
        await self.peers.stop()

    def _add_routes(self, app: web.Application) -> None:
        add_files(app, STATIC, FILES, PAGE_HEADERS)
        app.router.add_get("/api/who", self._who)
        app.router.add_get("/api/snapshot", self._snapshot)
        app.router.add_get("/api/stream", self._stream)
        app.router.add_get("/api/topics", self._search)
        app.router.add_get("/api/topic", self._topic)
        app.router.add_get("/api/names", self._names)
        app.router.add_get("/api/ways", self._ways)
        app.router.add_get("/api/sessions", self._sessions)
        app.router.add_get("/api/session", self._session)
        app.router.add_post("/api/sessions/{action:[a-z]{1,20}}", self._act_on_session)
        app.router.add_get("/api/audit", self._audit)
        app.router.add_post("/api/actions/{action:[a-z]{1,20}}", self._act)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)

    # The dashboard.

    async def _who(self, request: web.Request) -> web.StreamResponse:
        caller = self.access.caller(request)
        return json_answer({"role": caller.role.name.lower()})

    async def _snapshot(self, request: web.Request) -> web.StreamResponse:
        self.access.caller(request)
        body = await self.snapshots.latest()
        return web.Response(body=body, content_type="application/json", headers={"Cache-Control": "no-store"})

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        self.access.caller(request)
        return await self.viewers.serve(request)

    async def _search(self, request: web.Request) -> web.StreamResponse:
        self.access.caller(request)
        return json_answer(await self.topics.search(request.query.get("q", "")))

    async def _topic(self, request: web.Request) -> web.StreamResponse:
        caller = self.access.caller(request)
        return json_answer(await self.topics.detail(await self._named(request), caller.role))

    async def _names(self, request: web.Request) -> web.StreamResponse:
        """Of an item, or all below a place."""
        self.access.caller(request)
        try:
            if "item" in request.query:
                return json_answer(await self.topics.names(ItemId.parse(request.query["item"])))
            return json_answer(self.topics.below(request.query.get("below", "")))
        except (IdentifierSyntaxError, TopicError) as error:
            raise HttpError(400, f"give item=SID/RID, or below=DOMAIN or URL: {error}") from None

    async def _ways(self, request: web.Request) -> web.StreamResponse:
        """What other gateways ask: this one's part of the way of a topic's publications."""
        self.access.caller(request)
        ways = self.telemetry.recorder.ways(request.query.get("topic", ""))
        name = self._gateway.config.name
        return json_answer([PeerPath(name, way.version, way.steps) for way in ways if way.version is not None])

    async def _audit(self, request: web.Request) -> web.StreamResponse:
        self.access.caller(request, AdminRole.OPERATOR)
        return json_answer(self.audit.last(AUDIT_SHOWN))

    async def _sessions(self, request: web.Request) -> web.StreamResponse:
        """A page of them, behind `protocol` and `who`."""
        self.access.caller(request)
        after = SessionKey(request.query.get("protocol", FIRST.reader), request.query.get("who", FIRST.who))
        return json_answer(await self.sessions.rows(after, PAGE))

    async def _session(self, request: web.Request) -> web.StreamResponse:
        caller = self.access.caller(request)
        key = SessionKey(request.query.get("protocol", ""), request.query.get("who", ""))
        return json_answer(await self.sessions.detail(key, caller.role))

    async def _act_on_session(self, request: web.Request) -> web.StreamResponse:
        caller = self.access.caller(request, AdminRole.OPERATOR)
        asked = await _action(request, SessionsAsked, '{"protocol": NAME, "who": NAME}')
        return json_answer({"done": await self.sessions.act(caller, request.match_info["action"], asked)})

    async def _act(self, request: web.Request) -> web.StreamResponse:
        caller = self.access.caller(request, AdminRole.OPERATOR)
        asked = await _action(request, _Asked, '{"topic": URL, "callback": URL}')
        did = await self.actions.run(caller, request.match_info["action"], asked.topic, asked.callback, asked.letter)
        return json_answer({"done": did})

    async def _named(self, request: web.Request) -> str:
        sid, rid = request.query.get("sid"), request.query.get("rid")
        if sid is not None and rid is not None:
            name = await self.topics.of_item(sid, rid)
            if name is None:
                raise HttpError(404, "nobody here publishes or wants this item")
            return name
        topic = request.query.get("topic", "")
        shown = self.topics.shown(topic)
        if shown is not None:
            return shown
        try:
            return normalised(topic)
        except UrlError as error:
            raise HttpError(400, f"topic {error}") from None

    # For machines.

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        self.access.caller(request)
        gauges = await self.gauges()
        return web.Response(body=exposition(self.telemetry, gauges), headers={"Content-Type": METRICS_TYPE})

    async def gauges(self) -> Gauges:
        health = await self.health.ready()
        node = await self.snapshots.refresh_node()
        await self.topics.count()
        gateway = self._gateway
        joined = gateway.joined
        return Gauges(
            name=gateway.config.name,
            checks=health.checks,
            queues=tuple(gateway.hub.queues),
            subscriptions=self.topics.counts[0],
            topics=self.topics.counts[1],
            owed=self.topics.owed,
            dead=self.topics.dead,
            node_up=node.trouble is None,
            nodes=len(node.nodes) + node.left_out,
            links=len(node.links),
            items_published=node.publishes,
            items_subscribed=node.subscribes,
            filters=node.filters,
            matches=node.matches,
            matched=node.matched,
            wanted=node.wanted,
            frames=node.forwarder,
            drops=node.drops,
            figures=() if joined is None else joined.core.figures,
            exchange=None if joined is None else joined.exchange.counters,
            behind=0 if joined is None else len(joined.exchange.behind()),
            viewers=len(self.viewers),
            passed_over=self.viewers.passed_over,
            actions=self.actions.done,
            refused=self.access.refused,
            log_dropped=gateway.log_dropped(),
            alone=joined is None,
        )

    async def _healthz(self, _request: web.Request) -> web.StreamResponse:
        return _report(await self.health.alive())

    async def _readyz(self, _request: web.Request) -> web.StreamResponse:
        return _report(await self.health.ready())


async def _action(request: web.Request, kind: type[T], expected: str) -> T:
    # A form of another site cannot send this type, whatever else it can do.
    if request.content_type != "application/json":
        raise HttpError(415, "send JSON: Content-Type: application/json")
    try:
        return msgspec.json.decode(await body_of(request, MAX_BODY, BODY_SECONDS), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise HttpError(400, f"expected {expected}: {error}"[:300]) from None


def _report(report: HealthReport) -> web.Response:
    lines = [f"{'ok ' if check.ok else 'BAD'} {check.name}: {check.text}" for check in report.checks]
    return web.Response(
        status=200 if report.ok else 503, text="\n".join(lines) + "\n", headers={"Cache-Control": "no-store"}
    )
