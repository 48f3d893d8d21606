"""The plain facade: read publications as Server-Sent Events with GET, publish with POST. For curl and for browsers."""

import base64
import hashlib
from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

import msgspec
from aiohttp import hdrs, web
from msgspec import UNSET, Struct, UnsetType

from exchange.model import CURRENT, SELF, LogEntry, Profile, Start
from exchange.selection import Selector, SelectorError, parse_selector
from gateway.converters.converters import FeedForm
from gateway.converters.readable import AUTHOR, TITLE, text_of
from gateway.model import Asker
from gateway.protocols.rest.adapter import ConvertedEntry, ReaderStream, RestAdapter
from gateway.web.server import PER_TOPIC
from identifiers.namespaces import ITEM_PREFIX
from serving import sse
from serving.answers import AnswerMiddleware, HttpError, bearer, body_of, json_answer
from serving.gate import Gate
from serving.sse import EventStream

DEFAULT_TYPE = "application/octet-stream"
MAX_TYPE = 1024
MAX_TITLE = 200
TAG_DIGITS = 32
C = TypeVar("C", bound=StrEnum)


class Event(Struct, frozen=True, omit_defaults=True):
    """One publication, as a reader gets it: `text` when it is text, otherwise `base64`."""

    name: str
    origin: str
    number: int
    type: str
    self: str
    published_ms: int = 0
    title: str = ""
    author: str = ""
    text: str | UnsetType = UNSET
    base64: str | UnsetType = UNSET


class PublishedAnswer(Struct, frozen=True):
    """The answer to a POST."""

    name: str
    sid: str
    rid: str
    origin: str


class RestRoutes:
    def __init__(
        self,
        adapter: RestAdapter,
        gate: Gate,
        answers: AnswerMiddleware,
        hub_url: Callable[[], str | None] = lambda: None,
        feed_url: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        self._adapter = adapter
        self._gate = gate
        self._answers = answers
        self._hub_url = hub_url
        self._feed_url = feed_url

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/topics", self.follow_topic, allow_head=False)
        app.router.add_post("/topics", self.publish)
        app.router.add_get("/items/{sid}/{rid}", self.follow_item, allow_head=False)
        app.router.add_get("/feeds", self.feed)
        for path in ("/topics", "/items/{sid}/{rid}", "/feeds"):
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
        profile = _one_of(Profile, request.query.get("profile", Profile.DOCUMENT), "profile")
        item = self._adapter.item_of(name)
        self._gate.share(PER_TOPIC, str(item))
        content_type = request.headers.get(hdrs.CONTENT_TYPE, DEFAULT_TYPE)
        if len(content_type) > MAX_TYPE:
            raise HttpError(400, f"a content type has at most {MAX_TYPE} characters")
        body = await body_of(request, config.max_body, config.body_timeout)
        asker = Asker(self._gate.client_address(request), token=bool(config.tokens))
        title = request.query.get("title", "")[:MAX_TITLE]
        item, origin = await self._adapter.publish(name, content_type, body, asker, profile, title)
        return json_answer(PublishedAnswer(name, str(item.sid), str(item.rid), str(origin)), status=201)

    async def feed(self, request: web.Request) -> web.StreamResponse:
        """What was published by a name, as one document, at an address that stays."""
        self._gate.client(request)
        name = _name(request)
        form = _one_of(FeedForm, request.query.get("format", FeedForm.ATOM), "format")
        found = await self._adapter.feed(name, form)
        if found is None:
            raise HttpError(404, "nothing that was published by this name is known here yet")
        tag = f'"{hashlib.sha256(found.body).hexdigest()[:TAG_DIGITS]}"'
        links = [(url, rel) for url, rel in ((self._hub_url(), "hub"), (self._feed_url(name), "self")) if url]
        headers = {
            "Content-Type": found.content_type,
            "ETag": tag,
            "Cache-Control": "no-cache",
            "X-Content-Type-Options": "nosniff",
            "Content-Security-Policy": "sandbox; default-src 'none'",
        }
        if request.headers.get("If-None-Match") == tag:
            response = web.Response(status=304, headers={"ETag": tag})
        else:
            response = web.Response(body=found.body, headers=headers)
        for url, rel in links:
            response.headers.add("Link", f'<{url}>; rel="{rel}"')
        return response

    async def _follow(self, request: web.Request, what: str) -> web.StreamResponse:
        self._gate.client(request)
        start = _start(request)
        convert = request.query.get("as", "")
        selector = _selector(request)
        async with self._adapter.stream(what, self._gate.client_key(request), start, convert, selector) as stream:
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


def event_of(found: LogEntry | ConvertedEntry) -> bytes:
    """One event on the wire. Its id is the origin, which is the same everywhere: a reader comes back where it was, to
    this gateway or to another. Of several that were made of one publication the last has it."""
    entry, draft = (found.entry, found.draft) if isinstance(found, ConvertedEntry) else (found, found.draft)
    origin, text = str(entry.origin), text_of(draft)
    event = Event(
        draft.name,
        origin,
        entry.position,
        draft.content_type,
        draft.attribute(SELF),
        draft.published_ms,
        draft.attribute(TITLE),
        draft.attribute(AUTHOR),
        UNSET if text is None else text,
        base64.b64encode(draft.body).decode("ascii") if text is None else UNSET,
    )
    is_whole = not isinstance(found, ConvertedEntry) or found.is_last
    return sse.encoded(msgspec.json.encode(event), origin.encode() if is_whole else b"")


async def _options(_request: web.Request) -> web.StreamResponse:
    return web.Response(status=204, headers={"Allow": "GET, POST, OPTIONS"})


def _name(request: web.Request) -> str:
    given = request.query.getall("name", [])
    if len(given) != 1:
        raise HttpError(400, "name one topic: /topics?name=URL (with & in the URL written as %26)")
    return given[0]


def _one_of(choices: type[C], given: str, what: str) -> C:
    try:
        return choices(given)
    except ValueError:
        raise HttpError(400, f"{what} is one of {', '.join(choices)}, not {given[:40]!r}") from None


def _selector(request: web.Request) -> Selector:
    try:
        return parse_selector(request.query.get("where", ""))
    except SelectorError as error:
        raise HttpError(400, f"where= {error}; for instance: symbol = 'psph' and price >= 3.5") from None


def _start(request: web.Request) -> Start:
    given = sse.last_event_id(request)
    if given is None:
        return CURRENT
    try:
        return Start.parse(given)
    except ValueError as error:
        raise HttpError(400, f"since= or Last-Event-ID: {error}") from None
