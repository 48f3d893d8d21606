"""A process that fans out until it is killed: `python -m tests.push_hub.delivery.delivery_victim FOLDER`."""

import asyncio
import sys
import time
from pathlib import Path

from push_hub.delivery import Delivery
from tests.push_hub.delivery.delivery_support import TableSubscribers, loopback_client, open_database, quick_config

CHUNK = 64


async def main(folder: Path) -> None:
    with open_database(folder) as database:
        config = quick_config(chunk=CHUNK, page=8, in_flight=8, per_host=8)
        delivery = Delivery(database, TableSubscribers(database), loopback_client(), config, time.time)
        await delivery.start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
