"""Tasks that belong to somebody and end with them, and work that is tried until it is done."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar

from psirp_stack.node.api import NotAttachedError, PsirpError
from storage import StorageError
from storage.backoff import BackOff, Waits

STOP_AGAIN = 1.0
BETWEEN_TRIES = BackOff(0.2, longest=10.0)

T = TypeVar("T")


async def until_done(
    work: Callable[[], Awaitable[T]],
    failed: Callable[[str], None],
    wanted: Callable[[], bool] = lambda: True,
    errors: tuple[type[Exception], ...] = (PsirpError, NotAttachedError, StorageError),
) -> T | None:
    """What `work` gives, once the network takes it; None when it is not `wanted` any more."""
    waits = Waits(BETWEEN_TRIES)
    while wanted():
        try:
            return await work()
        except errors as error:
            failed(str(error))
            await asyncio.sleep(waits.next())
    return None


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
