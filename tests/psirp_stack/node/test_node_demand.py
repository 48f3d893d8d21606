"""A publisher hears whether anybody wants what it could publish, so that it need not make what nobody wants."""

from psirp_stack.emulation.simulation import SimulatedApplication
from psirp_stack.node.attachment import DemandChanged
from tests.psirp_stack.simulated import Networks, item, line

ITEM = item(7)


def told(application: SimulatedApplication) -> list[bool]:
    return [word.wanted for word in application.told if isinstance(word, DemandChanged)]


def test_an_advertisement_is_answered_when_somebody_far_away_subscribes_and_when_they_go(networks: Networks) -> None:
    network = networks(line(3))
    publisher, subscriber = network.application("n0"), network.application("n2")
    publisher.advertise(ITEM)
    network.run(2)
    assert told(publisher) == []
    subscriber.subscribe(ITEM)
    network.run(2)
    assert told(publisher) == [True]
    subscriber.unsubscribe(ITEM)
    network.run(5)
    assert told(publisher) == [True, False]


def test_who_advertises_later_hears_it_too_each_application_once(networks: Networks) -> None:
    network = networks(line(3))
    first, second, subscriber = network.application("n0"), network.application("n0"), network.application("n2")
    subscriber.subscribe(ITEM)
    network.run(2)
    first.advertise(ITEM)
    network.run(2)
    second.advertise(ITEM)
    first.publish(ITEM, b"news")
    network.run(2)
    assert (told(first), told(second)) == ([True], [True])
    assert subscriber.contents(ITEM) == [b"news"]


def test_subscribers_of_the_same_node_count(networks: Networks) -> None:
    network = networks(line(2))
    publisher, neighbour = network.application("n0"), network.application("n0")
    publisher.advertise(ITEM)
    neighbour.subscribe(ITEM)
    network.run(2)
    neighbour.detach()
    network.run(2)
    assert told(publisher) == [True, False]


def test_what_is_withdrawn_is_not_told_any_more(networks: Networks) -> None:
    network = networks(line(2))
    publisher, subscriber = network.application("n0"), network.application("n1")
    publisher.advertise(ITEM)
    network.run(1)
    publisher.withdraw(ITEM)
    network.run(5)
    subscriber.subscribe(ITEM)
    network.run(5)
    assert told(publisher) == []
