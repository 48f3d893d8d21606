"""Sealed links: what the handshake and the sealed frames let through, and what they do not."""

import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psirp_stack.links.impairment import Impairment
from psirp_stack.links.in_process import pair
from psirp_stack.links.sealed import SealedLink
from psirp_stack.sealing.channel import SealConfig, SealedChannel
from psirp_stack.sealing.handshake import MAX_CANDIDATES, Handshake, HandshakeTimes
from psirp_stack.sealing.keys import DomainKeys, HandshakeShare, WeakShareError, session_keys
from psirp_stack.sealing.offers import NOBODY, NOT_CONFIRMED, Offer, OfferError, Step, pack_offer, parse_offer
from psirp_stack.sealing.session import WINDOW, FrameWindow, ReceivingKey, SealDrop, SendingKey
from psirp_stack.wire.numbers import (
    CONFIRMATION_BYTES,
    OFFER_BYTES,
    OFFER_CIPHER_OFFSET,
    OFFER_MAC_OFFSET,
    OFFER_STEP_OFFSET,
    OFFER_VERSION_OFFSET,
    SEALED_OVERHEAD,
    SHARE_ID_BYTES,
)
from tests.psirp_stack.links.sealed_pair import OTHER_SECRET, SECRET, SealedPair

DEAF = Impairment(loss=1.0)
DOMAIN = DomainKeys.of(SECRET)


def entropy(seed: int = 1) -> Callable[[int], bytes]:
    return random.Random(seed).randbytes


# Two honest ends.


def test_neighbours_prove_the_secret_and_frames_cross_sealed() -> None:
    net = SealedPair()
    assert not net.a.link.send(b"too early"), "nobody has proved anything yet"
    net.run()
    assert net.a.link.proved
    assert net.b.link.proved
    secret = b"what only the neighbour may read"
    assert net.a.link.send(secret)
    assert net.b.link.send_many([b"one", b"two"]) == 2
    net.run()
    assert net.b.got == [secret]
    assert net.a.got == [b"one", b"two"]
    assert not any(secret in frame for frame in net.b.socket.heard)
    assert net.a.link.drops == {SealDrop.NOT_PROVED: 1}
    assert not net.b.link.drops
    assert (net.a.proved, net.b.proved) == (1, 1)


def test_a_frame_grows_by_the_overhead_and_the_mtu_says_so() -> None:
    net = SealedPair()
    net.run()
    assert net.a.link.mtu == net.a.socket.mtu - SEALED_OVERHEAD
    assert net.a.link.send(bytes(net.a.link.mtu))
    assert not net.a.link.send(bytes(net.a.link.mtu + 1))
    net.run()
    assert net.b.got == [bytes(net.a.link.mtu)]
    assert net.a.link.counters.oversized == 1


def test_another_secret_lets_nothing_through() -> None:
    net = SealedPair(secrets=(SECRET, OTHER_SECRET))
    net.run(30)
    assert not net.a.link.proved
    assert not net.b.link.proved
    assert net.a.link.drops[SealDrop.WRONG_SECRET] > 5
    assert set(net.b.link.drops) == {SealDrop.WRONG_SECRET}
    assert not net.works_both_ways()


@pytest.mark.parametrize("side", [0, 1])
def test_a_neighbour_that_restarts_is_let_in_again(side: int) -> None:
    net = SealedPair()
    net.run()
    net.ends[side].restart()
    net.run()
    assert net.works_both_ways()
    assert net.ends[1 - side].proved == 2, "whoever stayed hears that the other is there anew"


def test_a_neighbour_that_comes_later_is_found() -> None:
    net = SealedPair()
    net.set_impairment(DEAF)
    net.run(60)
    net.set_impairment(Impairment())
    net.run(2 * HandshakeTimes().max_retry)
    assert net.works_both_ways()


def test_keys_are_renewed_by_time_and_nothing_is_lost_meanwhile() -> None:
    config = SealConfig(renew_after=20, dead_after=60, overlap=2)
    net = SealedPair(config=config, impairment=Impairment(delay=0.01))
    net.run()
    for number in range(1_000):
        net.a.link.send(b"%d" % number)
        net.b.link.send(b"%d" % number)
        net.run(0.1)
    wanted = [b"%d" % number for number in range(1_000)]
    assert net.a.got == wanted
    assert net.b.got == wanted
    assert 5 <= net.a.link.sessions <= 12
    labels = {frame[:6] for frame in net.b.socket.heard if len(frame) != OFFER_BYTES}
    assert len(labels) == net.a.link.sessions


def test_keys_are_renewed_by_count() -> None:
    net = SealedPair(config=SealConfig(renew_after_frames=100))
    net.run()
    for _ in range(10):
        net.a.link.send_many([b"x"] * 60)
        net.run(0.5)
    assert net.a.link.sessions > 3
    assert len(net.b.got) == 600


def test_keys_that_cannot_be_renewed_die() -> None:
    net = SealedPair(config=SealConfig(renew_after=10, dead_after=30))
    net.run()
    net.set_impairment(DEAF)
    net.run(31)
    assert not net.a.link.proved
    assert not net.a.link.send(b"under old keys")
    net.set_impairment(Impairment())
    net.run(5)
    assert net.works_both_ways()


def test_a_key_seals_no_more_than_its_cipher_bears(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psirp_stack.sealing.channel.MAX_COUNTER", 100)
    net = SealedPair(config=SealConfig(renew_after_frames=50))
    net.run()
    net.set_impairment(DEAF)
    assert net.a.link.send_many([b"x"] * 100) == 100
    assert net.a.link.send_many([b"x"]) == 0
    assert net.a.link.drops[SealDrop.WORN_OUT] == 1


def test_a_closed_link_is_silent() -> None:
    net = SealedPair()
    net.run()
    net.a.link.close()
    heard = len(net.b.socket.heard)
    assert not net.a.link.send(b"x")
    net.b.link.send(b"x")
    net.run(100)
    assert len(net.b.socket.heard) == heard
    assert not net.a.got


def test_a_carrier_too_small_for_the_handshake_is_refused() -> None:
    small, _ = pair(mtu=OFFER_BYTES - 1)
    with pytest.raises(ValueError, match=f"needs {OFFER_BYTES}"):
        SealedLink(small, DOMAIN, SealedPair().clock, entropy())


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    loss=st.floats(0, 0.6),
    duplication=st.floats(0, 0.5),
    reorder=st.floats(0, 0.5),
    jitter=st.floats(0, 0.3),
    restarts=st.lists(st.tuples(st.integers(0, 1), st.floats(0, 5)), max_size=4),
)
def test_whatever_the_wire_does_both_ends_agree_in_the_end(
    seed: int, loss: float, duplication: float, reorder: float, jitter: float, restarts: list[tuple[int, float]]
) -> None:
    """Loss, doubled and overtaking frames, restarts of either side, and a thief who repeats and spoils what it heard:
    nothing arrives twice, nothing arrives that was not sent, and a wire that is well again carries frames."""
    bad = Impairment(0.3, jitter, loss, duplication, reorder)
    net = SealedPair(impairment=bad, seed=seed, config=SealConfig(renew_after=4, dead_after=20, overlap=1))
    chance = random.Random(seed)
    sent: list[list[bytes]] = [[], []]
    for side, after in restarts:
        net.clock.call_at(after, net.ends[side].restart)
    for turn in range(60):
        for side, end in enumerate(net.ends):
            frame = b"%d from %d" % (turn, side)
            sent[side].append(frame)
            end.link.send(frame)
            if end.socket.heard:
                old = bytearray(chance.choice(end.socket.heard))
                end.socket.inject(bytes(old))
                old[chance.randrange(len(old))] ^= 1 << chance.randrange(8)
                end.socket.inject(bytes(old), bytes(old[: chance.randrange(len(old))]))
        net.run(0.1)
    for side, end in enumerate(net.ends):
        assert not Counter(end.got) - Counter(sent[1 - side]), "a frame arrived twice, or was never sent"
    net.set_impairment(Impairment())
    net.run(10)
    assert net.works_both_ways()


# Strangers on the wire.


def test_forged_frames_are_dropped_unread_and_counted() -> None:
    net = SealedPair()
    net.run()
    clear = b"\x01" + bytes(99)
    net.a.link.send(b"x" * 60)
    net.run()
    sealed = net.b.socket.heard[-1]
    unknown = sealed[:1] + b"other" + sealed[6:]
    changed = sealed[:20] + bytes((sealed[20] ^ 1,)) + sealed[21:]
    renumbered = sealed[:6] + (7).to_bytes(6, "big") + sealed[12:]
    net.b.socket.inject(clear, b"", unknown, renumbered, changed, sealed, sealed[:15], b"\x11" + bytes(10))
    assert net.b.got == [b"x" * 60]
    assert net.b.link.drops == {
        SealDrop.UNSEALED: 2,
        SealDrop.UNKNOWN_KEY: 1,
        SealDrop.FORGED: 1,
        SealDrop.REPLAYED: 3,
        SealDrop.MALFORMED_OFFER: 1,
    }
    assert net.works_both_ways()


def test_a_frame_that_is_sent_back_does_not_open() -> None:
    net = SealedPair()
    net.run()
    net.a.link.send(b"mine")
    net.run()
    net.a.socket.inject(net.b.socket.heard[-1])
    assert not net.a.got
    assert net.a.link.drops == {SealDrop.UNKNOWN_KEY: 1}


def test_recorded_offers_change_nothing_in_a_session_that_is_in_use() -> None:
    """All that ever went over the wire, again and again, also of former lives, towards both ends."""
    net = SealedPair()
    net.run()
    net.a.restart()
    net.run()
    net.b.restart()
    net.run()
    sessions = [end.link.sessions for end in net.ends]
    recorded = net.a.socket.heard + net.b.socket.heard
    for _ in range(20):
        for end in net.ends:
            end.socket.inject(*recorded)
        assert net.works_both_ways()
    assert [end.link.sessions for end in net.ends] == sessions
    assert net.a.link.drops[SealDrop.STALE_OFFER] or net.b.link.drops[SealDrop.STALE_OFFER]


def test_a_flood_of_recorded_offers_costs_few_answers_and_no_agreement(monkeypatch: pytest.MonkeyPatch) -> None:
    net = SealedPair()
    net.run()
    ask = next(
        frame for frame in net.a.socket.heard if len(frame) == OFFER_BYTES and parse_offer(frame)[0].echo == NOBODY
    )
    net.b.restart()
    net.run()
    agreements: list[object] = []
    monkeypatch.setattr("psirp_stack.sealing.handshake.session_keys", lambda *given: agreements.append(given))
    sent = net.a.link.counters.sent
    for _ in range(100):
        net.a.socket.inject(*[ask] * 100)
        net.run(0.001)
    assert not agreements
    assert net.a.link.counters.sent - sent <= 0.1 / HandshakeTimes().reply_interval + 1
    assert net.a.link.drops[SealDrop.TOO_MANY_OFFERS] > 9_900


def test_a_flood_without_the_secret_costs_one_look_each_and_no_answer() -> None:
    net = SealedPair()
    net.run()
    sent = net.a.link.counters.sent
    chance = random.Random(5)
    offer = bytearray(next(frame for frame in net.a.socket.heard if len(frame) == OFFER_BYTES))
    for _ in range(1_000):
        offer[4:] = chance.randbytes(OFFER_BYTES - 4)
        net.a.socket.inject(bytes(offer))
    assert net.a.link.drops == {SealDrop.WRONG_SECRET: 1_000}
    assert net.a.link.counters.sent == sent


def test_own_offers_that_come_back_are_dropped() -> None:
    channel = SealedChannel(DOMAIN, entropy(), 0.0)
    offer = channel.next_frame()
    assert offer is not None
    channel.open([offer], 0.0)
    assert channel.drops == {SealDrop.REFLECTED: 1}
    assert channel.next_frame() is None


def test_whoever_knows_the_keys_of_one_session_knows_none_of_another() -> None:
    one, other = HandshakeShare.new(entropy(1)), HandshakeShare.new(entropy(2))
    third = HandshakeShare.new(entropy(3))
    keys = session_keys(DOMAIN, one, other.id, other.public)
    again = session_keys(DOMAIN, other, one.id, one.public)
    assert (keys.send, keys.receive) == (again.receive, again.send)
    assert keys.send != keys.receive
    for different in (
        session_keys(DOMAIN, one, third.id, third.public),
        session_keys(DOMAIN, one, third.id, other.public),
        session_keys(DomainKeys.of(OTHER_SECRET), one, other.id, other.public),
    ):
        assert not {different.send.key, different.receive.key} & {keys.send.key, keys.receive.key}
    assert keys.send.key.hex() not in repr(keys)
    assert str(list(DOMAIN.offer)) not in repr(DOMAIN)


def test_a_share_of_small_order_is_refused() -> None:
    with pytest.raises(WeakShareError):
        session_keys(DOMAIN, HandshakeShare.new(entropy()), b"p" * SHARE_ID_BYTES, bytes(32))


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 16 bytes, not 5"):
        DomainKeys.of(b"short")


# Members that do not keep to the rules.


def offer_from(share: HandshakeShare, step: Step, echo: bytes, confirmation: bytes = NOT_CONFIRMED) -> bytes:
    packed = pack_offer(Offer(step, share.id, share.public, echo, confirmation))
    return packed + DOMAIN.mac(packed)


def begun() -> tuple[Handshake, bytes, Counter[SealDrop]]:
    """A handshake that has sent its first offer, and the number of its share."""
    drops: Counter[SealDrop] = Counter()
    handshake = Handshake(DOMAIN, entropy(), drops)
    handshake.want(0.0)
    frame = handshake.next_frame()
    assert frame is not None
    return handshake, parse_offer(frame)[0].share, drops


def test_a_wrong_confirmation_makes_no_session() -> None:
    handshake, number, drops = begun()
    share = HandshakeShare.new(entropy(9))
    for step in (Step.CONFIRM, Step.SETTLED):
        assert handshake.receive(offer_from(share, step, number, b"c" * CONFIRMATION_BYTES), 0.0) is None
    assert drops == {SealDrop.WRONG_CONFIRMATION: 2}
    keys = session_keys(DOMAIN, share, number, handshake.candidates[0].public)
    made = handshake.receive(offer_from(share, Step.CONFIRM, number, keys.send.confirmation), 0.0)
    assert made is not None
    assert not handshake.wanted


def test_one_share_agrees_with_few_others() -> None:
    handshake, number, drops = begun()
    for seed in range(10, 10 + MAX_CANDIDATES + 3):
        handshake.receive(offer_from(HandshakeShare.new(entropy(seed)), Step.ASK, number), 0.0)
    assert len(handshake.candidates) == MAX_CANDIDATES
    assert drops == {SealDrop.TOO_MANY_OFFERS: 3}
    handshake.handle_timer(HandshakeTimes().share_life)
    assert not handshake.candidates, "with the share its agreements go"


# The frames.

offers = st.builds(
    Offer,
    st.sampled_from(Step),
    st.binary(min_size=16, max_size=16).filter(any),
    st.binary(min_size=32, max_size=32),
    st.binary(min_size=16, max_size=16),
    st.binary(min_size=16, max_size=16),
)


@given(offers)
def test_offers_are_read_as_they_were_written(offer: Offer) -> None:
    packed = pack_offer(offer)
    assert len(packed) == OFFER_MAC_OFFSET
    assert parse_offer(packed + b"m" * 16) == (offer, b"m" * 16)


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (0, 0x10, "type 0x10"),
        (OFFER_VERSION_OFFSET, 2, "version 2"),
        (OFFER_CIPHER_OFFSET, 2, "cipher 2"),
        (OFFER_STEP_OFFSET, 3, "step 3"),
    ],
)
def test_what_is_no_offer_is_refused_with_the_reason(at: int, value: int, reason: str) -> None:
    good = bytearray(pack_offer(Offer(Step.ASK, b"s" * 16, bytes(32))) + bytes(16))
    parse_offer(bytes(good))
    good[at] = value
    with pytest.raises(OfferError, match=f"byte {at}: {reason}"):
        parse_offer(bytes(good))
    with pytest.raises(OfferError, match="100 bytes, not 101"):
        parse_offer(bytes(101))


@settings(max_examples=200)
@given(st.lists(st.one_of(st.integers(0, 40), st.integers(0, 3 * WINDOW), st.just(-1)), max_size=80), st.integers(0, 9))
def test_the_replay_window_remembers_what_a_set_would(numbers: list[int], runs: int) -> None:
    window = FrameWindow()
    seen: set[int] = set()
    for given_ in numbers:
        for number in range(given_, given_ + runs + 1) if given_ >= 0 else (window.highest + 1,):
            new = number not in seen and number > max(seen, default=-1) - WINDOW
            assert window.is_new(number) == new
            if new:
                window.add(number)
                seen.add(number)
    assert window.highest == max(seen, default=-1)


def test_frames_open_once_in_any_order_within_the_window() -> None:
    share, other = HandshakeShare.new(entropy(1)), HandshakeShare.new(entropy(2))
    sending = SendingKey(session_keys(DOMAIN, share, other.id, other.public).send)
    receiving = ReceivingKey(session_keys(DOMAIN, other, share.id, share.public).receive)
    sealed = sending.seal_many([b"%d" % number for number in range(WINDOW + 10)])
    order = list(range(10, WINDOW + 10))
    random.Random(3).shuffle(order)
    assert [receiving.open(sealed[number]) for number in order] == [b"%d" % number for number in order]
    assert {receiving.open(frame) for frame in sealed} == {SealDrop.REPLAYED}


@settings(max_examples=150, deadline=None)
@given(
    batches=st.lists(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), min_size=1, max_size=12), max_size=8),
    rising=st.booleans(),
)
def test_a_batch_at_once_is_opened_as_frame_by_frame(batches: list[list[tuple[int, int]]], rising: bool) -> None:
    """Gaps, doubles, frames that are late, changed or under another key: the quick way says the same or steps aside."""
    share, other = HandshakeShare.new(entropy(1)), HandshakeShare.new(entropy(2))
    sending = SendingKey(session_keys(DOMAIN, share, other.id, other.public).send)
    keys = session_keys(DOMAIN, other, share.id, share.public).receive
    quick, slow = ReceivingKey(keys), ReceivingKey(keys)
    sealed = sending.seal_many([b"%d" % number for number in range(61)])
    for batch in batches:
        chosen = []
        for number, harm in sorted(batch) if rising else batch:
            frame = sealed[number]
            if harm == 8:
                frame = frame[:-1] + bytes((frame[-1] ^ 1,))
            elif harm == 9:
                frame = frame[: harm + number % 20]
            chosen.append(frame)
        wanted = [slow.open(frame) for frame in chosen]
        at_once = quick.open_in_order(chosen)
        assert ([quick.open(frame) for frame in chosen] if at_once is None else at_once) == wanted


def test_the_quick_way_is_taken_by_what_comes_in_order() -> None:
    share, other = HandshakeShare.new(entropy(1)), HandshakeShare.new(entropy(2))
    sending = SendingKey(session_keys(DOMAIN, share, other.id, other.public).send)
    receiving = ReceivingKey(session_keys(DOMAIN, other, share.id, share.public).receive)
    for size in (1, 3, 64, 300, 1):
        frames = [b"%d of %d" % (number, size) for number in range(size)]
        assert receiving.open_in_order(sending.seal_many(frames)) == frames
    sealed = sending.seal_many([b"a", b"lost", b"c"])
    assert receiving.open_in_order([sealed[0], sealed[2]]) == [b"a", b"c"]
    assert receiving.open_in_order([sealed[1]]) is None
    assert receiving.open(sealed[1]) == b"lost"
    assert receiving.open(sealed[1]) is SealDrop.REPLAYED
