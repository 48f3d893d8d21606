"""Work that is left for many keys: one key's errands one after another, different keys side by side.

What is left is on disk, and whoever runs an errand looks there; so a wake-up says only «look again», and any number
of them while an errand is under way cost one more look. One key that has to wait for the network holds up no other.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from gateway.events import GatewayStoreFailed
from storage.backoff import BackOff, Waits

AT_ONCE = 64
BETWEEN_TRIES = BackOff(0.2, longest=10.0)

K = TypeVar("K", bound=Hashable)


class KeyedWorker(Generic[K]):
    """`run(key)` does what is left for a key and says whether all of it is done; otherwise it is asked again later."""

    def __init__(
        self,
        run: Callable[[K], Awaitable[bool]],
        observer: Callable[[GatewayStoreFailed], None] | None = None,
        at_once: int = AT_ONCE,
    ) -> None:
        self._run = run
        self._observer = observer
        self._gate = asyncio.Semaphore(at_once)
        self._tasks: dict[K, asyncio.Task[None]] = {}
        self._again: set[K] = set()
        self._closed = False

    @property
    def under_way(self) -> int:
        return len(self._tasks)

    def wake(self, key: K) -> None:
        if self._closed:
            return
        self._again.add(key)
        if key not in self._tasks:
            self._tasks[key] = asyncio.create_task(self._work(key))

    async def stop(self) -> None:
        """What is left stays on disk."""
        self._closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()

    async def _work(self, key: K) -> None:
        waits = Waits(BETWEEN_TRIES)
        while key in self._again:
            self._again.discard(key)
            try:
                async with self._gate:
                    done = await self._run(key)
            except Exception as error:  # a full disk may have room again later; whatever it is, it ends no errand
                done = False
                if self._observer is not None:
                    self._observer(GatewayStoreFailed(str(error)))
            if done:
                waits.reset()
                continue
            self._again.add(key)
            await asyncio.sleep(waits.next())
        # Nothing is awaited between the last look at `_again` and here, so no wake-up falls between.
        del self._tasks[key]
