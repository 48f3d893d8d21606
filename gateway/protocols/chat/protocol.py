"""Chat as a protocol of the gateway: user@domain, a page on the web port, messages as the network has them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from aiohttp import web
from msgspec import Meta, Struct

from exchange.model import SessionKey
from gateway.protocols.chat.adapter import ChatAdapter, ChatConfig, TakenError
from gateway.protocols.chat.messages import CONTENT_TYPE, ChatError, readable
from gateway.protocols.chat.routes import ChatRoutes
from gateway.protocols.chat.store import MIGRATIONS, ChatStore
from gateway.protocols.descriptor import Figure, OpenDoor, ProtocolDescriptor, ProtocolHost, RunningProtocol
from gateway.sections import Sections
from serving.answers import HttpError
from serving.static import add_files

STATIC = Path(__file__).parent / "static"
FILES = {
    "/chat/": ("index.html", "text/html"),
    "/chat/chat.css": ("chat.css", "text/css"),
    "/chat/chat.js": ("chat.js", "text/javascript"),
    "/chat/icon.svg": ("icon.svg", "image/svg+xml"),
}
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_DEFAULTS = ChatConfig("example.com")

Count = Annotated[int, Meta(ge=1)]
Positive = Annotated[float, Meta(gt=0.0)]


class ChatSection(Struct, frozen=True, forbid_unknown_fields=True):
    """The chat page. It is there when the gateway has a domain and a web port."""

    enabled: bool = True
    people: Count = _DEFAULTS.max_users
    partners: Count = _DEFAULTS.max_partners
    kept_messages: Count = _DEFAULTS.keep
    waiting_messages: Count = _DEFAULTS.max_waiting
    messages_per_second: Positive = _DEFAULTS.messages_per_second
    messages_burst: Positive = _DEFAULTS.message_burst
    idle_days: Positive = _DEFAULTS.idle_days
    unused_days: Positive = _DEFAULTS.unused_days
    pages: Count = _DEFAULTS.max_pages
    pages_per_person: Count = _DEFAULTS.max_pages_per_user
    pages_per_client: Count = _DEFAULTS.max_pages_per_client


def chat_config(sections: Sections) -> ChatConfig | None:
    section = sections.read("chat", ChatSection)
    if sections.domain is None or not section.enabled or not sections.has_web_port:
        return None
    return ChatConfig(
        sections.domain,
        max_users=section.people,
        max_partners=section.partners,
        keep=section.kept_messages,
        max_waiting=section.waiting_messages,
        idle_days=section.idle_days,
        unused_days=section.unused_days,
        messages_per_second=section.messages_per_second,
        message_burst=section.messages_burst,
        max_pages=section.pages,
        max_pages_per_user=section.pages_per_person,
        max_pages_per_client=section.pages_per_client,
    )


class ChatProtocol(RunningProtocol[ChatConfig]):
    def __init__(self, config: ChatConfig, host: ProtocolHost) -> None:
        super().__init__(config, host)
        self.adapter: ChatAdapter | None = None

    async def prepare(self) -> None:
        host = self.host
        if host.web is None:
            return
        store = ChatStore(host.database)
        self.adapter = ChatAdapter(self.config, host.naming, host.control, store, host.clock, host.observer)
        host.web.translate(_translated)
        app = host.web.app
        ChatRoutes(self.adapter, host.web.gate, host.web.answers).add_to(app)
        add_files(app, STATIC, FILES, PAGE_HEADERS)
        for path in ("/", "/chat"):
            app.router.add_get(path, _to_the_page)

    async def start(self) -> None:
        if self.adapter is not None:
            self.host.control.add(self.adapter)
            await self.adapter.start()

    def close(self) -> None:
        if self.adapter is not None:
            self.adapter.close()

    async def stop(self) -> None:
        if self.adapter is not None:
            await self.adapter.stop()

    async def keep_to_rules(self) -> int:
        return 0 if self.adapter is None else await self.adapter.keep_to_rules()

    async def end_session(self, key: SessionKey) -> bool:
        if self.adapter is None or not await self.host.control.exchange.end(key):
            return False
        await self.adapter.leave(key.who)
        return True

    def doors(self) -> Iterable[OpenDoor]:
        if self.adapter is not None and self.host.web is not None:
            yield OpenDoor(f"chat page of {self.adapter.domain}", f"{self.host.web.url}chat/")

    def figures(self) -> Iterable[Figure]:
        if self.adapter is not None:
            yield Figure("pages", "Open chat pages.", self.adapter.open_pages)

    def panel(self) -> Iterable[tuple[str, str | int]]:
        if self.adapter is not None:
            yield "open chat pages", self.adapter.open_pages


async def _to_the_page(_request: web.Request) -> web.StreamResponse:
    return web.Response(status=302, headers={"Location": "/chat/"})


def _translated(error: Exception) -> HttpError | None:
    if isinstance(error, TakenError):
        return HttpError(409, str(error))
    return HttpError(400, str(error)) if isinstance(error, ChatError) else None


CHAT = ProtocolDescriptor(
    label="chat",
    title="people of a domain talk to each other, on a page and over JSON",
    sections={"chat": ChatSection},
    configured=chat_config,
    make=ChatProtocol,
    readers={CONTENT_TYPE: readable},
    tables=tuple(MIGRATIONS),
)
