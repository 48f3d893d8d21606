"""`Topic`: a topic URL in its one canonical form.

What counts as the same topic (decided once, here, for both ends of the network):

| part | rule |
|---|---|
| scheme | `http` or `https`, lower case; anything else is refused. Not part of the name |
| userinfo | refused: a name must not carry credentials |
| host | lower case, IDNA A-labels (UTS 46, non-transitional), one trailing dot dropped, at most 253 characters |
| IPv4 | four decimal numbers; the shortened, octal and hex spellings are refused, since clients disagree on them |
| IPv6 | in brackets, compressed as in RFC 5952; zone ids are refused |
| port | dropped when it is the scheme's default or empty; otherwise part of the name |
| path | empty becomes `/`; dot segments removed; percent-encoded unreserved characters decoded, other escapes with
  upper-case digits; characters that a URL may not hold percent-encoded as UTF-8 |
| query | kept as it is, also when empty (`?` alone); only characters beyond ASCII are percent-encoded |
| fragment | dropped |
| a stray `%`, white space, control characters, a backslash | refused |
| length | at most 8192 bytes, before and after |
"""

import ipaddress
import re
from dataclasses import dataclass
from enum import IntFlag
from functools import cached_property, lru_cache
from typing import Final

import idna

MAX_TOPIC_BYTES: Final = 8192
MAX_HOST_CHARACTERS: Final = 253
REMEMBERED: Final = 1024
REMEMBERED_BYTES: Final = 1024
"""How many topics are remembered as they were read, and how long they may be."""
DEFAULT_PORTS: Final = {"http": 80, "https": 443}

_UNRESERVED = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~")
_PATH_CHARACTERS = _UNRESERVED | frozenset("!$&'()*+,;=:@/")
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f-\x9f\\\ud800-\udfff]|\s")
_URL = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<path>[^?#]*)(?P<rest>.*)", re.DOTALL
)
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_PORT = re.compile(r"[0-9]{0,5}")


class TopicError(ValueError):
    """A URL that cannot be a topic; the message says what is wrong with it."""


class Transport(IntFlag):
    """By which scheme, or schemes, a topic is spelled."""

    HTTP = 1
    HTTPS = 2


@dataclass(frozen=True)
class Topic:
    """The canonical parts of a topic URL. Make one with `Topic.parse`."""

    scheme: str
    host: str
    port: int | None
    path: str
    query: str | None

    @classmethod
    def parse(cls, url: str) -> "Topic":
        # A publication's topic is read at each door that it passes.
        return _parsed(url) if len(url) <= REMEMBERED_BYTES else cls._parse(url)

    @classmethod
    def _parse(cls, url: str) -> "Topic":
        parts = _split(url)
        scheme = parts["scheme"].lower()
        if scheme not in DEFAULT_PORTS:
            raise TopicError(f"a topic is an http or https URL, not {scheme!r}")
        host, port = _host_and_port(parts["authority"], scheme)
        query = _query(parts["rest"])
        topic = cls(scheme, host, port, _path(parts["path"]), query)
        if len(topic.url) > MAX_TOPIC_BYTES:
            raise TopicError(f"the URL is longer than {MAX_TOPIC_BYTES} bytes when percent-encoded")
        return topic

    @cached_property
    def authority(self) -> str:
        """The host, with the port when it is not the scheme's default."""
        return self.host if self.port is None else f"{self.host}:{self.port}"

    @cached_property
    def resource(self) -> str:
        """The path with its query, as sent in a request."""
        return self.path if self.query is None else f"{self.path}?{self.query}"

    @cached_property
    def name(self) -> str:
        """What the topic is called whatever its scheme: two topics with one name have the same ids."""
        return self.authority + self.resource

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.name}"

    @property
    def transport(self) -> Transport:
        return Transport.HTTPS if self.scheme == "https" else Transport.HTTP

    @property
    def is_ip_literal(self) -> bool:
        return self.host.startswith("[") or _is_ipv4(self.host)

    def __str__(self) -> str:
        return self.url


_parsed = lru_cache(maxsize=REMEMBERED)(Topic._parse)


def canonical_host(host: str) -> str:
    """The one spelling of a host name or bracketed or plain IP address."""
    if host.startswith("["):
        return _ipv6(host)
    if not host.isascii():
        host = _to_a_labels(host)
    host = host.lower().removesuffix(".")
    if not host:
        raise TopicError("the URL has no host")
    if len(host) > MAX_HOST_CHARACTERS:
        raise TopicError(f"the host is longer than {MAX_HOST_CHARACTERS} characters")
    labels = host.split(".")
    for label in labels:
        if not _LABEL.fullmatch(label):
            raise TopicError(f"{label!r} is not a label of a host name")
    if _ends_in_a_number(labels) and not _is_ipv4(host):
        raise TopicError(f"{host!r} looks like an IPv4 address but is not four decimal numbers")
    return host


def _split(url: str) -> dict[str, str]:
    if len(url) > MAX_TOPIC_BYTES:
        raise TopicError(f"the URL is longer than {MAX_TOPIC_BYTES} bytes")
    wrong = _FORBIDDEN.search(url)
    if wrong is not None:
        raise TopicError(f"character {wrong.start() + 1} ({wrong.group()!r}) may not stand in a URL")
    parts = _URL.fullmatch(url)
    if parts is None:
        raise TopicError("not an absolute URL: expected http://host/path or https://host/path")
    return parts.groupdict()


def _host_and_port(authority: str, scheme: str) -> tuple[str, int | None]:
    if "@" in authority:
        raise TopicError("a topic URL may not carry a user name or password")
    host, colon, port_text = authority.rpartition(":")
    if not colon or "]" in port_text:
        host, port_text = authority, ""
    elif not _PORT.fullmatch(port_text) or (port_text and not 1 <= int(port_text) <= 65535):
        raise TopicError(f"the port {port_text[:10]!r} is not a number from 1 to 65535")
    if not host:
        raise TopicError("the URL has no host")
    port = int(port_text) if port_text else None
    return canonical_host(host), None if port == DEFAULT_PORTS[scheme] else port


def _to_a_labels(host: str) -> str:
    try:
        return idna.encode(host, uts46=True, transitional=False).decode("ascii")
    except (idna.IDNAError, UnicodeError) as error:
        raise TopicError(f"the host {host[:80]!r} is not a valid internationalised name: {error}") from None


def _ipv6(host: str) -> str:
    inner = host[1:-1] if host.endswith("]") else ""
    try:
        if "%" in inner:
            raise ValueError("zone ids have no meaning beyond one machine")
        return f"[{ipaddress.IPv6Address(inner).compressed}]"
    except ValueError as error:
        raise TopicError(f"{host[:60]!r} is not a bracketed IPv6 address: {error}") from None


def _ends_in_a_number(labels: list[str]) -> bool:
    last = labels[-1]
    return last.isdigit() or (last.startswith("0x") and all(c in "0123456789abcdef" for c in last[2:]))


def _is_ipv4(host: str) -> bool:
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True


def _path(path: str) -> str:
    bad = _BAD_ESCAPE.search(path)
    if bad is not None:
        raise TopicError(f"the path has a '%' that is not followed by two hex digits: {path[bad.start() :][:8]!r}")
    normalised = _ESCAPE.sub(_normal_escape, path)
    encoded = "".join(c if c in _PATH_CHARACTERS or c == "%" else _percent_encoded(c) for c in normalised)
    return _without_dot_segments(encoded) or "/"


def _normal_escape(match: re.Match[str]) -> str:
    character = chr(int(match.group(1), 16))
    return character if character in _UNRESERVED else match.group().upper()


def _percent_encoded(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())


def _without_dot_segments(path: str) -> str:
    """RFC 3986, 5.2.4, for an absolute path. Empty segments are kept: `//` is not `/`."""
    kept: list[str] = []
    segments = path.split("/")[1:]
    for segment in segments:
        if segment == "..":
            if kept:
                kept.pop()
        elif segment != ".":
            kept.append(segment)
    if segments and segments[-1] in (".", ".."):
        kept.append("")
    return "/" + "/".join(kept) if segments else ""


def _query(rest: str) -> str | None:
    before_fragment = rest.partition("#")[0]
    if not before_fragment.startswith("?"):
        return None
    return "".join(c if c.isascii() else _percent_encoded(c) for c in before_fragment[1:])
