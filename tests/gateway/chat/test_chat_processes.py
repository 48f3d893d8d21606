"""Chat and the plain facade between processes: over UDP on loopback, and over raw Ethernet between namespaces."""

import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import ClientSession

from psirp_stack.emulation.namespaces import NamespaceNetwork
from psirp_stack.emulation.network import socket_of
from psirp_stack.emulation.plan import plan
from tests.gateway.chat.test_chat import ALICE, BOB, Person, arrived, is_state
from tests.gateway.gateway_process import Process, free_udp_ports, gateway_file, node_lines, running
from tests.gateway.web_world import Reader
from tests.waiting import until

UP = "is up"
pytestmark = pytest.mark.timeout(300)
TOPIC = {"name": "http://news.example/a"}


class Elsewhere:
    """A gateway in another process, as far as people see it."""

    def __init__(self, process: Process) -> None:
        self.process = process

    def url(self, path: str) -> str:
        return self.process.web + path


@pytest.fixture
async def http() -> AsyncIterator[ClientSession]:
    async with ClientSession() as http:
        yield http


async def named(http: ClientSession, domain: Elsewhere, user: str) -> Person:
    answer = await http.post(domain.url("/chat/session"), json={"user": user})
    assert answer.status == 201, await answer.text()
    given = await answer.json()
    return Person(http, domain, given["address"], given["token"])


async def talk(http: ClientSession, a: Elsewhere, b: Elsewhere) -> tuple[Person, Person]:
    """What must work whatever is between the two gateways."""
    alice, bob = await named(http, a, "alice"), await named(http, b, "bob")
    await alice.open(BOB)
    await bob.open(ALICE)
    one = await alice.say(BOB, "one")
    await arrived(bob, ALICE, ["one"])
    await is_state(alice, BOB, one, "delivered")
    long = "two " * 999  # more than one frame holds
    two = await bob.say(ALICE, long)
    await arrived(alice, BOB, ["one", long])
    await is_state(bob, ALICE, two, "delivered")
    # The facade, on the same gateways.
    reader = Reader(await http.get(b.url("/topics"), params=TOPIC))
    await reader.block()
    answer = await http.post(a.url("/topics"), params=TOPIC, data="hello", headers={"Content-Type": "text/plain"})
    assert answer.status == 201, await answer.text()
    assert (await reader.next())[1]["text"] == "hello"
    reader.answer.close()
    return alice, bob


async def test_over_udp_between_three_processes_one_of_which_is_killed(tmp_path: Path, http: ClientSession) -> None:
    ports = free_udp_ports(4)
    (tmp_path / "between").mkdir()
    between = tmp_path / "between" / "node.toml"
    between.write_text(
        "\n".join(['socket = "node.sock"', 'data = "data"'])
        + "\n"
        + "\n".join(node_lines("between", ["rendezvous", "topology"], [(ports[1], ports[0]), (ports[2], ports[3])]))
    )
    files = [
        gateway_file(tmp_path / name, f"{name}.example", node_lines(name, [], [link], within="node"))
        for name, link in (("a", (ports[0], ports[1])), ("b", (ports[3], ports[2])))
    ]
    async with (
        running("node", "-c", str(between), up="node between"),
        running("gateway", "-c", str(files[0]), up=UP) as first,
    ):
        second = await Process.start("gateway", "-c", str(files[1]), up=UP)
        try:
            alice, bob = await talk(http, Elsewhere(first), Elsewhere(second))
            before = await bob.texts(ALICE)
            await second.kill()
            three = await alice.say(BOB, "three, to somebody who is away")
            await is_state(alice, BOB, three, "sent")
            second = await Process.start("gateway", "-c", str(files[1]), up=UP)
            bob.domain = Elsewhere(second)
            await arrived(bob, ALICE, [*before, "three, to somebody who is away"])
            await is_state(alice, BOB, three, "delivered")
        finally:
            await second.stop()


def no_namespaces() -> str | None:
    if os.geteuid() != 0:
        return "needs root to make network namespaces"
    if shutil.which("ip") is None:
        return "needs the `ip` command (Debian package iproute2)"
    name = f"psphchat{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"this machine does not allow network namespaces: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return None


async def test_over_raw_ethernet_between_namespaces(tmp_path: Path, http: ClientSession) -> None:
    """Three nodes in namespaces without any IP; the gateways reach theirs by its socket in the file system."""
    reason = no_namespaces()
    if reason is not None:
        pytest.skip(reason)
    data = tmp_path / "net"
    network = NamespaceNetwork(plan({"generate": {"kind": "line", "nodes": 3}}, tmp_path), data)
    network.up()
    try:
        for name in ("n0", "n2"):
            await until(socket_of(data, name).exists)
        addresses = subprocess.run(  # noqa: ASYNC221
            ["ip", "-n", network.namespace("n1"), "-4", "-br", "addr"], capture_output=True, text=True, check=True
        ).stdout
        assert not [line for line in addresses.splitlines() if line.startswith("v")], addresses
        files = [
            gateway_file(tmp_path / name, f"{name}.example", ["[network]", f'attach = "{socket_of(data, node)}"'])
            for name, node in (("a", "n0"), ("b", "n2"))
        ]
        async with (
            running("gateway", "-c", str(files[0]), up=UP) as first,
            running("gateway", "-c", str(files[1]), up=UP) as second,
        ):
            await talk(http, Elsewhere(first), Elsewhere(second))
    finally:
        network.down()
