"""The rounds of the crash test: start a hub on the same data, load it, kill -9 it at a chosen moment, check."""

import asyncio
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from perf.bench.family import Ticker
from perf.hub_process import OPERATOR_TOKEN, PUBLISHER_TOKEN, HubProcess, HubProcessError
from perf.loopback import LoopbackClient
from perf.numbered_feed import document
from push_hub.delivery import QueueLimits
from push_hub.hub import DATABASE_NAME
from storage import StorageError
from trials.crash.ledger import LOST, SUBSCRIBE, UNSUBSCRIBE, Counts
from trials.crash.snapshot import open_work, read_snapshot
from trials.crash.stored import Pair
from trials.crash.world import FEED_TYPE, CrashWorld, Moment, Size, Style

SUBSCRIBERS_AT_WORK = 4
WIDE_SUBSCRIBERS_AT_WORK = 4
PINGERS_AT_WORK = 2
PAUSE = 0.02
LOOKS = 3
LOOK_PAUSE = 0.02
LONGEST_DELAY = 0.6
LONGEST_LIFE = 1.5
QUIET_TIME = 120.0
QUIET_STEP = 0.2
SETTLED = 1.0
WIDE_PINGS = 0.1
SEVERAL = 0.3
ACKNOWLEDGED = (202, 204)

Work = Callable[[LoopbackClient], Awaitable[bool]]
"""One request of a worker; False when it has nothing more to ask."""


@dataclass(frozen=True, slots=True)
class KillPlan:
    """When this life ends: a delay after the process was started, or after it listened, or the n-th of something."""

    name: str
    while_starting: float | None = None
    delay: float | None = None
    moment: Moment | None = None
    count: int = 0
    after_answer: bool = False


@dataclass(frozen=True, slots=True)
class CrashReport:
    seed: int
    kills: int
    seconds: float
    plans: dict[str, int]
    counts: Counts
    active_at_end: int
    chunk: int
    most_duplicates_after_a_kill: int
    problems: dict[str, int]
    examples: list[str]

    @property
    def lost(self) -> int:
        return sum(number for kind, number in self.problems.items() if kind.endswith(LOST))

    @property
    def passed(self) -> bool:
        return not self.problems


def choose(rng: random.Random, wide: int) -> KillPlan:
    """Spread over everything a hub does, starting included."""
    after = rng.random() < 0.5
    kind = rng.choices(("delay", "starting", *Moment), (25, 10, 10, 10, 30, 15))[0]
    if kind == "delay":
        return KillPlan("a random delay", delay=rng.uniform(0, LONGEST_DELAY))
    if kind == "starting":
        return KillPlan("while starting", while_starting=rng.uniform(0.1, 0.6))
    moment = Moment(kind)
    most = {Moment.CHECK: 60, Moment.FETCH: 8, Moment.DELIVERY: max(60, wide), Moment.ACKNOWLEDGEMENT: 60}[moment]
    # Skewed towards few: the first of a burst is as interesting as all the others together.
    return KillPlan(moment.value, moment=moment, count=1 + int((most - 1) * rng.random() ** 2), after_answer=after)


class HubLife:
    """One hub process, the load on it, and the kill that ends it."""

    def __init__(
        self, world: CrashWorld, hub: HubProcess, plan: KillPlan, rng: random.Random, unsubscribed: list[Pair]
    ) -> None:
        self._world = world
        self._ledger = world.ledger
        self._hub = hub
        self._plan = plan
        self._rng = rng
        self._left = plan.count
        self._wide_left = unsubscribed
        self._busy: set[Pair] = set()

    def notice(self, moment: Moment) -> None:
        if moment is not self._plan.moment or self._left <= 0:
            return
        self._left -= 1
        if self._left == 0:
            if self._plan.after_answer:
                asyncio.get_running_loop().call_soon(self._hub.kill)
            else:
                self._hub.kill()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        timers: list[asyncio.TimerHandle] = []
        if self._plan.while_starting is not None:
            timers.append(loop.call_later(self._plan.while_starting, self._hub.kill))
        workers: list[asyncio.Task[None]] = []
        try:
            if await self._hub.listening():
                timers.append(loop.call_later(self._plan.delay or LONGEST_LIFE, self._hub.kill))
                workers = self._workers()
            await self._hub.killed()
        finally:
            self._hub.kill()
            for timer in timers:
                timer.cancel()
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    def _workers(self) -> list[asyncio.Task[None]]:
        work: list[Work] = []
        work += [self._subscribe_wide] * WIDE_SUBSCRIBERS_AT_WORK
        work += [self._change_subscriptions] * SUBSCRIBERS_AT_WORK
        work += [self._ping] * PINGERS_AT_WORK
        work.append(self._bring)  # one only: what is brought along must not overtake itself
        return [asyncio.create_task(self._until_killed(one)) for one in work]

    async def _until_killed(self, work: Work) -> None:
        client = LoopbackClient(self._hub.url)
        try:
            with suppress(ConnectionError):
                while await work(client):  # noqa: ASYNC110 - a pause between requests, not a wait for something
                    await asyncio.sleep(self._rng.random() * PAUSE)
        finally:
            client.close()

    async def _subscribe_wide(self, client: LoopbackClient) -> bool:
        if not self._wide_left:
            return False
        pair = self._wide_left.pop()
        if not await self._ask(client, pair, SUBSCRIBE):
            self._wide_left.append(pair)
        return True

    async def _change_subscriptions(self, client: LoopbackClient) -> bool:
        pair = self._rng.choice(self._world.changing)
        if pair in self._busy:
            return True
        self._busy.add(pair)
        account = self._ledger.accounts[pair]
        # A renewal now and then, otherwise the other of the two.
        renew = self._rng.random() < 0.2
        mode = UNSUBSCRIBE if account.wanted == SUBSCRIBE and not renew else SUBSCRIBE
        if await self._ask(client, pair, mode):
            await self._look(client, pair, mode)
        self._busy.discard(pair)
        return True

    async def _ask(self, client: LoopbackClient, pair: Pair, mode: str) -> bool:
        self._ledger.asking(pair, mode)
        try:
            status, _ = await client.post_form("/", self._world.form(pair, mode))
        except BaseException:  # the kill, or our own cancellation because of it
            self._ledger.counts.unanswered += 1
            raise
        if status not in ACKNOWLEDGED:
            self._ledger.counts.refused += 1
            return False
        self._ledger.acknowledged(pair, mode)
        if self._world.styles[pair] is Style.PUSH_03_SYNC:
            self._ledger.seen(pair, mode == SUBSCRIBE, time.time())
        self.notice(Moment.ACKNOWLEDGEMENT)
        return True

    async def _look(self, client: LoopbackClient, pair: Pair, mode: str) -> None:
        """Ask the hub whether the request has taken effect; a few times, it may take a moment."""
        for _ in range(LOOKS):
            shown = await look(client, pair)
            if shown is not None and shown.settled:
                self._ledger.seen(pair, shown.active, time.time())
                return
            await asyncio.sleep(LOOK_PAUSE)

    async def _ping(self, client: LoopbackClient) -> bool:
        world = self._world
        # A kill that waits for deliveries needs some: the widest fan-out first.
        wide = self._rng.random() < WIDE_PINGS or (self._plan.moment is Moment.DELIVERY and not self._busy)
        topics = [world.wide_topic] if wide else [self._rng.choice(world.pinged)]
        if self._rng.random() < SEVERAL:
            topics += self._rng.sample(world.pinged[1:], 2)
        topics = list(dict.fromkeys(topics))
        said = {topic: world.change(topic) for topic in topics}
        form = urlencode([("hub.mode", "publish"), *(("hub.url", topic) for topic in topics)])
        return await self._publish(said, client.post_form("/", form))

    async def _bring(self, client: LoopbackClient) -> bool:
        """A fat ping: the topic's content comes with it."""
        if not self._world.brought:
            return False
        topic = self._rng.choice(self._world.brought)
        number = self._world.change(topic)
        target = "/?" + urlencode({"hub.mode": "publish", "hub.url": topic})
        headers = {"Authorization": f"Bearer {PUBLISHER_TOKEN}", "Content-Type": FEED_TYPE}
        request = client.request("POST", target, document(number), headers)
        return await self._publish({topic: number}, request, brought=True)

    async def _publish(
        self, said: dict[str, int], request: Awaitable[tuple[int, bytes]], *, brought: bool = False
    ) -> bool:
        sent_at = time.time()
        try:
            status, _ = await request
        except BaseException:
            self._ledger.counts.unanswered += 1
            raise
        if status in ACKNOWLEDGED:
            for topic, number in said.items():
                self._ledger.ping_acknowledged(topic, number, sent_at)
            self._ledger.counts.fat_pings += brought
            self.notice(Moment.ACKNOWLEDGEMENT)
        else:
            self._ledger.counts.refused += 1
        await asyncio.sleep(self._rng.random() * PAUSE * 4)
        return True


@dataclass(frozen=True, slots=True)
class ShownProgress:
    active: bool
    settled: bool


async def look(client: LoopbackClient, pair: Pair) -> ShownProgress | None:
    """What the hub's diagnostics say of a pair; None when it has no time for the question."""
    target = "/diagnostics/subscription?" + urlencode({"topic": pair[0], "callback": pair[1]})
    status, body = await client.request("GET", target, headers={"Authorization": f"Bearer {OPERATOR_TOKEN}"})
    if status != 200:
        return None
    said = json.loads(body)
    return ShownProgress(said["state"] == "active", said["waiting_check"] is None)


class CrashTest:
    def __init__(self, kills: int, seed: int, size: Size, tick: Ticker) -> None:
        self._kills = kills
        self._seed = seed
        self._size = size
        self._tick = tick
        self._plans: Counter[str] = Counter()
        self._life: HubLife | None = None
        self._failures: list[str] = []

    async def run(self) -> CrashReport:
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="psph-crash-") as folder:
            data = Path(folder) / "hub"
            async with CrashWorld(self._size, self._seed, self._notice) as world:
                try:
                    for number in range(self._kills):
                        await self._round(world, data, number)
                        self._tick(f"{world.ledger.counts.delivered} delivered")
                    await self._finish(world, data)
                except (HubProcessError, StorageError) as error:
                    self._failures.append(str(error))
                return self._report(world, time.monotonic() - started)

    def _notice(self, moment: Moment) -> None:
        if self._life is not None:
            self._life.notice(moment)

    async def _round(self, world: CrashWorld, data: Path, number: int) -> None:
        world.life = number
        # A generator a life: how far the last one got must not change where the next kill is aimed.
        rng = random.Random(f"{self._seed} {number}")  # noqa: S311 - a test that can be repeated
        plan = choose(rng, self._size.wide)
        left = [pair for pair in world.wide if world.ledger.accounts[pair].wanted != SUBSCRIBE]
        rng.shuffle(left)
        hub = await HubProcess.start(data)
        self._life = HubLife(world, hub, plan, rng, left)
        await self._life.run()
        self._plans[plan.name] += 1
        await self._check(world, data)

    async def _check(self, world: CrashWorld, data: Path, *, end: bool = False) -> None:
        snapshot = await asyncio.to_thread(read_snapshot, data, world.ledger.newest_publication)
        if end:
            world.ledger.check_end(snapshot, time.time())
        else:
            world.ledger.check(snapshot, time.time())

    async def _finish(self, world: CrashWorld, data: Path) -> None:
        """One more start, no more requests: everything that is open must come to its end."""
        world.life = self._kills
        self._life = None
        hub = await HubProcess.start(data)
        try:
            if not await hub.listening():
                raise HubProcessError("the hub did not start after the last kill")
            deadline = time.monotonic() + QUIET_TIME
            while time.monotonic() < deadline and open_work(data / DATABASE_NAME):
                self._tick("quiet time", 0)
                await asyncio.sleep(QUIET_STEP)
            await asyncio.sleep(SETTLED)  # for what should not come any more
            client = LoopbackClient(hub.url)
            for pair in world.changing:
                shown = await look(client, pair)
                if shown is not None and shown.settled:
                    world.ledger.seen(pair, shown.active, time.time())
            client.close()
            await hub.stop()
        finally:
            hub.kill()
        await self._check(world, data, end=True)

    def _report(self, world: CrashWorld, seconds: float) -> CrashReport:
        ledger = world.ledger
        problems = dict(ledger.problems)
        examples = [*self._failures, *ledger.examples]
        if self._failures:
            problems["the hub failed"] = len(self._failures)
        if world.bad_signatures:
            problems["a wrong signature"] = world.bad_signatures
        chunk = QueueLimits().chunk
        most = max(ledger.duplicates_after_kill.values(), default=0)
        if most > chunk:
            problems["more than a chunk repeated"] = sum(n > chunk for n in ledger.duplicates_after_kill.values())
        return CrashReport(
            seed=self._seed,
            kills=sum(self._plans.values()),
            seconds=seconds,
            plans=dict(sorted(self._plans.items())),
            counts=ledger.counts,
            active_at_end=sum(account.active_since is not None for account in ledger.accounts.values()),
            chunk=chunk,
            most_duplicates_after_a_kill=most,
            problems=problems,
            examples=examples,
        )
