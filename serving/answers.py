"""How a port answers: refusals are one short line of text, and whatever a handler raises has a status."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from urllib.parse import urlsplit

import msgspec
from aiohttp import hdrs, web

from serving.events import LimitReached, Observer, RequestBroke, RequestRefused, ServingEvent
from serving.gate import TooManyError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

MAX_RETRY_AFTER = 3600
ALLOWED_HEADERS = "Authorization, Content-Type, Last-Event-ID"
PREFLIGHT_SECONDS = "86400"


class HttpError(Exception):
    """A refusal with its status; the text is for whoever asked."""

    def __init__(self, status: int, text: str, retry_after: float | None = None, *, bound: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.retry_after = retry_after
        self.bound = bound
        """The limit that was reached, when it was one."""


def refusal(error: HttpError) -> web.Response:
    response = web.Response(status=error.status, text=f"{error.text}\n")
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(max(1, min(math.ceil(error.retry_after), MAX_RETRY_AFTER)))
    if error.status in (408, 413):
        response.force_close()  # what is left of the body is not waited for
    if error.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


class AnswerMiddleware:
    """The middleware of a port for people. `names` are those it is known by, beside addresses; None: all are.

    `translated` knows the errors of the handlers: what to answer, or None for what is a mistake of ours.
    """

    def __init__(
        self,
        names: frozenset[str] | None,
        cors_origins: tuple[str, ...],
        observer: Observer | None,
        translated: Callable[[Exception], HttpError | None] = lambda _: None,
        client_of: Callable[[web.Request], str] = lambda request: request.remote or "",
    ) -> None:
        """`client_of`: whose request one is, for what is told of it."""
        self._names = names
        self._cors = cors_origins
        self._observer = observer
        self._known = translated
        self._client_of = client_of

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
            response = self._refusal(request, HttpError(error.status, error.reason.lower()))
            if hdrs.ALLOW in error.headers:
                response.headers[hdrs.ALLOW] = error.headers[hdrs.ALLOW]
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception as error:
            response = self._refusal(request, self._translated(error))
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
        raise HttpError(421, "not known by that name here: the operator can add it to the `names` of this port")

    def _check_origin(self, request: web.Request) -> None:
        """Another site's script does nothing here that was not allowed: also when it need not read the answer."""
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is None or origin in self._cors or "*" in self._cors:
            return
        if origin.partition("://")[2] != request.host:
            raise HttpError(403, "scripts of other sites may not use this: the operator can allow them")

    def _translated(self, error: Exception) -> HttpError:
        if isinstance(error, HttpError):
            return error
        if isinstance(error, TooManyError):
            return HttpError(429, error.text, error.retry_after)
        known = self._known(error)
        if known is not None:
            if known.bound:
                self._tell(LimitReached(known.bound))
            return known
        self._tell(RequestBroke(f"{type(error).__name__}: {error}"[:300]))
        return HttpError(500, "the gateway made a mistake")

    def _refusal(self, request: web.Request, error: HttpError) -> web.Response:
        self._tell(RequestRefused(error.status, error.text, self._client_of(request)))
        return refusal(error)

    def _tell(self, event: ServingEvent) -> None:
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


async def body_of(request: web.Request, limit: int, seconds: float) -> bytes:
    """The whole body: at most `limit` bytes, all of them within `seconds`. Raises `HttpError`."""
    if request.headers.get(hdrs.CONTENT_ENCODING, "identity").strip().lower() != "identity":
        raise HttpError(415, "send the body as it is, without a Content-Encoding")
    if (request.content_length or 0) > limit:
        raise HttpError(413, f"the body is longer than {limit} bytes")
    try:
        async with asyncio.timeout(seconds):
            return await request.clone(client_max_size=limit).read()
    except TimeoutError:
        raise HttpError(408, "the request body came too slowly", bound="body_timeout") from None
    except web.HTTPRequestEntityTooLarge:
        raise HttpError(413, f"the body is longer than {limit} bytes") from None
    except (ConnectionError, web.RequestPayloadError):
        # Nobody is there to read this; it is counted.
        raise HttpError(400, "the request body ended too early") from None
