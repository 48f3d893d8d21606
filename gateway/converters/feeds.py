"""Publications as a feed: Atom (RFC 4287), and JSON Feed 1.1 for programs. Sans-I/O."""

import base64
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from exchange.model import OriginId
from gateway.converters.readable import Readable

ATOM_TYPE: Final = "application/atom+xml; charset=utf-8"
JSON_TYPE: Final = "application/feed+json"
NAMES: Final = uuid.UUID("4a0c1c1e-6f0f-5f5e-9d4b-5a7f3c0f7d10")
"""What ids are made in, so that a publication has one id at every gateway."""
NOBODY: Final = "unknown"
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class FeedHead:
    item: str
    name: str
    self_url: str | None
    hub_url: str | None


@dataclass(frozen=True, slots=True)
class FeedItem:
    origin: OriginId
    published_ms: int
    readable: Readable
    content_type: str
    packed: bytes | None = None
    """The body, if it is no text."""

    @property
    def id(self) -> str:
        return urn(str(self.origin))


def urn(text: str) -> str:
    return uuid.uuid5(NAMES, text).urn


def atom_feed(head: FeedHead, items: Sequence[FeedItem]) -> bytes:
    """Newest first, as readers expect."""
    links = [("self", head.self_url), ("hub", head.hub_url)]
    newest = max((item.published_ms for item in items), default=0)
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        '<feed xmlns="http://www.w3.org/2005/Atom">',
        f"<id>{urn(head.item)}</id><title>{_text(head.name)}</title><updated>{_time(newest)}</updated>",
        *(f'<link rel="{rel}" href="{_text(url)}"/>' for rel, url in links if url is not None),
        *(_atom_entry(item) for item in reversed(items)),
        "</feed>\n",
    ]
    return "\n".join(lines).encode()


def _atom_entry(item: FeedItem) -> str:
    said = item.readable
    if item.packed is None:
        content = f'<content type="text">{_text(said.text)}</content>'
    else:
        packed = base64.b64encode(item.packed).decode("ascii")
        content = f'<content type="{_text(item.content_type)}">{packed}</content>'
    link = f'<link rel="alternate" href="{_text(said.link)}"/>' if said.link else ""
    return (
        f"<entry><id>{item.id}</id><title>{_text(said.title)}</title><updated>{_time(item.published_ms)}</updated>"
        f"<author><name>{_text(said.author or NOBODY)}</name></author>{link}{content}</entry>"
    )


def json_feed(head: FeedHead, items: Sequence[FeedItem]) -> bytes:
    feed: dict[str, Any] = {"version": "https://jsonfeed.org/version/1.1", "title": head.name}
    if head.self_url is not None:
        feed["feed_url"] = f"{head.self_url}&format=json"
    if head.hub_url is not None:
        feed["hubs"] = [{"type": "WebSub", "url": head.hub_url}]
    feed["items"] = [_json_item(item) for item in reversed(items)]
    return msgspec.json.encode(feed)


def _json_item(item: FeedItem) -> dict[str, Any]:
    said = item.readable
    found: dict[str, Any] = {
        "id": item.id,
        "title": said.title,
        "content_text": said.text,
        "date_published": _time(item.published_ms),
        "_psph": {"origin": str(item.origin), "type": item.content_type},
    }
    if said.author:
        found["authors"] = [{"name": said.author}]
    if said.link:
        found["url"] = said.link
    if item.packed is not None:
        found["_psph"]["base64"] = base64.b64encode(item.packed).decode("ascii")
    return found


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _text(text: str) -> str:
    """As XML can hold it, also within quotation marks."""
    clean = _NOT_XML.sub("\ufffd", text)
    return clean.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
