"""Where a subscriber begins with a publisher: whether the start that it is told leaves out something that it is owed.

A subscriber is owed what was published since it subscribed; by a publisher that takes over, what follows the last
version it got. A publisher says how old the version before the start is: as long as that was there before the
subscription, nothing is left out. Otherwise the subscriber asks for an earlier start, and for more each time, since an
answer that travels longer than `LOOK_BACK` leaves out what was published meanwhile.
"""

import math

from psirp_stack.transport.receiver_context import Since
from psirp_stack.transport.source import PublisherSequence

LOOK_BACK = 0.1
"""Seconds that a request may travel: what was published that much before the subscription is asked for as well."""
LOOK_BACK_GROWS = 2.0


class Beginning:
    """What one subscription is owed."""

    def __init__(self, since: Since | None, future_only: bool, now: float) -> None:
        self.future_only = future_only
        self._since = since
        self._owed_from = now
        self._last: bytes | None = None

    def handed_up(self, version_id: bytes, now: float) -> None:
        self._last, self._owed_from = version_id, now

    @property
    def begun(self) -> bool:
        return self._last is not None

    @property
    def since(self) -> Since | None:
        """The version to go on from."""
        return self._since if self._last is None else self._last

    def waited_ms(self, source: PublisherSequence, now: float) -> int:
        """How far back a publisher has to look; 0 when the subscriber named a version, and nothing else will do."""
        if self._last is None and self._since is not None:
            return 0
        return math.ceil((now - self._owed_from + source.look_back) * 1000) + 1

    def announced_start(self, joining: int, settled_ms: int, signed: bool, now: float) -> int | None:
        """The start that an announcement tells those who join; None when it has to be asked for: a signature does not
        cover it, and with the first version nothing can be left out."""
        if not joining or (self.since is not None and joining > 1):
            return None
        start = joining if self.future_only else max(joining - 1, 1)
        if start > 1 and (signed or self.future_only or not self._is_settled(settled_ms, now)):
            return None
        return start

    def accepts(self, source: PublisherSequence, settled_ms: int | None, now: float) -> bool:
        """Whether a start that was asked for leaves out nothing. If not, the next request looks back further."""
        if settled_ms is None or self._is_settled(settled_ms, now):
            return True
        short = now - settled_ms / 1000 - self._owed_from
        source.look_back = LOOK_BACK_GROWS * (source.look_back + short)
        return False

    def _is_settled(self, settled_ms: int, now: float) -> bool:
        return now - settled_ms / 1000 < self._owed_from
