"""Experiments: what happens when, what is measured, plug-ins; the same file on a virtual clock and live."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.main import main
from psirp_stack.control.tag_source import DerivedTags, TagSource
from psirp_stack.emulation.experiment import perform, simulate, simulated_network
from psirp_stack.emulation.network import EmulatedNetwork
from psirp_stack.emulation.plan import NetworkPlan, PlanError, load, plan
from psirp_stack.graph import Graph
from psirp_stack.node.settings import NodeSettings
from psirp_stack.pull.service import VersionCacheConfig

RING: dict[str, Any] = {"generate": {"kind": "ring", "nodes": 6}, "every_link": {"delay": 0.002}, "seconds": 10.0}


def made(folder: Path, **more: Any) -> NetworkPlan:
    return plan({**RING, **more}, folder)


def test_a_link_that_is_cut_and_a_node_that_dies_cost_what_they_cost(tmp_path: Path) -> None:
    described = made(
        tmp_path,
        workloads=[{"publisher": "n0", "subscribers": ["n2", "n3"], "rate": 20.0, "bytes": 300}],
        events=[
            {"at": 2.0, "cut": ["n1", "n2"]},
            {"at": 4.0, "mend": ["n1", "n2"]},
            {"at": 6.0, "kill": "n3"},
            {"at": 7.0, "revive": "n3"},
        ],
    )
    outcome = simulate(described, tmp_path)
    assert [text for _, text in outcome.events] == ["cut n1 - n2", "mend n1 - n2", "kill n3", "revive n3"]
    assert [at for at, _ in outcome.events] == pytest.approx([2.0, 4.0, 6.0, 7.0])
    near, died = outcome.rows
    assert near["published"] == near["received"] == 200
    assert near["repeated"] == near["skipped"] == 0
    assert isinstance(near["median s"], float)
    assert 0.004 <= near["median s"] < 0.01
    assert near["most s"] is not None
    assert died["received"] == 200, "it came back, and got what it had missed"
    assert isinstance(died["most s"], float)
    assert died["most s"] > 0.9
    assert json.loads(json.dumps(outcome.as_document()))["readers"][0]["received"] == 200
    (tmp_path / "again").mkdir()
    again = simulate(described, tmp_path / "again")
    assert again.as_document() == outcome.as_document(), "the same seed gives the same history"


def test_a_link_becomes_bad_without_going_down(tmp_path: Path) -> None:
    described = made(
        tmp_path,
        generate={"kind": "line", "nodes": 2},
        workloads=[{"publisher": "n0", "rate": 50.0}],
        events=[{"at": 3.0, "impair": ["n0", "n1"], "loss": 0.3, "delay": 0.05}, {"at": 6.0, "impair": ["n0", "n1"]}],
    )
    network = simulated_network(described, tmp_path)
    try:
        outcome = simulate(described, tmp_path, network=network)
        assert network.nodes["n0"].link_state.neighbours() == {"n1": 0}
    finally:
        network.close()
    (row,) = outcome.rows
    assert row["received"] == row["published"] == 500
    assert outcome.lost > 20
    delays = outcome.readers[0].delays
    assert max(delays[number] for number in range(1, 140)) < 0.02
    assert min(delays[number] for number in range(160, 290)) >= 0.05
    assert max(delays[number] for number in range(340, 500)) < 0.02


def test_readers_that_ask_are_served_by_nodes_that_keep(tmp_path: Path) -> None:
    described = made(
        tmp_path,
        generate={"kind": "line", "nodes": 5},
        cache={"bytes": 100_000, "nodes": ["n1", "n2"]},
        workloads=[{"publisher": "n4", "subscribers": ["n0"], "rate": 2.0, "get": True, "item": "::05/::06"}],
    )
    network = simulated_network(described, tmp_path)
    try:
        outcome = simulate(described, tmp_path, network=network)
        assert {name for name, node in network.nodes.items() if node.pulls.keeps} == {"n1", "n2"}
        assert len(network.nodes["n2"].pulls.cache) > 10
    finally:
        network.close()
    assert outcome.rows[0]["received"] == outcome.rows[0]["published"] - 1  # type: ignore[operator]


MADE: list[str] = []


def own_tags(graph: Graph, seed: bytes) -> TagSource:
    MADE.append("tags")
    return DerivedTags(seed + b" of my own")


def own_settings(given: NodeSettings) -> NodeSettings:
    MADE.append(given.name)
    return replace(given, cache=VersionCacheConfig(77_000))


async def test_plug_ins_are_used_on_a_virtual_clock_and_live(tmp_path: Path) -> None:
    described = made(
        tmp_path,
        generate={"kind": "line", "nodes": 3},
        seconds=1.0,
        strategies={"placement": f"{__name__}:own_tags", "node": f"{__name__}:own_settings"},
        workloads=[{"publisher": "n0", "rate": 20.0, "stop": 0.5}],
        events=[{"at": 0.6, "cut": ["n0", "n1"], "silently": True}, {"at": 0.8, "mend": ["n0", "n1"]}],
    )
    network = simulated_network(described, tmp_path)
    own = DerivedTags(b"psph of my own").internal_tags("n1")
    try:
        assert network.nodes["n1"].settings.tags.internal_tags("n1") == own
        assert network.nodes["n1"].pulls.cache.most_bytes == 77_000
        simulated = simulate(described, tmp_path, network=network)
    finally:
        network.close()
    assert [row["received"] for row in simulated.rows] == [10, 10]
    live = await EmulatedNetwork.start(described, tmp_path)
    try:
        assert live.nodes["n1"].node.settings.tags.internal_tags("n1") == own
        await live.settled()
        outcome = await perform(described, live, tmp_path)
    finally:
        await live.close()
    assert [row["received"] for row in outcome.rows] == [10, 10]
    assert [text for _, text in outcome.events] == ["cut n0 - n1", "mend n0 - n1"]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"seconds": None, "events": [{"at": 1, "kill": "n0"}]}, "seconds"),
        ({"events": [{"at": 1}]}, "expected one of"),
        ({"events": [{"at": 1, "kill": "n0", "cut": ["n0", "n1"]}]}, "kill"),
        ({"events": [{"at": 1, "cut": ["n0", "n3"]}]}, "no link joins"),
        ({"events": [{"at": 1, "kill": "n9"}]}, "no node is named 'n9'"),
        ({"events": [{"at": 1, "mend": ["n0", "n1"], "silently": True}]}, "silently"),
        ({"events": [{"at": 1, "impair": ["n0", "n1"], "jitter": 3.0}]}, "jitter"),
        ({"workloads": [{"publisher": "n0", "item": "nonsense"}]}, "item"),
        ({"workloads": [{"publisher": "n0", "start": 5.0, "stop": 1.0}]}, "before it starts"),
        ({"strategies": {"placement": "no.such:thing"}}, "strategies.placement"),
        ({"strategies": {"node": "json"}}, "strategies.node"),
    ],
)
def test_what_cannot_be_is_said(tmp_path: Path, more: dict[str, Any], reason: str) -> None:
    document = {key: value for key, value in {**RING, **more}.items() if value is not None}
    with pytest.raises(PlanError, match=reason):
        plan(document, tmp_path)


def test_the_command_runs_an_experiment_and_leaves_result_and_traces(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text(
        'seconds = 5\ngenerate = { kind = "ring", nodes = 5 }\n'
        '[[workloads]]\npublisher = "n0"\nsubscribers = ["n2"]\nrate = 10\n'
        '[[events]]\nat = 2\ncut = ["n1", "n2"]\n'
    )
    assert load(file).seconds == 5
    words = ["net", "up", str(file), "--simulated", "--data", str(tmp_path / "data")]
    words += ["--result", str(tmp_path / "found.json"), "--traces", str(tmp_path / "traces")]
    assert main(words) == 0
    assert "at 2 s: cut n1 - n2" in capsys.readouterr().out
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["readers"][0]["received"] == 50
    (run,) = (tmp_path / "traces").iterdir()
    document = json.loads((run / "run.json").read_text())
    assert document["kind"] == "experiment"
    assert sum(file["rows"] for file in document["files"]) >= 100
    assert main(["net", "up", str(file), "--netns"]) == 2
    file.write_text('generate = { kind = "ring", nodes = 5 }\n')
    assert main(["net", "up", str(file), "--simulated"]) == 2
    assert "how many seconds" in capsys.readouterr().err
