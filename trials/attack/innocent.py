"""Somebody innocent: a publisher who pings regularly, a callback, and in a network a PSIRP publisher and subscriber.

python -m trials.attack.innocent [PUBLISHING-SOCKET SUBSCRIBING-SOCKET [HASH-OF-THE-PUBLISHER'S-KEY]]

Asks for a subscription and says `ready` when its first publication arrived. A line on its input begins a phase of
that name; `end SECONDS` ends the last one: it waits so long for what is outstanding and prints, as JSON, what was felt.

A publication counts as delivered when it or a later one is there, as a state that was replaced before it was fetched is
never seen. Whatever arrives and is not what this publisher wrote is forged.
"""

import asyncio
import json
import secrets
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

from identifiers import Identifier
from perf.bench.family import percentile
from perf.loopback import Connection, LoopbackClient, LoopbackRequest, Reply, answer
from perf.numbered_feed import document, number_in
from psirp_stack.control.messages import ScopePolicy
from psirp_stack.node.api import Client, PsirpError
from psirp_stack.node.attachment import ReceivedVersion
from push_hub.delivery.signing import signature_matches
from push_hub.model import SignatureMethod
from trials.attack.places import CALLBACK, FEED, HUB_URL, ITEM, OTHER_HUB_URL, PUBLISHER, READER, TENANTS

EVERY = 0.5
"""Seconds between two publications."""
OUTSTANDING_PATIENCE = 30.0
FIRST_PATIENCE = 40.0
EXAMPLES_KEPT = 5
SECRET = secrets.token_hex(16)
NEW_SCOPE = Identifier(bytes(31) + b"\x23")
FEED_TYPE = "application/atom+xml"


@dataclass
class FeltPhase:
    """What was published in one phase: when, and how long until it was there."""

    published: dict[int, float] = field(default_factory=dict)
    took: dict[int, float] = field(default_factory=dict)
    refused: int = 0


@dataclass
class Channel:
    """One way from a publisher to a subscriber: publications have numbers that only grow."""

    states: bool = True
    """A later publication stands for the earlier ones."""
    phases: dict[str, FeltPhase] = field(default_factory=lambda: {"start": FeltPhase()})
    number: int = 0
    arrived: int = 0
    forged: int = 0
    examples: list[str] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def phase(self) -> FeltPhase:
        return next(reversed(self.phases.values()))

    def next(self) -> int:
        self.number += 1
        self.phase.published[self.number] = time.monotonic()
        return self.number

    def came(self, number: int) -> None:
        now = time.monotonic()
        for phase in self.phases.values():
            for earlier, at in phase.published.items():
                if earlier == number or (self.states and earlier < number):
                    phase.took.setdefault(earlier, now - at)
        self.arrived = max(self.arrived, number)
        self.changed.set()

    def lie(self, what: str) -> None:
        self.forged += 1
        if len(self.examples) < EXAMPLES_KEPT:
            self.examples.append(what)

    async def until(self, number: int, patience: float) -> bool:
        try:
            async with asyncio.timeout(patience):
                while self.arrived < number:
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            return False
        return True

    def summary(self) -> dict[str, object]:
        now = time.monotonic()
        found: dict[str, object] = {"forged": self.forged, "examples": self.examples}
        for name, phase in self.phases.items():
            took = sorted(phase.took.get(number, now - at) for number, at in phase.published.items())
            found[name] = {
                "published": len(took),
                "lost": len(phase.published) - len(phase.took),
                "refused": phase.refused,
                "median": percentile(took, 0.5) if took else 0.0,
                "p99": percentile(took, 0.99) if took else 0.0,
            }
        return found


class InnocentFeed:
    """Publisher and subscriber at hubs that need not be the same one."""

    def __init__(self, publish_at: str, subscribe_at: str) -> None:
        self.channel = Channel()
        self._publish_at = publish_at
        self._subscribe_at = subscribe_at
        self._confirmed = asyncio.Event()
        self._denied = ""

    async def start(self, stack: AsyncExitStack) -> None:
        loop = asyncio.get_running_loop()
        handlers: tuple[tuple[str, Callable[[LoopbackRequest, Reply], None]], ...]
        handlers = ((PUBLISHER, self._serve), (READER, self._take))
        for address, handler in handlers:
            server = await loop.create_server(lambda handler=handler: Connection(handler), address, 80)  # type: ignore[misc]
            stack.callback(server.close)
        form = {
            "hub.mode": "subscribe",
            "hub.topic": FEED,
            "hub.callback": CALLBACK,
            "hub.secret": SECRET,
            "hub.lease_seconds": "3600",
        }
        deadline = loop.time() + FIRST_PATIENCE
        while not self._confirmed.is_set():
            client = LoopbackClient(self._subscribe_at, READER)
            status, text = await client.post_form("/", urlencode(form))
            client.close()
            if status != 202:
                raise SystemExit(f"the hub does not take an innocent subscription: {status} {text!r}")
            try:
                async with asyncio.timeout(FIRST_PATIENCE / 4):
                    await self._confirmed.wait()
            except TimeoutError:
                if loop.time() > deadline:
                    raise SystemExit(f"an innocent subscription is not confirmed: {self._denied}") from None

    async def publish(self) -> None:
        phase = self.channel.phase
        self.channel.next()
        client = LoopbackClient(self._publish_at, PUBLISHER)
        try:
            async with asyncio.timeout(OUTSTANDING_PATIENCE):
                status, _ = await client.post_form("/", urlencode({"hub.mode": "publish", "hub.url": FEED}))
            phase.refused += status >= 300
        except (ConnectionError, TimeoutError):
            phase.refused += 1
        finally:
            client.close()

    def _serve(self, _: LoopbackRequest, reply: Reply) -> None:
        tag = f'"{self.channel.number}"'
        links = f'<{self._publish_at}>; rel="hub", <{FEED}>; rel="self"'
        reply(answer(200, document(self.channel.number), {"Content-Type": FEED_TYPE, "ETag": tag, "Link": links}))

    def _take(self, request: LoopbackRequest, reply: Reply) -> None:
        if urlsplit(request.target).path.startswith(TENANTS):
            serve_tenant(request, reply)
            return
        if request.method == "GET":
            query = parse_qs(urlsplit(request.target).query)
            mode = query.get("hub.mode", [""])[0]
            if mode == "subscribe":
                self._confirmed.set()
            elif mode == "denied":
                self._denied = query.get("hub.reason", ["no reason"])[0]
            elif mode == "unsubscribe":
                # Nobody innocent ever asks for that.
                reply(answer(404))
                return
            reply(answer(200, query.get("hub.challenge", [""])[0].encode()))
            return
        reply(answer(204))
        number = number_in(request.body)
        signature = request.header("X-Hub-Signature") or "none"
        if not signature_matches(SECRET.encode(), SignatureMethod.SHA256, request.body, signature):
            return  # a subscriber believes only what is signed with its secret
        if not 0 <= number <= self.channel.number or request.body != document(number):
            self.channel.lie(repr(request.body[:80]))
        else:
            self.channel.came(number)


def serve_tenant(request: LoopbackRequest, reply: Reply) -> None:
    """Others have callbacks on the reader's host too: some answer with errors, some never."""
    if request.method == "GET":
        reply(answer(200, parse_qs(urlsplit(request.target).query).get("hub.challenge", [""])[0].encode()))
    elif "broken" in request.target:
        reply(answer(503))


class InnocentItem:
    """Publisher and subscriber of an item of the PSIRP network, each at the socket of a node."""

    def __init__(self, publish_at: Path, subscribe_at: Path, key: str | None) -> None:
        """`key`: only this one may publish."""
        self.channel = Channel()
        self._paths = publish_at, subscribe_at
        self._key = key
        self._publisher: Client | None = None

    async def start(self, stack: AsyncExitStack) -> None:
        self._publisher, subscriber = [
            await stack.enter_async_context(await Client.attach(path, application="innocent")) for path in self._paths
        ]
        if self._key is not None:
            await self._publisher.publish_scope(ITEM.sid, policy=ScopePolicy(publishers=(bytes.fromhex(self._key),)))
        await subscriber.subscribe(ITEM.sid, ITEM.rid, self._take)

    async def publish(self) -> None:
        if self._publisher is not None:
            await self._publisher.publish(ITEM.sid, ITEM.rid, f"innocent {self.channel.next()}".encode())

    def _take(self, version: ReceivedVersion) -> None:
        word, _, number = version.content.decode("latin-1").partition(" ")
        if word != "innocent" or not number.isdigit() or not 0 < int(number) <= self.channel.number:
            self.channel.lie(repr(version.content[:80]))
        else:
            self.channel.came(int(number))


class InnocentNewcomer:
    """Publishes an item that is new, and subscribes to it at the other node: nothing was matched or planned for it."""

    def __init__(self, publish_at: Path, subscribe_at: Path) -> None:
        self.channel = Channel(states=False)
        self._paths = publish_at, subscribe_at
        self._clients: list[Client] = []

    async def start(self, stack: AsyncExitStack) -> None:
        for path in self._paths:
            self._clients.append(await stack.enter_async_context(await Client.attach(path, application="newcomer")))

    async def publish(self) -> None:
        number, phase = self.channel.next(), self.channel.phase
        rid, content = Identifier(number.to_bytes(32, "big")), f"new {number}".encode()
        publisher, subscriber = self._clients
        arrived = asyncio.Event()

        def take(version: ReceivedVersion) -> None:
            if version.content == content:
                arrived.set()
            else:
                self.channel.lie(repr(version.content[:80]))

        try:
            async with asyncio.timeout(OUTSTANDING_PATIENCE):
                subscription = await subscriber.subscribe(NEW_SCOPE, rid, take)
                await publisher.publish(NEW_SCOPE, rid, content)
                await arrived.wait()
                self.channel.came(number)
                await subscriber.unsubscribe(subscription)
                await publisher.unpublish(NEW_SCOPE, rid)
        except (PsirpError, TimeoutError):
            phase.refused += 1


Innocent = InnocentFeed | InnocentItem | InnocentNewcomer


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def lines() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def regularly(what: Innocent, stop: asyncio.Event) -> None:
    """On the clock, whether or not the one before was taken: a publisher does not wait for the hub."""
    async with asyncio.TaskGroup() as tasks:
        while not stop.is_set():
            tasks.create_task(what.publish())
            try:
                async with asyncio.timeout(EVERY):
                    await stop.wait()
            except TimeoutError:
                continue


async def main(sockets: list[str]) -> None:
    users: dict[str, Innocent] = {}
    users["feed"] = InnocentFeed(HUB_URL, OTHER_HUB_URL if sockets else HUB_URL)
    if sockets:
        users["psirp"] = InnocentItem(Path(sockets[0]), Path(sockets[1]), sockets[2] if sockets[2:] else None)
        users["newcomer"] = InnocentNewcomer(Path(sockets[0]), Path(sockets[1]))
    commands = await lines()
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        stop = asyncio.Event()
        for user in users.values():
            await user.start(stack)
            tasks.create_task(regularly(user, stop))
        for name, user in users.items():
            if not await user.channel.until(1, FIRST_PATIENCE):
                raise SystemExit(f"nothing innocent arrived by {name}, and nobody attacks yet")
        say("ready")
        while (line := (await commands.readline()).decode().strip()) and not line.startswith("end "):
            for user in users.values():
                user.channel.phases[line] = FeltPhase()
        stop.set()
        patience = float(line.removeprefix("end ") or 0)
        await asyncio.gather(*(user.channel.until(user.channel.number, patience) for user in users.values()))
        say(json.dumps({name: user.channel.summary() for name, user in users.items()}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
