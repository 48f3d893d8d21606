"""kill -9 one process of two gateways and the network between them, again and again, while they are at work."""

import asyncio
import random
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from perf.bench.family import Ticker
from perf.loopback import LoopbackClient
from perf.processes import Part, ProcessFailedError
from push_hub.delivery import QueueLimits
from trials.crash.gateway_process import GatewayProcesses
from trials.crash.gateway_world import Callback, GatewayCounts, GatewaySize, GatewayWorld
from trials.crash.stock_hub import read_counts, read_taken

PAUSE = 0.25
"""Between two publications of one topic, on average."""
LONGEST_LIFE = 1.5
LONGEST_AWAY = 0.6
WHILE_STARTING = 0.2
"""Of the kills hit a process that is not up yet."""
LONGEST_START = 0.8
LAST_WORD_PATIENCE = 30.0
QUIET_PATIENCE = 90.0
CHECK_EVERY = 5
"""Kills. What does not arrive must not be helped by the next one: a process that starts asks for everything."""
SUBSCRIBE_PATIENCE = 60.0
LONGEST_STAY = 4.0
LONGEST_ABSENCE = 2.0
"""Of a subscriber who comes and goes."""
STEP = 0.2


@dataclass(frozen=True, slots=True)
class GatewayReport:
    seed: int
    kills: int
    seconds: float
    killed: dict[str, int]
    counts: GatewayCounts
    callbacks: int
    chunk: int
    most_duplicates_after_a_kill: int
    settled_after: float
    """Seconds from the end of the publishing until everybody had everything."""
    stock_hub: dict[str, int]
    """What the hub of the topics that are to be had by bootstrapping counted itself."""
    lost: int
    problems: dict[str, int]
    examples: list[str]

    @property
    def passed(self) -> bool:
        return not self.problems


class GatewayCrashTest:
    def __init__(self, kills: int, seed: int, size: GatewaySize, tick: Ticker) -> None:
        self._kills = kills
        self._seed = seed
        self._size = size
        self._tick = tick
        self._rng = random.Random(seed)  # noqa: S311 - a test that can be repeated
        self._killed: Counter[str] = Counter()
        self._settled_after = 0.0
        self._stock_hub: dict[str, int] = {}
        self._publish = asyncio.Event()
        self._publish.set()

    async def run(self) -> GatewayReport:
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="psph-crash-") as folder:
            parts = GatewayProcesses(Path(folder))
            async with GatewayWorld(self._size, parts.hubs, parts.stock_hub) as world:
                try:
                    await self._all(parts, world)
                except ProcessFailedError as error:
                    world.problem("process failed", str(error))
                finally:
                    await parts.end()
                self._stock_hub = read_counts(parts.stock_data)
                for part in parts.all.values():
                    for complaint in part.complaints:
                        world.problem(f"{part.name} complained", complaint)
                return self._report(world, time.monotonic() - started)

    async def _all(self, parts: GatewayProcesses, world: GatewayWorld) -> None:
        await parts.start()
        await self._subscribed(world)
        publishers = [asyncio.create_task(self._publishing(world, topic)) for topic in range(len(world.home))]
        enough = asyncio.Event()
        visitors = [
            asyncio.create_task(self._coming_and_going(world, callback, enough))
            for callback in world.callbacks.values()
            if callback.coming
        ]
        try:
            for number in range(1, self._kills + 1):
                await self._kill_one(parts, world)
                self._tick(f"{world.counts.crossed} crossed, {world.counts.bootstrapped} bootstrapped")
                if number % CHECK_EVERY == 0 and not await self._caught_up(world):
                    break
            enough.set()
            _, away = await asyncio.wait(visitors, timeout=QUIET_PATIENCE)
            if away:
                world.problem("lost", f"{len(away)} subscribers cannot come back")
            for visitor in set(visitors) - away:
                visitor.result()
        finally:
            for task in (*publishers, *visitors):
                task.cancel()
            await asyncio.gather(*publishers, *visitors, return_exceptions=True)
        await self._last_words(world)
        await self._quiet(world)
        await parts.stop()
        world.count_passed_over(read_taken(parts.stock_data))

    async def _subscribed(self, world: GatewayWorld) -> None:
        """Everybody subscribes, and gets a first document: what follows begins from a state that works."""
        deadline = time.monotonic() + SUBSCRIBE_PATIENCE
        await asyncio.gather(*(world.subscribe(callback) for callback in world.callbacks.values() if callback.wanted))
        for topic in range(len(world.home)):
            client = LoopbackClient(world.publish_at(topic))
            try:
                await world.publish(client, topic)
            finally:
                client.close()
        while world.behind():
            if time.monotonic() > deadline:
                raise ProcessFailedError(_say_behind(world, "before the first kill"))
            await asyncio.sleep(STEP)

    async def _coming_and_going(self, world: GatewayWorld, callback: Callback, enough: asyncio.Event) -> None:
        """In the end it is there."""
        rng = random.Random(f"{self._seed} {callback.path}")  # noqa: S311 - a test that can be repeated
        while True:
            await world.come(callback)
            with suppress(TimeoutError):
                async with asyncio.timeout(rng.random() * LONGEST_STAY):
                    await enough.wait()
                return
            await world.go(callback)
            await asyncio.sleep(rng.random() * LONGEST_ABSENCE)

    async def _publishing(self, world: GatewayWorld, topic: int) -> None:
        rng = random.Random(f"{self._seed} {topic}")  # noqa: S311 - a test that can be repeated
        client = LoopbackClient(world.publish_at(topic))
        try:
            while True:
                await self._publish.wait()
                with suppress(ConnectionError):
                    await world.publish(client, topic)
                await asyncio.sleep(rng.random() * 2 * PAUSE)
        finally:
            client.close()

    async def _kill_one(self, parts: GatewayProcesses, world: GatewayWorld) -> None:
        part = parts.all[self._rng.choice(sorted(parts.all))]
        await asyncio.sleep(self._rng.random() * LONGEST_LIFE)
        await self._kill(part, world)
        if self._rng.random() < WHILE_STARTING:
            await part.start()
            await asyncio.sleep(self._rng.random() * LONGEST_START)
            await self._kill(part, world, counted=False)
        await asyncio.sleep(self._rng.random() ** 2 * LONGEST_AWAY)
        await part.start()
        await part.ready()

    async def _kill(self, part: Part, world: GatewayWorld, *, counted: bool = True) -> None:
        await part.kill()
        world.killed()
        self._killed[part.name if counted else f"{part.name} while starting"] += 1

    async def _caught_up(self, world: GatewayWorld) -> bool:
        """Whether everybody gets what is promised, while nothing is killed, and nothing published that would hide what
        is missing."""
        self._publish.clear()
        deadline = time.monotonic() + QUIET_PATIENCE
        while behind := world.behind():
            if time.monotonic() > deadline:
                for callback in behind:
                    world.problem("lost", _say(world, callback))
                return False
            await asyncio.sleep(STEP)
        self._publish.set()
        return True

    async def _last_words(self, world: GatewayWorld) -> None:
        """One more publication of each topic: it arrives everywhere only if every subscription still stands."""
        for topic, home in enumerate(world.home):
            client = LoopbackClient(world.publish_at(topic))
            deadline = time.monotonic() + LAST_WORD_PATIENCE
            try:
                while True:
                    with suppress(ConnectionError):
                        if await world.publish(client, topic):
                            break
                    if time.monotonic() > deadline:
                        raise ProcessFailedError(f"the hub of {home} took no ping for {LAST_WORD_PATIENCE:g} seconds")
                    await asyncio.sleep(STEP)
            finally:
                client.close()

    async def _quiet(self, world: GatewayWorld) -> None:
        started = time.monotonic()
        while world.behind() and time.monotonic() < started + QUIET_PATIENCE:  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(STEP)
        self._settled_after = time.monotonic() - started
        if not world.problems["lost"]:  # or they are counted already
            for callback in world.behind():
                world.problem("lost", _say(world, callback))
        if world.most_duplicates > QueueLimits().chunk:
            world.problem("too many duplicates", f"{world.most_duplicates} after one kill")

    def _report(self, world: GatewayWorld, seconds: float) -> GatewayReport:
        return GatewayReport(
            self._seed,
            sum(self._killed.values()),
            seconds,
            dict(sorted(self._killed.items())),
            world.counts,
            len(world.callbacks),
            QueueLimits().chunk,
            world.most_duplicates,
            self._settled_after,
            self._stock_hub,
            world.problems["lost"],
            {kind: number for kind, number in world.problems.items() if number},
            world.examples,
        )


def _say(world: GatewayWorld, callback: Callback) -> str:
    return f"{callback.path} has {callback.newest}, was promised {world.promised[callback.topic]}"


def _say_behind(world: GatewayWorld, when: str) -> str:
    behind = world.behind()
    return f"{len(behind)} subscribers got nothing {when}, for instance {_say(world, behind[0])}"
