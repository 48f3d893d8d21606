"""A few threads for work that would hold up the event loop: hashing, unpacking, comparing, reading large rows."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

WORTH_A_THREAD = 16 * 1024
"""Work on fewer bytes than this is done before a thread would have begun: hashing 16 kB takes 10 microseconds, the way
to a thread and back 100 or more."""

T = TypeVar("T")
P = ParamSpec("P")


class Threads:
    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="intake")

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: work(*args, **kwargs))

    async def run_on(self, data: bytes, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`run`, for work that grows with `data` and with nothing else."""
        if len(data) < WORTH_A_THREAD:
            return work(*args, **kwargs)
        return await self.run(work, *args, **kwargs)

    def close(self) -> None:
        """Waits for what runs; each piece of work is bounded by the size of a document."""
        self._pool.shutdown(cancel_futures=True)
