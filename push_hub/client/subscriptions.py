"""What a subscriber wants and has: one wish for each subscription, its states, and what changes them.

    ASKED   --verified subscribe-->   ACTIVE  --renewal due-->  ASKED (with its lease still running)
    ASKED   --denied-->  DENIED       ACTIVE  --unsubscribe-->  LEAVING  --verified unsubscribe-->  GONE

Sans-I/O: the functions take the time as an argument; `ClientSubscriptionStore` writes what they return.
"""

import secrets
from dataclasses import dataclass, replace
from enum import StrEnum

RENEW_AT_FRACTION = 0.8
"""Renew when this much of the lease has passed: leaves a fifth of it for retries."""
MAX_LEASE = 366 * 86_400
ASK_AGAIN_BASE = 60.0
ASK_AGAIN_CAP = 6 * 3600.0
ASK_AGAIN_OF_LEASE = 0.25
"""Of the time until a lease ends, or since it ended, before a renewal that failed is tried again: some are short."""
ASK_AGAIN_LEAST = 1.0
TOKEN_BYTES = 24
SECRET_BYTES = 32


class SubscriptionState(StrEnum):
    ASKED = "asked"
    ACTIVE = "active"
    LEAVING = "leaving"
    DENIED = "denied"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class ClientSubscription:
    """`token` is the unguessable end of the callback's path; `reason` the last thing that happened, in words.

    A renewal goes out with `next_token`; verified, it becomes the token, and the old one is `retired`: deliveries
    there are answered 410, which ends them at the hub. `page` is where topic and hub were found, so that they can
    be looked up again. `verify_token` is set for hubs that speak 0.3 only.
    """

    token: str
    topic: str
    hub: str
    secret: bytes | None
    state: SubscriptionState
    lease_until: float = 0.0
    renew_at: float = 0.0
    attempts: int = 0
    reason: str = ""
    next_token: str | None = None
    retired: str | None = None
    page: str = ""
    verify_token: str | None = None


def new_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


def new_subscription(
    topic: str, hub: str, now: float, page: str = "", *, secret_over_http: bool = False
) -> ClientSubscription:
    """S3, S4: callback and secret are random and its own; the secret only travels over https, unless told."""
    safe = secret_over_http or hub.lower().startswith("https:")
    secret = secrets.token_hex(SECRET_BYTES).encode() if safe else None
    return ClientSubscription(
        new_token(), topic, hub, secret, SubscriptionState.ASKED, renew_at=now + ASK_AGAIN_BASE, page=page
    )


def renewing(subscription: ClientSubscription) -> ClientSubscription:
    """S3: a renewal gets a callback of its own."""
    return subscription if subscription.next_token is not None else replace(subscription, next_token=new_token())


def asked(subscription: ClientSubscription, now: float, reason: str) -> ClientSubscription:
    """A request went out (or failed): when no verification comes, ask again, ever less often."""
    attempts = subscription.attempts + 1
    delay = min(ASK_AGAIN_CAP, ASK_AGAIN_BASE * 2.0 ** min(attempts - 1, 30))
    if subscription.lease_until:
        # Towards its end ever more often, and ever less often after it: nothing is pushed here meanwhile.
        delay = min(delay, max(ASK_AGAIN_LEAST, ASK_AGAIN_OF_LEASE * abs(subscription.lease_until - now)))
    return replace(subscription, attempts=attempts, renew_at=now + delay, reason=reason)


def verified(
    subscription: ClientSubscription,
    mode: str,
    topic: str,
    lease_seconds: str | None,
    now: float,
    *,
    token: str | None = None,
    verify_token: str | None = None,
) -> ClientSubscription | None:
    """S5, S7: the wish after this intent check at `token`, or None when nothing like it is wanted."""
    if topic != subscription.topic or verify_token != subscription.verify_token:
        return None
    if token is not None and token not in (subscription.token, subscription.next_token):
        return None
    if mode == "unsubscribe" and subscription.state is SubscriptionState.LEAVING:
        return replace(
            subscription,
            state=SubscriptionState.GONE,
            lease_until=now,
            renew_at=now,
            reason="unsubscribed",
            next_token=None,
        )
    if mode != "subscribe" or subscription.state not in (SubscriptionState.ASKED, SubscriptionState.ACTIVE):
        return None
    if (
        lease_seconds is None
        or not (lease_seconds.isascii() and lease_seconds.isdigit())
        or not int(lease_seconds[:10])
    ):
        return None
    lease = min(int(lease_seconds[:10]), MAX_LEASE)
    if token is not None and token == subscription.next_token:
        subscription = replace(subscription, token=token, next_token=None, retired=subscription.token)
    return replace(
        subscription,
        state=SubscriptionState.ACTIVE,
        lease_until=now + lease,
        renew_at=now + lease * RENEW_AT_FRACTION,
        attempts=0,
        reason=f"verified, for {lease} seconds",
    )


def denied(subscription: ClientSubscription, topic: str, reason: str) -> ClientSubscription | None:
    """S8: the subscription is gone; asking again later is the owner's decision."""
    if topic != subscription.topic or subscription.state in (SubscriptionState.GONE, SubscriptionState.DENIED):
        return None
    return replace(subscription, state=SubscriptionState.DENIED, lease_until=0.0, reason=f"denied: {reason[:200]}")


def takes_deliveries(subscription: ClientSubscription, now: float) -> bool:
    """While a lease runs, also when it is being renewed or ended."""
    return (
        subscription.state in (SubscriptionState.ASKED, SubscriptionState.ACTIVE, SubscriptionState.LEAVING)
        and subscription.lease_until > now
    )
