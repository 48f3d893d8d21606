"""Networks from other people's files: what they say of nodes and links, and what is wrong where they are not read."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psirp_stack.emulation.imports import (
    ImportedNetwork,
    read_graphml,
    read_mini_ndn,
    read_network,
    read_rocketfuel_links,
    read_rocketfuel_routers,
)
from psirp_stack.emulation.plan import PlanError, plan
from psirp_stack.graph import GraphError

GRAPHML = """<?xml version="1.0" encoding="utf-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
  <key attr.name="label" attr.type="string" for="node" id="d1" />
  <key attr.name="Longitude" attr.type="double" for="node" id="d2" />
  <key attr.name="Latitude" attr.type="double" for="node" id="d3" />
  <key attr.name="LinkSpeedRaw" attr.type="double" for="edge" id="d4" />
  <graph edgedefault="undirected">
    <node id="0"><data key="d1">Berlin</data><data key="d2">13.4</data><data key="d3">52.5</data></node>
    <node id="1"><data key="d1">Rome</data><data key="d2">12.5</data><data key="d3">41.9</data></node>
    <node id="2"><data key="d1">Rome</data></node>
    <node id="3"><data key="d1">Nowhere</data></node>
    <edge source="0" target="1"><data key="d4">1e9</data></edge>
    <edge source="1" target="0" />
    <edge source="1" target="2" />
    <edge source="2" target="2" />
  </graph>
</graphml>
"""
ROUTERS = """1 @Berlin,+Germany + (2) &1 -> <2> <3> {-7} =core.example r0
2 @Rome,+Italy (1) -> <1> =edge r0
3 @Oslo,+Norway (1) -> <1> =edge r1
-7 =other.example r0
"""
MINI_NDN = """[nodes]
a: _ nfd-log-level=INFO
b: _
c: _   # the third
[links]
a:b delay=10ms bw=100 loss=1 max_queue_size=50
b:c delay=0.5s
"""


def links(found: ImportedNetwork) -> set[tuple[str, str]]:
    names = found.graph.names
    return {(names[tail], names[head]) for tail, head in found.graph.links if tail < head}


def test_topology_zoo() -> None:
    found = read_graphml(GRAPHML, "zoo.graphml")
    assert found.graph.names == ("Berlin", "Rome", "Rome-2")
    assert links(found) == {("Berlin", "Rome"), ("Rome", "Rome-2")}
    quality = found.quality[frozenset(("Berlin", "Rome"))]
    assert quality.bandwidth == 1e9
    assert quality.delay == pytest.approx(1181 / 200_000, rel=0.01), "1,181 km apart"
    assert frozenset(("Rome", "Rome-2")) not in found.quality


def test_rocketfuel() -> None:
    assert links(read_rocketfuel_routers(ROUTERS, "1.cch")) == {("r1", "r2"), ("r1", "r3")}
    text = "Adelaide,+Australia1722 Melbourne,+Australia1713 6\nMelbourne,+Australia1713 Perth,+Australia9 2.5\n"
    weights = read_rocketfuel_links(text, "1221/weights.intra")
    assert len(weights.graph.names) == 3
    assert weights.quality == {}
    delays = read_rocketfuel_links(text, "1221/latencies.intra")
    assert {quality.delay for quality in delays.quality.values()} == {0.006, 0.0025}


def test_mini_ndn() -> None:
    found = read_mini_ndn(MINI_NDN, "topology.conf")
    assert links(found) == {("a", "b"), ("b", "c")}
    first = found.quality[frozenset("ab")]
    assert (first.delay, first.bandwidth, first.loss, first.queue_limit) == (0.01, 1e8, 0.01, 50)
    assert found.quality[frozenset("bc")].delay == 0.5


def test_a_plan_takes_names_and_links_as_a_file_has_them(tmp_path: Path) -> None:
    (tmp_path / "latencies.intra").write_text("Adelaide,+Australia1722 Oslo,+Norway1 6\n")
    made = plan({"edges": "latencies.intra", "every_link": {"loss": 0.5}}, tmp_path)
    one, other = made.graph.names
    assert one == "Adelaide-Australia1722"
    assert made.impairment(one, other).delay == 0.006
    assert made.impairment(one, other).loss == 0.0, "what the file says of a link is all that is said of it"
    again = plan(
        {
            "edges": "latencies.intra",
            "links": [{"between": ["Adelaide,+Australia1722", "Oslo,+Norway1"], "delay": 0.1}],
        },
        tmp_path,
    )
    assert again.impairment(one, other).delay == 0.1


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.graphml", "<graphml", "not XML"),
        ("a.graphml", '<!DOCTYPE x [<!ENTITY a "b">]><graphml/>', "document type"),
        ("a.graphml", "<graphml/>", "no `graph`"),
        ("a.graphml", GRAPHML.replace('target="1"', 'target="9"'), "not both nodes"),
        ("a.cch", "nothing here\n", "no links"),
        ("a.intra", "alone\n", "line 1"),
        ("a.intra", "a b far\n", "no number"),
        ("a.conf", "[nodes]\na: _\n[links]\na:b delay=1ms\n", "not among"),
        ("a.conf", "[nodes]\na: _\nb: _\n[links]\na-b\n", "line 5"),
        ("a.conf", "[nodes]\na: _\nb: _\n[links]\na:b delay=fast\n", "expected a number"),
        ("a.conf", "[nodes]\na: _\nb: _\n[links]\na:b loss=900\n", "probability"),
    ],
)
def test_what_cannot_be_read_is_said_with_the_file(tmp_path: Path, name: str, text: str, reason: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(GraphError, match=reason) as caught:
        read_network(tmp_path / name)
    assert name in str(caught.value)
    with pytest.raises(PlanError, match=reason):
        plan({"edges": name}, tmp_path)


@given(st.sampled_from([read_graphml, read_mini_ndn, read_rocketfuel_links, read_rocketfuel_routers]), st.text())
def test_any_text_is_read_or_refused(reader: object, text: str) -> None:
    assert callable(reader)
    try:
        found = reader(text, "file")
    except GraphError:
        return
    assert found.graph.links
