"""Link state of one node: finds its neighbours by hellos, tells everybody, and knows the network's graph.

A neighbour is up when both ends hear each other, and down after `dead_after` silent intervals or when the carrier says
so. Each node floods its own state; a state is acknowledged on every link it travels and repeated until it is. The graph
is worked out a moment after the last change, so that a burst of news costs one computation.

With a fixed graph, links that it does not have are refused: hellos then only say which of its links work.
"""

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator

from psirp_stack.control import messages
from psirp_stack.control.codes import ServiceRole
from psirp_stack.control.frames import CONTROL_OVERHEAD
from psirp_stack.control.known_graph import Edge, KnownGraph
from psirp_stack.control.link_state_database import Installed, Key, LinkStateDatabase, StatePart, own_parts, read_part
from psirp_stack.control.link_state_events import (
    Event,
    GraphChanged,
    NameConflict,
    NeighbourDown,
    NeighbourUp,
    TableChanged,
)
from psirp_stack.control.link_state_link import NeighbourLink
from psirp_stack.control.link_state_settings import LinkStateConfig, LinkStateDrop
from psirp_stack.control.role_grants import Belief, RoleHolder, RoleTrust
from psirp_stack.control.routes import ControlRoute, Routes, WaysRound
from psirp_stack.control.rtt import RoundTrip
from psirp_stack.control.tag_source import TagSource
from psirp_stack.forwarding_model import ForwardingTable, LinkNumber
from psirp_stack.graph import Graph

HELLO_JITTER = 0.1
DOUBT = 0.06
"""Seconds that a neighbour has to answer when its being there is doubted,"""
DOUBTS_PER_ROUND_TRIP = 3
"""or so many round trips, if they take longer;"""
PROBES = 3
"""it is asked so many times."""
UPS_TOGETHER = 0.01
"""Seconds that a link which came up waits for others, and its neighbour for our link state with them in it."""
QUIET_BEFORE_WAYS = 0.5
"""Seconds without a change of the network after which ways round the links here are worked out."""
SWEEPS_PER_AGE = 10
UNLISTED_IS_DOWN = 2
"""One hello without our name may have been overtaken by a later one."""
MAX_EVENTS = 1024
QUIET = 4
"""Times the present wait without news after which the next news are acted on quickly again."""
HIGHEST_VERSION = 1 << 62
MIN_LINK_MTU = CONTROL_OVERHEAD + 1030
"""What the largest frame of link states takes, with room to spare."""


def _no_clock(_: float) -> int:
    """For a domain without grants: nothing ends."""
    return 0


class LinkStateProtocol:
    """One node's link state, for one life of the node."""

    def __init__(
        self,
        name: str,
        boot: int,
        tags: TagSource,
        rng: random.Random,
        now: float,
        *,
        roles: ServiceRole | int = 0,
        config: LinkStateConfig | None = None,
        fixed: Graph | None = None,
        trust: RoleTrust | None = None,
        holder: RoleHolder | None = None,
        wall_ms: Callable[[float], int] = _no_clock,
    ) -> None:
        """`trust` says which other nodes' roles are believed, `holder` proves this node's own; `wall_ms` tells the time
        by which grants end, in milliseconds since the epoch."""
        self.name = name
        self.config = config if config is not None else LinkStateConfig()
        self.drops: Counter[LinkStateDrop] = Counter()
        self.repeated = 0
        """Link states sent again because they were not acknowledged."""
        self._tags = tags
        self._trust = trust if trust is not None else RoleTrust()
        self._holder = holder
        self._wall_ms = wall_ms
        self._now = now
        self._rng = rng
        self._roles = int(roles)
        self._boot = boot
        self._number = 0
        self._allowed: frozenset[Edge] | None = None
        if fixed is not None:
            self._allowed = frozenset(frozenset(fixed.names[end] for end in link) for link in fixed.links)
        self._database = LinkStateDatabase(self.config.max_age, self.config.max_nodes, self._belief)
        self._links: dict[LinkNumber, NeighbourLink] = {}
        self._busy: dict[LinkNumber, NeighbourLink] = {}
        """Links that may have something to send."""
        self._timers: list[tuple[float, LinkNumber]] = []
        self._silence = self.config.hello_interval * self.config.dead_after
        self._events: deque[Event] = deque()
        self._originate_at: float | None = None
        self._may_originate_at = now
        self._refresh_at = now
        self._sweep_at = now + self.config.max_age / SWEEPS_PER_AGE
        self._settle_at: float | None = None
        self._settled_at = now
        self._settle_wait = self.config.settle
        self._ways_due_at: float | None = None
        self._ways = WaysRound(name)
        self._originate(now)
        self._known = KnownGraph.of(self._database.states(), name, self._allowed)
        self._routes = Routes(name, tags, self._known)

    # What the node says.

    def add_link(self, number: LinkNumber, mtu: int, now: float) -> None:
        if number in self._links:
            raise ValueError(f"there is a link {number} already")
        if mtu < MIN_LINK_MTU:
            raise ValueError(f"link {number} takes frames of {mtu} bytes: expected at least {MIN_LINK_MTU}")
        config = self.config
        round_trip = RoundTrip(config.initial_timeout, config.min_timeout, config.max_timeout)
        link = self._links[number] = NeighbourLink(number, mtu, now, round_trip)
        self._wake(link)
        self._schedule(link)

    def greet(self, number: LinkNumber) -> None:
        """Say hello on a link now: somebody is there who can hear us, which was not so before."""
        link = self._links.get(number)
        if link is not None:
            link.hello_due = True
            self._wake(link)

    def remove_link(self, number: LinkNumber, now: float) -> None:
        self.carrier_failed(number, now)
        self._links.pop(number, None)
        self._busy.pop(number, None)

    def carrier_failed(self, number: LinkNumber, now: float) -> None:
        """The carrier says that nothing gets through: do not wait for silence."""
        link = self._links.get(number)
        if link is not None:
            self._lost(link, now)

    def carrier_doubtful(self, number: LinkNumber, now: float) -> None:
        """Somebody says that the other end is not there. Ask it at once, a few times, and believe its silence."""
        link = self._links.get(number)
        if link is not None and link.up and link.doubted_at is None:
            link.doubted_at = now
            link.probe_at = now
            self._handle_link(link, now, 0.0)
            self._schedule(link)

    def carrier_back(self, number: LinkNumber, now: float) -> None:
        """Frames may get through again: do not wait for the next hello."""
        link = self._links.get(number)
        if link is not None:
            link.hello_due = True
            self._wake(link)

    def set_roles(self, roles: ServiceRole | int, now: float) -> None:
        if int(roles) != self._roles:
            self._roles = int(roles)
            self._originate_soon(now)

    # What neighbours say.

    def receive(self, number: LinkNumber, payload: bytes, now: float) -> None:
        """Take in the payload of a link-state frame that came by a link."""
        link = self._links.get(number)
        if link is None:
            self.drops[LinkStateDrop.UNKNOWN_LINK] += 1
            return
        try:
            message = messages.decode(payload)
        except messages.MessageError:
            self.drops[LinkStateDrop.MALFORMED] += 1
            return
        self._wake(link)
        if isinstance(message, messages.Hello):
            self._receive_hello(link, message, now)
            self._schedule(link)
        elif not isinstance(message, (messages.LinkStates, messages.LinkStateReceived)):
            self.drops[LinkStateDrop.NOT_LINK_STATE] += 1
        elif link.neighbour is None:
            self.drops[LinkStateDrop.NO_NEIGHBOUR] += 1
        elif isinstance(message, messages.LinkStates):
            link.heard_at = self._now = now
            for aged in message.states:
                try:
                    part = read_part(aged.state)
                except messages.MessageError:
                    self.drops[LinkStateDrop.MALFORMED] += 1
                else:
                    self._receive_state(link, part, aged.age, now)
        else:
            link.heard_at = now
            for origin, boot, state_number, place in message.states:
                link.knows((origin, place), (boot, state_number), self._version(origin), now)

    def _receive_hello(self, link: NeighbourLink, hello: messages.Hello, now: float) -> None:
        drop = None
        if hello.name == self.name:
            drop = LinkStateDrop.OWN_NAME
        elif self._allowed is not None and frozenset((self.name, hello.name)) not in self._allowed:
            drop = LinkStateDrop.STRANGER
        elif link.neighbour is not None and hello.name != link.neighbour:
            drop = LinkStateDrop.SECOND_NEIGHBOUR
        elif link.neighbour is not None and hello.boot < link.boot:
            drop = LinkStateDrop.OLD_LIFE
        if drop is not None:
            self.drops[drop] += 1
            return
        if link.neighbour is not None and hello.boot > link.boot:
            # Its new life knows nothing of what the former one was told.
            self._lost(link, now)
        if link.neighbour is None:
            link.neighbour, link.boot = hello.name, hello.boot
            link.hello_due = True
        link.heard_at = now
        if link.neighbour_mtu != hello.mtu:
            link.neighbour_mtu = hello.mtu
            if link.up:
                self._originate_soon(now)
        if self.name in hello.heard:
            link.unlisted = 0
            if not link.up:
                self._up(link, now)
        else:
            link.hello_due = True
            link.unlisted += 1
            if link.up and link.unlisted >= UNLISTED_IS_DOWN:
                self._down(link, now)

    def _receive_state(self, link: NeighbourLink, part: StatePart, age_ms: int, now: float) -> None:
        key, version = part.key, part.version
        link.acknowledgements[part.acknowledgement] = None
        if key[0] == self.name and (own := self._version(self.name)) is not None and version > own:
            if max(version) >= HIGHEST_VERSION:
                # Nothing newer could be said.
                self.drops[LinkStateDrop.CONTRADICTION] += 1
                return
            # What we said in a former life with a higher boot, or another node with our name: say something newer.
            self._boot, self._number = version
            self._event(NameConflict())
            self._originate_soon(now)
            return
        installed = self._database.install(part, age_ms, now)
        if installed is Installed.NEW or installed is Installed.REFRESHED:
            link.knows(key, version, version, now)
            for other in self._links.values():
                if other is not link and other.up:
                    other.tell(key, now, urgent=installed is Installed.NEW)
                    self._wake(other)
            self._settle_soon(now)
        elif installed is Installed.SAME:
            link.knows(key, version, version, now)
        elif installed is Installed.OLDER:
            for ours in self._parts_of(key[0]):
                if link.up and ours not in link.pending and ours not in link.in_flight:
                    link.tell(ours, now)
        else:
            self.drops[_DROPS[installed]] += 1

    # What goes out.

    def next_frame(self, now: float) -> tuple[LinkNumber, bytes] | None:
        """Link and payload of the next link-state frame to send, to all neighbours, under the all-ones filter."""
        while self._busy:
            link = next(iter(self._busy.values()))
            message = self._next_message(link, now)
            if message is not None:
                return link.number, messages.encode(message)
            del self._busy[link.number]
            self._schedule(link)
        return None

    def _next_message(self, link: NeighbourLink, now: float) -> messages.LinkMessage | None:
        if link.hello_due:
            link.hello_due = False
            heard = () if link.neighbour is None else (link.neighbour,)
            return messages.Hello(self.name, self._boot, heard, link.mtu)
        acknowledgement = link.next_acknowledgement(self.name)
        if acknowledgement is not None or not link.up:
            return acknowledgement
        room = link.common_mtu - CONTROL_OVERHEAD
        # Neighbours that hear the same news from elsewhere at the same time do not send it to each other.
        pace = self.config.flood_interval * self._rng.uniform(0.5, 1.5)
        parts = link.next_parts(self._database, now, pace, room)
        return messages.LinkStates(parts) if parts else None

    def next_event(self) -> Event | None:
        return self._events.popleft() if self._events else None

    # Time.

    def next_timer(self) -> float | None:
        """When to call `handle_timer`."""
        return min(self._times())

    def _times(self) -> Iterator[float]:
        yield self._refresh_at
        yield self._sweep_at
        if self._originate_at is not None:
            yield self._originate_at
        if self._settle_at is not None:
            yield self._settle_at
        if self._ways_due_at is not None:
            yield self._ways_due_at
        if self._timers:
            yield self._timers[0][0]

    def _schedule(self, link: NeighbourLink) -> None:
        # A timer that comes too early is harmless, so only earlier times need a new one.
        # What a busy link has to send will be asked for; its time is worked out after that.
        wanted = link.next_time(self._silence, flooding=link.number not in self._busy)
        if link.timer is None or wanted < link.timer:
            link.timer = wanted
            heapq.heappush(self._timers, (wanted, link.number))

    def handle_timer(self, now: float) -> None:
        config = self.config
        while self._timers and self._timers[0][0] <= now:
            when, number = heapq.heappop(self._timers)
            link = self._links.get(number)
            if link is not None and link.timer == when:
                link.timer = None
                self._handle_link(link, now, now - when)
                self._schedule(link)
        if self._sweep_at <= now:
            self._sweep_at = now + config.max_age / SWEEPS_PER_AGE
            self._now = now
            self._database.forget_old(now, self.name)
            self._database.look_again(self._wall_ms(now))
            self._settle_soon(now)
        if self._refresh_at <= now or (self._originate_at is not None and self._originate_at <= now):
            self._originate(now)
        if self._settle_at is not None and self._settle_at <= now:
            self._settle_at = None
            self._work_out_graph(now)
        if self._ways_due_at is not None and self._ways_due_at <= now:
            self._ways_due_at = None
            self._ways.work_out(self._known, self.neighbours())

    def _handle_link(self, link: NeighbourLink, now: float, late: float) -> None:
        if late > self.config.hello_interval:
            # We were held up ourselves; what neighbours said may still wait to be read: silence means nothing.
            link.heard_at = max(link.heard_at, now - self._silence + self.config.hello_interval)
        if link.next_hello <= now:
            link.hello_due = True
            interval = self.config.hello_interval
            link.next_hello = now + interval * self._rng.uniform(1 - HELLO_JITTER, 1 + HELLO_JITTER)
        if link.doubted_at is not None:
            self._handle_doubt(link, link.doubted_at, now)
        if link.neighbour is not None and link.heard_at + self._silence <= now:
            self._lost(link, now)
        retry = link.retry_at()
        if retry is not None and retry <= now:
            self.repeated += link.retry(now)
        self._wake(link)

    def _handle_doubt(self, link: NeighbourLink, since: float, now: float) -> None:
        if link.heard_at > since:
            link.doubted_at = None
        elif now >= since + max(DOUBT, DOUBTS_PER_ROUND_TRIP * (link.round_trip.smoothed or 0.0)):
            self._lost(link, now)
        elif link.probe_at <= now:
            # Whoever is told something answers at once that it heard it.
            link.probe_at = now + DOUBT / PROBES
            link.tell((self.name, 0), now)

    # What is known.

    def graph(self) -> KnownGraph:
        """The network as far as this node reaches it."""
        return self._known

    def nodes_with(self, role: ServiceRole) -> tuple[str, ...]:
        """Reachable nodes that have a role, this one included, in the order of their names."""
        return self._known.with_role(role)

    def has_role(self, name: str, boot: int, role: ServiceRole) -> bool | None:
        """Whether a node is believed to have a role, reachable now or not; None when this life of it is not known."""
        known = self._database.origins.get(name)
        if known is None or known.state is None or known.state.boot < boot:
            return None
        return bool(known.state.roles & role)

    def doubted(self) -> dict[str, tuple[int, str]]:
        """Nodes that claim roles which are not believed: the roles, and why not."""
        return {
            name: (origin.state.claimed, origin.state.doubt)
            for name, origin in self._database.origins.items()
            if origin.state is not None and origin.state.claimed
        }

    def neighbours(self) -> dict[str, LinkNumber]:
        """The link that is used to each neighbour that is up: of several the one with the lowest number."""
        active: dict[str, LinkNumber] = {}
        for number in sorted(self._links):
            link = self._links[number]
            if link.up and link.neighbour is not None:
                active.setdefault(link.neighbour, number)
        return active

    def table(self) -> ForwardingTable:
        """What this node's forwarder must know now."""
        active = self.neighbours()
        return ForwardingTable(
            links={number: self._tags.link_tags(self.name, neighbour) for neighbour, number in active.items()},
            internal=self._tags.internal_tags(self.name),
            incoming={number: self._tags.link_tags(neighbour, self.name) for neighbour, number in active.items()},
            detours=self._ways.detours(self._tags, active),
        )

    def route_to(self, name: str) -> ControlRoute | None:
        """How to reach a node, None when no path leads there."""
        return self._routes.to(name)

    @property
    def relayed_routes(self) -> int:
        """Times a path was too long for one filter, so that it leads over a relay."""
        return self._routes.over_relays

    # Within.

    def _belief(self, state: messages.LinkState) -> Belief:
        if state.origin == self.name:
            return Belief(state.roles)
        belief = self._trust.belief(state, self._wall_ms(self._now))
        if belief.doubt:
            self.drops[LinkStateDrop.ROLE_NOT_GRANTED] += 1
        return belief

    def _wake(self, link: NeighbourLink) -> None:
        """The link may have something to send."""
        self._busy[link.number] = link

    def _up(self, link: NeighbourLink, now: float) -> None:
        link.up = True
        if link.neighbour is not None:
            self._ways.link_up(link.neighbour)
            self._event(NeighbourUp(link.neighbour, link.number))
        for key in self._database.all_parts():
            link.tell(key, now)
        link.flood_at = now + 2 * UPS_TOGETHER
        self._event(TableChanged())
        # Links often come up together. Those that go down are told at once.
        self._originate_soon(now, UPS_TOGETHER)

    def _down(self, link: NeighbourLink, now: float) -> None:
        was_up = link.up
        link.silence()
        if was_up and link.neighbour is not None:
            if link.neighbour not in self.neighbours():
                self._ways.link_down(link.neighbour, self._known)
            self._event(NeighbourDown(link.neighbour, link.number))
            self._event(TableChanged())
            self._originate_soon(now)

    def _lost(self, link: NeighbourLink, now: float) -> None:
        self._down(link, now)
        link.neighbour = None
        link.neighbour_mtu = 0

    def _originate_soon(self, now: float, wait: float = 0.0) -> None:
        when = max(now + wait, self._may_originate_at)
        if when <= now:
            self._originate(now)
        elif self._originate_at is None or when < self._originate_at:
            self._originate_at = when

    def _originate(self, now: float) -> None:
        """Say anew what our links are."""
        self._originate_at = None
        heard = any(link.up for link in self._links.values())
        self._may_originate_at = now + self.config.originate_interval if heard else now
        self._refresh_at = now + self.config.refresh_interval * self._rng.uniform(1 - HELLO_JITTER, 1)
        self._number += 1
        neighbours = [(name, self._links[number].common_mtu) for name, number in sorted(self.neighbours().items())]
        self._now = now
        for state in own_parts(self.name, (self._boot, self._number), self._roles, neighbours):
            claims = state.part == 0 and self._roles and self._holder is not None
            part = read_part(messages.encode(self._holder.proven(state) if claims and self._holder else state))
            news = self._database.install(part, 0, now) is Installed.NEW
            for link in self._links.values():
                if link.up:
                    link.tell(part.key, now, urgent=news)
                    self._wake(link)
        self._settle_soon(now)

    def _settle_soon(self, now: float) -> None:
        if self._database.changed and self._settle_at is None:
            if now > self._settled_at + QUIET * self._settle_wait:
                self._settle_wait = self.config.settle
            self._settle_at = now + self._settle_wait

    def _work_out_graph(self, now: float) -> None:
        self._settled_at = now
        self._settle_wait = min(2 * self._settle_wait, self.config.max_settle)
        self._database.changed = False
        known = KnownGraph.of(self._database.states(), self.name, self._allowed)
        if known != self._known:
            self._known = known
            self._routes.graph_is(known)
            self._ways_due_at = now + QUIET_BEFORE_WAYS
            if self._ways.graph_is(known):
                self._event(TableChanged())
            self._event(GraphChanged())

    def _version(self, origin: str) -> tuple[int, int] | None:
        known = self._database.origins.get(origin)
        return None if known is None else known.version

    def _parts_of(self, origin: str) -> list[Key]:
        known = self._database.origins.get(origin)
        return [] if known is None else [part.key for part in known.have if part is not None]

    def _event(self, event: Event) -> None:
        # Events without content say that something is to be looked at: once is enough.
        content = isinstance(event, (NeighbourUp, NeighbourDown))
        if len(self._events) < MAX_EVENTS if content else event not in self._events:
            self._events.append(event)


_DROPS = {
    Installed.TOO_OLD: LinkStateDrop.TOO_OLD,
    Installed.NO_ROOM: LinkStateDrop.NO_ROOM,
    Installed.CONTRADICTION: LinkStateDrop.CONTRADICTION,
}
