"""A feed as it was, but for its links: it names one hub, and its own address. Sans-I/O.

Elements are cut out and put in; every other byte stays, unless the document was in another encoding than UTF-8. Only
feeds are taken: Atom, RSS 0.91 to 2.0, JSON Feed.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from xml.parsers import expat

from push_hub.discovery import media_type
from push_hub.xmlguard import MAX_DEPTH, UnsafeXmlError, check_prolog, guarded_parser

ATOM = "http://www.w3.org/2005/Atom"
JSON_FEED = "https://jsonfeed.org/version/"
JSON_TYPES = frozenset({"application/feed+json", "application/json"})
_CHARSET = re.compile(r""";\s*charset\s*=\s*["']?([A-Za-z0-9_.:-]{1,40})""", re.IGNORECASE)
_DECLARATION = re.compile(rb"""\s{0,64}<\?xml\s[^>]{0,200}?\?>""")
_ENCODING = re.compile(rb"""encoding\s*=\s*["']([A-Za-z0-9_.:-]{1,40})["']""")
_MARKS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))
_AS_IT_IS = frozenset({"utf-8", "utf8", "us-ascii", "ascii"})
_KNOWN = re.compile(
    r"utf-16(le|be)?|iso-8859-\d{1,2}|latin-?1|(windows-|cp)125\d|koi8-[ru]|shift_jis|euc-(jp|kr)|gb2312|gbk|gb18030|big5"
)
"""Others are refused: a codec that strangers choose must take time in proportion to what they send."""
_TAG = re.compile(rb"""(?:[^"'>]|"[^"]*"|'[^']*')*>""")
_RELATIONS = frozenset({"hub", "self"})


class NoFeedError(Exception):
    """The document cannot be passed on as a feed; the text says why."""


@dataclass(frozen=True, slots=True)
class RelinkedFeed:
    """A feed that names `topic` as itself, with a place for its one hub."""

    content_type: str
    topic: str
    before: bytes
    after: bytes
    link: str
    """What stands at the place, with `{}` for the hub."""

    def naming(self, hub: str) -> bytes:
        as_json = media_type(self.content_type) in JSON_TYPES
        place = self.link.replace("{}", json.dumps(hub) if as_json else escape(hub))
        return b"".join((self.before, place.encode(), self.after))

    @property
    def size(self) -> int:
        return len(self.before) + len(self.after)


def relinked(content_type: str, body: bytes, *, topic: str, base: str) -> RelinkedFeed:
    """`base` is where it was read. Raises `NoFeedError`."""
    if media_type(content_type) in JSON_TYPES or body[:64].lstrip()[:1] == b"{":
        return _relinked_json(body, topic)
    return _relinked_xml(content_type, body, topic, base)


# JSON Feed


def _relinked_json(body: bytes, topic: str) -> RelinkedFeed:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise NoFeedError("it is no feed: its JSON cannot be read") from None
    if not isinstance(document, dict) or not str(document.get("version", "")).startswith(JSON_FEED):
        raise NoFeedError("it is no feed: JSON of another kind")
    document["feed_url"] = topic
    document.pop("hubs", None)
    try:
        packed = json.dumps(document, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise NoFeedError("it is no feed: its JSON cannot be written again") from None
    # It is an object with members: what closes it is its last byte.
    return RelinkedFeed("application/feed+json", topic, packed[:-1], b"}", ', "hubs": [{"type": "WebSub", "url": {}}]')


# Atom and RSS


def _relinked_xml(content_type: str, body: bytes, topic: str, base: str) -> RelinkedFeed:
    text = _as_utf8(content_type, body)
    try:
        check_prolog(text)
        places = _Places(text)
    except UnsafeXmlError as error:
        raise NoFeedError(f"it is not passed on: {error}") from None
    element = f'link xmlns="{ATOM}"' if places.kind == "feed" else f'atom:link xmlns:atom="{ATOM}"'
    edits = [(start, end, b"") for start, end in places.links]
    edits.append((places.inside, places.inside, f'<{element} rel="self" href="{escape(topic)}"/>'.encode()))
    if not places.has_base:  # links that are relative are relative to where it was
        edits.append((places.root, places.root, f' xml:base="{escape(base)}"'.encode()))
    pieces: list[bytes] = []
    at = before = 0
    for start, end, new in sorted(edits):
        pieces += [text[at:start], new]
        at = end
        if start <= places.inside:
            before = len(pieces)
    pieces.append(text[at:])
    kind = media_type(content_type)
    fitting = kind if kind.endswith("+xml") and kind != "application/xhtml+xml" else "application/xml"
    return RelinkedFeed(
        f"{fitting}; charset=utf-8",
        topic,
        b"".join(pieces[:before]),
        b"".join(pieces[before:]),
        f'<{element} rel="hub" href="{{}}"/>',
    )


def _as_utf8(content_type: str, body: bytes) -> bytes:
    """The document in UTF-8, without a declaration that says otherwise."""
    mark, encoding = next(((mark, name) for mark, name in _MARKS if body.startswith(mark)), (b"", ""))
    if mark and encoding == "utf-8":
        return body[len(mark) :]
    if not encoding and (given := _CHARSET.search(content_type)) is not None:
        encoding = given[1].lower()
    if not encoding:
        declared = _DECLARATION.match(body[:300])
        named = None if declared is None else _ENCODING.search(declared[0])
        encoding = "utf-8" if named is None else named[1].decode("ascii").lower()
    if encoding in _AS_IT_IS:
        return _without_encoding(body)
    if _KNOWN.fullmatch(encoding) is None:
        raise NoFeedError(f"it is in an encoding that is not passed on ({encoding})")
    try:
        return _without_encoding(body.decode(encoding).encode())
    except (UnicodeError, LookupError):
        raise NoFeedError(f"it is not in the encoding that it says it is in ({encoding})") from None


def _without_encoding(text: bytes) -> bytes:
    declared = _DECLARATION.match(text[:300])
    named = None if declared is None else _ENCODING.search(declared[0])
    if declared is None or named is None or named[1].decode("ascii").lower() in _AS_IT_IS:
        return text
    return text[declared.end() :].lstrip()


class _Places:
    """Where in a feed something is to be cut out or put in, as offsets. Raises `NoFeedError`, `UnsafeXmlError`."""

    def __init__(self, text: bytes) -> None:
        self.kind = ""
        self.links: list[tuple[int, int]] = []
        self.root = self.inside = 0
        self.has_base = False
        self._text = text
        self._depth = self._entry = 0
        self._link: int | None = None
        parser = self._parser = guarded_parser("utf-8")
        parser.StartElementHandler = self._started
        parser.EndElementHandler = self._ended
        try:
            parser.Parse(text, True)
        except expat.ExpatError as error:
            # Readers are patient with what comes later; what stands before it was looked at.
            if not self.inside:
                raise NoFeedError(f"it is no feed: {error}") from None
        except (ValueError, LookupError) as error:
            raise NoFeedError(f"it is no feed: {error}") from None
        if not self.inside:
            raise NoFeedError("it is no feed: neither Atom nor RSS")

    def _started(self, name: str, attributes: Mapping[str, str]) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise UnsafeXmlError(f"it is nested deeper than {MAX_DEPTH} elements")
        local = name.rpartition(":")[2].lower()
        here = self._parser.CurrentByteIndex
        if self._depth == 1:
            if local not in ("feed", "rss", "rdf"):
                raise NoFeedError("it is no feed: neither Atom nor RSS")
            self.kind = local
            self.root = here + 1 + len(name.encode())
            self.has_base = "xml:base" in attributes
        holder = 1 if self.kind == "feed" else 2
        if self._depth == holder and not self.inside and local in ("feed", "channel"):
            self.inside = self._behind_tag(here)
        elif self._entry or self._depth != holder + 1:
            return
        elif local in ("entry", "item"):
            self._entry = self._depth
        elif local == "link" and _RELATIONS & set(attributes.get("rel", "").lower().split()):
            self._link = here

    def _ended(self, _: str) -> None:
        if self._link is not None and self._depth == (2 if self.kind == "feed" else 3):
            tag = _TAG.match(self._text, self._link)
            if tag is not None and tag[0].endswith(b"/>"):
                end = tag.end()
            else:
                end = self._text.find(b">", self._parser.CurrentByteIndex) + 1
            self.links.append((self._link, end))
            self._link = None
        if self._depth == self._entry:
            self._entry = 0
        self._depth -= 1

    def _behind_tag(self, start: int) -> int:
        """The offset behind a start tag; nothing can be put into an element without content."""
        found = _TAG.match(self._text, start)
        if found is None or found[0].endswith(b"/>"):
            raise NoFeedError("it is no feed: it is empty")
        return found.end()
