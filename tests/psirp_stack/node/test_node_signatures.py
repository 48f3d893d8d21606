"""Restricted scopes from end to end: who may publish, who may subscribe, and what is done with forgeries."""

from collections.abc import Callable

import pytest

from identifiers import Identifier, ItemId
from psirp_stack.authentication.keys import KeyPair
from psirp_stack.authentication.signing import Signer
from psirp_stack.authentication.trust import TrustStore
from psirp_stack.authentication.verifying import Refusal, SignatureVerifier
from psirp_stack.control.codes import Code
from psirp_stack.control.messages import ROOT_SCOPE, FilterGrant, ScopePolicy
from psirp_stack.emulation.simulation import WALL_MS_AT_START, SimulatedApplication, SimulatedNetwork
from psirp_stack.links.impairment import Impairment
from psirp_stack.node.attachment import Done, Why
from psirp_stack.node.signatures import NodeSignatures
from psirp_stack.wire.codec import parse
from psirp_stack.wire.numbers import FORWARDING_BYTES, NEXT_OFFSET, HeaderType
from tests.psirp_stack.simulated import Networks, line, scope

SID = scope(5)
ITEM = ItemId(Identifier(SID), Identifier(scope(6)))
KEYS = {f"n{number}": KeyPair(bytes([number + 1]) * 32) for number in range(5)}


def keyed(
    *, without: tuple[str, ...] = (), unknown: tuple[str, ...] = (), require: bool = False
) -> Callable[[str], NodeSignatures]:
    """Every node has a key of its own, but for those `without`, and knows all keys but the `unknown` ones."""

    def make(name: str) -> NodeSignatures:
        trust = TrustStore(key.public for owner, key in KEYS.items() if owner not in unknown)
        signer = None if name in without else Signer(KEYS[name], WALL_MS_AT_START)
        return NodeSignatures(name, signer, SignatureVerifier(trust), require_signatures=require)

    return make


def restricted(*publishers: str, subscribers: tuple[str, ...] | None = None, packets: bool = False) -> ScopePolicy:
    return ScopePolicy(
        tuple(KEYS[name].hash for name in publishers),
        None if subscribers is None else tuple(KEYS[name].hash for name in subscribers),
        packets,
    )


def governed(network: SimulatedNetwork, policy: ScopePolicy, by: str = "n0") -> None:
    owner = network.application(by)
    asked = owner.publish_scope(SID, ROOT_SCOPE, policy)
    network.run(2)
    assert owner.code(asked) is Code.SUCCESS


def refused(application: SimulatedApplication, asked: int) -> tuple[Code, str]:
    answer = application.answer(asked)
    assert isinstance(answer, Done)
    return Code(answer.code), answer.reason


def test_who_may_publish_is_read_by_everybody_with_the_signers_key(networks: Networks) -> None:
    network = networks(line(4), signatures=keyed())
    governed(network, restricted("n1"))
    subscriber = network.application("n3")
    subscriber.subscribe(ITEM)
    network.run(1)
    network.application("n1").publish(ITEM, b"signed", b"attributes")
    network.run(2)
    assert subscriber.contents(ITEM) == [b"signed"]
    assert subscriber.received[ITEM][0].signer == KEYS["n1"].hash


def test_who_may_not_publish_is_told_and_explain_says_so(networks: Networks) -> None:
    network = networks(line(4), signatures=keyed())
    governed(network, restricted("n1"))
    stranger, subscriber = network.application("n2"), network.application("n3")
    subscriber.subscribe(ITEM)
    asked = stranger.publish(ITEM, b"not allowed")
    network.run(2)
    assert refused(stranger, asked)[0] is Code.NOT_ALLOWED
    assert subscriber.contents(ITEM) == []
    question = subscriber.explain(ITEM)
    network.run(1)
    why = subscriber.answer(question)
    assert isinstance(why, Why)
    assert why.code == Code.NOT_ALLOWED
    assert why.reason.startswith("refused: ")
    assert "n2" in why.reason


def test_who_may_not_subscribe_is_told(networks: Networks) -> None:
    network = networks(line(4), signatures=keyed())
    governed(network, restricted("n1", subscribers=("n3",)))
    allowed, stranger = network.application("n3"), network.application("n2")
    allowed.subscribe(ITEM)
    asked = stranger.subscribe(ITEM)
    network.application("n1").publish(ITEM, b"for n3")
    network.run(2)
    assert refused(stranger, asked)[0] is Code.NOT_ALLOWED
    assert (allowed.contents(ITEM), stranger.contents(ITEM)) == ([b"for n3"], [])


def test_a_node_without_a_key_cannot_publish_in_a_restricted_scope(networks: Networks) -> None:
    network = networks(line(3), signatures=keyed(without=("n1",)))
    governed(network, restricted("n1"))
    publisher = network.application("n1")
    asked = publisher.publish(ITEM, b"unsigned")
    network.run(2)
    assert refused(publisher, asked)[0] is Code.BAD_SIGNATURE


def test_a_signer_whom_the_subscriber_does_not_know_is_not_believed(networks: Networks) -> None:
    network = networks(line(3), signatures=keyed(unknown=("n1",)))
    governed(network, restricted("n1"))
    subscriber = network.application("n2")
    subscriber.subscribe(ITEM)
    network.application("n1").publish(ITEM, b"who are you?")
    network.run(5)
    assert subscriber.contents(ITEM) == []
    assert any(Refusal.UNKNOWN_SIGNER.value in reason for reason in network.nodes["n2"].refusals)


def test_unsigned_publications_are_refused_where_a_node_requires_signatures(networks: Networks) -> None:
    network = networks(line(3), signatures=keyed(without=("n1",), require=True))
    subscriber = network.application("n2")
    subscriber.subscribe(ITEM)
    network.application("n1").publish(ITEM, b"unsigned")
    network.run(5)
    assert subscriber.contents(ITEM) == []
    assert any("only signed" in reason for reason in network.nodes["n2"].refusals)


def test_a_change_of_policy_takes_back_what_was_granted(networks: Networks) -> None:
    network = networks(line(4), signatures=keyed())
    governed(network, restricted("n1", "n2"))
    publisher, subscriber = network.application("n2"), network.application("n3")
    subscriber.subscribe(ITEM)
    publisher.publish(ITEM, b"still allowed")
    network.run(2)
    governed(network, restricted("n1"))
    network.run(2)
    asked = publisher.publish(ITEM, b"no more")
    network.run(3)
    assert refused(publisher, asked)[0] is Code.NOT_ALLOWED
    assert subscriber.contents(ITEM) == [b"still allowed"]


class Meddler:
    """Changes frames that go from one node to the next."""

    def __init__(self, change: Callable[[bytes], list[bytes]]) -> None:
        self.change = change
        self.changed = 0

    def between(self, network: SimulatedNetwork, sender: str, receiver: str) -> None:
        node = network.nodes[sender]
        number = node.link_state.neighbours()[receiver]
        send = node.links[number]

        def meddle(frame: bytes) -> bool:
            for made in self.change(frame):
                self.changed += made != frame
                send(made)
            return True

        node.forwarder.attach(number, meddle)


def is_kind(frame: bytes, kind: HeaderType) -> bool:
    return frame[NEXT_OFFSET] == kind and frame[FORWARDING_BYTES + 2 : FORWARDING_BYTES + 34] == SID


@pytest.mark.parametrize("packets", [False, True])
def test_tampered_content_is_never_handed_up(networks: Networks, packets: bool) -> None:
    network = networks(line(3), signatures=keyed())
    governed(network, restricted("n0", packets=packets))
    subscriber = network.application("n2")
    subscriber.subscribe(ITEM)
    network.run(1)
    meddler = Meddler(lambda f: [f[:-1] + bytes([f[-1] ^ 1]) if is_kind(f, HeaderType.PUBLISH_DATA) else f])
    meddler.between(network, "n1", "n2")
    network.application("n0").publish(ITEM, b"true" * 1000)
    network.run(10)
    assert meddler.changed
    assert subscriber.contents(ITEM) == []
    if packets:
        assert any(Refusal.WRONG_SIGNATURE.value in reason for reason in network.nodes["n2"].refusals)
    else:
        assert network.nodes["n2"].receiver.counters.tampered


@pytest.mark.parametrize("known", [True, False])
def test_who_publishes_without_being_asked_is_not_believed(networks: Networks, known: bool) -> None:
    """Content and digest fit: only the signature tells, and that counts under a policy which must be known first."""
    network = networks(line(3), signatures=keyed())
    governed(network, restricted("n0"))
    # n1 is in the domain and forwards, but may not publish here.
    subscriber = network.application("n2")
    subscriber.subscribe(ITEM)
    if known:
        network.application("n0").publish(ITEM, b"true")
    network.run(1)
    route = network.nodes["n1"].link_state.route_to("n2")
    assert route is not None
    forger = network.nodes["n1"]
    now = network.clock.now()
    forger.sender.publish(ITEM, b"forged", b"", now, forger.signatures.sign_publication)
    forger.sender.grant(ITEM, 1, (FilterGrant(route.fid, ("n2",), 1500),), now)
    forger.handle_timer(now)
    network.wake("n1")
    network.run(10)
    assert subscriber.contents(ITEM) == ([b"true"] if known else [])
    assert not known or any(Refusal.NOT_ALLOWED.value in reason for reason in network.nodes["n2"].refusals)


def test_replayed_publications_are_handed_up_once(networks: Networks) -> None:
    kept: list[bytes] = []

    def tap(sender: str, receiver: str, frame: bytes) -> None:
        if (sender, receiver) == ("n1", "n2") and frame[NEXT_OFFSET] in (4, 5):
            kept.append(frame)

    network = networks(line(3), signatures=keyed(), tap=tap)
    governed(network, restricted("n0"))
    publisher, subscriber = network.application("n0"), network.application("n2")
    subscriber.subscribe(ITEM)
    for content in (b"one", b"two", b"three"):
        publisher.publish(ITEM, content)
        network.run(1)
    before = subscriber.contents(ITEM)
    assert before[-1] == b"three"
    number = network.nodes["n2"].link_state.neighbours()["n1"]
    for _ in range(3):
        network.nodes["n2"].receive(number, kept[:], network.clock.now())
        network.run(2)
    assert subscriber.contents(ITEM) == before


def test_every_packet_is_signed_where_the_policy_says_so(networks: Networks) -> None:
    seen: list[bytes] = []

    def tap(sender: str, receiver: str, frame: bytes) -> None:
        if is_kind(frame, HeaderType.PUBLISH_DATA):
            seen.append(frame)

    network = networks(line(4), signatures=keyed(), tap=tap, impairment=Impairment(delay=0.001, loss=0.1), settle=15)
    governed(network, restricted("n1", packets=True))
    subscriber = network.application("n3")
    subscriber.subscribe(ITEM)
    network.run(5)
    network.application("n1").publish(ITEM, b"x" * 30_000)
    assert network.run_until(lambda: subscriber.contents(ITEM) == [b"x" * 30_000], 60)
    assert seen
    assert all(parse(frame).authentication is not None for frame in seen)


def test_packets_are_signed_from_the_moment_the_policy_demands_it(networks: Networks) -> None:
    signed: list[bool] = []

    def tap(sender: str, receiver: str, frame: bytes) -> None:
        if is_kind(frame, HeaderType.PUBLISH_DATA):
            signed.append(parse(frame).authentication is not None)

    network = networks(line(3), signatures=keyed(), tap=tap)
    governed(network, restricted("n1"))
    publisher, subscriber = network.application("n1"), network.application("n2")
    subscriber.subscribe(ITEM)
    before = bytes(2000)
    publisher.publish(ITEM, before)
    network.run(2)
    assert signed
    assert not any(signed)
    governed(network, restricted("n1", packets=True))
    network.run(2)
    signed.clear()
    publisher.publish(ITEM, b"after")
    network.run(2)
    assert subscriber.contents(ITEM) == [before, b"after"]
    assert signed
    assert all(signed)


def test_without_keys_nobody_is_named_as_the_signer(networks: Networks) -> None:
    def make(name: str) -> NodeSignatures:
        return NodeSignatures(name, Signer(KEYS["n0"], WALL_MS_AT_START) if name == "n0" else None)

    network = networks(line(2), signatures=make)
    subscriber = network.application("n1")
    subscriber.subscribe(ITEM)
    network.application("n0").publish(ITEM, b"open scope")
    network.run(2)
    assert subscriber.contents(ITEM) == [b"open scope"]
    assert subscriber.received[ITEM][0].signer is None
