"""Sends the newest state of each of several items, again until the network takes it. Older states are passed over."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from psirp_stack.node.api import NotAttachedError, PsirpError
from storage import StorageError
from storage.backoff import BackOff, Waits

BETWEEN_TRIES = BackOff(0.2, longest=30.0)

Key = TypeVar("Key")


class KeyedOutbox(Generic[Key]):
    """`send` is called for each key that changed, one at a time; what fails does not hold up the others."""

    def __init__(self, send: Callable[[Key], Awaitable[None]], failed: Callable[[Key, str], None]) -> None:
        self._send = send
        self._failed = failed
        self._changed: dict[Key, None] = {}
        self._waits: dict[Key, Waits] = {}
        self._wake = asyncio.Event()

    def put(self, key: Key) -> None:
        self._changed[key] = None
        self._wake.set()

    def forget(self, key: Key) -> None:
        self._changed.pop(key, None)
        self._waits.pop(key, None)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            while self._changed:
                key = next(iter(self._changed))
                del self._changed[key]
                try:
                    await self._send(key)
                except (PsirpError, NotAttachedError, StorageError) as error:
                    self._failed(key, str(error))
                    waits = self._waits.setdefault(key, Waits(BETWEEN_TRIES))
                    loop.call_later(waits.next(), self._again, key)
                else:
                    self._waits.pop(key, None)
            await self._wake.wait()

    def _again(self, key: Key) -> None:
        if key in self._waits:
            self.put(key)
