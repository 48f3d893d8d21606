"""kill -9 in the middle of a fan-out, again and again. `PSPH_CRASHES=200` makes it long."""

import asyncio
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path

from push_hub.delivery import Delivery
from push_hub.model import Content
from tests.push_hub.delivery.delivery_support import (
    OK,
    TOPIC,
    CallbackServer,
    TableSubscribers,
    loopback_client,
    open_database,
    quick_config,
    rig,
    status,
    subscribe,
)
from tests.push_hub.delivery.delivery_victim import CHUNK

CRASHES = int(os.environ.get("PSPH_CRASHES", "3"))
SUBSCRIBERS = 300
PUBLICATIONS = 2


async def test_kill_minus_nine_loses_nothing_and_repeats_at_most_a_chunk(tmp_path: Path) -> None:
    rng = random.Random(5)
    answered: list[tuple[str, bytes]] = []

    def answer(path: str, _headers: dict[str, str], body: bytes) -> bytes:
        if rng.random() < 0.05:
            return status(503)
        answered.append((path, body))
        return OK

    async with CallbackServer(answer) as server:
        with open_database(tmp_path) as database:
            subscribe(database, [server.url(f"/{n}") for n in range(SUBSCRIBERS)])
        for crash in range(CRASHES):
            await publish(tmp_path, crash)
            victim = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.push_hub.delivery.delivery_victim", str(tmp_path)
            )
            # Anywhere between the first delivery of this process and well into its fan-outs.
            await server.received(len(server.requests) + rng.randrange(1, SUBSCRIBERS))
            victim.kill()
            await victim.wait()
        await finish(tmp_path)
    counted = Counter(answered)
    wanted = {(f"/{n}", b"%d" % number) for n in range(SUBSCRIBERS) for number in range(CRASHES * PUBLICATIONS)}
    assert set(counted) == wanted
    assert sum(counted.values()) - len(wanted) <= CRASHES * CHUNK
    last: dict[str, int] = {}
    for (path, body), _ in Counter(answered).items():  # in the order of first arrival
        assert int(body) > last.get(path, -1), "out of order"
        last[path] = int(body)


async def publish(folder: Path, crash: int) -> None:
    """Accepted, on disk, and not sent: the process that accepted it stops at once."""
    client = loopback_client()
    with open_database(folder) as database:
        delivery = Delivery(database, TableSubscribers(database), client, quick_config(), time.time)
        for number in range(PUBLICATIONS):
            content = Content("text/plain", b"%d" % (crash * PUBLICATIONS + number))
            await delivery.accept(TOPIC, TOPIC, content)
    await client.close()


async def finish(folder: Path) -> None:
    async with rig(folder) as made:
        await made.delivery.start()
        await made.nothing_owed()
        assert made.rows("dead_letters") == 0
