"""A subscriber: finds hub and topic of a page, subscribes, takes what is pushed, renews before the lease ends.

    python examples/subscriber.py http://127.0.0.1:8000/feed --count 1

Subscriptions are kept in a store, so a restart goes on with them; signatures are checked before anything is handed on.
"""

import argparse
import asyncio
import tempfile
from pathlib import Path

from aiohttp import web

from push_hub.client import (
    MIGRATIONS,
    ClientSubscriptionStore,
    ReceivedDelivery,
    Subscriber,
    SubscriberConfig,
    callback_app,
)
from serving.outbound.addresses import AddressPolicy
from serving.outbound.client import ClientConfig, OutboundClient
from storage import Database
from storage.clock import steady


async def main(page: str, count: int, folder: Path) -> None:
    enough = asyncio.Event()
    taken = 0

    async def received(delivery: ReceivedDelivery) -> None:
        nonlocal taken
        print(f"{delivery.topic}: {len(delivery.body)} bytes of {delivery.content_type}", flush=True)
        taken += 1
        if taken == count:
            enough.set()

    with Database.open(folder / "subscriptions.sqlite", MIGRATIONS) as database:
        subscriptions = ClientSubscriptionStore(database)
        runner = web.AppRunner(callback_app(subscriptions, received, steady))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        client = OutboundClient(ClientConfig(AddressPolicy(allow_private=True)))
        subscriber = Subscriber(subscriptions, client, SubscriberConfig(f"http://{host}:{port}"), steady)
        try:
            subscription = await subscriber.subscribe(page)
            print(f"asked {subscription.hub} for {subscription.topic}", flush=True)
            await subscriber.start()
            await enough.wait()
        finally:
            await subscriber.stop()
            await client.close()
            await runner.cleanup()


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("page")
    arguments.add_argument("--count", type=int, default=0, help="end after so many; 0: never")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as kept:
        asyncio.run(main(given.page, given.count, Path(kept)))
