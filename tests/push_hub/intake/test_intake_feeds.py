"""What is new in a feed: any set of seen entries leaves exactly the others, and the rest byte for byte."""

import contextlib
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from push_hub.intake.entries import take_apart
from push_hub.intake.feeds import Feed, NotAFeedError, read_feed, reduce_to, unseen
from push_hub.xmlguard import UnsafeXmlError
from tests.push_hub.intake.feeds import Item, atom, rdf, rss

names = st.lists(st.text("abcdefgh", min_size=1, max_size=6), unique=True, max_size=8)
texts = st.text(st.sampled_from("abc äö€𝄞 \n\t"), max_size=12)
makers = st.sampled_from([atom, rss, rdf])
encodings = st.sampled_from(["utf-8", "utf-16-le", "utf-16-be", "iso-8859-1"])


def recoded(body: bytes, encoding: str) -> bytes:
    text = re.sub(r' encoding="[^"]*"', "", body.decode())
    mark = "\ufeff" if encoding.startswith("utf-16") else ""
    if encoding == "iso-8859-1":
        text = text.replace('<?xml version="1.0"', '<?xml version="1.0" encoding="iso-8859-1"', 1)
    return (mark + text).encode(encoding, "xmlcharrefreplace")


@given(names, st.data(), makers, encodings)
def test_changes_hold_exactly_the_unseen_entries_and_the_rest_is_byte_identical(
    names: list[str], data: st.DataObject, make: Callable[..., bytes], encoding: str
) -> None:
    items = [Item(name, data.draw(texts)) for name in names]
    states = [data.draw(st.sampled_from(["seen", "new", "changed"])) for _ in items]
    body = recoded(make(items), encoding)
    feed = read_feed(body)
    before = [Item(i.name, i.text + "!" * (s == "changed")) for i, s in zip(items, states, strict=True) if s != "new"]
    seen = {entry.key: entry.digest for entry in read_feed(recoded(make(before), encoding)).entries}
    expected = [item for item, state in zip(items, states, strict=True) if state != "seen"]
    # A document made from only the new and changed entries is what cutting must give, byte for byte.
    assert reduce_to(body, feed, unseen(feed, seen)) == recoded(make(expected), encoding)


@given(names, texts, makers)
def test_the_frame_stays_the_same_whatever_entries_come_and_go(
    names: list[str], text: str, make: Callable[..., bytes]
) -> None:
    full = read_feed(make([Item(name, text) for name in names]))
    assert full.frame == read_feed(make([])).frame
    assert full.frame != read_feed(make([Item(name, text) for name in names], title="Another")).frame


@given(st.binary(max_size=400) | st.text("<>/!?[]\"'=& entryfdDOCTYPEENTITY%;", max_size=300).map(str.encode))
def test_hostile_documents_give_only_the_named_errors(body: bytes) -> None:
    with contextlib.suppress(NotAFeedError, UnsafeXmlError):
        read_feed(body)


@pytest.mark.parametrize(
    "entry", ["<entry/>", "<entry></entry>", "<entry><link/></entry >", "<entry><entry/><x>&lt;</x></entry>"]
)
def test_odd_closing_tags_end_where_they_end(entry: str) -> None:
    body = f"<feed>{entry}</feed>".encode()
    feed = read_feed(body)
    assert [body[e.start : e.end] for e in feed.entries] == [entry.encode()]


def test_a_prefixed_atom_feed_with_an_undeclared_prefix_elsewhere_is_read() -> None:
    body = b"<a:feed><a:entry><a:id>1</a:id><media:x/></a:entry><entry/></a:feed>"
    assert len(read_feed(body).entries) == 1


def test_entries_are_known_by_id_then_link_then_content() -> None:
    def keys(inner: str) -> list[bytes]:
        return [e.key for e in read_feed(f"<rss><channel>{inner}</channel></rss>".encode()).entries]

    assert keys("<item><guid>1</guid><link>x</link></item>") == keys("<item><link>y</link><guid> 1 </guid></item>")
    assert keys("<item><link>x</link><a/></item>") == keys("<item><link>x</link></item>")
    assert keys("<item><a/></item>") != keys("<item><b/></item>")


def test_entries_that_share_an_identifier_do_not_hide_each_other() -> None:
    first, second = "<item><guid>1</guid>a</item>", "<item><guid>1</guid>b</item>"
    feed = read_feed(f"<rss><channel>{first}{second}</channel></rss>".encode())
    assert len({e.key for e in feed.entries}) == 2
    assert unseen(feed, {e.key: e.digest for e in feed.entries}) == []


def test_the_charset_of_the_header_is_tried_and_the_declaration_has_its_turn() -> None:
    latin = '<?xml version="1.0" encoding="iso-8859-1"?><feed><entry><id>ä</id></entry></feed>'.encode("latin-1")
    utf8 = '<?xml version="1.0"?><feed><entry><id>ä</id></entry></feed>'.encode()
    key = read_feed(utf8).entries[0].key
    assert read_feed(latin, "text/xml").entries[0].key == key
    assert read_feed(latin, "text/xml; charset=utf-8").entries[0].key == key
    assert read_feed(latin, "text/xml; charset=nonsense-9").entries[0].key == key


def test_polling_hints_of_rss() -> None:
    more = (
        "<ttl>90</ttl><skipHours><hour>3</hour><hour>24</hour><hour>77</hour></skipHours>"
        "<skipDays><day>Sunday</day><day>Someday</day></skipDays>"
    )
    hints = read_feed(rss([Item("1")], more=more)).hints
    assert (hints.ttl, hints.skip_hours, hints.skip_days) == (5400.0, {0, 3}, {6})


LAUGHS = "".join(f'<!ENTITY l{i} "&l{i - 1};&l{i - 1};">' for i in range(1, 30))


@pytest.mark.parametrize(
    "doctype",
    [
        f'<!DOCTYPE feed [<!ENTITY l0 "ha">{LAUGHS}]>',
        '<!DOCTYPE feed [<!ENTITY x SYSTEM "file:///etc/passwd">]>',
        '<!DOCTYPE feed [<!ENTITY % p SYSTEM "http://example.org/evil.dtd"> %p;]>',
        f'<!DOCTYPE feed [<!ENTITY long "{"a" * 5000}">]>',
        '<!DOCTYPE feed [<!ENTITY quad "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa">]>',
        "<!-- " + "x" * 70_000 + "-->",
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_dangerous_declarations_are_refused_before_any_parser(doctype: str, encoding: str) -> None:
    body = f"{doctype}<feed><entry><id>&x;</id></entry></feed>".encode(encoding)
    with pytest.raises(UnsafeXmlError):
        read_feed(body)


def test_harmless_declarations_pass() -> None:
    old = b'<!DOCTYPE rss PUBLIC "-//N//DTD RSS 0.91//EN" "http://example.org/rss-0.91.dtd"><rss><channel/></rss>'
    assert list(read_feed(old).entries) == []
    short = b'<!DOCTYPE rss [ <!ENTITY nbsp "&#160;"> ]><rss><channel><item>&nbsp;</item></channel></rss>'
    assert len(read_feed(short).entries) == 1
    about_xml = b"<feed><entry><![CDATA[<!DOCTYPE x [<!ENTITY a SYSTEM 'b'>]>]]></entry></feed>"
    assert len(read_feed(about_xml).entries) == 1


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(UnsafeXmlError):
        read_feed(b"<feed>" + b"<a>" * 10_000)


LATIN = '"-//W3C//ENTITIES Latin 1 for XHTML//EN"'
RSS_10 = (
    '<?xml version="1.0"?>{doctype}<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" '
    'xmlns="http://purl.org/rss/1.0/"><channel rdf:about="http://a.example/"><items><rdf:Seq>{listed}\n</rdf:Seq></items>'
    "</channel>{items}\n</rdf:RDF>"
)


def rss_10(items: dict[str, str], doctype: str = "") -> bytes:
    listed = "".join(f'\n<rdf:li rdf:resource="http://a.example/{name}"/>' for name in items)
    said = "".join(
        f'\n<item rdf:about="http://a.example/{name}"><title>{title}</title></item>' for name, title in items.items()
    )
    return RSS_10.format(doctype=doctype, listed=listed, items=said).encode()


@pytest.mark.parametrize(
    "doctype",
    [
        f'<!DOCTYPE rdf:RDF [<!ENTITY % l PUBLIC\n {LATIN} "http://www.w3.org/TR/xhtml1/DTD/xhtml-lat1.ent">\n%l;\n]>',
        '<!DOCTYPE rdf:RDF [<!ENTITY % s SYSTEM "http://www.w3.org/TR/html4/HTMLsymbol.ent"> %s; <!ENTITY x "y">]>',
        '<!DOCTYPE rss SYSTEM "http://my.netscape.com/publish/formats/rss-0.91.dtd">',
        '<!DOCTYPE rss PUBLIC "-//Netscape Communications//DTD RSS 0.91//EN" "rss-0.91.dtd">',
    ],
)
def test_the_known_sets_of_html_entities_are_read_from_a_table(doctype: str) -> None:
    def digests(body: bytes) -> list[bytes]:
        return [entry.digest for entry in take_apart_strictly(body).entries]

    written = digests(rss_10({"1": "caf&eacute; &alpha;"}, doctype))
    assert written == digests(rss_10({"1": "caf\N{LATIN SMALL LETTER E WITH ACUTE} \N{GREEK SMALL LETTER ALPHA}"}))
    assert written != digests(rss_10({"1": "caf&egrave; &alpha;"}, doctype))
    # A name that nobody knows counts as it is written.
    assert digests(rss_10({"1": "&one;"}, doctype)) != digests(rss_10({"1": "&two;"}, doctype))


def take_apart_strictly(body: bytes) -> Feed:
    """As the hub does it, with feedparser's consent."""
    feed = take_apart(body, "application/rdf+xml")
    assert feed is not None and feed.cuttable
    return feed


@pytest.mark.parametrize(
    "subset",
    [
        '<!ENTITY % a SYSTEM "http://a.example/xhtml-lat1.ent">%a;',
        '<!ENTITY % a SYSTEM "file:///etc/passwd">%a;',
        '<!ENTITY % a PUBLIC "-//A//ENTITIES Latin 1 for XHTML//EN" "http://www.w3.org/TR/xhtml1/DTD/xhtml-lat1.ent">%a;',
        '<!ENTITY a SYSTEM "http://www.w3.org/TR/xhtml1/DTD/xhtml-lat1.ent">',
        "%never-declared;",
        f'<!ENTITY % a PUBLIC {LATIN} "x">%b;',
        '<!ENTITY % a "&#60;">%a;',
    ],
)
def test_every_other_set_stays_refused(subset: str) -> None:
    with pytest.raises(UnsafeXmlError):
        read_feed(rss_10({"1": "x"}, f"<!DOCTYPE rdf:RDF [{subset}]>"))


@given(st.lists(st.integers(0, 20), unique=True, max_size=8), st.data())
def test_the_channel_of_rss_10_lists_the_items_that_are_sent(numbers: list[int], data: st.DataObject) -> None:
    items = {str(number): f"story {number}" for number in numbers}
    kept = {name: title for name, title in items.items() if data.draw(st.booleans())}
    body = rss_10(items)
    feed = take_apart_strictly(body)
    keep = [entry for entry, name in zip(feed.entries, items, strict=True) if name in kept]
    assert reduce_to(body, feed, keep) == rss_10(kept)
    assert feed.frame == take_apart_strictly(rss_10(kept)).frame
