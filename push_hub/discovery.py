"""Find a topic's hubs and its own address: Link headers first, then links in the document (S1). No I/O.

Everything here comes from strangers: the work is linear in a bounded part of the input, and nothing raises.
Each relation stops at its first source: links in headers hide links of the same relation in the document.
"""

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urljoin, urlsplit
from xml.parsers import expat

from push_hub.xmlguard import MAX_DEPTH, UnsafeXmlError, check_prolog, guarded_parser

MAX_HEADER = 16 * 1024
MAX_LINKS = 64
MAX_HUBS = 8
MAX_DOCUMENT = 256 * 1024
"""Only the beginning of a document is searched: links stand before the entries, or in the head."""
MAX_URL = 2048

XML_TYPES = frozenset({"application/xml", "text/xml"})
FEED_TYPES = frozenset({"application/atom+xml", "application/rss+xml", "application/rdf+xml"})
HTML_TYPES = frozenset({"text/html", "application/xhtml+xml"})


class LinkHeaders(Protocol):
    def get_all(self, name: str, /) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True)
class Links:
    """What a document says about itself: absolute http(s) URLs, in the order found, without repeats."""

    hubs: tuple[str, ...] = ()
    self_url: str | None = None


@dataclass(frozen=True, slots=True)
class _Link:
    relations: frozenset[str]
    target: str


def media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def is_xml(content_type: str) -> bool:
    kind = media_type(content_type)
    return kind in XML_TYPES or kind.endswith("+xml")


def is_called_feed(content_type: str) -> bool:
    """Whether the type leaves nothing else that the document may be."""
    return media_type(content_type) in FEED_TYPES


def discover(headers: LinkHeaders, content_type: str, body: bytes, base: str = "") -> Links:
    """The hub and self links of a response that was read from `base`."""
    from_headers = list(_header_links(headers.get_all("Link")))
    hubs, self_url = _choose(from_headers, base)
    if hubs and self_url:
        return Links(hubs, self_url)
    kind = media_type(content_type)
    if kind in HTML_TYPES:
        embedded = list(_html_links(body[:MAX_DOCUMENT]))
    elif is_xml(content_type) and _may_have_links(body):
        embedded = _xml_links(body[:MAX_DOCUMENT])
    else:
        embedded = []
    embedded_hubs, embedded_self = _choose(embedded, base)
    return Links(hubs or embedded_hubs, self_url or embedded_self)


def _choose(links: Sequence[_Link], base: str) -> tuple[tuple[str, ...], str | None]:
    hubs: dict[str, None] = {}
    self_url: str | None = None
    for link in links:
        url = _absolute(link.target, base)
        if url is None:
            continue
        if "hub" in link.relations and len(hubs) < MAX_HUBS:
            hubs[url] = None
        if "self" in link.relations and self_url is None:
            self_url = url
    return tuple(hubs), self_url


def _absolute(target: str, base: str) -> str | None:
    """An absolute http(s) URL, left as it was written when it already is one."""
    target = target.strip()
    if not target or len(target) > MAX_URL or any(c <= " " or c == "\x7f" for c in target):
        return None
    try:
        parts = urlsplit(target)
        url = target if parts.scheme else urljoin(base, target)
        parts = urlsplit(url)
        usable = parts.scheme.lower() in ("http", "https") and bool(parts.hostname)
        _ = parts.port  # raises when it is no number
    except ValueError:
        return None
    return url if usable and len(url) <= MAX_URL else None


# Link headers (RFC 8288)

_PARAMETER = re.compile(r'\s*;\s*([!#$%&\'*+\-.^_`|~0-9A-Za-z]+)(?:\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s",;]*)))?')


def _header_links(values: Sequence[str]) -> Iterator[_Link]:
    text = ", ".join(values)[:MAX_HEADER]
    at = found = 0
    while found < MAX_LINKS:
        start = text.find("<", at)
        end = text.find(">", start)
        if start < 0 or end < 0:
            return
        found += 1
        at = end + 1
        parameters: dict[str, str] = {}
        while (match := _PARAMETER.match(text, at)) is not None:
            at = match.end()
            quoted = match[2]
            value = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else match[3] or ""
            parameters.setdefault(match[1].lower(), value)
        # A link with an anchor speaks of another resource.
        if "anchor" not in parameters:
            yield _Link(_relations(parameters.get("rel", "")), text[start + 1 : end])


def _relations(text: str) -> frozenset[str]:
    return frozenset(text.lower().split())


# XML: link elements of the feed, not of its entries


def _may_have_links(body: bytes) -> bool:
    """Whether it is worth a parser: the words stand in it, or it is written in a way that hides them."""
    if b"&#" in body or b"\0" in body or b"<!" in body:
        return True
    lowered = body.lower()  # searched twice, this takes a tenth of what one look without regard to case does
    return b"hub" in lowered or b"self" in lowered


class _EnoughError(Exception):
    pass


def _xml_links(body: bytes) -> list[_Link]:
    links: list[_Link] = []
    try:
        check_prolog(body)
        parser = guarded_parser()
        depth = entry_depth = 0

        def started(name: str, attributes: Mapping[str, str]) -> None:
            nonlocal depth, entry_depth
            depth += 1
            if depth > MAX_DEPTH or len(links) >= MAX_LINKS:
                raise _EnoughError
            if entry_depth:
                return  # an entry's links are about the entry
            local = name.rpartition(":")[2].lower()
            if local in ("entry", "item") and depth > 1:
                entry_depth = depth
            elif local == "link" and depth <= 3 and "href" in attributes:
                links.append(_Link(_relations(attributes.get("rel", "alternate")), attributes["href"]))

        def ended(_: str) -> None:
            nonlocal depth, entry_depth
            if depth == entry_depth:
                entry_depth = 0
            depth -= 1

        parser.StartElementHandler = started
        parser.EndElementHandler = ended
        parser.Parse(body, False)
    except (_EnoughError, UnsafeXmlError, expat.ExpatError, ValueError, LookupError):
        pass  # what was found before the trouble still counts
    return links


# HTML: link elements of the head

_TAG = re.compile(r"<(!--|/?[a-zA-Z][a-zA-Z0-9]{0,20})")
_ATTRIBUTE = re.compile(
    r"[\s/]*([^\s\"'<>/=]{1,64})(?:\s{0,64}=\s{0,64}(?:\"([^\"]{0,2100})\"|'([^']{0,2100})'|([^\s\"'=<>`]{1,2100})))?"
)
_RAW_TEXT = {"script", "style", "title", "noscript", "template", "textarea"}
_MAX_ATTRIBUTES = 32


def _html_links(body: bytes) -> Iterator[_Link]:
    text = body.decode("utf-8", "replace")
    lowered = text.lower() if text.isascii() else "".join(c.lower() if c.isascii() else c for c in text)
    at = examined = 0
    while examined < MAX_LINKS and (match := _TAG.search(text, at)) is not None:
        at = match.end()
        name = match[1].lower()
        if name == "!--":
            at = text.find("-->", at)
        elif name in ("body", "/head"):
            return  # links further down may come from a visitor's comment
        elif name in _RAW_TEXT:
            at = lowered.find(f"</{name}", at)
        elif name == "link":
            examined += 1
            attributes: dict[str, str] = {}
            for _ in range(_MAX_ATTRIBUTES):
                found = _ATTRIBUTE.match(text, at)
                if found is None:
                    break
                at = found.end()
                value = next((group for group in found.groups()[1:] if group is not None), "")
                attributes.setdefault(found[1].lower(), html.unescape(value))
            yield _Link(_relations(attributes.get("rel", "")), attributes.get("href", ""))
        if at < 0:
            return
