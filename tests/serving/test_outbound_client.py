"""The client against real servers on loopback, most of them bad."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from perf.loopback import answer
from serving.outbound.addresses import AddressPolicy
from serving.outbound.client import ClientConfig, OutboundClient, OutboundResponse, PostOutcome
from serving.outbound.errors import (
    AddressRefusedError,
    ClientBusyError,
    ClientClosedError,
    OutboundError,
    OutboundTimeoutError,
    ResponseTooLargeError,
    ShareTakenError,
    UrlRefusedError,
)
from serving.outbound.headers import header_line
from serving.outbound.transfer import NO_ADDRESS
from tests.push_hub.delivery.delivery_support import CallbackServer, loopback_client, status

Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
async def client() -> AsyncIterator[OutboundClient]:
    made = loopback_client()
    yield made
    await made.close()


@asynccontextmanager
async def server(behaviour: Behaviour, **settings: Any) -> AsyncIterator[str]:
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await reader.readuntil(b"\r\n\r\n")
            await behaviour(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(handle, "127.0.0.1", 0, **settings)
    port = listening.sockets[0].getsockname()[1]
    try:
        yield f"127.0.0.1:{port}"
    finally:
        listening.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await listening.wait_closed()


def writes(data: bytes, then_wait: bool = False) -> Behaviour:
    async def behave(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        if then_wait:
            await asyncio.Event().wait()

    return behave


async def endless(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"x" * 65536)
        await writer.drain()


async def endless_headers(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X-Filler: " + b"x" * 1000 + b"\r\n")
        await writer.drain()


async def get(client: OutboundClient, url: str, time_allowed: float = 5.0) -> OutboundResponse:
    return await client.request("GET", url, headers={}, body=None, timeout=time_allowed, max_bytes=100_000)


async def test_status_headers_and_body_come_back_as_they_were(client: OutboundClient) -> None:
    answer = (
        b"HTTP/1.1 404 No\r\nLink: <a>\r\nlink: <b>\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\n\x1f\x8b!"
    )
    async with server(writes(answer)) as host:
        response = await get(client, f"http://{host}/")
    assert (response.status, response.body) == (404, b"\x1f\x8b!")  # not decompressed
    assert response.headers.get_all("LINK") == ("<a>", "<b>")
    assert response.headers.get("content-encoding") == "gzip"
    assert "missing" not in response.headers


async def test_the_request_is_what_was_asked_for(client: OutboundClient) -> None:
    async with CallbackServer(lambda *_: status(200)) as callbacks:
        for method, body in (("GET", None), ("POST", b"body"), ("HEAD", None), ("POST", None)):
            await client.request(
                method,
                callbacks.url("/a/../b?x&x=1"),
                headers={"X-One": "1", "X-Empty": ""},
                body=body,
                timeout=5,
                max_bytes=10,
            )
        assert [lines[0] for lines in callbacks.lines] == [
            f"{method} /a/../b?x&x=1 HTTP/1.1" for method in ("GET", "POST", "HEAD", "POST")
        ]
        assert [body for _, _, body in callbacks.requests] == [b"", b"body", b"", b""]
        assert all(headers["x-one"] == "1" and headers["x-empty"] == "" for _, headers, _ in callbacks.requests)
        assert client.counts.connections == 1  # kept alive


async def test_a_request_has_nothing_of_the_one_before_it(client: OutboundClient) -> None:
    """Handles are used again: of an answer that was read to its end, and not of others."""
    answers = [answer(200, b"first", {"X-First": "1"}), answer(200, b"second"), answer(200, b"x" * 200), answer(204)]
    async with CallbackServer(lambda *_: answers.pop(0)) as callbacks:

        async def ask(headers: dict[str, str], most: int = 100) -> OutboundResponse:
            return await client.request(
                "GET", callbacks.url("/feed"), headers=headers, body=None, timeout=5, max_bytes=most
            )

        first, second = await ask({"If-None-Match": '"a"'}), await ask({})
        assert (first.body, first.headers.get("X-First")) == (b"first", "1")
        assert (second.body, second.headers.get("X-First")) == (b"second", None)
        with pytest.raises(ResponseTooLargeError):
            await ask({})
        assert (await ask({}, 0)).body == b""
        assert ["if-none-match" in headers for _, headers, _ in callbacks.requests] == [True, False, False, False]


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
async def test_redirects_are_answers_not_orders(client: OutboundClient, code: int) -> None:
    async with CallbackServer(lambda *_: status(code, "Location: /other")) as callbacks:
        response = await get(client, callbacks.url("/x"))
        assert response.status == code
        assert response.headers.get("location") == "/other"
        assert len(callbacks.requests) == 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\xff garbage that is no HTTP\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200",
    ],
)
async def test_a_broken_answer_is_an_error_in_words(client: OutboundClient, data: bytes) -> None:
    async with server(writes(data)) as host:
        try:
            response = await get(client, f"http://{host}/")
        except OutboundError as error:
            assert error.reason
        else:
            assert data == b"HTTP/1.1 200"
            assert response.body == b""


@pytest.mark.parametrize("behaviour", [endless, endless_headers])
async def test_an_endless_answer_is_cut(client: OutboundClient, behaviour: Behaviour) -> None:
    async with server(behaviour) as host:
        with pytest.raises(ResponseTooLargeError):
            await get(client, f"http://{host}/")
    assert client.counts.too_large == 1


@pytest.mark.parametrize("data", [b"", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx"])
async def test_a_server_that_stalls_runs_into_the_time_limit(client: OutboundClient, data: bytes) -> None:
    async with server(writes(data, then_wait=True)) as host:
        with pytest.raises(OutboundTimeoutError) as caught:
            await get(client, f"http://{host}/", 0.1)
    assert caught.value.reason == "no complete answer within 0.1 seconds"


async def test_nobody_listening_is_an_error(client: OutboundClient) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        with pytest.raises(OutboundError) as caught:
            await get(client, f"http://127.0.0.1:{held.getsockname()[1]}/")
    assert caught.value.reason == "no connection could be made"


async def test_a_name_is_judged_by_what_it_resolves_to() -> None:
    """The URL is innocent; the guard acts on the address, at connect time, and tells nobody what it saw."""
    client = OutboundClient(ClientConfig(policy=AddressPolicy()))
    async with CallbackServer() as callbacks:
        with pytest.raises(AddressRefusedError) as caught:
            await get(client, f"http://localhost:{callbacks.port}/")
        assert callbacks.requests == []
    with pytest.raises(OutboundError) as unknown:
        await get(client, "http://nobody.invalid/")
    assert caught.value.reason == unknown.value.reason == NO_ADDRESS
    assert "127" not in NO_ADDRESS
    assert client.counts.refused_addresses >= 1
    assert client.counts.connections == 0
    await client.close()


async def test_forbidden_urls_are_refused_on_both_ways_in(client: OutboundClient) -> None:
    for url in ("http://169.254.169.254/latest", "ftp://127.0.0.1/", "http://u:p@127.0.0.1/", "file:///etc/passwd"):
        with pytest.raises(UrlRefusedError):
            await get(client, url)
        with pytest.raises(UrlRefusedError):
            client.channel(1.0, 10, lambda _: None).post(url, [], b"", None)
    assert (client.under_way, client.counts.connections) == (0, 0)


def certificate(folder: Path) -> Path:
    """A certificate for 127.0.0.1 that nobody but a client told so trusts, with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), False)
        .sign(key, hashes.SHA256())
    )
    path = folder / "server.pem"
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(made.public_bytes(Encoding.PEM) + secret)
    return path


async def test_tls_works_when_the_certificate_is_trusted_and_only_then(client: OutboundClient, tmp_path: Path) -> None:
    path = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    trusting = loopback_client(ca_file=str(path))
    async with server(writes(status(200)), ssl=context) as host:
        assert (await get(trusting, f"https://{host}/")).status == 200
        with pytest.raises(OutboundError) as caught:
            await get(client, f"https://{host}/")
    assert caught.value.reason == "the server's certificate could not be verified"
    await trusting.close()


async def test_a_caller_that_gives_up_leaves_nothing_behind(client: OutboundClient) -> None:
    async with server(writes(b"", then_wait=True)) as host:
        task = asyncio.create_task(get(client, f"http://{host}/"))
        await asyncio.sleep(0)
        assert client.under_way == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert client.under_way == 0


async def test_closing_ends_what_is_under_way() -> None:
    client = loopback_client()
    async with server(writes(b"", then_wait=True)) as host:
        task = asyncio.create_task(get(client, f"http://{host}/"))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(ClientClosedError):
            await task
        with pytest.raises(ClientClosedError):
            await get(client, f"http://{host}/")


async def test_too_many_at_once_are_refused() -> None:
    client = loopback_client(max_under_way=1)
    async with server(writes(b"", then_wait=True)) as host:
        task = asyncio.create_task(get(client, f"http://{host}/"))
        await asyncio.sleep(0)
        with pytest.raises(ClientBusyError):
            await get(client, f"http://{host}/")
        await client.close()
        with pytest.raises(ClientClosedError):
            await task


async def test_posts_report_status_retry_after_and_failure(client: OutboundClient) -> None:
    reports: asyncio.Queue[list[PostOutcome]] = asyncio.Queue()
    channel = client.channel(5.0, 100, reports.put_nowait)
    async with CallbackServer(lambda *_: status(503, "Retry-After: 7")) as callbacks, server(endless) as host:
        channel.post(callbacks.url("/x"), [b"X: y"], b"body", "one")
        assert await reports.get() == [("one", 503, 7, None)]
        channel.post(f"http://{host}/", [], b"", "two")
        ((tag, code, _, error),) = await reports.get()
        assert (tag, code) == ("two", 0)
        assert isinstance(error, ResponseTooLargeError)


@pytest.mark.parametrize(("name", "value"), [("X\r\nY", "1"), ("X", "1\r\nY: 2"), ("", "1"), ("X Y", "1"), ("X", "\0")])
def test_a_header_cannot_smuggle_in_another(name: str, value: str) -> None:
    with pytest.raises(ValueError, match="not allowed"):
        header_line(name, value)


async def test_a_name_is_known_by_where_it_was_connected_to_whoever_asked(client: OutboundClient) -> None:
    async with server(writes(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")) as where:
        port = where.rpartition(":")[2]
        alias = f"localhost:{port}"
        assert client.prefixes.of(alias).startswith("~")
        await client.request("GET", f"http://{alias}/", headers={}, body=None, timeout=5, max_bytes=100)
        assert client.prefixes.of(alias) == client.prefixes.of(where) == f"127.0.0.1:{port}"


async def test_a_name_without_an_address_is_known_to_lead_nowhere_and_a_closed_port_is_not(
    client: OutboundClient,
) -> None:
    closed = socket.create_server(("127.0.0.1", 0))
    port = closed.getsockname()[1]
    closed.close()
    for name in ("www.nowhere.invalid", f"127.0.0.1:{port}"):
        with pytest.raises(OutboundError):
            await client.request("GET", f"http://{name}/", headers={}, body=None, timeout=20, max_bytes=100)
    assert client.prefixes.of("www.nowhere.invalid") == "~~nowhere.invalid"
    assert client.prefixes.of(f"127.0.0.1:{port}") == f"127.0.0.1:{port}"


async def test_no_connection_is_made_to_a_prefix_that_has_its_share(client: OutboundClient) -> None:
    asked: list[str] = []

    def full(prefix: str) -> bool:
        asked.append(prefix)
        return False

    async with server(writes(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")) as where:
        with pytest.raises(ShareTakenError) as caught:
            await client.request(
                "GET", f"http://{where}/", headers={}, body=None, timeout=5, max_bytes=100, counted=full
            )
    assert asked == [caught.value.prefix] == [f"127.0.0.1:{where.rpartition(':')[2]}"]
    assert client.counts.connections == 0
    assert client.counts.refused_shares == 1


async def test_posts_ask_by_their_tag_before_each_new_connection(client: OutboundClient) -> None:
    asked: list[tuple[object, str]] = []
    ended: list[PostOutcome] = []
    arrived = asyncio.Event()

    def counted(tag: object, prefix: str) -> bool:
        asked.append((tag, prefix))
        return tag != "no"

    def done(outcomes: list[PostOutcome]) -> None:
        ended.extend(outcomes)
        arrived.set()

    channel = client.channel(5.0, 1000, done, counted)
    async with CallbackServer() as there:
        for tag in ("no", "yes", "again"):
            arrived.clear()
            channel.post(there.url("/x"), [], b"", tag)
            await asyncio.wait_for(arrived.wait(), 10)
        prefix = f"127.0.0.1:{there.port}"
        assert asked == [("no", prefix), ("yes", prefix)]  # the third used the second's connection
        assert [(tag, code) for tag, code, _, _ in ended] == [("no", 0), ("yes", 204), ("again", 204)]
        assert isinstance(ended[0][3], ShareTakenError)


@pytest.mark.parametrize(("what", "reached"), [("closes", True), ("is silent", True), ("is not there", False)])
async def test_a_failure_says_whether_the_server_was_reached(client: OutboundClient, what: str, reached: bool) -> None:
    async def behave(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        if what == "is silent":
            await reader.read()

    async with server(behave) as url:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            nobody = f"127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(OutboundError) as failed:
            await get(client, f"http://{nobody if what == 'is not there' else url}/", 0.3)
        assert failed.value.reached is reached
