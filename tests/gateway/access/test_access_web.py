"""Rules and rates at the doors of chat and REST: real gateways, asked over HTTP."""

import ipaddress
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import ClientResponse

from gateway.access import AccessRules, Act, Effect, Rule
from gateway.access.rules import EntrySide, topic_pattern, zone_pattern
from gateway.protocols.chat.adapter import ChatConfig
from gateway.protocols.chat.store import MessageState
from gateway.protocols.rest.adapter import RestConfig
from serving.limits import Rate
from tests.gateway.web_world import Domain, Reader, World, started_world
from tests.waiting import until

DENY, ALLOW = Effect.DENY, Effect.ALLOW
PUBLISH, SUBSCRIBE = frozenset({Act.PUBLISH}), frozenset({Act.SUBSCRIBE})
HERE = (ipaddress.ip_network("127.0.0.0/8"),)
OPEN = RestConfig(anyone_may_publish=True)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with started_world(tmp_path) as started:
        yield started


async def keep_to_rules(at: Domain) -> int:
    return sum([await protocol.keep_to_rules() for protocol in at.gateway.core.protocols.values()])


async def post(world: World, at: Domain, topic: str, body: str = "news", **more: object) -> tuple[int, str]:
    async with world.http.post(at.url("/topics"), params={"name": topic}, data=body, **more) as answer:  # type: ignore[arg-type]
        return answer.status, await answer.text()


async def follow(world: World, at: Domain, topic: str) -> ClientResponse:
    return await world.http.get(at.url("/topics"), params={"name": topic})


async def refusal(world: World, at: Domain, path: str, **query: str) -> tuple[int, str]:
    async with world.http.get(at.url(path), params=query) as answer:
        return answer.status, "" if answer.status == 200 else await answer.text()


class Person:
    """Somebody's open page."""

    def __init__(self, world: World, at: Domain, address: str, token: str) -> None:
        self.world = world
        self.at = at
        self.address = address
        self._headers = {"Authorization": f"Bearer {token}"}
        self._count = 0

    @classmethod
    async def named(cls, world: World, at: Domain, user: str) -> "Person":
        async with world.http.post(at.url("/chat/session"), json={"user": user}) as answer:
            assert answer.status == 201
            got = await answer.json()
            return cls(world, at, got["address"], got["token"])

    async def talk_to(self, partner: str) -> tuple[int, str]:
        async with self.world.http.post(
            self.at.url("/chat/conversations"), json={"partner": partner}, headers=self._headers
        ) as answer:
            return answer.status, await answer.text()

    async def partners(self) -> list[str]:
        async with self.world.http.get(self.at.url("/chat/session"), headers=self._headers) as answer:
            found: list[str] = (await answer.json())["partners"]
            return found

    async def say(self, partner: str, text: str) -> tuple[int, str]:
        self._count += 1
        said = {"partner": partner, "text": text, "id": f"m{self._count}"}
        async with self.world.http.post(self.at.url("/chat/messages"), json=said, headers=self._headers) as answer:
            return answer.status, await answer.text()

    def heard(self, partner: str) -> list[str]:
        assert self.at.chat is not None
        lines = self.at.chat.store.history(self.address, partner, 10**9, 50)
        return [line.text for line in lines if not line.mine]


def states(person: Person, partner: str) -> list[int]:
    assert person.at.chat is not None
    lines = person.at.chat.store.history(person.address, partner, 10**9, 50)
    return [line.state for line in lines if line.mine]


# REST and event streams.


async def test_who_may_publish_by_topic_by_zone_by_address_and_by_token(world: World) -> None:
    rules = AccessRules(
        (
            Rule(DENY, PUBLISH, topics=(topic_pattern("news.example.com/private/"),), reason="not this topic"),
            Rule(DENY, PUBLISH, zones=(zone_pattern("closed.example"),), reason="not this zone"),
            Rule(
                DENY, PUBLISH, zones=("far.example",), clients=(ipaddress.ip_network("127.0.0.0/8"),), reason="not you"
            ),
            Rule(ALLOW, PUBLISH, zones=("near.example",), clients=HERE),
            Rule(DENY, PUBLISH, zones=("near.example",), reason="only from near"),
            Rule(ALLOW, PUBLISH, zones=("token.example",), token=True),
            Rule(DENY, PUBLISH, zones=("token.example",), reason="only with a token"),
        )
    )
    async with world.domain("n0", "a", streams=OPEN, access=rules) as a:
        for topic, status, reason in (
            ("http://news.example.com/private/one", 403, "not this topic"),
            ("https://NEWS.example.com/x/../private/one", 403, "not this topic"),
            ("https://news.example.com/public", 201, ""),
            ("https://a.closed.example/", 403, "not this zone"),
            ("https://notclosed.example/", 201, ""),
            ("https://far.example/", 403, "not you"),
            ("https://near.example/", 201, ""),
            ("https://token.example/", 403, "only with a token"),
        ):
            answered, text = await post(world, a, topic)
            assert (answered, reason in text) == (status, True), topic
        assert a.gateway.access.refused == 5
    with_tokens = RestConfig(tokens=("a-token",))
    async with world.domain("n0", "a", streams=with_tokens, access=rules) as a:
        header = {"Authorization": "Bearer a-token"}
        assert (await post(world, a, "https://token.example/", headers=header))[0] == 201
        assert (await post(world, a, "https://closed.example/", headers=header))[0] == 403


async def test_who_may_read_a_stream_and_what_becomes_of_one_that_is_open(world: World) -> None:
    rules = AccessRules((Rule(DENY, SUBSCRIBE, zones=("closed.example",), reason="not for you"),))
    topic = "https://open.example/feed"
    async with (
        world.domain("n0", "a", access=rules) as a,
        world.domain("n2", "b", streams=OPEN) as b,
    ):
        assert await refusal(world, a, "/topics", name="https://x.closed.example/") == (403, "not for you\n")
        item = a.streams.item_of("https://closed.example/feed")
        status, text = await refusal(world, a, f"/items/{item.sid}/{item.rid}")
        assert (status, text) == (403, "not for you\n"), "ids are no way around rules that are about names"
        assert await keep_to_rules(a) == 0
        reading = await follow(world, a, topic)
        assert reading.status == 200
        reader = Reader(reading)
        assert (await post(world, b, topic, "first"))[0] == 201
        assert (await reader.next())[1]["text"] == "first"
        # Rules that come later count for who is there already.
        a.gateway.access.rules = AccessRules(
            (Rule(DENY, SUBSCRIBE, topics=(topic_pattern(topic),), reason="no longer"),)
        )
        assert await keep_to_rules(a) == 1
        with pytest.raises(EOFError):
            await reader.next()
        await until(lambda: a.streams.open_streams == 0)
        assert await refusal(world, a, "/topics", name=topic) == (403, "no longer\n")
        assert (await post(world, b, topic, "second"))[0] == 201
        a.gateway.access.rules = AccessRules()
        reader = Reader(await follow(world, a, topic))
        assert (await reader.next())[1]["text"] == "second"
        reader.answer.close()


async def test_what_the_network_may_not_bring_reaches_no_reader(world: World) -> None:
    rules = AccessRules(
        (Rule(DENY, PUBLISH, zones=("closed.example",), origin=EntrySide.NETWORK, reason="not from there"),)
    )
    async with world.domain("n0", "a", access=rules) as a, world.domain("n2", "b", streams=OPEN) as b:
        closed, other = "https://closed.example/feed", "https://open.example/feed"
        readers = [Reader(await follow(world, a, topic)) for topic in (closed, other)]
        assert (await post(world, b, closed, "unwanted"))[0] == 201
        await until(lambda: a.gateway.access.refused == 1)
        assert (await post(world, b, other, "wanted"))[0] == 201
        assert (await readers[1].next())[1]["text"] == "wanted"
        a.gateway.access.rules = AccessRules()
        assert (await post(world, b, closed, "wanted now"))[0] == 201
        assert (await readers[0].next())[1]["text"] == "wanted now", "and nothing of before"
        for reader in readers:
            reader.answer.close()


async def test_rates_of_clients_and_topics(world: World) -> None:
    slow = Rate(0.001, 3)
    async with world.domain("n0", "a", streams=OPEN, per_topic=slow) as a:
        topic = "https://open.example/feed"
        assert [(await post(world, a, topic))[0] for _ in range(4)] == [201, 201, 201, 429]
        assert (await post(world, a, "HTTPS://OPEN.example:443/feed"))[0] == 429, "another spelling is no other topic"
        async with world.http.post(a.url("/topics"), params={"name": topic}, data=b"x") as answer:
            assert int(answer.headers["Retry-After"]) >= 1
        assert (await post(world, a, "https://open.example/other"))[0] == 201
    async with world.domain("n0", "a", streams=RestConfig(max_streams_per_client=1), per_client=slow) as a:
        reading = await follow(world, a, "https://open.example/feed")
        assert reading.status == 200
        assert (await refusal(world, a, "/topics", name="https://open.example/b"))[0] == 429, "one stream for each"
        assert (await refusal(world, a, "/chat/about"))[0] == 200
        status, text = await refusal(world, a, "/chat/about")
        assert (status, "too many requests" in text) == (429, True), "three requests at once, for both adapters"
        reading.close()


# Chat.


async def test_chat_works_under_rules_that_allow_it(world: World) -> None:
    """Receipts too, whose names are below those of people."""
    rules = AccessRules(
        (Rule(ALLOW, zones=("a.example",)), Rule(ALLOW, topics=(topic_pattern("bob@b.example"),))), DENY
    )
    async with world.domain("n0", "a", access=rules) as a, world.domain("n2", "b", access=rules) as b:
        anna, bob = await Person.named(world, a, "anna"), await Person.named(world, b, "bob")
        assert (await anna.talk_to(bob.address))[0] == 201
        assert (await bob.talk_to(anna.address))[0] == 201
        assert (await anna.say(bob.address, "hello"))[0] == 202
        await until(lambda: bob.heard(anna.address) == ["hello"])
        await until(lambda: states(anna, bob.address) == [MessageState.DELIVERED])
        assert (await bob.say(anna.address, "and you"))[0] == 202
        await until(lambda: anna.heard(bob.address) == ["and you"])
        status, text = await anna.talk_to("carol@b.example")
        assert (status, "subscribe" in text) == (403, True)
        carol = await Person.named(world, b, "carol")
        assert (await carol.talk_to(anna.address))[0] == 201
        status, text = await carol.say(anna.address, "let me in")
        assert (status, "publish" in text) == (403, True)


async def test_chat_with_a_zone_that_nobody_may_talk_to_or_from(world: World) -> None:
    rules = AccessRules((Rule(DENY, SUBSCRIBE, zones=("b.example",), reason="not with them"),))
    async with world.domain("n0", "a", access=rules) as a, world.domain("n2", "b") as b:
        anna, bob = await Person.named(world, a, "anna"), await Person.named(world, b, "bob")
        assert await anna.talk_to(bob.address) == (403, "not with them\n")
        assert await anna.partners() == [], "what was refused left nothing"
        assert (await anna.talk_to("dora@d.example"))[0] == 201
        # Now she may; then no longer, and then again: the conversation is the same.
        a.gateway.access.rules = AccessRules()
        assert (await anna.talk_to(bob.address))[0] == 201
        assert (await bob.talk_to(anna.address))[0] == 201
        assert (await bob.say(anna.address, "one"))[0] == 202
        await until(lambda: anna.heard(bob.address) == ["one"])
        a.gateway.access.rules = rules
        assert await keep_to_rules(a) == 1
        assert not a.gateway.psirp.follows(a.chat.item_of(bob.address))
        assert await keep_to_rules(a) == 0, "once is enough"
    # It also starts with them: what is written down does not stand in the way.
    async with world.domain("n0", "a", access=rules) as a:
        item = a.chat.item_of(bob.address)
        assert not a.gateway.psirp.follows(item)
        a.gateway.access.rules = AccessRules()
        assert await keep_to_rules(a) == 0
        assert a.gateway.psirp.follows(item)


async def test_messages_by_address_of_who_writes(world: World) -> None:
    rules = AccessRules((Rule(ALLOW, PUBLISH, clients=HERE), Rule(ALLOW, SUBSCRIBE)), DENY)
    async with world.domain("n0", "a", access=rules) as a:
        anna = await Person.named(world, a, "anna")
        assert (await anna.talk_to("bob@b.example"))[0] == 201
        assert (await anna.say("bob@b.example", "hello"))[0] == 202
        await until(lambda: states(anna, "bob@b.example") == [MessageState.SENT])
        a.gateway.access.rules = AccessRules((Rule(DENY, PUBLISH, clients=HERE, reason="not from here"),))
        assert await anna.say("bob@b.example", "again") == (403, "not from here\n")


async def test_rates_of_people(world: World) -> None:
    chat = ChatConfig("a.example", messages_per_second=0.001, message_burst=2)
    async with world.domain("n0", "a", chat=chat) as a:
        anna, dora = await Person.named(world, a, "anna"), await Person.named(world, a, "dora")
        for person in (anna, dora):
            assert (await person.talk_to("bob@b.example"))[0] == 201
        assert [(await anna.say("bob@b.example", "hello"))[0] for _ in range(3)] == [202, 202, 429]
        assert (await dora.say("bob@b.example", "hello"))[0] == 202, "another person is not held back"
