"""The exchanges of a subscription without a hub's logic, for `psph bench hub` to stand beside the hub.

    python -m perf.bench.hub_bare

The same server library, the same client library and the same requests: a form is posted and answered with 202, the
callback is asked with a challenge, and its answer is compared. Nothing is checked, limited or stored. Prints its
address like the hub does; `GET /verified` answers how many were confirmed.
"""

import asyncio
import os
import secrets
import signal
import sys
from urllib.parse import parse_qsl, urlencode

import uvloop
from aiohttp import web

from push_hub.protocol.numbers import DEFAULT_LEASE
from push_hub.verifier import IntentVerifierConfig
from serving.outbound.addresses import AddressPolicy
from serving.outbound.client import ClientConfig, OutboundClient


class Bare:
    def __init__(self) -> None:
        config = IntentVerifierConfig()
        self._client = OutboundClient(ClientConfig(policy=AddressPolicy(allow_private=True)))
        self._places = asyncio.Semaphore(config.concurrency)
        self._timeout = config.timeout
        self._max_bytes = config.max_answer_bytes
        self._tasks: set[asyncio.Task[None]] = set()
        self._verified = 0

    async def take(self, request: web.Request) -> web.Response:
        form = dict(parse_qsl((await request.read()).decode()))
        task = asyncio.create_task(self._verify(form["hub.topic"], form["hub.callback"]))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return web.Response(status=202, text="accepted: your callback will be asked to confirm\n")

    async def verified(self, _request: web.Request) -> web.Response:
        return web.Response(text=str(self._verified))

    async def _verify(self, topic: str, callback: str) -> None:
        challenge = secrets.token_urlsafe(32)
        asked = {
            "hub.mode": "subscribe",
            "hub.topic": topic,
            "hub.challenge": challenge,
            "hub.lease_seconds": str(DEFAULT_LEASE),
        }
        async with self._places:
            answer = await self._client.request(
                "GET",
                f"{callback}?{urlencode(asked)}",
                headers={"Accept": "*/*"},
                body=None,
                timeout=self._timeout,
                max_bytes=self._max_bytes,
            )
        self._verified += answer.body == challenge.encode()


async def serve() -> None:
    bare = Bare()
    app = web.Application()
    app.router.add_post("/", bare.take)
    app.router.add_get("/verified", bare.verified)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    os.write(sys.stdout.fileno(), f"hub at http://127.0.0.1:{runner.addresses[0][1]}/\n".encode())
    await stop.wait()
    await runner.cleanup()


if __name__ == "__main__":
    uvloop.run(serve())
