"""Who gets what is published on a topic: filters of sessions, shared ones among them, and retained messages. Sans-I/O.

Filters that match the same topic for the same session become one delivery: the highest QoS of them, and the identifiers
of all. Of a shared subscription one session gets each message: those that are connected take turns, and those that are
not are asked only when nobody else is there.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator

from exchange.patterns import NameTree, PatternTree
from gateway.protocols.mqtt.messages import BrokerMessage
from gateway.protocols.mqtt.packets import SubscriptionRequest
from gateway.protocols.mqtt.session import MqttSession, Subscription
from gateway.protocols.mqtt.texts import split_shared


class SharedGroup:
    """Sessions that share a filter."""

    __slots__ = ("_turn", "members")

    def __init__(self) -> None:
        self.members: dict[MqttSession, Subscription] = {}
        self._turn = 0

    def next(self) -> Subscription | None:
        live = [one for session, one in self.members.items() if session.connection is not None]
        among = live or list(self.members.values())
        if not among:
            return None
        self._turn = (self._turn + 1) % len(among)
        return among[self._turn - 1]


class Target:
    """What one session gets of a topic, by all of its filters that match."""

    __slots__ = ("hears_own", "ids", "keeps_retain", "others", "qos", "session")

    def __init__(self, first: Subscription) -> None:
        self.session = first.session
        self.qos = first.request.qos
        self.keeps_retain = first.request.retain_as_published
        self.hears_own = not first.request.no_local
        self.ids: tuple[int, ...] = (first.identifier,) if first.identifier else ()

    def add(self, other: Subscription) -> None:
        self.qos = max(self.qos, other.request.qos)
        self.keeps_retain = self.keeps_retain or other.request.retain_as_published
        self.hears_own = self.hears_own or not other.request.no_local
        if other.identifier:
            self.ids = (*self.ids, other.identifier)


class TopicRoute:
    """Where everything of one topic goes."""

    __slots__ = ("groups", "targets")

    def __init__(self, found: tuple[Subscription | SharedGroup, ...]) -> None:
        by_session: dict[MqttSession, Target] = {}
        self.groups: list[SharedGroup] = []
        for one in found:
            if isinstance(one, SharedGroup):
                self.groups.append(one)
            elif one.session in by_session:
                by_session[one.session].add(one)
            else:
                by_session[one.session] = Target(one)
        self.targets = tuple(by_session.values())

    def recipients(self) -> Iterator[Target]:
        yield from self.targets
        for group in self.groups:
            chosen = group.next()
            if chosen is not None:
                yield Target(chosen)


ROUTES_KEPT = 20_000


class TopicRoutes:
    def __init__(self) -> None:
        self._tree: PatternTree[object, Subscription | SharedGroup] = PatternTree()
        self._groups: dict[tuple[str, str], SharedGroup] = {}
        self._known: dict[str, TopicRoute] = {}
        self._by_name: Counter[str] = Counter()
        """How many sessions have a filter, whatever they share."""
        self.count = 0

    def of(self, topic: str) -> TopicRoute:
        known = self._known.get(topic)
        if known is None:
            if len(self._known) >= ROUTES_KEPT:
                self._known.clear()
            known = self._known[topic] = TopicRoute(tuple(self._tree.look_up(topic)))
        return known

    def add(self, session: MqttSession, request: SubscriptionRequest, identifier: int) -> bool:
        """Whether the session had no such filter."""
        share, pattern = split_shared(request.filter)
        before = session.subscriptions.get(request.filter)
        one = Subscription(session, request, identifier, share)
        session.subscriptions[request.filter] = one
        if share:
            group = self._groups.get((share, pattern))
            if group is None:
                group = self._groups[share, pattern] = SharedGroup()
                self._tree.put(pattern, (share,), group)
            group.members[session] = one
        else:
            self._tree.put(pattern, session, one)
        self._known.clear()
        self.count += before is None
        self._by_name[pattern] += before is None
        return before is None

    def remove(self, session: MqttSession, wanted: str) -> bool:
        if session.subscriptions.pop(wanted, None) is None:
            return False
        share, pattern = split_shared(wanted)
        if share:
            group = self._groups[share, pattern]
            del group.members[session]
            if not group.members:
                del self._groups[share, pattern]
                self._tree.drop(pattern, (share,))
        else:
            self._tree.drop(pattern, session)
        self._known.clear()
        self.count -= 1
        self._by_name[pattern] -= 1
        if not self._by_name[pattern]:
            del self._by_name[pattern]
        return True

    def is_asked(self, topic: str) -> bool:
        """Whether somebody has a filter that is this very topic."""
        return topic in self._by_name


class RetainedMessages:
    """The newest of each topic that was published to stay. Bounded: the one that was set longest ago goes first."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._found: OrderedDict[str, BrokerMessage] = OrderedDict()
        self._names = NameTree()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._found)

    def get(self, topic: str) -> BrokerMessage | None:
        return self._found.get(topic)

    def put(self, message: BrokerMessage) -> list[str]:
        """An empty one only ends what was there. Says which topics had to go for it."""
        self.forget(message.topic)
        if not message.payload:
            return []
        self._found[message.topic] = message
        self._names.add(message.topic)
        self.bytes += message.size
        gone: list[str] = []
        while len(self._found) > self._most or self.bytes > self._most_bytes:
            oldest = next(iter(self._found))
            self.forget(oldest)
            gone.append(oldest)
        return gone

    def forget(self, topic: str) -> None:
        before = self._found.pop(topic, None)
        if before is not None:
            self._names.remove(topic)
            self.bytes -= before.size

    def matching(self, wanted: str) -> Iterator[BrokerMessage]:
        exact = self._found.get(wanted)
        if exact is not None:
            yield exact
        elif "+" in wanted or "#" in wanted:
            for name in list(self._names.matching(wanted)):
                yield self._found[name]
