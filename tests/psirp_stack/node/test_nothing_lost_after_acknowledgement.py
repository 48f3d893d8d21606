"""Every version published after a subscription was acknowledged arrives, in order, once, or is reported as skipped."""

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from identifiers import ItemId
from psirp_stack.control.codes import Code, ServiceRole
from psirp_stack.emulation.simulation import SimulatedNetwork
from psirp_stack.links.impairment import Impairment
from psirp_stack.transport.versions import RetentionLimits
from tests.psirp_stack.simulated import Networks, item, line, ring

ITEM = item(7)
FAR = Impairment(delay=0.02)
RETAINED = RetentionLimits().count
MANAGERS = {"n3": ServiceRole.RENDEZVOUS, "n0": ServiceRole.TOPOLOGY}


def test_fifty_at_once_by_a_publisher_that_begins_after_the_acknowledgement(networks: Networks) -> None:
    network = networks(line(4), impairment=FAR)
    publisher, subscriber = network.application("n3"), network.application("n1")
    asked = subscriber.subscribe(ITEM)
    assert network.run_until(lambda: subscriber.code(asked) is Code.SUCCESS, 5)
    contents = [b"version %d" % number for number in range(50)]
    for content in contents:
        publisher.publish(ITEM, content)
    network.run(10)
    assert subscriber.contents(ITEM) == contents
    assert not subscriber.skipped


def test_a_hundred_one_after_the_other(networks: Networks) -> None:
    network = networks(line(4), impairment=FAR)
    publisher, subscriber = network.application("n3"), network.application("n1")
    asked = subscriber.subscribe(ITEM)
    assert network.run_until(lambda: subscriber.code(asked) is Code.SUCCESS, 5)
    contents = [b"version %d" % number for number in range(100)]
    for content in contents:
        published = publisher.publish(ITEM, content)
        assert network.run_until(lambda number=published: publisher.code(number) is Code.SUCCESS, 5, 0.001)
    network.run(10)
    assert subscriber.contents(ITEM) == contents
    assert not subscriber.skipped


def test_a_publisher_that_was_there_before_and_goes_on_at_the_moment_of_the_acknowledgement(networks: Networks) -> None:
    network = networks(line(4), impairment=FAR)
    publisher, subscriber = network.application("n3"), network.application("n1")
    publisher.publish(ITEM, b"long ago")
    publisher.publish(ITEM, b"current")
    network.run(5)
    asked = subscriber.subscribe(ITEM)
    assert network.run_until(lambda: subscriber.code(asked) is Code.SUCCESS, 5, 0.001)
    contents = [b"version %d" % number for number in range(50)]
    for content in contents:
        publisher.publish(ITEM, content)
    network.run(10)
    assert subscriber.contents(ITEM) == [b"current", *contents]
    assert not subscriber.skipped


def test_what_is_not_retained_any_more_is_reported(networks: Networks) -> None:
    # The publisher's word is given long before it hears from the topology manager.
    network = networks(line(4), impairment=FAR, roles={"n2": ServiceRole.RENDEZVOUS, "n0": ServiceRole.TOPOLOGY})
    publisher, subscriber = network.application("n3"), network.application("n1")
    asked = subscriber.subscribe(ITEM)
    assert network.run_until(lambda: subscriber.code(asked) is Code.SUCCESS, 5)
    number = publisher.advertise(ITEM)
    assert network.run_until(lambda: publisher.code(number) is Code.SUCCESS, 5, 0.001)
    contents = [b"version %d" % number for number in range(RETAINED + 100)]
    for content in contents:
        publisher.publish(ITEM, content)
    network.run(20)
    assert subscriber.contents(ITEM) == contents[-RETAINED:]
    assert [skipped.count for skipped in subscriber.skipped] == [1]
    assert "not retained" in subscriber.skipped[0].reason


# Whatever the network does.

delays = st.sampled_from([0.0, 0.002, 0.02, 0.2])
impairments = st.builds(Impairment, delay=delays, loss=st.sampled_from([0.0, 0.05, 0.2]), reorder=st.just(0.05))
scripts = st.lists(
    st.one_of(
        st.tuples(st.just("subscribe"), st.sampled_from(["n0", "n2", "n4"])),
        st.tuples(st.just("advertise"), st.sampled_from(["n1", "n3"])),
        st.tuples(st.just("publish"), st.tuples(st.sampled_from(["n1", "n3"]), st.integers(1, 30))),
        st.tuples(st.just("wait"), st.sampled_from([0.001, 0.05, 0.3, 3.0])),
    ),
    min_size=4,
    max_size=12,
)


class Watched:
    """A subscription, and what is owed to it: what each publisher had said when it was acknowledged is not."""

    def __init__(self, network: SimulatedNetwork, node: str, wanted: ItemId) -> None:
        self.application = network.application(node)
        self.wanted = wanted
        self.asked = self.application.subscribe(wanted)
        self.owed: list[bytes] = []

    @property
    def acknowledged(self) -> bool:
        return self.application.code(self.asked) is Code.SUCCESS

    def check(self) -> None:
        got = self.application.contents(self.wanted)
        assert len(got) == len(set(got))
        # A publisher that comes late says what others said before the subscription: that has no place in this order.
        in_order = [content for content in got if content in set(self.owed)]
        assert in_order == sorted(in_order)
        missing = [content for content in self.owed if content not in got]
        assert not missing, (missing[:3], got[:3], self.owed[:3])
        assert not self.application.skipped


@settings(max_examples=40, deadline=None, phases=(Phase.generate,))
@given(impairments, scripts, st.integers(0, 2**16))
def test_all_that_is_published_after_an_acknowledgement_arrives_once_in_order(
    how: Impairment, script: list[tuple[str, Any]], seed: int
) -> None:
    """Two nodes publish, each an item of its own; others subscribe to both at any time, also on a publisher's path."""
    with tempfile.TemporaryDirectory() as data:
        network = SimulatedNetwork(ring(5), Path(data), seed=seed, impairment=how)
        try:
            _run(network, script)
        finally:
            network.close()


def _run(network: SimulatedNetwork, script: list[tuple[str, Any]]) -> None:
    items = {"n1": item(1), "n3": item(3)}
    network.run(10)
    publishers = {node: network.application(node) for node in items}
    watched: list[Watched] = []
    said = 0
    for what, how in script:
        if what == "subscribe":
            watched += [Watched(network, how, wanted) for wanted in items.values()]
        elif what == "advertise":
            publishers[how].advertise(items[how])
        elif what == "publish":
            node, count = how
            for _ in range(count):
                said += 1
                content = b"%06d" % said
                publishers[node].publish(items[node], content)
                for one in watched:
                    if one.wanted == items[node] and one.acknowledged:
                        one.owed.append(content)
        else:
            network.run(how)

    def all_there() -> bool:
        return all(set(one.owed) <= set(one.application.contents(one.wanted)) for one in watched)

    network.run_until(all_there, 120, 1.0)
    for one in watched:
        one.check()


replica_scripts = st.lists(
    st.one_of(
        st.tuples(st.just("say"), st.tuples(st.sampled_from(["n1", "n4"]), st.integers(1, 10))),
        st.tuples(st.just("subscribe"), st.sampled_from(["n0", "n2", "n5"])),
        st.tuples(st.just("leave"), st.sampled_from(["n1", "n4"])),
        st.tuples(st.just("cut or mend"), st.integers(0, 5)),
        st.tuples(st.just("wait"), st.sampled_from([0.01, 0.3, 5.0])),
    ),
    min_size=4,
    max_size=14,
)


@settings(max_examples=30, deadline=None, phases=(Phase.generate,))
@given(impairments, replica_scripts, st.integers(0, 2**16))
def test_publishers_that_say_the_same_take_over_from_each_other_without_a_gap(
    how: Impairment, script: list[tuple[str, Any]], seed: int
) -> None:
    with tempfile.TemporaryDirectory() as data:
        network = SimulatedNetwork(ring(6), Path(data), seed=seed, impairment=how, roles=MANAGERS)
        try:
            _run_replicas(network, script)
        finally:
            network.close()


def _run_replicas(network: SimulatedNetwork, script: list[tuple[str, Any]]) -> None:
    contents = [b"%06d" % number for number in range(1000)]
    said = dict.fromkeys(("n1", "n4"), 0)
    asked: dict[str, list[int]] = {node: [] for node in said}
    network.run(10)
    publishers = {node: network.application(node) for node in said}
    watched: list[Watched] = []
    cut: set[int] = set()
    longest = 0
    names = network.graph.names

    def say(node: str, count: int) -> None:
        nonlocal longest
        for content in contents[said[node] : said[node] + count]:
            asked[node].append(publishers[node].publish(ITEM, content))
            said[node] += 1
            if said[node] > longest:
                longest = said[node]
                for one in watched:
                    if one.acknowledged:
                        one.owed.append(content)

    for what, argument in script:
        if what == "say":
            say(*argument)
        elif what == "subscribe":
            watched.append(Watched(network, argument, ITEM))
        elif what == "leave":
            # Whoever goes waits until its node has taken what it said; another application goes on.
            network.run_until(lambda node=argument: None not in map(publishers[node].code, asked[node]), 30)
            publishers[argument].detach()
            publishers[argument] = network.application(argument)
            asked[argument].clear()
        elif what == "wait":
            network.run(argument)
        elif argument in cut:
            cut.discard(argument)
            network.mend(names[argument], names[(argument + 1) % 6])
        elif not cut:
            cut.add(argument)
            network.cut(names[argument], names[(argument + 1) % 6])
    for argument in cut:
        network.mend(names[argument], names[(argument + 1) % 6])
    last = longest + 1
    for node in said:
        say(node, last - said[node])
    network.run_until(lambda: all(set(one.owed) <= set(one.application.contents(ITEM)) for one in watched), 120, 1.0)
    for one in watched:
        one.check()
