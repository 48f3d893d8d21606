"""Two people, each at the page of their own gateway, over HTTP: everything but the browser itself."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Protocol
from xml.etree import ElementTree

import pytest
from aiohttp import ClientError, ClientResponse, ClientSession
from hypothesis import given
from hypothesis import strategies as st

from exchange.model import Draft, Interest, LogEntry, OriginId, Profile, SessionKey
from gateway.model import RefusedError
from gateway.protocols.chat.adapter import ChatConfig
from gateway.protocols.chat.messages import CONTENT_TYPE, ChatMessage, Receipt, read, write_message, write_receipt
from gateway.protocols.chat.store import MIGRATIONS, ChatStore, Line, MessageState
from identifiers import DEFAULT_NAMING
from identifiers.lookalikes import shape
from serving.answers import is_known_host
from serving.events import LimitReached
from storage import Database, StorageError
from tests.gateway.web_world import PATIENCE, Domain, Reader, World, started_world
from tests.waiting import until

NUMBERS = count(1)
ALICE, BOB = "alice@a.example", "bob@b.example"
HOSTILE = (
    "<script>document.title='owned'</script><img src=x onerror=alert(1)> & ]]> &lt; \"' \u202e javascript:alert(1)\n"
    "second line\t<b>bold</b> \U0001f600 naïve"
)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with started_world(tmp_path) as world:
        yield world


class Place(Protocol):
    """Where a gateway's web port is."""

    def url(self, path: str) -> str: ...


@dataclass
class Person:
    """What the page does for somebody."""

    http: ClientSession
    domain: Place
    address: str
    token: str

    @classmethod
    async def named(cls, world: World, domain: Domain, user: str) -> "Person":
        answer = await world.http.post(domain.url("/chat/session"), json={"user": user})
        assert answer.status == 201, await answer.text()
        given = await answer.json()
        return cls(world.http, domain, given["address"], given["token"])

    async def ask(self, method: str, path: str, **more: Any) -> ClientResponse:
        headers = {"Authorization": f"Bearer {self.token}", **more.pop("headers", {})}
        return await self.http.request(method, self.domain.url(f"/chat/{path}"), headers=headers, **more)

    async def open(self, partner: str) -> None:
        answer = await self.ask("POST", "conversations", json={"partner": partner})
        assert answer.status == 201, await answer.text()

    async def say(self, partner: str, text: str, name: str | None = None) -> str:
        name = name or f"m{next(NUMBERS)}"
        answer = await self.ask("POST", "messages", json={"partner": partner, "text": text, "id": name})
        assert answer.status == 202, await answer.text()
        return name

    async def history(self, partner: str) -> list[dict[str, Any]]:
        answer = await self.ask("GET", "messages", params={"partner": partner})
        assert answer.status == 200, await answer.text()
        found: list[dict[str, Any]] = (await answer.json())["messages"]
        return found

    async def texts(self, partner: str) -> list[str]:
        return [one["text"] for one in sorted(await self.history(partner), key=lambda one: one["at"])]

    async def states(self, partner: str) -> dict[str, str]:
        return {one["id"]: one["state"] for one in await self.history(partner)}

    async def events(self, last: int | None = None) -> Reader:
        headers = {} if last is None else {"Last-Event-ID": str(last)}
        answer = await self.ask("GET", "events", headers=headers)
        assert answer.status == 200, await answer.text()
        return Reader(answer)


async def arrived(person: Person, partner: str, texts: list[str]) -> None:
    async def are_there() -> bool:
        found = await person.texts(partner)
        assert len(found) <= len(texts), found
        return found == texts

    await until(are_there, PATIENCE, f"{texts} of {partner}")


async def is_state(person: Person, partner: str, name: str, state: str) -> None:
    async def is_so() -> bool:
        return (await person.states(partner)).get(name) == state

    await until(is_so, PATIENCE, f"{name} to be {state}")


async def test_two_people_in_two_domains_talk_and_see_what_was_delivered(world: World) -> None:
    async with world.domain("n0", "a") as a, world.domain("n2", "b") as b:
        alice, bob = await Person.named(world, a, "Alice"), await Person.named(world, b, "bob")
        assert (alice.address, bob.address) == (ALICE, BOB)
        await alice.open(BOB)
        await bob.open(ALICE)
        events = await bob.events()
        hello = await alice.say(BOB, "hello")
        _, event = await events.next()
        assert (event["text"], event["partner"], event["mine"], event["id"]) == ("hello", ALICE, False, hello)
        await is_state(alice, BOB, hello, "delivered")
        back = await bob.say(ALICE, "hello yourself")
        await arrived(alice, BOB, ["hello", "hello yourself"])
        await is_state(bob, ALICE, back, "delivered")
        await arrived(bob, ALICE, ["hello", "hello yourself"])
        events.answer.close()


async def test_what_crosses_is_the_rss_document_of_the_specification(world: World) -> None:
    seen: list[Draft] = []

    class Witness:
        """Another gateway's application that follows alice's item, whatever is on it."""

        name = "witness"
        hears_own = False
        keeps_rules = True

        def item_of(self, what: str) -> Any:
            return DEFAULT_NAMING.of_user(what)

        async def deliver(self, key: SessionKey, entry: LogEntry, interests: object) -> None:
            seen.append(entry.draft)

    async with world.domain("n0", "a") as a, world.domain("n2", "b") as b:
        witness = Witness()
        b.gateway.control.add(witness)
        await b.gateway.control.subscribe(witness, "somebody", ALICE)
        alice = await Person.named(world, a, "alice")
        await alice.open(BOB)
        await alice.say(BOB, HOSTILE)
        await until(lambda: seen)
        assert seen[0].content_type == CONTENT_TYPE == "application/rss+xml"
        rss = ElementTree.fromstring(seen[0].body)  # noqa: S314 - a document of our own
        assert (rss.tag, rss.get("version")) == ("rss", "2.0")
        [channel] = rss.findall("channel")
        assert channel.findtext("title") == "Message from alice@a.example"
        assert channel.findtext("link") == "http://a.example/alice"
        assert channel.findtext("description") == HOSTILE
        assert channel.findtext("{http://purl.org/dc/elements/1.1/}creator") == ALICE


async def test_what_somebody_wrote_stays_text_and_nothing_else(world: World) -> None:
    async with world.domain("n0", "a") as a, world.domain("n2", "b") as b:
        alice, bob = await Person.named(world, a, "alice"), await Person.named(world, b, "bob")
        await alice.open(BOB)
        await bob.open(ALICE)
        await alice.say(BOB, HOSTILE)
        await arrived(bob, ALICE, [HOSTILE])
        answer = await bob.ask("GET", "messages", params={"partner": ALICE})
        assert answer.content_type == "application/json"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        # Hostile text in an event must not end the event or begin another.
        await alice.say(BOB, "one\n\nid: 99999999\ndata: {}\n\n")
        await arrived(bob, ALICE, [HOSTILE, "one\n\nid: 99999999\ndata: {}\n\n"])
        reader = await bob.events(0)
        await reader.next()
        name, event = await reader.next()
        assert event["text"].startswith("one\n\nid:")
        assert int(name) < 99999999
        reader.answer.close()


async def test_history_and_what_waits_survive_a_restart_of_either_gateway(world: World) -> None:
    async with world.domain("n0", "a") as a, world.domain("n2", "b") as b:
        alice, bob = await Person.named(world, a, "alice"), await Person.named(world, b, "bob")
        await alice.open(BOB)
        await bob.open(ALICE)
        await alice.say(BOB, "one")
        await arrived(bob, ALICE, ["one"])
        name = await bob.say(ALICE, "two")
        await is_state(bob, ALICE, name, "delivered")
    async with world.domain("n0", "a") as a:
        alice.domain = a
        assert await alice.texts(BOB) == ["one", "two"]
        three = await alice.say(BOB, "three")
        four = await alice.say(BOB, "four")
        await is_state(alice, BOB, four, "sent")
        async with world.domain("n2", "b") as b:
            bob.domain = b
            await arrived(bob, ALICE, ["one", "two", "three", "four"])
            for said in (three, four):
                await is_state(alice, BOB, said, "delivered")
            # And it goes on as before: both are still subscribed.
            five = await bob.say(ALICE, "five")
            await is_state(bob, ALICE, five, "delivered")
            assert await alice.texts(BOB) == ["one", "two", "three", "four", "five"]


async def test_a_page_that_was_away_hears_what_it_missed_and_nothing_twice(world: World) -> None:
    async with world.domain("n0", "a") as a, world.domain("n2", "b") as b:
        alice, bob = await Person.named(world, a, "alice"), await Person.named(world, b, "bob")
        await alice.open(BOB)
        await bob.open(ALICE)
        events = await bob.events()
        await alice.say(BOB, "one")
        last, event = await events.next()
        assert event["text"] == "one"
        events.answer.close()
        for text in ("two", "three"):
            await alice.say(BOB, text)
        await arrived(bob, ALICE, ["one", "two", "three"])
        events = await bob.events(int(last))
        assert [(await events.next())[1]["text"] for _ in range(2)] == ["two", "three"]
        await alice.say(BOB, "four")
        assert (await events.next())[1]["text"] == "four"
        events.answer.close()


async def test_who_opens_the_conversation_later_gets_what_was_said_before(world: World) -> None:
    async with world.domain("n0", "a") as a, world.domain("n2", "b") as b:
        alice = await Person.named(world, a, "alice")
        await alice.open(BOB)
        names = [await alice.say(BOB, text) for text in ("one", "two", "three")]
        # Somebody else is talked to in between: the newest version of alice's item is not for bob.
        await alice.open("carol@c.example")
        other = await alice.say("carol@c.example", "not for bob")
        await is_state(alice, "carol@c.example", other, "sent")
        bob = await Person.named(world, b, "bob")
        await bob.open(ALICE)
        await arrived(bob, ALICE, ["one", "two", "three"])
        for name in names:
            await is_state(alice, BOB, name, "delivered")


async def test_many_messages_at_once_are_all_delivered_in_order(world: World) -> None:
    config = ChatConfig("a.example", messages_per_second=1000, message_burst=1000)
    async with world.domain("n0", "a", chat=config) as a, world.domain("n2", "b") as b:
        alice, bob = await Person.named(world, a, "alice"), await Person.named(world, b, "bob")
        await alice.open(BOB)
        await bob.open(ALICE)
        texts = [f"message {number}" for number in range(120)]
        for text in texts:
            await alice.say(BOB, text)
        store = a.chat.store if a.chat is not None else None
        assert store is not None
        await until(lambda: all(line.state is MessageState.DELIVERED for line in store.history(ALICE, BOB, 10**9, 200)))
        found = b.chat.store.history(BOB, ALICE, 10**9, 200) if b.chat is not None else []
        assert [line.text for line in found] == texts


async def test_people_of_one_domain_talk_as_well(world: World) -> None:
    async with world.domain("n0", "a") as a:
        alice, ann = await Person.named(world, a, "alice"), await Person.named(world, a, "ann")
        await alice.open(ann.address)
        await ann.open(ALICE)
        name = await alice.say(ann.address, "next door")
        await arrived(ann, ALICE, ["next door"])
        await is_state(alice, ann.address, name, "delivered")


async def test_only_who_has_the_token_reads_or_writes(world: World) -> None:
    async with world.domain("n0", "a") as a:
        alice = await Person.named(world, a, "alice")
        taken = await world.http.post(a.url("/chat/session"), json={"user": "ALICE@a.example"})
        assert taken.status == 409
        for token in ("", "x", alice.token[:-1], alice.token.upper()):
            thief = Person(world.http, a, ALICE, token)
            for method, path in (
                ("GET", "session"),
                ("GET", "events"),
                ("GET", f"messages?partner={BOB}"),
                ("POST", "messages"),
                ("POST", "conversations"),
                ("DELETE", "session"),
                ("DELETE", f"conversations?partner={BOB}"),
            ):
                assert (await thief.ask(method, path)).status == 401, (method, path)
        # A cookie or an address with the token is no token: only the header counts.
        plain = await world.http.get(a.url(f"/chat/session?token={alice.token}"), cookies={"token": alice.token})
        assert plain.status == 401
        assert alice.token.encode() not in (world.data / "a" / "gateway.sqlite").read_bytes()


async def test_names_that_mislead_are_given_to_nobody(world: World) -> None:
    async with world.domain("n0", "a") as a:
        bob = await Person.named(world, a, "bob")
        taken = {"b0b": 409, "BOB": 409, "admin": 400, "R00T": 400, "no-reply": 400, "\u0430lice": 400, "\uff42ob": 400}
        for user, status in taken.items():
            answer = await world.http.post(a.url("/chat/session"), json={"user": user})
            assert answer.status == status, (user, await answer.text())
            assert "another name" in await answer.text() or "cannot be somebody's name" in await answer.text()
        answer = await bob.ask("POST", "conversations", json={"partner": "\u0430lice@b.example"})
        assert (answer.status, "Cyrillic and Latin" in await answer.text()) == (400, True)
        await Person.named(world, a, "\u043f\u0438\u0432\u043e")
        # A name that was given back is free again, in every spelling.
        async with await bob.ask("DELETE", "session") as answer:
            assert answer.status == 204
        await Person.named(world, a, "b0b")


def test_names_of_before_keep_what_they_look_like_from_the_next_start_on(tmp_path: Path) -> None:
    database = Database.open(tmp_path / "chat.sqlite", MIGRATIONS)
    store = ChatStore(database)
    insert = "INSERT INTO chat_users (user, token, seen_at) VALUES (?, ?, 0)"
    database.write(lambda tx: [tx.execute(insert, (user, user.encode())) for user in (ALICE, "x")]).result()
    database.write(ChatStore.know_shapes).result()
    claim = "alice".replace("l", "1")
    assert not database.write(lambda tx: store.claim(f"{claim}@a.example", "t", shape(claim), 0.0, 9, tx)).result()
    database.close()


async def test_who_gives_up_a_name_leaves_nothing(world: World) -> None:
    async with world.domain("n0", "a") as a:
        alice = await Person.named(world, a, "alice")
        await alice.open(BOB)
        await alice.say(BOB, "my secret")
        events = await alice.events()
        assert (await alice.ask("DELETE", "session")).status == 204
        with suppress(EOFError):
            while True:
                await events.block()
        assert (await alice.ask("GET", "session")).status == 401
        assert not await a.gateway.control.subscriptions(DEFAULT_NAMING.of_user(BOB))
        again = await Person.named(world, a, "alice")
        assert await again.history(BOB) == []


async def test_refusals_say_what_is_wrong(world: World) -> None:
    config = ChatConfig("a.example", max_partners=1, message_burst=3, messages_per_second=0.001, max_pages_per_user=1)
    async with world.domain("n0", "a", chat=config) as a:
        session = a.url("/chat/session")
        for user in ("", "a b", "x@other.example", "x" * 65, "a/b", "a<b", "\u202eevil", "a\x00b"):
            assert (await world.http.post(session, json={"user": user})).status == 400, user
        surrogate = await world.http.post(
            session, data=b'{"user": "\\ud800"}', headers={"Content-Type": "application/json"}
        )
        assert surrogate.status == 400
        for body, kind, status in (
            (b"{", "application/json", 400),
            (b'{"user": "\\ud800"}', "application/json", 400),
            (b"[]", "application/json", 400),
            (b'{"user": 7}', "application/json", 400),
            (b'{"user": "x"}', "text/plain", 415),
            (b'{"user": "' + b"x" * 70_000 + b'"}', "application/json", 413),
        ):
            assert (await world.http.post(session, data=body, headers={"Content-Type": kind})).status == status
        alice = await Person.named(world, a, "alice")
        for partner in ("", "bob", "@b.example", ALICE, "bob@", "a/b@c.example"):
            assert (await alice.ask("POST", "conversations", json={"partner": partner})).status == 400, partner
        await alice.open(BOB)
        more = await alice.ask("POST", "conversations", json={"partner": "carol@c.example"})
        assert (more.status, "limit" in await more.text()) == (400, True)
        said = {"partner": BOB, "text": "x", "id": "1"}
        for wrong in (
            {"text": ""},
            {"text": "x" * 4001},
            {"text": "\x00"},
            {"id": "a b"},
            {"partner": "carol@c.example"},
        ):
            assert (await alice.ask("POST", "messages", json={**said, **wrong})).status in (400, 429), wrong
        hurried = [(await alice.ask("POST", "messages", json=said)).status for _ in range(4)]
        assert hurried[-1] == 429
        page = await alice.events()
        assert (await alice.ask("GET", "events")).status == 503
        page.answer.close()
        for last in ("x", "-1", "9" * 16):
            assert (await alice.ask("GET", "events", headers={"Last-Event-ID": last})).status == 400
        assert (await alice.ask("GET", "messages", params={"partner": BOB, "before": "x"})).status == 400
        assert (await alice.ask("GET", "messages")).status == 400
        strange = await alice.ask("GET", "messages?partner=%ED%A0%80%FF")
        assert strange.status in (200, 400)
        assert not any(type(event).__name__ == "RequestBroke" for event in world.events)


async def test_one_client_cannot_open_all_the_pages(world: World) -> None:
    config = ChatConfig("a.example", max_pages_per_client=2)
    async with world.domain("n0", "a", chat=config) as a:
        people = [await Person.named(world, a, user) for user in ("one", "two", "three")]
        pages = [await person.events() for person in people[:2]]
        assert (await people[2].ask("GET", "events")).status == 429
        pages[0].answer.close()
        answers = []

        async def is_let_in() -> bool:
            answers.append(await people[2].ask("GET", "events"))
            return answers[-1].status != 429

        await until(is_let_in)
        assert answers[-1].status == 200
        answers[-1].close()
        pages[1].answer.close()


async def test_other_sites_and_unknown_host_names_are_refused(world: World) -> None:
    async with world.domain("n0", "a") as a:
        evil = {"Origin": "http://evil.example"}
        assert (await world.http.post(a.url("/chat/session"), json={"user": "x"}, headers=evil)).status == 403
        assert (await world.http.get(a.url("/chat/about"), headers={"Origin": "null"})).status == 403
        rebound = {"Host": "evil.example", "Origin": "http://evil.example"}
        assert (await world.http.post(a.url("/chat/session"), json={"user": "x"}, headers=rebound)).status == 421
        assert (await world.http.get(a.url("/chat/"), headers={"Host": "evil.example:80"})).status == 421


async def test_the_page_may_run_nothing_but_its_own_script(world: World) -> None:
    async with world.domain("n0", "a") as a:
        page = await world.http.get(a.url("/"))
        assert page.url.path == "/chat/"
        policy = page.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        text = await page.text()
        assert "<script>" not in text
        assert "onclick" not in text
        for path in ("/chat/../server.py", "/chat/%2e%2e/server.py", "/chat/chat.py", "/static/chat.js"):
            assert (await world.http.get(a.url(path))).status == 404
        script = await (await world.http.get(a.url("/chat/chat.js"))).text()
        for dangerous in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert dangerous not in script


async def test_plain_readers_are_not_shown_what_people_say(world: World) -> None:
    async with world.domain("n0", "a") as a, world.domain("n2", "b") as b:
        alice = await Person.named(world, a, "alice")
        await alice.open(BOB)
        topic = {"name": "http://a.example/alice"}
        early = Reader(await world.http.get(b.url("/topics"), params=topic))
        await early.block()
        name = await alice.say(BOB, "between us")
        await is_state(alice, BOB, name, "sent")
        late = Reader(await world.http.get(a.url("/topics"), params=topic))
        # The same item, but a document of a topic: that is shown, and is the first thing that is.
        plain = {"Content-Type": "text/plain"}
        answer = await world.http.post(a.url("/topics"), params=topic, data="public", headers=plain)
        assert answer.status == 201
        for reader in (early, late):
            assert (await reader.next())[1]["text"] == "public"
            reader.answer.close()
        # And nobody can put words into alice's mouth that way.
        bob = await Person.named(world, b, "bob")
        await bob.open(ALICE)
        await arrived(bob, ALICE, ["between us"])


async def test_nobody_speaks_for_somebody_else(world: World) -> None:
    async with world.domain("n0", "a") as a, world.domain("n2", "b") as b:
        bob = await Person.named(world, b, "bob")
        await bob.open(ALICE)
        await bob.open("mallory@m.example")
        chat = b.chat
        assert chat is not None
        item = chat.item_of("mallory@m.example")
        key, wanted = SessionKey("chat", BOB), [Interest("mallory@m.example", item)]

        def draft(body: bytes) -> Draft:
            return Draft(item, "mallory@m.example", Profile.MESSAGE, CONTENT_TYPE, body)

        def entry(body: bytes) -> LogEntry:
            return LogEntry(1, OriginId(bytes(16), 1), "psirp", draft(body), 0)

        document = write_message(ChatMessage("m1", ALICE, "I am alice", 1.0, BOB))
        with pytest.raises(RefusedError, match="wrote on the item of"):
            await chat.deliver(key, entry(document), wanted)
        for body in (b"", b"<rss/>", b"<!DOCTYPE a []><rss version='2.0'><channel/></rss>", b"\xff" * 100):
            with pytest.raises(RefusedError):
                await chat.deliver(key, entry(body), wanted)
        assert await bob.history(ALICE) == []
        # Through the network it is refused for good and holds up nothing that follows.
        mallory = a.chat
        assert mallory is not None
        await a.gateway.control.publish(mallory, draft(document))
        good = write_message(ChatMessage("m2", "mallory@m.example", "only myself", 1.0, BOB))
        await a.gateway.control.publish(mallory, draft(good))
        await arrived(bob, "mallory@m.example", ["only myself"])
        assert await bob.history(ALICE) == []


async def test_a_page_that_takes_nothing_is_let_go(world: World) -> None:
    rate = 10_000
    config = ChatConfig(
        "a.example", write_timeout=0.3, messages_per_second=rate, message_burst=rate, max_waiting=rate, keep=rate
    )
    async with world.domain("n0", "a", chat=config) as a:
        alice = await Person.named(world, a, "alice")
        await alice.open(BOB)
        with socket.socket() as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(lazy, ("127.0.0.1", int(a.web.url.rstrip("/").rpartition(":")[2])))
            request = f"GET /chat/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {alice.token}\r\n\r\n"
            await loop.sock_sendall(lazy, request.encode())
            async with asyncio.timeout(60):
                while not any(event == LimitReached("slow_reader") for event in world.events):
                    await alice.say(BOB, "x" * 4000)
        assert len(await alice.history(BOB)) > 0


async def test_a_store_that_fails_under_a_page_ends_its_connection_cleanly(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.domain("n0", "a") as a:
        alice = await Person.named(world, a, "alice")
        await alice.open(BOB)
        page = await alice.events()
        await page.block()

        def full(*_: object) -> list[Line]:
            raise StorageError("the disk is gone")

        with monkeypatch.context() as broken:
            broken.setattr(ChatStore, "changes", full)
            await alice.say(BOB, "one")
            with pytest.raises((ClientError, EOFError)):
                while True:
                    # Nothing that looks like an answer of its own in the middle of the stream.
                    assert not any(line.startswith(b"HTTP/") for line in await page.block())
        page.answer.close()
        page = await alice.events(0)
        assert (await page.next())[1]["text"] == "one"
        page.answer.close()


# Parts by themselves.


@pytest.fixture
def store(tmp_path: Path) -> AsyncIterator[ChatStore]:
    with Database.open(tmp_path / "chat", MIGRATIONS) as database:
        yield ChatStore(database)


def line(name: str, state: MessageState, *, mine: bool) -> Line:
    return Line(0, ALICE, BOB, mine, name, f"text of {name}", 1.0, state, 1, 0)


def test_receipts_settle_what_they_name_and_ask_for_what_was_missed(store: ChatStore) -> None:
    write = store.database.write
    for name in ("1", "2", "3", "4"):
        said = write(
            lambda tx, name=name: ChatStore.say(line(name, MessageState.WAITING, mine=True), 10, 10, tx)
        ).result()
        assert said is not None
        write(
            lambda tx, place=said.place: ChatStore.settle(place, MessageState.WAITING, MessageState.SENT, tx)
        ).result()

    def states() -> list[MessageState]:
        return [one.state for one in store.history(ALICE, BOB, 10**9, 10)]

    assert write(lambda tx: ChatStore.delivered(ALICE, BOB, ["1", "3"], False, 3, tx)).result()
    assert states() == [MessageState.DELIVERED, MessageState.WAITING, MessageState.DELIVERED, MessageState.SENT]
    assert [one.attempt for one in store.to_send(ALICE, 10)] == [2]
    assert write(lambda tx: ChatStore.delivered(ALICE, BOB, ["nobody's"], True, 3, tx)).result()
    assert states() == [MessageState.DELIVERED, MessageState.WAITING, MessageState.DELIVERED, MessageState.WAITING]
    # A bound on attempts: a partner who never gets it cannot make it go round for ever.
    for _ in range(5):
        for one in store.to_send(ALICE, 10):
            write(
                lambda tx, place=one.place: ChatStore.settle(place, MessageState.WAITING, MessageState.SENT, tx)
            ).result()
        write(lambda tx: ChatStore.delivered(ALICE, BOB, [], True, 3, tx)).result()
    assert states() == [MessageState.DELIVERED, MessageState.SENT, MessageState.DELIVERED, MessageState.SENT]


def test_old_messages_go_when_there_are_too_many(store: ChatStore) -> None:
    for number in range(8):
        one = line(str(number), MessageState.OWED, mine=False)
        store.database.write(lambda tx, one=one: ChatStore.arrive(one, 5, tx)).result()
    assert [one.id for one in store.history(ALICE, BOB, 10**9, 10)] == ["3", "4", "5", "6", "7"]
    again = line("7", MessageState.OWED, mine=False)
    assert store.database.write(lambda tx: ChatStore.arrive(again, 5, tx)).result() is False


@given(st.lists(st.text("abcdef0123456789", min_size=1, max_size=8), max_size=50, unique=True), st.booleans())
def test_receipts_survive_writing(received: list[str], begins: bool) -> None:
    receipt = Receipt("r1", BOB, ALICE, tuple(received), begins)
    if received or begins:
        assert read(write_receipt(receipt)) == receipt


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("127.0.0.1:80", True),
        ("[::1]:80", True),
        ("localhost", True),
        ("Chat.Example.", True),
        ("a.localhost:1", True),
        ("evil.example", False),
        ("chat.example.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("chat.example@evil.example", False),
        ("", False),
        ("[", False),
    ],
)
def test_host_names_that_are_known(host: str, known: bool) -> None:
    assert is_known_host(host, frozenset({"chat.example"})) is known
    assert is_known_host("anything.example", frozenset({"*"}))
