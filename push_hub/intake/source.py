"""Fetch a topic's document: one hop at a time, so that the address guard sees each, with validators and bounds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

from push_hub.intake.config import IntakeConfig
from push_hub.intake.decode import ACCEPT_ENCODING, DecodedTooLargeError, decode_body
from push_hub.intake.ports import Fetch, FetchError, HeaderLookup, reason_of
from push_hub.intake.threads import Threads
from push_hub.intake.trouble import FetchTrouble
from serving.outbound.errors import AddressRefusedError, ResponseTooLargeError, ShareTakenError, UrlRefusedError

PERMANENT = frozenset({301, 308})
REDIRECTS = frozenset({301, 302, 303, 307, 308})
MAX_VALIDATOR = 1024
MAX_URL = 2048
ACCEPT = "application/atom+xml, application/rss+xml, application/rdf+xml, application/xml;q=0.9, */*;q=0.8"


class FetchFailedError(FetchError):
    """A fetch that gave no document. `lasting` when trying again soon makes no sense."""

    def __init__(
        self,
        reason: str,
        lasting: bool = False,
        headers: HeaderLookup | None = None,
        trouble: FetchTrouble = FetchTrouble.ANSWER,
    ) -> None:
        super().__init__(reason)
        self.lasting = lasting
        self.headers = headers
        self.trouble = trouble


@dataclass(frozen=True, slots=True)
class Validators:
    """What the server gave to ask «has it changed?», and the URL it gave them for."""

    url: str = ""
    etag: str | None = None
    last_modified: str | None = None


@dataclass(frozen=True, slots=True)
class Fetched:
    """`body` is None when the server says nothing changed. `moved_to`: where permanent redirects led, if they did."""

    status: int
    url: str
    headers: HeaderLookup
    body: bytes | None
    validators: Validators
    moved_to: str | None


def user_agent(name: str, subscribers: int) -> str:
    """H41: the first count in it is the total."""
    return f"{name} ({subscribers} subscriber{'' if subscribers == 1 else 's'})"


async def fetch_document(
    fetch: Fetch,
    start: str,
    known: Validators,
    subscribers: int,
    config: IntakeConfig,
    threads: Threads | None = None,
    counted: Callable[[str], bool] | None = None,
) -> Fetched:
    """GET, following redirects; unpacks in `threads` if there are any. Raises `FetchFailedError`, `ShareTakenError`."""
    url = start
    visited = {url}
    moved_to: str | None = None
    permanent_so_far = True
    while True:
        try:
            response = await fetch.request(
                "GET",
                url,
                headers=_headers(url, known, subscribers, config),
                body=None,
                timeout=config.fetch_timeout,
                max_bytes=config.max_body_bytes,
                counted=counted,
            )
        except ShareTakenError:
            raise
        except ResponseTooLargeError as error:
            raise FetchFailedError(reason_of(error), lasting=True, trouble=FetchTrouble.TOO_LARGE) from error
        except Exception as error:
            # What the address guard refuses now, it refuses in a minute.
            lasting = isinstance(error, AddressRefusedError | UrlRefusedError)
            raise FetchFailedError(reason_of(error), lasting, trouble=FetchTrouble.UNREACHABLE) from error
        if response.status in REDIRECTS:
            target = _target(url, response.headers.get("Location"))
            if target in visited:
                raise FetchFailedError(f"the redirects go round in a circle at {target[:200]}", lasting=True)
            if len(visited) > config.max_redirects:
                raise FetchFailedError(f"more than {config.max_redirects} redirects", lasting=True)
            permanent_so_far = permanent_so_far and response.status in PERMANENT
            if permanent_so_far:
                moved_to = target
            visited.add(target)
            url = target
            continue
        answer = (response.status, response.headers, response.body, url, known, moved_to, config)
        if threads is None or not response.headers.get("Content-Encoding"):
            return _document(*answer)
        return await threads.run(_document, *answer)


def _document(
    status: int,
    headers: HeaderLookup,
    body: bytes,
    url: str,
    known: Validators,
    moved_to: str | None,
    config: IntakeConfig,
) -> Fetched:
    if status == 304 and known.url == url and (known.etag or known.last_modified):
        return Fetched(status, url, headers, None, known, moved_to)
    if not 200 <= status < 300 or status in (204, 206):
        # A 4xx will not get better by asking again in a minute; a busy or slow server may.
        lasting = 400 <= status < 500 and status not in (408, 425, 429)
        raise FetchFailedError(f"the server answered {status}", lasting, headers)
    try:
        content = decode_body(body, ",".join(headers.get_all("Content-Encoding")), config.max_body_bytes)
    except DecodedTooLargeError as error:
        raise FetchFailedError(error.reason, lasting=True, trouble=FetchTrouble.TOO_LARGE) from error
    except FetchError as error:
        raise FetchFailedError(error.reason, trouble=FetchTrouble.ENCODING) from error
    validators = Validators(url, _validator(headers.get("ETag")), _validator(headers.get("Last-Modified")))
    return Fetched(status, url, headers, content, validators, moved_to)


def _headers(url: str, known: Validators, subscribers: int, config: IntakeConfig) -> Mapping[str, str]:
    headers = {
        "User-Agent": user_agent(config.user_agent, subscribers),
        "Accept": ACCEPT,
        "Accept-Encoding": ACCEPT_ENCODING,
    }
    if known.url == url:
        if known.etag:
            headers["If-None-Match"] = known.etag
        if known.last_modified:
            headers["If-Modified-Since"] = known.last_modified
    return headers


def _validator(value: str | None) -> str | None:
    """Stored and sent back as it was, unless it could not be sent back safely."""
    if value is None or len(value) > MAX_VALIDATOR or not value.isascii() or not value.isprintable():
        return None
    return value


def _target(url: str, location: str | None) -> str:
    if not location:
        raise FetchFailedError("a redirect without a Location")
    try:
        target = urljoin(url, location.strip()).partition("#")[0]
        parts = urlsplit(target)
        scheme, host = parts.scheme, parts.hostname
        _ = parts.port
    except ValueError:
        raise FetchFailedError("a redirect to something that is no URL", lasting=True) from None
    if scheme not in ("http", "https") or not host or len(target) > MAX_URL or not target.isprintable():
        raise FetchFailedError("a redirect to something that is no http or https URL", lasting=True)
    if scheme == "http" and urlsplit(url).scheme == "https":
        raise FetchFailedError("a redirect from https down to http is refused", lasting=True)
    return target
