"""Messages of one domain read in another: by SSE, as a feed at an address that stays, by any WebSub reader."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import feedparser
import pytest
from aiohttp import web

from exchange.model import Draft, Profile
from gateway.access import AccessRules, Act, Effect, Rule
from gateway.model import RefusedError
from gateway.protocols.chat.messages import CONTENT_TYPE, ChatMessage, write_message
from tests.gateway.crossing.test_crossing import Publisher, Subscriber, feed
from tests.gateway.web_world import Domain, Reader, World, started_world
from tests.waiting import until

ROOM = "http://rooms.example/kitchen"


class DeniedSubscriber(Subscriber):
    """Keeps the reasons it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.denied: list[str] = []

    async def _verify(self, request: web.Request) -> web.Response:
        self.denied.append(request.query["hub.reason"])
        return web.Response()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with started_world(tmp_path) as world:
        yield world


async def say(world: World, domain: Domain, text: str, status: int = 201, **query: str) -> str:
    query = {"name": ROOM, "profile": "message", **query}
    headers = {"Content-Type": query.pop("type", "text/plain")}
    async with world.http.post(domain.url("/topics"), params=query, data=text, headers=headers) as answer:
        assert answer.status == status, await answer.text()
        return await answer.text()


async def titles(world: World, domain: Domain, **query: str) -> list[str]:
    async with world.http.get(domain.url("/feeds"), params={"name": ROOM, **query}) as answer:
        return [entry.title for entry in feedparser.parse(await answer.read()).entries]


async def test_a_stock_feed_reader_follows_a_room_of_another_domain(world: World) -> None:
    async with world.domain("n0", "a") as a, world.domain("n2", "b") as b, Subscriber() as reader:
        await say(world, b, "first")
        # As a feed reader does: look at the feed, find hub and self, subscribe.
        async with world.http.get(a.url("/feeds"), params={"name": ROOM}) as answer:
            assert answer.status == 200
            assert answer.content_type == "application/atom+xml"
            parsed, tag = feedparser.parse(await answer.read()), answer.headers["ETag"]
            links = {str(link["rel"]): str(link["url"]) for link in answer.links.values()}
        assert [entry.title for entry in parsed.entries] == ["first"]
        told = {link.rel: link.href for link in parsed.feed.links}
        assert told == links == {"hub": a.gateway.hub.url, "self": told["self"]}
        async with world.http.get(a.url("/feeds"), params={"name": ROOM}, headers={"If-None-Match": tag}) as answer:
            assert answer.status == 304
        form = {"hub.mode": "subscribe", "hub.topic": told["self"], "hub.callback": reader.callback}
        async with world.http.post(told["hub"], data=form) as answer:
            assert answer.status == 202, await answer.text()
        await until(lambda: a.gateway.hub.subscriptions.count(told["self"]))
        await say(world, b, "second", title="Number two")
        await say(world, b, "third")

        def last() -> list[str]:
            newest = reader.received[-1][1] if reader.received else b""
            return [entry.title for entry in feedparser.parse(newest).entries]

        await until(lambda: last() == ["third", "Number two", "first"])
        assert await titles(world, a) == await titles(world, b) == ["third", "Number two", "first"]
        # The same room by its own name, with the messages as a document of the topic.
        async with Subscriber() as other:
            form = {"hub.mode": "subscribe", "hub.topic": ROOM, "hub.callback": other.callback}
            async with world.http.post(told["hub"], data=form) as answer:
                assert answer.status == 202, await answer.text()
            await until(lambda: other.received)
            assert len(feedparser.parse(other.received[-1][1]).entries) == 3


async def test_programs_read_json_and_entries_one_by_one(world: World) -> None:
    async with world.domain("n0", "a") as a, world.domain("n2", "b") as b, Publisher() as blog:
        async with world.http.get(a.url("/topics"), params={"name": blog.topic, "as": "entries"}) as answer:
            following = Reader(answer)
            await following.block()
            for entries in (("one",), ("one", "two", "three")):
                blog.body = feed(*entries)
                form = {"hub.mode": "publish", "hub.url": blog.topic}
                async with world.http.post(b.gateway.hub.url, data=form) as pinged:
                    assert pinged.status == 204
                got = [(await following.block()) for _ in entries[-2:]]
                texts = [json.loads(dict(line.split(b": ", 1) for line in block)[b"data"])["title"] for block in got]
                assert set(texts) == set(entries[-2:])
                # Only the last one is a place to come back to.
                assert [any(line.startswith(b"id:") for line in block) for block in got][-1]
        async with world.http.get(a.url("/feeds"), params={"name": blog.topic}) as answer:
            assert await answer.read() == blog.body, "a document is as it is"
        await say(world, a, "hello")
        async with world.http.get(a.url("/feeds"), params={"name": ROOM, "format": "json"}) as answer:
            assert answer.content_type == "application/feed+json"
            (item,) = (await answer.json(content_type=None))["items"]
            assert item["content_text"] == "hello"


async def test_what_cannot_be_converted_is_refused_at_subscription(world: World) -> None:
    async with world.domain("n0", "a") as a:
        await say(world, a, "hello")
        for query, said in (
            ({"as": "entries"}, "has messages, and entries is made of documents"),
            ({"as": "poems"}, "expected entries, feed, json"),
        ):
            async with world.http.get(a.url("/topics"), params={"name": ROOM, **query}) as answer:
                assert answer.status == 400
                assert said in await answer.text()
        for query, said in (({"format": "pdf"}, "format is one of atom, json"), ({"name": "no name"}, "is no name")):
            async with world.http.get(a.url("/feeds"), params={"name": ROOM, **query}) as answer:
                assert answer.status == 400
                assert said in await answer.text()
        assert "profile is one of" in await say(world, a, "hello", 400, profile="song")


async def test_rules_about_a_name_hold_for_its_feed(world: World) -> None:
    rules = AccessRules((Rule(Effect.DENY, frozenset({Act.SUBSCRIBE}), topics=("rooms.example/kitchen",)),))
    async with world.domain("n0", "a", access=rules) as a, DeniedSubscriber() as reader:
        async with world.http.get(a.url("/feeds"), params={"name": ROOM}) as answer:
            assert answer.status == 403
        address = a.gateway.control.converters.addresses.of(ROOM)
        assert address is not None
        form = {"hub.mode": "subscribe", "hub.topic": address, "hub.callback": reader.callback}
        async with world.http.post(a.gateway.hub.url, data=form) as answer:
            assert answer.status == 202
        await until(lambda: reader.denied)
        assert "does not let you subscribe" in reader.denied[0]
        assert not a.gateway.hub.subscriptions.count(address)


async def test_what_somebody_says_to_everybody_is_a_feed_and_what_is_said_to_one_is_not(world: World) -> None:
    async with world.domain("n0", "a") as a, world.domain("n2", "b") as b:
        ana, bob = "ana@a.example", "bob@b.example"
        await a.chat.claim("ana")
        await b.chat.claim("bob")
        await a.chat.open(ana, bob)
        await b.chat.open(bob, ana)
        await a.chat.say(ana, bob, "between us", "m1")
        await a.chat.say(ana, ana, "hear, everybody", "m2")
        await until(lambda: len(b.chat.store.history(bob, ana, 1 << 50, 10)) == 2)
        async with world.http.get(b.url("/feeds"), params={"name": ana}) as answer:
            (entry,) = feedparser.parse(await answer.read()).entries
        assert (entry.title, entry.author) == ("hear, everybody", ana)
        # And nobody else can put words into her mouth, in whatever form.
        forged = write_message(ChatMessage("m3", ana, "I am ana", 1.0)).decode()
        assert "another protocol" in await say(world, b, forged, 400, name="http://a.example/ana", type=CONTENT_TYPE)
        draft = Draft(b.chat.item_of(ana), ana, Profile.MESSAGE, f"{CONTENT_TYPE}; charset=utf-8", forged.encode())
        with pytest.raises(RefusedError, match="another protocol"):
            await b.gateway.control.publish(b.streams, draft)
        # Nor in a form that is nobody's: what stands on her item and does not say that it is chat's, is not for chats.
        await say(world, a, forged, name="http://a.example/ana")
        await a.chat.say(ana, bob, "between us again", "m4")
        await until(lambda: "m4" in {line.id for line in b.chat.store.history(bob, ana, 1 << 50, 10)})
        assert {line.id for line in b.chat.store.history(bob, ana, 1 << 50, 10)} == {"m1", "m2", "m4"}
