"""What was refused lately, by item: the first thing that people want to know when nothing arrives."""

from collections import OrderedDict, deque

from psirp_stack.control.codes import Code
from psirp_stack.control.messages import MAX_REASON
from psirp_stack.rendezvous.declarations import WHOLE_SCOPE

MAX_TOLD = 32


class RecentRefusals:
    """Bounded both ways; the item that was refused longest ago is forgotten first."""

    def __init__(self, max_items: int, max_per_item: int) -> None:
        self._max_items = max_items
        self._max_per_item = max_per_item
        self._texts: OrderedDict[tuple[bytes, bytes], deque[str]] = OrderedDict()

    def add(self, sid: bytes, rid: bytes, node: str, kind: str, code: Code, reason: str) -> None:
        latest = self._texts.pop((sid, rid), None) or deque(maxlen=self._max_per_item)
        latest.appendleft(f"{kind} of {node}: {code.name}: {reason}"[:MAX_REASON])
        self._texts[sid, rid] = latest
        if len(self._texts) > self._max_items:
            self._texts.popitem(last=False)

    def about(self, sid: bytes, rid: bytes) -> tuple[str, ...]:
        """Newest first: those about the item, then those about its scope."""
        items = dict.fromkeys(((sid, rid), (sid, WHOLE_SCOPE)))
        return tuple(text for item in items for text in self._texts.get(item, ()))[:MAX_TOLD]
