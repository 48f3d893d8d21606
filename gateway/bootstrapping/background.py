"""Tasks that belong to somebody and end with them."""

import asyncio
from collections.abc import Callable, Coroutine


class Background:
    def __init__(self, failed: Callable[[str], None]) -> None:
        """`failed` is told of what nobody foresaw; the other tasks go on."""
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(f"{type(error).__name__}: {error}")
