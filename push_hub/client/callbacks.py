"""The callback side of a subscriber, as an aiohttp application to mount anywhere: `PREFIX/TOKEN`."""

import asyncio
import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from push_hub.client.aggregated import sources_of
from push_hub.client.subscription_store import ClientSubscriptionStore
from push_hub.client.subscriptions import ClientSubscription, SubscriptionState, denied, takes_deliveries, verified

MAX_BODY = 8 * 1024 * 1024
_CHALLENGE = re.compile(r"[+\-./0-9=A-Z_a-z]{1,1024}")
_METHODS = {"sha1": hashlib.sha1, "sha256": hashlib.sha256, "sha384": hashlib.sha384, "sha512": hashlib.sha512}
_SAFE = {"X-Content-Type-Options": "nosniff"}


@dataclass(frozen=True, slots=True)
class ReceivedDelivery:
    """What a hub brought for a wish, signature checked."""

    topic: str
    content_type: str
    body: bytes
    sources: tuple[str, ...] = ()
    """S13: the topics a 0.3 hub put together in this one delivery; empty when it is about `topic` alone."""
    page: str = ""
    """Where the topic was found, when it was looked for."""


def signature_fits(header: str | None, secret: bytes, body: bytes) -> bool:
    """S10, S11. Unsigned is as bad as wrongly signed; the comparison takes the same time for both."""
    method, _, claimed = (header or "").strip().partition("=")
    digest = _METHODS.get(method.lower())
    if digest is None:
        return False
    return hmac.compare_digest(
        hmac.new(secret, body, digest).hexdigest().encode(), claimed.lower().encode("utf-8", "surrogateescape")
    )


def callback_app(
    subscriptions: ClientSubscriptionStore,
    receive: Callable[[ReceivedDelivery], Awaitable[None]],
    clock: Callable[[], float],
    changed: Callable[[ClientSubscription], None] | None = None,
    badly_signed: Callable[[ClientSubscription], None] | None = None,
    confirming: Callable[[ClientSubscription], Awaitable[None]] | None = None,
) -> web.Application:
    """Answers intent checks and takes deliveries. `receive` should be quick: the hub waits for it.

    `changed` is told of wishes that a hub confirmed, ended or denied, `badly_signed` of deliveries that were dropped.
    `confirming` is waited for before a hub's check of a subscription is written down and answered.
    """

    async def save(subscription: ClientSubscription) -> None:
        await asyncio.wrap_future(subscriptions.save(subscription))
        if changed is not None:
            changed(subscription)

    def subscription_of(request: web.Request) -> ClientSubscription:
        subscription = subscriptions.by_token(request.match_info["token"])
        if subscription is None:
            raise web.HTTPNotFound(text="no such subscription\n", headers=_SAFE)
        return subscription

    async def intent(request: web.Request) -> web.Response:
        subscription = subscription_of(request)
        mode, topic = request.query.get("hub.mode", ""), request.query.get("hub.topic", "")
        if mode == "denied":
            after = denied(subscription, topic, request.query.get("hub.reason", "no reason given"))
            if after is None:
                raise web.HTTPNotFound(text="nothing of that kind to deny\n", headers=_SAFE)
            await save(after)
            return web.Response(text="", headers=_SAFE)
        challenge = request.query.get("hub.challenge", "")
        after = verified(
            subscription,
            mode,
            topic,
            request.query.get("hub.lease_seconds"),
            clock(),
            token=request.match_info["token"],
            verify_token=request.query.get("hub.verify_token"),
        )
        if after is None or _CHALLENGE.fullmatch(challenge) is None:
            raise web.HTTPNotFound(text="nothing of that kind was asked for\n", headers=_SAFE)
        if confirming is not None and after.state is SubscriptionState.ACTIVE:
            await confirming(after)
        await save(after)
        return web.Response(text=challenge, content_type="text/plain", headers=_SAFE)

    async def delivery(request: web.Request) -> web.Response:
        subscription = subscription_of(request)
        if (
            subscription.state in (SubscriptionState.GONE, SubscriptionState.DENIED)
            or request.match_info["token"] == subscription.retired
        ):
            raise web.HTTPGone(text="this subscription has ended\n", headers=_SAFE)
        # The bound of the application that this one is mounted in may be another.
        body = await request.clone(client_max_size=MAX_BODY).read()
        if not takes_deliveries(subscription, clock()):
            raise web.HTTPNotFound(text="this subscription is not active\n", headers=_SAFE)
        if subscription.secret is None or signature_fits(
            request.headers.get("X-Hub-Signature"), subscription.secret, body
        ):
            content_type = request.headers.get("Content-Type", "")
            await receive(
                ReceivedDelivery(
                    subscription.topic, content_type, body, sources_of(content_type, body), subscription.page
                )
            )
        elif badly_signed is not None:
            badly_signed(subscription)
        # A bad signature gets the same answer: who guesses secrets learns nothing.
        return web.Response(status=202, headers=_SAFE)

    app = web.Application(client_max_size=MAX_BODY)
    app.router.add_get("/{token}", intent)
    app.router.add_post("/{token}", delivery)
    return app
