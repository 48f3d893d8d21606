"""A protocol from outside the tree, a package that this test writes, exchanges with every protocol of the tree.

It has what a real one has: a section of the configuration, a namespace, a port of its own, sessions, publications. It
imports what CONTRIBUTING.md says a protocol may use, and is found by its name in a gateway's configuration only.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import aiomqtt
import pytest

from gateway.config import ConfigError, check
from gateway.gateway import Gateway
from gateway.protocols.chat.messages import CONTENT_TYPE, ChatMessage, write_message
from gateway.protocols.listed import BUILT_IN
from gateway.protocols.mqtt.protocol import MqttProtocol
from psirp_stack.emulation.network import socket_of
from tests.gateway.chat.test_chat import Person, arrived
from tests.gateway.crossing.test_crossing import Publisher, Subscriber, feed
from tests.gateway.web_world import PATIENCE, Domain, Reader, World, started_world
from tests.waiting import until

PACKAGE = "chalk_of_others"
PLACE = f"{PACKAGE}.protocol:CHALK"
CHALK = '''
    """Chalkboards: a client writes lines of JSON to a port, and reads lines of JSON from it."""

    import asyncio
    import contextlib
    import json
    from dataclasses import dataclass

    from msgspec import Struct

    from exchange.model import Draft, Profile
    from gateway.model import RefusedError
    from gateway.protocols.descriptor import ListeningDoor, OpenDoor, ProtocolDescriptor, RunningProtocol
    from gateway.sections import address
    from identifiers import ItemId, TopicError
    from identifiers.namespaces import Name

    PREFIX = "chalk:"


    class ChalkNamespace:
        label = "chalk"

        def claims(self, text):
            return text.startswith(PREFIX)

        def read(self, text):
            house, slash, board = text.removeprefix(PREFIX).partition("/")
            if not house or not slash or not board:
                raise TopicError(f"expected {PREFIX}HOUSE/BOARD, not {text[:80]!r}")
            item = lambda naming: ItemId(naming.of_seed(house), naming.of_seed(board))
            return Name(self.label, text, item, house, f"{house}/{board}")

        def pattern(self, text):
            return self.read(text).place


    class ChalkSection(Struct, frozen=True, forbid_unknown_fields=True):
        listen: str = ""


    @dataclass(frozen=True)
    class ChalkConfig:
        host: str
        port: int


    def chalk_config(sections):
        section = sections.read("chalk", ChalkSection)
        return ChalkConfig(*address("chalk.listen", section.listen)) if section.listen else None


    class ChalkAdapter:
        name = "chalk"
        hears_own = True
        keeps_rules = False

        def __init__(self, host):
            self._host = host
            self.writers = {}

        def item_of(self, what):
            try:
                return self._host.namespaces.read(what).item(self._host.naming)
            except TopicError as error:
                raise RefusedError(str(error)) from None

        async def deliver(self, key, entry, interests):
            writer = self.writers.get(key.who)
            if writer is None:
                raise ConnectionError(f"{key.who} is not there")
            for draft in await self._host.control.converters.convert(entry, interests[0].convert):
                writer.write(draft.body + b"\\n")
                await writer.drain()


    class ChalkProtocol(RunningProtocol):
        async def prepare(self):
            self._adapter = ChalkAdapter(self.host)
            self._server = None

        async def start(self):
            self.host.control.add(self._adapter)
            self._server = await asyncio.start_server(self._serve, self.config.host, self.config.port)
            self.port = self._server.sockets[0].getsockname()[1]

        async def _serve(self, reader, writer):
            with contextlib.suppress(ConnectionError):
                while line := await reader.readline():
                    answer = await self._did(json.loads(line), writer)
                    writer.write(json.dumps(answer).encode() + b"\\n")
            writer.close()

        async def _did(self, asked, writer):
            control, adapter = self.host.control, self._adapter
            try:
                if asked["do"] == "read":
                    adapter.writers[asked["who"]] = writer
                    await control.subscribe(adapter, asked["who"], asked["name"], convert="json", durable=False)
                else:
                    name = asked["name"]
                    kind, text = asked.get("type", "text/plain"), asked["text"].encode()
                    draft = Draft(adapter.item_of(name), name, Profile(asked["profile"]), kind, text)
                    await control.publish(adapter, draft)
            except RefusedError as error:
                return {"refused": str(error)}
            return {"done": asked["do"]}

        def close(self):
            for writer in self._adapter.writers.values():
                writer.close()

        async def stop(self):
            if self._server is not None:
                self._server.close()

        def doors(self):
            yield OpenDoor("chalk", f"chalk://{self.config.host}:{self.port}")


    CHALK = ProtocolDescriptor(
        label="chalk",
        title="chalkboards",
        sections={"chalk": ChalkSection},
        configured=chalk_config,
        make=ChalkProtocol,
        namespaces=(ChalkNamespace(),),
        listening=lambda config: (ListeningDoor("chalkboards", config.host, config.port),),
    )
'''
WALL = "chalk:school/wall"


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Importable as an installed one is, and gone afterwards."""
    folder = tmp_path / "elsewhere" / PACKAGE
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "protocol.py").write_text(dedent(CHALK))
    monkeypatch.syspath_prepend(str(folder.parent))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with started_world(tmp_path) as world:
        yield world


def document(world: World, node: str, name: str) -> dict[str, object]:
    return {
        "gateway": {"name": f"gateway-{name}", "domain": f"{name}.example", "protocols": [PLACE]},
        "store": {"path": name},
        "hub": {"listen": "127.0.0.1:0", "allow_private": True, "canary": {"enabled": False}},
        "web": {"listen": "127.0.0.1:0", "anyone_may_publish": True},
        "mqtt": {"listen": "127.0.0.1:0", "allow_anonymous": True},
        "network": {"attach": str(socket_of(world.data / "net", node))},
        "bootstrapping": {"unmanaged": "accept"},
        "chalk": {"listen": "127.0.0.1:0"},
    }


@asynccontextmanager
async def gateway(world: World, node: str, name: str) -> AsyncIterator[Domain]:
    """Of a configuration as an operator writes it."""
    one = Gateway(check(document(world, node, name), world.data), observer=world.events.append)
    await one.start()
    try:
        assert one.web is not None
        yield Domain(one, one.web)
    finally:
        await one.stop()


class Board:
    """A client of the foreign protocol."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._lines: list[dict[str, Any]] = []

    async def _line(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE):
            found: dict[str, Any] = json.loads(await self._reader.readline())
            return found

    async def _ask(self, **asked: str) -> dict[str, Any]:
        self._writer.write(json.dumps(asked).encode() + b"\n")
        while True:
            line = await self._line()
            if "done" in line or "refused" in line:
                return line
            self._lines.append(line)  # a publication came in between

    async def read(self, name: str, who: str) -> None:
        assert await self._ask(do="read", name=name, who=who) == {"done": "read"}

    async def write(self, name: str, text: str, profile: str = "event", **more: str) -> dict[str, Any]:
        return await self._ask(do="write", name=name, text=text, profile=profile, **more)

    async def next(self) -> dict[str, Any]:
        return self._lines.pop(0) if self._lines else await self._line()


@asynccontextmanager
async def board(domain: Domain) -> AsyncIterator[Board]:
    (door,) = [door for door in domain.gateway.core.protocols["chalk"].doors() if door.what == "chalk"]
    host, _, port = door.url.removeprefix("chalk://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Board(reader, writer)
    finally:
        writer.close()
        await writer.wait_closed()


async def post(world: World, domain: Domain, name: str, text: str, profile: str = "event") -> None:
    query, headers = {"name": name, "profile": profile}, {"Content-Type": "text/plain"}
    async with world.http.post(domain.url("/topics"), params=query, data=text, headers=headers) as answer:
        assert answer.status == 201, await answer.text()


async def subscribe(world: World, domain: Domain, topic: str, callback: str) -> None:
    hub = domain.gateway.hub
    form = {"hub.mode": "subscribe", "hub.topic": topic, "hub.callback": callback}
    async with world.http.post(hub.url, data=form) as answer:
        assert answer.status == 202, await answer.text()
    await until(lambda: hub.subscriptions.count(topic))


async def test_it_exchanges_with_itself_across_the_network(world: World) -> None:
    async with gateway(world, "n0", "a") as a, gateway(world, "n2", "b") as b, board(a) as here, board(b) as there:
        await here.read(WALL, "ana")
        await there.read("chalk:school/floor", "eva")
        for text in ("one", "two"):
            assert await there.write(WALL, text) == {"done": "write"}
        assert await here.write("chalk:school/floor", "three") == {"done": "write"}
        assert [(await here.next())["text"] for _ in range(2)] == ["one", "two"]
        assert (await there.next())["text"] == "three"
        assert "expected chalk:HOUSE/BOARD" in (await here.write("chalk:school", "x"))["refused"]


async def test_it_exchanges_with_rest_here_and_in_another_domain(world: World) -> None:
    async with gateway(world, "n0", "a") as a, gateway(world, "n2", "b") as b, board(a) as here:
        streams = [await world.http.get(one.url("/topics"), params={"name": WALL}) for one in (a, b)]
        readers = [Reader(stream) for stream in streams]
        await here.write(WALL, "from the board")
        for reader in readers:
            event = (await reader.next())[1]
            assert (event["name"], event["text"]) == (WALL, "from the board")
        for stream in streams:
            stream.close()
        await here.read("http://school.example/desk", "ana")
        await post(world, b, "http://school.example/desk", "from far")
        assert (await here.next())["text"] == "from far"
        await post(world, a, "http://school.example/desk", "from near")
        assert (await here.next())["text"] == "from near"


async def test_it_exchanges_with_the_hub_here_and_in_another_domain(world: World) -> None:
    room = "http://rooms.example/kitchen"
    async with gateway(world, "n0", "a") as a, gateway(world, "n2", "b") as b, board(a) as here:
        async with Subscriber() as near, Subscriber() as far:
            for domain, callback in ((a, near.callback), (b, far.callback)):
                await subscribe(world, domain, room, callback)
            await here.write(room, "dinner is ready", "message")
            await until(lambda: near.received and far.received)
            for subscriber in (near, far):
                assert b"dinner is ready" in subscriber.received[-1][1]
        async with Publisher() as publisher:
            publisher.body = feed("from the hub")
            await here.read(publisher.topic, "ana")
            form = {"hub.mode": "publish", "hub.url": publisher.topic}
            async with world.http.post(b.gateway.hub.url, data=form) as answer:
                assert answer.status in (202, 204), await answer.text()
            said = await here.next()
            assert (said["profile"], said["type"]) == ("document", "application/atom+xml")
            assert "from the hub" in said["text"]


async def test_it_exchanges_with_mqtt_here_and_in_another_domain(world: World) -> None:
    async with gateway(world, "n0", "a") as a, gateway(world, "n2", "b") as b, board(a) as here, board(b) as there:
        port = a.gateway.core.protocol(MqttProtocol).open[0].port
        async with aiomqtt.Client("127.0.0.1", port, identifier="one", protocol=aiomqtt.ProtocolVersion.V5) as client:
            await client.subscribe("kitchen/#", 1)
            await here.write("mqtt://a.example/kitchen/oven", "hot")
            async with asyncio.timeout(PATIENCE):
                message = await anext(aiter(client.messages))
            assert (str(message.topic), message.payload) == ("kitchen/oven", b"hot")
            for one, who in ((here, "ana"), (there, "eva")):
                await one.read("mqtt://a.example/kitchen/fridge", who)
            await client.publish("kitchen/fridge", b"cold", 1)
            for one in (here, there):
                assert (await one.next())["text"] == "cold"


async def test_it_reads_what_people_say_to_everybody_and_cannot_speak_for_them(world: World) -> None:
    async with gateway(world, "n0", "a") as a, gateway(world, "n2", "b") as b, board(a) as here, board(b) as there:
        alice, bob = await Person.named(world, a, "alice"), await Person.named(world, b, "bob")
        await alice.open(bob.address)
        await bob.open(alice.address)
        for one, who in ((here, "ana"), (there, "eva")):
            await one.read(alice.address, who)
        await alice.say(bob.address, "for bob alone")
        await alice.say(alice.address, "for everybody")
        for one in (here, there):
            assert (await one.next())["title"] == "for everybody", "what is for somebody is shown to nobody else"
        # What is on somebody's item in chat's own form is chat's alone.
        forged = write_message(ChatMessage("m9", alice.address, "I am alice", 1.0)).decode()
        answer = await here.write(alice.address, forged, "message", type=CONTENT_TYPE)
        assert "one of another protocol" in answer["refused"]
        assert await here.write(alice.address, forged, "message") == {"done": "write"}
        await alice.say(bob.address, "the last")
        await arrived(bob, alice.address, ["for bob alone", "for everybody", "the last"])


async def test_a_gateway_without_it_knows_nothing_of_it(world: World) -> None:
    assert all(one.label != "chalk" for one in BUILT_IN)
    plain = document(world, "n0", "a")
    plain["gateway"] = {"name": "gateway-a"}
    with pytest.raises(ConfigError, match="chalk: there is no such key"):
        check(plain, world.data)
