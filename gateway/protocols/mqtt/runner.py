"""The broker on an event loop: bytes out, groups of work to disk, queues read on, and seconds that pass.

One group is committed at a time. What comes meanwhile is the next: under load many messages share a commit, and alone
one waits for nobody. Acknowledgements of clients, which nobody waits for, wait a moment for others.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from exchange.model import Appended
from gateway.protocols.mqtt.broker import MqttBroker
from gateway.protocols.mqtt.connection import ConnectionState, MqttConnection
from gateway.protocols.mqtt.messages import MessageAcked, WorkGroup
from gateway.protocols.mqtt.store import BrokerStore
from identifiers import ItemId
from storage import Database, StorageError
from storage.backoff import BackOff, Waits

TICK = 1.0
PATIENCE = 0.05
"""Seconds that acknowledgements wait for a commit that they can share."""
READ_ON_AT = 2_000
"""Messages on their way to disk from which on no more is read from clients."""
LONG_GROUP = 1024 * 1024
"""Bytes from which on a group is written by the store's thread, not on the loop."""
UNTIL_IT_CAN_BE_WRITTEN = BackOff(0.2, longest=10.0)


class Wire(Protocol):
    """A connection's transport, whatever carries it."""

    connection: MqttConnection

    def flush(self) -> None:
        """Send what stands in the connection's `out`, and end it if its state says so."""

    def hold(self, *, reading: bool) -> None:
        """Read from the client, or let it wait."""


class BrokerRunner:
    def __init__(
        self,
        broker: MqttBroker,
        store: BrokerStore,
        database: Database,
        clock: Callable[[], float],
        entered: Callable[[Sequence[tuple[ItemId, Appended]]], None],
        filters_changed: Callable[[set[str]], None],
        failed: Callable[[str], None],
    ) -> None:
        """`entered` is told what is in the log now, `filters_changed` what was asked for or is no more."""
        self.broker = broker
        self.wires: dict[MqttConnection, Wire] = {}
        self._store = store
        self._database = database
        self._clock = clock
        self._entered = entered
        self._filters_changed = filters_changed
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._turn_is_due = False
        self._patience: asyncio.TimerHandle | None = None
        self._committing: asyncio.Task[None] | None = None
        self._ticking: asyncio.Task[None] | None = None
        self._is_holding = False
        self.commits = 0

    def start(self) -> None:
        self.broker.now = self._clock()
        self._ticking = self._loop.create_task(self._tick())

    async def stop(self) -> None:
        """Everything that was taken is written before it returns."""
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)
        while self.broker.has_work or self._committing is not None:
            self._commit()
            if self._committing is not None:
                await self._committing

    def now(self) -> float:
        return self._clock()

    def soon(self) -> None:
        """Something happened: see to it at the end of this turn of the loop."""
        if not self._turn_is_due:
            self._turn_is_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_is_due = False
        broker = self.broker
        while broker.pages:
            session = broker.pages.pop()
            if session.connection is not None:
                broker.read(session, *self._store.page(session))
        if broker.filters_changed:
            changed = set(broker.filters_changed)
            broker.filters_changed.clear()
            self._filters_changed(changed)
        dirty, broker.dirty = broker.dirty, set()
        for line in dirty:
            wire = self.wires.get(line)  # type: ignore[call-overload]
            if wire is not None:
                wire.flush()
        if broker.has_work and self._committing is None:
            if self._can_wait():
                if self._patience is None:
                    self._patience = self._loop.call_later(PATIENCE, self._commit)
            else:
                self._commit()
        holding = broker.waiting > READ_ON_AT
        if holding != self._is_holding:
            self._is_holding = holding
            for wire in self.wires.values():
                wire.hold(reading=not holding)

    def _can_wait(self) -> bool:
        work = self.broker.work
        return not work.after and not work.entering and all(isinstance(op, MessageAcked) for op in work.ops)

    def _commit(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        if self._committing is None and self.broker.has_work:
            self._committing = self._loop.create_task(self._commit_groups())

    async def _commit_groups(self) -> None:
        broker = self.broker
        try:
            while broker.has_work:
                group = broker.take_work()
                entered = await self._written(group) if group.entering or group.ops else []
                broker.now = self._clock()
                for then in group.after:
                    then()
                if entered:
                    self._entered(entered)
                self.soon()
                if self._can_wait():
                    break
        finally:
            self._committing = None
            self.soon()

    async def _written(self, group: WorkGroup) -> list[tuple[ItemId, Appended]]:
        """Nobody is told anything before it is on disk: a store that fails is asked again."""
        waits = Waits(UNTIL_IT_CAN_BE_WRITTEN)
        size = sum(len(one.message.payload) for one in group.entering)
        while True:
            now_ms = int(self._clock() * 1000)

            work = partial(self._store.apply, group, now_ms)
            try:
                self.commits += 1
                if size > LONG_GROUP:
                    return await asyncio.wrap_future(self._database.write(work))
                return await self._database.transact(work)
            except StorageError as error:
                self._failed(str(error))
                await asyncio.sleep(waits.next())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            now = self._clock()
            self.broker.tick(now)
            for connection in list(self.wires):
                if connection.state is not ConnectionState.CLOSED:
                    connection.tick(now)
            self.soon()

    def end_all(self, end: Callable[[MqttConnection], None]) -> None:
        for connection in list(self.wires):
            with contextlib.suppress(OSError):
                end(connection)
        self.soon()
