"""Hostile requests for a real hub on loopback: nothing but refusals may come of them.

A seeded generator makes raw requests (forms, headers, encodings, methods, heads that no library would send); a hub
with its client shut (it connects to nobody) answers them over real sockets. What must hold: no 5xx, no exception
anywhere, an answer or a closed connection in time, rows on disk only from requests that were accepted, memory flat.
Each request carries a mark in its URLs, by which a row is traced back to it.
"""

import asyncio
import ctypes
import gc
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote_from_bytes, unquote

from push_hub.canary import CanaryConfig
from push_hub.diagnostics import DiagnosticsConfig
from push_hub.hub import DATABASE_NAME, Hub, HubConfig
from push_hub.server import ServerConfig
from serving.limits import Rate
from storage import Database

AT_ONCE = 16
ANSWER_TIMEOUT = 10.0
FLAT_BYTES = 24 * 1024 * 1024
"""Growth up to this is noise of the allocator and of SQLite's page cache."""
WARM_UP = 500
MAX_FAILURES_KEPT = 20
MAX_TEXT_KEPT = 2_000
HISTORY_ROWS = 1_000
NO_ANSWER = "closed"
UNLIMITED = Rate(1e9, 1e9)
TOKEN = "fuzz"  # noqa: S105 - opens a hub that lives as long as the run
MARK = re.compile(r"mark(\d+)x")
MARKED_COLUMNS = (
    ("pings", "topic"),
    ("unwanted_pings", "topic"),
    ("verifications", "callback"),
    ("subscriptions", "callback"),
    ("subscription_history", "callback"),
    ("topics", "url"),
    ("publications", "topic"),
)

Pair = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class HubFuzzFailure:
    reason: str
    request: bytes


@dataclass(slots=True)
class HubFuzzReport:
    seed: int
    requests: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    failures: list[HubFuzzFailure] = field(default_factory=list)
    stored_wrongly: list[str] = field(default_factory=list)
    memory_before: int = 0
    memory_after: int = 0

    @property
    def memory_flat(self) -> bool:
        return self.memory_after - self.memory_before <= FLAT_BYTES

    @property
    def passed(self) -> bool:
        return not self.failed and not self.stored_wrongly and self.memory_flat

    def fail(self, reason: str, request: bytes) -> None:
        self.failed += 1
        if len(self.failures) < MAX_FAILURES_KEPT:
            self.failures.append(HubFuzzFailure(reason, request[:2000]))


class Accepted:
    """What was said in the requests that were accepted."""

    def __init__(self) -> None:
        self._marks: set[str] = set()
        self._texts: list[str] = []

    def add(self, request: bytes) -> None:
        text = unquote(request.decode("latin-1"))
        self._marks.update(MARK.findall(text))
        self._texts.append(text[:MAX_TEXT_KEPT])

    def said(self, url: str) -> bool:
        if self._marks.intersection(MARK.findall(url)):
            return True
        url = unquote(url)
        return any(url in text for text in self._texts)  # its mark was damaged


# -- the generator


def hostile_requests(seed: int) -> Iterator[bytes]:
    """Endless; request number n (from 0) is marked `mark<n>x`."""
    rng = random.Random(seed)  # noqa: S311 - repeatable on purpose
    number = 0
    while True:
        request = _request(rng, number)
        if rng.random() < 0.15:
            request = _damaged(rng, request)
        yield request
        number += 1


def _request(rng: random.Random, number: int) -> bytes:
    if rng.random() < 0.2:
        return _question(rng, number)
    fields = _fields(rng, number)
    for _ in range(rng.choice((0, 0, 1, 1, 2, 4))):
        fields = rng.choice(_FIELD_CHANGES)(rng, fields)
    body = b"&".join(
        (name if rng.random() < 0.05 else quote_from_bytes(name, safe=".").encode())
        + rng.choice((b"=",) * 9 + (b"",))
        + (value if rng.random() < 0.1 else quote_from_bytes(value, safe=rng.choice(("", ":/?&"))).encode())
        for name, value in fields
    )
    target, method = b"/", b"POST"
    if rng.random() < 0.08:
        target = b"/?hub.mode=publish&hub.url=http://127.0.0.1/mark%dx" % number
    headers: list[Pair] = [(b"Host", b"hub.example"), (b"Content-Type", b"application/x-www-form-urlencoded")]
    if rng.random() < 0.3:
        headers = rng.choice(_HEADER_CHANGES)(rng, headers)
    if rng.random() < 0.08:
        method = rng.choice((b"GET", b"PUT", b"OPTIONS", b"HEAD", b"TRACE", b"CONNECT", b"FOO", b"post", b"P" * 200))
    if rng.random() < 0.06:
        target = rng.choice(
            (b"*", b"//", b"/%zz", b"/\xff", b"http://h/", b"/" + b"a" * 9000, b"/../..", b"/?" + body[:500])
        )
    return _framed(rng, method, target, headers, body)


def _fields(rng: random.Random, number: int) -> list[Pair]:
    topic = b"http://127.0.0.1:9/mark%dx" % number
    callback = b"http://127.0.0.1:9/cb/mark%dx" % number
    mode = rng.choice((b"subscribe", b"subscribe", b"unsubscribe", b"publish", b"denied", b"", b"SUBSCRIBE"))
    if mode == b"publish":
        return [(b"hub.mode", mode), (rng.choice((b"hub.url", b"hub.topic")), topic)]
    fields = [(b"hub.mode", mode), (b"hub.topic", topic), (b"hub.callback", callback)]
    extras: list[Pair] = [
        (b"hub.secret", rng.choice((b"s", b"\xc3\xa9" * 99, b"x" * 200, b"\xff\xfe", b""))),
        (b"hub.lease_seconds", rng.choice((b"600", b"0", b"-1", b"9" * 5000, b"1e9", "\u0663".encode(), b""))),
        (b"hub.verify", rng.choice((b"async", b"sync", b"maybe", b""))),
        (b"hub.verify_token", rng.choice((b"t", b"x" * 1025, b"\0"))),
        (b"hub.signature", rng.choice((b"sha512", b"md5", b"SHA1"))),
        (b"hub.difference", rng.choice((b"true", b"1"))),
        (b"hub.challenge", b"mine"),
    ]
    return fields + rng.sample(extras, rng.randrange(4))


def _drop(rng: random.Random, fields: list[Pair]) -> list[Pair]:
    return [pair for pair in fields if rng.random() < 0.7]


def _repeat(rng: random.Random, fields: list[Pair]) -> list[Pair]:
    return fields + [rng.choice(fields)] * rng.choice((1, 2, 400)) if fields else fields


def _spoil(rng: random.Random, fields: list[Pair]) -> list[Pair]:
    """Replace one value by something no URL or number should be."""
    if not fields:
        return fields
    at = rng.randrange(len(fields))
    name, value = fields[at]
    other = rng.choice(
        (
            b"",
            b"\0" + value,
            value + b"\r\nX-Injected: 1",
            value + b"#fragment",
            value.replace(b"http:", b"ftp:"),
            value.replace(
                b"127.0.0.1", rng.choice((b"[::1", b"[::1]", b"0x7f.1", b"user:pw@127.0.0.1", b"a..b", b"%00"))
            ),
            value.replace(b":9", rng.choice((b":0", b":99999", b":-1", b":a"))),
            value + b"a" * rng.choice((2000, 60_000)),
            value + b"%",
            value + "\u202e\U0001f600".encode(),
            value + b"\xff\xfe",
            bytes(rng.randrange(256) for _ in range(rng.randrange(60))),
        )
    )
    return [*fields[:at], (name, other), *fields[at + 1 :]]


def _invent(rng: random.Random, fields: list[Pair]) -> list[Pair]:
    return fields + [(b"x%d" % n, b"y") for n in range(rng.choice((1, 290, 400)))]


_FIELD_CHANGES = (_drop, _repeat, _spoil, _spoil, _spoil, _invent)


def _other_type(rng: random.Random, headers: list[Pair]) -> list[Pair]:
    types = (
        b"text/plain",
        b"application/json",
        b"multipart/form-data; boundary=x",
        b"application/x-www-form-urlencoded; charset=utf-16",
        b"application/x-www-form-urlencoded; charset=" + b"x" * 4000,
        b"application/x-www-form-urlencoded;;;=",
        b"\xff/\xfe",
        b"",
    )
    return [pair for pair in headers if pair[0] != b"Content-Type"] + [(b"Content-Type", rng.choice(types))]


def _more_headers(rng: random.Random, headers: list[Pair]) -> list[Pair]:
    extra: tuple[list[Pair], ...] = (
        [(b"X-%d" % n, b"y") for n in range(150)],
        [(b"X-Long", b"y" * 9000)],
        [(b"X-Bytes", bytes(range(0x80, 0xFF)))],
        [(b"Bad Name", b"x")],
        [(b"X", b"a\r\n folded")],
        [(b"Content-Encoding", rng.choice((b"gzip", b"br", b"deflate", b"nonsense")))],
        [(b"Expect", rng.choice((b"100-continue", b"nonsense")))],
        [(b"Authorization", rng.choice((b"Bearer " + TOKEN.encode(), b"Bearer \xff", b"Basic !", b"Bearer", b"\0")))],
        [(b"X-Forwarded-For", b"1.2.3.4, \xff")],
        [(b"Upgrade", b"websocket"), (b"Connection", b"upgrade")],
        [(b"Host", b"second.example")],
        [(b"Range", b"bytes=0-")],
        [(b"Cookie", b"a=" + b"b" * 4000)],
    )
    return headers + rng.choice(extra)


_HEADER_CHANGES: tuple[Callable[[random.Random, list[Pair]], list[Pair]], ...] = (
    _other_type,
    _more_headers,
    _more_headers,
)


def _question(rng: random.Random, number: int) -> bytes:
    """GETs of the other paths."""
    mark = b"http://127.0.0.1:9/mark%dx" % number
    values = (mark, b"", b"%00", b"%ff%fe", mark + b"%23x", b"javascript:1", b"a" * 3000, mark + b"&topic=" + mark)
    target = rng.choice(
        (
            b"/health",
            b"/stream?topic=" + rng.choice(values[1:]),
            b"/stream?last_event_id=%b&topic=" % rng.choice((b"x", b"-1", b"9" * 40)) + mark,
            b"/diagnostics/subscription?topic=%b&callback=%b" % (rng.choice(values), rng.choice(values)),
            b"/diagnostics/topic?topic=" + rng.choice(values),
            b"/diagnostics/dead-letters?after=" + rng.choice((b"0", b"x", b"9" * 40, b"%d9%a3")),
            b"/diagnostics/dead-letters?topic=" + rng.choice(values),
            b"/diagnostics/dead-letters/%b/replay" % rng.choice((b"1", b"9" * 18, b"x")),
            b"/.well-known/" + rng.choice((b"websub", b"host-meta", b"..", b"%2e%2e/x", b"\xff")),
            b"/robots.txt",
        )
    )
    headers: list[Pair] = [(b"Host", rng.choice((b"hub.example", b'"><script>', b"\xff", b"", b"a" * 3000)))]
    if rng.random() < 0.6:
        proof = b"PSPH-HMAC time=%d, mac=%b" % (rng.choice((0, 1_800_000_000, 10**11)), b"0" * 64)
        token = rng.choice(
            (b"Bearer " + TOKEN.encode(), b"Bearer " + TOKEN.encode(), proof, b"Bearer \xe9\xff", b"PSPH-HMAC")
        )
        headers.append((b"Authorization", token))
    return _framed(rng, rng.choice((b"GET", b"GET", b"HEAD", b"POST", b"OPTIONS", b"DELETE")), target, headers, b"")


def _framed(rng: random.Random, method: bytes, target: bytes, headers: list[Pair], body: bytes) -> bytes:
    """The head, and the body in one of the ways a body may be sent, or should not."""
    length = b"%d" % len(body)
    roll = rng.random()
    if roll < 0.8:
        headers = [*headers, (b"Content-Length", length)]
    elif roll < 0.88:
        chunks = [body[at : at + 100] for at in range(0, len(body), 100)]
        body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
        headers = [*headers, (b"Transfer-Encoding", b"chunked")]
    elif roll < 0.92:
        headers = [*headers, (b"Transfer-Encoding", rng.choice((b"chunked", b"gzip, chunked", b"nonsense")))]
        body = rng.choice(
            (b"zz\r\n", b"-1\r\n\r\n", b"f" * 40 + b"\r\n", b"5;ext=" + b"x" * 500 + b"\r\nhello\r\n0\r\n\r\n")
        )
    else:
        wrong = (b"-1", b"1" * 30, b"0x10", b"99999999", b"10, 10", b"", b"%d" % (len(body) + 5))
        headers = [*headers, (b"Content-Length", rng.choice(wrong))]
        if rng.random() < 0.3:
            headers = [*headers, (b"Content-Length", b"3"), (b"Transfer-Encoding", b"chunked")]
    version = rng.choice((b"HTTP/1.1",) * 30 + (b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9.9", b"", b"XTTP/1.1"))
    lines = b"".join(b"%b: %b\r\n" % pair for pair in [*headers, (b"Connection", b"close")])
    return b"%b %b %b\r\n%b\r\n%b" % (method, target, version, lines, body)


def _damaged(rng: random.Random, request: bytes) -> bytes:
    data = bytearray(request)
    roll = rng.random()
    if roll < 0.4:
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
    elif roll < 0.6:
        del data[rng.randrange(len(data)) :]
    elif roll < 0.8:
        at = rng.randrange(len(data))
        data[at:at] = rng.choice((b"\r\n\r\n", b"\0", b"\n", b"\r", b"&" * 1000, b"%"))
    else:
        data[:0] = rng.choice((b"\r\n", b"\x16\x03\x01", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b" "))
    return bytes(data)


# -- the run


async def fuzz_hub(
    directory: Path, requests: int, seed: int, progress: Callable[[int], None] = lambda _: None
) -> HubFuzzReport:
    """Start a hub in `directory`, send, stop it, and look at what it stored."""
    report = HubFuzzReport(seed)
    loop = asyncio.get_running_loop()
    earlier = loop.get_exception_handler()
    loop.set_exception_handler(lambda _loop, context: report.fail(f"an exception escaped: {_words(context)}", b""))
    hub = Hub(_config(directory))
    await hub.start()
    accepted = Accepted()
    try:
        await _send_all(hub.url, requests, report, accepted, progress)
    finally:
        await hub.stop()
        loop.set_exception_handler(earlier)
    report.memory_after = resident_bytes()
    report.stored_wrongly = await asyncio.to_thread(_stored_without_being_accepted, directory / DATABASE_NAME, accepted)
    return report


def _config(directory: Path) -> HubConfig:
    server = ServerConfig(
        per_client=UNLIMITED,
        per_callback_host=UNLIMITED,
        per_topic=UNLIMITED,
        header_timeout=0.3,
        body_timeout=0.2,
        linger=0.01,
        publisher_tokens=(TOKEN,),
    )
    # No request may leave: not even a mutated URL can reach anybody. So loopback's addresses may be named: who names
    # them gets further than to a refusal.
    return HubConfig(
        directory,
        allow_private=True,
        server=server,
        max_requests_out=0,
        canary=CanaryConfig(enabled=False),
        diagnostics=DiagnosticsConfig(operator_token=TOKEN),
        history_rows=HISTORY_ROWS,
    )


async def _send_all(
    url: str, requests: int, report: HubFuzzReport, accepted: Accepted, progress: Callable[[int], None]
) -> None:
    host, _, port = url.removeprefix("http://").rstrip("/").rpartition(":")
    source = enumerate(hostile_requests(report.seed))

    async def worker() -> None:
        for number, request in source:
            if number >= requests:
                return
            outcome = await _send(host, int(port), request, report)
            report.outcomes[outcome] += 1
            report.requests += 1
            # 409 is the honest end of a synchronous check: it leaves a line in the history.
            if outcome.startswith("2") or outcome == "409":
                accepted.add(request)
            if report.requests == min(WARM_UP, requests):
                report.memory_before = resident_bytes()
            progress(1)

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))


async def _send(host: str, port: int, request: bytes, report: HubFuzzReport) -> str:
    """The status of the answer, or that there was none."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT):
            writer.write(request)
            line = await reader.readline()
            while line.startswith(b"HTTP/1.1 100"):
                await reader.readline()
                line = await reader.readline()
    except TimeoutError:
        report.fail(f"neither answered nor closed within {ANSWER_TIMEOUT:g} seconds", request)
        return "no answer"
    except (ConnectionError, ValueError):
        return NO_ANSWER
    finally:
        writer.close()
    if not line:
        return NO_ANSWER
    match = re.match(rb"HTTP/\d\.\d (\d{3}) ", line)
    if match is None:
        report.fail(f"answered {line[:80]!r}", request)
        return "no HTTP"
    status = match[1].decode()
    if status >= "500":
        report.fail(f"answered {status}", request)
    return status


def _stored_without_being_accepted(path: Path, accepted: Accepted) -> list[str]:
    found: list[str] = []
    with Database.open(path) as database:
        for table, column in MARKED_COLUMNS:
            for (text,) in database.read(f"SELECT {column} FROM {table}"):  # noqa: S608 - own names
                if not accepted.said(str(text)):
                    found.append(f"{table}: {str(text)[:200]}")
    return found[:MAX_FAILURES_KEPT]


def _words(context: dict[str, Any]) -> str:
    return f"{context.get('message')}: {context.get('exception')!r}"[:300]


def resident_bytes() -> int:
    """Memory this process holds now, without what the allocator merely has not given back yet."""
    gc.collect()
    with suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0
