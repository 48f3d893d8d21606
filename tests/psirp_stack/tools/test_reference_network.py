"""Networks of scapy: they deliver what fast ones deliver, every decision is compared, packets are shown hop by hop."""

from pathlib import Path
from typing import Any

import pytest

from gateway.cli.main import main
from psirp_stack.emulation.experiment import simulate
from psirp_stack.emulation.plan import NetworkPlan, plan
from psirp_stack.forwarding_rules import ForwardingRoute, ForwardingRules
from psirp_stack.tools.reference_network import Comparison, PacketAtHop, PacketsShown, is_shown, with_reference

BUSY: dict[str, Any] = {
    "generate": {"kind": "ring", "nodes": 6},
    "every_link": {"delay": 0.001, "loss": 0.02},
    "cache": {"bytes": 100_000},
    "roles": {"rendezvous": ["n0", "n3"]},
    "seconds": 6.0,
    "workloads": [
        {"publisher": "n1", "subscribers": ["n3", "n5"], "rate": 5.0, "bytes": 3000},
        {"publisher": "n2", "subscribers": ["n4"], "rate": 1.0, "get": True},
    ],
    "events": [{"at": 2.0, "cut": ["n1", "n2"]}, {"at": 3.0, "kill": "n0"}, {"at": 4.0, "mend": ["n1", "n2"]}],
}


def described(folder: Path, **more: Any) -> NetworkPlan:
    return plan({**BUSY, **more}, folder)


def test_every_decision_of_a_busy_network_is_that_of_the_fast_forwarder(tmp_path: Path) -> None:
    comparison = Comparison()
    outcome = simulate(with_reference(described(tmp_path), None, comparison), tmp_path)
    assert comparison.differences == []
    assert comparison.compared > 1500
    assert [row["received"] for row in outcome.rows][:2] == [30, 30]


def test_a_fault_of_the_fast_forwarder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = ForwardingRules.route

    def wrong(rules: ForwardingRules, header: bytes, arrival: int | None) -> ForwardingRoute:
        route = right(rules, header, arrival)
        return route._replace(out=()) if route.out else route

    monkeypatch.setattr(ForwardingRules, "route", wrong)
    comparison = Comparison()
    simulate(with_reference(described(tmp_path, seconds=1.0, events=[]), None, comparison), tmp_path)
    assert comparison.differing > 0
    assert comparison.differences[0].reference.out
    assert not comparison.differences[0].fast.out


def test_it_delivers_what_a_fast_network_delivers(tmp_path: Path) -> None:
    for folder in ("fast", "reference"):
        (tmp_path / folder).mkdir()
    one = described(tmp_path, every_link={"delay": 0.002}, seconds=3.0, events=[])
    fast = simulate(one, tmp_path / "fast")
    packets: list[PacketAtHop] = []
    slow = simulate(with_reference(one, packets.append), tmp_path / "reference")
    assert slow.rows == fast.rows
    seen = [packet for packet in packets if is_shown(packet.frame, PacketsShown.PUBLICATIONS)]
    assert 0 < len(seen) < len([packet for packet in packets if is_shown(packet.frame, PacketsShown.CONTROL)])
    assert {packet.node for packet in packets} == set(one.graph.names)


TINY = """
seconds = 2
generate = { kind = "line", nodes = 3 }
[[workloads]]
publisher = "n0"
subscribers = ["n2"]
bytes = 100
start = 1
"""


def test_packets_are_shown_layer_by_layer_at_each_hop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tiny.toml"
    file.write_text(TINY)
    words = ["net", "up", str(file), "--data", str(tmp_path / "data"), "--simulated"]
    assert main([*words, "--reference", "--compare", "--trace", "publications"]) == 0
    shown = capsys.readouterr().out
    assert "n0, made here" in shown
    assert "transport: Announcement(publisher n0" in shown
    for line in ("n1, from n0,", "=> to n2", "n2, from n1,", "=> up the stack"):
        assert line in shown
    assert "decisions compared with the fast forwarders': 0 differ" in shown
    assert "Hello" not in shown


@pytest.mark.parametrize(
    "options",
    [["--trace", "all"], ["--compare"], ["--reference", "--step"], ["--reference", "--trace", "all", "--step"]],
)
def test_what_makes_no_sense_is_said(tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tiny.toml"
    file.write_text(TINY)
    assert main(["net", "up", str(file), "--data", str(tmp_path), *options]) == 2
    assert "--" in capsys.readouterr().err
