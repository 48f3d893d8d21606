"""The courier: each message is handled once, in order, whatever the network does."""

import itertools
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from psirp_stack.control.codes import Code, Function
from psirp_stack.control.courier import (
    MIN_DATAGRAM,
    Courier,
    CourierConfig,
    CourierDrop,
    CourierError,
    CourierFull,
    SendFailed,
    Sent,
)
from psirp_stack.control.courier_wire import (
    MAX_PIECE_FIELDS,
    MAX_PIECES,
    WINDOW,
    Challenge,
    Piece,
    Received,
    bits_of,
    decode,
    encode,
    parts_in,
)
from psirp_stack.control.messages import MAX_MESSAGE_BYTES
from tests.psirp_stack.control.courier_net import PAYLOAD_ROOM, CourierNet

KEY = bytes(32)
TOKENS = {name: Courier("b", 1, lambda to: None, token_key=KEY).token_for(name) for name in "abc"}
"""What a courier with that key wants to be shown."""
PATIENT = CourierConfig(give_up_after=1e5, reassembly_timeout=1e5, forget_after=1e6)


def test_a_message_is_handed_up_and_settled_when_its_handler_says_so() -> None:
    net = CourierNet(["a", "b"])
    net.send("a", "b", b"hello")
    net.collect()
    net.deliver(0)
    net.collect(acknowledge=False)
    assert [arrival.body for arrival in net.life("b").unhandled] == [b"hello"]
    assert net.under_way == []  # nothing is said before the handler is done
    net.acknowledge(net.life("b"), 0)
    net.collect()
    net.deliver(0)
    net.collect()
    assert net.life("a").outcomes == [Sent(1, "b")]
    assert net.life("a").courier.queued_bytes == 0
    net.check()


def test_messages_to_oneself_take_no_datagram() -> None:
    net = CourierNet(["a"], CourierConfig(give_up_after=5))
    net.send("a", "a", b"to me")
    net.collect()
    net.collect()
    assert net.life("a").outcomes == [Sent(1, "a")]
    assert net.datagrams == 0
    net.send("a", "a", b"nobody handles this")
    net.collect(acknowledge=False)
    while net.tick():
        pass
    net.collect(acknowledge=False)
    assert net.life("a").outcomes[1:] == [SendFailed(2, "a", Code.UNREACHABLE)]


def test_ten_percent_loss_takes_little_more_than_the_messages_themselves() -> None:
    net = CourierNet(["a", "b"], PATIENT)
    for number in range(2000):
        net.send("a", "b", b"%d" % number)
    net.run(random.Random(1), loss=0.1, duplication=0.05)
    net.check()
    assert net.life("b").handed["a", 1] == [b"%d" % number for number in range(2000)]
    assert net.datagrams < 3 * 2 * 2000
    assert net.now < 20


@pytest.mark.parametrize("loss", [0.0, 0.3])
def test_the_longest_message_arrives_whole(loss: float) -> None:
    net = CourierNet(["a", "b"], PATIENT)
    body = random.Random(2).randbytes(MAX_MESSAGE_BYTES)
    net.send("a", "b", body)
    net.send("a", "b", b"next")
    net.run(random.Random(3), loss=loss, duplication=0.1)
    net.check()
    assert net.life("b").handed["a", 1] == [body, b"next"]
    pieces = MAX_MESSAGE_BYTES // (PAYLOAD_ROOM - MAX_PIECE_FIELDS)
    assert net.datagrams < (pieces * 3 if loss else pieces * 1.1 + 40)


def test_the_longest_message_fits_the_smallest_datagrams() -> None:
    net = CourierNet(["a", "b"], PATIENT)
    net.room = MIN_DATAGRAM
    body = bytes(MAX_MESSAGE_BYTES)
    net.send("a", "b", body)
    net.run(random.Random(4), loss=0.0, duplication=0.0)
    assert net.life("b").handed["a", 1] == [body]


def test_a_message_is_cut_anew_when_the_path_gets_narrower() -> None:
    net = CourierNet(["a", "b"], PATIENT)
    body = random.Random(5).randbytes(40_000)
    net.send("a", "b", body)
    net.collect()
    net.deliver(0)
    net.deliver(0)
    net.under_way.clear()
    net.room = MIN_DATAGRAM
    net.life("a").courier.paths_changed(net.now)
    net.run(random.Random(6), loss=0.1, duplication=0.1)
    assert net.life("b").handed["a", 1] == [body]
    assert net.life("b").courier.held_bytes == 0


def test_without_a_path_it_fails_with_a_reason_and_with_one_in_time_it_does_not() -> None:
    net = CourierNet(["a", "b"], CourierConfig(give_up_after=10))
    net.room = None
    net.send("a", "b", b"lost")
    net.now = 5.0
    net.send("a", "b", b"late")
    while net.now < 10:
        net.tick()
        net.collect()
    assert net.life("a").outcomes == [SendFailed(1, "b", Code.UNREACHABLE)]
    net.room = PAYLOAD_ROOM
    net.life("a").courier.paths_changed(net.now)
    net.run(random.Random(7), 0, 0)
    assert net.life("a").outcomes[1:] == [Sent(2, "b")]
    assert net.life("b").handed["a", 1] == [b"late"]


def test_one_that_nobody_answers_is_repeated_ever_more_slowly_and_given_up() -> None:
    config = CourierConfig(give_up_after=30, initial_timeout=0.2, max_timeout=2.0)
    net = CourierNet(["a", "b"], config)
    net.send("a", "b", b"hello?")
    times = []
    while not net.life("a").outcomes:
        net.collect()
        times += [net.now] * len(net.under_way)
        net.under_way.clear()
        net.tick()
        net.collect()
    gaps = [round(after - before, 3) for before, after in itertools.pairwise(times)]
    assert gaps[:4] == [0.2, 0.4, 0.8, 1.6]
    assert set(gaps[4:]) == {2.0}
    assert net.life("a").outcomes == [SendFailed(1, "b", Code.UNREACHABLE)]
    assert net.now == 30


def test_a_failed_message_does_not_hold_up_those_after_it() -> None:
    net = CourierNet(["a", "b"], CourierConfig(give_up_after=5))
    net.send("a", "b", b"first")
    net.collect()
    net.under_way.clear()
    net.now = 4.9
    net.send("a", "b", b"second")
    net.collect()
    net.under_way[:] = [d for d in net.under_way if b"second" in d.payload]
    net.deliver(0)  # whole, but it waits for the first
    net.collect()
    net.under_way.clear()
    assert net.life("b").handed == {}
    net.now = 5.0
    net.life("a").courier.handle_timer(net.now)
    net.run(random.Random(8), 0, 0)
    net.check()
    assert net.life("b").handed["a", 1] == [b"second"]
    assert [type(outcome) for outcome in net.life("a").outcomes] == [SendFailed, Sent]


def test_a_restarted_receiver_gets_what_was_not_settled_and_its_former_life_is_ignored() -> None:
    net = CourierNet(["a", "b"], PATIENT)
    net.send("a", "b", b"one")
    net.run(random.Random(9), 0, 0)
    net.send("a", "b", b"two")
    net.collect()
    net.deliver(0)
    net.collect()
    old_answer = net.under_way.pop()
    net.restart("b")
    net.send("b", "a", b"I am back")
    net.collect()
    net.deliver(next(at for at, datagram in enumerate(net.under_way) if datagram.to == "a"))
    net.life("a").courier.receive(old_answer.payload, net.now)
    assert net.life("a").courier.drops[CourierDrop.OLD_LIFE] == 1
    net.run(random.Random(10), 0, 0)
    net.check()
    assert net.lives["b"][0].handed["a", 1] == [b"one", b"two"]
    assert net.lives["b"][1].handed["a", 1] == [b"two"]


def test_a_restarted_sender_begins_anew_and_its_former_life_is_ignored() -> None:
    net = CourierNet(["a", "b"], PATIENT)
    net.send("a", "b", b"from the first life")
    net.collect()
    old = net.under_way.pop()
    net.restart("a")
    net.send("a", "b", b"from the second life")
    net.run(random.Random(11), 0, 0)
    net.life("b").courier.receive(old.payload, net.now)
    net.collect()
    assert net.life("b").handed == {("a", 2): [b"from the second life"]}
    assert net.life("b").courier.drops[CourierDrop.OLD_LIFE] == 1


def test_after_a_path_change_nothing_waits_for_its_timer() -> None:
    net = CourierNet(["a", "b"], PATIENT)
    net.send("a", "b", b"lost with the old path")
    for _ in range(4):
        net.collect()
        net.under_way.clear()
        net.tick()
    net.collect()
    net.under_way.clear()
    net.life("a").courier.paths_changed(net.now)
    net.collect()
    assert len(net.under_way) == 1
    net.deliver(0)
    net.collect()
    assert net.life("b").handed["a", 1] == [b"lost with the old path"]


def test_queues_are_bounded() -> None:
    courier = Courier("a", 1, lambda to: None, CourierConfig(max_queued=3, max_queued_bytes=100), token_key=KEY)
    with pytest.raises(CourierError, match="at most"):
        courier.send("b", Function.NODE, bytes(MAX_MESSAGE_BYTES + 1), 0)
    for _ in range(3):
        courier.send("b", Function.NODE, b"x", 0)
    assert (courier.room("b"), courier.room("c")) == (0, 3)
    with pytest.raises(CourierFull):
        courier.send("b", Function.NODE, b"x", 0)
    with pytest.raises(CourierFull):
        courier.send("c", Function.NODE, bytes(98), 0)
    courier.send("c", Function.NODE, bytes(97), 0)


def piece(number: int, part: int = 0, parts: int = 1, body: bytes = b"", **more: int) -> bytes:
    said = {"source": "a", "boot": 1, "floor": 0, "cut": 0, "ask": False, "function": int(Function.NODE)} | more
    said = {"shown": TOKENS[said["source"]], "token": 1} | said  # type: ignore[index]
    return encode(Piece(number=number, part=part, parts=parts, body=body, **said))  # type: ignore[arg-type]


def test_what_is_held_for_others_is_bounded_and_the_next_message_still_gets_in() -> None:
    courier = Courier("b", 1, lambda to: 1300, CourierConfig(max_held_bytes=10_000), token_key=KEY)
    for number in range(1, WINDOW):
        courier.receive(piece(number, body=bytes(1000)), 0)
    assert courier.held_bytes == 10_000
    assert courier.drops[CourierDrop.NO_ROOM] == WINDOW - 1 - 10
    courier.receive(piece(0, body=bytes(1000)), 0)
    assert courier.held_bytes == 0
    arrivals = 0
    while courier.next_arrival() is not None:
        arrivals += 1
    assert arrivals == 10  # the newest of the waiting was dropped for the one that all waited for


def test_pieces_that_never_become_whole_are_dropped_after_a_while_and_idle_peers_forgotten() -> None:
    courier = Courier("b", 1, lambda to: 1300, CourierConfig(reassembly_timeout=30, forget_after=600), token_key=KEY)
    courier.receive(piece(0, 0, 2, body=bytes(1000)), 0)
    assert courier.held_bytes == 1000
    while (timer := courier.next_timer()) is not None and timer <= 31:
        courier.handle_timer(timer)
    assert courier.held_bytes == 0
    assert courier.peers == 1
    while (timer := courier.next_timer()) is not None and timer <= 1300:
        courier.handle_timer(timer)
    assert courier.peers == 0


def test_a_sender_that_forgot_a_receiver_goes_on_above_its_old_numbers() -> None:
    net = CourierNet(["a", "b"], CourierConfig(forget_after=50))
    net.send("a", "b", b"one")
    net.run(random.Random(12), 0, 0)
    courier = net.life("a").courier
    while courier.peers:
        timer = courier.next_timer()
        assert timer is not None
        courier.handle_timer(timer)
        net.now = timer
    net.send("a", "b", b"two")
    net.run(random.Random(13), 0, 0)
    assert net.life("b").handed["a", 1] == [b"one", b"two"]


def test_bad_datagrams_are_counted_and_change_nothing() -> None:
    courier = Courier("b", 5, lambda to: 1300, CourierConfig(max_peers=1), token_key=KEY)
    courier.receive(b"junk", 0)
    courier.receive(encode(Received("a", 1, 5, 0, 1)), 0)
    courier.receive(piece(0, function=0xFB), 0)
    courier.receive(piece(0, source="b"), 0)  # type: ignore[arg-type]
    courier.receive(piece(0, source="c"), 0)  # type: ignore[arg-type]
    courier.receive(piece(1, 0, 2), 0)
    courier.receive(piece(1, 1, 3), 0)
    assert courier.drops == {
        CourierDrop.MALFORMED: 1,
        CourierDrop.OLD_LIFE: 1,
        CourierDrop.UNKNOWN_FUNCTION: 1,
        CourierDrop.OWN_NAME: 1,
        CourierDrop.TOO_MANY_PEERS: 1,
        CourierDrop.DIFFERENT_CUT: 1,
    }
    assert courier.next_arrival() is None


FAR_BOOT = 1 << 62


def forged(number: int, boot: int, shown: int = 0) -> bytes:
    """What a member writes that is not between `a` and `b`, in the name of `a`."""
    return piece(number, body=b"forged", boot=boot, floor=number, shown=shown)


@pytest.mark.parametrize("first", [True, False], ids=["before a", "after a"])
@pytest.mark.parametrize("boot", [1, 2, FAR_BOOT])
@pytest.mark.parametrize("number", [0, 1, 1 << 40])
def test_what_others_write_in_a_nodes_name_neither_counts_nor_silences_it(first: bool, boot: int, number: int) -> None:
    net = CourierNet(["a", "b"], PATIENT, introduced=False)
    if not first:
        net.send("a", "b", b"genuine 0")
        net.run(random.Random(14), 0, 0)
    courier = net.life("b").courier
    for shown in (0, 1, courier.token_for("c")):
        courier.receive(forged(number, boot, shown), net.now)
        courier.receive(encode(Received("a", boot, 1, 0, 1, (), shown)), net.now)
    dropped = courier.drops.copy()
    assert dropped[CourierDrop.UNPROVED] >= 3
    net.send("a", "b", b"genuine 1")
    net.send("b", "a", b"back")
    net.run(random.Random(15), 0, 0)
    net.check()
    assert net.life("b").handed["a", 1] == ([] if first else [b"genuine 0"]) + [b"genuine 1"]
    assert net.life("a").handed["b", 1] == [b"back"]
    assert courier.drops[CourierDrop.OLD_LIFE] == dropped[CourierDrop.OLD_LIFE]


def test_nobody_else_can_say_what_a_node_is_to_show() -> None:
    net = CourierNet(["a", "b"], PATIENT)
    before = net.datagrams
    for echo in (0, 1, net.life("a").courier.token_for("c")):
        net.life("a").courier.receive(encode(Challenge("b", 77, echo)), net.now)
    net.send("a", "b", b"hello")
    net.run(random.Random(16), 0, 0)
    assert net.life("b").handed["a", 1] == [b"hello"]
    assert net.datagrams - before == 2, "nothing had to be said again"
    assert not net.life("b").courier.drops


def test_a_first_contact_costs_one_round_trip_and_a_long_message_is_not_sent_twice() -> None:
    net = CourierNet(["a", "b"], PATIENT, introduced=False)
    net.send("a", "b", bytes(100_000))
    pieces = -(-100_000 // (PAYLOAD_ROOM - MAX_PIECE_FIELDS))
    net.collect()
    assert len(net.under_way) == 1
    net.run(random.Random(17), 0, 0)
    assert net.datagrams < pieces + 12


def test_challenges_are_bounded_and_go_where_the_name_leads() -> None:
    courier = Courier("b", 1, lambda to: 1300, token_key=KEY)
    for number in range(1000):
        courier.receive(encode(Received("a", 1, 1, 0, 1, (), number)), 0)
        courier.receive(piece(0, source="a", shown=1, token=number), 0)  # type: ignore[arg-type]
        courier.receive(piece(0, source="a", shown=1, token=7), 0)  # type: ignore[arg-type]
    said = []
    while (datagram := courier.next_datagram(0)) is not None:
        said.append(datagram)
    assert {datagram.to for datagram in said} == {"a"}
    assert len(said) <= 256
    assert len(said[0].payload) < len(piece(0)), "whoever is challenged gets no more than was said in its name"
    assert courier.peers == 0


@given(st.sets(st.integers(0, MAX_PIECES - 1)), st.integers(1, MAX_PIECES))
def test_bits_of_parts(parts: set[int], total: int) -> None:
    inside = {part for part in parts if part < total}
    assert parts_in(bits_of(inside, total), total) == inside


def test_the_longest_fields_fit_their_allowance() -> None:
    big = (1 << 63) - 1
    said = Piece("n" * 64, big, big - 5, big, 255, big, MAX_PIECES - 2, MAX_PIECES, True, bytes(70_000), big, big)
    assert len(encode(said)) - 70_000 <= MAX_PIECE_FIELDS
    assert decode(encode(said)) == said


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 1 << 32),
    st.floats(0, 0.5),
    st.floats(0, 0.3),
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abc"), st.integers(0, 9000)), max_size=60),
)
def test_everything_is_handled_once_in_order(
    seed: int, loss: float, duplication: float, sends: list[tuple[str, str, int]]
) -> None:
    net = CourierNet(["a", "b", "c"], PATIENT, introduced=False)
    rng = random.Random(seed)
    for number, (source, to, size) in enumerate(sends):
        net.send(source, to, b"%d:" % number + bytes(size))
    net.run(rng, loss, duplication)
    net.check()
    for source, to, _ in sends:
        wanted = [body for name, body in net.life(source).sent.values() if name == to]
        assert net.life(to).handed[source, 1] == wanted
    for lives in net.lives.values():
        assert lives[0].courier.held_bytes == 0
        assert lives[0].courier.queued_bytes == 0


class CourierMachine(RuleBasedStateMachine):
    """Any interleaving of sending, losing, doubling, reordering, handling late and restarting either side."""

    @initialize()
    def begin(self) -> None:
        self.net = CourierNet(["a", "b"], PATIENT, introduced=False)
        self.count = 0

    @rule(source=st.sampled_from("ab"), size=st.sampled_from([0, 0, 10, 3000]), burst=st.sampled_from([1, 1, 40]))
    def send(self, source: str, size: int, burst: int) -> None:
        for _ in range(burst):
            self.count += 1
            self.net.send(source, "b" if source == "a" else "a", b"%d:" % self.count + bytes(size))
        self.net.collect(acknowledge=False)

    @precondition(lambda self: self.net.under_way)
    @rule(data=st.data(), keep=st.booleans())
    def deliver(self, data: st.DataObject, keep: bool) -> None:
        self.net.deliver(data.draw(st.integers(0, len(self.net.under_way) - 1)), keep)
        self.net.collect(acknowledge=False)

    @precondition(lambda self: self.net.under_way)
    @rule()
    def deliver_all(self) -> None:
        for _ in range(len(self.net.under_way)):
            self.net.deliver(0)
        self.net.collect(acknowledge=False)

    @precondition(lambda self: self.net.under_way)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        self.net.under_way.pop(data.draw(st.integers(0, len(self.net.under_way) - 1)))

    @rule()
    def lose_all(self) -> None:
        self.net.under_way.clear()

    @rule(name=st.sampled_from("ab"), data=st.data())
    def acknowledge(self, name: str, data: st.DataObject) -> None:
        life = self.net.life(name)
        if life.unhandled:
            self.net.acknowledge(life, data.draw(st.integers(0, len(life.unhandled) - 1)))
            self.net.collect(acknowledge=False)

    @rule()
    def tick(self) -> None:
        self.net.tick()
        self.net.collect(acknowledge=False)

    @rule(name=st.sampled_from("ab"))
    def paths_changed(self, name: str) -> None:
        self.net.life(name).courier.paths_changed(self.net.now)
        self.net.collect(acknowledge=False)

    @rule(name=st.sampled_from("ab"))
    def restart(self, name: str) -> None:
        self.net.restart(name)

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "net"):
            self.net.check()
            for lives in self.net.lives.values():
                waiting = Counter((arrival.source, arrival.source_boot) for arrival in lives[-1].unhandled)
                assert all(count <= WINDOW for count in waiting.values())

    def teardown(self) -> None:
        if not hasattr(self, "net"):
            return
        self.net.run(random.Random(self.count), 0.1, 0.1)
        self.net.check()
        for lives in self.net.lives.values():
            life = lives[-1]
            assert {outcome.ticket for outcome in life.outcomes} == set(life.sent), "settled"
            assert all(isinstance(outcome, Sent) for outcome in life.outcomes)
            assert life.courier.queued_bytes == 0
            # Pieces of a life that has ended stay until their time is over.
            assert life.courier.held_bytes <= WINDOW * 3100


CourierMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestCourierMachine = CourierMachine.TestCase
