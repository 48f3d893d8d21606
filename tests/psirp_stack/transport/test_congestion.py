"""Flows that share a slow link, in whole networks on a virtual clock."""

from pathlib import Path

from psirp_stack.emulation.bottleneck import Bottleneck
from psirp_stack.links.impairment import Impairment

SLOW = Impairment(bandwidth=10e6, delay=0.005, queue_limit=100)


def test_eight_flows_over_a_slow_link_lose_no_adjacency(tmp_path: Path) -> None:
    shared = Bottleneck(8, SLOW, tmp_path)
    try:
        found = shared.measure(1.0, 5.0)
    finally:
        shared.close()
    assert found.adjacencies_lost == 0
    assert sum(found.goodput) > 1e6
