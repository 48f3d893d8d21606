"""A feed that is passed on names one hub and its own address, and is otherwise what it was."""

import json
import xml.etree.ElementTree as ET

import feedparser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from push_hub.discovery import discover
from push_hub.feed_proxy.relinking import NoFeedError, relinked

HUB = "https://gateway-a.example/hub/?a=1&b=2"
TOPIC = "https://blog.example/feed?x=1&y=2"
BASE = "https://cdn.example/feed"
ATOM = (
    '<?xml version="1.0"?>\n<feed xmlns="http://www.w3.org/2005/Atom"><title>ä</title>'
    '<link rel="hub" href="https://old.example/"/><link href="https://elsewhere.example/" rel="self"></link>'
    '<link rel="alternate" href="/page"/><entry><link rel="self" href="y"/><title>one</title></entry></feed>'
)
RSS = (
    '<rss version="2.0" xmlns:atom="http://www.w3.org/2005/Atom"><channel data-x="&gt;"><title>ä</title>'
    "<link>https://blog.example/</link><item><title>one</title></item>"
    '<atom:link rel="HUB" href="https://old.example/"/></channel></rss>'
)
RDF = (
    '<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns="http://purl.org/rss/1.0/">'
    '<channel rdf:about="x"><title>ä</title></channel><item rdf:about="y"><title>one</title></item></rdf:RDF>'
)


def passed_on(content_type: str, body: bytes) -> tuple[str, bytes]:
    feed = relinked(content_type, body, topic=TOPIC, base=BASE)
    return feed.content_type, feed.naming(HUB)


class NoHeaders:
    def get_all(self, name: str, /) -> list[str]:
        return []


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "iso-8859-1", "utf-16", "windows-1252"])
@pytest.mark.parametrize("text", [ATOM, RSS, RDF], ids=["atom", "rss", "rdf"])
def test_a_feed_names_this_hub_and_its_own_address(text: str, encoding: str) -> None:
    declared = text.removeprefix('<?xml version="1.0"?>\n')
    name = encoding.removesuffix("-sig")
    given_bytes = f'<?xml version="1.0" encoding="{name}"?>\n{declared}'.encode(encoding)
    kind, body = passed_on("application/rss+xml", given_bytes)
    assert kind == "application/rss+xml; charset=utf-8"
    found = discover(NoHeaders(), kind, body)
    assert (found.hubs, found.self_url) == ((HUB,), TOPIC)
    assert ET.fromstring(body) is not None  # noqa: S314 - our own, a moment ago
    before, after = feedparser.parse(given_bytes), feedparser.parse(body)
    assert after.feed.title == before.feed.title == "ä"
    assert [entry.title for entry in after.entries] == ["one"]


def test_what_is_not_a_link_stays_as_it_was() -> None:
    kind, body = passed_on("text/xml; charset=utf-8", ATOM.encode())
    assert kind == "application/xml; charset=utf-8"
    text = body.decode()
    assert text.startswith('<?xml version="1.0"?>\n<feed xml:base="https://cdn.example/feed" xmlns=')
    assert text.endswith(
        '<link rel="alternate" href="/page"/><entry><link rel="self" href="y"/><title>one</title></entry></feed>'
    )
    assert "old.example" not in text
    # What was relative to where the feed was still leads there.
    assert feedparser.parse(body).feed.links[-1].href == "https://cdn.example/page"


def test_the_charset_of_the_header_counts_before_the_declaration() -> None:
    declared = b'<?xml version="1.0" encoding="utf-8"?>' + RSS.encode("iso-8859-1")
    _, body = passed_on("text/xml; charset=ISO-8859-1", declared)
    assert "<title>ä</title>".encode() in body


def test_a_json_feed() -> None:
    given_feed = {"version": "https://jsonfeed.org/version/1.1", "title": "ä", "hubs": [{"type": "x"}], "items": [{}]}
    kind, body = passed_on("application/json", json.dumps(given_feed).encode())
    assert kind == "application/feed+json"
    assert json.loads(body) == given_feed | {"feed_url": TOPIC, "hubs": [{"type": "WebSub", "url": HUB}]}


@pytest.mark.parametrize(
    ("content_type", "body", "why"),
    [
        ("text/html", b"<!doctype html><html><head></head></html>", "it is no feed"),
        ("application/xhtml+xml", b"<html xmlns='http://www.w3.org/1999/xhtml'/>", "neither Atom nor RSS"),
        ("image/svg+xml", b"<svg xmlns='http://www.w3.org/2000/svg'><script>1</script></svg>", "neither Atom nor RSS"),
        ("application/json", b'{"private": 1}', "JSON of another kind"),
        ("application/json", b"[" * 100_000, "cannot be read"),
        ("text/plain", b"root:x:0:0", "it is no feed"),
        ("application/atom+xml", b"", "it is no feed"),
        ("application/atom+xml", b"<feed/>", "it is empty"),
        ("application/rss+xml", b"<rss><channel/></rss>", "it is empty"),
        ("application/rss+xml", b"<rss><title/></rss>", "neither Atom nor RSS"),
        ("text/xml; charset=utf-7", ATOM.encode(), "an encoding that is not passed on"),
        ("text/xml; charset=shift_jis", b"<rss>\xff\xff", "not in the encoding"),
        (
            "application/xml",
            b'<!DOCTYPE feed [<!ENTITY x SYSTEM "file:///etc/passwd">]><feed><title>&x;</title></feed>',
            "it is not passed on",
        ),
        ("application/xml", b"<feed>" + b"<a>" * 300, "nested deeper"),
    ],
)
def test_what_is_no_feed_is_not_passed_on(content_type: str, body: bytes, why: str) -> None:
    with pytest.raises(NoFeedError, match=why):
        relinked(content_type, body, topic=TOPIC, base=BASE)


@given(
    st.binary(max_size=200).map(lambda noise: ("application/xml", noise))
    | st.tuples(st.sampled_from([ATOM, RSS, RDF]), st.integers(0, 300), st.binary(max_size=8)).map(
        lambda drawn: ("application/xml", drawn[0].encode()[: drawn[1]] + drawn[2] + drawn[0].encode()[drawn[1] :])
    )
)
def test_damage_is_refused_or_names_this_hub_alone(drawn: tuple[str, bytes]) -> None:
    try:
        kind, body = passed_on(*drawn)
    except NoFeedError:
        return
    found = discover(NoHeaders(), kind, body)
    assert found.hubs[:1] == (HUB,)
    assert found.self_url == TOPIC
