"""The exchanges of one publication without a hub's logic, for `psph bench ingest` to stand beside the hub.

    python -m perf.bench.ingest_bare FOLDER

The same server, client and database libraries: a ping is answered with 204, its topic is read, the body is hashed,
written in a transaction that is committed in groups, and posted to its one callback, whose address is the topic's with
`/c/` for `/t/`. Content that comes along is not fetched, and stored before the answer. Nothing is checked, compared,
limited, signed or remembered. Prints its address like the hub does.
"""

import asyncio
import hashlib
import os
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from urllib.parse import parse_qs

import uvloop
from aiohttp import web

from serving.outbound.addresses import AddressPolicy
from serving.outbound.client import ClientConfig, OutboundClient
from serving.outbound.values import PostOutcome
from storage import Database, Migration, Transaction

TABLES = [
    Migration("bare", 1, ["CREATE TABLE bodies (id INTEGER PRIMARY KEY, topic TEXT, digest BLOB, body BLOB)"]),
]
TIMEOUT = 20.0
LIMIT = 8 << 20


class BareIngest:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._client = OutboundClient(ClientConfig(policy=AddressPolicy(allow_private=True)))
        self._channel = self._client.channel(TIMEOUT, 64 * 1024, self._answered)
        self._tasks: set[asyncio.Task[None]] = set()

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        if "hub.url" in request.query:
            await self._store(request.query["hub.url"], body)
        else:
            (topic,) = parse_qs(body.decode())["hub.url"]
            self._in_background(self._fetch(topic))
        return web.Response(status=204)

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _fetch(self, topic: str) -> None:
        answer = await self._client.request(
            "GET", topic, headers={"Accept": "*/*"}, body=None, timeout=TIMEOUT, max_bytes=LIMIT
        )
        await self._store(topic, answer.body)

    async def _store(self, topic: str, body: bytes) -> None:
        digest = hashlib.sha256(body).digest()

        def insert(tx: Transaction) -> None:
            tx.execute("INSERT INTO bodies (topic, digest, body) VALUES (?, ?, ?)", (topic, digest, body))

        await asyncio.wrap_future(self._database.write(insert))
        self._channel.post(topic.replace("/t/", "/c/", 1), [b"Content-Type: application/atom+xml"], body, None)

    def _answered(self, outcomes: list[PostOutcome]) -> None:
        pass


async def serve(folder: Path) -> None:
    with Database.open(folder / "bare.db", TABLES) as database:
        bare = BareIngest(database)
        app = web.Application(client_max_size=LIMIT)
        app.router.add_post("/", bare.take)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        os.write(sys.stdout.fileno(), f"hub at http://127.0.0.1:{runner.addresses[0][1]}/\n".encode())
        await stop.wait()
        await runner.cleanup()


if __name__ == "__main__":
    uvloop.run(serve(Path(sys.argv[1])))
