"""What an attack has at hand: its hub and time, addresses and names without number, and a note of what it did.

An attack is a coroutine function that takes a `Stranger`. It runs in a process of its own in the stranger's namespace.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urlencode, urlsplit

from perf.loopback import Connection, Handler, LoopbackClient, LoopbackRequest, Reply, answer
from trials.attack.places import HUB_URL, STRANGER

PATIENCE = 10.0
MEBIBYTE = 1 << 20


class Victim(StrEnum):
    """Who is attacked."""

    HUB = "hub"
    GATEWAY = "gateway"
    """And the other gateway, and the node between them: a domain with a secret."""
    MEMBERS = "members"
    """The same, with signatures, of which the attacker is a member."""


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack, and what it may cost at most beside the time of the innocent."""

    name: str
    text: str
    run: "Callable[[Stranger], Awaitable[None]]"
    victim: Victim = Victim.HUB
    memory: int = 64 * MEBIBYTE
    """Growth of all processes that are attacked, beyond what they have while it is quiet."""
    disk: int = 24 * MEBIBYTE
    options: tuple[str, ...] = ()
    """Of the hub's command, beside its usual ones."""
    sections: str = ""
    """Of the attacked gateway's configuration, beside its usual ones."""
    rows: int | None = None
    """Subscriptions, and requests for some that wait, in the attacked one's store: never more."""
    sets_clock: bool = False
    """The attacked hub's system clock is the attack's."""


class Stranger:
    def __init__(self, seconds: float, folder: Path | None = None) -> None:
        """`folder`: where secret and keys are, for who is a member of the network, or the clock, for who sets it."""
        self.folder = folder
        self.deadline = time.monotonic() + seconds
        self.seconds = seconds
        self.counts: Counter[str] = Counter()
        self.breaches: list[str] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    @property
    def goes_on(self) -> bool:
        return time.monotonic() < self.deadline

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, min(seconds, self.deadline - time.monotonic())))

    async def until_the_end(self) -> None:
        await self.pause(self.seconds)

    def breach(self, what: str) -> None:
        """Something happened that must never happen, whatever it costs."""
        if what not in self.breaches:
            self.breaches.append(what)

    def at_the_end(self, close: Callable[[], object]) -> None:
        self._stack.callback(close)

    async def listen(self, handler: Handler, port: int = 80) -> None:
        """On all addresses of the stranger."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Connection(handler), "0.0.0.0", port, backlog=4096)  # noqa: S104
        self._stack.callback(server.close)

    async def post(self, form: dict[str, str] | Iterable[tuple[str, str]], source: str = STRANGER) -> tuple[int, bytes]:
        """One request to the hub, by a connection of its own; what it was answered is counted. 0: not at all."""
        client = LoopbackClient(HUB_URL, source)
        pairs = list(form.items()) if isinstance(form, dict) else list(form)
        mode = dict(pairs).get("hub.mode", "request")
        try:
            async with asyncio.timeout(PATIENCE):
                status, text = await client.post_form("/", urlencode(pairs))
        except (ConnectionError, TimeoutError):
            status, text = 0, b""
        finally:
            client.close()
        self.counts[f"{mode} {status or 'unanswered'}"] += 1
        return status, text

    async def subscribe(self, topic: str, callback: str, source: str = STRANGER, **more: str) -> tuple[int, bytes]:
        form = {"hub.mode": "subscribe", "hub.topic": topic, "hub.callback": callback}
        return await self.post(form | {f"hub.{name}": value for name, value in more.items()}, source)

    async def ping(self, *topics: str, source: str = STRANGER) -> tuple[int, bytes]:
        return await self.post([("hub.mode", "publish"), *(("hub.url", topic) for topic in topics)], source)

    async def together(self, work: Iterable[Awaitable[object]], at_once: int = 32) -> None:
        """Some at a time, and no more when the time is over."""
        room = asyncio.Semaphore(at_once)

        async def one(what: Awaitable[object]) -> None:
            async with room:
                await what

        async with asyncio.TaskGroup() as tasks:
            for what in work:
                async with room:
                    tasks.create_task(one(what))
                if not self.goes_on:
                    break


def confirms(request: LoopbackRequest) -> bytes | None:
    """The answer of a callback to a check, if this is one."""
    if request.method != "GET":
        return None
    query = parse_qs(urlsplit(request.target).query)
    challenge = query.get("hub.challenge")
    return None if challenge is None else answer(200, challenge[0].encode())


def host_of(request: LoopbackRequest) -> str:
    return (request.header("Host") or "").partition(":")[0]


def ignore(_: LoopbackRequest, __: Reply) -> None:
    """A server that never answers."""
