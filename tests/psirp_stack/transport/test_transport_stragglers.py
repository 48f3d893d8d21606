"""One subscriber that does not read, or does not answer, does not hold up the others."""

import math
from dataclasses import replace

import pytest

from psirp_stack.links.impairment import Impairment
from psirp_stack.transport.config import TransportConfig
from psirp_stack.transport.events import VersionArrived
from psirp_stack.transport.versions import RetentionLimits
from tests.psirp_stack.transport.transport_network import ITEM, Network, star

LEAVES = range(2, 10)
SLOW = 5
COUNT, SIZE, PAUSE = 600, 2500, 0.005
FAR = Impairment(delay=0.01, loss=0.002)
CONFIG = TransportConfig(max_pending_bytes=1024 * 1024)


class Timed(list[VersionArrived]):
    """Versions, and when they were handed up."""

    def __init__(self, net: Network) -> None:
        super().__init__()
        self.net = net
        self.times: dict[int, float] = {}

    def append(self, version: VersionArrived) -> None:
        self.times[version.number] = self.net.clock.now()
        super().append(version)


def network(*groups: list[int]) -> Network:
    net = Network(star(len(LEAVES)), impairment=FAR, config=CONFIG, limits=RetentionLimits(count=COUNT))
    for leaf in LEAVES:
        net.subscribe(leaf)
        net.hosts[leaf].arrived = Timed(net)
    net.grant(0, *groups)
    return net


def p99_of_the_others(net: Network) -> float:
    """Publish, and say how long the slowest of a hundred versions took to those who read."""
    published = {}
    for _ in range(COUNT):
        published[net.publish(0, b"%08d" % len(published) + bytes(SIZE))] = net.clock.now()
        net.run(PAUSE)
    net.run(5)
    delays = []
    for leaf in LEAVES:
        if leaf != SLOW:
            arrived = net.hosts[leaf].arrived
            assert isinstance(arrived, Timed)
            assert len(arrived) == COUNT
            delays += [arrived.times[number] - at for number, at in published.items()]
    return sorted(delays)[math.ceil(len(delays) * 0.99) - 1]


@pytest.mark.parametrize("together", [True, False])
def test_who_does_not_read_does_not_stall_the_others(together: bool) -> None:
    others = [leaf for leaf in LEAVES if leaf != SLOW]
    groups = [[*others, SLOW]] if together else [others, [SLOW]]
    quiet = p99_of_the_others(network(*groups))
    net = network(*groups)
    slow = net.hosts[SLOW]
    slow.consumes = False
    slow.receiver.set_room(ITEM, 100_000, 0.0)
    assert p99_of_the_others(net) <= 1.2 * quiet
    got = len(slow.arrived)
    assert got < COUNT // 2
    # It reads again, and catches up by itself.
    for version in list(slow.arrived):
        slow.receiver.consumed(ITEM, version.cost, net.clock.now())
    slow.consumes = True
    net.pump(SLOW)
    net.run(60)
    assert slow.numbers == list(range(1, COUNT + 1))


def test_who_does_not_answer_does_not_stall_the_others() -> None:
    quiet = p99_of_the_others(network(list(LEAVES)))
    net = network(list(LEAVES))
    net.publish(0, b"the first, to let everybody begin")
    net.run(1)
    for host in net.hosts:
        host.arrived.clear()
    net.links[1, SLOW].impairment = replace(FAR, loss=1.0)
    assert p99_of_the_others(net) <= 1.2 * quiet
