"""What the chat page asks for, over HTTP with JSON; everything but choosing a name needs the token that came with it.

The token is sent as a header and never in an address or a cookie: two gateways on one host would share cookies.
"""

import asyncio
import time
from collections import Counter
from typing import TypeVar

import msgspec
from aiohttp import web
from msgspec import Struct

from gateway.model import Asker
from gateway.protocols.chat.adapter import ChatAdapter
from gateway.protocols.chat.messages import MAX_TEXT
from gateway.protocols.chat.store import Line, MessageState
from serving import sse
from serving.answers import AnswerMiddleware, HttpError, bearer, body_of, json_answer
from serving.gate import Gate
from serving.limits import Limiter, Rate
from serving.sse import EventStream

MAX_BODY = 64 * 1024
BODY_SECONDS = 10.0
PAGE = 50
MAX_DIGITS = 15
NAMES = Rate(0.1, 20)
"""How fast one client may take names."""
MAX_LIMITER_KEYS = 20_000
T = TypeVar("T", bound=Struct)

_SHOWN = {
    MessageState.WAITING: "waiting",
    MessageState.SENT: "sent",
    MessageState.DELIVERED: "delivered",
    MessageState.FAILED: "failed",
    MessageState.OWED: "received",
    MessageState.ACKNOWLEDGED: "received",
}


class NameRequest(Struct, frozen=True):
    user: str


class PartnerRequest(Struct, frozen=True):
    partner: str


class Said(Struct, frozen=True):
    partner: str
    text: str
    id: str


class ShownMessage(Struct, frozen=True):
    """A message as the page shows it."""

    place: int
    id: str
    partner: str
    mine: bool
    text: str
    at: float
    state: str


class ChatRoutes:
    def __init__(self, chat: ChatAdapter, gate: Gate, answers: AnswerMiddleware) -> None:
        self._chat = chat
        self._gate = gate
        self._answers = answers
        config = chat.config
        self._speech = Limiter(Rate(config.messages_per_second, config.message_burst), MAX_LIMITER_KEYS)
        self._pages: Counter[str] = Counter()
        """Open pages of each client."""
        self._names = Limiter(NAMES, MAX_LIMITER_KEYS)

    def add_to(self, app: web.Application) -> None:
        router = app.router
        router.add_get("/chat/about", self.about)
        router.add_get("/chat/session", self.session)
        router.add_post("/chat/session", self.claim)
        router.add_delete("/chat/session", self.leave)
        router.add_post("/chat/conversations", self.open)
        router.add_delete("/chat/conversations", self.end)
        router.add_get("/chat/messages", self.history)
        router.add_post("/chat/messages", self.say)
        router.add_get("/chat/events", self.events, allow_head=False)

    async def about(self, request: web.Request) -> web.StreamResponse:
        self._gate.client(request)
        return json_answer({"domain": self._chat.domain, "max_text": MAX_TEXT})

    async def claim(self, request: web.Request) -> web.StreamResponse:
        self._gate.client(request)
        asked = await _json(request, NameRequest)
        self._slow_down(self._names, self._gate.client_key(request), "you choose too many names")
        address, token = await self._chat.claim(asked.user)
        return json_answer({"address": address, "token": token}, status=201)

    async def session(self, request: web.Request) -> web.StreamResponse:
        """Who the token is, with whom they talk, and from which change on to listen."""
        user = self._user(request)
        await self._chat.seen(user)
        change = self._chat.store.latest_change()
        return json_answer({"address": user, "partners": self._chat.store.partners(user), "change": change})

    async def leave(self, request: web.Request) -> web.StreamResponse:
        await self._chat.leave(self._user(request))
        return web.Response(status=204)

    async def open(self, request: web.Request) -> web.StreamResponse:
        user = self._user(request)
        asked = await _json(request, PartnerRequest)
        return json_answer({"partner": await self._chat.open(user, asked.partner)}, status=201)

    async def end(self, request: web.Request) -> web.StreamResponse:
        await self._chat.end(self._user(request), _one(request, "partner"))
        return web.Response(status=204)

    async def history(self, request: web.Request) -> web.StreamResponse:
        user = self._user(request)
        before = _number(request.query.get("before"), "before") or 10**MAX_DIGITS
        lines = self._chat.store.history(user, _one(request, "partner"), before, PAGE)
        return json_answer({"messages": [shown(line) for line in lines], "more": len(lines) == PAGE})

    async def say(self, request: web.Request) -> web.StreamResponse:
        user = self._user(request)
        said = await _json(request, Said)
        self._slow_down(self._speech, user, "you write too fast")
        asker = Asker(self._gate.client_address(request))
        line = await self._chat.say(user, said.partner, said.text, said.id, asker)
        return json_answer(shown(line), status=202)

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Everything that changes for a user, from the change after `Last-Event-ID` on."""
        user = self._user(request)
        after = _number(sse.last_event_id(request), "Last-Event-ID")
        if after is None:
            after = self._chat.store.latest_change()
        client = self._gate.client_key(request)
        if self._pages[client] >= self._chat.config.max_pages_per_client:
            raise HttpError(429, "you have too many pages open", 10.0)
        wake = self._chat.watch(user)
        if wake is None:
            raise HttpError(503, "too many pages are open", 10.0)
        self._pages[client] += 1
        try:
            events = EventStream(request, self._chat.config.write_timeout)
            await events.begin()
            await self._answers.written(request, self._follow(events, user, bearer(request) or "", after, wake))
            return events.response
        finally:
            self._chat.unwatch(user, wake)
            self._pages[client] -= 1
            if not self._pages[client]:
                del self._pages[client]

    async def _follow(self, events: EventStream, user: str, token: str, after: int, wake: asyncio.Event) -> None:
        config = self._chat.config
        await events.send(sse.comment("here"))
        while not self._chat.closing:
            wake.clear()
            # A name that was given back, perhaps to somebody else, shows nothing more to who had it.
            if self._chat.store.user_of(token) != user:
                return
            page = self._chat.store.changes(user, after, PAGE)
            for line in page:
                after = line.change
                await events.send(sse.encoded(msgspec.json.encode(shown(line)), b"%d" % after))
            if page:
                continue
            try:
                async with asyncio.timeout(config.heartbeat):
                    await wake.wait()
            except TimeoutError:
                await events.send(sse.STILL_HERE)
                await self._chat.seen(user)

    def _user(self, request: web.Request) -> str:
        self._gate.client(request)
        token = bearer(request)
        user = None if token is None else self._chat.store.user_of(token)
        if user is None:
            raise HttpError(401, "choose a name first: this page's token is not known here")
        return user

    def _slow_down(self, limiter: Limiter, key: str, text: str) -> None:
        wait = limiter.take(key, time.monotonic())
        if wait > 0:
            raise HttpError(429, f"{text}: wait a moment", wait)


def shown(line: Line) -> ShownMessage:
    return ShownMessage(line.place, line.id, line.partner, line.mine, line.text, line.at, _SHOWN[line.state])


async def _json(request: web.Request, kind: type[T]) -> T:
    if request.content_type != "application/json":
        raise HttpError(415, "send JSON, as application/json")
    body = await body_of(request, MAX_BODY, BODY_SECONDS)
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise HttpError(400, f"not what is expected here: {error}"[:200]) from None


def _one(request: web.Request, name: str) -> str:
    given = request.query.getall(name, [])
    if len(given) != 1:
        raise HttpError(400, f"give one {name}=")
    return given[0]


def _number(text: str | None, name: str) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
        raise HttpError(400, f"{name} is a number")
    return int(text)
