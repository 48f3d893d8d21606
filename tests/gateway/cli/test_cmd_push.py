"""`psph push` against a hub, as a process that is told what to do on its command line."""

import asyncio
import sys
from pathlib import Path

from aiohttp import web
from aiohttp.test_utils import TestServer

from push_hub.canary import CanaryConfig
from push_hub.hub import Hub, HubConfig


async def push(*words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gateway.cli.main",
        "push",
        *words,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def test_subscribe_prints_what_publish_makes_the_hub_send(tmp_path: Path) -> None:
    hub = Hub(HubConfig(tmp_path, allow_private=True, canary=CanaryConfig(enabled=False)))
    await hub.start()

    async def document(request: web.Request) -> web.Response:
        links = f'<{hub.url}>; rel="hub", <{request.url}>; rel="self"'
        return web.Response(text="news", content_type="text/plain", headers={"Link": links})

    app = web.Application()
    app.router.add_get("/page", document)
    try:
        async with asyncio.timeout(60), TestServer(app) as server:
            page = str(server.make_url("/page"))
            reader = await push("subscribe", page, "--count", "1", "--timeout", "30")
            assert reader.stderr is not None
            assert (await reader.stderr.readline()).startswith(b"asked http")
            assert (await reader.stderr.readline()).startswith(b"active")
            publisher = await push("publish", page)
            said, _ = await publisher.communicate()
            assert publisher.returncode == 0
            assert said.decode() == f"{hub.url} took {page}\n"
            out, _ = await reader.communicate()
            assert reader.returncode == 0
            assert out == b"news\n"
            assert hub.subscriptions.count(page) == 0, "it left when it had enough"
    finally:
        await hub.stop()


async def test_what_cannot_be_done_is_said_in_one_line() -> None:
    for words, code in ((("publish", "nonsense"), 2), (("publish", "http://127.0.0.1:9/x"), 1)):
        process = await push(*words)
        _, errors = await process.communicate()
        assert process.returncode == code
        assert errors.count(b"\n") == 1


async def test_an_end_without_news_has_a_word_and_a_code(tmp_path: Path) -> None:
    """Refused at once, never asked back, verified and nothing published: three different ends."""
    for allow_private, words, code, said in (
        (False, (), 1, "this hub does not contact the callback"),
        (True, ("--base", "http://localhost:9/"), 3, "not verified: the hub took the request and never asked"),
        (True, (), 1, "nothing came: the subscription is verified"),
    ):
        hub = Hub(HubConfig(tmp_path / said, allow_private=allow_private, canary=CanaryConfig(enabled=False)))
        await hub.start()
        try:
            wanted = ("subscribe", "http://t.example/", "--hub", hub.url, "--count", "1", "--timeout", "1.5")
            process = await push(*wanted, *words)
            async with asyncio.timeout(60):
                _, errors = await process.communicate()
            assert process.returncode == code, errors
            assert said in errors.decode().splitlines()[-1]
        finally:
            await hub.stop()
