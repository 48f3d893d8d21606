"""A publisher: serves a feed that names its hub, and tells that hub when there is something new.

    python examples/publisher.py http://127.0.0.1:8080/ --entries 3

Any web server can serve the feed. What matters is the two links in it (`feed_links`), and the ping (`publish`).
"""

import argparse
import asyncio
from html import escape

from aiohttp import web

from push_hub.client import feed_links, link_header, publish
from serving.outbound.addresses import AddressPolicy
from serving.outbound.client import ClientConfig, OutboundClient


class Blog:
    def __init__(self, hub: str) -> None:
        self.hub = hub
        self.address = ""
        self.entries: list[str] = []

    async def feed(self, _: web.Request) -> web.Response:
        entries = "".join(
            f"<entry><id>urn:example:{number}</id><title>{escape(title)}</title></entry>"
            for number, title in enumerate(self.entries)
        )
        links = feed_links([self.hub], self.address)
        body = f'<feed xmlns="http://www.w3.org/2005/Atom"><title>An example</title>{links}{entries}</feed>'
        headers = {"Link": link_header([self.hub], self.address)}
        return web.Response(text=body, content_type="application/atom+xml", headers=headers)


async def main(hub: str, entries: int, every: float) -> None:
    blog = Blog(hub)
    app = web.Application()
    app.router.add_get("/feed", blog.feed)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    blog.address = f"http://{host}:{port}/feed"
    print("feed at", blog.address, flush=True)

    # Refuses private addresses unless it is told otherwise, as a hub does.
    client = OutboundClient(ClientConfig(AddressPolicy(allow_private=True)))
    try:
        for number in range(1, entries + 1):
            await asyncio.sleep(every)
            blog.entries.insert(0, f"entry {number}")
            status = await publish(client, hub, [blog.address])
            print(f"entry {number}: the hub answered {status}", flush=True)
        await asyncio.sleep(every)  # the hub may fetch for a moment
    finally:
        await client.close()
        await runner.cleanup()


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("hub")
    arguments.add_argument("--entries", type=int, default=3)
    arguments.add_argument("--every", type=float, default=1.0, help="seconds between two")
    given = arguments.parse_args()
    asyncio.run(main(given.hub, given.entries, given.every))
