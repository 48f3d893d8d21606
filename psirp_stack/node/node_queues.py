"""What waits in a node, for whoever follows it: versions at their source, batches of frames at forwarder and links."""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from identifiers import ItemId
from psirp_stack.control.link_state_events import NeighbourDown, NeighbourUp
from psirp_stack.node.settings import NodeEvent, NodeObserver
from psirp_stack.transport.events import VersionBegun, VersionPublished, VersionSent
from storage.queues import ConnectionChange, OpenStay, QueueObserver, QueueWatch

FOLLOWED: Final = 10_000


class NodeQueues:
    """The queues of one node; `observer` is told everything that is not about them alone."""

    def __init__(self, tell: QueueObserver, observer: NodeObserver | None) -> None:
        self._tell = tell
        self._observer = observer
        self._source = QueueWatch("source", tell)
        self._forwarder = QueueWatch("forwarder", tell)
        self._versions: OrderedDict[tuple[ItemId, int], OpenStay] = OrderedDict()
        """Published, and not yet sent along any filter."""

    def observe(self, event: NodeEvent) -> None:
        match event:
            case VersionPublished():
                self._publish((event.item, event.number))
            case VersionBegun():
                stay = self._versions.get((event.item, event.number))
                if stay is not None:
                    stay.begins()
                return
            case VersionSent():
                stay = self._versions.pop((event.item, event.number), None)
                if stay is not None:
                    stay.ends()
                return
            case NeighbourUp() | NeighbourDown():
                up = isinstance(event, NeighbourUp)
                self._tell(ConnectionChange(f"link/{event.link}", up, time.monotonic_ns()))
        if self._observer is not None:
            self._observer(event)

    def _publish(self, version: tuple[ItemId, int]) -> None:
        if len(self._versions) >= FOLLOWED:  # nobody is sent them: they wait for their first subscriber
            self._versions.popitem(last=False)[1].leaves()
        self._versions[version] = self._source.came()

    def forwarded(self, frames: Sequence[bytes], forward: Callable[[], None]) -> None:
        """Frames that were read together go through the forwarder together. What waits in the kernel is not seen."""
        stay = self._forwarder.came(str(len(frames)))
        stay.begins()
        forward()
        stay.ends()
