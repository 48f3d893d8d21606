"""Where one request of an application stands, as a table.

| state | is |
|---|---|
| `LOCATING` | the rendezvous is asked who publishes the item, who is subscribed to it, and who had it lately |
| `SEEKING` | a holder is asked which of the versions it has |
| `FETCHING` | a version's pieces are on their way |
| `OVER` | everything was handed up, or nobody has more |
"""

from enum import Enum, auto


class PullState(Enum):
    LOCATING = auto()
    SEEKING = auto()
    FETCHING = auto()
    OVER = auto()


class PullInput(Enum):
    LOCATED = auto()
    NOBODY = auto()
    """Nobody is known to have it, or nobody who is asked answers."""
    OFFERED = auto()
    """A holder has versions that are wanted."""
    REFUSED = auto()
    """A holder has nothing, or stays silent: the next is asked."""
    MORE_TO_SEEK = auto()
    """All that was offered is here, and the range goes on."""
    ALL_HERE = auto()


_S, _I = PullState, PullInput

TRANSITIONS: dict[tuple[PullState, PullInput], PullState] = {
    (_S.LOCATING, _I.LOCATED): _S.SEEKING,
    (_S.LOCATING, _I.NOBODY): _S.OVER,
    (_S.SEEKING, _I.OFFERED): _S.FETCHING,
    (_S.SEEKING, _I.REFUSED): _S.SEEKING,
    (_S.SEEKING, _I.NOBODY): _S.OVER,
    (_S.SEEKING, _I.ALL_HERE): _S.OVER,
    (_S.FETCHING, _I.REFUSED): _S.SEEKING,
    (_S.FETCHING, _I.NOBODY): _S.OVER,
    (_S.FETCHING, _I.MORE_TO_SEEK): _S.SEEKING,
    (_S.FETCHING, _I.ALL_HERE): _S.OVER,
}
"""What is not in the table changes nothing."""


def after(state: PullState, what: PullInput) -> PullState:
    return TRANSITIONS.get((state, what), state)
