"""What other gateways want of the zones managed here, until when, and what they are answered. No I/O, no clock.

A topic is considered once, however many want it; who decides tells `decide`. The last requester that lets go of a
topic, by a newer list or by letting its lease end, ends it.
"""

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gateway.bootstrapping.messages import Answer, Answers, Mode, Request, Requests, shortened
from identifiers import Naming, Topic, TopicError, Zone, zone_of

STALE_ENDS = 1_000
"""Ends of leases that were renewed since; the line of ends is made anew when it holds so many more than it should."""

Requester = tuple[str, str]
"""(zone, requester)"""


@dataclass(frozen=True, slots=True)
class Held:
    """A request that was taken; kept on disk."""

    zone: str
    requester: str
    topic: str
    number: int
    until: float


@dataclass(frozen=True, slots=True)
class Verdict:
    accepted: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a list or the passing of time led to."""

    put: tuple[Held, ...] = ()
    dropped: tuple[Held, ...] = ()
    consider: tuple[str, ...] = ()
    """Topics about which a decision is wanted."""
    ended: tuple[str, ...] = ()
    """Topics that nobody wants any more."""
    answer: tuple[Requester, ...] = ()


@dataclass(frozen=True, slots=True)
class DeskLimits:
    max_lease: float
    max_requesters: int
    max_topics_per_requester: int
    max_topics: int


class ManagerDesk:
    def __init__(self, name: str, naming: Naming, zones: Mapping[str, Zone], limits: DeskLimits) -> None:
        self._name = name
        self._naming = naming
        self._zones = zones
        self._limits = limits
        self._held: dict[Requester, dict[str, Held]] = {}
        self._refused: dict[Requester, dict[str, tuple[int, str]]] = {}
        self._heard: dict[Requester, int] = {}
        self._holders: dict[str, set[Requester]] = {}
        self._verdicts: dict[str, Verdict] = {}
        self._considered: set[str] = set()
        """Topics about which a decision is under way."""
        self._ends: list[tuple[float, str, str, str]] = []
        self._count = 0
        self.turned_away = 0
        """Lists of requesters beyond the limit, that got no answer at all."""

    # What is on disk.

    def restore(self, held: Iterable[Held], verdicts: Mapping[str, Verdict]) -> Outcome:
        """Take up what was held before a restart, and say what was never decided."""
        stray: list[Held] = []
        for one in held:
            if one.zone in self._zones:
                self._hold(one)
            else:
                stray.append(one)
        self._verdicts = {topic: verdict for topic, verdict in verdicts.items() if topic in self._holders}
        consider = tuple(topic for topic in self._holders if topic not in self._verdicts)
        self._considered.update(consider)
        ended = tuple(sorted(topic for topic in verdicts if topic not in self._holders))
        return Outcome((), tuple(stray), consider, ended, tuple(self._held))

    # What comes in.

    def hear(self, message: Requests, now: float) -> Outcome:
        key = (message.zone, message.requester)
        if message.zone not in self._zones or message.serial < self._heard.get(key, 0):
            return Outcome()
        if key not in self._heard and len(self._heard) >= self._limits.max_requesters:
            self.turned_away += 1
            return Outcome()
        self._heard[key] = message.serial
        mismatch = self._naming.mismatch(f"{message.scheme}/{message.hash}")
        wanted = {request.topic: request for request in message.requests if request.mode is Mode.SUBSCRIBE}
        refused: dict[str, tuple[int, str]] = {}
        put: list[Held] = []
        consider: list[str] = []
        ended: list[str] = []
        before = self._held.get(key, {})
        dropped = [held for topic, held in before.items() if topic not in wanted]
        for held in dropped:
            ended += self._release(held)
        for topic, request in wanted.items():
            held_before = self._held.get(key, {}).get(topic)
            reason = mismatch or self._refusal(key, topic, held_before)
            if reason is not None:
                refused[topic] = (request.number, shortened(reason))
                if held_before is not None:
                    dropped.append(held_before)
                    ended += self._release(held_before)
                continue
            taken = self._take(key, request, held_before, now)
            if taken is None:
                continue
            put.append(taken)
            if self._asks_anew(topic):
                consider.append(topic)
        self._refused[key] = refused
        return Outcome(tuple(put), tuple(dropped), tuple(consider), tuple(ended), (key,))

    def expire(self, now: float) -> Outcome:
        over: list[Held] = []
        ended: list[str] = []
        while self._ends and self._ends[0][0] <= now:
            until, zone, requester, topic = heapq.heappop(self._ends)
            held = self._held.get((zone, requester), {}).get(topic)
            if held is not None and held.until == until:
                over.append(held)
                ended += self._release(held)
        answer = tuple(dict.fromkeys((held.zone, held.requester) for held in over))
        return Outcome((), tuple(over), (), tuple(ended), answer)

    def decide(self, topic: str, verdict: Verdict) -> tuple[Requester, ...]:
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
        self._refused.pop(key, None)
        self._heard.pop(key, None)
        return True

    # What goes out.

    def answers(self, key: Requester) -> Answers:
        zone, requester = key
        answers: list[Answer] = []
        for topic, held in self._held.get(key, {}).items():
            verdict = self._verdicts.get(topic)
            if verdict is not None:
                answers.append(Answer(topic, held.number, verdict.accepted, shortened(verdict.reason)))
        for topic, (number, reason) in self._refused.get(key, {}).items():
            answers.append(Answer(topic, number, False, reason))
        return Answers(zone, requester, self._name, self._naming.announcement, self._heard.get(key, 0), tuple(answers))

    def wanted(self, topic: str) -> bool:
        return topic in self._holders

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(self._holders)

    @property
    def held(self) -> list[Held]:
        return [held for topics in self._held.values() for held in topics.values()]

    # Inside.

    def _refusal(self, key: Requester, topic: str, held: Held | None) -> str | None:
        zone = key[0]
        try:
            parsed = Topic.parse(topic)
            domain = zone_of(parsed.host).domain
        except TopicError as error:
            return f"no topic of {zone}: {error}"
        if domain != zone or parsed.url != topic:
            return f"{topic[:100]} is not the name of a topic of {zone}"
        if held is not None:
            return None
        if len(self._held.get(key, {})) >= self._limits.max_topics_per_requester:
            return f"one gateway may want {self._limits.max_topics_per_requester} topics of a zone, and no more"
        if topic not in self._holders and len(self._holders) >= self._limits.max_topics:
            return f"{self._limits.max_topics} topics are followed here already, which is the limit"
        return None

    def _take(self, key: Requester, request: Request, before: Held | None, now: float) -> Held | None:
        """None when it is the request that is known already: hearing it again does not prolong it."""
        if before is not None and request.number <= before.number:
            return None
        until = now + min(float(request.lease), self._limits.max_lease)
        held = Held(*key, request.topic, request.number, until)
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

    def _hold(self, held: Held) -> None:
        key = (held.zone, held.requester)
        topics = self._held.setdefault(key, {})
        self._count += held.topic not in topics
        topics[held.topic] = held
        heapq.heappush(self._ends, (held.until, held.zone, held.requester, held.topic))
        if len(self._ends) > 2 * self._count + STALE_ENDS:
            self._ends = [(one.until, one.zone, one.requester, one.topic) for one in self.held]
            heapq.heapify(self._ends)
        self._holders.setdefault(held.topic, set()).add(key)

    def _release(self, held: Held) -> list[str]:
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
