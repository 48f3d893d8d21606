"""Keeps subscriptions alive: asks, renews before the lease ends, and takes up its wishes again after a restart."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from push_hub.client.requests import ClientError, discover_topic, send_request
from push_hub.client.subscription_store import ClientSubscriptionStore
from push_hub.client.subscriptions import (
    ClientSubscription,
    SubscriptionState,
    asked,
    new_subscription,
    new_token,
    renewing,
)
from push_hub.intake.ports import Fetch, reason_of

OLD_HUB_STATUS = 400
"""What a hub of 0.3 says to a request without `hub.verify`."""


@dataclass(frozen=True, slots=True)
class SubscriberConfig:
    callback_base: str
    """Where `callback_app` is reachable from outside; the token is appended."""
    lease: int | None = 10 * 86_400
    tick: float = 5.0
    batch: int = 100
    at_once: int = 10
    secret_over_http: bool = False
    """S4 sends a secret over https only. In the clear it still keeps out everybody who does not see the request."""
    patience: int = 3
    """After so many requests that were never confirmed, the other hubs of the page are tried."""


class Subscriber:
    def __init__(
        self, subscriptions: ClientSubscriptionStore, fetch: Fetch, config: SubscriberConfig, clock: Callable[[], float]
    ) -> None:
        self._subscriptions = subscriptions
        self._fetch = fetch
        self._config = config
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self.last_error: str | None = None
        """Why the last look at what is due broke off, if it did."""

    async def start(self) -> None:
        self._task = asyncio.create_task(self._renew_forever())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def subscribe(self, url: str) -> ClientSubscription:
        """Discover the topic of a page and ask its hubs, one after the other until one takes the request.

        One is enough: a publisher tells every hub it names. The wish is on disk before the hub hears of it.
        """
        return await self._subscribe_by_page(url, avoid=None)

    async def subscribe_at(self, hub: str, topic: str, page: str = "") -> ClientSubscription:
        subscription = self._subscriptions.by_topic(topic, hub)
        if subscription is None or subscription.state in (
            SubscriptionState.GONE,
            SubscriptionState.DENIED,
            SubscriptionState.LEAVING,
        ):
            subscription = new_subscription(
                topic, hub, self._clock(), page, secret_over_http=self._config.secret_over_http
            )
        return await self._ask(
            replace(subscription, state=SubscriptionState.ASKED, page=page or subscription.page), "subscribe"
        )

    async def unsubscribe(self, subscription: ClientSubscription) -> ClientSubscription:
        """Asked again until the hub confirms it or the lease is over; deliveries until then are still taken."""
        return await self._ask(replace(subscription, state=SubscriptionState.LEAVING, next_token=None), "unsubscribe")

    async def renew_due(self) -> int:
        """Ask again for every wish whose time has come; a hub that fails or is slow does not hold up the others."""
        due = self._subscriptions.due(self._clock(), self._config.batch)
        room = asyncio.Semaphore(self._config.at_once)

        async def one(subscription: ClientSubscription) -> None:
            async with room:
                with suppress(ClientError):  # the reason and the next try are in the wish
                    await self._take_up(subscription)

        await asyncio.gather(*map(one, due))
        return len(due)

    async def _take_up(self, subscription: ClientSubscription) -> None:
        if subscription.state is SubscriptionState.LEAVING:
            if subscription.lease_until <= self._clock():
                await self._save(replace(subscription, state=SubscriptionState.GONE, reason="the lease ended"))
            else:
                await self._ask(subscription, "unsubscribe")
            return
        if subscription.page and await self._moved(subscription):
            return
        await self._ask(
            renewing(subscription) if subscription.state is SubscriptionState.ACTIVE else subscription, "subscribe"
        )

    async def _moved(self, subscription: ClientSubscription) -> bool:
        """P6: at a renewal, look whether the page names another topic or other hubs now, and go there."""
        unanswered = subscription.state is SubscriptionState.ASKED and subscription.attempts >= self._config.patience
        if subscription.state is not SubscriptionState.ACTIVE and not unanswered:
            return False
        try:
            found = await discover_topic(self._fetch, subscription.page)
            if found.topic == subscription.topic and subscription.hub in found.hubs and not unanswered:
                return False
            await self._subscribe_by_page(subscription.page, avoid=subscription.hub if unanswered else None)
        except ClientError:
            return False  # the page or its new hubs give trouble: the old way is better than none
        if subscription.lease_until > self._clock():
            await self.unsubscribe(subscription)
        else:
            await self._save(replace(subscription, state=SubscriptionState.GONE, reason="another hub was found"))
        return True

    async def _subscribe_by_page(self, url: str, avoid: str | None) -> ClientSubscription:
        found = await discover_topic(self._fetch, url)
        failures: list[str] = []
        for hub in found.hubs:
            if hub == avoid:
                continue
            try:
                return await self.subscribe_at(hub, found.topic, url)
            except ClientError as error:
                failures.append(str(error))
                await self._drop_unless_running(hub, found.topic, str(error))
        raise ClientError("; ".join(failures) or f"{url} names no other hub")

    async def _drop_unless_running(self, hub: str, topic: str, reason: str) -> None:
        subscription = self._subscriptions.by_topic(topic, hub)
        if subscription is not None and subscription.lease_until <= self._clock():
            await self._save(replace(subscription, state=SubscriptionState.GONE, reason=reason))

    async def _ask(self, subscription: ClientSubscription, mode: str) -> ClientSubscription:
        try:
            return await self._send(subscription, mode)
        except ClientError as error:
            if error.status != OLD_HUB_STATUS or subscription.verify_token is not None:
                raise
        # Perhaps a hub that knows 0.3 only, where `hub.verify` must be given.
        try:
            return await self._send(replace(subscription, verify_token=new_token()), mode)
        except ClientError:
            await self._save(
                replace(self._subscriptions.by_token(subscription.token) or subscription, verify_token=None)
            )
            raise

    async def _send(self, subscription: ClientSubscription, mode: str) -> ClientSubscription:
        # Saved before it is sent: the hub's intent check may come before its answer does.
        subscription = asked(subscription, self._clock(), f"asked the hub to {mode}")
        await self._save(subscription)
        callback = f"{self._config.callback_base.rstrip('/')}/{subscription.next_token or subscription.token}"
        try:
            await send_request(
                self._fetch,
                subscription.hub,
                mode,
                subscription.topic,
                callback,
                subscription.secret,
                self._config.lease,
                subscription.verify_token,
                secret_over_http=self._config.secret_over_http,
            )
        except ClientError as error:
            current = self._subscriptions.by_token(subscription.token) or subscription
            await self._save(replace(current, reason=str(error)))
            raise
        return self._subscriptions.by_token(subscription.token) or subscription

    async def _save(self, subscription: ClientSubscription) -> None:
        await asyncio.wrap_future(self._subscriptions.save(subscription))

    async def _renew_forever(self) -> None:
        while True:
            try:
                await self.renew_due()
            except Exception as error:  # a store that cannot be written now may be writable at the next tick
                self.last_error = reason_of(error)
            else:
                self.last_error = None
            await asyncio.sleep(self._config.tick)
