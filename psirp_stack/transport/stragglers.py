"""Who holds up the others, and is therefore left behind: it gets what it asks for, at its own pace.

A reader that does not read uses up the room that its node has offered. As long as all receivers of a filter are so, the
publisher waits for them, which is what flow control is for. When others could go on they do, at once. A receiver that
says nothing at all gets a few time-outs: it may have been unlucky. Beside that, what waits for the slowest must not
fill the room that all share.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from psirp_stack.transport.peer import PATIENCE, Peer

if TYPE_CHECKING:
    from psirp_stack.transport.positions import Positions


def holding_up(members: Iterable[Peer], positions: "Positions", place: int, window: float, now: float) -> list[Peer]:
    """Those because of whom nothing is sent at a place, if they are not all of those who are waited for."""
    waited_for = [peer for peer in members if peer.is_abreast]
    found = [
        peer
        for peer in waited_for
        if _has_no_room(peer, positions, place) or _is_silent(peer, positions, place, window, now)
    ]
    return found if len(found) < len(waited_for) else []


def far_behind(peers: Iterable[Peer], positions: "Positions", most: int) -> list[Peer]:
    """Those who have more than half of all that may wait to go, while somebody has less than a quarter."""
    lags = [(positions.end - _reached(peer, positions), peer) for peer in peers if not peer.behind]
    if min((lag for lag, _ in lags), default=0) >= most // 4:
        return []
    return [peer for lag, peer in lags if lag > most // 2]


def _reached(peer: Peer, positions: "Positions") -> int:
    return positions.reached(peer.acked, peer.progress) + peer.beyond


def _has_no_room(peer: Peer, positions: "Positions", place: int) -> bool:
    return peer.confirmed and positions.start_of(peer.acked + 1) + peer.room <= place


def _is_silent(peer: Peer, positions: "Positions", place: int, window: float, now: float) -> bool:
    if place - _reached(peer, positions) < window or peer.need_since is None:
        return False
    return now - peer.need_since >= PATIENCE * peer.round_trip.timeout / peer.round_trip.backoff
