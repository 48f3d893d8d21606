"""Feeds that are so plain that feedparser cannot see anything else in them: taken apart in the hub, in one expat pass.

What is plain is said here in full, and is little: UTF-8 without a document type, Atom or RSS 2.0 in its own namespace,
elements that stand where the format has them and attributes that it gives them, text in text elements, each identifier
once. Few of each, so that a pass costs a few milliseconds at worst. Everything else, and all that is broken, is
for the parser processes, where feedparser is asked; `None` says so. What is read here is read by the same code
(`feeds.ExactReader`), so the same document has the same entries whichever way it went; tests hold that feedparser
agrees with every document that is plain.
"""

import re
from collections.abc import Mapping, Set
from xml.parsers import expat

from push_hub.intake.feeds import ExactReader, Feed, NotAFeedError
from push_hub.xmlguard import UnsafeXmlError

MAX_BYTES = 64 * 1024
MAX_ELEMENTS = 500
"""Each costs microseconds on the event loop, and an entry some more."""

ATOM = "http://www.w3.org/2005/Atom"
_PREFIXES = {
    "xmlns:dc": "http://purl.org/dc/elements/1.1/",
    "xmlns:content": "http://purl.org/rss/1.0/modules/content/",
    "xmlns:atom": ATOM,
    "xmlns:slash": "http://purl.org/rss/1.0/modules/slash/",
    "xmlns:wfw": "http://wellformedweb.org/CommentAPI/",
    "xmlns:thr": "http://purl.org/syndication/thread/1.0",
}
"""Declarations at the root that may be there."""
_Inside = Mapping[str, "_Inside"]
"""Which elements an element may have, and what these may have."""
_TEXT: _Inside = {}
_PERSON: _Inside = {"name": _TEXT, "uri": _TEXT, "email": _TEXT}
_ATOM_ENTRY: _Inside = {
    "id": _TEXT, "title": _TEXT, "updated": _TEXT, "published": _TEXT, "summary": _TEXT, "content": _TEXT,
    "rights": _TEXT, "link": _TEXT, "category": _TEXT, "author": _PERSON, "contributor": _PERSON,
}  # fmt: skip
_ATOM_FEED: _Inside = {
    "id": _TEXT, "title": _TEXT, "subtitle": _TEXT, "updated": _TEXT, "rights": _TEXT, "generator": _TEXT,
    "icon": _TEXT, "logo": _TEXT, "link": _TEXT, "category": _TEXT, "author": _PERSON, "contributor": _PERSON,
    "entry": _ATOM_ENTRY,
}  # fmt: skip
_RSS_ITEM: _Inside = {
    "title": _TEXT, "link": _TEXT, "description": _TEXT, "author": _TEXT, "category": _TEXT, "comments": _TEXT,
    "enclosure": _TEXT, "guid": _TEXT, "pubDate": _TEXT, "dc:creator": _TEXT, "dc:date": _TEXT,
    "content:encoded": _TEXT, "slash:comments": _TEXT, "wfw:commentRss": _TEXT,
}  # fmt: skip
_RSS_CHANNEL: _Inside = {
    "title": _TEXT, "link": _TEXT, "description": _TEXT, "language": _TEXT, "copyright": _TEXT, "webMaster": _TEXT,
    "managingEditor": _TEXT, "pubDate": _TEXT, "lastBuildDate": _TEXT, "category": _TEXT, "generator": _TEXT,
    "docs": _TEXT, "ttl": _TEXT, "atom:link": _TEXT,
    "image": {"url": _TEXT, "title": _TEXT, "link": _TEXT, "width": _TEXT, "height": _TEXT, "description": _TEXT},
    "skipHours": {"hour": _TEXT}, "skipDays": {"day": _TEXT},
    "item": _RSS_ITEM,
}  # fmt: skip
_ROOTS: _Inside = {"feed": _ATOM_FEED, "rss": {"channel": _RSS_CHANNEL}}
_TYPED = frozenset({"title", "subtitle", "summary", "content", "rights"})
"""Elements of Atom whose only attribute says how their text is meant."""
_ATTRIBUTES: Mapping[str, Set[str]] = {
    "link": {"href", "rel", "type", "hreflang", "title", "length"},
    "atom:link": {"href", "rel", "type"},
    "category": {"term", "scheme", "label", "domain"},
    "generator": {"uri", "version"},
    "enclosure": {"url", "length", "type"},
    "guid": {"isPermaLink"},
    **{name: {"type"} for name in _TYPED},
}
_NONE: Set[str] = frozenset()
_ONCE = frozenset({"id", "guid"})
_PROLOG = re.compile(
    rb"""(?:<\?xml\s+version\s*=\s*["']1\.0["'](?:\s+encoding\s*=\s*["']utf-8["'])?"""
    rb"""(?:\s+standalone\s*=\s*["'](?:yes|no)["'])?\s*\?>)?\s*<(?:feed|rss)[\s>]""",
    re.IGNORECASE,
)
_CHARSET = re.compile(r"charset\s*=", re.IGNORECASE)
_UTF_8 = re.compile(r"""charset\s*=\s*["']?utf-8["']?\s*$""", re.IGNORECASE)


class _NotPlainError(Exception):
    pass


def plain_feed(body: bytes, content_type: str) -> Feed | None:
    """None: this is not plain, somebody else must look. Never raises."""
    if len(body) > MAX_BYTES or _PROLOG.match(body) is None or b"<!DOCTYPE" in body or b"<!ENTITY" in body:
        return None
    if _CHARSET.search(content_type) is not None and _UTF_8.search(content_type) is None:
        return None
    try:
        body.decode()
        return _PlainReader(body).read()
    except (_NotPlainError, NotAFeedError, UnsafeXmlError, expat.ExpatError, ValueError):
        return None


class _PlainReader(ExactReader):
    """Gives up at the first thing that is not plain."""

    def __init__(self, body: bytes) -> None:
        super().__init__(body, "utf-8")
        self._inside: list[_Inside] = [_ROOTS]
        self._elements = 0
        self._once: set[str] = set()

    def _started(self, name: str, attributes: Mapping[str, str]) -> None:
        self._elements += 1
        inside = self._inside[-1].get(name)
        if inside is None or self._elements > MAX_ELEMENTS:
            raise _NotPlainError
        if len(self._inside) == 1:
            _check_root(name, attributes)
        elif attributes:
            _check_attributes(name, attributes)
        if name in ("entry", "item"):
            self._once = set()
        elif name in _ONCE:
            if name in self._once:
                raise _NotPlainError
            self._once.add(name)
        self._inside.append(inside)
        super()._started(name, attributes)

    def _ended(self, name: str) -> None:
        self._inside.pop()
        super()._ended(name)

    def _skipped(self, name: str, is_parameter: bool) -> None:
        raise _NotPlainError


def _check_attributes(name: str, attributes: Mapping[str, str]) -> None:
    if not attributes.keys() <= _ATTRIBUTES.get(name, _NONE):
        raise _NotPlainError
    if name in _TYPED and attributes["type"] not in ("text", "html"):
        raise _NotPlainError


def _check_root(name: str, attributes: Mapping[str, str]) -> None:
    left = dict(attributes)
    if name == "feed":
        if left.pop("xmlns", None) != ATOM:
            raise _NotPlainError
    elif left.pop("version", None) != "2.0":
        raise _NotPlainError
    left.pop("xml:lang", None)
    if any(_PREFIXES.get(key) != value for key, value in left.items()):
        raise _NotPlainError
