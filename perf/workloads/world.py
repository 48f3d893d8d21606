"""What workloads run on: a publisher, subscribers, gateways as processes, and a network between them.

    publisher -ping-> gateway at n0 ==n0==n1==...== gateways at other nodes -POST-> subscribers, some also at n0

Gateways are processes, as an operator runs them but for the canary and limits for one client, and trace themselves. The
network's nodes, the publisher and all callbacks are in this process: one clock sees both ends.

Documents carry a number that makes them sampled or not, as is wanted: what only warms things up leaves no trace.
"""

import asyncio
import json
import re
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlencode, urlsplit

from identifiers import DEFAULT_NAMING, ItemId, Topic
from perf.loopback import LoopbackClient, LoopbackRequest, Reply, Server, answer
from perf.processes import Part, ProcessFailedError, resident_with_children
from perf.traces.blocks import block_of_records
from perf.traces.hub_events import Moment
from perf.traces.naming import publication_name
from perf.traces.psirp_events import NetworkTracer
from perf.traces.run import Run, clock_id
from perf.traces.sampling import Sampler
from perf.traces.schema import Domain, StepOutcome, TraceRecord, TraceStep
from perf.traces.writer import TraceWriter
from perf.workloads.ledger import WorkloadLedger
from perf.workloads.parts import PARTS, merge_parts
from psirp_stack.emulation.network import EmulatedNetwork, socket_of
from psirp_stack.emulation.plan import plan
from psirp_stack.node.api import Client as PsirpClient

SAMPLED: Final = 0.9
"""The share of documents that gateways trace. Which those are is known, so others serve for warming up."""
PATIENCE: Final = 30.0
ADDRESSES: Final = 16
"""Callbacks and clients come from several addresses: hubs limit what one host may ask, and what it is sent at once."""
ATOM: Final = "application/atom+xml"
PUBLISHER: Final = "publisher"
OK: Final = answer(204)
SMALLEST: Final = 287
_NUMBER: Final = re.compile(rb"urn:e:(\d{8})")


class WorkloadError(Exception):
    """A workload cannot go on; the text says why."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is between publisher and subscribers."""

    hops: tuple[int, ...] = (3,)
    """Where gateways with subscribers are, by the number of links between them and the publisher's."""
    loss: float = 0.0
    delay: float = 0.0
    width: int = 1
    """Subscribers of each topic at each of these gateways."""
    local: bool = True
    """Whether each topic has a subscriber at the publisher's own gateway, too."""
    topics: int = 60
    trace_publisher: bool = True
    """Whether the publisher's gateway traces; without, a publication begins with the subscription to it."""


@dataclass(frozen=True, slots=True)
class Document:
    body: bytes
    number: int
    name: str


def moment(monotonic: float) -> Moment:
    """A time of `time.monotonic` on both clocks."""
    behind = time.monotonic() - monotonic
    return time.monotonic_ns() - round(behind * 1e9), time.time_ns() - round(behind * 1e9)


def atom(number: int, size: int, nonce: int = 0) -> bytes:
    """A feed with one entry, of this many bytes."""
    head = (
        '<?xml version="1.0"?><feed xmlns="http://www.w3.org/2005/Atom"><id>urn:f</id><title>f</title>'
        f"<updated>2026-01-01T00:00:00Z</updated><entry><id>urn:e:{number:08}</id><title>{nonce:03}</title><content>"
    )
    tail = "</content></entry></feed>"
    return (head + "." * (size - len(head) - len(tail)) + tail).encode()


class WorkloadWorld:
    """Use it with `async with`. `stop` is set when the run is to end early."""

    def __init__(self, setting: Setting, run: Run, directory: Path, work: Path, stop: asyncio.Event) -> None:
        self.setting = setting
        self.ledger = WorkloadLedger()
        self.stop = stop
        self._directory = directory
        self._work = work
        self._run = run
        self._sampler = Sampler(SAMPLED)
        self._web = Server(self._handle, ADDRESSES)
        self._documents: dict[str, bytes] = {}
        self._expected: dict[int, asyncio.Future[float]] = {}
        self._hubs: dict[int, str] = {}
        self._items: dict[str, ItemId] = {}
        self._clients: dict[tuple[str, int], list[LoopbackClient]] = defaultdict(list)
        self._number = 0
        self._warming = 0
        self._gateways: dict[int, Part] = {}
        self._clock_name = clock_id()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["WorkloadWorld"]:
        """Up and settled; afterwards everything has ended and the traces of all lie in the run's directory."""
        try:
            async with AsyncExitStack() as stack:
                self._writer = stack.enter_context(TraceWriter(self._directory, self._run))
                self._put = self._writer.channel(block_of_records).put
                await stack.enter_async_context(self._web)
                (self._work / "net").mkdir(parents=True)
                await self._start_network(stack)
                stack.push_async_callback(self._stop_gateways)
                await self._start_gateways()
                yield self
        finally:
            for clients in self._clients.values():
                for client in clients:
                    client.close()
            merge_parts(self._directory)

    async def _start_network(self, stack: AsyncExitStack) -> None:
        setting = self.setting
        shape = {"kind": "line", "nodes": max(setting.hops) + 1}
        bad = {"loss": setting.loss, "delay": setting.delay}
        # What a new subscriber is sent has a name of its own, which forwarders cannot know.
        tracer = NetworkTracer(self._writer, ends=False, sampler=self._sampler) if setting.trace_publisher else None
        network = await EmulatedNetwork.start(
            plan({"generate": shape, "every_link": bad}, self._work), self._work / "net", watcher=tracer
        )
        stack.push_async_callback(network.close)
        async with asyncio.timeout(PATIENCE):
            await network.settled()

    async def _start_gateways(self) -> None:
        starting = []
        for hop in (0, *self.setting.hops):
            file = self._work / f"gate-{hop}.toml"
            socket = json.dumps(str(socket_of(self._work / "net", f"n{hop}")))
            traces = f"directory = {json.dumps(str((self._directory / PARTS).absolute()))}\n"
            traces += f"rate = {SAMPLED}\nrun = {json.dumps(self._run.run)}\n"
            if hop == 0 and not self.setting.trace_publisher:
                traces = ""
            file.write_text(
                f'[gateway]\nname = "gate-{hop}"\n[store]\npath = "gate-{hop}"\n[network]\nattach = {socket}\n'
                '[hub]\nlisten = "127.0.0.1:0"\nallow_private = true\ncanary = { enabled = false }\n'
                # One publisher stands for many here.
                "[limits]\nrequests_per_client = 100000\nrequests_per_client_burst = 100000\n"
                "requests_per_topic = 100000\nrequests_per_topic_burst = 100000\n"
                f"[traces]\n{traces}"
            )
            part = Part(f"gate-{hop}", ["gateway", "-c", str(file)])
            self._gateways[hop] = part
            await part.start()
            starting.append((hop, part))
        for hop, part in starting:
            try:
                self._hubs[hop] = (await part.ready()).removeprefix("hub at ").strip()
            except ProcessFailedError as error:
                raise WorkloadError(str(error)) from None

    async def _stop_gateways(self) -> None:
        """Gracefully, so that their traces are whole; after Ctrl-C they may be on their way already."""
        for part in self._gateways.values():
            with suppress(ProcessFailedError):
                await part.stop()
            await part.end()

    # The web: `/t/NAME` is a topic, `/c/HOP/SUBSCRIBER/NAME` a callback.

    def topic(self, name: str) -> str:
        return self._web.url(f"/t/{name}")

    def _handle(self, request: LoopbackRequest, reply: Reply) -> None:
        now = time.monotonic()
        parts = urlsplit(request.target)
        if request.method == "POST":
            reply(OK)
            self._delivered(parts.path, request.body, now)
        elif "hub.challenge" in parts.query:
            reply(answer(200, parse_qs(parts.query)["hub.challenge"][0].encode()))
        else:
            reply(answer(200, self._documents.get(parts.path, b""), {"Content-Type": ATOM}))

    def _delivered(self, path: str, body: bytes, now: float) -> None:
        _, _, hop, subscriber, _ = path.split("/", 4)
        found = _NUMBER.search(body)
        number = int(found[1]) if found is not None else -1
        waiting = self._expected.get(number)
        if waiting is not None:
            if not waiting.done():
                waiting.set_result(now)
        else:
            self.ledger.delivered(number, int(hop), int(subscriber), now)

    # What a publisher and subscribers do.

    def document(self, name: str, size: int, *, traced: bool = True) -> Document:
        """A new document of a topic that gateways trace, or that they do not."""
        self._number += 1
        item = self.item(name)
        for nonce in range(1000):
            body = atom(self._number, size, nonce)
            called = publication_name(item, body)
            if self._sampler.takes(called) is traced:
                return Document(body, self._number, called)
        raise WorkloadError("no document of a thousand would be sampled as it should")

    def item(self, name: str) -> ItemId:
        if name not in self._items:
            self._items[name] = DEFAULT_NAMING.of_topic(Topic.parse(self.topic(name)))
        return self._items[name]

    async def publish(self, name: str, document: Document) -> None:
        self._documents[f"/t/{name}"] = document.body
        await self._post(0, {"hub.mode": "publish", "hub.url": self.topic(name)})

    async def publish_due(self, name: str, size: int, due: float, load: float) -> None:
        """A publication that was due at this time of the monotonic clock. It is traced as pinged then."""
        document = self.document(name, size)
        self.ledger.offered(document.number, due, load, self.subscribers)
        at = moment(due)
        self._put(
            TraceRecord(
                self._run.run, document.name, TraceStep.PINGED, Domain.PUSH, PUBLISHER, self.topic(name), None, None,
                len(document.body), None, None, None, load, at[0], at[1], self._clock_name, StepOutcome.OK,
            )
        )  # fmt: skip
        try:
            await self.publish(name, document)
        except WorkloadError:
            self.ledger.failed(document.number)

    def resident(self) -> dict[int, int]:
        """Bytes of memory of the gateway at each hop, and of its parsers."""
        return {hop: resident_with_children(part.pid) for hop, part in self._gateways.items()}

    @property
    def subscribers(self) -> int:
        """Of each topic."""
        return self.setting.width * len(self.setting.hops) + self.setting.local

    async def subscribe(self, name: str, hop: int, subscriber: int = 0) -> None:
        callback = self._web.url(f"/c/{hop}/{subscriber}/{name}", 1 + subscriber % ADDRESSES)
        await self._post(hop, {"hub.mode": "subscribe", "hub.topic": self.topic(name), "hub.callback": callback})

    async def prepare(self, names: list[str], size: int = SMALLEST) -> None:
        """Subscribe everybody to these topics, and publish until everything arrives everywhere."""
        for name in names:
            if self.setting.local:
                await self.subscribe(name, 0)
            for hop in self.setting.hops:
                await asyncio.gather(*(self.subscribe(name, hop, number) for number in range(self.setting.width)))
        # Twice: the first round opens connections and matches, the second is as fast as it gets.
        for _ in range(2):
            await asyncio.gather(*(self._warm(name, size) for name in names))

    async def _warm(self, name: str, size: int) -> None:
        ledger = self.ledger
        for _ in range(int(PATIENCE)):
            document = self.document(name, size, traced=False)
            ledger.offered(document.number, time.monotonic(), 0.0, self.subscribers)
            await self.publish(name, document)
            completed = ledger.steps[0.0]
            for _ in range(100):
                await asyncio.sleep(0.01)
                self._check()
                if not ledger.is_waiting(document.number):
                    return
        raise WorkloadError(f"{completed.completed} warm-up publications arrived, but one of {name} did not")

    def forget_warm_up(self) -> None:
        self.ledger = WorkloadLedger()

    async def first_delay(self, name: str, hop: int, size: int, client: PsirpClient, *, traced: bool = True) -> float:
        """Publish, then subscribe: seconds from the request to subscribe to the document at its callback."""
        document = self.document(name, size, traced=traced)
        arrived: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._expected[document.number] = arrived
        await self.publish(name, document)
        item = self.item(name)
        async with asyncio.timeout(PATIENCE):
            # What is measured begins with a subscription: the rendezvous must know of the publication by then.
            while not (await client.explain(item.sid, item.rid)).publishers:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        started = time.monotonic()
        await self.subscribe(name, hop)
        try:
            return await asyncio.wait_for(arrived, PATIENCE) - started
        except TimeoutError:
            raise WorkloadError(f"nothing came to a new subscriber within {PATIENCE:g} s") from None
        finally:
            del self._expected[document.number]

    async def attached(self, hop: int) -> PsirpClient:
        return await PsirpClient.attach(socket_of(self._work / "net", f"n{hop}"), application="workload")

    def _check(self) -> None:
        if self.stop.is_set():
            raise WorkloadError("interrupted")

    async def _post(self, hop: int, form: dict[str, str]) -> None:
        hub = self._hubs[hop]
        address = 1 + self._number % ADDRESSES
        free = self._clients[hub, address]
        client = free.pop() if free else LoopbackClient(hub, f"127.0.0.{address}")
        try:
            status, said = await client.post_form("/", urlencode(form))
        except ConnectionError as error:
            raise WorkloadError(f"{hub}: {error}") from None
        if len(free) < 64:
            free.append(client)
        else:
            client.close()
        if status not in (202, 204):
            raise WorkloadError(f"{hub} answered {status}: {said.decode(errors='replace').strip()}")
