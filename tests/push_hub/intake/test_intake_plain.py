"""What the hub takes apart by itself: feedparser agrees with all of it, and everything odd goes to feedparser."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perf.bench.ingest_load import document
from push_hub.intake.entries import take_apart
from push_hub.intake.plain import MAX_BYTES, MAX_ELEMENTS, plain_feed

ATOM, RSS = "application/atom+xml", "application/rss+xml"
XMLNS = 'xmlns="http://www.w3.org/2005/Atom"'
NAMESPACES = 'xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:content="http://purl.org/rss/1.0/modules/content/"'
ENTRY = "<entry><id>urn:a</id><title>A</title></entry>"

texts = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=12).map(
        lambda text: text.replace("&", "&amp;").replace("<", "&lt;").replace("]]>", "")
    ),
    st.sampled_from(
        ["", " ", "\n a \n", "&lt;p&gt;b&lt;/p&gt;", "<![CDATA[<b>&amp;</b>]]>", "&#65;&#x42;", "a<!-- c -->b", "http://e/ä",
         "<?pi x?>", "tag:e,2026:1", "../relative", "  spaced  out  ", "&amp;amp;", "x" * 5000]
    ),
)  # fmt: skip
types = st.sampled_from(["", ' type="text"', ' type="html"', ' type="xhtml"'])


@st.composite
def elements(draw: st.DrawFn, names: list[str], most: int = 4) -> str:
    found = []
    for _ in range(draw(st.integers(0, most))):
        name = draw(st.sampled_from(names))
        said = draw(types) if name in ("title", "summary", "content", "rights") else ""
        if name in ("author", "contributor"):
            found.append(f"<{name}><name>{draw(texts)}</name></{name}>")
        elif name == "link" and draw(st.booleans()):
            rel = draw(st.sampled_from(["", ' rel="alternate"', ' rel="self"', ' rel="enclosure"']))
            found.append(f'<link{rel} href="http://e/{draw(st.integers(0, 9))}"/>')
        else:
            found.append(f"<{name}{said}>{draw(texts)}</{name}>")
        found.append(draw(st.sampled_from(["", "\n  "])))
    return "".join(found)


@st.composite
def feeds(draw: st.DrawFn) -> tuple[bytes, str]:
    head = draw(st.sampled_from(["", '<?xml version="1.0"?>\n', '<?xml version="1.0" encoding="utf-8"?>']))
    entries = draw(st.integers(0, 4))
    if draw(st.booleans()):
        inside = ["id", "title", "updated", "summary", "content", "link", "author", "category", "published", "rights"]
        around = ["id", "title", "subtitle", "updated", "link", "author", "generator", "logo"]
        body = "".join(draw(elements(around, 2)) + f"<entry>{draw(elements(inside))}</entry>" for _ in range(entries))
        return f"{head}<feed {XMLNS}>{body}{draw(elements(around, 2))}</feed>".encode(), ATOM
    inside = ["guid", "title", "link", "description", "pubDate", "dc:creator", "content:encoded", "category", "author"]
    around = ["title", "link", "description", "ttl", "language", "generator", "pubDate"]
    body = "".join(draw(elements(around, 2)) + f"<item>{draw(elements(inside))}</item>" for _ in range(entries))
    return f'{head}<rss version="2.0" {NAMESPACES}><channel>{body}</channel></rss>'.encode(), RSS


@given(feeds())
def test_feedparser_agrees_with_what_is_plain(feed: tuple[bytes, str]) -> None:
    body, content_type = feed
    plain = plain_feed(body, content_type)
    if plain is not None:
        assert plain == take_apart(body, content_type)


@given(
    feeds(), st.integers(0, 10_000), st.sampled_from([b"", b"<", b">", b"&", b'"', b"\x00", b"\xff", b"<entry>", b"x"])
)
def test_feedparser_agrees_with_what_is_plain_when_something_was_damaged(
    feed: tuple[bytes, str], place: int, damage: bytes
) -> None:
    body, content_type = feed
    at = place % len(body)
    body = body[:at] + damage + body[at + 1 :]
    plain = plain_feed(body, content_type)
    if plain is not None:
        assert plain == take_apart(body, content_type)


@pytest.mark.parametrize("size", [300, 1400, 50_000])
def test_ordinary_feeds_are_plain(size: int) -> None:
    body = document(7, size)
    plain = plain_feed(body, f"{ATOM}; charset=UTF-8")
    assert plain is not None
    assert plain == take_apart(body, ATOM)


def test_a_feed_of_a_weblog_is_plain() -> None:
    item = (
        '<item><title>T</title><link>http://e/1</link><dc:creator>me</dc:creator><guid isPermaLink="false">g1</guid>'
        "<category><![CDATA[a]]></category><description><![CDATA[<p>x</p>]]></description>"
        "<content:encoded><![CDATA[<p>x &amp; y</p>]]></content:encoded><pubDate>Tue, 01 Sep 2026</pubDate></item>"
    )
    body = (
        f'<?xml version="1.0" encoding="UTF-8"?><rss version="2.0" {NAMESPACES}><channel><title>t</title>'
        f"<link>http://e/</link><ttl>60</ttl>{item}</channel></rss>"
    ).encode()
    plain = plain_feed(body, RSS)
    assert plain is not None
    assert plain.hints.ttl == 3600
    assert plain == take_apart(body, RSS)


@pytest.mark.parametrize(
    "body",
    [
        f"<!DOCTYPE feed><feed {XMLNS}>{ENTRY}</feed>",
        f'<!DOCTYPE f [<!ENTITY a "b">]><feed {XMLNS}>{ENTRY}</feed>',
        f"<feed {XMLNS}>{ENTRY}",
        f"<feed>{ENTRY}</feed>",
        f'<feed xmlns="http://purl.org/atom/ns#">{ENTRY}</feed>',
        f'<feed {XMLNS} xml:base="http://e/">{ENTRY}</feed>',
        f'<feed {XMLNS} xmlns:a="http://www.w3.org/2005/Atom">{ENTRY}<a:entry><id>b</id></a:entry></feed>',
        f"<feed {XMLNS}><entry><id>a</id><id>b</id></entry></feed>",
        f"<feed {XMLNS}><entry><id>a</id><entry><id>b</id></entry></entry></feed>",
        f'<feed {XMLNS}><entry><id>a</id><content type="xhtml"><div>b</div></content></entry></feed>',
        f'<feed {XMLNS}><entry><id>a</id><content type="image/png">Yg==</content></entry></feed>',
        f"<feed {XMLNS}><entry><id>a</id><source><id>b</id></source></entry></feed>",
        f"<feed {XMLNS}><entry><id>a</id><item/></entry></feed>",
        f"<feed {XMLNS}><entry><id>a &nbsp;</id></entry></feed>",
        f'<?xml version="1.0" encoding="iso-8859-1"?><feed {XMLNS}>{ENTRY}</feed>',
        '<rss version="2.0" xmlns:sy="http://purl.org/rss/1.0/modules/syndication/"><channel/></rss>',
        '<rss version="2.0"><channel><item><guid>a</guid></item></channel><item><guid>b</guid></item></rss>',
        "<html><body>no feed</body></html>",
        "",
    ],
)  # fmt: skip
def test_what_is_odd_is_for_feedparser(body: str) -> None:
    assert plain_feed(body.encode(), ATOM) is None


def test_other_encodings_are_for_feedparser() -> None:
    body = f"<feed {XMLNS}>{ENTRY}</feed>"
    assert plain_feed(body.encode("utf-16"), ATOM) is None
    assert plain_feed(b"\xef\xbb\xbf" + body.encode(), ATOM) is None
    assert plain_feed(body.encode(), f"{ATOM}; charset=iso-8859-1") is None
    assert plain_feed(body.replace("A", "Ä").encode("latin-1"), ATOM) is None


def test_the_worst_that_is_plain_takes_milliseconds() -> None:
    entry = "<entry><title>x</title><id/></entry>"
    many = f"<feed {XMLNS}>{entry * (MAX_ELEMENTS // 3 - 1)}</feed>".encode()
    text = f"<feed {XMLNS}><title>{'&lt;' * 16_000}</title></feed>".encode()
    assert len(text) < MAX_BYTES
    for body in (many, text):
        spent = []
        for _ in range(5):
            before = time.thread_time()
            assert plain_feed(body, ATOM) is not None
            spent.append(time.thread_time() - before)
        assert min(spent) < 0.03
    assert plain_feed(f"<feed {XMLNS}>{entry * MAX_ELEMENTS}</feed>".encode(), ATOM) is None
    assert plain_feed(text + b" " * MAX_BYTES, ATOM) is None
