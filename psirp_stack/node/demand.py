"""Tells the applications that publish an item whether anybody is subscribed to it, on this node or in the network.

So a publisher need not make what nobody wants. The network's word is the topology manager's: filters to send along mean
that there are subscribers. Sans-I/O.
"""

from collections.abc import Callable, Iterable

from identifiers import ItemId
from psirp_stack.node.applications import Application
from psirp_stack.node.attachment import DemandChanged


class ItemDemand:
    """What the publishers of a node were told; nothing is kept of items that nobody wants."""

    def __init__(self, is_sent: Callable[[ItemId], bool]) -> None:
        """`is_sent`: whether the network has the item sent anywhere."""
        self.is_subscribed_here: Callable[[ItemId], bool] = _by_nobody
        self._is_sent = is_sent
        self._wanted: set[ItemId] = set()

    def joined(self, item: ItemId, application: Application) -> None:
        """The application has become a publisher of the item."""
        if self._is_wanted(item):
            self._wanted.add(item)
            _tell(application, item, wanted=True)

    def may_have_changed(self, item: ItemId, publishers: Iterable[Application]) -> None:
        wanted = self._is_wanted(item)
        if wanted == (item in self._wanted):
            return
        if wanted:
            self._wanted.add(item)
        else:
            self._wanted.discard(item)
        for application in publishers:
            _tell(application, item, wanted=wanted)

    def forget(self, item: ItemId) -> None:
        """Nobody on this node publishes it any more."""
        self._wanted.discard(item)

    def _is_wanted(self, item: ItemId) -> bool:
        return self.is_subscribed_here(item) or self._is_sent(item)


def _tell(application: Application, item: ItemId, *, wanted: bool) -> None:
    application.tell(DemandChanged(bytes(item.sid), bytes(item.rid), wanted))


def _by_nobody(item: ItemId) -> bool:
    return False
