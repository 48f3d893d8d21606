"""Whether what this node publishes may be given to anybody who asks: only where the scope lets everybody subscribe.

The node hears its scopes' policies from the rendezvous; what it heard counts for a while, and is asked for anew then.
"""

from collections import OrderedDict

from psirp_stack.control.messages import ScopePolicy

KNOWN_FOR = 10.0
"""Seconds that a policy counts."""
MAX_KNOWN = 16_384


def is_for_everybody(policy: ScopePolicy) -> bool:
    """Whether versions may be kept, and given away, by nodes that the rendezvous did not send them to."""
    return policy.subscribers is None and not policy.every_packet_signed


class KnownPolicies:
    """By item (Sid and Rid): whether it is for everybody, and until when that counts."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, tuple[bool, float]] = OrderedDict()
        self._asked: dict[bytes, float] = {}

    def heard(self, item: bytes, for_everybody: bool, now: float) -> None:
        self._asked.pop(item, None)
        self._known[item] = for_everybody, now + KNOWN_FOR
        self._known.move_to_end(item)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    def is_for_everybody(self, item: bytes, now: float) -> bool | None:
        known = self._known.get(item)
        return None if known is None or known[1] < now else known[0]

    def should_ask(self, item: bytes, now: float) -> bool:
        """Whether nobody is asking for the item's policy; from now on somebody is."""
        if len(self._asked) >= MAX_KNOWN:
            self._asked.clear()
        if self._asked.get(item, float("-inf")) + KNOWN_FOR > now:
            return False
        self._asked[item] = now
        return True
