"""Frames of items whose scope's policy is not known yet: bounded in bytes, for each item, each link and in all."""

from collections import Counter

from psirp_stack.forwarding_model import LinkNumber
from psirp_stack.wire.numbers import FORWARDING_BYTES, ID_BYTES, SID_OFFSET

ITEM_OF_FRAME = slice(FORWARDING_BYTES + SID_OFFSET, FORWARDING_BYTES + SID_OFFSET + 2 * ID_BYTES)
"""Sid and Rid in a frame whose second header is a rendezvous header."""
FRAME_COST = 128
"""What a frame costs beside its bytes."""
MAX_BYTES = 2 * 1024 * 1024
MAX_BYTES_OF_A_LINK = MAX_BYTES * 3 // 4
MAX_BYTES_OF_AN_ITEM = MAX_BYTES // 8

Waiting = tuple[LinkNumber | None, bytes]
"""The link that a frame came by, and the frame."""


class AwaitingPolicy:
    """What is dropped here is as if it was lost on the way, and is repaired."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, list[Waiting]] = {}
        self._held: Counter[bytes] = Counter()
        self._of_link: Counter[LinkNumber | None] = Counter()
        self._bytes = 0

    @property
    def bytes_held(self) -> int:
        return self._bytes

    def add(self, link: LinkNumber | None, frame: bytes) -> bool:
        """Have a frame wait; False when there is no room for it."""
        item, cost = frame[ITEM_OF_FRAME], len(frame) + FRAME_COST
        if (
            self._bytes + cost > MAX_BYTES
            or self._of_link[link] + cost > MAX_BYTES_OF_A_LINK
            or self._held[item] + cost > MAX_BYTES_OF_AN_ITEM
        ):
            return False
        self._waiting.setdefault(item, []).append((link, frame))
        self._held[item] += cost
        self._of_link[link] += cost
        self._bytes += cost
        return True

    def take(self, item: bytes) -> list[Waiting]:
        """What waits for the policy of an item, which waits no longer."""
        waiting = self._waiting.pop(item, [])
        for link, frame in waiting:
            self._of_link[link] -= len(frame) + FRAME_COST
        self._bytes -= self._held.pop(item, 0)
        return waiting
