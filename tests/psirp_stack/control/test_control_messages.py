"""Control messages and everything that reads them: round trips, refusals, and hostile bytes."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psirp_stack.control import messages
from psirp_stack.control.link_state_database import AGED_BYTES, FIXED_BYTES, PART_BYTES, own_parts, read_part
from psirp_stack.control.messages import MAX_MESSAGE_BYTES, Message, MessageError, decode, encode
from trials.fuzz.control import control_targets, fuzz_control, hostile_payloads

IDS = st.binary(min_size=32, max_size=32)
COUNTS = st.integers(0, (1 << 63) - 1)
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)
NAME_LISTS = st.lists(NAMES, max_size=4).map(tuple)
POLICIES = st.builds(
    messages.ScopePolicy,
    st.none() | st.lists(IDS, max_size=2).map(tuple),
    st.none() | st.lists(IDS, max_size=2).map(tuple),
    st.booleans(),
)
PAIRS = st.lists(st.tuples(NAMES, COUNTS), max_size=4).map(tuple)
STATES = st.builds(
    messages.LinkState,
    NAMES,
    COUNTS,
    COUNTS,
    st.integers(0, 255),
    PAIRS,
    st.integers(0, 255),
    st.integers(1, 256),
)
AGED = st.builds(messages.AgedState, COUNTS, STATES.map(encode))
ONWARD = st.lists(st.builds(messages.Onward, NAMES, IDS), max_size=4).map(tuple)
GRANTS = st.builds(messages.FilterGrant, IDS, NAME_LISTS, COUNTS, ONWARD)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(messages.Match, IDS, IDS, COUNTS, NAME_LISTS, NAME_LISTS, POLICIES),
    st.builds(messages.MatchServed, IDS, IDS, COUNTS, PAIRS),
    st.builds(messages.StartPublish, IDS, IDS, COUNTS, st.lists(GRANTS, max_size=3).map(tuple)),
    st.builds(messages.StopPublish, IDS, IDS, COUNTS),
    st.builds(messages.Served, IDS, IDS, COUNTS, st.none() | NAMES, st.integers(0, 255), POLICIES),
    st.builds(messages.TopologyStarted, COUNTS),
    st.builds(messages.Hello, NAMES, COUNTS, NAME_LISTS, COUNTS),
    st.builds(messages.LinkStates, st.lists(AGED, max_size=3).map(tuple)),
    st.builds(
        messages.LinkStateReceived,
        NAMES,
        st.lists(st.tuples(NAMES, COUNTS, COUNTS, st.integers(0, 255)), max_size=3).map(tuple),
    ),
)


@given(MESSAGES)
def test_messages_survive_the_wire(message: Message) -> None:
    assert decode(encode(message)) == message


@given(st.binary(max_size=200))
def test_other_bytes_are_refused_or_are_a_message(data: bytes) -> None:
    try:
        message = decode(data)
    except MessageError:
        return
    assert decode(encode(message)) == message


def test_what_is_out_of_bounds_is_refused() -> None:
    with pytest.raises(MessageError, match="at most"):
        decode(bytes(MAX_MESSAGE_BYTES + 1))
    for bad in (
        messages.Hello("", 1, (), 1500),
        messages.Hello("a b", 1, (), 1500),
        messages.Hello("a\n", 1, (), 1500),
        messages.Hello("x" * 65, 1, (), 1500),
        messages.Hello("a", -1, (), 1500),
        messages.StopPublish(bytes(31), bytes(32), 1),
    ):
        with pytest.raises(MessageError):
            decode(encode(bad))
    for part, parts in ((256, 256), (0, 0)):
        with pytest.raises(MessageError):
            messages.decode_state(encode(messages.LinkState("a", 1, 1, 0, (), part, parts)))


@given(STATES)
def test_a_link_state_keeps_the_bytes_that_its_origin_made(state: messages.LinkState) -> None:
    part = read_part(encode(state))
    assert part.state == state == messages.decode_state(part.body)
    assert (part.key, part.version) == ((state.origin, state.part), (state.boot, state.number))


@given(st.binary(max_size=60))
def test_other_bytes_are_no_link_state(data: bytes) -> None:
    try:
        part = read_part(data)
    except MessageError:
        return
    assert messages.decode_state(encode(part.state)) == part.state


@given(st.lists(NAMES, max_size=300, unique=True), COUNTS)
@settings(max_examples=30)
def test_a_link_state_is_cut_into_parts_that_fit(names: list[str], boot: int) -> None:
    parts = own_parts("n" * 64, (boot, boot), 3, [(name, 1 << 20) for name in names])
    assert [part.part for part in parts] == list(range(len(parts)))
    assert [name for part in parts for name, _ in part.neighbours] == names
    for part in parts:
        assert part.parts == len(parts)
        assert read_part(encode(part)).size <= PART_BYTES + FIXED_BYTES + AGED_BYTES


def test_hostile_payloads_are_counted_and_nothing_escapes() -> None:
    report = fuzz_control(random.Random(11), 4000)
    assert report.failures == []
    assert report.failed == 0
    assert all(counts.total() == report.payloads == 4000 for counts in report.reasons.values())
    # Payloads get far enough to matter: everything is reached, not only the first refusal.
    assert {"refused", "Hello", "LinkStates", "Match", "StartPublish"} <= report.reasons["messages"].keys()
    assert {"handed up", "taken", "dropped: malformed", "dropped: duplicate"} <= report.reasons["courier"].keys()
    assert {"taken", "dropped: malformed", "dropped: unknown link"} <= report.reasons["link state"].keys()
    assert {"NODE", "dropped: malformed", "dropped: for another node"} <= report.reasons["control frames"].keys()
    assert {"answered", "ignored", "no match", "refused"} <= report.reasons["topology"].keys()


def test_a_fuzz_run_can_be_repeated_and_notices_a_target_that_raises() -> None:
    def run() -> dict[str, Counter[str]]:
        return fuzz_control(random.Random(5), 300).reasons

    assert run() == run()
    report = fuzz_control(random.Random(5), 300, {"fragile": lambda payload: str(payload[50])})
    assert report.failed == report.reasons["fragile"]["raised IndexError"] > 0
    assert set(control_targets(random.Random(0))) == {"messages", "courier", "link state", "control frames", "topology"}
    stream, again = hostile_payloads(random.Random(6)), hostile_payloads(random.Random(6))
    assert [next(stream) for _ in range(100)] == [next(again) for _ in range(100)]
