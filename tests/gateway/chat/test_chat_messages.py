"""Messages as RSS 2.0 documents: what is written is read, and nothing else is."""

import contextlib
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocols.chat.messages import (
    DC,
    MAX_DOCUMENT,
    MAX_TEXT,
    ChatError,
    ChatMessage,
    Receipt,
    address_of,
    checked_text,
    read,
    write_message,
    write_receipt,
)

ALICE = "alice@a.example"
BOB = "bob@b.example"
NOW = 1_800_000_000.25


def rss(inside: str, version: str = "2.0", head: str = "") -> bytes:
    return f'{head}<rss version="{version}" xmlns:dc="{DC}"><channel>{inside}</channel></rss>'.encode()


def test_a_message_is_the_document_of_the_specification() -> None:
    document = write_message(ChatMessage("m1", ALICE, "hello <b>you</b> & «all»", NOW, BOB))
    root = ET.fromstring(document)  # noqa: S314 - our own document
    assert (root.tag, root.attrib["version"]) == ("rss", "2.0")
    [channel] = root
    assert channel.findtext("title") == "Message from alice@a.example"
    assert channel.findtext("link") == "http://a.example/alice"
    assert channel.findtext("description") == "hello <b>you</b> & «all»"
    assert channel.findtext(f"{{{DC}}}creator") == ALICE


def test_the_least_document_of_the_specification_is_read() -> None:
    inside = "<title>t</title><link>http://a.example/alice</link><description>hi</description>"
    message = read(rss(inside + f"<dc:creator>{ALICE}</dc:creator>"))
    assert isinstance(message, ChatMessage)
    assert (message.creator, message.text, message.to, message.at) == (ALICE, "hi", "", 0.0)
    again = read(rss(inside + f"<dc:creator>{ALICE}</dc:creator>"))
    assert isinstance(again, ChatMessage)
    assert again.id == message.id


texts = st.text(max_size=300).filter(lambda text: text.strip())


@given(texts, st.integers(1, 1000), st.floats(1e9, 2e9))
def test_every_text_comes_back_as_it_was_or_is_refused(text: str, attempt: int, at: float) -> None:
    try:
        sent = checked_text(text)
    except ChatError:
        assert any(c < " " or "\ud800" <= c <= "\udfff" or c in "\ufffe\uffff" for c in text)
        return
    message = ChatMessage("id-1", ALICE, sent, at, BOB, attempt)
    got = read(write_message(message))
    assert isinstance(got, ChatMessage)
    assert (got.id, got.creator, got.text, got.to, got.attempt) == ("id-1", ALICE, sent, BOB, attempt)
    assert got.at == pytest.approx(at, abs=0.001)


@given(st.lists(st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True), min_size=1, max_size=50))
def test_receipts_come_back(received: list[str]) -> None:
    receipt = Receipt("r1", BOB, ALICE, tuple(received))
    assert read(write_receipt(receipt)) == receipt


@given(st.binary(max_size=400))
def test_rubbish_is_refused(body: bytes) -> None:
    with pytest.raises(ChatError):
        read(body)


@given(st.data())
def test_a_damaged_document_is_read_or_refused(data: st.DataObject) -> None:
    document = bytearray(write_message(ChatMessage("m1", ALICE, "hello", NOW, BOB)))
    for _ in range(data.draw(st.integers(1, 4))):
        document[data.draw(st.integers(0, len(document) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ChatError):
        read(bytes(document))


CREATOR = f"<dc:creator>{ALICE}</dc:creator>"
LAUGHS = '<!DOCTYPE rss [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]>'


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (rss(CREATOR + "<description>&b;</description>", head=LAUGHS), "document type"),
        (
            rss(CREATOR + "<description>x</description>", head='<!DOCTYPE rss SYSTEM "file:///etc/passwd">'),
            "document type",
        ),
        (rss(CREATOR + "<description>&nbsp;</description>"), "not well-formed"),
        (rss("<description>x</description>"), "user@domain"),
        (rss("<dc:creator>a b@c</dc:creator><description>x</description>"), "user part"),
        (rss(CREATOR + "<description>  </description>"), "empty"),
        (rss(CREATOR + f"<description>{'x' * (MAX_TEXT + 1)}</description>"), "at most"),
        (rss(CREATOR + "<description>x</description>", version="0.91"), "RSS 2.0"),
        (b"<feed/>", "RSS 2.0"),
        (rss(CREATOR + "<description>x</description>" + "<a>" * 20 + "</a>" * 20), "nested"),
        (rss(CREATOR + "<description>x</description><dc:identifier>a b</dc:identifier>"), "identifier"),
        (rss(CREATOR + "<description>x</description>" + " " * MAX_DOCUMENT), "bytes"),
        (b'<?xml version="1.0" encoding="nothing-like-it"?>' + rss(CREATOR), "encoding"),
    ],
)
def test_what_is_no_message_is_refused_with_a_reason(body: bytes, reason: str) -> None:
    with pytest.raises(ChatError, match=reason):
        read(body)


def test_only_the_channels_own_elements_count() -> None:
    inside = "<item><description>not this</description><dc:creator>eve@e.example</dc:creator></item>"
    message = read(rss(inside + CREATOR + "<description>this</description><description>nor this</description>"))
    assert isinstance(message, ChatMessage)
    assert (message.creator, message.text) == (ALICE, "this")


@pytest.mark.parametrize("text", ["", "alice", "@a.example", "alice@", "al ice@a", "a/b@c.example", "x" * 600 + "@a"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ChatError):
        address_of(text)


def test_an_address_has_one_spelling() -> None:
    assert address_of(" Alice@A.EXAMPLE ") == ALICE
