"""Two domains on one machine, for a first look: a feed in one, a subscriber in the other, PSIRP between them.

    blog in domain B  --ping-->  gateway B  ==n0==n1==n2==n3==n4==  gateway A  --POST-->  reader in domain A

Everything is real (two hubs over HTTP, two gateways, five nodes on in-process links); only the addresses are this
machine's. The blog writes a new entry now and then and pings its hub; the reader notes what arrives, and when. Each
domain has a chat page for its people as well, and a broker: a sensor of domain B says with each entry how warm it is,
and its readings are a feed in domain A.
"""

import asyncio
import re
import statistics
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import aiomqtt
from aiohttp import ClientError, ClientSession, ClientTimeout, web

from gateway.admin.config import AdminConfig
from gateway.gateway import Gateway, gateway_config
from gateway.protocols.chat.adapter import ChatConfig
from gateway.protocols.mqtt.protocol import MqttProtocol
from gateway.protocols.mqtt.section import MqttConfig, MqttPlace
from gateway.protocols.mqtt.users import KnownUsers
from gateway.web.server import WebConfig
from psirp_stack.emulation.network import EmulatedNetwork, socket_of
from psirp_stack.emulation.plan import plan
from psirp_stack.node.config import TimesFile
from push_hub.canary import CanaryConfig
from push_hub.client import ClientError as PushClientError
from push_hub.client import discover_topic, feed_links, link_header
from push_hub.feed_proxy.proxy import FeedProxyConfig
from push_hub.hub import HubConfig

NODES = 5
HOST = "127.0.0.1"
ATOM = "application/atom+xml"
ENTRIES = 10
"""Entries that the blog's feed shows, and moments of writing that the reader is compared with."""
SENSOR = "kitchen/temp"
REMEMBERED = 1000
START_PATIENCE = 30.0
_NUMBER = re.compile(rb"<id>urn:psph:demo:(\d{1,18}):(\d{1,18})</id>")


class DemoError(Exception):
    """The demonstration could not be set up; the text says why."""


@dataclass(frozen=True, slots=True)
class DemoArrival:
    """An entry that the reader got, `delay` seconds after the blog had written it."""

    number: int
    delay: float
    size: int


@dataclass(slots=True)
class Summary:
    """What crossed so far. Delays are of all arrivals, as seconds."""

    written: int = 0
    refused: int = 0
    arrived: int = 0
    repeated: int = 0
    size: int = 0
    delays: list[float] = field(default_factory=list)

    def lines(self) -> list[str]:
        said = [f"{self.written} written, {self.arrived} crossed, {self.size:,} bytes, {self.repeated} twice"]
        if self.refused:
            said.append(f"{self.refused} pings were not taken")
        if self.delays:
            middle = statistics.median(self.delays) * 1000
            least, most = min(self.delays) * 1000, max(self.delays) * 1000
            said.append(f"from writing to the reader: {middle:.1f} ms median, {least:.1f} to {most:.1f} ms")
        return said


class Demo:
    """Use as `async with Demo(data, told) as demo`, then `await demo.write()` as often as wanted."""

    def __init__(self, data: Path, told: Callable[[DemoArrival], None], entry_bytes: int = 200) -> None:
        self.summary = Summary()
        self.addresses: dict[str, str] = {}
        self.dashboards: dict[str, str] = {}
        self._data = data
        self._told = told
        self._entry_bytes = entry_bytes
        self._stack = AsyncExitStack()
        self._life = int(time.time())
        """In the entries' ids, so that a restart on the same data does not repeat old news."""
        self._number = 0
        self._entries: list[tuple[int, str]] = []
        self._written: OrderedDict[int, float] = OrderedDict()
        self._arrived: OrderedDict[int, None] = OrderedDict()
        self._news = asyncio.Event()

    async def __aenter__(self) -> Self:
        try:
            async with asyncio.timeout(START_PATIENCE):
                await self._start()
        except TimeoutError:
            await self._stack.aclose()
            raise DemoError(f"it was not up after {START_PATIENCE:g} seconds") from None
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _start(self) -> None:
        folder = self._data / "network"
        folder.mkdir(parents=True, exist_ok=True)
        document: dict[str, object] = {"seed": "psph demo", "generate": {"kind": "line", "nodes": NODES}}
        document["roles"] = {"rendezvous": f"n{NODES // 2}"}
        network = await EmulatedNetwork.start(plan(document, folder), folder, TimesFile(hello=0.2))
        self._stack.push_async_callback(network.close)
        await network.settled()
        self._http = await self._stack.enter_async_context(ClientSession(timeout=ClientTimeout(total=10)))
        self.gateway_b = await self._gateway("b", socket_of(folder, "n0"))
        self.gateway_a = await self._gateway("a", socket_of(folder, f"n{NODES - 1}"))
        self._introduce()
        broker = self.gateway_b.core.protocol(MqttProtocol).open[0]
        self._sensor = aiomqtt.Client(broker.host, broker.port, identifier="thermometer")
        await self._stack.enter_async_context(self._sensor)
        self.readings = f"{_web(self.gateway_a)}feeds?name=mqtt://b.example/{SENSOR}"
        asking = asyncio.create_task(self._ask_once())
        self._stack.callback(asking.cancel)
        self.topic = await self._serve("/feed", get=self._feed)
        self.callback = await self._serve("/reader", get=self._agree, post=self._take)
        self.addresses = {
            "domain B, hub": self.gateway_b.hub.url,
            "domain B, feed": self.topic,
            "domain A, hub": self.gateway_a.hub.url,
            "domain A, feed": f"{self.gateway_a.hub.url}feeds/{self.topic}",
            "domain A, reader": self.callback,
            "domain B, chat": _chat_page(self.gateway_b),
            "domain A, chat": _chat_page(self.gateway_a),
            "domain B, MQTT": broker.url,
            "domain A, sensor": self.readings,
        }
        # The feed names the hub of domain B; a reader that is given its address at gateway A uses the hub of its own.
        try:
            found = await discover_topic(self.gateway_a.hub.outbound, f"{self.gateway_a.hub.url}feeds/{self.topic}")
        except PushClientError as error:
            raise DemoError(str(error)) from None
        form = {"hub.mode": "subscribe", "hub.topic": found.topic, "hub.callback": self.callback}
        async with self._http.post(found.hubs[0], data=form) as answer:
            if answer.status != 202:
                raise DemoError(f"the hub of domain A refused the subscription: {await answer.text()}")
        subscriptions = self.gateway_a.hub.subscriptions
        while not subscriptions.count(self.topic):  # noqa: ASYNC110  (the hub tells nobody of a verification)
            await asyncio.sleep(0.01)

    async def write(self) -> int:
        """The blog has news, and pings its hub. Says the entry's number."""
        number = self._compose()
        self.summary.written += 1
        await self._sensor.publish(SENSOR, f"{20 + number % 30 / 10:.1f} degrees".encode(), 1)
        try:
            form = {"hub.mode": "publish", "hub.url": self.topic}
            async with self._http.post(self.gateway_b.hub.url, data=form) as answer:
                taken = answer.status in (202, 204)
        except (ClientError, TimeoutError):
            taken = False
        self.summary.refused += not taken
        return number

    async def _ask_once(self) -> None:
        """A feed that somebody has asked for is looked after from then on."""
        async with self._http.get(self.readings) as answer:
            await answer.read()

    async def arrival(self, number: int) -> None:
        """Wait until the reader has an entry."""
        while number not in self._arrived:
            self._news.clear()
            await self._news.wait()

    async def _gateway(self, domain: str, socket: Path) -> Gateway:
        data = self._data / domain
        hub = HubConfig(
            data / "hub",
            host=HOST,
            allow_private=True,
            feeds=FeedProxyConfig(enabled=True),
            canary=CanaryConfig(enabled=False),
        )
        name = f"{domain}.example"
        config = gateway_config(
            data,
            hub,
            attach=socket,
            name=f"gateway-{domain}",
            domain=name,
            web=WebConfig(HOST),
            chat=ChatConfig(name),
            admin=AdminConfig(HOST),
            protocols={"mqtt": MqttConfig((MqttPlace(HOST, 0),), domain=name, users=KnownUsers(allow_anonymous=True))},
        )
        gateway = Gateway(config)
        self._stack.push_async_callback(gateway.stop)
        await gateway.start()
        return gateway

    def _introduce(self) -> None:
        """Each dashboard shows the other domain's part of a publication's way."""
        a, b = self.gateway_a.admin, self.gateway_b.admin
        if a is not None and b is not None:
            a.peers.add(b.url)
            b.peers.add(a.url)
            self.dashboards = {"domain B": b.url, "domain A": a.url}

    async def _serve(
        self,
        path: str,
        get: Callable[[web.Request], object],
        post: Callable[[web.Request], object] | None = None,
    ) -> str:
        app = web.Application(client_max_size=8 * 1024 * 1024)
        app.router.add_get(path, get)  # type: ignore[arg-type]
        if post is not None:
            app.router.add_post(path, post)  # type: ignore[arg-type]
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, HOST, 0).start()
        port = runner.addresses[0][1]
        return f"http://{HOST}:{port}{path}"

    # The blog.

    def _compose(self) -> int:
        self._number += 1
        text = f"Entry {self._number}, written at {time.strftime('%H:%M:%S')}. ".ljust(self._entry_bytes, ".")
        self._entries = [(self._number, text), *self._entries][:ENTRIES]
        self._written[self._number] = time.perf_counter()
        while len(self._written) > REMEMBERED:
            self._written.popitem(last=False)
        return self._number

    async def _feed(self, request: web.Request) -> web.Response:
        hubs = [self.gateway_b.hub.url]
        entries = "".join(
            f"<entry><id>urn:psph:demo:{self._life}:{number}</id><title>{number}</title><content>{text}</content></entry>"
            for number, text in self._entries
        )
        body = (
            '<?xml version="1.0" encoding="utf-8"?><feed xmlns="http://www.w3.org/2005/Atom">'
            f"<id>urn:psph:demo</id><title>A blog in domain B</title>{feed_links(hubs, self.topic)}{entries}</feed>"
        )
        return web.Response(text=body, content_type=ATOM, headers={"Link": link_header(hubs, self.topic)})

    # The reader.

    async def _agree(self, request: web.Request) -> web.Response:
        if request.query.get("hub.topic") != self.topic:
            return web.Response(status=404)
        return web.Response(text=request.query.get("hub.challenge", ""))

    async def _take(self, request: web.Request) -> web.Response:
        body = await request.read()
        now = time.perf_counter()
        numbers = [int(number) for life, number in _NUMBER.findall(body) if int(life) == self._life]
        newest = max(numbers, default=None)
        if newest is None:  # from before a restart on the same data
            return web.Response()
        if newest in self._arrived:
            self.summary.repeated += 1
            return web.Response()
        # A ping that came while an earlier one was looked at may bring two entries at once.
        for number in sorted(numbers):
            if number in self._written and number not in self._arrived:
                self._note(number, now, len(body))
        self._news.set()
        return web.Response()

    def _note(self, number: int, now: float, size: int) -> None:
        arrival = DemoArrival(number, now - self._written[number], size)
        self._arrived[number] = None
        while len(self._arrived) > REMEMBERED:
            self._arrived.popitem(last=False)
        self.summary.arrived += 1
        self.summary.size += size
        self.summary.delays.append(arrival.delay)
        del self.summary.delays[:-REMEMBERED]
        self._told(arrival)


def _chat_page(gateway: Gateway) -> str:
    return f"{_web(gateway)}chat/"


def _web(gateway: Gateway) -> str:
    return "" if gateway.web is None else gateway.web.url
