"""The fast forwarder takes the reference's decision on every packet: out-links, delivery, drop reason and bytes.

Tables are generated, frames are built for the table and then mutated. The fast forwarder is asked with a cold and with
a warm cache, one frame at a time and in batches. Its memory of loops is the one thing it has beyond the reference, so
the tables here have no `incoming` tags, except in the last test, where all it may do is drop more.
"""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psirp_stack.forwarder import Forwarder
from psirp_stack.forwarding_model import (
    BROADCAST_FID,
    FILTER_BITS,
    TABLES,
    Decision,
    Detour,
    Drop,
    ForwardingTable,
    LinkNumber,
    Tags,
)
from psirp_stack.tools.reference import reference_decision
from psirp_stack.wire.codec import (
    AuthenticationHeader,
    ForwardingHeader,
    Frame,
    Header,
    MetadataHeader,
    RendezvousHeader,
    build,
)
from psirp_stack.wire.numbers import FORWARDING_BYTES, RENDEZVOUS_TYPES, HeaderType
from tests.psirp_stack.frames import draw_tags, fid, frame
from tests.psirp_stack.frames import table as single_bit_table
from tests.psirp_stack.wire.wire_strategies import mutated_frames

Arrival = tuple[bytes, LinkNumber | None]
NOW = 50.0


@st.composite
def tables(draw: st.DrawFn, incoming: bool = False) -> ForwardingTable:
    """Tags of few and of many bits, tags of zero, ways round by links that the node does not have."""
    source = random.Random(draw(st.integers(0, 2**32)))
    numbers = draw(st.lists(st.integers(0, 9), max_size=6, unique=True))

    def tags() -> Tags:
        kind = draw(st.integers(0, 5))
        if kind == 0:
            return (0,) * TABLES
        if kind == 1:
            return tuple(1 << source.randrange(FILTER_BITS) for _ in range(TABLES))
        return draw_tags(source)

    links = {number: tags() for number in numbers}
    detours = [Detour(tags(), tags(), draw(st.integers(0, 9))) for _ in range(draw(st.integers(0, 2)))]
    return ForwardingTable(links, tags(), {number: tags() for number in numbers} if incoming else {}, tuple(detours))


@st.composite
def arrivals(draw: st.DrawFn, table: ForwardingTable) -> Arrival:
    """A frame made for the table, perhaps mutated, and the link it comes in on: the table's, another, or none."""
    index = draw(st.integers(0, TABLES))
    every = [*table.links.values(), *table.incoming.values(), table.internal]
    every += [each.tags for each in table.detours]
    bits = [tags[index % TABLES] for tags in draw(st.lists(st.sampled_from(every), max_size=4))]
    if draw(st.integers(0, 9)) == 0:
        bits.append(random.Random(draw(st.integers(0, 2**32))).getrandbits(FILTER_BITS))
    named = BROADCAST_FID if draw(st.integers(0, 9)) == 0 else fid(*bits, index=index)
    ttl = draw(st.sampled_from([255, 255, 64, 0xF0, 4, 2, 1, 0]))

    # The bulk of a frame comes from a seed: drawn byte by byte it would use up what hypothesis can draw.
    source = random.Random(draw(st.integers(0, 2**32)))
    further: list[Header] = [
        RendezvousHeader(source.choice(sorted(RENDEZVOUS_TYPES)), source.randbytes(32), source.randbytes(32)),
        MetadataHeader(source.randbytes(32), source.randbytes(32), collected_fid=fid(index=draw(st.integers(0, 9)))),
        AuthenticationHeader(source.randbytes(32), 1, 2, 3, signature=source.randbytes(64)),
    ]
    chosen = draw(st.permutations(further))[: draw(st.integers(0, 3))]
    payload = draw(st.sampled_from([None, b"", source.randbytes(50)]))
    whole = build(Frame((ForwardingHeader(named, ttl), *chosen), payload))
    data = draw(st.one_of(mutated_frames(st.just(whole)), st.binary(max_size=60)))
    return data, draw(st.sampled_from([None, *table.links, 77]))


@st.composite
def histories(draw: st.DrawFn, incoming: bool = False) -> tuple[ForwardingTable, list[Arrival]]:
    table = draw(tables(incoming))
    several = draw(st.lists(arrivals(table), min_size=1, max_size=6))
    # Repeats find their header in the cache, and so do repeats that are broken only behind it.
    for data, arrival in draw(st.lists(st.sampled_from(several), max_size=6)):
        several.append((data, arrival))
        body = draw(mutated_frames(st.just(data[FORWARDING_BYTES:])))
        several.append((data[:FORWARDING_BYTES] + body, arrival))
    return table, several


def sends_and_deliveries(decisions: Sequence[Decision]) -> tuple[dict[LinkNumber, list[bytes]], list[bytes]]:
    sent: dict[LinkNumber, list[bytes]] = {}
    for decision in decisions:
        for number in decision.out:
            sent.setdefault(number, []).append(decision.frame)
    return sent, [decision.frame for decision in decisions if decision.deliver]


@given(histories(), st.sampled_from([1, 2, 100]))
def test_the_same_decision_on_every_packet(history: tuple[ForwardingTable, list[Arrival]], cache: int) -> None:
    table, packets = history
    fast = Forwarder(table, cache_entries=cache)
    for data, arrival in packets:
        wanted = reference_decision(data, arrival, table)
        assert fast.decide(data, arrival, NOW) == wanted, "cold, or as the packets before left the cache"
        assert fast.decide(data, arrival, NOW) == wanted, "warm"


@given(histories(), st.sampled_from([1, 100]))
def test_a_batch_puts_the_same_bytes_on_the_same_links(
    history: tuple[ForwardingTable, list[Arrival]], cache: int
) -> None:
    table, packets = history
    fast = Forwarder(table, cache_entries=cache)
    sent: dict[LinkNumber, list[bytes]] = {}
    delivered: list[bytes] = []
    for number in table.links:
        fast.attach(number, lambda data, number=number: sent.setdefault(number, []).append(data))
    fast.deliver_to(delivered.append)
    for arrival in dict.fromkeys(arrival for _, arrival in packets):
        batch = [data for data, link in packets if link == arrival]
        wanted = [reference_decision(data, arrival, table) for data in batch]
        for _ in ("cold", "warm"):
            sent.clear()
            delivered.clear()
            before = dict(fast.statistics.drops)
            fast.forward(batch, arrival, NOW)
            assert (sent, delivered) == sends_and_deliveries(wanted)
            for reason in Drop:
                dropped = sum(decision.drop is reason for decision in wanted)
                assert fast.statistics.drops[reason] - before[reason] == dropped, reason


@given(histories(incoming=True))
def test_the_memory_of_loops_only_ever_drops_what_the_reference_would_pass(
    history: tuple[ForwardingTable, list[Arrival]],
) -> None:
    table, packets = history
    fast = Forwarder(table)
    for data, arrival in packets:
        decision, wanted = fast.decide(data, arrival, NOW), reference_decision(data, arrival, table)
        if decision.drop is Drop.LOOP:
            assert wanted.drop is None
            assert decision.frame == data
        else:
            assert decision == wanted


@pytest.mark.parametrize("ttl", range(2, 256))
def test_every_time_to_live_is_rewritten_where_it_stands(ttl: int) -> None:
    """Also where a byte before it has the same value."""
    table = single_bit_table(1, 2)
    for kind in (None, *sorted(RENDEZVOUS_TYPES)):
        data = frame(fid(1 << 1), *([] if kind is None else [kind]), ttl=ttl)
        fast = Forwarder(table)
        sent: list[bytes] = []
        fast.attach(1, sent.append)
        fast.forward([data, data], 2, NOW)
        assert sent == [reference_decision(data, 2, table).frame] * 2
        assert fast.statistics.cache_hits == 1
        fast.forward([data, data, data], 2, NOW)
        assert sent == [reference_decision(data, 2, table).frame] * 5
        assert fast.statistics.cache_hits == 4


def test_a_frame_broken_behind_a_cached_header_is_dropped() -> None:
    table = single_bit_table(1, 2)
    fast = Forwarder(table)
    sent: list[bytes] = []
    fast.attach(1, sent.append)
    data = frame(fid(1 << 1), HeaderType.PUBLISH_DATA)
    broken = [data[:at] + bytes([value]) + data[at + 1 :] for at in (42, 43, 148) for value in (0, 2, 4, 9)]
    broken += [data[:cut] for cut in (42, 43, 44, 100, 153)]
    wanted = [reference_decision(each, 2, table) for each in broken]
    assert {decision.drop for decision in wanted} == {Drop.MALFORMED, None}
    fast.forward([data, *broken], 2, NOW)
    passed = [decision.frame for decision in wanted if decision.drop is None]
    assert sent[1:] == passed
    good = sent[0]
    sent.clear()
    fast.forward([data, *broken, data], 2, NOW)
    assert sent == [good, *passed, good], "also in a batch whose headers are all known"
    for each, decision in zip(broken, wanted, strict=True):
        sent.clear()
        fast.forward([data, each, data, data], 2, NOW)
        assert sent == [good, *([] if decision.drop else [decision.frame]), good, good]
