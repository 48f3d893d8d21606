"""Between profiles: feeds of messages, messages of feeds, JSON, and reasons why not."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from xml.etree import ElementTree

import feedparser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exchange.model import Draft, OriginId, Profile
from exchange.sqlite import EXCHANGE_TABLES, SqliteLog
from gateway.converters import Converters, FeedAddresses, FeedForm
from gateway.converters.entries import new_entries
from gateway.converters.feeds import FeedHead, FeedItem, atom_feed, json_feed
from gateway.converters.readable import Readable, readable_of
from gateway.protocols.chat.messages import CONTENT_TYPE, ChatMessage, readable, write_message
from identifiers import DEFAULT_NAMING
from storage import Database

NAME = "http://rooms.example/kitchen"
ITEM = DEFAULT_NAMING.of_user("kitchen@rooms.example")
HUB = "http://hub.example/"
WEB = "http://web.example/"
ATOM = "{http://www.w3.org/2005/Atom}"
TEXTS = st.text(max_size=60)


def atom(*titles: str) -> bytes:
    entries = "".join(
        f"<entry><id>urn:{title}</id><title>{title}</title><link href='http://b.example/{title}'/>"
        f"<summary>about {title}</summary><author><name>Ana</name></author></entry>"
        for title in titles
    )
    return f'<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:feed</id>{entries}</feed>'.encode()


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[SqliteLog]:
    with Database.open(tmp_path / "log.sqlite", EXCHANGE_TABLES) as database:
        yield SqliteLog(database)


async def say(log: SqliteLog, body: bytes, profile: Profile = Profile.MESSAGE, kind: str = "text/plain") -> int:
    appended = await log.append(Draft(ITEM, NAME, profile, kind, body), "notes", 1_795_000_000_000)
    return appended.position


def converters(log: SqliteLog) -> Converters:
    return Converters(log, {CONTENT_TYPE: readable}, {}, FeedAddresses(lambda: WEB), lambda: HUB)


async def test_messages_of_a_name_are_a_feed_with_hub_and_self(log: SqliteLog) -> None:
    for text in (b"one", b"two & <three>\nsecond line", b"\x00\x01"):
        await say(log, text)
    await say(log, b"\xff\xfe", kind="image/png")
    made = await converters(log).feed(ITEM, NAME, FeedAddresses(lambda: WEB).of(NAME))
    feed = feedparser.parse(made.body)
    assert not feed.bozo
    assert [entry.title for entry in feed.entries][1:] == ["\ufffd\ufffd", "two & <three>", "one"]
    assert feed.entries[0].content[0].type == "image/png"
    assert {link.rel: link.href for link in feed.feed.links} == {
        "hub": HUB,
        "self": f"{WEB}feeds?name=http://rooms.example/kitchen",
    }
    assert len({entry.id for entry in feed.entries}) == 4
    again = await converters(log).feed(ITEM, NAME, FeedAddresses(lambda: WEB).of(NAME))
    assert again.body == made.body, "a feed changes with what is published, and with nothing else"


async def test_what_is_said_to_somebody_is_in_no_feed(log: SqliteLog) -> None:
    for message in (
        ChatMessage("1", "ana@a.example", "to all", 5.0),
        ChatMessage("2", "ana@a.example", "to bob", 6.0, "bob@b.example"),
    ):
        await say(log, write_message(message), kind=CONTENT_TYPE)
    await say(log, b"<rss>nonsense</rss>", kind=CONTENT_TYPE)
    made = await converters(log).feed(ITEM, NAME, None, FeedForm.JSON)
    (item,) = json.loads(made.body)["items"]
    assert (item["content_text"], item["authors"]) == ("to all", [{"name": "ana@a.example"}])


async def test_new_entries_of_a_document_are_messages(log: SqliteLog) -> None:
    found = converters(log)
    for body in (atom("one"), atom("three", "two", "one"), atom("three", "two", "one") + b"\n"):
        await log.append(Draft(ITEM, NAME, Profile.DOCUMENT, "application/atom+xml", body), "notes", 1)
    got = []
    for position in (1, 2, 3):
        entry = await log.get(position)
        assert entry is not None
        got.append([draft.attribute("title") for draft in await found.convert(entry, "entries")])
    assert got == [["one"], ["two", "three"], []]
    first = await log.get(1)
    assert first is not None
    (message,) = await found.convert(first, "entries")
    assert (message.profile, message.body) == (Profile.MESSAGE, b"about one")
    assert (message.attribute("author"), message.attribute("self")) == ("Ana", "http://b.example/one")
    await log.append(Draft(ITEM, NAME, Profile.DOCUMENT, "text/html", b"<p>no feed</p>"), "notes", 1)
    last = await log.get(4)
    assert last is not None
    (told,) = await found.convert(last, "entries")
    assert told.attribute("title") == f"{NAME} has changed"


async def test_what_cannot_be_converted_is_refused_with_the_reason(log: SqliteLog) -> None:
    found = converters(log)
    assert await found.refusal("entries", NAME, ITEM) is None, "nothing is known of it yet"
    said = await found.refusal("poems", NAME, ITEM)
    assert said is not None
    assert "expected entries, feed, json" in said
    await say(log, b"hello")
    said = await found.refusal("entries", NAME, ITEM)
    assert said is not None
    assert "has messages" in said
    assert await found.refusal("feed", NAME, ITEM) is None
    await say(log, b"no feed", Profile.DOCUMENT, "text/html")
    for how, reason in (("entries", "no plain Atom or RSS feed"), ("feed", "made of events and messages")):
        said = await found.refusal(how, NAME, ITEM)
        assert said is not None
        assert reason in said
    assert await found.refusal("json", NAME, ITEM) is None


async def test_json_holds_everything(log: SqliteLog) -> None:
    for body, kind in ((b"21 degrees", "text/plain"), (b"\xff", "image/png")):
        await say(log, body, Profile.EVENT, kind)
    found = converters(log)
    told = []
    for position in (1, 2):
        entry = await log.get(position)
        assert entry is not None
        (draft,) = await found.convert(entry, "json")
        told.append(json.loads(draft.body))
        assert told[-1]["origin"] == str(entry.origin)
    assert (told[0]["text"], told[0]["profile"], told[1]["base64"]) == ("21 degrees", "event", "/w==")


def test_addresses_are_read_back() -> None:
    addresses = FeedAddresses(lambda: WEB)
    for name in (NAME, "ana@a.example", "item:::01/::02", "http://a.example/?q=1&r=ü"):
        address = addresses.of(name)
        assert address is not None
        assert addresses.name_in(address) == name
    for other in (
        f"{WEB}feeds",
        f"{WEB}feeds?name=a&name=b",
        f"{WEB}topics?name=a",
        "http://else.example/feeds?name=a",
    ):
        assert addresses.name_in(other) is None
    assert FeedAddresses().of(NAME) is None


@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS, TEXTS), max_size=4), TEXTS)
def test_a_feed_is_well_formed_whatever_is_said(said: list[tuple[str, str, str, str]], name: str) -> None:
    items = [
        FeedItem(OriginId(b"g" * 16, number), 1000 * number, Readable(*texts), "text/plain")
        for number, texts in enumerate(said)
    ]
    head = FeedHead("item", name, f"{WEB}feeds?name=x&y", HUB)
    root = ElementTree.fromstring(atom_feed(head, items))  # noqa: S314 - our own
    assert len(root.findall(f"{ATOM}entry")) == len(said)
    assert [link.get("href") for link in root.findall(f"{ATOM}link")] == [f"{WEB}feeds?name=x&y", HUB]
    told = json.loads(json_feed(head, items))
    assert [item["content_text"] for item in told["items"]] == [texts[1] for texts in reversed(said)]


@given(
    st.binary(max_size=200), st.sampled_from(["text/plain", "application/json", "image/png", "text/plain;charset=x"])
)
def test_anything_can_be_shown(body: bytes, kind: str) -> None:
    said = readable_of(Draft(ITEM, NAME, Profile.EVENT, kind, body, (("unit", "°C"),)), {})
    assert said is not None
    assert said.title
    assert "unit: °C" in said.text


@given(st.binary(max_size=300))
def test_no_document_breaks_what_takes_it_apart(body: bytes) -> None:
    new_entries(body, "application/atom+xml", b"", "")
    new_entries(atom("one"), "application/atom+xml", body, "")
