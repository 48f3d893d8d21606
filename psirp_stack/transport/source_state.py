"""How a receiver stands with one publisher of an item, as a table.

| state | is |
|---|---|
| `HEARD` | it spoke, or was named as the one who serves us; it is not known where to begin |
| `JOINING` | it is asked where to begin, again and again |
| `FOLLOWING` | its order is known from a version on |
| `LOST` | it did not answer before it said where to begin; it is not asked any more |
| `ASLEEP` | it does not answer; its order goes on where it stood when it is heard again |
"""

from enum import Enum, auto


class SourceState(Enum):
    HEARD = auto()
    JOINING = auto()
    FOLLOWING = auto()
    LOST = auto()
    ASLEEP = auto()


class SourceInput(Enum):
    START_UNKNOWN = auto()
    """It has something for us, and did not say where we begin."""
    START_NAMED = auto()
    SPOKE = auto()
    """Anything came from it, or the topology manager named it anew."""
    DOES_NOT_ANSWER = auto()


_S, _I = SourceState, SourceInput

TRANSITIONS: dict[tuple[SourceState, SourceInput], SourceState] = {
    (_S.HEARD, _I.START_UNKNOWN): _S.JOINING,
    (_S.HEARD, _I.START_NAMED): _S.FOLLOWING,
    (_S.HEARD, _I.DOES_NOT_ANSWER): _S.LOST,
    (_S.JOINING, _I.START_NAMED): _S.FOLLOWING,
    (_S.JOINING, _I.DOES_NOT_ANSWER): _S.LOST,
    (_S.FOLLOWING, _I.START_NAMED): _S.FOLLOWING,
    (_S.FOLLOWING, _I.DOES_NOT_ANSWER): _S.ASLEEP,
    (_S.LOST, _I.SPOKE): _S.HEARD,
    (_S.ASLEEP, _I.SPOKE): _S.FOLLOWING,
}
"""What is not in the table changes nothing."""

SILENT = frozenset({SourceState.LOST, SourceState.ASLEEP})
"""Nothing is asked in these, and no time is due."""


def after(state: SourceState, what: SourceInput) -> SourceState:
    return TRANSITIONS.get((state, what), state)
