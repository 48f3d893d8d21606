"""What a publisher puts on its pages so that subscribers find its hubs (P1 to P3). No I/O."""

from collections.abc import Sequence
from html import escape

_UNSAFE = frozenset('<>"\\^`{|} ')


def link_header(hubs: Sequence[str], topic: str) -> str:
    """The value of a `Link` header: every hub, and exactly one self. Raises ValueError for what is no URL."""
    _check(hubs, topic)
    return ", ".join([*(f'<{hub}>; rel="hub"' for hub in hubs), f'<{topic}>; rel="self"'])


def feed_links(hubs: Sequence[str], topic: str, prefix: str = "") -> str:
    """Link elements for a feed: under `feed` of Atom, or under `channel` of RSS with the prefix `atom:`."""
    _check(hubs, topic)
    links = [*(("hub", hub) for hub in hubs), ("self", topic)]
    return "".join(f'<{prefix}link rel="{relation}" href="{escape(url)}"/>' for relation, url in links)


def html_links(hubs: Sequence[str], topic: str) -> str:
    """Link elements for the head of a page."""
    return feed_links(hubs, topic)


def _check(hubs: Sequence[str], topic: str) -> None:
    if not hubs:
        raise ValueError("name at least one hub")
    for url in (*hubs, topic):
        if not url.startswith(("http://", "https://")) or not url.isascii() or not url.isprintable():
            raise ValueError(f"{url!r} is not an http or https URL")
        if _UNSAFE & set(url):
            raise ValueError(f"{url!r} has a character that must be percent-encoded")
