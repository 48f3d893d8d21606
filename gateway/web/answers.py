"""How the web port answers: refusals are one short line of text, and whatever a handler raises has a status."""

import asyncio
import hmac
import math
from collections.abc import Awaitable, Callable, Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

import msgspec
from aiohttp import hdrs, web

from gateway.adapters.chat import TakenError
from gateway.adapters.chat_messages import ChatError
from gateway.adapters.stream import FullError
from gateway.model import NetworkError, NotAllowedError, RefusedError
from push_hub.events import Observer, RequestBroke
from push_hub.server import TooManyError
from serving.events import LimitReached, RequestRefused
from storage import StorageError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

BUSY_RETRY_AFTER = 5.0
MAX_RETRY_AFTER = 3600
ALLOWED_HEADERS = "Authorization, Content-Type, Last-Event-ID"
PREFLIGHT_SECONDS = "86400"
EVENT_STREAM = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class WebError(Exception):
    """A refusal with its status; the text is for whoever asked."""

    def __init__(self, status: int, text: str, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.retry_after = retry_after


class Answers:
    """The middleware of a port for people. `names` are those it is known by, beside addresses; None: all are."""

    def __init__(self, names: frozenset[str] | None, cors_origins: tuple[str, ...], observer: Observer | None) -> None:
        self._names = names
        self._cors = cors_origins
        self._observer = observer

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            self._check_host(request)
            self._check_origin(request)
            if request.method == hdrs.METH_OPTIONS and hdrs.ACCESS_CONTROL_REQUEST_METHOD in request.headers:
                response: web.StreamResponse = _preflight()
            elif request.method == hdrs.METH_GET:
                response = await handler(request)
            else:
                # Streams end with their connection; what changes something is finished once it has begun.
                response = await _finished(handler(request))
        except web.HTTPException as error:
            if error.status < 400:
                raise
            response = self._refusal(WebError(error.status, error.reason.lower()))
            if hdrs.ALLOW in error.headers:
                response.headers[hdrs.ALLOW] = error.headers[hdrs.ALLOW]
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception as error:
            response = self._refusal(self._translated(error))
        if not response.prepared:
            response.headers.setdefault("X-Content-Type-Options", "nosniff")
            self.add_cors(request, response)
        return response

    async def written(self, request: web.Request, writing: Awaitable[None]) -> None:
        """Write an answer that has begun. After its first byte nothing else can be said: what goes wrong ends the
        connection, and its reader comes back."""
        try:
            await writing
        except (asyncio.CancelledError, ConnectionError):
            raise
        except TimeoutError:
            self._tell(LimitReached("slow_reader"))
        except Exception as error:
            self._tell(RequestBroke(f"{type(error).__name__}: {error}"[:300]))
        else:
            return
        if request.transport is not None:
            request.transport.abort()

    def add_cors(self, request: web.Request, response: web.StreamResponse) -> None:
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is None or not self._cors:
            return
        if "*" in self._cors:
            response.headers["Access-Control-Allow-Origin"] = "*"
        elif origin in self._cors:
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Vary"] = "Origin"

    def _check_host(self, request: web.Request) -> None:
        """A stranger's name that leads to this address makes their script one of ours: names must be known."""
        given = request.headers.get(hdrs.HOST)
        if given is None or self._names is None or is_known_host(given, self._names):
            return
        raise WebError(421, "not known by that name here: the operator can add it to the `names` of this port")

    def _check_origin(self, request: web.Request) -> None:
        """Another site's script does nothing here that was not allowed: also when it need not read the answer."""
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is None or origin in self._cors or "*" in self._cors:
            return
        if origin.partition("://")[2] != request.host:
            raise WebError(403, "scripts of other sites may not use this: the operator can allow them")

    def _translated(self, error: Exception) -> WebError:
        match error:
            case WebError():
                return error
            case TooManyError():
                return WebError(429, error.text, error.retry_after)
            case FullError():
                return WebError(429 if error.yours else 503, str(error), BUSY_RETRY_AFTER)
            case TakenError():
                return WebError(409, str(error))
            case NotAllowedError():
                return WebError(403, str(error))
            case ChatError() | RefusedError():
                return WebError(400, str(error))
            case NetworkError():
                return WebError(502 if error.lasting else 503, f"the network: {error}", BUSY_RETRY_AFTER)
            case StorageError():
                self._tell(LimitReached("storage"))
                return WebError(503, "the gateway cannot write to its store now", BUSY_RETRY_AFTER)
        self._tell(RequestBroke(f"{type(error).__name__}: {error}"[:300]))
        return WebError(500, "the gateway made a mistake")

    def _refusal(self, error: WebError) -> web.Response:
        self._tell(RequestRefused(error.status, error.text))
        response = web.Response(status=error.status, text=f"{error.text}\n")
        if error.retry_after is not None:
            response.headers["Retry-After"] = str(max(1, min(math.ceil(error.retry_after), MAX_RETRY_AFTER)))
        if error.status in (408, 413):
            response.force_close()  # what is left of the body is not waited for
        if error.status == 401:
            response.headers["WWW-Authenticate"] = "Bearer"
        return response

    def _tell(self, event: LimitReached | RequestBroke | RequestRefused) -> None:
        if self._observer is not None:
            self._observer(event)


async def _finished(work: Awaitable[web.StreamResponse]) -> web.StreamResponse:
    """Wait for work that goes on to its end when nobody waits any more."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        # Its error has nobody left to be told to, and would be written to the log as forgotten.
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        raise


def is_known_host(given: str, names: frozenset[str]) -> bool:
    """Whether a Host header is an address, this machine, or one of the configured names."""
    try:
        name = (urlsplit(f"//{given}").hostname or "").removesuffix(".")
    except ValueError:
        return False
    if name in names or "*" in names or name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _preflight() -> web.Response:
    headers = {
        "Access-Control-Allow-Methods": "GET, POST",
        "Access-Control-Allow-Headers": ALLOWED_HEADERS,
        "Access-Control-Max-Age": PREFLIGHT_SECONDS,
    }
    return web.Response(status=204, headers=headers)


def json_answer(value: object, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(value),
        status=status,
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )


def bearer(request: web.Request) -> str | None:
    scheme, _, given = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" and given.strip() else None


def is_one_of(given: str, tokens: Iterable[str]) -> bool:
    """Every token is compared, in constant time."""
    found = False
    for token in tokens:
        found |= hmac.compare_digest(token.encode(), given.encode("utf-8", "surrogateescape"))
    return found


async def body_of(request: web.Request, limit: int, seconds: float) -> bytes:
    if request.headers.get(hdrs.CONTENT_ENCODING, "identity").strip().lower() != "identity":
        raise WebError(415, "send the body as it is, without a Content-Encoding")
    if (request.content_length or 0) > limit:
        raise WebError(413, f"the body is longer than {limit} bytes")
    try:
        async with asyncio.timeout(seconds):
            return await request.clone(client_max_size=limit).read()
    except TimeoutError:
        raise WebError(408, "the request body came too slowly") from None
    except web.HTTPRequestEntityTooLarge:
        raise WebError(413, f"the body is longer than {limit} bytes") from None
    except (ConnectionError, web.RequestPayloadError):
        raise WebError(400, "the request body ended too early") from None
