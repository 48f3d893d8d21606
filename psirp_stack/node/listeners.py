"""Listeners of one application: each has a queue of its own, and a room that is given back when all have handled."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from identifiers import ItemId
from psirp_stack.node.attachment import ReceivedVersion, ScopeChanged, ServingChanged, Skipped, Told

PublicationListener = Callable[[ReceivedVersion], Awaitable[None] | None]
ScopeListener = Callable[[ScopeChanged], Awaitable[None] | None]


@dataclass(slots=True)
class Parcel:
    """A publication on its way to the listeners of one application; its room is given back by the last of them."""

    publication: ReceivedVersion
    waiting: int


class ListenerOwner(Protocol):
    """Whoever hands publications to listeners."""

    def consumed(self, item: ItemId, parcel: Parcel) -> None:
        """A listener has handled one."""

    def listener_failed(self, subscription: "ItemListener", error: Exception) -> None: ...


class ItemListener:
    """One listener's subscription to an item; end it with `Client.unsubscribe`."""

    def __init__(self, item: ItemId, listener: PublicationListener, owner: ListenerOwner) -> None:
        self.item = item
        self.skipped: list[Skipped] = []
        """What this subscription did not get, and why."""
        self._listener = listener
        self._owner = owner
        self._parcels: asyncio.Queue[Parcel] = asyncio.Queue()
        self._task = asyncio.create_task(self._hand_out(), name=f"listener of {item}")

    def offer(self, parcel: Parcel) -> None:
        self._parcels.put_nowait(parcel)

    async def _hand_out(self) -> None:
        while True:
            parcel = await self._parcels.get()
            try:
                answer = self._listener(parcel.publication)
                if inspect.isawaitable(answer):
                    await answer
            except Exception as error:  # a listener's mistake must not end the subscription
                self._owner.listener_failed(self, error)
            finally:
                self._owner.consumed(self.item, parcel)

    async def stop(self) -> None:
        self._task.cancel()
        # Not `await self._task`: who is cancelled here must notice it, and not take it for the task's end.
        await asyncio.wait([self._task])
        while not self._parcels.empty():
            self._owner.consumed(self.item, self._parcels.get_nowait())


@dataclass(slots=True)
class SharedItem:
    """What one application has of one item, shared by its listeners."""

    since: bytes | None
    future_only: bool
    listeners: list[ItemListener] = field(default_factory=list)
    latest: ReceivedVersion | None = None
    serving: ServingChanged | None = None
    asked: "asyncio.Future[Told] | None" = None
    """The node's answer to the subscription."""
