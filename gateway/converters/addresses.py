"""Addresses of feeds: every name has one at the gateway's web port, at which what is published by it can be read and
followed like any feed. Sans-I/O."""

from collections.abc import Callable
from urllib.parse import parse_qs, quote

PATH = "feeds"
PLAIN = ":/@"
"""What libraries that put addresses in order would not escape: theirs is the same."""
MAX_FIELDS = 4


class FeedAddresses:
    def __init__(self, web_url: Callable[[], str | None] = lambda: None) -> None:
        """`web_url` says where people find the web port, with a slash at its end; None: there is none."""
        self._web_url = web_url

    def of(self, name: str) -> str | None:
        below = self._web_url()
        return None if below is None else f"{below}{PATH}?name={quote(name, safe=PLAIN)}"

    def name_in(self, url: str) -> str | None:
        """Of whose feed an address is; None for other addresses."""
        below = self._web_url()
        if below is None or not url.startswith(f"{below}{PATH}?"):
            return None
        try:
            fields = parse_qs(url.partition("?")[2], strict_parsing=True, max_num_fields=MAX_FIELDS)
        except ValueError:
            return None
        names = fields.get("name", [])
        return names[0] if len(names) == 1 else None
