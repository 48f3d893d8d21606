"""Topic and callback URLs: what is accepted, one stable spelling, and how parameters are appended.

A URL is a key, and is later used exactly as the subscriber wrote it. The only change is the one the texts ask
for: percent-encoded unreserved characters are decoded, because both spellings mean the same.
"""

import re
from collections.abc import Sequence
from urllib.parse import SplitResult, quote, urlsplit

from push_hub.protocol.numbers import MAX_URL_LENGTH

MAX_PORT = 65_535
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_USUAL = re.compile(
    r"https?://[0-9A-Za-z.-]+(?::(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}))?(?:[/?#][!#$&-;=?@-Z\[\]_a-z~]*)?"
)
"""Nothing in it is escaped, forbidden or an address in brackets: it is its own stable spelling."""
_FORBIDDEN = re.compile(r"[^\x21-\x7e]|[\"<>\\^`{|}]")


class UrlError(ValueError):
    """Why a URL is refused, in words for its sender."""


def normalised(url: str) -> str:
    """The stable spelling of an acceptable http or https URL. Raises `UrlError`."""
    if len(url) > MAX_URL_LENGTH:
        raise UrlError(f"is longer than {MAX_URL_LENGTH} characters")
    if not url:
        raise UrlError("is empty")
    if _USUAL.fullmatch(url):
        return url
    found = _FORBIDDEN.search(url)
    if found:
        raise UrlError(f"contains {found.group()!a}, which must be percent-encoded")
    if _BAD_ESCAPE.search(url):
        raise UrlError("contains a '%' that is not followed by two hexadecimal digits")
    decoded = _ESCAPE.sub(_decode_unreserved, url)
    _check_shape(decoded)
    return decoded


def host_of(url: str) -> str:
    """The host of an accepted URL in lower case: what the limits per host count by."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def has_fragment(url: str) -> bool:
    return "#" in url


def with_parameters(url: str, parameters: Sequence[tuple[str, str]]) -> str:
    """Append query parameters at the end; what is there already stays as it is, character by character."""
    base, hash_sign, fragment = url.partition("#")
    added = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in parameters)
    if "?" not in base:
        separator = "?"
    elif base.endswith(("?", "&")):
        separator = ""
    else:
        separator = "&"
    return f"{base}{separator}{added}{hash_sign}{fragment}"


def _decode_unreserved(match: re.Match[str]) -> str:
    character = chr(int(match.group(1), 16))
    return character if character in _UNRESERVED else match.group()


def _check_shape(url: str) -> None:
    try:
        parts: SplitResult = urlsplit(url)
        port = parts.port
        host = parts.hostname
    except ValueError:
        raise UrlError("is not a well-formed URL (look at its host and port)") from None
    if parts.scheme.lower() not in ("http", "https"):
        raise UrlError("must begin with http:// or https://")
    if not host:
        raise UrlError("has no host")
    if port is not None and not 0 < port <= MAX_PORT:
        raise UrlError(f"has a port outside 1 to {MAX_PORT}")
    if "@" in parts.netloc:
        raise UrlError("must not contain a user name or password")
    if "%" in host:
        raise UrlError("has a percent sign in its host")


def beginning(prefix: str) -> str:
    """How the URLs below an address begin. Raises `UrlError`.

    A bare host is taken with its slash, so that it does not match a longer host name.
    """
    url = normalised(prefix)
    return url if "/" in url.split("://", 1)[1] else f"{url}/"
