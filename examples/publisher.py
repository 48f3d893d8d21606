"""A publisher: serves a feed that names its hub, and tells that hub when there is something new.

    python examples/publisher.py http://127.0.0.1:8080/

Each line that is typed is an entry. Any web server can serve the feed. What matters is the two links in it
(`feed_links`), and the ping (`publish`).
"""

import argparse
import asyncio
import sys
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
            for number, title in enumerate(reversed(self.entries))
        )
        links = feed_links([self.hub], self.address)
        body = f'<feed xmlns="http://www.w3.org/2005/Atom"><title>An example</title>{links}{entries}</feed>'
        headers = {"Link": link_header([self.hub], self.address)}
        return web.Response(text=body, content_type="application/atom+xml", headers=headers)


async def main(hub: str) -> None:
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
        while title := (await asyncio.to_thread(sys.stdin.readline)).strip():
            blog.entries.insert(0, title)
            status = await publish(client, hub, [blog.address])
            print(f"{title}: the hub answered {status}", flush=True)
    finally:
        await client.close()
        await runner.cleanup()


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("hub")
    asyncio.run(main(arguments.parse_args().hub))
