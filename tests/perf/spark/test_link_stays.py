"""Consecutive hops of publications that cross a small simulated network, paired into stays between its nodes."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from perf.pipeline.link_stays import link_stays
from perf.pipeline.predictions import predict_runs
from perf.pipeline.reading import read_traces, usable
from perf.report.predictions import build_predictions
from perf.traces.files import take_inventory
from perf.traces.formats import Format
from perf.traces.psirp_events import NetworkTracer, virtual_clock
from perf.traces.run import new_run
from perf.traces.writer import TraceWriter, WriterConfig
from psirp_stack.emulation.simulation import SimulatedNetwork
from psirp_stack.graph import Graph
from psirp_stack.links.impairment import Impairment
from tests.perf.spark.hand_made import EPOCH
from tests.psirp_stack.simulated import item

pytestmark = pytest.mark.timeout(600)
DELAY, SLOW = 0.004, 0.020
BRANCHING = Graph.from_edges(["n0", "n1", "n2", "n3", "n4"], [(0, 1), (1, 2), (1, 3), (3, 4)])
PUBLICATIONS = 3


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """n0 publishes to n2 and n4: the ways part at n1. The link from n1 to n3 is slow."""
    folder = tmp_path_factory.mktemp("simulated")
    run = new_run("test", "v", {}, name="simulated")
    with TraceWriter(folder / "run", run, WriterConfig(form=Format.JSON_LINES)) as writer:
        found: list[NetworkTracer] = []
        network = SimulatedNetwork(
            BRANCHING,
            folder,
            impairment=Impairment(delay=DELAY),
            impairments={("n1", "n3"): Impairment(delay=SLOW)},
            tap=lambda *told: [tracer.tap(*told) for tracer in found],
            observer_of=lambda node: lambda event: [tracer.observer_of(node)(event) for tracer in found] and None,
        )
        found.append(NetworkTracer(writer, clock=virtual_clock(network.clock, EPOCH)))
        network.run(5.0)
        publisher, near, far = (network.application(node) for node in ("n0", "n2", "n4"))
        for subscriber in (near, far):
            subscriber.subscribe(item(5))
        network.run(1.0)
        for number in range(PUBLICATIONS):
            publisher.publish(item(5), b"document %d" % number)
            network.run(1.0)
        assert [len(one.contents(item(5))) for one in (near, far)] == [PUBLICATIONS, PUBLICATIONS]
        network.close()
    return folder / "run"


def test_consecutive_hops_of_a_publication_are_paired_by_the_neighbour_that_is_named(
    session: SparkSession, simulated: Path
) -> None:
    records = read_traces(session, take_inventory([simulated])).where(usable())
    rows = link_stays(records).collect()
    publications = {row["publication"] for row in rows}
    assert len(publications) == PUBLICATIONS
    took = {
        (row["publication"], row["sender"], row["receiver"], row["hop"]): (row["arrived_ns"] - row["left_ns"]) / 1e9
        for row in rows
    }
    assert len(took) == len(rows)
    delays = {("n0", "n1", 1): DELAY, ("n1", "n2", 2): DELAY, ("n1", "n3", 2): SLOW, ("n3", "n4", 3): DELAY}
    assert took.keys() == {(name, *link) for name in publications for link in delays}
    for (_, *link), seconds in took.items():
        # Nodes take no time in a simulation but what they wait for on purpose, which is far less than a slow link's.
        assert delays[tuple(link)] * 0.99 <= seconds < delays[tuple(link)] + SLOW / 2


def test_predictions_show_what_was_spent_between_nodes(session: SparkSession, simulated: Path, tmp_path: Path) -> None:
    [prediction] = predict_runs(session, [simulated])
    assert [(row.sender, row.receiver, row.crossings) for row in prediction.links] == [
        ("n0", "n1", PUBLICATIONS), ("n1", "n2", PUBLICATIONS), ("n1", "n3", PUBLICATIONS), ("n3", "n4", PUBLICATIONS),
    ]  # fmt: skip
    assert max(prediction.links, key=lambda row: row.p50_ms).receiver == "n3", "behind the slow link"
    page = build_predictions([prediction], tmp_path).page.read_text()
    assert "<td>n1 to n3</td>" in page
