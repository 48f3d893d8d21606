"""The topology manager's core: each subscriber gets its nearest publisher, each publisher its filters.

Matches and graphs come in; what nodes must be told goes out, and only when it differs from what they were told last.
Work is done when its results are asked for: `next_message` plans one item at a time, so that a change that concerns
many items does not stop everything else.

When a link dies, items whose trees use it are planned again; when one comes, those that it brings nearer to a
publisher. All others keep paths that are still shortest.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from msgspec.structs import replace

from psirp_stack.control.codes import Code
from psirp_stack.control.known_graph import KnownGraph
from psirp_stack.control.messages import (
    FilterGrant,
    Match,
    MatchServed,
    ScopePolicy,
    Served,
    StartPublish,
    StopPublish,
)
from psirp_stack.control.tag_source import TagSource
from psirp_stack.pull.access import is_for_everybody
from psirp_stack.topology.branches import Branch, BranchPlanner, DirectedLink
from psirp_stack.topology.distances import UNREACHABLE, Distances, edges_of

PLAN_BITS = 20
MAX_ITEMS = 2_000_000
MAX_REMEMBERED_BRANCHES = 4096
MAX_ENDED = 4096
MAX_GONE = 8192
"""Nodes that left and are remembered, so that their return is known for what it is."""
PLANS_PER_CALL = 64
"""Items planned ahead at a time while all messages that wait are for nodes that cannot take them."""
UNSAID_ENDS_AFTER = 30.0
"""Seconds that another rendezvous has to speak of what the former one spoke of."""
RETRY_AFTER = 5.0
"""Seconds after which a node that is in the graph and did not take a message is told again."""

ItemId = bytes
"""Sid and Rid."""
Output = StartPublish | StopPublish | Served | MatchServed


class TopologyDrop(StrEnum):
    """Why a match had no effect."""

    OLD = "older than what is known"
    TOO_MANY_ITEMS = "too many items"


@dataclass(frozen=True, slots=True)
class _Serving:
    """What a subscriber was told."""

    publisher: str | None
    code: int
    policy: ScopePolicy


@dataclass(slots=True)
class _Item:
    """What is known of an item, and what nodes were told of it."""

    match: Match
    source: str
    """The rendezvous that the match came from."""
    generation: int = 0
    assigned: dict[str, str] = field(default_factory=dict)
    """Publisher by subscriber."""
    branches: dict[str, Branch] = field(default_factory=dict)
    started: dict[str, tuple[FilterGrant, ...] | None] = field(default_factory=dict)
    """By publisher that was told to publish; None when it is not known what it heard last."""
    handling: tuple[bool, bool] = False, True
    """What those who were told to publish were told: sign every packet; let nodes on the way keep versions."""
    served: dict[str, _Serving] = field(default_factory=dict)
    answered: tuple[int, tuple[tuple[str, int], ...]] | None = None
    """Generation and unserved subscribers, as told to the rendezvous."""

    @property
    def ended(self) -> bool:
        return not self.match.publishers and not self.match.subscribers


class TopologyManager:
    """One topology manager's state, rebuilt from matches in each life."""

    def __init__(self, known: KnownGraph, tags: TagSource, after_generation: int = 0) -> None:
        """`after_generation` is the highest that this node gave when it was the topology manager before."""
        self.drops: Counter[TopologyDrop] = Counter()
        self.planned = 0
        """Items planned, first or again."""
        self.ended_forgotten = 0
        """Items that had ended and were forgotten before an absent publisher was told to stop."""
        self.highest_generation = after_generation
        self._first_generation = after_generation + 1
        self._tags = tags
        self._known = known
        self._edges = edges_of(known)
        self._boots = dict(known.boots)
        """The last life of every node that was seen."""
        self._distances = Distances(known)
        self._planner: BranchPlanner | None = None
        self._branches: OrderedDict[tuple[str, frozenset[str]], Branch] = OrderedDict()
        self._items: dict[ItemId, _Item] = {}
        self._dirty: dict[ItemId, None] = {}
        self._by_link: dict[DirectedLink, set[ItemId]] = {}
        self._by_publisher: dict[str, set[ItemId]] = {}
        self._owed: dict[str, set[ItemId]] = {}
        """Items of which a node could not be told, by node."""
        self._ended: OrderedDict[ItemId, None] = OrderedDict()
        self._out: OrderedDict[str, OrderedDict[tuple[type, ItemId], Output]] = OrderedDict()
        self._retry_at: float | None = None
        self._unsaid: set[ItemId] = set()
        """Items that a former rendezvous spoke of, and the present one has not yet."""
        self._unsaid_end_at: float | None = None

    @property
    def items(self) -> int:
        return len(self._items)

    @property
    def waiting(self) -> int:
        """Items that are to be planned."""
        return len(self._dirty)

    # What comes in.

    def receive(self, match: Match, source: str) -> None:
        """Take in what the rendezvous `source` says of an item."""
        key = match.sid + match.rid
        item = self._items.get(key)
        if item is None:
            if not match.publishers and not match.subscribers:
                self._answer_at_once(match, source)
                return
            if len(self._items) >= MAX_ITEMS:
                self.drops[TopologyDrop.TOO_MANY_ITEMS] += 1
                return
            item = self._items[key] = _Item(match, source)
        elif source == item.source and match.generation < item.match.generation:
            self.drops[TopologyDrop.OLD] += 1
            return
        for left in set(item.match.subscribers).difference(match.subscribers):
            # Also when it is back in a later match before this one was planned: it has begun anew.
            item.served.pop(left, None)
        self._unsaid.discard(key)
        before, after = set(item.match.publishers), set(match.publishers)
        for publisher in after:
            self._by_publisher.setdefault(publisher, set()).add(key)
        for publisher in before - after:
            self._withdrawn(publisher, key)
        item.match, item.source = match, source
        item.answered = None
        self._dirty[key] = None

    def rendezvous_is(self, source: str, now: float) -> None:
        """Another node is rendezvous now: what it does not speak of in time is over."""
        self._unsaid = {key for key, item in self._items.items() if item.source != source}
        self._unsaid_end_at = now + UNSAID_ENDS_AFTER if self._unsaid else None

    def _end_unsaid(self) -> None:
        unsaid, self._unsaid = self._unsaid, set()
        for key in unsaid & self._items.keys():
            item = self._items[key]
            for publisher in set(item.match.publishers):
                self._withdrawn(publisher, key)
            item.match = replace(item.match, publishers=(), subscribers=())
            item.answered = (item.match.generation, ())  # whoever would want to hear it is not the rendezvous any more
            self._dirty[key] = None

    def graph_changed(self, known: KnownGraph) -> None:
        """Go over to another graph."""
        if known == self._known:
            return
        before, after = self._edges, edges_of(known)
        removed, added = before.keys() - after.keys(), after.keys() - before.keys()
        resized = {edge for edge in before.keys() & after.keys() if before[edge] != after[edge]}
        for one, other in removed | resized:
            for link in ((one, other), (other, one)):
                self._dirty.update(dict.fromkeys(self._by_link.get(link, ())))
        for name in self._known.numbers.keys() - known.numbers.keys():
            # One that serves only itself uses no link.
            self._dirty.update(dict.fromkeys(self._by_publisher.get(name, ())))
        moved = self._distances.change(known, removed, added)
        for publisher, nodes in moved.items():
            for key in self._by_publisher.get(publisher, ()):
                if key not in self._dirty and not nodes.isdisjoint(self._items[key].match.subscribers):
                    self._dirty[key] = None
        restarted = [name for name, boot in known.boots.items() if self._boots.get(name, boot) != boot]
        self._boots.update(known.boots)
        returned = [name for name in self._owed if name in known.numbers and name not in self._known.numbers]
        if removed or added or resized:
            self._branches.clear()
            self._planner = None
        self._known, self._edges = known, after
        if len(self._boots) > MAX_GONE + len(known.boots):
            # Names of nodes that are gone for good have piled up: begin anew with those that are there.
            self._boots = dict(known.boots)
            self._distances = Distances(known)
            self._dirty.update(dict.fromkeys(self._items))
        for name in restarted:
            self.node_restarted(name)
        for name in returned:
            self._dirty.update(dict.fromkeys(self._owed.pop(name, ())))

    def node_restarted(self, name: str) -> None:
        """A node began a new life: it knows nothing of what it was told."""
        for slot in [slot for slot in self._out.get(name, ()) if slot[0] is not MatchServed]:
            self._unsend(name, *slot)
        self._dirty.update(dict.fromkeys(self._owed.pop(name, ())))
        for key, item in self._items.items():
            if item.started.pop(name, _NOTHING) is not _NOTHING or item.served.pop(name, None) is not None:
                item.served.pop(name, None)
                self._dirty[key] = None
            if item.source == name and item.answered is not None and item.answered[1]:
                item.answered = None
                self._dirty[key] = None

    def delivery_failed(self, to: str, message: Output, now: float) -> None:
        """A node did not take a message: it is told again later, if that is still true then."""
        key = message.sid + message.rid
        item = self._items.get(key)
        if item is None:
            return
        if (_kind(message), key) in self._out.get(to, {}):
            return  # something newer is on its way
        if isinstance(message, MatchServed):
            item.answered = None
        elif isinstance(message, Served):
            item.served.pop(to, None)
        elif isinstance(message, StartPublish):
            item.started.pop(to, None)
        else:
            item.started.setdefault(to, None)
        self._owed.setdefault(to, set()).add(key)
        if self._retry_at is None:
            self._retry_at = now + RETRY_AFTER

    def next_timer(self) -> float | None:
        return min((when for when in (self._retry_at, self._unsaid_end_at) if when is not None), default=None)

    def handle_timer(self, now: float) -> None:
        """Tell those again that are there and did not take what they were told; end what nobody speaks of."""
        if self._unsaid_end_at is not None and self._unsaid_end_at <= now:
            self._unsaid_end_at = None
            self._end_unsaid()
        if self._retry_at is not None and self._retry_at <= now:
            self._retry_at = None
            for name in [name for name in self._owed if name in self._known.numbers]:
                self._dirty.update(dict.fromkeys(self._owed.pop(name)))

    # What goes out.

    def next_message(self, can_take: Callable[[str], bool] | None = None) -> tuple[str, Output] | None:
        """A node and what it must be told; None when there is nothing that could be told now.

        Nodes of which `can_take` says no have to wait; `waiting` then may still be above zero.
        """
        plans = 0
        while True:
            for name in self._out:
                if can_take is not None and not can_take(name):
                    continue
                messages = self._out[name]
                _, message = messages.popitem(last=False)
                self._out.move_to_end(name)
                if not messages:
                    del self._out[name]
                return name, message
            if not self._dirty or (self._out and plans >= PLANS_PER_CALL):
                return None
            plans += 1
            key = next(iter(self._dirty))
            del self._dirty[key]
            if key in self._items:
                self._plan(key, self._items[key])

    # Planning.

    def _plan(self, key: ItemId, item: _Item) -> None:
        self.planned += 1
        match = item.match
        item.generation = max(item.generation + 1, match.generation << PLAN_BITS, self._first_generation)
        self.highest_generation = max(self.highest_generation, item.generation)
        assigned = self._assign(match)
        by_publisher: dict[str, set[str]] = {}
        for subscriber, publisher in assigned.items():
            by_publisher.setdefault(publisher, set()).add(subscriber)
        branches = {
            publisher: self._branch(publisher, frozenset(subscribers - {publisher}), item.branches.get(publisher))
            for publisher, subscribers in by_publisher.items()
        }
        self._reindex(key, item.branches, branches)
        item.assigned, item.branches = assigned, branches
        codes = dict.fromkeys(match.subscribers, int(Code.UNREACHABLE))
        for subscriber, publisher in assigned.items():
            overfull = subscriber in branches[publisher].overfull
            codes[subscriber] = int(Code.FILTER_TOO_FULL if overfull else Code.SUCCESS)
        if not match.publishers:
            codes = dict.fromkeys(match.subscribers, int(Code.ITEM_DOES_NOT_EXIST))
        self._tell_publishers(key, item)
        self._tell_subscribers(key, item, codes)
        unserved = tuple(sorted((name, code) for name, code in codes.items() if code))
        if item.answered != (match.generation, unserved) and self._can_tell(item.source, key):
            item.answered = (match.generation, unserved)
            self._send(item.source, MatchServed(match.sid, match.rid, match.generation, unserved))
        if item.ended:
            self._end(key, item)

    def _assign(self, match: Match) -> dict[str, str]:
        """The nearest publisher of each subscriber that has one; of equally near ones the first by name."""
        hops = self._distances.hops
        publishers = sorted(set(match.publishers))
        assigned = {}
        for subscriber in match.subscribers:
            nearest = min(((hops(name, subscriber), name) for name in publishers), default=(UNREACHABLE, ""))
            if nearest[0] < UNREACHABLE:
                assigned[subscriber] = nearest[1]
        return assigned

    def _branch(self, publisher: str, subscribers: frozenset[str], before: Branch | None) -> Branch:
        if not subscribers:
            return _LOCAL_ONLY
        planned = self._branches.get((publisher, subscribers))
        if planned is None:
            if self._planner is None:
                self._planner = BranchPlanner(self._known, self._tags)
            planned = self._planner.plan(self._distances.tree(publisher), subscribers)
            self._branches[publisher, subscribers] = planned
            if len(self._branches) > MAX_REMEMBERED_BRANCHES:
                self._branches.popitem(last=False)
        # The same tree may get another filter in another graph: no reason to disturb a publisher.
        return before if before is not None and _same_way(before, planned) else planned

    def _tell_publishers(self, key: ItemId, item: _Item) -> None:
        match = item.match
        handling = match.policy.every_packet_signed, is_for_everybody(match.policy)
        if handling != item.handling:
            item.handling = handling
            item.started = dict.fromkeys(item.started)  # all of them must hear of it
        wanted = {
            publisher: branch.grants
            for publisher, branch in item.branches.items()
            if branch.grants or item.assigned.get(publisher) == publisher
        }
        for publisher, grants in wanted.items():
            if item.started.get(publisher) != grants and self._can_tell(publisher, key):
                item.started[publisher] = grants
                self._send(publisher, StartPublish(match.sid, match.rid, item.generation, grants, *handling))
        for publisher in [name for name in item.started if name not in wanted]:
            if self._can_tell(publisher, key):
                del item.started[publisher]
                self._send(publisher, StopPublish(match.sid, match.rid, item.generation))

    def _tell_subscribers(self, key: ItemId, item: _Item, codes: dict[str, int]) -> None:
        match = item.match
        for subscriber, code in codes.items():
            publisher = item.assigned.get(subscriber) if code == Code.SUCCESS else None
            serving = _Serving(publisher, code, match.policy)
            if item.served.get(subscriber) != serving and self._can_tell(subscriber, key):
                item.served[subscriber] = serving
                message = Served(match.sid, match.rid, item.generation, publisher, code, match.policy)
                self._send(subscriber, message)
        for subscriber in [name for name in item.served if name not in codes]:
            # It has unsubscribed: it does not ask any more, and is told anew if it comes again.
            del item.served[subscriber]
            self._unsend(subscriber, Served, key)

    def _can_tell(self, name: str, key: ItemId) -> bool:
        """Whether a node is there to be told; if not, it will be when it returns."""
        if name in self._known.numbers:
            return True
        self._owed.setdefault(name, set()).add(key)
        return False

    def _end(self, key: ItemId, item: _Item) -> None:
        """Nobody publishes or wants the item: forget it, once those who publish it have been told to stop."""
        if not item.started and item.answered is not None:
            self._forget(key)
            return
        self._ended[key] = None
        self._ended.move_to_end(key)
        if len(self._ended) > MAX_ENDED:
            self.ended_forgotten += 1
            self._forget(next(iter(self._ended)))

    def _forget(self, key: ItemId) -> None:
        self._ended.pop(key, None)
        item = self._items.get(key)
        if item is not None and item.ended:
            del self._items[key]
            self._dirty.pop(key, None)

    def _answer_at_once(self, match: Match, source: str) -> None:
        if source in self._known.numbers:
            self._send(source, MatchServed(match.sid, match.rid, match.generation))

    # Bookkeeping.

    def _send(self, to: str, message: Output) -> None:
        # Newer news of an item replace older ones that were not sent yet; start and stop replace each other.
        messages = self._out.setdefault(to, OrderedDict())
        slot = (_kind(message), message.sid + message.rid)
        messages.pop(slot, None)
        messages[slot] = message

    def _unsend(self, to: str, kind: type, key: ItemId) -> None:
        messages = self._out.get(to)
        if messages is not None and messages.pop((kind, key), None) is not None and not messages:
            del self._out[to]

    def _reindex(self, key: ItemId, before: dict[str, Branch], after: dict[str, Branch]) -> None:
        old = {link for branch in before.values() for link in branch.links}
        new = {link for branch in after.values() for link in branch.links}
        for link in old - new:
            items = self._by_link[link]
            items.discard(key)
            if not items:
                del self._by_link[link]
        for link in new - old:
            self._by_link.setdefault(link, set()).add(key)

    def _withdrawn(self, publisher: str, key: ItemId) -> None:
        items = self._by_publisher[publisher]
        items.discard(key)
        if not items:
            del self._by_publisher[publisher]
            self._distances.forget(publisher)


_LOCAL_ONLY = Branch(frozenset(), ())
_NOTHING: tuple[FilterGrant, ...] = (FilterGrant(b"", (), 0),)
"""Stands for «was not told»: no real grant looks like it."""


def _kind(message: Output) -> type:
    return StartPublish if isinstance(message, StopPublish) else type(message)


def _same_way(one: Branch, other: Branch) -> bool:
    """Whether two branches lead to the same subscribers over the same links, however their filters look."""
    return (
        one.links == other.links
        and one.overfull == other.overfull
        and sorted((g.subscribers, g.mtu) for g in one.grants) == sorted((g.subscribers, g.mtu) for g in other.grants)
    )
