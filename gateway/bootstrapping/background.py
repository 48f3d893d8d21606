"""Tasks that belong to somebody and end with them."""

import asyncio
from collections.abc import Callable, Coroutine

STOP_AGAIN = 1.0


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
        """Again for what did not notice, or began something else."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=STOP_AGAIN)
            await asyncio.sleep(0)  # so that those which ended are taken from the set

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(f"{type(error).__name__}: {error}")
