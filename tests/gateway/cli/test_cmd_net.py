"""`psph net`, `psph node`, `psph pub`, `psph sub` and `psph explain` as people run them: processes and their output."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.cli.cmd_net import status_table
from identifiers import Identifier
from psirp_stack.emulation.namespaces import NamespaceNetwork
from psirp_stack.emulation.plan import plan
from psirp_stack.node.api import Client
from psirp_stack.node.attachment import ReceivedVersion
from tests.waiting import until

ROOT = Path(__file__).parents[3]
PSPH = (sys.executable, "-m", "gateway.cli.main")
TOPIC = "http://example.com/feed"
SECONDS = 40.0


def psph(*words: str, data: bytes = b"", code: int = 0) -> bytes:
    done = subprocess.run([*PSPH, *words], input=data, capture_output=True, timeout=SECONDS, cwd=ROOT, check=False)
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout if code in (0, 1) else done.stderr


@contextmanager
def running(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command in the background, ended by SIGTERM; it must end well."""
    process = subprocess.Popen(
        [*PSPH, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, start_new_session=True
    )
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, errors
        assert b"Traceback" not in errors
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def first_line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().decode()
    assert line, process.stderr.read() if process.stderr else ""
    return line


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    path = tmp_path / "ring.toml"
    path.write_text('[generate]\nkind = "ring"\nnodes = 4\n[every_link]\ndelay = 0.001\n')
    return path


def test_a_network_from_up_to_pub_sub_explain_and_status(topology: Path, tmp_path: Path) -> None:
    data = tmp_path / "net"
    with running("net", "up", str(topology), "--data", str(data)) as network:
        assert first_line(network) == "4 nodes and 4 links are up\n"
        publisher = ("--socket", str(data / "n1.sock"))
        subscriber = ("--socket", str(data / "n3.sock"))
        assert b"no publisher and no subscriber" in psph("explain", TOPIC, *publisher, code=1)
        with running("sub", TOPIC, "--json", *subscriber) as listener:
            deadline = time.monotonic() + SECONDS
            while b"no publisher;" not in psph("explain", TOPIC, *publisher, code=1):
                assert time.monotonic() < deadline
            assert len(psph("pub", TOPIC, *publisher, data=b"hello\n").split()) == 1
            received = json.loads(first_line(listener))
            assert (received["content"], received["bytes"]) == ("hello\n", 6)
            other = psph("explain", TOPIC, "--hash", "sha256", *publisher, code=1).decode()
            assert "scheme mismatch" in other
            assert "sha1" in other
        status = psph("net", "status", "--data", str(data)).decode()
        assert [line.split()[0] for line in status.splitlines()[:5]] == ["node", "n0", "n1", "n2", "n3"]
        assert max(map(len, status.splitlines())) <= 100
        accounts = json.loads(psph("net", "status", "--data", str(data), "--json"))
        assert accounts["n2"]["graph"]["nodes"] == ["n0", "n1", "n2", "n3"]
    assert not list(data.glob("*.sock"))


def test_what_is_published_without_hold_still_reaches_who_is_subscribed(topology: Path, tmp_path: Path) -> None:
    data = tmp_path / "net"
    with running("net", "up", str(topology), "--data", str(data)) as network:
        first_line(network)
        listener = subprocess.Popen(
            [*PSPH, "sub", "::01/::02", "--count", "2", "--timeout", "30", "--socket", str(data / "n2.sock")],
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        lines = b"".join(b"line %d\n" % number for number in range(2))
        deadline = time.monotonic() + SECONDS
        while b"no publisher;" not in psph("explain", "::01/::02", "--socket", str(data / "n0.sock"), code=1):
            assert time.monotonic() < deadline
        psph("pub", "::01/::02", "--lines", "--socket", str(data / "n0.sock"), data=lines)
        assert listener.communicate(timeout=SECONDS)[0] == b"line 0line 1"
        assert listener.returncode == 0


def test_errors_are_one_line(tmp_path: Path) -> None:
    nowhere = ("--socket", str(tmp_path / "none.sock"))
    assert psph("pub", TOPIC, *nowhere, data=b"x", code=2).count(b"\n") == 1
    assert b"expected" in psph("sub", TOPIC, "--count", "0", *nowhere, code=2)
    assert b"no nodes in" in psph("net", "status", "--data", str(tmp_path), code=2)
    bad = tmp_path / "bad.toml"
    bad.write_text('name = "a"\nlinkz = []\n')
    assert b"linkz" in psph("node", "-c", str(bad), code=2)
    bad.write_text('[generate]\nkind = "knot"\nnodes = 3\n')
    assert b"generate.kind" in psph("net", "up", str(bad), "--data", str(tmp_path / "x"), code=2)


def test_the_status_table_is_readable_at_a_hundred_columns() -> None:
    account = {
        "roles": ["rendezvous", "topology"],
        "links": [{"number": number, "neighbour": f"neighbour-{number}"} for number in range(12)],
        "graph": {"nodes": ["a"] * 300},
        "publishes": 100_000,
        "subscribes": 100_000,
        "matches": 1_000_000,
        "filters": 3,
        "forwarder": {"received": 123_456_789},
        "drops": {"control: for another node": 5, "forwarder: no link matches": 123_456},
    }
    text = status_table({"some-node-with-a-long-name": account, "silent": None}, width=100)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    assert "does not answer" in text
    for word in ("1,000,000", "123,456,789", "neighbour-11", "no link matches 123,456"):
        assert word in text, text


def why_no_namespaces() -> str | None:
    if os.geteuid() != 0:
        return "needs root to make network namespaces"
    if shutil.which("ip") is None:
        return "needs the `ip` command (Debian package iproute2)"
    made = subprocess.run(["ip", "netns", "add", f"psphtry{os.getpid()}"], capture_output=True, check=False)
    if made.returncode:
        return f"this machine does not allow network namespaces: {made.stderr.decode().strip()}"
    subprocess.run(["ip", "netns", "del", f"psphtry{os.getpid()}"], capture_output=True, check=False)
    return None


@pytest.mark.skipif(why_no_namespaces() is not None, reason=str(why_no_namespaces()))
def test_a_network_of_namespaces_survives_kill_9_of_a_node(tmp_path: Path) -> None:
    network = NamespaceNetwork(plan({"generate": {"kind": "ring", "nodes": 4}}, tmp_path), tmp_path)
    network.up()
    try:
        asyncio.run(_survive(network, tmp_path))
    finally:
        network.down()
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert network.namespace("n0") not in left


async def _survive(network: NamespaceNetwork, data: Path) -> None:
    sid, rid = Identifier(b"\1" * 32), Identifier(b"\2" * 32)
    publisher, subscriber = [await _attached(data / f"{name}.sock") for name in ("n1", "n3")]
    got: list[bytes] = []
    arrived: asyncio.Queue[bytes] = asyncio.Queue()

    def take(publication: ReceivedVersion) -> None:
        got.append(publication.content)
        arrived.put_nowait(publication.content)

    await subscriber.subscribe(sid, rid, take)

    async def published(content: bytes) -> None:
        async with asyncio.timeout(SECONDS):
            await publisher.publish(sid, rid, content)
            while await arrived.get() != content:
                pass

    await published(b"before")
    network.kill("n2")  # the way may lead through it
    await published(b"without n2")
    network.start("n2")
    network.kill("n3")  # the subscriber's own node
    network.start("n3")
    await published(b"after n3 came back")
    assert got == sorted(set(got), key=got.index), "each once"
    assert got[0] == b"before"
    assert subscriber.reattachments == 1
    await publisher.close()
    await subscriber.close()


async def _attached(path: Path) -> Client:
    attached: list[Client] = []

    async def attach() -> bool:
        with contextlib.suppress(ConnectionError):
            attached.append(await Client.attach(path))
        return bool(attached)

    await until(attach, SECONDS, f"a node at {path}")
    return attached[0]


@pytest.mark.skipif(why_no_namespaces() is not None, reason=str(why_no_namespaces()))
def test_net_up_in_namespaces_ends_cleanly_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "line.toml"
    path.write_text('[generate]\nkind = "line"\nnodes = 2\n')
    with running("net", "up", str(path), "--netns", "--data", str(tmp_path / "net")) as network:
        assert first_line(network) == "2 nodes and 1 link are up\n"
        prefix = f"psph{network.pid}-"
        assert prefix in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert prefix not in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout


def test_a_node_killed_and_started_again_with_its_file(tmp_path: Path) -> None:
    """`psph node`: two of them over UDP are covered by what applications see; here the file and the signal."""
    path = tmp_path / "node.toml"
    path.write_text('name = "a"\nroles = ["rendezvous", "topology"]\ndata = "a"\nsocket = "a.sock"\n')
    assert b"can be started" in psph("node", "-c", str(path), "--check")
    lives = []
    for _ in range(2):
        with running("node", "-c", str(path)) as node:
            assert first_line(node).startswith("node a is up (forwarder, rendezvous, topology; 0 links")
            psph("pub", "::01/::02", "--socket", str(tmp_path / "a.sock"), data=b"x")
            lives.append(int((tmp_path / "a" / "life").read_text()))
    assert lives[0] < lives[1]
