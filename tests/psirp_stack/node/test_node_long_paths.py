"""Networks of any diameter: what is too far away for one filter is reached over nodes that send on."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from psirp_stack.control.codes import Code
from psirp_stack.control.frames import is_control
from psirp_stack.graph import Graph
from psirp_stack.links.impairment import Impairment
from tests.psirp_stack.simulated import Networks, item, line, ring


@pytest.fixture
def networks(tmp_path: Path) -> Iterator[Networks]:
    made = Networks(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("graph", [ring(200), line(200)], ids=["ring", "line"])
def test_everybody_in_a_network_of_two_hundred_hops_is_reached(networks: Networks, graph: Graph) -> None:
    network = networks(graph, settle=10.0)
    far = [network.application(f"n{number}") for number in (1, 20, 60, 99, 100, 101, 150, 199)]
    asked = [application.subscribe(item(1)) for application in far]
    publisher = network.application("n3")
    contents = [b"small", bytes(range(256)) * 200, b"last"]
    for content in contents:
        publisher.publish(item(1), content)
    assert network.run_until(lambda: all(application.contents(item(1)) == contents for application in far), 20.0)
    assert [application.code(number) for application, number in zip(far, asked, strict=True)] == [Code.SUCCESS] * 8


def test_a_cut_far_away_and_bad_links_lose_nothing(networks: Networks) -> None:
    bad = Impairment(delay=0.001, loss=0.001, jitter=0.001)
    network = networks(ring(120), settle=10.0, impairment=bad)
    near, far = network.application("n1"), network.application("n60")
    publisher = network.application("n0")
    for application in (near, far):
        application.subscribe(item(1))
    publisher.publish(item(1), b"0")
    assert network.run_until(lambda: all(a.contents(item(1)) == [b"0"] for a in (near, far)), 20.0)
    sent = [b"0"]
    for number in range(1, 12):
        if number == 4:
            network.cut("n30", "n31")
        if number == 9:
            network.mend("n30", "n31")
        sent.append(b"%d" % number * 3000)
        publisher.publish(item(1), sent[-1])
        network.run(0.3)
    assert network.run_until(lambda: all(a.contents(item(1)) == sent for a in (near, far)), 60.0)
    assert not far.skipped


def test_a_line_full_of_subscribers_carries_each_frame_a_few_times(networks: Networks) -> None:
    """Copies go from station to station: no link carries one for every part of the line behind it."""
    carried: Counter[tuple[str, str]] = Counter()
    watched = False

    def tap(sender: str, receiver: str, frame: bytes) -> None:
        if watched and not is_control(frame) and len(frame) > 1000:
            carried[sender, receiver] += 1

    size = 60
    network = networks(line(size), settle=10.0, tap=tap)
    everybody = [network.application(f"n{number}") for number in range(1, size)]
    for application in everybody:
        application.subscribe(item(1))
    publisher = network.application("n0")
    publisher.publish(item(1), b"first")
    assert network.run_until(lambda: all(a.contents(item(1)) == [b"first"] for a in everybody), 20.0)
    watched = True
    publisher.publish(item(1), bytes(1000))
    assert network.run_until(lambda: all(len(a.contents(item(1))) == 2 for a in everybody), 20.0)
    assert len(carried) == size - 1
    assert max(carried.values()) <= 4
