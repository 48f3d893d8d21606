"""Subscriptions that the rules no longer allow are ended, and their callbacks told why."""

from collections.abc import Callable

from gateway.access.guard import AccessGuard
from gateway.access.rules import AccessRequest, Act, Effect
from push_hub.hub import Hub
from storage.clock import steady

PAGE = 200


async def end_forbidden(hub: Hub, guard: AccessGuard, clock: Callable[[], float] = steady) -> int:
    """Look at all of them, a page at a time; says how many were ended."""
    rules = guard.rules
    if not rules.rules and rules.default is Effect.ALLOW:
        return 0
    ended = 0
    after = ""
    while topics := hub.subscriptions.topics(after, PAGE):
        after = topics[-1].topic
        for topic in (change.topic for change in topics):
            if hub.canary is not None and topic == hub.canary.topic:
                continue
            last = 0
            while page := hub.subscriptions.page(topic, last, PAGE, clock()):
                last = page[-1].id
                for one in page:
                    reason = rules.refusal(AccessRequest(Act.SUBSCRIBE, topic, callback=one.callback))
                    if reason is not None:
                        await hub.deny(topic, one.callback, reason)
                        ended += 1
    return ended
