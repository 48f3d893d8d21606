"""What the applications of a node ask about scopes and items: what is under a scope, and why something does not arrive.

A scope that several applications watch is watched once; who comes later is told what the node knows of it already.
"""

from collections.abc import Callable
from functools import partial

from psirp_stack.control.codes import Code
from psirp_stack.control.messages import (
    Explain,
    Explanation,
    ItemList,
    PublishScope,
    RendezvousRequest,
    Reply,
    ScopePublished,
    ScopeUnpublished,
    UnpublishScope,
)
from psirp_stack.node import attachment
from psirp_stack.node.applications import Application
from psirp_stack.node.attachment import Asked, ScopeChanged, Why
from psirp_stack.node.diagnosis import diagnose
from psirp_stack.node.intents import SubscriptionIntents
from psirp_stack.rendezvous.declarations import WHOLE_SCOPE, DeclaredRole

MAX_CHILDREN = 1_000_000
"""Children of watched scopes that a node remembers for watchers who come later."""


class QuestionRequests:
    """The watchers of scopes at a node, and requests that only pass through it."""

    def __init__(self, intents: SubscriptionIntents) -> None:
        self.children_forgotten = 0
        self._intents = intents
        self._watchers: dict[bytes, list[Application]] = {}
        self._children: dict[bytes, dict[bytes, bool]] = {}
        """By watched scope: its children, and whether each is a scope."""
        self._known = 0

    # Scopes.

    def publish_scope(self, application: Application, request: attachment.LocalPublishScope, now: float) -> None:
        self._pass_on(application, request, lambda n: PublishScope(n, request.sid, request.parent, request.policy), now)

    def unpublish_scope(self, application: Application, request: attachment.LocalUnpublishScope, now: float) -> None:
        self._pass_on(application, request, lambda n: UnpublishScope(n, request.sid, request.parent), now)

    def _pass_on(
        self, application: Application, request: Asked, make: Callable[[int], RendezvousRequest], now: float
    ) -> None:
        self._intents.ask(make, partial(application.done, request), now)

    def watch(self, application: Application, request: attachment.LocalSubscribeScope, now: float) -> None:
        watchers = self._watchers.setdefault(request.sid, [])
        new = application not in watchers
        if new:
            watchers.append(application)
            application.watches.add(request.sid)
            for child, is_scope in self._children.get(request.sid, {}).items():
                application.tell(ScopeChanged(request.sid, child, is_scope, True))

        def answer(code: Code, reason: str) -> None:
            if code is not Code.SUCCESS:
                application.watches.discard(request.sid)
                self._forget(request.sid)
            application.done(request, code, reason)

        self._intents.want(DeclaredRole.WATCHES, request.sid, WHOLE_SCOPE, answer, now)

    def stop_watching(self, application: Application, sid: bytes, now: float) -> None:
        watchers = self._watchers.get(sid, [])
        if application not in watchers:
            return
        watchers.remove(application)
        application.watches.discard(sid)
        if not watchers:
            self._forget(sid)
            self._intents.leave(DeclaredRole.WATCHES, sid, WHOLE_SCOPE, now)

    def scope_changed(self, message: ScopePublished | ScopeUnpublished) -> None:
        watchers = self._watchers.get(message.parent)
        if watchers is None:
            return
        published = isinstance(message, ScopePublished)
        children = self._children.setdefault(message.parent, {})
        if published and children.get(message.child) is message.is_scope:
            return  # said again after a restart of the rendezvous
        if not published and children.pop(message.child, None) is not None:
            self._known -= 1
        elif published and self._known < MAX_CHILDREN:
            self._known += message.child not in children
            children[message.child] = message.is_scope
        elif published:
            self.children_forgotten += 1
        told = ScopeChanged(message.parent, message.child, message.is_scope, published)
        for application in watchers:
            application.tell(told)

    def _forget(self, sid: bytes) -> None:
        self._watchers.pop(sid, None)
        self._known -= len(self._children.pop(sid, ()))

    # Why does nothing arrive?

    def explain(self, application: Application, request: attachment.AskExplanation, now: float) -> None:
        def answered(answer: Explanation | ItemList | Reply) -> None:
            if isinstance(answer, Reply):
                application.done(request, Code(answer.code), answer.reason)
            elif isinstance(answer, Explanation):
                application.tell(_why(request.number, answer))

        self._intents.explain(lambda number: Explain(number, request.sid, request.rid), answered, now)


def _why(number: int, known: Explanation) -> Why:
    code, reason = diagnose(known)
    return Why(
        number,
        code,
        reason,
        known.scope_exists,
        known.item_exists,
        known.publishers,
        known.subscribers,
        known.refusals,
        known.unserved,
    )
