"""Safe by default: what leaves the machine is sealed, or the configuration says in so many words that it is not."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from psirp_stack.node.config import DomainFile, LinkFile, NodeConfigError, NodeFile, check
from psirp_stack.node.shell import RunningNode

FAR = {"udp": "192.0.2.1:4001", "peer": "192.0.2.2:4001"}
NEAR = {"udp": "127.0.0.1:0", "peer": "127.0.0.1:4002"}


@pytest.mark.parametrize(
    ("link", "leaves"),
    [
        (FAR, True),
        (NEAR, False),
        ({"udp": "[::1]:4001", "peer": "[::1]:4002"}, False),
        ({"udp": "0.0.0.0:4001", "peer": "127.0.0.1:4002"}, True),
        ({"udp": "127.0.0.1:4001", "peer": "192.0.2.2:4001"}, True),
        ({"udp": "[fe80::1]:4001", "peer": "[fe80::2]:4001"}, True),
        ({"ethernet": "veth0"}, True),
        ({"ethernet": "lo"}, True),
    ],
)
def test_a_link_that_leaves_the_machine_wants_a_secret(link: dict[str, str], leaves: bool) -> None:
    document: dict[str, object] = {"name": "a", "links": [NEAR, link]}
    if not leaves:
        check(document)
        return
    with pytest.raises(NodeConfigError, match=r"psph keys setup.*open = true"):
        check(document)
    assert check({**document, "domain": {"open": True}}).domain.open
    assert check({**document, "domain": {"secret_file": "x"}}).domain.secret_file == "x"


def test_open_and_a_secret_contradict_each_other() -> None:
    with pytest.raises(NodeConfigError, match=r"secret_file.*domain\.open"):
        check({"name": "a", "domain": {"open": True, "secret_file": "x"}})


async def test_a_node_refuses_to_start_without_either(tmp_path: Path) -> None:
    """Also one whose configuration was not read from a file."""
    with pytest.raises(NodeConfigError, match="anybody there could join"):
        await RunningNode.start(NodeFile("a", links=(LinkFile(**FAR),)), tmp_path)


async def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    secret = tmp_path / "domain.secret"
    secret.write_text("known to everybody here")
    secret.chmod(0o644)
    file = NodeFile("a", domain=DomainFile(secret_file="domain.secret"), links=(LinkFile(**NEAR),))
    with pytest.raises(NodeConfigError, match="others can read"):
        await RunningNode.start(file, tmp_path)
    secret.chmod(0o600)
    await (await RunningNode.start(file, tmp_path)).close()


def test_an_open_node_starts_and_warns(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text('name = "a"\n[domain]\nopen = true\n[[links]]\nudp = "0.0.0.0:0"\npeer = "127.0.0.1:4002"\n')
    command = [sys.executable, "-m", "gateway.cli.main", "node", "-c", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "node a is up" in process.stdout.readline()
        os.kill(process.pid, signal.SIGTERM)
        assert "warning: the domain is open" in process.stderr.read()
    assert process.returncode == 0


async def test_a_node_says_of_each_link_whether_it_is_sealed_and_proved(tmp_path: Path) -> None:
    secret = tmp_path / "domain.secret"
    secret.touch(mode=0o600)
    secret.write_text("known to members only")
    domain = DomainFile(secret_file="domain.secret")
    running = await RunningNode.start(NodeFile("a", domain=domain, links=(LinkFile(**NEAR),)), tmp_path)
    try:
        account = running.node.link_accounts[1]()
        assert (account.sealed, account.proved) == (True, False)
        await asyncio.sleep(0)
        assert not running.link(1).send(b"to nobody")
        assert running.node.link_accounts[1]().drops["sent before the neighbour proved itself"] > 0
    finally:
        await running.close()
