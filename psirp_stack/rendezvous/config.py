"""Settings of the rendezvous: every bound has its name here."""

from dataclasses import dataclass

from psirp_stack.control.messages import MAX_KEYS, MAX_MESSAGE_BYTES, MAX_NAMES

NAME_ON_WIRE = 66
KEY_ON_WIRE = 34
MATCH_OVERHEAD = 256


@dataclass(frozen=True, slots=True)
class RendezvousConfig:
    create_scopes: bool = True
    """Publishing an item into a scope that is not there makes the scope, open and owned by nobody."""
    lease: float = 30.0
    """Seconds for which a node that says nothing is believed to live."""
    portion: int = 256
    """How many things one step of background work does: leases that ended, children told, matches said again."""

    max_nodes: int = 4096
    max_items_per_node: int = 1_000_000
    """Items a node publishes and items it subscribes to, together."""
    max_scopes_per_node: int = 10_000
    """Scopes a node made; and, counted apart, scopes it subscribes to."""
    max_scopes: int = 1_000_000
    max_publishers_per_item: int = 256
    max_subscribers_per_item: int = 2048
    max_watchers_per_scope: int = 2048
    max_parents_per_scope: int = 64
    max_ancestors: int = 10_000
    """Scopes above a scope, looked through when a branch is added: a bound on what one request can cost."""
    max_gone_items: int = 100_000
    """Items that nobody has or wants any more, kept until the topology manager has heard of it."""
    max_unanswered_matches: int = 100_000
    max_kept_events: int = 10_000
    """Scope events that have not arrived yet, kept in case the rendezvous is killed; beyond, the oldest are let go."""
    max_unserved_reports: int = 10_000
    max_refusals_per_item: int = 8
    max_items_with_refusals: int = 1024

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if name != "create_scopes" and not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        if max(self.max_publishers_per_item, self.max_subscribers_per_item) > MAX_NAMES:
            raise ValueError(f"an item has at most {MAX_NAMES} publishers and {MAX_NAMES} subscribers")
        names = self.max_publishers_per_item + self.max_subscribers_per_item
        if names * NAME_ON_WIRE + 2 * MAX_KEYS * KEY_ON_WIRE + MATCH_OVERHEAD > MAX_MESSAGE_BYTES:
            raise ValueError(f"a match with {names} names does not fit into a message of {MAX_MESSAGE_BYTES} bytes")
