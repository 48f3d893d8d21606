"""Whether what arrives is news: decided by where publications come from and what their gateways knew. No I/O.

Publications of one gateway on one item come in the order of their numbers, so a number that is not above the highest
one known is a repetition. That covers every way by which an own publication can come back.

Two gateways that fetch the same document publish the same state twice, and neither knows of the other's. Their states
are laid side by side, in order: the next state of the one that is equal to a state of the other, and stands behind what
was laid side by side before, is that state. A gateway that publishes a state again *knowing* of the other's means it:
then it is news. A document that is equal to the newest one changes nothing, whoever sends it.

What a gateway knew when it published is older than its publication. If some of that comes later, by another way, it is
no news any more: subscribers would go back to it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from exchange.model import OriginId, Profile


class Judgement(Enum):
    NEWS = "news"
    REPEATED = "repeated"
    SAME_STATE = "same state"


@dataclass(frozen=True, slots=True)
class Reached:
    """The highest number of a gateway that is known on an item, and the position of the state that it left here."""

    number: int
    position: int


@dataclass(frozen=True, slots=True)
class Twin:
    """An entry with the digest of what arrived."""

    position: int
    origin: OriginId


@dataclass(frozen=True, slots=True)
class Ruling:
    judgement: Judgement
    position: int | None = None
    """Where the same state stands."""


def judge(
    origin: OriginId,
    profile: Profile,
    known: Sequence[OriginId],
    reached: Reached | None,
    newest_is_equal: int | None,
    twins: Sequence[Twin],
) -> Ruling:
    """`newest_is_equal`: the position of the item's newest entry, if its body is this one. `twins`: entries with this
    body behind `reached`, in order."""
    if reached is not None and origin.number <= reached.number:
        return Ruling(Judgement.REPEATED, reached.position)
    if profile is not Profile.DOCUMENT:
        return Ruling(Judgement.NEWS)
    knew = {one.gateway: one.number for one in known}
    behind = 0 if reached is None else reached.position
    for twin in twins:
        is_foreign = twin.origin.gateway != origin.gateway
        if is_foreign and twin.position > behind and twin.origin.number > knew.get(twin.origin.gateway, -1):
            return Ruling(Judgement.SAME_STATE, twin.position)
    if newest_is_equal is not None:
        return Ruling(Judgement.SAME_STATE, newest_is_equal)
    return Ruling(Judgement.NEWS)
