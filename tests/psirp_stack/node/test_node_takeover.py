"""Roles on several nodes: whoever of them can be reached goes on, and nothing that was said is lost."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from identifiers import Identifier, ItemId
from psirp_stack.control.codes import Code, ServiceRole
from psirp_stack.emulation.simulation import SimulatedApplication, SimulatedNetwork
from psirp_stack.graph import Graph
from psirp_stack.links.impairment import Impairment
from psirp_stack.rendezvous import RendezvousConfig

BOTH = ServiceRole.RENDEZVOUS | ServiceRole.TOPOLOGY
TAKEOVER = 2.0
"""Seconds within which another node has the role."""


def item(number: int) -> ItemId:
    return ItemId(Identifier(b"\1" * 32), Identifier(bytes([number]) * 32))


Networks = Callable[..., SimulatedNetwork]


@pytest.fixture
def networks(tmp_path: Path) -> Iterator[Networks]:
    made: list[SimulatedNetwork] = []

    def start(graph: Graph, roles: dict[str, int], settle: float = 5.0, **more: object) -> SimulatedNetwork:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        network = SimulatedNetwork(graph, folder, roles=roles, **more)  # type: ignore[arg-type]
        made.append(network)
        network.run(settle)
        return network

    yield start
    for network in made:
        network.close()


def ring(size: int) -> Graph:
    return Graph.from_edges([f"n{n}" for n in range(size)], [(n, (n + 1) % size) for n in range(size)])


def line(size: int) -> Graph:
    return Graph.from_edges([f"n{n}" for n in range(size)], [(n, n + 1) for n in range(size - 1)])


def flowing(
    network: SimulatedNetwork, publisher: str, subscriber: str, what: ItemId
) -> tuple[SimulatedApplication, SimulatedApplication]:
    one, other = network.application(publisher), network.application(subscriber)
    other.subscribe(what)
    one.publish(what, b"0")
    assert network.run_until(lambda: other.contents(what) == [b"0"], 5.0)
    return one, other


@pytest.mark.parametrize("silently", [False, True])
@pytest.mark.parametrize(
    "roles", [{"n0": BOTH, "n3": BOTH}, {"n0": BOTH, "n2": ServiceRole.RENDEZVOUS, "n4": ServiceRole.TOPOLOGY}]
)
def test_new_matches_are_made_within_two_seconds_of_a_holders_death(
    networks: Networks, roles: dict[str, int], silently: bool
) -> None:
    network = networks(ring(6), roles)
    publisher, subscriber = flowing(network, "n1", "n4", item(1))
    network.kill("n0", silently=silently)
    killed = network.clock.now()
    late, later = network.application("n2"), network.application("n5")
    asked = later.subscribe(item(2))
    late.publish(item(2), b"new")
    assert network.run_until(lambda: later.contents(item(2)) == [b"new"], 30.0)
    assert later.code(asked) is Code.SUCCESS
    assert network.clock.now() - killed <= TAKEOVER
    publisher.publish(item(1), b"1")
    assert network.run_until(lambda: subscriber.contents(item(1)) == [b"0", b"1"], 2.0)
    assert not subscriber.skipped


def test_what_flows_goes_on_while_the_roles_move(networks: Networks) -> None:
    network = networks(ring(6), {"n0": BOTH, "n3": BOTH})
    publisher, subscriber = flowing(network, "n2", "n4", item(1))
    sent = [b"0"]
    for number in range(1, 60):
        if number == 10:
            network.kill("n0")
        if number == 40:
            network.start("n0")  # and has the roles again, by its name
        sent.append(b"%d" % number)
        publisher.publish(item(1), sent[-1])
        network.run(0.1)
        assert len(subscriber.contents(item(1))) >= number - 1  # nobody waits for a manager
    assert network.run_until(lambda: subscriber.contents(item(1)) == sent, 10.0)
    assert not subscriber.skipped
    assert network.nodes["n4"].holders.rendezvous is not None
    assert network.nodes["n4"].holders.rendezvous.name == "n0"


def test_both_halves_of_a_partition_match_what_they_can_and_merge(networks: Networks) -> None:
    network = networks(line(6), {"n1": BOTH, "n4": BOTH})
    left, right = flowing(network, "n0", "n5", item(1))
    network.cut("n2", "n3")
    network.run(TAKEOVER)
    for place, (one, other) in enumerate((("n0", "n2"), ("n3", "n5"))):
        flowing(network, one, other, item(10 + place))
    missed = [b"0"]
    for number in range(1, 6):
        missed.append(b"%d" % number)
        left.publish(item(1), missed[-1])
        network.run(0.5)
    assert right.contents(item(1)) == [b"0"]
    network.mend("n2", "n3")
    assert network.run_until(lambda: right.contents(item(1)) == missed, 10.0)
    assert not right.skipped
    reader = network.application("n0")
    reader.subscribe(item(11))  # published in the other half meanwhile
    assert network.run_until(lambda: reader.contents(item(11)) == [b"0"], 5.0)
    names = {node.holders.rendezvous.name for node in network.nodes.values() if node.holders.rendezvous}
    assert names == {"n1"}


def test_nothing_of_a_former_holder_stays(networks: Networks) -> None:
    """A subscriber that leaves while nobody is there to hear it is not served for ever."""
    network = networks(ring(6), {"n0": BOTH, "n3": BOTH}, rendezvous=RendezvousConfig(lease=10.0))
    publisher, subscriber = flowing(network, "n2", "n4", item(1))
    network.kill("n0")
    subscriber.unsubscribe(item(1))
    network.run(60.0)
    assert network.nodes["n2"].sender.granted(item(1)) == ()
    publisher.publish(item(1), b"1")
    network.start("n0")
    network.run(60.0)
    manager = network.nodes["n0"].topology
    assert manager is not None
    assert network.nodes["n3"].topology is None
    assert manager.items <= 1


def test_a_takeover_on_bad_links(networks: Networks) -> None:
    bad = Impairment(delay=0.01, jitter=0.01, loss=0.1, reorder=0.05)
    network = networks(ring(6), {"n0": BOTH, "n3": BOTH}, settle=10.0, impairment=bad)
    publisher, subscriber = flowing(network, "n2", "n4", item(1))
    network.kill("n0")
    sent = [b"0", *(b"%d" % number for number in range(1, 20))]
    for content in sent[1:]:
        publisher.publish(item(1), content)
        network.run(0.2)
    network.start("n0")
    assert network.run_until(lambda: subscriber.contents(item(1)) == sent, 60.0)
    assert not subscriber.skipped
