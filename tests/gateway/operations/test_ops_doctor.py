"""Every check of `psph doctor`, on a machine or a gateway that really has the trouble."""

import json
import os
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import dns.resolver
import pytest

from gateway.cli.main import main
from gateway.config import check
from gateway.gateway import DATABASE_NAME, Gateway, GatewayConfig
from gateway.operations import checks_machine
from gateway.operations.checks_machine import (
    CheckedPort,
    check_admin,
    check_clock,
    check_names,
    check_permissions,
    check_ports,
    check_space,
    ports_of,
)
from gateway.operations.checks_network import check_links, check_rendezvous
from gateway.operations.doctor import check_stores, examine, is_running
from gateway.operations.findings import Finding, FindingLevel
from gateway.store import TABLES
from psirp_stack.node.config import DomainFile, LinkFile, NodeFile
from storage import Database
from tests.gateway.access.test_access_tls import make

NOBODY = 65534


def verdicts(findings: "Iterator[Finding] | list[Finding]") -> list[FindingLevel]:
    found = list(findings)
    for finding in found:
        assert finding.text
        assert finding.fix or finding.verdict in (FindingLevel.GOOD, FindingLevel.UNKNOWN), (
            "trouble comes with what to do"
        )
    return [finding.verdict for finding in found]


def free_port(kind: int = socket.SOCK_DGRAM) -> int:
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def config_file(tmp_path: Path, *, peer: int, own: int, roles: str = "") -> Path:
    path = tmp_path / "gateway.toml"
    path.write_text(
        f'[store]\npath = "data"\n[hub]\nlisten = "127.0.0.1:0"\n[node]\nname = "a"\nroles = [{roles}]\n'
        f'[[node.links]]\nudp = "127.0.0.1:{own}"\npeer = "127.0.0.1:{peer}"\n[node.times]\nhello = 0.05\n'
        '[node.domain]\nrendezvous = ["a", "b"]\ntopology = ["a", "b"]\n'
    )
    return path


def loaded(tmp_path: Path, document: dict[str, object]) -> GatewayConfig:
    return check({"node": {"name": "a"}, **document}, tmp_path)


async def test_a_configuration_that_cannot_be_used(tmp_path: Path) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text("[hub]\nlisten = 5\n")
    findings = await examine(path, {})
    assert verdicts(findings) == [FindingLevel.BAD]
    assert "hub.listen" in findings[0].text


def test_a_port_that_another_program_has() -> None:
    for kind, udp in ((socket.SOCK_STREAM, False), (socket.SOCK_DGRAM, True)):
        with socket.socket(socket.AF_INET, kind) as other:
            other.bind(("127.0.0.1", 0))
            if not udp:
                other.listen()
            port = CheckedPort("the hub", "127.0.0.1", other.getsockname()[1], udp)
            assert verdicts(check_ports([port], running=False)) == [FindingLevel.BAD]
            assert verdicts(check_ports([port], running=True)) == [FindingLevel.GOOD]
        assert verdicts(check_ports([port], running=False)) == [FindingLevel.GOOD]
        assert verdicts(check_ports([port], running=True)) == [FindingLevel.BAD], "it runs and does not listen"


def test_an_address_that_this_machine_does_not_have() -> None:
    (finding,) = check_ports([CheckedPort("the hub", "192.0.2.1", 8080)], running=False)
    assert finding.verdict is FindingLevel.BAD
    assert "no such address" in finding.text


async def test_an_admin_port_that_another_program_has(tmp_path: Path) -> None:
    path = config_file(tmp_path, peer=free_port(), own=free_port(), roles='"rendezvous", "topology"')
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        path.write_text(path.read_text() + f'[admin]\nlisten = "127.0.0.1:{other.getsockname()[1]}"\n')
        found = await examine(path, {}, names=False)
    (finding,) = [one for one in found if one.verdict is FindingLevel.BAD]
    assert "the admin port" in finding.text
    assert "another program has it" in finding.text
    found = await examine(path, {}, names=False)
    (finding,) = [one for one in found if "the admin port" in one.text]
    assert finding.verdict is FindingLevel.GOOD


def test_an_admin_port_whose_tokens_can_be_read_on_the_way(tmp_path: Path) -> None:
    (tmp_path / "tokens").touch(mode=0o600)
    (tmp_path / "tokens").write_text("a-token\n")
    admin: dict[str, object] = {"listen": "0.0.0.0:0", "viewer_tokens_file": "tokens"}
    assert verdicts(check_admin(loaded(tmp_path, {"admin": admin}).admin)) == [FindingLevel.DOUBTFUL]
    make(tmp_path, "x")
    admin["tls"] = {"certificate": "certificate.pem", "key": "key.pem"}
    assert verdicts(check_admin(loaded(tmp_path, {"admin": admin}).admin)) == [FindingLevel.GOOD]
    assert verdicts(check_admin(loaded(tmp_path, {"admin": {"listen": "127.0.0.1:0"}}).admin)) == []
    assert verdicts(check_admin(None)) == []


def test_a_port_that_is_configured_twice(tmp_path: Path) -> None:
    number = free_port(socket.SOCK_STREAM)
    same = CheckedPort("the hub", "127.0.0.1", number)
    for host, udp, collides in (
        ("127.0.0.1", False, True),
        ("0.0.0.0", False, True),
        ("::", False, True),
        ("127.0.0.2", False, False),
        ("127.0.0.1", True, False),
        ("::1", False, False),
    ):
        found = list(check_ports([same, CheckedPort("the admin port", host, number, udp)], running=False))
        twice = [one for one in found if "are the same" in one.text]
        assert verdicts(twice) == [FindingLevel.BAD] * collides, host
    anything = [CheckedPort("the hub", "127.0.0.1", 0), CheckedPort("the admin port", "127.0.0.1", 0)]
    assert verdicts(check_ports(anything, running=False)) == [FindingLevel.GOOD, FindingLevel.GOOD]
    config = loaded(tmp_path, {"hub": {"listen": f"127.0.0.1:{number}"}, "web": {"listen": f"127.0.0.1:{number}"}})
    first = next(check_ports(ports_of(config), running=False))
    assert "the hub" in first.text
    assert "the web page" in first.text
    assert "another port" in first.fix


def as_nobody(code: str) -> str:
    """Output of a script that runs without any rights."""
    if os.geteuid() != 0:
        pytest.skip("only root can become nobody")
    done = subprocess.run(
        ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups", "--bounding-set", "-all",
         "--inh-caps", "-all", sys.executable, "-c", code],
        capture_output=True, text=True, timeout=60, check=False, env={"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


SHOW = "for f in found: print(f.verdict.value, f.text, '->', f.fix)"


def test_a_low_port_without_the_right_to_it() -> None:
    if int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text()) <= 1:
        pytest.skip("this kernel lets everybody have low ports")
    said = as_nobody(
        "from gateway.operations.checks_machine import *\n"
        f"found = check_ports([CheckedPort('the hub', '127.0.0.1', 1)], running=False)\n{SHOW}"
    )
    assert said.startswith("bad")
    assert "CAP_NET_BIND_SERVICE" in said


def test_a_directory_that_the_user_may_not_write(tmp_path: Path) -> None:
    look = "from gateway.operations.checks_machine import *\nfrom pathlib import Path\n"
    said = as_nobody(f"{look}found = check_permissions(Path({str(tmp_path / 'data')!r}), [])\n{SHOW}")
    assert said.startswith("bad")
    assert f"install -d -o {NOBODY}" in said
    said = as_nobody(f"{look}found = check_permissions(Path('/usr'), [])\n{SHOW}")
    assert said.startswith("bad")
    assert f"chown -R {NOBODY}" in said


def test_raw_ethernet_without_the_right_to_it(tmp_path: Path) -> None:
    said = as_nobody(
        "from gateway.operations.checks_machine import *\nfrom pathlib import Path\n"
        "from psirp_stack.node.config import LinkFile\n"
        f"found = check_permissions(Path('/tmp'), [LinkFile(ethernet='lo')])\n{SHOW}"
    )
    assert "CAP_NET_RAW" in said


def test_links_that_leave_the_machine_are_sealed_or_reported(tmp_path: Path) -> None:
    secret = tmp_path / "domain.secret"
    secret.touch(mode=0o600)
    secret.write_text("the secret of a domain")
    link = LinkFile(udp="192.0.2.1:4001", peer="192.0.2.2:4001")
    near = LinkFile(udp="127.0.0.1:4001", peer="127.0.0.1:4002")
    sealed = NodeFile("a", domain=DomainFile(secret_file=str(secret)), links=(link, near))
    assert [finding.text for finding in check_links(sealed)] == [
        "1 link to other machines, sealed with the domain's secret"
    ]
    (open_one,) = check_links(NodeFile("a", domain=DomainFile(open=True), links=(link,)))
    assert open_one.verdict is FindingLevel.BAD
    assert "can join, read and forge" in open_one.text
    assert "psph keys setup" in open_one.fix
    assert not list(check_links(NodeFile("a", links=(near,))))
    assert not list(check_links(None))


def test_an_interface_that_is_not_there(tmp_path: Path) -> None:
    found = list(check_permissions(tmp_path, [LinkFile(ethernet="nothere0")]))
    assert found[-1].verdict is FindingLevel.BAD
    assert "nothere0" in found[-1].text


def test_a_file_where_the_store_should_be(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    assert verdicts(check_permissions(tmp_path / "data" / "deeper", [])) == [FindingLevel.BAD]


def test_a_store_that_others_can_look_into(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o755)
    assert verdicts(check_permissions(data, [])) == [FindingLevel.GOOD, FindingLevel.DOUBTFUL]
    data.chmod(0o750)
    assert verdicts(check_permissions(data, [])) == [FindingLevel.GOOD, FindingLevel.DOUBTFUL]
    data.chmod(0o700)
    assert verdicts(check_permissions(data, [])) == [FindingLevel.GOOD]


def test_a_disk_without_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdicts(check_space(tmp_path))[0] in (FindingLevel.GOOD, FindingLevel.DOUBTFUL, FindingLevel.BAD)
    monkeypatch.setattr(checks_machine, "LEAST_FREE_BYTES", 1 << 60)
    assert verdicts(check_space(tmp_path)) == [FindingLevel.BAD]
    monkeypatch.setattr(checks_machine, "LEAST_FREE_BYTES", 0)
    monkeypatch.setattr(checks_machine, "LOW_FREE_PART", 1.1)
    assert verdicts(check_space(tmp_path)) == [FindingLevel.DOUBTFUL]


def test_a_clock_that_went_back(tmp_path: Path) -> None:
    Database.open(tmp_path / DATABASE_NAME, TABLES).close()
    assert verdicts(check_clock(tmp_path, time.time(), lambda: True)) == [FindingLevel.GOOD]
    future = time.time() + 3600
    os.utime(tmp_path / DATABASE_NAME, (future, future))
    assert verdicts(check_clock(tmp_path, time.time(), lambda: True)) == [FindingLevel.BAD, FindingLevel.GOOD]


def test_a_clock_that_nobody_keeps_right(tmp_path: Path) -> None:
    assert verdicts(check_clock(tmp_path, time.time(), lambda: False)) == [FindingLevel.DOUBTFUL]
    assert verdicts(check_clock(tmp_path, time.time(), lambda: None)) == [FindingLevel.UNKNOWN]
    assert checks_machine.kernel_synchronised() in (True, False, None)


def test_a_name_that_nobody_knows(tmp_path: Path) -> None:
    config = loaded(tmp_path, {"hub": {"public_url": "http://hub.invalid/"}})
    assert verdicts(check_names(config, dns.resolver.Resolver(configure=False))) == [FindingLevel.BAD]
    config = loaded(tmp_path, {"hub": {"public_url": "http://localhost/"}})
    assert verdicts(check_names(config, dns.resolver.Resolver(configure=False))) == [FindingLevel.GOOD]


def test_a_name_server_that_does_not_answer(tmp_path: Path) -> None:
    resolver = dns.resolver.Resolver(configure=False)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        resolver.nameservers, resolver.port = ["127.0.0.1"], silent.getsockname()[1]
        resolver.timeout = 0.2
        config = loaded(tmp_path, {"gateway": {"zones": ["example.com"]}})
        try:
            checks_machine.NAME_LIFETIME = 0.3
            found = list(check_names(config, resolver))
        finally:
            checks_machine.NAME_LIFETIME = 5.0
    assert verdicts(found) == [FindingLevel.UNKNOWN, FindingLevel.BAD]


def test_a_store_that_is_spoilt(tmp_path: Path) -> None:
    path = tmp_path / DATABASE_NAME
    Database.open(path, TABLES).close()
    assert verdicts(check_stores(tmp_path, thorough=True)) == [FindingLevel.GOOD]
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * 8192 + whole[12288:])
    (finding,) = check_stores(tmp_path, thorough=True)
    assert finding.verdict is FindingLevel.BAD
    assert "psph restore" in finding.fix


def test_stores_of_newer_software_and_of_none(tmp_path: Path) -> None:
    path = tmp_path / DATABASE_NAME
    Database.open(path, TABLES).close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE schema_version SET version = 99")
    connection.close()
    assert verdicts(check_stores(tmp_path, thorough=False)) == [FindingLevel.BAD]
    path.unlink()
    with sqlite3.connect(tmp_path / "other.sqlite") as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    assert verdicts(check_stores(tmp_path, thorough=False)) == [FindingLevel.BAD]


async def test_no_neighbour_and_then_no_rendezvous_and_then_one(tmp_path: Path) -> None:
    here, there = free_port(), free_port()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    path = config_file(tmp_path / "a", peer=there, own=here)
    found = await examine(path, {}, names=False, patience=0.3)
    assert found[-1].verdict is FindingLevel.BAD
    assert "no neighbour" in found[-1].text
    from psirp_stack.node.config import load
    from psirp_stack.node.shell import RunningNode

    for roles, verdict, text in (
        ("", FindingLevel.BAD, "none knows a rendezvous"),
        ('"rendezvous"', FindingLevel.GOOD, "'b'"),
    ):
        other = tmp_path / "b" / "node.toml"
        other.write_text(
            f'name = "b"\ndata = "data"\nroles = [{roles}]\n[times]\nhello = 0.05\n'
            f'[[links]]\nudp = "127.0.0.1:{there}"\npeer = "127.0.0.1:{here}"\n'
        )
        node = await RunningNode.start(load(other), other.parent)
        try:
            found = await examine(path, {}, names=False, patience=1.0 if verdict is FindingLevel.BAD else 20.0)
            assert found[-1].verdict is verdict, found[-1]
            assert text in found[-1].text
        finally:
            await node.close()


async def test_a_node_that_does_not_run(tmp_path: Path) -> None:
    config = check({"network": {"attach": "nothing.sock"}}, tmp_path)
    finding = await check_rendezvous(config, running=False, patience=0.2)
    assert verdicts([finding]) == [FindingLevel.BAD]
    assert "psph node" in finding.fix


async def test_a_gateway_that_runs_is_well(tmp_path: Path) -> None:
    path = config_file(tmp_path, peer=free_port(), own=free_port(), roles='"rendezvous", "topology"')
    from gateway.config import load

    config = load(path, {})
    gateway = Gateway(config)
    assert not is_running(config)
    await gateway.start()
    try:
        assert is_running(config)
        found = await examine(path, {}, names=False)
        bad = [finding for finding in found if finding.verdict is FindingLevel.BAD]
        assert not bad, bad
        assert "runs now" in found[0].text
    finally:
        await gateway.stop()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config_file(tmp_path, peer=free_port(), own=free_port(), roles='"rendezvous", "topology"')
    assert main(["doctor", "-c", str(path), "--no-names"]) == 0
    assert "0 things are bad" in capsys.readouterr().out
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / DATABASE_NAME).write_bytes(b"not a database at all" * 1000)
    assert main(["doctor", "-c", str(path), "--no-names", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [one["check"] for one in found if one["verdict"] == "bad"] == ["store"]
