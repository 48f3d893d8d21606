"""What other gateways want of the zones managed here, until when, and what they are answered. No I/O, no clock.

A topic is considered once, however many want it; who decides tells `decide`. The last requester that lets go of a
topic, by a newer list or by letting its lease end, ends it.

A list counts once: one with the serial that was heard last is answered again and changes nothing, an older one is a
replay. A requester that signs is known by its key from its first list on, and nobody else speaks for it.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gateway.bootstrapping.messages import (
    RequestAnswer,
    RequestAnswers,
    RequestMode,
    TopicRequest,
    TopicRequests,
    shortened,
)
from identifiers import Naming, Topic, TopicError, Zone, zone_of

STALE_ENDS = 1_000
"""Ends of leases that were renewed since; the line of ends is made anew when it holds so many more than it should."""

RESTART_GRACE = 60.0
"""Leases that ended while the manager was away go on for so long after it: their renewals may only be heard now."""

Requester = tuple[str, str]
"""(zone, requester)"""


@dataclass(frozen=True, slots=True)
class HeldRequest:
    """A request that was taken; kept on disk."""

    zone: str
    requester: str
    topic: str
    number: int
    until: float


@dataclass(frozen=True, slots=True)
class Known:
    """A requester that was heard, also when it wants nothing now; kept on disk, so that nothing is heard twice."""

    zone: str
    requester: str
    serial: int
    signer: str
    """The hash of its key in hex; empty when it does not sign."""


@dataclass(frozen=True, slots=True)
class RequestVerdict:
    accepted: bool
    reason: str


@dataclass(frozen=True, slots=True)
class ManagerOutcome:
    """What a list or the passing of time led to."""

    put: tuple[HeldRequest, ...] = ()
    dropped: tuple[HeldRequest, ...] = ()
    consider: tuple[str, ...] = ()
    """Topics about which a decision is wanted."""
    ended: tuple[str, ...] = ()
    """Topics that nobody wants any more."""
    answer: tuple[Requester, ...] = ()
    known: Known | None = None
    """Who was heard; to be written together with what it holds."""
    forgotten: tuple[Requester, ...] = ()
    refused: str | None = None
    """Why the list was passed over as a whole, if it was."""


@dataclass(frozen=True, slots=True)
class ManagerLimits:
    max_lease: float
    max_requesters: int
    max_topics_per_requester: int
    max_topics: int
    keys: frozenset[str] = frozenset()
    """Who may ask, by the hashes of their keys in hex. None of them: everybody."""


@dataclass(slots=True)
class ManagerCounters:
    """Lists that were passed over, and why."""

    replayed: int = 0
    forged: int = 0
    """They speak for a requester whose key is another one."""
    turned_away: int = 0
    """Of requesters beyond the limit."""
    unexplained: int = 0
    """Refusals beyond what may be kept: whoever asked gets no reason."""


class ManagerTable:
    def __init__(self, name: str, naming: Naming, zones: Mapping[str, Zone], limits: ManagerLimits) -> None:
        self._name = name
        self._naming = naming
        self._zones = zones
        self._limits = limits
        self._held: dict[Requester, dict[str, HeldRequest]] = {}
        self._refused: dict[Requester, dict[str, tuple[int, str]]] = {}
        self._refusals = 0
        self._known: OrderedDict[Requester, Known] = OrderedDict()
        self._holders: dict[str, set[Requester]] = {}
        self._verdicts: dict[str, RequestVerdict] = {}
        self._considered: set[str] = set()
        """Topics about which a decision is under way."""
        self._ends: list[tuple[float, str, str, str]] = []
        self._count = 0
        self.counters = ManagerCounters()

    # What is on disk.

    def restore(
        self,
        held: Iterable[HeldRequest],
        known: Iterable[Known],
        verdicts: Mapping[str, RequestVerdict],
        followed: Iterable[str],
        now: float,
    ) -> ManagerOutcome:
        """Take up what was held before a restart, and say what was never decided, and what of all that is followed
        nobody wants."""
        stray: list[HeldRequest] = []
        for one in held:
            if one.zone in self._zones:
                self._hold(replace(one, until=max(one.until, now + RESTART_GRACE)))
            else:
                stray.append(one)
        self._known.update({(one.zone, one.requester): one for one in known if one.zone in self._zones})
        self._verdicts = {topic: verdict for topic, verdict in verdicts.items() if topic in self._holders}
        consider = tuple(topic for topic in self._holders if topic not in self._verdicts)
        self._considered.update(consider)
        ended = tuple(sorted(topic for topic in {*followed, *verdicts} if topic not in self._holders))
        return ManagerOutcome((), tuple(stray), consider, ended, tuple(self._held))

    # What comes in.

    def hear(self, message: TopicRequests, now: float, signer: str = "") -> ManagerOutcome:
        """`signer`: the hash of the key that signed the list; empty when nobody did."""
        key = (message.zone, message.requester)
        if message.zone not in self._zones:
            return ManagerOutcome(refused=f"{message.zone[:100]} is not managed here")
        before = self._known.get(key)
        if before is not None and before.signer not in ("", signer):
            self.counters.forged += 1
            return ManagerOutcome(refused=f"a list of {message.requester} that is not signed with its key")
        stranger = bool(self._limits.keys) and signer not in self._limits.keys
        if before is not None and not before.signer and signer and not stranger:
            del self._known[key]  # what was said in its name before it signed does not bind it
            before = None
        if before is not None and message.serial < before.serial:
            self.counters.replayed += 1
            return ManagerOutcome(refused=f"a list of {message.requester} that is older than the last one")
        forgotten: tuple[Requester, ...] = ()
        if before is None and len(self._known) >= self._limits.max_requesters:
            idle = next((one for one in self._known if one not in self._held), None)
            if idle is None:
                self.counters.turned_away += 1
                return ManagerOutcome(
                    refused=f"{self._limits.max_requesters} gateways are heard already, which is the limit"
                )
            self._forget(idle)
            forgotten = (idle,)
        # Who may not ask at all does not get to keep a requester's name from its owner either.
        known = Known(*key, message.serial, "" if stranger else signer)
        self._known[key] = known
        self._known.move_to_end(key)
        unfit = self._naming.mismatch(f"{message.scheme}/{message.hash}")
        if stranger:
            unfit = "it answers only gateways whose keys it was told, and this one's is not among them"
        wanted = {request.topic: request for request in message.requests if request.mode is RequestMode.SUBSCRIBE}
        if before is not None and message.serial == before.serial:
            self._refuse(key, {topic: one for topic, one in wanted.items() if not self._holds(key, topic)}, unfit)
            return ManagerOutcome(answer=(key,))
        outcome = self._new_list(key, wanted, unfit, now)
        return replace(outcome, known=known, forgotten=forgotten)

    def _new_list(
        self, key: Requester, wanted: dict[str, TopicRequest], unfit: str | None, now: float
    ) -> ManagerOutcome:
        ended: list[str] = []
        dropped = [held for topic, held in self._held.get(key, {}).items() if unfit or topic not in wanted]
        for held in dropped:
            ended += self._release(held)
        taken: list[HeldRequest] = []
        consider: list[str] = []
        refused = self._refuse(key, wanted, unfit)
        for topic, request in wanted.items():
            if topic in refused:
                continue
            reason = self._no_room(key, topic)
            if reason is not None:
                self._note_refusal(key, request, reason)
                continue
            held_now = self._take(key, request, now)
            if held_now is not None:
                taken.append(held_now)
                if self._asks_anew(topic):
                    consider.append(topic)
        ended = [topic for topic in ended if topic not in self._holders]
        return ManagerOutcome(tuple(taken), tuple(dropped), tuple(consider), tuple(ended), (key,))

    def expire(self, now: float) -> ManagerOutcome:
        over: list[HeldRequest] = []
        ended: list[str] = []
        while self._ends and self._ends[0][0] <= now:
            until, zone, requester, topic = heapq.heappop(self._ends)
            held = self._held.get((zone, requester), {}).get(topic)
            if held is not None and held.until == until:
                over.append(held)
                ended += self._release(held)
        answer = tuple(dict.fromkeys((held.zone, held.requester) for held in over))
        return ManagerOutcome((), tuple(over), (), tuple(ended), answer)

    def decide(self, topic: str, verdict: RequestVerdict) -> tuple[Requester, ...]:
        """Who is to be answered. A decision about what nobody wants any more is forgotten."""
        holders = self._holders.get(topic)
        if holders is None:
            return ()
        self._verdicts[topic] = verdict
        self._considered.discard(topic)
        return tuple(holders)

    def gone(self, zone: str, requester: str) -> bool:
        """A requester's channel is gone. True when it holds nothing, so that it may be forgotten."""
        key = (zone, requester)
        if self._held.get(key):
            return False
        self._clear_refusals(key)
        return True

    # What goes out.

    def answers(self, key: Requester) -> RequestAnswers:
        zone, requester = key
        answers: list[RequestAnswer] = []
        for topic, held in self._held.get(key, {}).items():
            verdict = self._verdicts.get(topic)
            if verdict is not None:
                answers.append(RequestAnswer(topic, held.number, verdict.accepted, shortened(verdict.reason)))
        for topic, (number, reason) in self._refused.get(key, {}).items():
            answers.append(RequestAnswer(topic, number, False, reason))
        heard = self._known[key].serial if key in self._known else 0
        return RequestAnswers(zone, requester, self._name, self._naming.announcement, heard, tuple(answers))

    def wanted(self, topic: str) -> bool:
        return topic in self._holders

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(self._holders)

    @property
    def known(self) -> int:
        """Requesters that were heard and are remembered."""
        return len(self._known)

    def verdict(self, topic: str) -> RequestVerdict | None:
        return self._verdicts.get(topic)

    @property
    def held(self) -> list[HeldRequest]:
        return [held for topics in self._held.values() for held in topics.values()]

    # Inside.

    def _holds(self, key: Requester, topic: str) -> bool:
        return topic in self._held.get(key, {})

    def _refuse(self, key: Requester, wanted: Mapping[str, TopicRequest], unfit: str | None) -> set[str]:
        """Write down why some of these can never be had. Replaces what was written down before."""
        self._clear_refusals(key)
        refused: set[str] = set()
        for topic, request in wanted.items():
            reason = unfit or self._not_ours(key[0], topic)
            if reason is not None:
                refused.add(topic)
                self._note_refusal(key, request, reason)
        return refused

    def _note_refusal(self, key: Requester, request: TopicRequest, reason: str) -> None:
        if self._refusals >= self._limits.max_topics:
            self.counters.unexplained += 1
            return
        self._refused.setdefault(key, {})[request.topic] = (request.number, shortened(reason))
        self._refusals += 1

    def _clear_refusals(self, key: Requester) -> None:
        self._refusals -= len(self._refused.pop(key, {}))

    def _forget(self, key: Requester) -> None:
        del self._known[key]
        self._clear_refusals(key)

    @staticmethod
    def _not_ours(zone: str, topic: str) -> str | None:
        try:
            parsed = Topic.parse(topic)
            domain = zone_of(parsed.host).domain
        except TopicError as error:
            return f"no topic of {zone}: {error}"
        if domain != zone or parsed.url != topic:
            return f"{topic[:100]} is not the name of a topic of {zone}"
        return None

    def _no_room(self, key: Requester, topic: str) -> str | None:
        if self._holds(key, topic):
            return None
        if len(self._held.get(key, {})) >= self._limits.max_topics_per_requester:
            return f"one gateway may want {self._limits.max_topics_per_requester} topics of a zone, and no more"
        if topic not in self._holders and len(self._holders) >= self._limits.max_topics:
            return f"{self._limits.max_topics} topics are followed here already, which is the limit"
        return None

    def _take(self, key: Requester, request: TopicRequest, now: float) -> HeldRequest | None:
        """None when it is the request that is known already: hearing it again does not prolong it."""
        before = self._held.get(key, {}).get(request.topic)
        if before is not None and request.number <= before.number:
            return None
        until = now + min(float(request.lease), self._limits.max_lease)
        held = HeldRequest(*key, request.topic, request.number, until)
        self._hold(held)
        return held

    def _asks_anew(self, topic: str) -> bool:
        """A topic that was denied before gets another chance with every new request for it."""
        verdict = self._verdicts.get(topic)
        if topic in self._considered or (verdict is not None and verdict.accepted):
            return False
        self._verdicts.pop(topic, None)
        self._considered.add(topic)
        return True

    def _hold(self, held: HeldRequest) -> None:
        key = (held.zone, held.requester)
        topics = self._held.setdefault(key, {})
        self._count += held.topic not in topics
        topics[held.topic] = held
        heapq.heappush(self._ends, (held.until, held.zone, held.requester, held.topic))
        if len(self._ends) > 2 * self._count + STALE_ENDS:
            self._ends = [(one.until, one.zone, one.requester, one.topic) for one in self.held]
            heapq.heapify(self._ends)
        self._holders.setdefault(held.topic, set()).add(key)

    def _release(self, held: HeldRequest) -> list[str]:
        key = (held.zone, held.requester)
        topics = self._held[key]
        del topics[held.topic]
        self._count -= 1
        if not topics:
            del self._held[key]
        holders = self._holders[held.topic]
        holders.discard(key)
        if holders:
            return []
        del self._holders[held.topic]
        self._verdicts.pop(held.topic, None)
        self._considered.discard(held.topic)
        return [held.topic]
