"""Segments whose announcement is late or lost: they wait for it a while, bounded in bytes, versions and time."""

from collections import OrderedDict
from collections.abc import Hashable

from psirp_stack.transport.accounts import SEGMENT_COST
from psirp_stack.transport.reassembly import Early
from psirp_stack.transport.receiver_context import ReceiverContext

EARLY_SECONDS = 5.0


class EarlySegments:
    """Those of one item."""

    def __init__(self, context: ReceiverContext) -> None:
        self._context = context
        self._waiting: OrderedDict[bytes, Early] = OrderedDict()
        self._held = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, version_id: bytes, number: int, payload: bytes, link: Hashable, now: float) -> bool:
        """Keep a segment that came by a link if there is room; true when it is the first of its version."""
        context = self._context
        counters, config = context.counters, context.config
        early = self._waiting.get(version_id)
        is_first = early is None
        if early is None:
            while len(self._waiting) >= config.early_versions:
                self.take(next(iter(self._waiting)))
                counters.early_lost += 1
            early = self._waiting[version_id] = Early(context.accounts.link(link), now)
        if number in early.parts:
            return is_first
        cost = len(payload) + SEGMENT_COST
        if self._held + cost > config.early_bytes or not early.account.charge(cost):
            counters.early_lost += 1
            return is_first
        counters.early += 1
        early.parts[number] = payload
        early.held += cost
        self._held += cost
        return is_first

    def take(self, version_id: bytes) -> Early | None:
        """What is there of a version, which waits no longer."""
        early = self._waiting.pop(version_id, None)
        if early is not None:
            self._held -= early.held
            early.account.release(early.held)
        return early

    def expire(self, now: float) -> None:
        for version_id in [name for name, early in self._waiting.items() if now >= early.since + EARLY_SECONDS]:
            self.take(version_id)
            self._context.counters.early_lost += 1

    @property
    def due(self) -> float | None:
        """When the first has waited long enough."""
        return next(iter(self._waiting.values())).since + EARLY_SECONDS if self._waiting else None

    def clear(self) -> None:
        for version_id in list(self._waiting):
            self.take(version_id)
