"""MQTT beside the other protocols of a gateway, and across the network: published here, read there, both ways."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiomqtt
import pytest

from exchange.model import Draft, Profile, SessionKey
from exchange.ports import Wanted
from gateway.access.rules import AccessRules, Act, Effect, Rule
from gateway.protocols.mqtt.names import MqttNamespace
from gateway.protocols.mqtt.protocol import MqttProtocol
from gateway.protocols.mqtt.section import MqttConfig, MqttPlace
from gateway.protocols.mqtt.users import KnownUsers
from identifiers import DEFAULT_NAMING
from identifiers.namespaces import STANDARD
from tests.gateway.web_world import Domain, Reader, World, started_world
from tests.waiting import until


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with started_world(tmp_path) as world:
        yield world


def mqtt(name: str) -> dict[str, object]:
    return {
        "mqtt": MqttConfig(
            (MqttPlace("127.0.0.1", 0),), domain=f"{name}.example", users=KnownUsers(allow_anonymous=True)
        )
    }


def broker(domain: Domain) -> MqttProtocol:
    return domain.gateway.core.protocol(MqttProtocol)


@asynccontextmanager
async def client(domain: Domain, name: str) -> AsyncIterator[aiomqtt.Client]:
    port = broker(domain).open[0].port
    async with aiomqtt.Client("127.0.0.1", port, identifier=name, protocol=aiomqtt.ProtocolVersion.V5) as one:
        yield one


async def next_of(one: aiomqtt.Client) -> aiomqtt.Message:
    async with asyncio.timeout(60):
        return await anext(aiter(one.messages))


async def test_a_sensor_is_read_on_the_web_of_another_domain(world: World) -> None:
    async with (
        world.domain("n0", "a", protocols=mqtt("a")) as a,
        world.domain("n2", "b") as b,
        world.http.get(b.url("/topics?name=mqtt://a.example/kitchen/temp")) as answer,
    ):
        assert answer.status == 400, "a gateway without MQTT knows no such names"
        async with (
            world.http.get(b.url("/topics?name=http://a.example/kitchen/temp")) as stream,
            client(a, "sensor") as sensor,
        ):
            reader = Reader(stream)
            for qos in range(3):
                await sensor.publish("kitchen/temp", f"{qos} degrees".encode(), qos)
            got = [(await reader.next())[1] for _ in range(3)]
            assert {one["text"] for one in got} == {f"{qos} degrees" for qos in range(3)}
            assert {one["name"] for one in got} == {"mqtt://a.example/kitchen/temp"}
            assert len({one["origin"] for one in got}) == 3


async def test_brokers_of_two_domains_exchange(world: World) -> None:
    async with (
        world.domain("n0", "a", protocols=mqtt("a")) as a,
        world.domain("n2", "b", protocols=mqtt("b")) as b,
        client(a, "writer") as writer,
        client(b, "reader") as reader,
    ):
        await reader.subscribe("$mqtt/a.example/kitchen/temp", 2)
        item = broker(b)._running.names.of_topic("$mqtt/a.example/kitchen/temp")[1]
        await until(lambda: a.gateway.control.is_wanted_elsewhere(item) or b.gateway.control.exchange.is_wanted(item))
        properties = aiomqtt.client.Properties(3)  # type: ignore[attr-defined]
        properties.UserProperty = [("unit", "C")]
        for number in range(5):
            await writer.publish("kitchen/temp", str(number).encode(), 2, properties=properties)
        got = [await next_of(reader) for _ in range(5)]
        assert [bytes(one.payload) for one in got] == [b"0", b"1", b"2", b"3", b"4"]  # type: ignore[arg-type]
        assert {(str(one.topic), one.qos) for one in got} == {("$mqtt/a.example/kitchen/temp", 2)}
        assert got[0].properties is not None
        assert got[0].properties.UserProperty == [("unit", "C")]


async def test_a_web_topic_is_a_topic_and_back(world: World) -> None:
    async with world.domain("n0", "a", protocols=mqtt("a")) as a, client(a, "one") as one:
        await one.subscribe("$web/news.example/#", 1)
        await one.subscribe("kitchen/+", 1)
        for name in ("http://news.example/weather", "http://a.example/kitchen/temp"):
            async with world.http.post(
                a.url(f"/topics?name={name}"), data=b"sunny", headers={"Content-Type": "text/plain"}
            ) as answer:
                assert answer.status == 201
        got = [await next_of(one), await next_of(one)]
        assert [str(each.topic) for each in got] == ["$web/news.example/weather", "kitchen/temp"]
        assert got[0].properties is not None
        assert got[0].properties.ContentType == "text/plain"
        # The other way round, with what is kept in the log.
        await one.publish("$web/news.example/sport", b"1:0", 1, retain=True)
        naming = a.gateway.core.host.namespaces
        item = naming.read("http://news.example/sport").item(DEFAULT_NAMING)
        newest = await a.gateway.control.exchange.log.newest(Wanted(item))
        assert newest is not None
        assert (newest.draft.body, newest.draft.profile, newest.via) == (b"1:0", Profile.DOCUMENT, "mqtt")
        said = await broker(a).explain("mqtt://a.example/kitchen/temp")
        assert any(re.match(r"one \(connected\) is subscribed by kitchen/\+", line) for line in said)


async def test_what_others_publish_waits_for_a_client_that_is_away(world: World) -> None:
    async with world.domain("n0", "a", protocols=mqtt("a")) as a:
        running = broker(a)
        port = running.open[0].port
        properties = aiomqtt.client.Properties(1)  # type: ignore[attr-defined]
        properties.SessionExpiryInterval = 600

        def durable() -> aiomqtt.Client:
            return aiomqtt.Client(
                "127.0.0.1", port, identifier="away", protocol=aiomqtt.ProtocolVersion.V5, clean_start=False,
                properties=properties,
            )  # fmt: skip

        async with durable() as one:
            await one.subscribe("kitchen/#", 1)
        async with world.http.post(a.url("/topics?name=http://a.example/kitchen/x"), data=b"missed") as answer:
            assert answer.status == 201
        await until(lambda: running.broker.sessions["away"].queued == 1)
        async with durable() as one:
            assert (await next_of(one)).payload == b"missed"
        await until(lambda: running.broker.sessions["away"].queued == 0)
        assert running.panel()
        assert {one.name for one in running.figures()} >= {"clients", "sessions", "published"}


async def test_rules_of_the_operator_hold_for_clients_and_for_what_they_hear(world: World) -> None:
    rules = AccessRules(
        (
            Rule(Effect.DENY, frozenset({Act.PUBLISH}), topics=("a.example/read-only/",), reason="look, do not touch"),
            Rule(Effect.DENY, frozenset({Act.SUBSCRIBE}), topics=("a.example/secret/",)),
        ),
        namespaces=STANDARD.plus(MqttNamespace()),
    )
    async with (
        world.domain("n0", "a", protocols=mqtt("a"), access=rules) as a,
        client(a, "one") as one,
    ):
        granted = await one.subscribe("secret/x", 1)
        assert granted[0].value == 0x87
        await one.subscribe("#", 1)
        await one.publish("read-only/x", b"x", 1)
        await one.publish("secret/y", b"x", 1)
        await one.publish("open", b"x", 1)
        assert str((await next_of(one)).topic) == "open"
        assert broker(a).broker.counters.denied == 2


async def test_what_was_handed_over_twice_is_delivered_once(world: World) -> None:
    """A kill between the queues of the clients and the cursor of the exchange."""
    async with world.domain("n0", "a", protocols=mqtt("a")) as a, client(a, "one") as one:
        await one.subscribe("kitchen/x", 2)
        running = broker(a)
        adapter, exchange = running._running.adapter, a.gateway.control.exchange
        name = "http://a.example/kitchen/x"
        item = a.gateway.core.host.namespaces.read(name).item(DEFAULT_NAMING)
        appended = await exchange.publish(Draft(item, name, Profile.EVENT, "text/plain", b"once"), "rest")
        assert (await next_of(one)).payload == b"once"
        entry = await exchange.log.get(appended.position)
        assert entry is not None
        before = running.broker.counters.delivered
        await adapter.deliver(SessionKey("mqtt", "everything"), entry, [])
        assert running.broker.counters.delivered == before
