"""A rendezvous on a store of its own, driven by hand: requests in, messages out, time as a number."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from psirp_stack.authentication.keys import KeyPair
from psirp_stack.authentication.signing import Signer
from psirp_stack.control.codes import Code
from psirp_stack.control.messages import (
    Declaration,
    Declare,
    Explain,
    Explanation,
    Match,
    MatchServed,
    RendezvousAnswer,
    RendezvousRequest,
    Reply,
    ScopePublished,
    ScopeUnpublished,
    TopologyStarted,
)
from psirp_stack.rendezvous import Rendezvous, RendezvousConfig, RequestOutcome
from psirp_stack.rendezvous.events import RendezvousEvent, WorkFailed

NOW_MS = 1_800_000_000_000


def ident(number: int) -> bytes:
    return number.to_bytes(32, "big")


S, T, U = ident(0x51), ident(0x52), ident(0x53)
X, Y = ident(0xA1), ident(0xA2)


@dataclass
class Desk:
    """Everything that the rendezvous says, kept by whom it is for. Answers matches as a topology manager would."""

    path: Path
    config: RendezvousConfig = field(default_factory=RendezvousConfig)
    now: float = 1000.0
    answers: bool = True
    arrives: bool = True
    """What is said to nodes arrives, and the rendezvous knows it."""
    inbox: dict[str, list[RendezvousAnswer]] = field(default_factory=dict)
    matches: list[Match] = field(default_factory=list)
    events: list[RendezvousEvent] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=lambda: iter(range(1, 1 << 62)))

    def __post_init__(self) -> None:
        self.rendezvous = self._open()
        self.take(self.rendezvous.opening)

    def _open(self) -> Rendezvous:
        return Rendezvous.open(self.path, self.config, now=self.now, observer=self.events.append)

    def restart(self) -> None:
        self.rendezvous.close()
        self.rendezvous = self._open()
        self.take(self.rendezvous.opening)

    def close(self) -> None:
        self.rendezvous.close()
        assert not [event for event in self.events if isinstance(event, WorkFailed)]

    def number(self) -> int:
        return next(self.numbers)

    def ask(self, node: str, request: RendezvousRequest, boot: int = 1, now_ms: int = NOW_MS) -> Reply:
        outcome = self.rendezvous.handle(node, boot, request, self.now, now_ms).result(20)
        self.take(outcome)
        (reply,) = outcome.replies
        assert reply.number == request.number
        return reply

    def ok(self, node: str, request: RendezvousRequest, boot: int = 1) -> None:
        reply = self.ask(node, request, boot)
        assert reply.code == Code.SUCCESS, (Code(reply.code), reply.reason)

    def bulk(self, requests: Iterable[tuple[str, RendezvousRequest]], boot: int = 1) -> None:
        """Many at once, so that they share commits."""
        futures = [self.rendezvous.handle(node, boot, request, self.now, NOW_MS) for node, request in requests]
        for future in futures:
            outcome = future.result(20)
            self.take(outcome)
            assert [reply.code for reply in outcome.replies] == [Code.SUCCESS]

    def code(self, node: str, request: RendezvousRequest, boot: int = 1, now_ms: int = NOW_MS) -> Code:
        reply = self.ask(node, request, boot, now_ms)
        assert reply.code == Code.SUCCESS or reply.reason, "a refusal says why"
        return Code(reply.code)

    def explain(self, sid: bytes, rid: bytes) -> Explanation:
        (answer,) = self.rendezvous.handle("asker", 1, Explain(self.number(), sid, rid), self.now, NOW_MS).result(20)
        assert isinstance(answer, Explanation)
        return answer

    def take(self, outcome: RequestOutcome) -> None:
        for node, message in outcome.to_nodes:
            if not isinstance(message, Reply):
                self.inbox.setdefault(node, []).append(message)
        self.matches.extend(outcome.matches)
        if self.arrives:
            self.rendezvous.settled(outcome)
        if self.answers:
            for match in outcome.matches:
                self.take(self.served(match))

    def served(self, match: Match, unserved: tuple[tuple[str, int], ...] = ()) -> RequestOutcome:
        answer = MatchServed(match.sid, match.rid, match.generation, unserved)
        return self.rendezvous.handle_topology(answer, self.now).result(20)

    def topology_started(self) -> None:
        self.take(self.rendezvous.handle_topology(TopologyStarted(1), self.now).result(20))

    def run(self, until: float | None = None) -> int:
        """Let background work run, and time go on to `until`; returns how many steps that took."""
        steps = 0
        while (due := self.rendezvous.next_timer()) is not None and due <= (self.now if until is None else until):
            self.now = max(self.now, due)
            future = self.rendezvous.handle_timer(self.now)
            if future is not None:
                self.take(future.result(20))
                steps += 1
            assert steps < 10_000
        self.now = max(self.now, until or 0.0)
        return steps

    def declare(self, node: str, entries: list[tuple[int, bytes, bytes]], boot: int = 1, parts: int = 1) -> list[Reply]:
        size = -(-len(entries) // parts) or 1
        replies = []
        for part in range(parts):
            chosen = tuple(Declaration(*entry) for entry in entries[part * size : (part + 1) * size])
            replies.append(self.ask(node, Declare(self.number(), boot, part, parts, chosen), boot))
        return replies

    def last_match(self, sid: bytes, rid: bytes) -> Match | None:
        return next((match for match in reversed(self.matches) if (match.sid, match.rid) == (sid, rid)), None)

    def scope_events(self, node: str) -> list[tuple[str, bytes, bytes]]:
        """Take out what a node was told of scopes: + or -, parent, child."""
        kept = []
        for message in self.inbox.pop(node, []):
            if isinstance(message, ScopePublished | ScopeUnpublished):
                kept.append(("+" if isinstance(message, ScopePublished) else "-", message.parent, message.child))
        return kept


def signer(seed: int) -> Signer:
    return Signer(KeyPair(bytes([seed]) * 32), NOW_MS)
