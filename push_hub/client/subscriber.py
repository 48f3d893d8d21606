"""Keeps subscriptions alive: asks, renews before the lease ends, and takes up its wishes again after a restart."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from push_hub.client.requests import ClientError, discover_topic, send_request
from push_hub.client.wishes import State, Wish, WishStore, asked, new_wish
from push_hub.intake.ports import Fetch


@dataclass(frozen=True, slots=True)
class SubscriberConfig:
    callback_base: str
    """Where `callback_app` is reachable from outside; the token is appended."""
    lease: int | None = 10 * 86_400
    tick: float = 5.0
    batch: int = 100


class Subscriber:
    def __init__(self, wishes: WishStore, fetch: Fetch, config: SubscriberConfig, clock: Callable[[], float]) -> None:
        self._wishes = wishes
        self._fetch = fetch
        self._config = config
        self._clock = clock
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._renew_forever())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def subscribe(self, url: str) -> Wish:
        """Discover the topic of a page and ask its first hub. The wish is on disk before the hub hears of it."""
        found = await discover_topic(self._fetch, url)
        return await self.subscribe_at(found.hubs[0], found.topic)

    async def subscribe_at(self, hub: str, topic: str) -> Wish:
        wish = self._wishes.by_topic(topic, hub)
        if wish is None or wish.state in (State.GONE, State.DENIED, State.LEAVING):
            wish = new_wish(topic, hub, self._clock())
        return await self._ask(replace(wish, state=State.ASKED), "subscribe")

    async def unsubscribe(self, wish: Wish) -> Wish:
        return await self._ask(replace(wish, state=State.LEAVING), "unsubscribe")

    async def renew_due(self) -> int:
        """Ask again for every wish whose time has come; a hub that fails does not hold up the others."""
        due = self._wishes.due(self._clock(), self._config.batch)
        for wish in due:
            if wish.state is State.LEAVING and wish.lease_until <= self._clock():
                ended = replace(wish, state=State.GONE, reason="the lease ended")
                await asyncio.wrap_future(self._wishes.save(ended))
                continue
            try:
                await self._ask(wish, "unsubscribe" if wish.state is State.LEAVING else "subscribe")
            except ClientError:
                continue  # the reason and the next try are in the wish
        return len(due)

    async def _ask(self, wish: Wish, mode: str) -> Wish:
        # Saved before it is sent: the hub's intent check may come before its answer does.
        wish = asked(wish, self._clock(), f"asked the hub to {mode}")
        await asyncio.wrap_future(self._wishes.save(wish))
        callback = f"{self._config.callback_base.rstrip('/')}/{wish.token}"
        try:
            await send_request(self._fetch, wish.hub, mode, wish.topic, callback, wish.secret, self._config.lease)
        except ClientError as error:
            current = self._wishes.by_token(wish.token) or wish
            await asyncio.wrap_future(self._wishes.save(replace(current, reason=str(error))))
            raise
        return self._wishes.by_token(wish.token) or wish

    async def _renew_forever(self) -> None:
        while True:
            await self.renew_due()
            await asyncio.sleep(self._config.tick)
