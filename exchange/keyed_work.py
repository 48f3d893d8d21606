"""Work that is left for many keys: one key's work in order, different keys side by side.

What is left is on disk, and whoever works looks there; so a wake-up says only «look again», and any number of them
while a key is worked on cost one more look. One key that has to wait holds up no other, until `at_once` of them are at
work.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

AT_ONCE = 64
FIRST_WAIT = 0.2
LONGEST_WAIT = 10.0

K = TypeVar("K", bound=Hashable)


class KeyedWork(Generic[K]):
    """`run(key)` does what is left for a key and says whether all of it is done; otherwise it is asked again later."""

    def __init__(
        self,
        run: Callable[[K], Awaitable[bool]],
        stumbled: Callable[[str], None] | None = None,
        at_once: int = AT_ONCE,
        first_wait: float = FIRST_WAIT,
        longest_wait: float = LONGEST_WAIT,
    ) -> None:
        self._run = run
        self._stumbled = stumbled
        self._gate = asyncio.Semaphore(at_once)
        self._first_wait = first_wait
        self._longest_wait = longest_wait
        self._tasks: dict[K, asyncio.Task[None]] = {}
        self._again: set[K] = set()
        self._closed = False

    @property
    def under_way(self) -> int:
        return len(self._tasks)

    def is_woken(self, key: K) -> bool:
        """Whether a key that is worked on will be looked at again at once."""
        return key in self._again

    def is_at_work(self, key: K) -> bool:
        return key in self._tasks

    def wake(self, key: K) -> None:
        if self._closed:
            return
        self._again.add(key)
        if key not in self._tasks:
            self._tasks[key] = asyncio.create_task(self._work(key))

    async def end(self, key: K) -> None:
        """Stop what is under way for a key; what is left of it stays where it is."""
        self._again.discard(key)
        task = self._tasks.get(key)
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            await asyncio.wait([task])
            self._tasks.pop(key, None)  # one that was cancelled before it began has not done so itself

    async def stop(self) -> None:
        """What is left stays on disk."""
        self._closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()

    async def _work(self, key: K) -> None:
        wait = self._first_wait
        try:
            while key in self._again:
                self._again.discard(key)
                try:
                    async with self._gate:
                        done = await self._run(key)
                except Exception as error:  # a full disk may have room again later; whatever it is, it ends no work
                    done = False
                    if self._stumbled is not None:
                        self._stumbled(f"{type(error).__name__}: {error}")
                if done:
                    wait = self._first_wait
                    continue
                self._again.add(key)
                await asyncio.sleep(wait)
                wait = min(2 * wait, self._longest_wait)
        finally:
            # Nothing is awaited between the last look at `_again` and here, so no wake-up falls between.
            self._tasks.pop(key, None)
