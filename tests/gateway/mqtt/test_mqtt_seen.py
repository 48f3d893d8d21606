"""Who is let in by a token, and where an operator sees the broker: `$SYS`, metrics, dashboard, explanations."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiomqtt
import pytest

from gateway.access.rules import AccessRules, Act, Effect, Rule
from gateway.admin.config import AdminConfig
from gateway.config import ConfigError, check
from gateway.protocols.mqtt.names import MqttNamespace
from gateway.protocols.mqtt.protocol import MqttProtocol
from gateway.protocols.mqtt.section import MqttConfig, MqttPlace
from gateway.protocols.mqtt.users import KnownUsers
from identifiers.namespaces import STANDARD
from psirp_stack.emulation.network import socket_of
from tests.gateway.gateway_process import ROOT
from tests.gateway.web_world import Domain, World, started_world
from tests.waiting import until

TOKEN = "a-token-of-a-sensor"
ANYBODY = KnownUsers(allow_anonymous=True)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with started_world(tmp_path) as world:
        yield world


def mqtt(users: KnownUsers = ANYBODY, figures_every: float = 0.05) -> dict[str, object]:
    place = (MqttPlace("127.0.0.1", 0),)
    return {"mqtt": MqttConfig(place, domain="a.example", users=users, figures_every=figures_every)}


def broker(domain: Domain) -> MqttProtocol:
    return domain.gateway.core.protocol(MqttProtocol)


def client(domain: Domain, name: str, user: str | None = None, password: str | None = None) -> aiomqtt.Client:
    return aiomqtt.Client(
        "127.0.0.1",
        broker(domain).open[0].port,
        identifier=name,
        protocol=aiomqtt.ProtocolVersion.V5,
        username=user,
        password=password,
    )


async def next_of(one: aiomqtt.Client) -> aiomqtt.Message:
    async with asyncio.timeout(60):
        return await anext(aiter(one.messages))


async def refusal(one: aiomqtt.Client) -> int:
    with pytest.raises(aiomqtt.MqttError) as caught:
        async with one:
            pass
    code = caught.value.args[0] if not hasattr(caught.value, "rc") else caught.value.rc
    return int(code.value)


async def test_a_token_is_a_password_with_any_user_name(world: World) -> None:
    async with world.domain("n0", "a", protocols=mqtt(KnownUsers(tokens=(TOKEN, "another")))) as a:
        for user, token in (("sensor", TOKEN), ("somebody", "another"), ("", TOKEN)):
            async with client(a, f"by-{user}", user, token) as one:
                await one.subscribe("t", 1)
                await one.publish("t", b"x", 1)
                assert (await next_of(one)).payload == b"x"
        assert await refusal(client(a, "two", "sensor", TOKEN[:-1])) == 0x86
        assert await refusal(client(a, "two", TOKEN)) == 0x86, "the name of a user is shown to everybody"
        assert await refusal(client(a, "two")) == 0x87
        assert broker(a).broker.counters.refused == 3


async def test_rules_and_sessions_know_who_has_shown_a_token(world: World) -> None:
    acts, valves = frozenset({Act.PUBLISH}), ("a.example/valves/",)
    rules = AccessRules(
        (Rule(Effect.ALLOW, acts, topics=valves, token=True), Rule(Effect.DENY, acts, topics=valves)),
        namespaces=STANDARD.plus(MqttNamespace()),
    )
    users = KnownUsers(tokens=(TOKEN,), allow_anonymous=True)
    async with (
        world.domain("n0", "a", protocols=mqtt(users), access=rules) as a,
        client(a, "stranger") as stranger,
        client(a, "plant", "plant", TOKEN) as plant,
    ):
        await stranger.subscribe("valves/#", 1)
        await stranger.publish("valves/1", b"by anybody", 1)
        await until(lambda: broker(a).broker.counters.denied == 1)
        await plant.publish("valves/1", b"by the plant", 1)
        assert (await next_of(stranger)).payload == b"by the plant"
        assert await refusal(client(a, "plant")) == 0x85, "its session is not for others"
        await plant.publish("valves/2", b"still there", 1)
        assert (await next_of(stranger)).payload == b"still there"


def test_tokens_are_in_a_file_that_nobody_else_reads(tmp_path: Path) -> None:
    document: dict[str, object] = {
        "gateway": {"domain": "a.example"},
        "mqtt": {"listen": "127.0.0.1:0", "tokens_file": "tokens"},
        "node": {"name": "gate"},
    }
    tokens = tmp_path / "tokens"
    with pytest.raises(ConfigError, match=r"mqtt\.tokens_file"):
        check(document, tmp_path)
    tokens.write_text(f"{TOKEN}\nanother\n")
    tokens.chmod(0o644)
    with pytest.raises(ConfigError, match=r"mqtt\.tokens_file"):
        check(document, tmp_path)
    tokens.chmod(0o600)
    config = check(document, tmp_path).protocols["mqtt"]
    assert isinstance(config, MqttConfig)
    assert config.users == KnownUsers(tokens=(TOKEN, "another"))


async def test_figures_below_sys(world: World) -> None:
    async with (
        world.domain("n0", "a", protocols=mqtt()) as a,
        client(a, "one") as one,
        client(a, "two") as two,
    ):
        await two.subscribe("#", 0)
        await one.subscribe("$SYS/#", 0)
        await one.subscribe("t", 0)
        await one.publish("$SYS/broker/clients/connected", b"1000000", 1)
        await one.publish("t", b"x", 1, retain=True)
        wanted = {
            "$SYS/broker/clients/connected": b"2",
            "$SYS/broker/subscriptions/count": b"3",
            "$SYS/broker/messages/received": b"1",
        }
        seen: dict[str, bytes] = {}
        others: list[str] = []
        async with asyncio.timeout(60):
            async for message in one.messages:
                assert isinstance(message.payload, bytes)
                if str(message.topic).startswith("$SYS/"):
                    seen[str(message.topic)] = message.payload
                else:
                    others.append(str(message.topic))
                if others and all(seen.get(topic) == figure for topic, figure in wanted.items()):
                    break
        assert others == ["t"]
        assert seen["$SYS/broker/version"].startswith(b"psph version ")
        assert seen["$SYS/broker/uptime"].endswith(b" seconds")
        assert b"1000000" not in seen.values(), "these figures are the broker's to tell"
        assert str((await next_of(two)).topic) == "t", "# is not about $SYS"
        assert broker(a).broker.counters.denied == 1


async def test_the_broker_on_the_admin_port(world: World, tmp_path: Path) -> None:
    async with (
        world.domain("n0", "a", protocols=mqtt(), admin=AdminConfig()) as a,
        client(a, "wild") as wild,
        client(a, "one") as one,
    ):
        admin = a.gateway.admin
        assert admin is not None
        await wild.subscribe("kitchen/+", 1)
        await one.subscribe("$share/cooks/kitchen/temp", 1)
        await one.publish("kitchen/temp", b"21.5", 1, retain=True)
        await next_of(wild)
        await next_of(one)
        await until(lambda: broker(a).broker.counters.delivered == 2)

        async def get(path: str, **query: str) -> str:
            async with world.http.get(admin.url.rstrip("/") + path, params=query) as answer:
                assert answer.status == 200, await answer.text()
                return await answer.text()

        metrics = dict(line.rsplit(" ", 1) for line in (await get("/metrics")).splitlines() if line[0] != "#")
        for name, value in (
            ("clients", 2),
            ("sessions", 2),
            ("subscriptions", 2),
            ("published_total", 1),
            ("delivered_total", 2),
            ("refused_total", 0),
        ):
            assert float(metrics[f"psph_mqtt_{name}"]) == value, name

        async def shown() -> dict[str, object]:
            panels = json.loads(await get("/api/snapshot"))["protocols"]
            (panel,) = [dict(one["rows"]) for one in panels if "MQTT" in one["title"]]
            return panel

        async def is_shown() -> bool:
            return (await shown())["MQTT messages in / out"] == "1 / 2"

        await until(is_shown)
        panel = await shown()
        assert (panel["MQTT clients"], panel["MQTT sessions"], panel["MQTT protocol errors"]) == (2, 2, 0)

        name = "mqtt://a.example/kitchen/temp"
        expected = [
            "clients of the broker call it kitchen/temp",
            "wild (connected) is subscribed by kitchen/+",
            "each message goes to one of those who share $share/cooks/kitchen/temp: one",
            "a message is retained for those who come",
        ]
        said = json.loads(await get("/api/topic", topic=name))["said"]
        assert [one for one in said if one in expected] == expected, said
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway.cli.main", "explain", name, "--who", "--admin", admin.url,
            "--socket", str(socket_of(tmp_path / "net", "n0")), cwd=ROOT, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, _ = await asyncio.wait_for(process.communicate(), 60)
        lines = [line.removeprefix("  here         ") for line in out.decode().splitlines()]
        assert [one for one in lines if one in expected] == expected, lines
        assert process.returncode in (0, 1), lines
