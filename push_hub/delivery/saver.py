"""Gets batches to disk, one at a time and in order. What happens while the disk is busy goes into the next one."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from push_hub.delivery.batch import Batch
from push_hub.delivery.log import PublicationLog
from push_hub.delivery.queue import DeliveryQueue
from storage import StorageError

SAVE_RETRY = 1.0

Clock = Callable[[], float]


class Saver:
    """`saved` is told about each batch on disk, `failed` why one is not yet there. Both run on the loop."""

    def __init__(
        self,
        log: PublicationLog,
        queue: DeliveryQueue,
        clock: Clock,
        saved: Callable[[Batch], None],
        failed: Callable[[str], None],
        company: float,
    ) -> None:
        """`company`: seconds that positions alone wait."""
        self._company = company
        self._log = log
        self._queue = queue
        self._clock = clock
        self._saved = saved
        self._failed = failed
        self._batch: Batch | None = None
        self._under_way = False
        self._done: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Nothing is being written and nothing has to be."""
        return not self._under_way and self._batch is None and not self._queue.batch

    def flush(self, *, everything: bool = False) -> None:
        """Start writing, if there is enough to write (or, if asked so, anything) and nothing is being written."""
        if self._under_way:
            return
        if self._batch is None:
            if not everything and not self._queue.is_pressing:
                self._wait_for_company()
                return
            if not self._queue.batch:
                return
            self._batch = self._queue.take_batch()
        batch = self._batch
        self._under_way = True
        loop = asyncio.get_running_loop()
        try:
            done = self._log.save(batch, self._clock())
        except StorageError as error:
            self._later(loop, error)
            return
        self._done = done
        done.add_done_callback(lambda future: self._ended(batch, future))

    async def settled(self) -> None:
        """What has happened until now is on disk, or the store has trouble."""
        for _ in range(2):  # what is under way, and what came since it began
            self.flush(everything=True)
            if self._done is None or self._done.done():
                return
            with suppress(StorageError):
                await asyncio.shield(self._done)

    def _wait_for_company(self) -> None:
        if self._queue.wants_saving and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._company, self._waited)

    def _waited(self) -> None:
        self._timer = None
        self.flush(everything=True)

    def _ended(self, batch: Batch, done: "asyncio.Future[None]") -> None:
        error = done.exception()
        if error is not None:
            self._later(asyncio.get_running_loop(), error)
            return
        self._under_way = False
        self._batch = None
        self._queue.saved(batch)
        self._saved(batch)

    def _later(self, loop: asyncio.AbstractEventLoop, error: BaseException) -> None:
        """The batch is kept and tried again; meanwhile deliveries stop when the window is full."""
        self._failed(str(error))
        loop.call_later(SAVE_RETRY, self._again)

    def _again(self) -> None:
        self._under_way = False
        self.flush()


def call_on(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: object) -> None:
    """From the writer's thread to the loop; the loop may be closed by then."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *arguments)
