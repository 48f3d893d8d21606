"""A node's dealings with the rendezvous: what it declared there, what it has asked, and staying in step.

The rendezvous knows nodes, not applications. So an intent is declared with the first application that has it and
withdrawn with the last, whatever happens between. `KeepAlive` carries a digest of all that is declared; a rendezvous
that knows otherwise says so, and the node declares everything again.

Sans-I/O: messages for the rendezvous come out of `next_message`, its answers go into `receive`.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

import msgspec

from psirp_stack.control.codes import Code
from psirp_stack.control.messages import (
    MAX_ENTRIES,
    Credential,
    Declaration,
    DeclarationsRefused,
    Declare,
    Explanation,
    ItemList,
    KeepAlive,
    PublishItem,
    RendezvousRequest,
    Reply,
    SubscribeItem,
    SubscribeScope,
    UnpublishItem,
    UnsubscribeItem,
    UnsubscribeScope,
)
from psirp_stack.rendezvous.declarations import DeclaredRole, declaration_hash

Answer = Callable[[Code, str], None]
"""Told how a request ended."""
KnowledgeTaker = Callable[[Explanation | ItemList | Reply], None]
"""Told what the rendezvous knows, or why it does not say."""
SignRequest = Callable[[RendezvousRequest | Declaration], Credential | None]
"""Proves who asks; None for what needs no proof."""
Signed = TypeVar("Signed", bound=RendezvousRequest | Declaration)
Key = tuple[DeclaredRole, bytes, bytes]
"""What a node is to an item; the Rid is zero for a scope."""


TOO_MANY = "too many requests of this node wait for an answer"
NEVER_ANSWERED = "the rendezvous got the request and never answered: it was probably ended"


@dataclass(frozen=True, slots=True)
class IntentConfig:
    """Times in seconds."""

    keep_alive: float = 8.0
    """Between two signs of life; well below the lease that the rendezvous gives."""
    wait_for_rendezvous: float = 30.0
    """How long a request may wait while no rendezvous is known."""
    max_unanswered: int = 65_536
    answer_patience: float = 1.5
    """Signs of life that a request which has arrived may stay unanswered: then the rendezvous was ended before it could
    answer, and nobody else will."""


class IntentState(Enum):
    """Where an intent stands."""

    ASKING = 1
    GRANTED = 2


@dataclass(slots=True)
class _Intent:
    number: int
    """Of the request that declared it: an answer to an earlier one, withdrawn since, is not about this."""
    standing: IntentState = IntentState.ASKING
    waiting: list[Answer] = field(default_factory=list)


@dataclass(slots=True)
class _Unanswered:
    """A request on its way. At most one of the three says what its answer means."""

    request: RendezvousRequest
    intent: Key | None = None
    answer: Answer | None = None
    explanation: KnowledgeTaker | None = None
    arrived_at: float | None = None


class SubscriptionIntents:
    """What this life of a node wants of the rendezvous."""

    def __init__(self, boot: int, sign: SignRequest | None = None, config: IntentConfig | None = None) -> None:
        self.boot = boot
        self.config = config if config is not None else IntentConfig()
        self.redeclared = 0
        """Times everything was declared again because the rendezvous was out of step."""
        self.never_answered = 0
        """Requests that arrived at the rendezvous, and that it did not live to answer."""
        self.on_withdrawn: Callable[[Key, Code, str], None] | None = None
        """Told of intents that the rendezvous took back after it had granted them."""
        self._sign = sign
        self._intents: dict[Key, _Intent] = {}
        self._unanswered: dict[int, _Unanswered] = {}
        self._out: deque[tuple[float, RendezvousRequest]] = deque()
        self._digest = 0
        self._numbers = 0
        self._declared_at = 0
        """Number of the last request that declared everything."""
        self._alive_at = 0.0
        self._known = False
        self.now = 0.0
        """The time of the latest call: answers come long after what they answer."""
        self._registered_with: str | None = None
        self._greeted = False
        """The rendezvous has heard of this life."""
        self._has_asked = False
        """Whoever has never asked for anything need not be known to live."""

    def __contains__(self, key: Key) -> bool:
        return key in self._intents

    def granted(self, key: Key) -> bool:
        intent = self._intents.get(key)
        return intent is not None and intent.standing is IntentState.GRANTED

    @property
    def unanswered(self) -> int:
        return len(self._unanswered)

    # What the node's applications ask for.

    def want(self, role: DeclaredRole, sid: bytes, rid: bytes, answer: Answer, now: float) -> None:
        """Declare an intent, once; `answer` is called when the rendezvous has said yes or no, or said yes before."""
        self.now = now
        key = (role, sid, rid)
        intent = self._intents.get(key)
        if intent is None:
            if len(self._unanswered) >= self.config.max_unanswered:
                answer(Code.LIMIT_REACHED, TOO_MANY)
                return
            intent = self._intents[key] = _Intent(self._next_number())
            request = _declaring(role, intent.number, sid, rid)
            intent.waiting.append(answer)
            self._send(request, now, intent=key)
        elif intent.standing is IntentState.GRANTED:
            answer(Code.SUCCESS, "")
        else:
            intent.waiting.append(answer)

    def leave(self, role: DeclaredRole, sid: bytes, rid: bytes, now: float) -> None:
        """Withdraw an intent. Whoever still waits for its answer is told that it was withdrawn."""
        intent = self._intents.pop((role, sid, rid), None)
        if intent is None:
            return
        if intent.standing is IntentState.GRANTED:
            self._digest ^= declaration_hash(role, sid, rid)
        for answer in intent.waiting:
            answer(Code.DOES_NOT_EXIST, "withdrawn before the rendezvous answered")
        self._send(_withdrawing(role, self._next_number(), sid, rid), now)

    def ask(self, make: Callable[[int], RendezvousRequest], answer: Answer, now: float) -> None:
        """Send a request about scopes; `make` gets its number."""
        if len(self._unanswered) >= self.config.max_unanswered:
            answer(Code.LIMIT_REACHED, TOO_MANY)
            return
        self._send(make(self._next_number()), now, answer=answer)

    def explain(self, make: Callable[[int], RendezvousRequest], taker: KnowledgeTaker, now: float) -> None:
        """Ask what the rendezvous knows of an item or a scope."""
        if len(self._unanswered) >= self.config.max_unanswered:
            taker(Reply(0, Code.LIMIT_REACHED, TOO_MANY))
            return
        self._send(make(self._next_number()), now, explanation=taker)

    # What the rendezvous says.

    def receive(self, message: Reply | Explanation | ItemList | DeclarationsRefused, now: float) -> None:
        self.now = now
        match message:
            case DeclarationsRefused():
                for refused in message.refused:
                    self._take_back(
                        (DeclaredRole(refused.role), refused.sid, refused.rid), Code(refused.code), refused.reason
                    )
            case Explanation() | ItemList():
                asked = self._unanswered.pop(message.number, None)
                if asked is not None and asked.explanation is not None:
                    asked.explanation(message)
            case Reply():
                self._replied(message, now)

    def failed(self, number: int, code: Code, reason: str, now: float) -> None:
        """A request got through to nobody."""
        self.now = now
        self._replied(Reply(number, code, reason), now)

    def arrived(self, number: int, now: float) -> None:
        """A request is at the rendezvous; its answer is still to come, unless it was here first."""
        asked = self._unanswered.get(number)
        if asked is not None:
            asked.arrived_at = now

    def rendezvous_is(self, name: str | None, now: float) -> None:
        """Say which node is rendezvous, None while there is none. Another than before is told everything."""
        if name is None:
            self._known = False
            return
        if self._registered_with not in (None, name):
            self._register_anew(now)
        if not self._known or self._registered_with != name:
            self._alive_at = now
            self._greeted = False
        self._known = True
        self._registered_with = name

    # Sans-I/O.

    def next_message(self, now: float) -> RendezvousRequest | None:
        if self._out and self._known:
            return self._out.popleft()[1]
        return None

    def next_timer(self) -> float | None:
        if not self._known:
            return self._out[0][0] if self._out else None
        return self._alive_at

    def handle_timer(self, now: float) -> None:
        if not self._known:
            while self._out and self._out[0][0] <= now:
                _, request = self._out.popleft()
                self.failed(request.number, Code.NO_RENDEZVOUS, "no node with the rendezvous role is known", now)
        elif now >= self._alive_at:
            self._alive_at = now + self.config.keep_alive
            self._ask_again(now)
            if (self._has_asked or not self._greeted) and not self._unanswered:
                self._greeted = True
                # Any request renews the lease, so this one waits until the digest is certain.
                self._send(KeepAlive(self._next_number(), self.boot, self._digest), now)

    # Inside.

    def _register_anew(self, now: float) -> None:
        """Another rendezvous knows nothing of this node: declare all intents, then ask again what was not answered."""
        unanswered, self._unanswered = self._unanswered, {}
        self._out.clear()
        if self._intents:
            self._declare_everything(now)
        for asked in unanswered.values():
            if asked.intent is not None:
                intent = self._intents.get(asked.intent)
                if intent is None or intent.standing is not IntentState.ASKING or intent.number != asked.request.number:
                    continue
                intent.number = self._next_number()
                request = _declaring(asked.intent[0], intent.number, *asked.intent[1:])
            elif asked.answer is not None or asked.explanation is not None:
                request = msgspec.structs.replace(asked.request, number=self._next_number())
            else:
                continue  # signs of life, and what was withdrawn: the declaration says it
            self._send(request, now, asked.intent, asked.answer, asked.explanation)

    def _ask_again(self, now: float) -> None:
        """A rendezvous that was killed with a request in its hands never answers it, and while an answer is awaited
        there is no sign of life: the node would be forgotten there, and never hear of it."""
        over = now - self.config.answer_patience * self.config.keep_alive
        lost = [
            number
            for number, asked in self._unanswered.items()
            if asked.arrived_at is not None and asked.arrived_at <= over
        ]
        for number in lost:
            asked = self._unanswered.pop(number)
            self.never_answered += 1
            intent = None if asked.intent is None else self._intents.get(asked.intent)
            if asked.intent is not None and intent is not None and intent.number == number:
                intent.number = self._next_number()
                self._send(_declaring(asked.intent[0], intent.number, *asked.intent[1:]), now, asked.intent)
            elif asked.answer is not None:
                asked.answer(Code.UNREACHABLE, NEVER_ANSWERED)
            elif asked.explanation is not None:
                asked.explanation(Reply(number, Code.UNREACHABLE, NEVER_ANSWERED))

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _signed(self, request: Signed) -> Signed:
        credential = None if self._sign is None else self._sign(request)
        if credential is None:
            return request
        return msgspec.structs.replace(request, credential=credential)

    def _send(
        self,
        request: RendezvousRequest,
        now: float,
        intent: Key | None = None,
        answer: Answer | None = None,
        explanation: KnowledgeTaker | None = None,
    ) -> None:
        request = self._signed(request)
        self._unanswered[request.number] = _Unanswered(request, intent, answer, explanation)
        self._has_asked = self._has_asked or not isinstance(request, KeepAlive)
        self._out.append((now + self.config.wait_for_rendezvous, request))

    def _replied(self, reply: Reply, now: float) -> None:
        asked = self._unanswered.pop(reply.number, None)
        if asked is None:
            return
        code = Code(reply.code)
        if asked.intent is not None:
            self._settle(asked.intent, reply.number, code, reply.reason)
        elif asked.answer is not None:
            asked.answer(code, reply.reason)
        elif asked.explanation is not None:
            asked.explanation(reply)
        if code is Code.OUT_OF_STEP and reply.number > self._declared_at:
            # An answer to what was sent before the last declaration says nothing of what that brought.
            self._declare_everything(now)

    def _settle(self, key: Key, number: int, code: Code, reason: str) -> None:
        intent = self._intents.get(key)
        if intent is None or intent.number != number:
            return
        if code is Code.SUCCESS:
            if intent.standing is IntentState.ASKING:
                self._digest ^= declaration_hash(*key)
            intent.standing = IntentState.GRANTED
        else:
            del self._intents[key]
        waiting, intent.waiting = intent.waiting, []
        for answer in waiting:
            answer(code, reason)

    def _take_back(self, key: Key, code: Code, reason: str) -> None:
        intent = self._intents.pop(key, None)
        if intent is None:
            return
        if intent.standing is IntentState.GRANTED:
            self._digest ^= declaration_hash(*key)
        for answer in intent.waiting:
            answer(code, reason)
        if self.on_withdrawn is not None:
            self.on_withdrawn(key, code, reason)

    def _declare_everything(self, now: float) -> None:
        self.redeclared += 1
        # Also those that are not answered yet: what is not declared here is taken for withdrawn.
        entries = [Declaration(role, sid, rid) for role, sid, rid in self._intents]
        parts = max(1, -(-len(entries) // MAX_ENTRIES))
        for part in range(parts):
            # Signed part by part: what arrives together has numbers that grow together.
            some = tuple(map(self._signed, entries[part * MAX_ENTRIES : (part + 1) * MAX_ENTRIES]))
            message = Declare(self._next_number(), self.boot, part, parts, some)
            self._send(message, now)
        self._declared_at = self._numbers


def _declaring(role: DeclaredRole, number: int, sid: bytes, rid: bytes) -> RendezvousRequest:
    match role:
        case DeclaredRole.PUBLISHES:
            return PublishItem(number, sid, rid)
        case DeclaredRole.SUBSCRIBES:
            return SubscribeItem(number, sid, rid)
        case DeclaredRole.WATCHES:
            return SubscribeScope(number, sid)


def _withdrawing(role: DeclaredRole, number: int, sid: bytes, rid: bytes) -> RendezvousRequest:
    match role:
        case DeclaredRole.PUBLISHES:
            return UnpublishItem(number, sid, rid)
        case DeclaredRole.SUBSCRIBES:
            return UnsubscribeItem(number, sid, rid)
        case DeclaredRole.WATCHES:
            return UnsubscribeScope(number, sid)
