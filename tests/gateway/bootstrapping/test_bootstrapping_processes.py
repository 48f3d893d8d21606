"""Bootstrapping between processes: over UDP, and over raw Ethernet between network namespaces. Gateways are killed."""

import asyncio
import base64
import json
import os
import shutil
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from psirp_stack.emulation.namespaces import NamespaceError, NamespaceNetwork
from psirp_stack.emulation.network import socket_of
from psirp_stack.emulation.plan import plan
from tests.gateway.bootstrapping.distant import HOST, feed
from tests.waiting import until

ROOT = Path(__file__).parents[3]
ZONE = "feedspsirp.com"
PATIENCE = 60.0


class Process:
    """A program that says what happens, a line at a time; killed when the block is left."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
            limit=1 << 24,
        )

    async def line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            line = await self._process.stdout.readline()
        assert line, f"{self._command} ended by itself"
        return line.decode().rstrip("\n")

    async def up(self) -> None:
        """Until a node or gateway says so."""
        while "up" not in (await self.line()).replace(",", " ").split():
            pass

    async def hear(self, *keys: str) -> dict[str, Any]:
        """The next thing that is said of one of these; others are passed over."""
        while True:
            said: dict[str, Any] = json.loads(await self.line())
            if not keys or any(key in said for key in keys):
                return said

    async def do(self, **command: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        await self._process.stdin.drain()

    async def kill(self) -> None:
        """kill -9, and wait for the end."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.communicate()


class Scene:
    """Everything that takes part, as processes: gateways by name, the distant domain, the reader."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.hubs: dict[str, str] = {}
        self.gateways: dict[str, Process] = {}

    async def run(self, *command: str) -> Process:
        process = Process(command)
        self._stack.push_async_callback(process.kill)
        await process.start()
        return process

    async def gateway(self, name: str, file: Path, hub: str, prefix: Sequence[str] = ()) -> None:
        self.hubs[name] = hub
        self.gateways[name] = await self.run(
            *prefix, sys.executable, "-m", "gateway.cli.main", "gateway", "-c", str(file)
        )
        await self.gateways[name].up()

    async def restart(self, name: str) -> None:
        await self.gateways[name].kill()
        await self.gateways[name].start()
        await self.gateways[name].up()


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    async with AsyncExitStack() as stack:
        yield Scene(stack)


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket(type=socket.SOCK_DGRAM)) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def gateway_file(folder: Path, name: str, port: int, zones: Sequence[str], rest: str) -> Path:
    file = folder / f"{name}.toml"
    file.write_text(
        f'[gateway]\nname = "{name}"\nzones = {json.dumps(list(zones))}\n[store]\npath = "{name}"\n'
        f'[hub]\nlisten = "127.0.0.1:{port}"\nallow_private = true\ncanary = {{ enabled = false }}\n'
        f'hosts = {{ "{HOST}" = "127.0.0.1", "www.unmanaged.org" = "127.0.0.1" }}\n{rest}'
    )
    return file


async def subscribed_at(hub: str, topic: str, reader: Process) -> None:
    """Asked again while the manager has only just come up."""
    async with asyncio.timeout(PATIENCE):
        while True:
            await reader.do(do="subscribe", hub=hub, topic=topic)
            assert (await reader.hear("answer"))["answer"] == 202
            said = await reader.hear("verified", "denied")
            if "denied" not in said:
                assert said == {"verified": "subscribe"}
                return
            assert "manages the zone" in said["denied"], said


async def until_both_follow(domain: Process) -> None:
    """The distant hub counts both managers among its subscribers."""
    async with asyncio.timeout(PATIENCE):
        while True:
            await domain.do(do="count")
            if (await domain.hear("subscribed"))["subscribed"] == 2:
                return


async def play(scene: Scene, domain: Process, reader: Process) -> None:
    """The scenario, with a kill -9 of each gateway in the middle of it."""
    topic = (await domain.hear("topic"))["topic"]
    await reader.hear("callback")
    a = scene.hubs["a"]

    async def ask(mode: str, what: str) -> dict[str, Any]:
        await reader.do(do=mode, hub=a, topic=what)
        assert (await reader.hear("answer"))["answer"] == 202
        return await reader.hear("verified", "denied")

    async def arrives(body: bytes) -> None:
        await domain.do(do="push", body=base64.b64encode(body).decode())
        assert (await domain.hear("pushed"))["pushed"] == [202]
        got = await reader.hear("received")
        while base64.b64decode(got["received"]) != body:  # the version before it may come again after a kill
            got = await reader.hear("received")
        assert f"<{a}>" in got["link"]

    said = await ask("subscribe", topic.replace(HOST, "www.unmanaged.org"))
    assert said == {"denied": "nobody in the network manages the zone unmanaged.org, so nobody would bring this topic"}
    await subscribed_at(a, topic, reader)
    assert base64.b64decode((await reader.hear("received"))["received"]) == feed("first")
    await domain.do(do="count")
    count = await domain.hear("subscribed")
    assert count["subscribed"] == 1
    assert len(count["secrets"][0]) >= 32
    await arrives(feed("second"))
    await scene.restart("b")
    await arrives(feed("after B was killed"))
    await scene.restart("a")
    await arrives(feed("after A was killed"))
    await domain.do(do="push", body=base64.b64encode(feed("forged")).decode(), secret="guessed")
    assert (await domain.hear("pushed"))["pushed"] == [202]
    await arrives(feed("not the forged one"))
    assert await ask("unsubscribe", topic) == {"verified": "unsubscribe"}
    async with asyncio.timeout(PATIENCE):
        while count["subscribed"]:
            await domain.do(do="count")
            count = await domain.hear("subscribed")


async def start_over_udp(running: Scene, folder: Path, zones: dict[str, list[str]]) -> tuple[Process, Process]:
    """A node in the middle and gateways around it, with the zones they manage; the distant domain and the reader."""

    def link(own: int, peer: int) -> str:
        return f'{{ udp = "127.0.0.1:{own}", peer = "127.0.0.1:{peer}" }}'

    free = iter(free_ports(3 * len(zones)))
    ports = {name: (next(free), next(free), next(free)) for name in zones}
    times = 'times = { hello = 0.2, lease = 3.0 }\ndomain = { rendezvous = ["core"], topology = ["core"] }\n'
    core = folder / "core.toml"
    links = ", ".join(link(inner, outer) for _, inner, outer in ports.values())
    core.write_text(f'name = "core"\nroles = ["rendezvous", "topology"]\ndata = "core"\nlinks = [{links}]\n{times}')
    await running.run(sys.executable, "-m", "gateway.cli.main", "node", "-c", str(core))
    for name, (port, inner, outer) in ports.items():
        node = f'[node]\nname = "{name}"\n{times}links = [{link(outer, inner)}]\n'
        file = gateway_file(folder, name, port, zones[name], node)
        await running.gateway(name, file, f"http://127.0.0.1:{port}/")
    domain = await running.run(sys.executable, "-m", "tests.gateway.bootstrapping.distant", "domain")
    reader = await running.run(sys.executable, "-m", "tests.gateway.bootstrapping.distant", "reader")
    return domain, reader


async def test_over_udp_between_processes(tmp_path: Path) -> None:
    async with scene() as running:
        domain, reader = await start_over_udp(running, tmp_path, {"b": [ZONE], "a": []})
        await play(running, domain, reader)


async def test_either_of_two_managers_of_a_zone_may_be_killed_and_nothing_arrives_twice(tmp_path: Path) -> None:
    async with scene() as running:
        domain, reader = await start_over_udp(running, tmp_path, {"b": [ZONE], "b2": [ZONE], "a": []})
        topic = (await domain.hear("topic"))["topic"]
        await reader.hear("callback")
        await subscribed_at(running.hubs["a"], topic, reader)
        arrived = [base64.b64decode((await reader.hear("received"))["received"])]
        sent = [feed("first")]
        await until_both_follow(domain)

        async def arrives(title: str, statuses: list[int]) -> None:
            sent.append(feed(title))
            await domain.do(do="push", body=base64.b64encode(sent[-1]).decode())
            assert sorted((await domain.hear("pushed"))["pushed"]) == statuses
            arrived.append(base64.b64decode((await reader.hear("received", "denied"))["received"]))

        await arrives("both are there", [202, 202])
        for kill, name in enumerate(("b", "b2", "b")):
            await running.gateways[name].kill()
            await arrives(f"{kill}: without {name}", [0, 202])
            await arrives(f"{kill}: still without {name}", [0, 202])
            await running.gateways[name].start()
            await running.gateways[name].up()
            await arrives(f"{kill}: {name} is back", [202, 202])
        assert arrived == sent


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and `ip` (iproute2) to make network namespaces"
)
async def test_over_raw_ethernet_between_namespaces(tmp_path: Path) -> None:
    """B and the distant hub in one namespace, A and the reader in another; nothing but 0xACDC frames between them."""
    network = NamespaceNetwork(plan({"generate": {"kind": "line", "nodes": 3}}, tmp_path), tmp_path / "net")
    try:
        network.up()
    except NamespaceError as error:
        pytest.skip(str(error))
    try:
        async with scene() as running:
            inside = {
                name: ["ip", "netns", "exec", network.namespace(node)] for name, node in (("b", "n0"), ("a", "n2"))
            }
            for name, node, zones in (("b", "n0", [ZONE]), ("a", "n2", [])):
                attach = socket_of(tmp_path / "net", node)
                await until(attach.exists, PATIENCE, f"the node {node} to make {attach}")
                file = gateway_file(tmp_path, name, 8080, zones, f'[network]\nattach = "{attach}"\n')
                await running.gateway(name, file, "http://127.0.0.1:8080/", inside[name])
            program = (sys.executable, "-m", "tests.gateway.bootstrapping.distant")
            domain = await running.run(*inside["b"], *program, "domain")
            reader = await running.run(*inside["a"], *program, "reader")
            await play(running, domain, reader)
    finally:
        network.down()
