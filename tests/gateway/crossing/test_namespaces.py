"""The feed scenario in network namespaces: each domain its own, joined by raw Ethernet and by nothing else.

The loopback of a domain is its Internet: gateway, publisher and subscriber meet there, and no IP leads anywhere else.
"""

import asyncio
import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path

import pytest

PATIENCE = 60.0
HUB = "http://127.0.0.1:8080/"
CABLES = (("gate-a", "f1"), ("f1", "core"), ("core", "gate-b"))
NAMES = ("gate-a", "f1", "core", "gate-b")
SIZES = (287, 1442, 100_000)
"""Within a frame, more than one, and many."""
TYPE = "application/rss+xml;charset=utf-8"


def why_not() -> str | None:
    if os.geteuid() != 0:
        return "needs root to make network namespaces"
    if shutil.which("ip") is None:
        return "needs the `ip` command (Debian package iproute2)"
    return None


pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=20, check=False)
    if done.returncode and words[:2] == ("netns", "add") and "not permitted" in done.stderr:
        pytest.skip(f"this machine does not allow network namespaces: {done.stderr.strip()}")
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"


@pytest.fixture
def namespaces() -> Iterator[dict[str, str]]:
    """One for each node, with cables; in the namespace of one, the interface to another is called like that one."""
    unique = f"psph{secrets.token_hex(3)}"
    names = {name: f"{unique}-{name}" for name in NAMES}
    with ExitStack() as stack:
        for namespace in names.values():
            ip("netns", "add", namespace)
            stack.callback(ip, "netns", "del", namespace)
            ip("-n", namespace, "link", "set", "lo", "up")
        for one, other in CABLES:
            ends = ("netns", names[one], "type", "veth", "peer", "name", one, "netns", names[other])
            ip("link", "add", other, *ends)
            ip("-n", names[one], "link", "set", other, "up")
            ip("-n", names[other], "link", "set", one, "up")
        yield names


SECRET = "domain.secret"


def configuration(name: str) -> str:
    neighbours = [two if one == name else one for one, two in CABLES if name in (one, two)]
    links = ", ".join(f'{{ ethernet = "{neighbour}" }}' for neighbour in neighbours)
    domain = f'domain = {{ secret_file = "{SECRET}", rendezvous = ["core"], topology = ["core"] }}'
    node = f'name = "{name}"\n{domain}\nlinks = [{links}]\ntimes = {{ hello = 0.2, lease = 3.0 }}\n'
    if name.startswith("gate"):
        hub = '[hub]\nlisten = "127.0.0.1:8080"\nallow_private = true\ncanary = { enabled = false }\n'
        return f'[store]\npath = "{name}"\n{hub}[node]\n{node}'
    roles = '["rendezvous", "topology"]' if name == "core" else "[]"
    return f'{node}roles = {roles}\ndata = "{name}"\nsocket = "{name}.sock"\n'


def document(size: int) -> bytes:
    head = f"<rss version='2.0'><channel><item><guid>urn:{size}</guid><description>"
    tail = "</description></item></channel></rss>"
    return (head + "." * (size - len(head) - len(tail)) + tail).encode()


class Inside:
    """A Python process inside a namespace."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def line(self) -> str:
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            return (await self._process.stdout.readline()).decode().strip()

    async def write(self, text: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(text.encode() + b"\n")
        return await self.line()

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


@asynccontextmanager
async def inside(namespace: str, module: str, *words: str) -> AsyncIterator[Inside]:
    process = await asyncio.create_subprocess_exec(
        *("ip", "netns", "exec", namespace, sys.executable, "-m", module, *words),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=16 * 1024 * 1024,
    )
    running = Inside(process)
    try:
        yield running
    finally:
        await running.kill()


async def test_a_feed_crosses_raw_ethernet_between_domains_without_a_common_internet(
    namespaces: dict[str, str], tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:

        async def run(name: str) -> Inside:
            file = tmp_path / f"{name}.toml"
            file.write_text(configuration(name))
            (tmp_path / SECRET).touch(mode=0o600)
            (tmp_path / SECRET).write_text("the secret of these five nodes")
            command = "gateway" if name.startswith("gate") else "node"
            started = inside(namespaces[name], "gateway.cli.main", command, "-c", str(file))
            process = await stack.enter_async_context(started)
            assert await process.line()
            return process

        running = {name: await run(name) for name in NAMES}
        stock = "tests.gateway.crossing.stock_process"
        publisher = await stack.enter_async_context(inside(namespaces["gate-b"], stock, "publisher", HUB))
        topic = await publisher.line()
        subscriber = await stack.enter_async_context(inside(namespaces["gate-a"], stock, "subscriber", HUB, topic))
        assert await subscriber.line() == "subscribed"
        for size in SIZES:
            body = document(size)
            assert await publisher.write(f"{TYPE} {body.hex()}") == "taken"
            delivered = json.loads(await subscriber.line())
            assert bytes.fromhex(delivered["body"]) == body
            assert delivered["type"] == TYPE
            assert (delivered["hub"], delivered["topic"]) == (HUB, topic)
        # A gateway that was away gets what it missed, in order.
        await running["gate-a"].kill()
        missed = [f"missed {number}".encode() for number in range(2)]
        for body in missed:
            assert await publisher.write(f"text/plain {body.hex()}") == "taken"
            # The next ping may otherwise be answered by the same look at the document.
            await settled(namespaces["gate-b"], topic, body)
        running["gate-a"] = await run("gate-a")
        arrived: list[bytes] = []
        while len(arrived) < len(missed):
            body = bytes.fromhex(json.loads(await subscriber.line())["body"])
            if body != document(SIZES[-1]):  # repeated when the kill came before its delivery was written down
                arrived.append(body)
        assert arrived == missed


async def settled(namespace: str, topic: str, body: bytes) -> None:
    """Wait until a hub has stored a document: a subscriber of its own says so."""
    words = ("subscriber", HUB, topic)
    async with inside(namespace, "tests.gateway.crossing.stock_process", *words) as witness:
        assert await witness.line() == "subscribed"
