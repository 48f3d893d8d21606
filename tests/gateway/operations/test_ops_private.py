"""What hubs, nodes and gateways keep is for their user alone, whatever the umask of whoever starts them."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.admin.access import AdminRole, Caller
from gateway.admin.audit import AuditLog
from gateway.cli.main import main
from tests.gateway.gateway_process import free_udp_ports, gateway_file, node_lines, running
from tests.storage.test_private import open_ones

TRACES = ["[traces]", 'directory = "traces"', 'format = "jsonl"']


@pytest.fixture
def careless() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("careless")
async def test_a_hub_keeps_what_it_knows_to_itself(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    words = ("--traces", str(tmp_path / "traces"), "--traces-format", "jsonl", "--no-canary")
    async with running("hub", "--port", "0", "--data", str(data), *words, up="hub at"):
        assert (data / "hub.sqlite-wal").exists()
        (life,) = (tmp_path / "traces").iterdir()
        assert [*open_ones(data), *open_ones(life)] == []
    assert [*open_ones(data), *open_ones(life)] == []


@pytest.mark.usefixtures("careless")
async def test_a_gateway_and_its_node_keep_what_they_know_to_themselves(tmp_path: Path) -> None:
    here, there = free_udp_ports(2)
    node = node_lines("between", ("rendezvous", "topology"), [(here, there)], within="node")
    file = gateway_file(tmp_path, "gate.example", [*TRACES, *node])
    async with running("gateway", "-c", str(file), up="is up"):
        data = tmp_path / "data"
        sockets = [path for path in data.rglob("*") if stat.S_ISSOCK(path.stat().st_mode)]
        assert len(sockets) == 1
        assert {"life", "rendezvous.sqlite", "gateway.sqlite", "hub.sqlite"} <= {path.name for path in data.rglob("*")}
        (life,) = (tmp_path / "traces").iterdir()
        assert [*open_ones(data), *open_ones(life)] == []
    assert main(["backup", "-c", str(file), str(tmp_path / "backup")]) == 0
    assert open_ones(tmp_path / "backup") == []


@pytest.mark.usefixtures("careless")
async def test_the_log_of_actions_is_closed_also_when_it_was_open(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.touch()
    path.chmod(0o644)
    await AuditLog(path, 4096).note(Caller(AdminRole.OPERATOR, "me", "127.0.0.1"), "retry", "t", None, "asked")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("option", ["--operator-token-file", "--publisher-token-file"])
def test_a_hub_refuses_tokens_that_others_can_read(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("one\n")
    tokens.chmod(0o644)
    assert main(["hub", "--port", "0", "--data", str(tmp_path / "data"), option, str(tokens)]) == 2
    assert f"{option}: others can read {tokens}; expected mode 0600 (chmod 600 {tokens})" in capsys.readouterr().err


def test_a_folder_that_is_not_the_hub_s_is_not_closed_but_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = tmp_path / "lib"
    shared.mkdir()
    shared.chmod(0o755)
    (shared / "of-somebody-else").touch()
    assert main(["hub", "--port", "0", "--data", str(shared)]) == 2
    assert f"chmod 700 {shared}" in capsys.readouterr().err
    assert stat.S_IMODE(shared.stat().st_mode) == 0o755
