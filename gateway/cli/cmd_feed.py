"""`psph feed`: a feed that writes an entry now and then and pings its hub, to try things out with."""

import argparse
import asyncio
import signal
import sys
import time
from collections import deque

from aiohttp import ClientError, ClientSession, ClientTimeout, web

from gateway.cli.errors import CommandError
from gateway.operations.ready import tell_ready
from push_hub.client import feed_links, link_header
from push_hub.protocol.urls import UrlError, normalised

ENTRIES = 10
ATOM = "application/atom+xml"
PING_PATIENCE = 10.0
MAX_PORT = 65_535


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = "Serve an Atom feed that gets a new entry now and then, and ping its hub each time."
    parser.epilog = (
        "examples:\n"
        "  psph feed --listen 127.0.0.1:8000 --hub http://127.0.0.1:8080/\n"
        "  psph feed --listen 0.0.0.0:8000 --url http://feed.example:8000/feed --hub http://hub.example/ --every 5"
    )
    parser.add_argument(
        "--listen", default="127.0.0.1:0", metavar="A:P", help="where to serve it (default: %(default)s)"
    )
    parser.add_argument("--url", metavar="URL", help="the feed's address for others (default: where it listens)")
    parser.add_argument("--hub", required=True, metavar="URL", help="the hub to ping")
    parser.add_argument("--every", type=float, default=2.0, metavar="S", help="seconds between entries (default 2)")
    parser.add_argument("--count", type=int, metavar="N", help="stop after N entries")


def run(args: argparse.Namespace) -> int:
    host, colon, port = args.listen.rpartition(":")
    if not colon or not port.isdigit() or int(port) > MAX_PORT:
        raise CommandError(f"--listen {args.listen}: expected ADDRESS:PORT (port 0 for a free one)")
    if args.every <= 0:
        raise CommandError(f"--every {args.every:g}: expected seconds above 0")
    for option, url in (("--hub", args.hub), ("--url", args.url)):
        try:
            if url is not None:
                normalised(url)
        except UrlError as error:
            raise CommandError(f"{option} {url}: it {error}") from None
    try:
        asyncio.run(_serve(host.strip("[]"), int(port), args))
    except OSError as error:
        raise CommandError(f"cannot listen on {args.listen}: {error}") from None
    return 0


class _Feed:
    def __init__(self, hub: str) -> None:
        self.url = ""
        self._hub = hub
        self._entries: deque[str] = deque(maxlen=ENTRIES)
        self._life = int(time.time())

    def write(self, number: int) -> None:
        title = f"entry {number}, {time.strftime('%H:%M:%S')}"
        self._entries.appendleft(f"<entry><id>urn:psph:feed:{self._life}:{number}</id><title>{title}</title></entry>")

    async def show(self, _request: web.Request) -> web.Response:
        body = (
            '<?xml version="1.0" encoding="utf-8"?><feed xmlns="http://www.w3.org/2005/Atom">'
            f"<id>urn:psph:feed</id><title>A feed to try things out with</title>{feed_links([self._hub], self.url)}"
            f"{''.join(self._entries)}</feed>"
        )
        return web.Response(text=body, content_type=ATOM, headers={"Link": link_header([self._hub], self.url)})


async def _serve(host: str, port: int, args: argparse.Namespace) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    feed = _Feed(args.hub)
    app = web.Application()
    app.router.add_get("/feed", feed.show)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        feed.url = args.url or f"http://{host}:{runner.addresses[0][1]}/feed"
        print(f"feed at {feed.url}, hub {args.hub}", flush=True)
        tell_ready()
        async with ClientSession(timeout=ClientTimeout(total=PING_PATIENCE)) as http:
            written = 0
            while not stop.is_set() and (args.count is None or written < args.count):
                written += 1
                feed.write(written)
                await _ping(http, args.hub, feed.url)
                try:
                    await asyncio.wait_for(stop.wait(), args.every)
                except TimeoutError:
                    continue
    finally:
        await runner.cleanup()


async def _ping(http: ClientSession, hub: str, url: str) -> None:
    try:
        async with http.post(hub, data={"hub.mode": "publish", "hub.url": url}) as answer:
            if answer.status not in (202, 204):
                print(
                    f"psph feed: the hub answered {answer.status}: {await answer.text()}", file=sys.stderr, flush=True
                )
    except (ClientError, TimeoutError) as error:
        print(f"psph feed: the hub does not answer: {error}", file=sys.stderr, flush=True)
