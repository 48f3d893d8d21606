"""Who had an item lately: nodes that published it, were subscribed to it, or got it once and keep what they get."""

from collections import OrderedDict

from psirp_stack.control.messages import Match

MAX_ITEMS = 16_384
MAX_NODES = 8
"""Of one item; those who were there last."""


class FormerHolders:
    """Bounded both ways. Lost with the process: then nobody is known to have had anything."""

    def __init__(self) -> None:
        self._nodes: OrderedDict[tuple[bytes, bytes], tuple[str, ...]] = OrderedDict()

    def add(self, match: Match) -> None:
        """Take in who has an item now, for when they have gone."""
        self._put(match.sid, match.rid, (*match.publishers[:MAX_NODES], *match.subscribers[:MAX_NODES]))

    def note(self, sid: bytes, rid: bytes, node: str) -> None:
        """This node gets the item, and keeps it."""
        self._put(sid, rid, (node,))

    def _put(self, sid: bytes, rid: bytes, nodes: tuple[str, ...]) -> None:
        key = sid, rid
        before = self._nodes.pop(key, ())
        self._nodes[key] = tuple(dict.fromkeys((*nodes, *before)))[:MAX_NODES]
        if len(self._nodes) > MAX_ITEMS:
            self._nodes.popitem(last=False)

    def of(self, sid: bytes, rid: bytes) -> tuple[str, ...]:
        return self._nodes.get((sid, rid), ())
