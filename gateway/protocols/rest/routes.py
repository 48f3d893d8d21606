"""The plain facade: read publications as Server-Sent Events with GET, publish with POST. For curl and for browsers."""

import base64

import msgspec
from aiohttp import hdrs, web
from msgspec import UNSET, Struct, UnsetType

from exchange.model import CURRENT, SELF, LogEntry, Start
from gateway.model import Asker
from gateway.protocols.rest.adapter import ITEM_PREFIX, ReaderStream, RestAdapter
from gateway.web.server import PER_TOPIC
from serving import sse
from serving.answers import AnswerMiddleware, HttpError, bearer, body_of, json_answer
from serving.gate import Gate
from serving.sse import EventStream

DEFAULT_TYPE = "application/octet-stream"
MAX_TYPE = 1024
TEXT_HINTS = ("text/", "application/json", "application/xml")
TEXT_ENDINGS = ("+xml", "+json")


class Event(Struct, frozen=True, omit_defaults=True):
    """One publication, as a reader gets it: `text` when it is text, otherwise `base64`."""

    name: str
    origin: str
    number: int
    type: str
    self: str
    published_ms: int = 0
    text: str | UnsetType = UNSET
    base64: str | UnsetType = UNSET


class PublishedAnswer(Struct, frozen=True):
    """The answer to a POST."""

    name: str
    sid: str
    rid: str
    origin: str


class RestRoutes:
    def __init__(self, adapter: RestAdapter, gate: Gate, answers: AnswerMiddleware) -> None:
        self._adapter = adapter
        self._gate = gate
        self._answers = answers

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/topics", self.follow_topic, allow_head=False)
        app.router.add_post("/topics", self.publish)
        app.router.add_get("/items/{sid}/{rid}", self.follow_item, allow_head=False)
        for path in ("/topics", "/items/{sid}/{rid}"):
            app.router.add_options(path, _options)

    async def follow_topic(self, request: web.Request) -> web.StreamResponse:
        return await self._follow(request, _name(request))

    async def follow_item(self, request: web.Request) -> web.StreamResponse:
        return await self._follow(request, f"{ITEM_PREFIX}{request.match_info['sid']}/{request.match_info['rid']}")

    async def publish(self, request: web.Request) -> web.StreamResponse:
        self._gate.client(request)
        name = _name(request)
        config = self._adapter.config
        if config.tokens:
            given = bearer(request)
            if given is None:
                raise HttpError(401, "publishing here needs a token: Authorization: Bearer ...")
            if not self._gate.knows(request, given, config.tokens):
                raise HttpError(403, "this token may not publish here")
        elif not config.anyone_may_publish:
            raise HttpError(403, "nobody may publish here: the operator can set web.publish_tokens_file")
        item = self._adapter.item_of(name)
        self._gate.share(PER_TOPIC, str(item))
        content_type = request.headers.get(hdrs.CONTENT_TYPE, DEFAULT_TYPE)
        if len(content_type) > MAX_TYPE:
            raise HttpError(400, f"a content type has at most {MAX_TYPE} characters")
        body = await body_of(request, config.max_body, config.body_timeout)
        asker = Asker(self._gate.client_address(request), token=bool(config.tokens))
        item, origin = await self._adapter.publish(name, content_type, body, asker)
        return json_answer(PublishedAnswer(name, str(item.sid), str(item.rid), str(origin)), status=201)

    async def _follow(self, request: web.Request, what: str) -> web.StreamResponse:
        self._gate.client(request)
        start = _start(request)
        async with self._adapter.stream(what, self._gate.client_key(request), start) as stream:
            events = EventStream(request, self._adapter.config.write_timeout)
            self._answers.add_cors(request, events.response)
            await events.begin()
            stream.on_overrun = events.abort
            try:
                await self._answers.written(request, self._write(events, stream))
            finally:
                self._adapter.cut += stream.overrun
            return events.response

    async def _write(self, events: EventStream, stream: ReaderStream) -> None:
        config = self._adapter.config
        await self._send(events, stream, sse.comment(f"following {stream.what}"))
        while not (self._adapter.closing or stream.overrun or stream.forbidden):
            entry = await stream.next(config.heartbeat)
            if entry is not None:
                await self._send(events, stream, event_of(entry))
            elif not (self._adapter.closing or stream.overrun or stream.forbidden):
                await self._send(events, stream, sse.STILL_HERE)

    async def _send(self, events: EventStream, stream: ReaderStream, data: bytes) -> None:
        try:
            await events.send(data)
        except TimeoutError:
            stream.overrun = True
            raise


def event_of(entry: LogEntry) -> bytes:
    """One event on the wire. Its id is the origin, which is the same everywhere: a reader comes back where it was, to
    this gateway or to another."""
    draft, origin = entry.draft, str(entry.origin)
    text: str | UnsetType = UNSET
    packed: str | UnsetType = UNSET
    try:
        if not _is_text(draft.content_type):
            raise UnicodeError
        text = draft.body.decode()
    except UnicodeError:
        packed = base64.b64encode(draft.body).decode("ascii")
    event = Event(
        draft.name, origin, entry.position, draft.content_type, draft.attribute(SELF), draft.published_ms, text, packed
    )
    return sse.encoded(msgspec.json.encode(event), origin.encode())


def _is_text(content_type: str) -> bool:
    """A document that is not declared as text may decode by accident; its reader wants bytes."""
    kind, _, parameters = content_type.lower().partition(";")
    kind = kind.strip()
    charset = parameters.partition("charset=")[2].strip(' "')
    if charset and not charset.startswith(("utf-8", "us-ascii")):
        return False
    return kind.startswith(TEXT_HINTS) or kind.endswith(TEXT_ENDINGS)


async def _options(_request: web.Request) -> web.StreamResponse:
    return web.Response(status=204, headers={"Allow": "GET, POST, OPTIONS"})


def _name(request: web.Request) -> str:
    given = request.query.getall("name", [])
    if len(given) != 1:
        raise HttpError(400, "name one topic: /topics?name=URL (with & in the URL written as %26)")
    return given[0]


def _start(request: web.Request) -> Start:
    given = sse.last_event_id(request)
    if given is None:
        return CURRENT
    try:
        return Start.parse(given)
    except ValueError as error:
        raise HttpError(400, f"since= or Last-Event-ID: {error}") from None
