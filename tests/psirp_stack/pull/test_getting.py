"""Versions asked for once, in whole networks: from the nearest node that has them, also when the publisher has gone."""

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from psirp_stack.control.codes import Code, Function
from psirp_stack.emulation.simulation import SimulatedApplication, SimulatedNetwork
from psirp_stack.links.impairment import Impairment
from psirp_stack.node.attachment import GetItems, ItemsFound
from psirp_stack.node.settings import NodeSettings
from psirp_stack.pull.messages import SeekVersions, encode
from psirp_stack.pull.service import VersionCacheConfig
from psirp_stack.transport.config import TransportConfig
from tests.psirp_stack.node.test_node_signatures import ITEM, KEYS, governed, keyed, restricted
from tests.psirp_stack.simulated import Networks, item, line, ring, scope

MIB = 1024 * 1024
LARGE = bytes(range(256)) * 400


def with_memory(given: NodeSettings) -> NodeSettings:
    return replace(given, cache=VersionCacheConfig(16 * MIB), transport=TransportConfig(on_request_above=4096))


class Carried:
    """Large frames on each directed link."""

    def __init__(self) -> None:
        self.frames: Counter[tuple[str, str]] = Counter()

    def __call__(self, sender: str, receiver: str, frame: bytes) -> None:
        if len(frame) > 1000:
            self.frames[sender, receiver] += 1


def got(application: SimulatedApplication, number: int) -> list[bytes]:
    return [each.version.content for each in application.got.get(number, [])]


def get(network: SimulatedNetwork, node: str, *asked: Any) -> tuple[Code | None, list[bytes], SimulatedApplication]:
    application = network.application(node)
    number = application.get(*asked)
    network.run_until(lambda: application.code(number) is not None, 20.0, step=0.01)
    return application.code(number), got(application, number), application


@pytest.mark.parametrize("content", [b"", b"small", LARGE])
def test_the_current_version_and_ranges_come_without_a_subscription(networks: Networks, content: bytes) -> None:
    network = networks(line(5))
    publisher = network.application("n4")
    contents = [b"one", b"two", content, b"four " * 300, b"five"]
    for each in contents:
        publisher.publish(item(1), each)
    network.run(1.0)
    assert get(network, "n0", item(1))[:2] == (Code.SUCCESS, [b"five"])
    assert get(network, "n0", item(1), 2, 4)[:2] == (Code.SUCCESS, contents[1:4])
    assert get(network, "n1", item(1), -3, -2)[:2] == (Code.SUCCESS, contents[2:4])
    assert get(network, "n4", item(1), 1, -1)[:2] == (Code.SUCCESS, contents), "from this node itself"
    assert get(network, "n0", item(1), 6, 9)[0] is Code.GONE
    assert get(network, "n0", item(2))[0] is Code.ITEM_DOES_NOT_EXIST
    assert not network.nodes["n0"].request_table.subscribed_items


def test_many_versions_and_much_loss(networks: Networks) -> None:
    network = networks(line(4), impairment=Impairment(delay=0.002, loss=0.05, reorder=0.1, duplication=0.02))
    publisher = network.application("n3")
    contents = [b"%d " % number * 1500 for number in range(100)]
    for each in contents:
        publisher.publish(item(1), each, b"a" * (3000 if each < b"5" else 5))
    network.run(3.0)
    code, found, application = get(network, "n0", item(1), 1, 100)
    assert (code, found) == (Code.SUCCESS, contents)
    assert {len(each.version.attributes) for each in next(iter(application.got.values()))} == {3000, 5}


def test_a_second_reader_is_served_by_the_node_next_to_it(networks: Networks) -> None:
    carried = Carried()
    network = networks(line(6), settings=with_memory, tap=carried)
    network.application("n5").publish(item(1), LARGE)
    network.run(1.0)
    assert get(network, "n0", item(1))[1] == [LARGE]
    first = carried.frames["n5", "n4"]
    assert first >= 70
    assert get(network, "n1", item(1))[1] == [LARGE]
    assert get(network, "n0", item(1))[1] == [LARGE]
    assert carried.frames["n5", "n4"] == first, "neither came from the publisher"
    assert carried.frames["n1", "n0"] < 2 * first, "and the last not even from the neighbour"


def test_a_late_subscriber_is_served_by_the_nearest_node_that_has_the_version(networks: Networks) -> None:
    carried = Carried()
    network = networks(line(6), settings=with_memory, tap=carried)
    publisher = network.application("n5")
    early, late = network.application("n1"), network.application("n0")
    early.subscribe(item(1))
    publisher.publish(item(1), LARGE)
    network.run(3.0)
    assert early.contents(item(1)) == [LARGE]
    first = carried.frames["n5", "n4"]
    late.subscribe(item(1))
    assert network.run_until(lambda: late.contents(item(1)) == [LARGE], 10.0)
    assert carried.frames["n5", "n4"] == first
    assert carried.frames["n1", "n0"] >= 70
    publisher.publish(item(1), b"next")
    assert network.run_until(lambda: late.contents(item(1)) == [LARGE, b"next"], 10.0)


@pytest.mark.parametrize("kill", [False, True], ids=["withdrawn", "killed"])
def test_what_was_published_can_be_had_when_the_publisher_has_gone(networks: Networks, kill: bool) -> None:
    network = networks(ring(6), settings=with_memory)
    publisher, reader = network.application("n3"), network.application("n1")
    reader.subscribe(item(1))
    for content in (b"first", LARGE):
        publisher.publish(item(1), content)
    network.run(3.0)
    reader.unsubscribe(item(1))
    if kill:
        network.kill("n3")
    else:
        publisher.detach()
    network.run(40.0)
    assert get(network, "n0", item(1))[:2] == (Code.SUCCESS, [LARGE])
    late = network.application("n5")
    late.subscribe(item(1))
    assert network.run_until(lambda: late.contents(item(1)) == [LARGE], 10.0)
    again = network.application("n4")
    again.publish(item(1), LARGE)
    again.publish(item(1), b"new")
    assert network.run_until(lambda: late.contents(item(1))[-1:] == [b"new"], 10.0)
    assert late.contents(item(1)) == [LARGE, b"new"], "what was had already does not come twice"


def test_what_is_not_for_everybody_is_neither_given_nor_kept(networks: Networks) -> None:
    network = networks(line(4), settings=with_memory, signatures=keyed())
    governed(network, restricted("n3", subscribers=("n2",)), by="n3")
    publisher, reader = network.application("n3"), network.application("n2")
    reader.subscribe(ITEM)
    publisher.publish(ITEM, LARGE)
    network.run(2.0)
    assert reader.contents(ITEM) == [LARGE]
    assert get(network, "n0", ITEM)[:2] == (Code.NOT_ALLOWED, [])
    for asked in ("n1", "n2", "n3"):  # one who does not ask the rendezvous gets nothing either
        seek = SeekVersions(1, "n0", asked, bytes(ITEM.sid), bytes(ITEM.rid), -1, -1, fresh=False)
        network.nodes["n0"].pulls._put(asked, Function.PULL, encode(seek))
        network.nodes["n0"].handle_timer(network.clock.now())
    network.run(1.0)
    assert network.nodes["n3"].pulls.answered
    assert not network.nodes["n0"].pulls.cache
    assert not any(len(node.pulls.cache) for node in network.nodes.values())


def test_what_is_signed_is_checked_by_who_gets_it(networks: Networks) -> None:
    network = networks(line(4), settings=with_memory, signatures=keyed())
    governed(network, restricted("n3"), by="n3")
    network.application("n3").publish(ITEM, LARGE)
    network.run(2.0)
    code, contents, application = get(network, "n1", ITEM)
    assert (code, contents) == (Code.SUCCESS, [LARGE])
    assert next(iter(application.got.values()))[0].version.signer == KEYS["n3"].hash
    forged = network.nodes["n1"].pulls.cache
    ((key, version),) = forged._versions.items()
    forged._versions[key] = replace(version, attributes=b"forged")
    network.kill("n3")
    assert get(network, "n0", ITEM)[0] is Code.BAD_SIGNATURE


def test_memory_is_bounded_and_the_least_wanted_goes_first(networks: Networks) -> None:
    def little(given: NodeSettings) -> NodeSettings:
        return replace(with_memory(given), cache=VersionCacheConfig(600_000))

    network = networks(line(3), settings=little)
    publisher = network.application("n2")
    for number in range(1, 12):
        publisher.publish(item(number), b"%d " % number + LARGE)
    network.run(2.0)
    for number in range(1, 12):
        assert get(network, "n0", item(number))[0] is Code.SUCCESS
        for node in network.nodes.values():
            assert node.pulls.held_bytes <= 800_000
    middle = network.nodes["n1"].pulls.cache
    assert middle.counters.evicted > 0
    assert get(network, "n0", item(11))[0] is Code.SUCCESS


def test_the_items_of_a_scope_are_listed_by_prefix(networks: Networks) -> None:
    network = networks(line(3))
    publisher, reader = network.application("n2"), network.application("n0")
    for number in (5, 6, 0x1F05, 0x1F06):
        publisher.publish(item(number), b"%d" % number)
    network.run(1.0)
    zero = bytes(32)
    found = {}
    for prefix in (b"", bytes(30), bytes(30) + b"\x1f", b"\1"):
        number = reader.ask(partial(GetItems, sid=scope(1), prefix=prefix, after=zero))
        network.run(1.0)
        answer = reader.answer(number)
        assert isinstance(answer, ItemsFound)
        assert not answer.more
        found[prefix] = [int.from_bytes(rid, "big") for rid in answer.rids]
    assert found[b""] == found[bytes(30)] == [5, 6, 0x1F05, 0x1F06]
    assert found[bytes(30) + b"\x1f"] == [0x1F05, 0x1F06]
    assert found[b"\1"] == []
    asked = reader.ask(lambda number: GetItems(number, scope(9), b"", zero))
    network.run(1.0)
    assert reader.code(asked) is Code.SCOPE_DOES_NOT_EXIST
