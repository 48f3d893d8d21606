"""`/feeds/URL`: the feed at URL with this hub in its links, for readers that use the hub which a feed names.

Whoever may ask lends the hub's address, so what is done is bounded: only feeds are given, their documents are kept for
a while, so many are fetched at once, few of them from one network, and each client has a rate of its own.
"""

import asyncio
import hashlib
import re
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from html import escape
from urllib.parse import quote, unquote

from aiohttp import hdrs, web

from push_hub.client.publisher import link_header
from push_hub.discovery import discover
from push_hub.feed_proxy.relinking import NoFeedError, RelinkedFeed, relinked
from push_hub.intake.config import IntakeConfig
from push_hub.intake.ports import Fetch
from push_hub.intake.source import Fetched, FetchFailedError, Validators, fetch_document
from push_hub.intake.trouble import WORDS, FetchTrouble
from push_hub.ports import OverloadedError
from push_hub.protocol.requests import RequestError
from push_hub.protocol.urls import UrlError, normalised
from serving.gate import Gate
from serving.outbound.errors import ShareTakenError

PATH = "/feeds/"
PER_READER = "feeds_per_client"
"""The share of the gate that fetches for readers have."""
_SCHEME = re.compile(r"(?i)(https?):/{1,2}")
"""Proxies in front may make one slash of two."""
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Feeds at this hub</title>
<style>body{{font:1rem/1.5 system-ui,sans-serif;max-width:44rem;margin:2rem auto;padding:0 1rem}}
input{{font:inherit;width:70%}}pre{{background:#8882;padding:.7rem;overflow:auto}}</style></head>
<body><h1>Feeds at this hub</h1>
<p>A reader that gets a feed from here uses this hub, whichever hub the feed names itself. Put this before the
address of a feed, in any reader:</p>
<pre>{base}</pre>
<form method="get"><label>A feed's address:
<input name="url" type="url" required placeholder="https://example.com/feed"></label> <button>Open</button></form>
</body></html>
"""


@dataclass(frozen=True, slots=True)
class FeedProxyConfig:
    enabled: bool = False
    keep: float = 60.0
    """Seconds for which a document is given again without asking its server."""
    max_kept_bytes: int = 32 * 1024 * 1024
    max_kept: int = 1_000
    max_fetches: int = 16
    max_fetches_per_network: int = 4
    """Of the network that servers of feeds are in."""
    deadline: float = 40.0
    retry_after: float = 5.0


@dataclass(frozen=True, slots=True)
class _KeptFeed:
    feed: RelinkedFeed
    validators: Validators
    tag: str
    until: float

    @property
    def size(self) -> int:
        return self.feed.size + 1024


class FeedProxy:
    def __init__(
        self,
        config: FeedProxyConfig,
        fetch: Fetch,
        intake: IntakeConfig,
        gate: Gate,
        *,
        hub_url: Callable[[web.Request], str],
        refusal: Callable[[str], str | None],
        monotonic: Callable[[], float],
    ) -> None:
        """`refusal`: why nobody can have a topic here, as far as its name says it."""
        self._config = config
        self._fetch = fetch
        self._intake = intake
        self._gate = gate
        self._hub_url = hub_url
        self._refusal = refusal
        self._now = monotonic
        self._kept: OrderedDict[str, _KeptFeed] = OrderedDict()
        self._size = 0
        self._under_way: dict[str, asyncio.Task[_KeptFeed]] = {}
        self._networks: Counter[str] = Counter()

    def add_routes(self, app: web.Application) -> None:
        app.router.add_get("/feeds/{url:.*}", self.show)

    async def stop(self) -> None:
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def show(self, request: web.Request) -> web.StreamResponse:
        self._gate.client(request)
        hub = self._hub_url(request)
        url = _asked(request)
        if url is None:
            return self._page(request, hub)
        if url.startswith(f"{hub.rstrip('/')}{PATH}"):
            raise RequestError("this is a feed at this hub already", 400)
        reason = self._refusal(url)
        if reason is not None:
            raise RequestError(reason, 403)
        kept = await self._document(request, url)
        return _answer(request, kept, hub, self._config.keep)

    def _page(self, request: web.Request, hub: str) -> web.Response:
        base = f"{hub.rstrip('/')}{PATH}"
        given = request.query.get("url")
        if given:
            return web.Response(status=302, headers={"Location": base + quote(given, safe=":/?&=%#,;+~@!$()*")})
        return web.Response(
            text=_PAGE.format(base=escape(base)),
            content_type="text/html",
            headers={
                "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'",
                "Vary": "Host",
            },
        )

    # What servers of feeds say.

    async def _document(self, request: web.Request, url: str) -> _KeptFeed:
        kept = self._kept.get(url)
        if kept is not None and kept.until > self._now():
            self._kept.move_to_end(url)
            return kept
        task = self._under_way.get(url)
        if task is None:
            self._gate.share(PER_READER, self._gate.client_key(request))
            if len(self._under_way) >= self._config.max_fetches:
                raise OverloadedError(self._config.retry_after, "too many feeds are fetched at the moment")
            task = self._under_way[url] = asyncio.create_task(self._fetched(url, kept))
            task.add_done_callback(lambda ended: self._ended(url, ended))
        try:
            return await asyncio.shield(task)
        except ShareTakenError:
            raise OverloadedError(self._config.retry_after, "too many feeds are fetched from there") from None
        except FetchFailedError as error:
            raise RequestError(f"{url}: {WORDS[error.trouble]}", 502) from None
        except NoFeedError as error:
            raise RequestError(f"{url}: {error}", 502) from None
        except TimeoutError:
            raise RequestError(f"{url}: {WORDS[FetchTrouble.UNREACHABLE]}", 502) from None

    async def _fetched(self, url: str, before: _KeptFeed | None) -> _KeptFeed:
        entered: list[str] = []

        def counted(network: str) -> bool:
            if self._networks[network] >= self._config.max_fetches_per_network:
                return False
            self._networks[network] += 1
            entered.append(network)
            return True

        known = Validators() if before is None else before.validators
        try:
            async with asyncio.timeout(self._config.deadline):
                fetched = await fetch_document(self._fetch, url, known, 1, self._intake, counted=counted)
        finally:
            self._networks.subtract(entered)
            self._networks += Counter()  # those at zero go
        until = self._now() + self._config.keep
        if fetched.body is None and before is not None:
            kept = replace(before, until=until)
        else:
            feed = await asyncio.to_thread(_relinked, fetched, url)
            tag = hashlib.sha256(feed.before + feed.after).hexdigest()[:32]
            kept = _KeptFeed(feed, fetched.validators, tag, until)
        self._keep(url, kept)
        return kept

    def _ended(self, url: str, task: asyncio.Task[_KeptFeed]) -> None:
        del self._under_way[url]
        if not task.cancelled():
            task.exception()  # whoever asked may have gone

    def _keep(self, url: str, feed: _KeptFeed) -> None:
        before = self._kept.pop(url, None)
        self._size += feed.size - (0 if before is None else before.size)
        self._kept[url] = feed
        while self._size > self._config.max_kept_bytes or len(self._kept) > self._config.max_kept:
            self._size -= self._kept.popitem(last=False)[1].size


def _asked(request: web.Request) -> str | None:
    """The feed's URL, as it stands behind the path; None when none does. Raises `RequestError`."""
    given = request.raw_path.partition(PATH)[2]
    if not given or given.startswith("?"):
        return None
    begin = _SCHEME.match(given)
    if begin is None:  # written with %3A%2F%2F, as by encodeURIComponent
        given = unquote(given)
        begin = _SCHEME.match(given)
    if begin is None:
        raise RequestError(f"behind {PATH} stands the whole address of a feed: {PATH}https://example.com/feed")
    try:
        return normalised(f"{begin[1].lower()}://{given[begin.end() :]}")
    except UrlError as error:
        raise RequestError(f"the feed's address {error}") from None


def _relinked(fetched: Fetched, url: str) -> RelinkedFeed:
    """Raises `NoFeedError`."""
    kind = fetched.headers.get("Content-Type") or ""
    topic = _topic(fetched, kind, url)
    return relinked(kind, fetched.body or b"", topic=topic, base=normalised(fetched.url))


def _topic(fetched: Fetched, kind: str, url: str) -> str:
    """What its publisher pings: its own address if it says one, else where it was."""
    own = discover(fetched.headers, kind, fetched.body or b"", fetched.url).self_url
    for name in (own, fetched.url):
        try:
            return normalised(name or "")
        except UrlError:
            continue
    return url


def _answer(request: web.Request, kept: _KeptFeed, hub: str, keep: float) -> web.Response:
    # The hub's address depends on what the client calls it, unless the operator has said it.
    tag = f'"{kept.tag}-{hashlib.sha256(hub.encode()).hexdigest()[:8]}"'
    headers = {
        "Link": link_header([hub], kept.feed.topic),
        "ETag": tag,
        "Cache-Control": f"max-age={keep:.0f}",
        "Vary": "Host",
        # The document is a stranger's, and this address is not theirs: a browser runs nothing of it.
        "Content-Security-Policy": "sandbox; default-src 'none'",
    }
    if tag in request.headers.get(hdrs.IF_NONE_MATCH, ""):
        return web.Response(status=304, headers=headers)
    return web.Response(body=kept.feed.naming(hub), headers={**headers, hdrs.CONTENT_TYPE: kept.feed.content_type})
