"""Where one who joins begins, as its publisher decides it.

A subscriber is owed every version that was published after its subscription was acknowledged. Its publisher hears of
it later, by way of the rendezvous and the topology manager, and may have published much in between. No two nodes need
equal clocks for this: the subscriber says how long it has been waiting, the publisher how old its versions are.
"""

from typing import NamedTuple

from psirp_stack.transport.messages import Ask
from psirp_stack.transport.positions import Positions


class JoinStart(NamedTuple):
    start: int
    known: bool
    """False when the version to go on from is not retained."""
    follows: bool
    """It is right after the version that the subscriber named."""


def start_for(ask: Ask, joined: int, positions: Positions, now: float) -> JoinStart:
    """`joined` is one above the version that was the newest when the subscriber came."""
    versions = positions.versions
    waited = ask.waited_ms / 1000
    if ask.since_number is not None or ask.since_id is not None:
        found = None
        if ask.since_number is not None and ask.since_number[0] == versions.epoch:
            found = ask.since_number[1]
        elif ask.since_id is not None:
            found = _place_of(ask.since_id, waited, positions, now)
        if found is not None and versions.oldest - 1 <= found <= positions.newest:
            return JoinStart(found + 1, True, True)
        if not waited:
            return JoinStart(versions.oldest, False, False)
    start = min(joined, positions.first_within(waited, now))
    if not ask.future_only:
        start -= 1  # what was current then
    return JoinStart(max(start, versions.oldest, 1), True, False)


def _place_of(version_id: bytes, waited: float, positions: Positions, now: float) -> int | None:
    """Which of several versions with this content the subscriber had last: the latest from before it began to wait, or
    else the first after that."""
    numbers = positions.versions.numbers_of(version_id)
    before = [number for number in numbers if positions.age_of(number, now) >= waited]
    return before[0] if before else (numbers[-1] if numbers else None)
