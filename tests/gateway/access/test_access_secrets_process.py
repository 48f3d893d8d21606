"""A gateway process with every kind of secret, used in every way that there is; none of them is in anything it shows.

What is looked through: its output and JSON log, the audit log, every page and answer of all three ports for every role,
metrics and health, exported spans, trace files, the node's account of itself, and what `psph config`, `psph doctor` and
a reload say. Each of these also holds something that must be there, and the search finds a secret planted into it.
"""

import asyncio
import base64
import json
import os
import secrets
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp import ClientSession, TCPConnector, web
from aiohttp.test_utils import TestServer
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from gateway.config import check
from gateway.gateway import Gateway
from psirp_stack.authentication.files import save_key_pair
from psirp_stack.authentication.keys import KeyPair
from psirp_stack.node.api import Client
from tests.gateway.access.test_access_tls import make
from tests.gateway.bootstrapping.distant import HOST, DistantDomain, feed
from tests.gateway.crossing.test_crossing import Subscriber
from tests.gateway.telemetry.test_telemetry_command import Collector
from tests.waiting import until

pytestmark = pytest.mark.timeout(240)
PATIENCE = 90.0
TOKENS = {
    "publishers": "publisher token of the hub",
    "diagnostics": "operator token of the hub",
    "viewers": "viewer token of the admin port",
    "operators": "operator token of the admin port",
    "peer": "token for the admin ports of peers",
    "rest": "publisher token of the web port",
    "domain": "secret of the links",
}
CONFIG = """
[gateway]
name = "told"
domain = "b.example"
zones = ["feedspsirp.com"]
[store]
path = "data"
[hub]
listen = "127.0.0.1:0"
allow_private = true
hosts = {{ "{host}" = "127.0.0.1" }}
stop_grace = 0.5
publisher_tokens_file = "publishers"
operator_token_file = "diagnostics"
canary = {{ interval = 0.3, deadline = 30.0 }}
tls = {{ certificate = "certificate.pem", key = "key.pem" }}
[admin]
listen = "127.0.0.1:0"
viewer_tokens_file = "viewers"
operator_tokens_file = "operators"
peer_token_file = "peer"
peers = ["{peer}"]
requests_per_client = 1000.0
tls = {{ certificate = "certificate.pem", key = "key.pem" }}
[web]
listen = "127.0.0.1:0"
publish_tokens_file = "rest"
tls = {{ certificate = "certificate.pem", key = "key.pem" }}
[discovery.register]
server = "127.0.0.1"
server_port = {nobody}
key_file = "update.key"
target = "gw.b.example"
[traces]
directory = "traces"
format = "jsonl"
[node]
name = "b"
roles = ["rendezvous", "topology"]
links = [{{ udp = "127.0.0.1:{here}", peer = "127.0.0.1:{there}" }}]
times = {{ hello = 0.2 }}
domain = {{ secret_file = "domain", rendezvous = ["b"], topology = ["b"] }}
keys = {{ signing = "node.key" }}
"""


class Secrets:
    """Every secret, in the spellings in which it could be shown."""

    def __init__(self) -> None:
        self.known: dict[str, set[bytes]] = {}

    def add(self, what: str, *spellings: str | bytes) -> None:
        for text in spellings:
            data = text.encode() if isinstance(text, str) else text
            assert len(data) >= 12, "shorter ones would be found by chance"
            forms = {data, base64.b64encode(data).rstrip(b"="), data.hex().encode(), quote(data, safe="").encode()}
            self.known.setdefault(what, set()).update(forms)

    def new(self, what: str) -> str:
        secret = secrets.token_urlsafe(24)
        self.add(what, secret)
        return secret

    def in_text(self, text: bytes) -> list[str]:
        return sorted(what for what, spellings in self.known.items() if any(one in text for one in spellings))


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket(type=socket.SOCK_DGRAM)) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def private_file(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)


def write_secrets(folder: Path) -> Secrets:
    known = Secrets()
    for name, what in TOKENS.items():
        private_file(folder / name, f"{known.new(what)}\n")
    update = secrets.token_bytes(32)
    known.add("TSIG key", update, base64.b64encode(update))
    secret = base64.b64encode(update).decode()
    private_file(folder / "update.key", f'key "gateway" {{ algorithm hmac-sha256; secret "{secret}"; }};\n')
    make(folder, "told", days=(-1, 90))
    save_key_pair(KeyPair.generate(), folder / "node.key")
    for what, name in (("TLS key", "key.pem"), ("signing key of the node", "node.key")):
        pem = (folder / name).read_bytes()
        known.add(what, *(line for line in pem.splitlines() if not line.startswith(b"-") and len(line) >= 12))
        key: Any = load_pem_private_key(pem, None)
        numbers = key.private_numbers() if hasattr(key, "private_numbers") else None
        known.add(what, key.private_bytes_raw() if numbers is None else numbers.private_value.to_bytes(32, "big"))
    return known


class Told:
    """Everything that the gateway has shown, by where."""

    def __init__(self) -> None:
        self.seen: dict[str, bytes] = {}

    def add(self, where: str, text: bytes | str) -> None:
        self.seen[where] = self.seen.get(where, b"") + (text.encode() if isinstance(text, str) else text) + b"\n"

    async def ask(self, http: ClientSession, name: str, method: str, url: str, **more: Any) -> tuple[int, bytes]:
        async with http.request(method, url, **more) as answer:
            if answer.content_type == "text/event-stream":
                async with asyncio.timeout(PATIENCE):
                    body = await answer.content.readuntil(b"\n\n")
            else:
                body = await answer.read()
            self.add(name, b"%d %s %s" % (answer.status, repr(sorted(answer.headers.items())).encode(), body))
            return answer.status, body


class Reader(Subscriber):
    """A callback that keeps everything that came with what it is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.headers: list[bytes] = []

    async def _verify(self, request: web.Request) -> web.Response:
        self.asked += 1
        return await super()._verify(request)

    async def _take(self, request: web.Request) -> web.Response:
        self.headers.append(repr(sorted(request.headers.items())).encode())
        return await super()._take(request)


class Echo:
    """A peer's admin port that repeats what it is told in its errors."""

    def __init__(self) -> None:
        self.tokens: set[str] = set()
        app = web.Application()
        app.router.add_route("*", "/{rest:.*}", self._answer)
        self.server = TestServer(app)

    async def _answer(self, request: web.Request) -> web.Response:
        self.tokens.add(request.headers.get("Authorization", ""))
        return web.Response(status=500, text=f"no: {dict(request.headers)}")


async def output_of(*words: str) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway.cli.main", *words,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    async with asyncio.timeout(PATIENCE):
        return (await process.communicate())[0].decode()


class Running:
    def __init__(self, process: asyncio.subprocess.Process, told: Told) -> None:
        self.process = process
        self.told = told
        self._reading = [
            asyncio.create_task(self._read(name, stream))
            for name, stream in (("standard output", process.stdout), ("JSON log", process.stderr))
            if stream is not None
        ]

    async def _read(self, name: str, stream: asyncio.StreamReader) -> None:
        while line := await stream.readline():
            self.told.add(name, line)

    async def said(self, what: bytes, where: str = "standard output") -> bytes:
        await until(lambda: what in self.told.seen.get(where, b""), PATIENCE)
        return next(line for line in self.told.seen[where].splitlines() if what in line)

    async def stop(self) -> int:
        if self.process.returncode is None:
            self.process.terminate()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*self._reading)
            return await self.process.wait()


@asynccontextmanager
async def started(file: Path, told: Told, collector: Collector, header: str) -> AsyncIterator[Running]:
    environment = os.environ | {
        "OTEL_EXPORTER_OTLP_ENDPOINT": str(collector.server.make_url("/")).rstrip("/"),
        "OTEL_EXPORTER_OTLP_HEADERS": f"x-key={header}",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway.cli.main", "gateway", "-c", str(file), "--log", "json",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment, limit=1 << 24,
    )  # fmt: skip
    running = Running(process, told)
    try:
        await running.said(b" is up")
        yield running
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_no_secret_is_in_anything_that_a_gateway_shows(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="needs the extra otel")
    known, told, echo, collector = write_secrets(tmp_path), Told(), Echo(), Collector()
    here, there, nobody = free_ports(3)
    header = known.new("header for the collector of spans")
    async with AsyncExitStack() as stack:
        for server in (echo.server, collector.server):
            await server.start_server()
            stack.push_async_callback(server.close)
        file = tmp_path / "gateway.toml"
        peer = str(echo.server.make_url("/"))
        file.write_text(CONFIG.format(host=HOST, peer=peer, nobody=nobody, here=here, there=there))
        trusting = ssl.create_default_context(cafile=str(tmp_path / "certificate.pem"))
        http = await stack.enter_async_context(ClientSession(connector=TCPConnector(ssl=trusting)))
        domain = await stack.enter_async_context(DistantDomain())
        await domain.http.close()
        domain.http = await stack.enter_async_context(ClientSession(connector=TCPConnector(ssl=trusting)))
        reader = Reader()
        await stack.enter_async_context(reader)
        running = await stack.enter_async_context(started(file, told, collector, header))
        hub = (await running.said(b"hub at ")).decode().split()[2]
        admin = (await running.said(b"dashboard at ")).decode().split()[2]
        page = (await running.said(b"chat page of ")).decode().split()[-1].removesuffix("chat/")
        assert {url[:6] for url in (hub, admin, page)} == {"https:"}
        other = await requester(stack, tmp_path, here=here, there=there)
        await use_upstream(http, other, domain, known)
        await use_hub(told, http, hub, domain, reader, known)
        await use_web(told, http, page, known)
        await use_admin(told, http, admin, domain, reader, known)
        assert echo.tokens == {f"Bearer {token_in(tmp_path / 'peer')}"}, "the peer was asked, and repeated the token"
        async with await Client.attach(tmp_path / "data" / "node.sock", application="test") as client:
            told.add("account of the node", await client.status())
        await reload(told, running, tmp_path)
        for words in (
            ("config", "check", str(file)),
            ("doctor", "-c", str(file), "--no-names"),
            ("doctor", "-c", str(file), "--no-names", "--json"),
        ):
            told.add(f"psph {words[0]}", await output_of(*words))
        assert await running.stop() == 0, told.seen["JSON log"][-2000:]
    told.add("audit log", (tmp_path / "data" / "audit.jsonl").read_bytes())
    told.add("spans", b"".join(collector.bodies))
    for path in sorted((tmp_path / "traces").rglob("*.*")):
        told.add("traces", path.read_bytes())
    look(told, known, domain.topic.encode())


def look(told: Told, known: Secrets, topic: bytes) -> None:
    # Each place was really looked at: it holds what it must, and the search would find what it must not.
    # (Protocol buffers and JSON hold text as it is.)
    expected = {
        "standard output": b"reloaded",
        "JSON log": topic,
        "audit log": b'"verify"',
        "spans": b"56657273696f6e::",
        "traces": topic,
        "account of the node": b'"rendezvous"',
        "psph config": b"can be used",
        "psph doctor": b"certificates",
        "hub": topic,
        "web": b"anna@b.example",
        "admin for nobody": b"401",
        "admin for viewers": topic,
        "admin for operators": topic,
        "metrics": b"psph_info{",
        "health": b"ok  store",
        "pages": b"<!doctype html>",
        "refusals": b"401",
        "deliveries": b"sha256=",
    }
    assert set(told.seen) == set(expected)
    for where, text in told.seen.items():
        assert expected[where] in text, f"{where} does not hold what it must: {text[:1000]!r}"
        for what, spellings in known.known.items():
            for secret in spellings:
                assert what in known.in_text(text[:100] + secret + text[100:]), "a planted one is found"
    assert len(known.known) >= 14
    found = {where: leaked for where, text in told.seen.items() if (leaked := known.in_text(text))}
    # An operator acts on callbacks by their full addresses, and only an operator sees those.
    assert found == {"admin for operators": ["key in the address of a callback"]}, found


def token_in(path: Path) -> str:
    return path.read_text().strip()


async def requester(stack: AsyncExitStack, folder: Path, *, here: int, there: int) -> Gateway:
    """Another domain's gateway, whose subscriber wants a topic of a zone that the first one manages."""
    document: dict[str, object] = {
        "gateway": {"name": "other"},
        "store": {"path": "other"},
        "hub": {
            "listen": "127.0.0.1:0",
            "allow_private": True,
            "hosts": {HOST: "127.0.0.1"},
            "canary": {"enabled": False},
        },
        "node": {
            "name": "a",
            "links": [{"udp": f"127.0.0.1:{there}", "peer": f"127.0.0.1:{here}"}],
            "times": {"hello": 0.2},
            "domain": {"secret_file": "domain", "rendezvous": ["b"], "topology": ["b"]},
        },
    }
    gateway = Gateway(check(document, folder))
    await gateway.start()
    stack.push_async_callback(gateway.stop)
    return gateway


async def use_upstream(http: ClientSession, other: Gateway, domain: DistantDomain, known: Secrets) -> None:
    """A subscription that the gateway holds at the hub of another domain, with a secret that it made itself."""
    async with Subscriber() as far:
        form = {"hub.mode": "subscribe", "hub.topic": domain.topic, "hub.callback": far.callback}

        async def is_subscribed() -> bool:
            async with http.post(other.hub.url, data=form) as answer:
                assert answer.status == 202
            return bool(domain.subscribed)

        await until(is_subscribed, PATIENCE, "the network has only just come up")
        (held,) = domain.subscribed.values()
        assert held.secret is not None
        known.add("secret of the upstream subscription", held.secret)
        known.add("address where the upstream hub delivers", held.callback.rpartition("/")[2])
        await until(lambda: far.received, PATIENCE)
        for secret in (None, "guessed-by-a-stranger"):
            await domain.push(feed("second", str(secret)), secret)
        await until(lambda: any(b"None" in body for _, body, _ in far.received), PATIENCE)


async def use_hub(
    told: Told, http: ClientSession, hub: str, domain: DistantDomain, reader: Reader, known: Secrets
) -> None:
    form = {
        "hub.mode": "subscribe",
        "hub.topic": domain.topic,
        "hub.secret": known.new("secret of a subscriber"),
        "hub.callback": f"{reader.callback}?key={known.new('key in the address of a callback')}",
    }
    assert (await told.ask(http, "hub", "POST", hub, data=form))[0] == 202
    await until(lambda: reader.asked, PATIENCE)
    domain.body = feed("third")
    ping = {"hub.mode": "publish", "hub.url": domain.topic}
    assert (await told.ask(http, "hub", "POST", hub, data=ping))[0] in (202, 204)
    await until(lambda: reader.received, PATIENCE)
    for head, (_, body, _) in zip(reader.headers, reader.received, strict=True):
        told.add("deliveries", head + body)
    bring = f"{hub}?hub.mode=publish&hub.url=https://brought.example/"
    for what in ("publisher token of the hub", "operator token of the hub", "secret of a subscriber"):
        headers = {"Authorization": f"Bearer {spelled(known, what)}", "Content-Type": "text/plain"}
        status, _ = await told.ask(http, "hub", "POST", bring, headers=headers, data=b"brought")
        assert (status in (202, 204)) == (what == "publisher token of the hub"), (what, status)
        for path in (
            "",
            "health",
            ".well-known/websub",
            "nowhere",
            f"diagnostics/topic?topic={quote(domain.topic, safe='')}",
            "diagnostics/dead-letters",
        ):
            await told.ask(http, "hub", "GET", hub + path, headers=headers)
    # Requests that are refused do not repeat what was in them.
    for wrong in ({"hub.secret": form["hub.secret"] * 20}, {"hub.lease_seconds": form["hub.secret"]}):
        await told.ask(http, "refusals", "POST", hub, data=form | wrong)


def spelled(known: Secrets, what: str) -> str:
    """A token as it is written: the shortest of its spellings that is text of the right kind."""
    return min(known.known[what], key=len).decode()


async def use_web(told: Told, http: ClientSession, page: str, known: Secrets) -> None:
    status, _ = await told.ask(http, "pages", "GET", f"{page}chat/")
    assert status == 200
    async with http.post(f"{page}chat/session", json={"user": "anna"}) as answer:
        token = (await answer.json())["token"]  # this one answer is where somebody is told their token
    known.add("token of a person's page", token)
    mine = {"Authorization": f"Bearer {token}"}
    said = {"partner": "bob@b.example", "text": "hello", "id": "one"}
    for method, path, more in (
        ("GET", "chat/about", {}),
        ("GET", "chat/session", {}),
        ("POST", "chat/conversations", {"json": {"partner": "bob@b.example"}}),
        ("POST", "chat/messages", {"json": said}),
        ("GET", "chat/messages?partner=bob@b.example", {}),
        ("GET", "chat/events?since=0", {}),
    ):
        status, _ = await told.ask(http, "web", method, page + path, headers=mine, **more)
        assert status < 300, (path, status)
    topic = f"{page}topics?name=https://rest.example/feed"
    for what in ("publisher token of the web port", "publisher token of the hub", "token of a person's page"):
        headers = {"Authorization": f"Bearer {spelled(known, what)}"}
        status, _ = await told.ask(http, "web", "POST", topic, headers=headers, data=b"news")
        assert status == (201 if what == "publisher token of the web port" else 403)
        await told.ask(http, "web", "GET", f"{page}chat/session", headers=headers | {"X": "y"})
    await told.ask(http, "web", "GET", topic)
    await told.ask(http, "refusals", "POST", topic, headers={"Authorization": "Basic abc"}, data=b"x")


async def use_admin(
    told: Told, http: ClientSession, admin: str, domain: DistantDomain, reader: Reader, known: Secrets
) -> None:
    callback = f"{reader.callback}?key={spelled(known, 'key in the address of a callback')}"
    topic = quote(domain.topic, safe="")
    for path in ("", "dashboard.js", "dashboard.css", "picture.js", "icon.svg"):
        await told.ask(http, "pages", "GET", admin + path)
    for path in ("healthz", "readyz"):
        await told.ask(http, "health", "GET", admin + path)
    operator = {"Authorization": f"Bearer {spelled(known, 'operator token of the admin port')}"}
    viewer = {"Authorization": f"Bearer {spelled(known, 'viewer token of the admin port')}"}
    for role, headers in (("nobody", {}), ("viewers", viewer), ("operators", operator)):
        for action in ("verify", "retry", "fetch", "pause", "resume", "nonsense"):
            asked = {"topic": domain.topic, "callback": callback}
            status, _ = await told.ask(
                http, f"admin for {role}", "POST", f"{admin}api/actions/{action}", json=asked, headers=headers
            )
            assert (status < 500, status in (401, 403)) == (True, role != "operators"), (role, action, status)
        for path in (
            "who", "snapshot", "stream", "topics", f"topics?q={topic}", f"topic?topic={topic}", f"ways?topic={topic}",
            "audit", "nowhere",
        ):  # fmt: skip
            await told.ask(http, f"admin for {role}", "GET", f"{admin}api/{path}", headers=headers)
    status, _ = await told.ask(http, "metrics", "GET", f"{admin}metrics", headers=viewer)
    assert status == 200
    for what in sorted(what for what in known.known if "token" in what)[:8]:
        wrong = {"Authorization": f"Bearer {spelled(known, what)}x"}
        assert (await told.ask(http, "refusals", "GET", f"{admin}api/snapshot", headers=wrong))[0] == 401
    for _ in range(2):  # what was refused is not among the events either
        status, body = await told.ask(http, "admin for viewers", "GET", f"{admin}api/snapshot", headers=viewer)
        assert json.loads(body)


async def reload(told: Told, running: Running, folder: Path) -> None:
    running.process.send_signal(signal.SIGHUP)
    await running.said(b"reloaded")
    kept = (folder / "publishers").read_text()
    for mode, text in ((0o644, kept), (0o600, f"{kept}another-token-of-somebody\n")):
        (folder / "publishers").write_text(text)
        (folder / "publishers").chmod(mode)
        running.process.send_signal(signal.SIGHUP)
        where = "JSON log" if mode == 0o644 else "standard output"
        await running.said(b"not reloaded" if mode == 0o644 else b"hub.server.publisher_tokens", where)
