"""How a receiver stands with a publisher: the table has no dead ends, and what is silent is woken by a word."""

from psirp_stack.transport.source_state import SILENT, TRANSITIONS, SourceInput, SourceState, after


def test_every_state_is_reached_from_the_first_and_left_again() -> None:
    reached = {SourceState.HEARD}
    for _ in SourceState:
        reached |= {after(state, what) for state in reached for what in SourceInput}
    assert reached == set(SourceState)
    assert {state for state, _ in TRANSITIONS} == set(SourceState)


def test_only_a_word_ends_silence() -> None:
    for state in SILENT:
        assert {what for what in SourceInput if after(state, what) is not state} == {SourceInput.SPOKE}
        assert after(state, SourceInput.SPOKE) not in SILENT


def test_where_to_begin_is_never_asked_of_a_publisher_whose_order_is_known() -> None:
    for state in (SourceState.FOLLOWING, SourceState.ASLEEP):
        assert after(state, SourceInput.START_UNKNOWN) is state
