"""A system clock that somebody sets, back and forward, while retries and leases run: a time server that lies."""

import asyncio
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from perf.loopback import LoopbackRequest, Reply, answer
from trials.attack.on_intake import ATOM, feed, topic
from trials.attack.places import stranger_name
from trials.attack.stranger import Attack, Stranger, confirms
from trials.settable_clock import SettableClock

HOUR = 3600.0
DAY = 24 * HOUR
RETRIES = 10
RETRY_PATIENCE = 14.0
"""More than twice the first pause of a retry (5 s), and far less than any step."""
SOON = 5.0
LEASE = 300
READER = f"http://{stranger_name('reader')}"


class UncertainCallbacks:
    """/retry/NUMBER answers 503 first and takes the second try; /leased takes everything."""

    def __init__(self, stranger: Stranger) -> None:
        self._stranger = stranger
        self._turn = 0
        self.confirmed: set[str] = set()
        self.tries: dict[str, int] = {}
        self.changed = asyncio.Event()

    def __call__(self, request: LoopbackRequest, reply: Reply) -> None:
        path = urlsplit(request.target).path
        checked = confirms(request)
        if checked is not None:
            self.confirmed.add(path)
            reply(checked)
        elif request.method == "POST":
            self.tries[path] = self.tries.get(path, 0) + 1
            first = path.startswith("/retry/") and self.tries[path] == 1
            self._stranger.counts["first tries refused" if first else "deliveries taken"] += 1
            reply(answer(503 if first else 204))
        else:
            self._turn += 1
            reply(answer(200, feed(2, turn=self._turn), {"Content-Type": ATOM}))
        self.changed.set()

    async def until(self, tries: int, *paths: str, patience: float) -> bool:
        return await self.are(lambda: all(self.tries.get(path, 0) >= tries for path in paths), patience)

    async def are(self, so: Callable[[], bool], patience: float) -> bool:
        try:
            async with asyncio.timeout(patience):
                while not so():
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            return False
        return True


def steps() -> list[float]:
    """By how much the clock is off, one after the other."""
    in_1970 = 100.0 - time.time()
    return [-HOUR, HOUR, -10 * DAY, 10 * DAY, 0.0, in_1970, 5000 * DAY]


async def set_clock(stranger: Stranger) -> None:
    """A step while each of ten retries waits; a subscription that was leased before the first one hears all along."""
    if stranger.folder is None:
        raise ValueError("whose clock?")
    clock = SettableClock(stranger.folder)
    callbacks = UncertainCallbacks(stranger)
    await stranger.listen(callbacks)
    retries = [f"/retry/{number}" for number in range(RETRIES)]
    for number, path in enumerate(retries):
        await stranger.subscribe(topic(f"retry{number}"), READER + path, lease_seconds=str(LEASE))
    await stranger.subscribe(topic("leased"), f"{READER}/leased", lease_seconds=str(LEASE))
    if not await callbacks.are(lambda: len(callbacks.confirmed) > RETRIES, SOON):
        stranger.breach("subscriptions are not confirmed, and nobody sets the clock yet")
        return
    offsets = steps()
    for number, path in enumerate(retries):
        await stranger.ping(topic(f"retry{number}"))
        if not await callbacks.until(1, path, patience=SOON):
            stranger.breach(f"nothing was delivered after the clock was set {number} times")
            break
        clock.set_by(off := offsets[number % len(offsets)])
        stranger.counts["steps of the clock"] += 1
        heard = callbacks.tries.get("/leased", 0)
        await stranger.ping(topic("leased"))
        if not await callbacks.until(heard + 1, "/leased", patience=SOON):
            stranger.breach(f"a lease of {LEASE} s ended when the clock was set by {off:g} s")
            break
        await asyncio.sleep(stranger.seconds / (2 * RETRIES))
    if not await callbacks.until(2, *(path for path in retries if path in callbacks.tries), patience=RETRY_PATIENCE):
        late = sum(callbacks.tries.get(path, 0) < 2 for path in retries)
        stranger.breach(f"{late} retries did not come after the clock was set")


ATTACKS = (
    Attack("set-clock", "the clock is set by hours, days and decades while retries wait", set_clock, sets_clock=True),
)
