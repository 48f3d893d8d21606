"""One libcurl handle and what it is set to: the guard, the bounds, and how its end is told.

`Post` is the light kind, reused for delivery after delivery; `RequestHandle` keeps a whole answer, and is reused while
all it did is read.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pycurl

from serving.fairness import KnownPrefixes, name_in
from serving.outbound.errors import (
    AddressRefusedError,
    OutboundError,
    OutboundTimeoutError,
    ResponseTooLargeError,
    ShareTakenError,
)
from serving.outbound.headers import header_line
from serving.outbound.values import ClientConfig, ClientCounts, Headers, OutboundResponse, PostCounted, PostOutcome

MAX_HEADER_BYTES = 64 * 1024
CONNECT_TIMEOUT_MS = 10_000
MOST_IDLE = 64
"""Handles that are kept for requests to come: to make one and set it up takes as long as to read an answer with it."""
NO_ADDRESS = "the host's name leads to no address that this hub connects to"
"""For names that lead nowhere and names that lead inside alike: who asks shall not learn from it which are there."""


# An opaque handle: pycurl ships no types.
Curl = Any


@dataclass(frozen=True, slots=True)
class Setup:
    """What all handles of one client share."""

    config: ClientConfig
    counts: ClientCounts
    watch: Callable[[int, int], int]
    prefixes: KnownPrefixes


class _Handed(socket.socket):
    """A socket that is closed quietly once libcurl has its own copy of the descriptor."""

    def __del__(self) -> None:
        self.close()


class Transfer:
    """A handle with the options that every use of it shares. `setopt` and `getinfo` are the handle's own."""

    __slots__ = (
        "counted",
        "curl",
        "getinfo",
        "max_bytes",
        "received",
        "refused",
        "setopt",
        "setup",
        "taken",
        "timeout",
        "too_large",
        "url",
    )

    def __init__(self, setup: Setup) -> None:
        self.curl: Curl = pycurl.Curl()
        self.setopt = self.curl.setopt
        self.getinfo = self.curl.getinfo
        self.setup = setup
        self.received = 0
        self.max_bytes = 0
        self.timeout = 0.0
        self.too_large = False
        self.refused = False
        self.url = ""
        self.counted: Callable[[str], bool] | None = None
        self.taken: str | None = None
        """The prefix that has its share already, if that is why no connection was made."""
        self.set_common_options()

    def finish(self, error: OutboundError | None) -> None:
        """libcurl is done with the handle, and it was taken out."""
        raise NotImplementedError

    def close(self) -> None:
        self.curl.close()

    def may_connect(self, prefix: str) -> bool:
        """Whether whoever counts requests has room for another to this prefix."""
        return self.counted is None or self.counted(prefix)

    def set_common_options(self) -> None:
        option = self.setopt
        option(pycurl.NOSIGNAL, 1)
        option(pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS)
        option(pycurl.FOLLOWLOCATION, 0)
        option(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1)
        option(pycurl.PATH_AS_IS, 1)  # a callback is posted to exactly as it was subscribed
        option(pycurl.PROXY, "")  # not even the one the environment names
        option(pycurl.NETRC, 0)
        option(pycurl.SSL_VERIFYPEER, 1)
        option(pycurl.SSL_VERIFYHOST, 2)
        authorities = self.setup.config.ca_file or _system_authorities()
        if authorities is not None:
            option(pycurl.CAINFO, authorities)
        option(pycurl.USERAGENT, self.setup.config.user_agent)
        if self.setup.config.hosts:
            option(pycurl.CONNECT_TO, [f"{name}::{address}:" for name, address in self.setup.config.hosts])
        option(pycurl.OPENSOCKETFUNCTION, self._open_socket)
        option(pycurl.SOCKOPTFUNCTION, self.setup.watch)
        option(pycurl.WRITEFUNCTION, self.on_body)

    def set_timeout(self, seconds: float) -> None:
        self.timeout = seconds
        milliseconds = max(1, round(seconds * 1000))
        self.setopt(pycurl.TIMEOUT_MS, milliseconds)
        self.setopt(pycurl.CONNECTTIMEOUT_MS, min(milliseconds, CONNECT_TIMEOUT_MS))

    def on_body(self, data: bytes) -> int | None:
        self.received += len(data)
        if self.received > self.max_bytes:
            self.too_large = True
            return 0
        return None

    def failure(self, code: int, text: str) -> OutboundError:
        """libcurl's error in our words. Host names are the caller's to add: it knows the URL."""
        if self.too_large:
            self.setup.counts.too_large += 1
            return ResponseTooLargeError(f"the answer is longer than {self.max_bytes} bytes", reached=True)
        if self.refused:
            return AddressRefusedError(NO_ADDRESS)
        if self.taken is not None:
            return ShareTakenError(self.taken)
        if code in _NO_ADDRESS_YET and not self.getinfo(pycurl.PRIMARY_IP):
            self.setup.prefixes.led_nowhere(name_in(self.url))
        reached = self.getinfo(pycurl.REQUEST_SIZE) > 0  # something of the request was sent
        if code == pycurl.E_OPERATION_TIMEDOUT:
            return OutboundTimeoutError(f"no complete answer within {self.timeout:g} seconds", reached=reached)
        return OutboundError(_FAILURES.get(code) or text or f"libcurl error {code}", reached=reached)

    def _open_socket(self, _purpose: int, address: Any) -> socket.socket | int:
        """The guard: `address` is what libcurl is about to connect to, after name resolution."""
        where, port = address.addr[:2]
        self.refused = self.setup.config.policy.refusal(where, port) is not None
        if self.refused:
            self.setup.counts.refused_addresses += 1
            return int(pycurl.SOCKET_BAD)
        # Learned before it is counted: who is refused here waits where it belongs.
        prefix = self.setup.prefixes.learn(name_in(self.url), where, port)
        if not self.may_connect(prefix):
            self.taken = prefix
            self.setup.counts.refused_shares += 1
            return int(pycurl.SOCKET_BAD)
        self.taken = None
        try:
            opened = _Handed(address.family, address.socktype, address.protocol)
        except OSError:
            return int(pycurl.SOCKET_BAD)
        self.setup.counts.connections += 1
        return opened


class Post(Transfer):
    """A handle that posts, and of the answer keeps the status only. Reused without being reset: see `Lane.post`.

    What it ends with goes into `outcomes`, and the handle back to `idle`; both are its lane's.
    """

    __slots__ = ("body", "idle", "outcomes", "post_counted", "tag")

    def __init__(
        self,
        setup: Setup,
        timeout: float,
        max_bytes: int,
        idle: list["Post"],
        outcomes: list[PostOutcome],
        counted: PostCounted | None,
    ) -> None:
        super().__init__(setup)
        self.post_counted = counted
        self.setopt(pycurl.POST, 1)
        self.set_timeout(timeout)
        self.max_bytes = max_bytes
        self.body: bytes | None = None
        self.tag: object = None
        self.idle = idle
        self.outcomes = outcomes

    def may_connect(self, prefix: str) -> bool:
        return self.post_counted is None or self.post_counted(self.tag, prefix)

    def finish(self, error: OutboundError | None) -> None:
        status = retry_after = 0
        if error is None:
            getinfo = self.getinfo  # as a variable: called as a method, a slot's value is looked up the slow way
            status = getinfo(_RESPONSE_CODE)
            if status >= _FIRST_NOT_SUCCESS:
                retry_after = getinfo(_RETRY_AFTER)
        self.outcomes.append((self.tag, status, retry_after, error))
        self.tag = None
        if self.received or error is not None:
            self.received = 0
            self.too_large = False
            self.refused = False
            self.taken = None
        self.idle.append(self)


class RequestHandle(Transfer):
    """A handle for a request whose whole answer is wanted. One that did nothing but a GET goes back to `idle`."""

    __slots__ = ("chunks", "future", "header_bytes", "idle", "is_plain", "lines")

    def __init__(self, setup: Setup, idle: "list[RequestHandle]") -> None:
        super().__init__(setup)
        self.idle = idle
        self.is_plain = False
        """Whether nothing was set that a GET does not set anew."""
        self.setopt(pycurl.HEADERFUNCTION, self.on_header)
        self.future: asyncio.Future[OutboundResponse] | None = None
        self.chunks: list[bytes] = []
        self.lines: list[tuple[str, str]] = []
        self.header_bytes = 0

    def prepare(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout: float,
        max_bytes: int,
        future: asyncio.Future[OutboundResponse],
        counted: Callable[[str], bool] | None,
    ) -> None:
        option = self.setopt
        self.url = url
        self.counted = counted
        self.is_plain = method == "GET" and body is None
        if method == "HEAD":
            option(pycurl.NOBODY, 1)
        elif method == "GET" and body is None:
            option(pycurl.HTTPGET, 1)
        else:
            option(pycurl.POST, 1)
            option(pycurl.POSTFIELDS, body or b"")
            if method != "POST":
                option(pycurl.CUSTOMREQUEST, method)
        option(pycurl.URL, url)
        option(pycurl.HTTPHEADER, [header_line(name, value) for name, value in headers.items()] + [b"Expect:"])
        if timeout != self.timeout:
            self.set_timeout(timeout)
        self.max_bytes = max_bytes
        self.future = future

    def on_body(self, data: bytes) -> int | None:
        self.chunks.append(data)
        return super().on_body(data)

    def on_header(self, line: bytes) -> int | None:
        self.header_bytes += len(line)
        if self.header_bytes > MAX_HEADER_BYTES:
            self.too_large = True
            return 0
        if line.startswith(b"HTTP/"):
            self.lines.clear()  # a 1xx answer came before
            return None
        name, colon, value = line.decode("latin-1").partition(":")
        if colon:
            self.lines.append((name.strip(), value.strip()))
        return None

    def finish(self, error: OutboundError | None) -> None:
        future, self.future = self.future, None
        if future is not None and not future.done():
            if error is None:
                status = self.getinfo(pycurl.RESPONSE_CODE)
                future.set_result(OutboundResponse(status, Headers(self.lines), b"".join(self.chunks)))
            else:
                future.set_exception(error)
        if error is None and self.is_plain and len(self.idle) < MOST_IDLE:
            self.counted = None
            self.refused = False  # it may have been said of the first of several addresses
            self.chunks, self.lines = [], []
            self.header_bytes = self.received = 0
            self.idle.append(self)
        else:
            self.close()


@cache
def _system_authorities() -> str | None:
    paths = ssl.get_default_verify_paths()
    candidates = (paths.cafile, *_AUTHORITY_FILES)
    return next((path for path in candidates if path is not None and Path(path).is_file()), None)


_AUTHORITY_FILES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
# Looked up once: these are used for every delivery.
_RESPONSE_CODE, _RETRY_AFTER = pycurl.RESPONSE_CODE, pycurl.RETRY_AFTER
_FIRST_NOT_SUCCESS = 300
_NO_ADDRESS_YET = frozenset((pycurl.E_COULDNT_RESOLVE_HOST, pycurl.E_OPERATION_TIMEDOUT))
_FAILURES = {
    pycurl.E_COULDNT_RESOLVE_HOST: NO_ADDRESS,
    pycurl.E_COULDNT_CONNECT: "no connection could be made",
    pycurl.E_GOT_NOTHING: "the server closed the connection without an answer",
    pycurl.E_PARTIAL_FILE: "the server closed the connection in the middle of its answer",
    pycurl.E_RECV_ERROR: "the connection broke while waiting for the answer",
    pycurl.E_SEND_ERROR: "the connection broke while sending",
    pycurl.E_PEER_FAILED_VERIFICATION: "the server's certificate could not be verified",
    pycurl.E_SSL_CONNECT_ERROR: "no TLS connection could be made",
    pycurl.E_UNSUPPORTED_PROTOCOL: "the server did not answer in HTTP/1",
}
