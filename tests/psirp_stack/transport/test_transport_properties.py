"""Whatever the network does, every receiver gets each version once and in order; whatever arrives, nothing breaks."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from psirp_stack.control.messages import OPEN_SCOPE
from psirp_stack.links.impairment import Impairment
from psirp_stack.transport.accounts import SEGMENT_COST, Accounts
from psirp_stack.transport.config import TransportConfig
from psirp_stack.transport.deadlines import Deadlines
from psirp_stack.transport.frames import (
    _read_any_order,
    control_frame,
    is_segment,
    packed,
    read_control,
    read_segment,
)
from psirp_stack.transport.messages import (
    Announcement,
    Ask,
    Have,
    Retained,
    TransportMessageError,
    Want,
    decode,
    encode,
)
from psirp_stack.transport.reassembly import Body
from psirp_stack.transport.source import PublisherSequence, ranges_of
from psirp_stack.transport.versions import content_ids
from psirp_stack.wire.codec import AuthenticationHeader
from psirp_stack.wire.numbers import FID_OFFSET, RENDEZVOUS_TYPES, HeaderType
from tests.psirp_stack.transport.transport_network import ITEM, Network, line, ring

impairments = st.builds(
    Impairment,
    delay=st.sampled_from([0.001, 0.01]),
    loss=st.sampled_from([0.0, 0.1, 0.3]),
    reorder=st.sampled_from([0.0, 0.2]),
    duplication=st.sampled_from([0.0, 0.2]),
    bandwidth=st.sampled_from([0.0, 2e6]),
)
steps = st.one_of(
    st.tuples(st.just("publish"), st.integers(0, 6000)),
    st.tuples(st.just("wait"), st.sampled_from([1, 20, 300])),
    st.tuples(st.just("cut"), st.integers(0, 5)),
    st.tuples(st.just("heal"), st.just(0)),
    st.tuples(st.just("grant"), st.integers(0, 3)),
    st.tuples(st.just("restart"), st.integers(0, 2)),
)
RECEIVERS = (2, 3, 4)


@settings(max_examples=40, deadline=None)
@given(impairments, st.lists(steps, min_size=5, max_size=40), st.integers(0, 2**16))
def test_each_version_once_and_in_order(how: Impairment, script: list[tuple[str, int]], seed: int) -> None:
    net = Network(ring(6), impairment=how, seed=seed, config=TransportConfig(left_behind_after=2, slowest_probe=3))
    for node in RECEIVERS:
        net.subscribe(node)
    net.grant(0, RECEIVERS)
    sent: list[bytes] = [b"the first, to let everybody begin"]
    net.publish(0, sent[0])
    net.run(60)
    got: dict[int, list[bytes]] = {node: [] for node in RECEIVERS}

    def collect(node: int) -> None:
        got[node] += net.hosts[node].contents
        net.hosts[node].arrived.clear()

    def grant(split: int) -> None:
        net.grant(0, RECEIVERS[:split], RECEIVERS[split:])

    for what, number in script:
        if what == "publish":
            sent.append(random.Random(len(sent)).randbytes(number) + bytes((len(sent),)))
            net.publish(0, sent[-1])
        elif what == "wait":
            net.run(number / 1000)
        elif what == "cut":
            net.down.add(frozenset(net.edges[number]))
        elif what == "heal":
            net.down.clear()
            grant(1)
        elif what == "grant":
            grant(number)
        elif sent:
            # The subscriber's node dies and comes back; its application remembers the last version it saw.
            node = RECEIVERS[number]
            collect(node)
            last = got[node][-1] if got[node] else None
            host = net.hosts[node]
            host.receiver = net.new_receiver(node)
            since = content_ids(last)[0] if last is not None else content_ids(b"nothing")[0]
            net.subscribe(node, since=since)
            host.receiver.served(ITEM, "n0", OPEN_SCOPE, net.clock.now())
            net.pump(node)
    net.down.clear()
    net.grant(0, RECEIVERS)
    net.run(120)
    for node in RECEIVERS:
        collect(node)
        assert got[node] == sent
    net.run(10)  # copies that are still under way arrive, and those that are too late are forgotten
    assert all(net.hosts[node].receiver.held_bytes == 0 for node in RECEIVERS)
    assert net.hosts[0].sender.room(ITEM) == net.config.max_pending_bytes


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**16), st.integers(1, 30), st.integers(1, 20))
def test_a_reader_of_any_pace_gets_everything(seed: int, room: int, pace: int) -> None:
    net = Network(line(3), impairment=Impairment(delay=0.005, loss=0.1), seed=seed)
    net.subscribe(2)
    host = net.hosts[2]
    host.consumes = False
    host.receiver.set_room(ITEM, room * 1000, 0.0)
    net.grant(0, [2])
    for number in range(60):
        net.publish(0, bytes((number,)) * (number * 20))
    done = 0
    for _ in range(2000):
        net.run(0.2)
        for version in host.arrived[done : done + pace]:
            done += 1
            host.receiver.consumed(ITEM, version.cost, net.clock.now())
        net.pump(2)
        if done == 60:
            break
    assert host.numbers == list(range(1, 61))


messages = st.one_of(
    st.binary(max_size=200),
    st.builds(
        lambda number, size, settled, epoch: encode(
            Announcement("n0", epoch, max(number, 1), 0, b"", 0, bytes(32), size % 100_000, settled)
        ),
        st.integers(0, 2**62),
        st.integers(0, 2**20),
        st.integers(0, 2**62),
        st.integers(0, 2**62),
    ),
    st.builds(
        lambda epoch, oldest, newest, start: encode(Retained("n0", "n1", epoch, oldest, newest, start)),
        *[st.integers(0, 2**62)] * 4,
    ),
    st.builds(
        lambda epoch, number, progress, room: encode(Have("n1", 1, "n0", epoch, number, progress, room, 0)),
        *[st.integers(0, 2**62)] * 4,
    ),
    st.builds(
        lambda epoch, number, first, last: encode(
            Want("n1", 1, "n0", epoch, max(number, 1), 1346, ((first, last),), 100, 0, 0)
        ),
        *[st.integers(0, 2**62)] * 4,
    ),
    st.builds(
        lambda epoch, first, last, join: encode(
            Ask("n1", 1, "n0", epoch, ((first, last),), 100_000, 0, 0, join, since_number=(epoch, first))
        ),
        *[st.integers(0, 2**62)] * 3,
        st.booleans(),
    ),
)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=400))
def test_no_bytes_break_the_parsers(data: bytes) -> None:
    try:
        message = decode(data)
    except TransportMessageError:
        pass
    else:
        assert decode(encode(message)) == message
    read_control(data)
    if is_segment(data):
        read_segment(data)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(sorted(RENDEZVOUS_TYPES)),
    st.binary(max_size=50),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255)), max_size=3),
    st.integers(0, 30),
)
def test_fixed_places_and_the_codec_read_the_same(
    kind: HeaderType, payload: bytes, signed: bool, changes: list[tuple[int, int]], cut: int
) -> None:
    """Control frames in the usual order take a short cut: it must come to the same as the codec, whatever is wrong."""
    authentication = packed(AuthenticationHeader(b"s" * 32, 1, 2, 3)) if signed else b""
    built = bytearray(
        control_frame(
            kind, bytes(32), bytes(64), b"v" * 32, 7, b"w" * 32, payload, length=5, authentication=authentication
        )
    )
    for at, value in changes:
        if at < len(built):
            built[at] = value
    frame = bytes(built[: len(built) - cut] if cut else built)
    assert read_control(frame) == _read_any_order(frame)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(messages, st.sampled_from(list(HeaderType)), st.integers(0, 400)), max_size=12),
    st.integers(0, 2**16),
)
def test_no_frame_breaks_a_sender_or_a_receiver_or_what_they_do_for_others(
    hostile: list[tuple[bytes, HeaderType, int]], seed: int
) -> None:
    """Frames that somebody made up, mixed into honest traffic: no exception, and memory stays within its bounds."""
    rng = random.Random(seed)
    net = Network(line(2))
    net.subscribe(1)
    net.grant(0, [1])
    net.publish(0, b"first" * 1000)
    sender, receiver = net.hosts[0].sender, net.hosts[1].receiver
    honest: list[bytes] = []
    while (frame := sender.next_frame(0.0)) is not None:
        honest.append(frame)
    for at, (payload, kind, cut) in enumerate(hostile):
        made = rng.choice(honest)
        head = made[:306] if made[1] == HeaderType.PUBLISH_METADATA else made[:154]
        forged = bytearray(head + payload)
        if kind in (HeaderType.SUBSCRIBE_DATA, HeaderType.SUBSCRIBE_METADATA):
            forged[1] = forged[FID_OFFSET + 32] = int(kind)
        if cut:
            forged[cut % len(forged)] ^= 1 << rng.randrange(8)
        sent = bytes(forged[: max(1, len(forged) - cut % 7)])
        now = at / 100
        for core in (sender, receiver):
            core.receive(sent, now)
            core.handle_timer(now)
            for _ in range(500):
                if core.next_frame(now) is None:
                    break
        while receiver.next_event() is not None or sender.next_event() is not None:
            pass
    assert receiver.held_bytes <= net.config.reassembly_bytes


@settings(max_examples=100, deadline=None)
@given(
    st.binary(min_size=1, max_size=5000), st.integers(64, 700), st.integers(64, 700), st.randoms(use_true_random=False)
)
def test_segments_in_any_order_make_the_content(content: bytes, size: int, other_size: int, rng: random.Random) -> None:
    accounts = Accounts(10**6, 10**6, 10**6)
    source = PublisherSequence("n0", TransportConfig(), 0.0, accounts.source(None))
    body = Body(bytes(32), 1, len(content), size, 0.0, source)

    def add(number: int, payload: bytes) -> bool:
        return body.lacks(number, payload) and body.add(number, payload, 0.0)

    order = list(range(body.segments))
    rng.shuffle(order)
    half = order[: len(order) // 2]
    for number in half:
        assert add(number, content[number * size : (number + 1) * size])
    missing: set[int] = set()
    for ask in (body.ask_for_gaps, body.ask_for_tail):
        while body.tail_is_missing if ask == body.ask_for_tail else body.gap_since is not None:
            asked = {number for first, last in ask(1.0) for number in range(first, last + 1)}
            assert not asked & missing, "nothing is asked for twice"
            missing |= asked
            if ask == body.ask_for_tail:
                break
    assert missing == set(order) - set(half)
    again, tries = body.ask_again(2.0, 0.5)
    assert {number for first, last in again for number in range(first, last + 1)} <= missing
    assert tries == (2 if again else 0)
    body.resize(other_size, 2.0)
    for number in range(body.segments):
        add(number, content[number * other_size : (number + 1) * other_size])
    assert not body.missing
    assert body.join() == content
    assert body.held == accounts.used == len(content) + body.segments * SEGMENT_COST
    assert not add(0, content[:other_size])
    body.clear()
    assert accounts.used == 0


@given(st.sets(st.integers(0, 60)))
def test_ranges_cover_exactly_the_numbers(numbers: set[int]) -> None:
    ranges = ranges_of(sorted(numbers))
    assert {number for first, last in ranges for number in range(first, last + 1)} == numbers


@given(st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), st.floats(0, 100)))))
def test_deadlines_behave_like_a_dictionary(changes: list[tuple[int, float | None]]) -> None:
    deadlines: Deadlines[int] = Deadlines()
    model: dict[int, float] = {}
    for key, when in changes:
        deadlines.set(key, when)
        if when is None:
            model.pop(key, None)
        else:
            model[key] = when
        assert deadlines.next() == min(model.values(), default=None)
    due = {key for key, when in model.items() if when <= 50}
    assert set(deadlines.pop_due(50)) == due
    assert deadlines.next() == min((when for when in model.values() if when > 50), default=None)
