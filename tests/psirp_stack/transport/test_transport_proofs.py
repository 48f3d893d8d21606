"""What somebody says in another's name changes nothing: epochs, places, routes, sources. Frames are made up by a member
that knows all names, ids and filters, as those of a real publisher are made."""

import random

import pytest

from psirp_stack.authentication.keys import KeyPair
from psirp_stack.authentication.signing import Signer
from psirp_stack.authentication.trust import TrustStore
from psirp_stack.authentication.verifying import SignatureVerifier
from psirp_stack.control.messages import OPEN_SCOPE, FilterGrant, ScopePolicy
from psirp_stack.node.signatures import NodeSignatures
from psirp_stack.transport.frames import control_frame
from psirp_stack.transport.messages import Retained, encode
from psirp_stack.transport.sender import Sender
from psirp_stack.transport.versions import MemoryVersions
from psirp_stack.wire.codec import ZERO_ID
from psirp_stack.wire.numbers import HeaderType
from tests.psirp_stack.transport.transport_network import ITEM, WALL_START_MS, Network, line, wall_ms

HONEST, FORGER = KeyPair(b"h" * 32), KeyPair(b"f" * 32)
BY_HONEST = ScopePolicy(publishers=(HONEST.hash,))
FAR_EPOCH = 1 << 62


class Attacked:
    """n0 publishes to n2 by way of n1, where somebody says things in the name of n0."""

    def __init__(self, *, signed: bool) -> None:
        verifier = SignatureVerifier(TrustStore([HONEST.public, FORGER.public]))
        signatures = NodeSignatures("n2", None, verifier)
        hooks = {"verify": signatures.verify_publication, "verify_answer": signatures.verify_answer}
        self.net = Network(line(3), receiver_hooks=hooks if signed else {})
        self.publisher = NodeSignatures("n0", Signer(HONEST, WALL_START_MS)) if signed else None
        self.policy = BY_HONEST if signed else OPEN_SCOPE
        if self.publisher is not None:
            self.net.hosts[0].sender = Sender(
                "n0",
                self.net.tags[0],
                self.net.versions.get(0) or (lambda item: MemoryVersions(7)),
                route_to=lambda name: self.net.route(0, name),
                wall_ms=wall_ms,
                rng=random.Random(0),
                sign_answer=self.publisher.sign_packet,
            )
        signatures.subscribed(ITEM)
        signatures.served(ITEM, self.policy)
        self.net.subscribe(2)
        self.net.grant(0, [2], tell=False)
        self.net.hosts[2].receiver.served(ITEM, "n0", self.policy, self.net.clock.now())
        self.forgers_key = NodeSignatures("n1", Signer(FORGER, WALL_START_MS)) if signed else None

    def publish(self, content: bytes) -> None:
        sign = None if self.publisher is None else self.publisher.sign_publication
        self.net.hosts[0].sender.publish(ITEM, content, b"", self.net.clock.now(), sign)
        self.net.pump(0)
        self.net.run(1)

    def forged(self, name: str, epoch: int, number: int, content: bytes = b"forged") -> list[bytes]:
        """What a node would send that publishes as `name` in this epoch."""
        sign = None if self.forgers_key is None else self.forgers_key.sign_publication
        made = MemoryVersions(epoch)
        sender = Sender(
            name,
            self.net.tags[1],
            lambda item: made,
            route_to=lambda to: self.net.route(1, to),
            wall_ms=wall_ms,
            rng=random.Random(1),
        )
        for at in range(number):
            sender.publish(ITEM, content + b"%d" % at, b"", self.net.clock.now(), sign)
        planned = self.net.filter_to(1, [2])
        assert planned is not None
        sender.grant(ITEM, 1, (FilterGrant(planned[0], ("n2",), planned[1]),), self.net.clock.now())
        frames = []
        while (frame := sender.next_frame(self.net.clock.now())) is not None:
            frames.append(frame)
        return frames

    def inject(self, frames: list[bytes]) -> None:
        for frame in frames:
            self.net.hosts[2].receiver.receive(frame, self.net.clock.now())
        self.net.pump(2)
        self.net.run(1)

    def says(self, message: Retained) -> None:
        """An answer that nobody asked for."""
        self.inject(
            [control_frame(HeaderType.PUBLISH_METADATA, bytes(32), bytes(ITEM), ZERO_ID, 0, bytes(32), encode(message))]
        )

    @property
    def contents(self) -> list[bytes]:
        return [content for content in self.net.hosts[2].contents if not content.startswith(b"forged")]


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("epoch", [0, 1, FAR_EPOCH])
def test_a_forged_epoch_does_not_outdate_honest_versions(signed: bool, first: bool, epoch: int) -> None:
    attacked = Attacked(signed=signed)
    if not first:
        attacked.publish(b"A")
    attacked.inject(attacked.forged("n0", epoch, 3))
    for content in (b"B", b"C"):
        attacked.publish(content)
    attacked.net.run(5)
    assert attacked.contents == ([] if first else [b"A"]) + [b"B", b"C"]
    if signed:
        assert attacked.net.hosts[2].contents == attacked.contents
        assert attacked.net.hosts[2].receiver.counters.refused > 0
    assert not attacked.net.hosts[2].skipped


@pytest.mark.parametrize("signed", [False, True])
def test_what_is_said_to_be_gone_is_believed_of_the_publisher_alone(signed: bool) -> None:
    attacked = Attacked(signed=signed)
    attacked.publish(b"A")
    epoch = attacked.net.hosts[2].arrived[0].epoch
    for made in (epoch, FAR_EPOCH):
        attacked.says(Retained("n0", "n2", made, 1 << 61, 1 << 61, 1 << 61, False))
        attacked.says(Retained("n0", "n2", made, 1 << 61, 1 << 61, None, token=12345))
    attacked.publish(b"B")
    assert attacked.contents == [b"A", b"B"]
    assert not attacked.net.hosts[2].skipped
    counters = attacked.net.hosts[2].receiver.counters
    assert counters.refused == 4 if signed else counters.unproved == 4


def test_forged_announcements_of_a_signed_item_open_no_place_and_make_nobody_a_publisher() -> None:
    attacked = Attacked(signed=True)
    attacked.publish(b"A")
    held, sources = attacked.net.hosts[2].receiver.held_bytes, set(_sources(attacked))
    for name in ("n0", "n1", "anybody"):
        attacked.inject(attacked.forged(name, FAR_EPOCH, 5))
    assert set(_sources(attacked)) == sources
    attacked.net.run(10)  # segments without an announcement are let go
    assert attacked.net.hosts[2].receiver.held_bytes == held == 0


def test_questions_that_forgers_provoke_are_few() -> None:
    attacked = Attacked(signed=False)
    attacked.publish(b"A")
    before = attacked.net.hosts[2].receiver.counters.asked
    frames = attacked.forged("n0", FAR_EPOCH, 1)
    for _ in range(100):
        for frame in frames:
            attacked.net.hosts[2].receiver.receive(frame, attacked.net.clock.now())
            attacked.net.pump(2)
        attacked.net.run(0.001)
    assert attacked.net.hosts[2].receiver.counters.asked - before <= 3


def test_a_signed_version_counts_in_no_other_publishers_order() -> None:
    """Two nodes may publish with their own keys: what one has signed does not move the other's epoch."""
    attacked = Attacked(signed=True)
    attacked.policy = ScopePolicy(publishers=(HONEST.hash, FORGER.hash))
    attacked.publish(b"A")
    other = [frame for frame in attacked.forged("n1", FAR_EPOCH, 1) if frame[1] == HeaderType.PUBLISH_METADATA]
    (frame,) = other
    at = frame.index(encode("n1"))  # the name is the first of the announcement's fields after its tag
    attacked.inject([frame[:at] + encode("n0") + frame[at + 3 :]])
    attacked.publish(b"B")
    assert attacked.contents == [b"A", b"B"]


def test_a_publisher_in_a_new_life_is_believed_when_it_answers_itself() -> None:
    net = Network(line(3))
    net.subscribe(2)
    net.grant(0, [2])
    net.publish(0, b"A")
    net.run(1)
    before = net.hosts[2].arrived[0].epoch
    net.hosts[0].sender = net.new_sender(0)
    net.grant(0, [2])
    net.publish(0, b"B")
    net.run(2)
    assert net.hosts[2].contents == [b"A", b"B"]
    assert net.hosts[2].arrived[-1].epoch > before


def test_a_publisher_whose_clock_went_back_is_heard_all_the_same() -> None:
    net = Network(line(3))
    net.boots[0] = 1000
    net.hosts[0].sender = net.new_sender(0)
    net.subscribe(2)
    net.grant(0, [2])
    net.publish(0, b"A")
    net.run(1)
    net.boots[0] = 5
    net.hosts[0].sender = net.new_sender(0)
    net.grant(0, [2])
    net.publish(0, b"B")
    net.run(2)
    assert net.hosts[2].contents == [b"A", b"B"]


def _sources(attacked: Attacked) -> list[str]:
    return list(attacked.net.hosts[2].receiver._items[bytes(ITEM)].sources)
