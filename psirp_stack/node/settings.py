"""What a node is made from, whom it tells what it did, and the reasons for which it drops what reached it."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeVar

from psirp_stack.control.courier import ControlEvent, CourierConfig
from psirp_stack.control.link_state_events import NeighbourDown, NeighbourUp
from psirp_stack.control.link_state_settings import LinkStateConfig
from psirp_stack.control.role_grants import RoleHolder, RoleTrust
from psirp_stack.control.tag_source import TagSource
from psirp_stack.forwarder import Forwarder, FrameForwarder
from psirp_stack.forwarding_model import ForwardingTable
from psirp_stack.graph import Graph
from psirp_stack.node.applications import RequestTableConfig
from psirp_stack.node.intents import IntentConfig
from psirp_stack.pull.service import VersionCacheConfig
from psirp_stack.transport.config import TransportConfig
from psirp_stack.transport.events import ReceiverEvent, SenderEvent, VersionPublished

Result = TypeVar("Result")


class Watch(Protocol):
    """Calls back, in the node's own turn, when a promise of a store is kept."""

    def __call__(self, promise: Future[Result], then: Callable[[], None], /) -> None: ...


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Everything that differs from node to node, and from test to life."""

    name: str
    boot: int
    tags: TagSource
    roles: int = 0
    """Bits of `ServiceRole`."""
    trust: RoleTrust = field(default_factory=RoleTrust)
    """Whose roles are believed."""
    holder: RoleHolder | None = None
    """Proof of this node's own roles, where the domain does not name it."""
    fixed: Graph | None = None
    """The network's graph, if it is known: links that it does not have are then refused."""
    link_state: LinkStateConfig = field(default_factory=LinkStateConfig)
    courier: CourierConfig = field(default_factory=CourierConfig)
    transport: TransportConfig = field(default_factory=TransportConfig)
    intents: IntentConfig = field(default_factory=IntentConfig)
    request_table: RequestTableConfig = field(default_factory=RequestTableConfig)
    cache: VersionCacheConfig = field(default_factory=VersionCacheConfig)
    tell_sending: bool = False
    """Whether the observer is told when versions leave along filters."""
    forwarder: Callable[[str, ForwardingTable], FrameForwarder] = lambda name, table: Forwarder(table)
    """What forwards for the node with this name. Another than the usual one is for looking at it."""


NodeEvent = VersionPublished | SenderEvent | ReceiverEvent | NeighbourUp | NeighbourDown | ControlEvent
NodeObserver = Callable[[NodeEvent], None]
"""Told what became of publications at a node, which neighbours it has, and when its control messages came and went."""


class NodeDrop(StrEnum):
    """Why a frame that was delivered to this node had no effect."""

    NOT_FOR_ANY = "neither control nor transport"
    NOT_A_MESSAGE = "no message of the control plane"
    WRONG_FUNCTION = "a message for a role that this node does not have"
    FROM_AFAR = "a neighbour's message that did not come as one: over one link, to all neighbours"
    NO_ROOM = "too much waits for the other side"
    EARLY = "the scope's policy is not known yet, and too much waits for it"
    NO_ROLE = "from a node that is not known to have the role for it"
    SERVING_FORGOTTEN = "who serves more items than can be remembered"
