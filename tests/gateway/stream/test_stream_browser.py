"""The plain facade from a page of another site, in a real browser: with the operator's word, and without."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.gateway.browser import browser, why_not
from tests.gateway.web_world import World, started_world
from tests.waiting import until

pytestmark = [pytest.mark.skipif(why_not() is not None, reason=str(why_not())), pytest.mark.timeout(240)]
SCRIPT = """
(() => {
  const url = "%s/topics?name=" + encodeURIComponent("http://news.example/a?x=1&y=2");
  window.texts = [];
  window.posted = null;
  window.failed = 0;
  const events = new EventSource(url);
  events.onmessage = (event) => window.texts.push(JSON.parse(event.data).text);
  events.onerror = () => window.failed++;
  const post = { method: "POST", body: "from the page", headers: { "Content-Type": "text/plain; charset=utf-8" } };
  const publish = () => {
    if (window.posted !== null) return;
    window.posted = -1;
    fetch(url, post).then((answer) => { window.posted = answer.status; }, () => { window.posted = 0; });
  };
  events.onopen = publish;
  setTimeout(publish, 2000);
})()
"""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with started_world(tmp_path) as world:
        yield world


@asynccontextmanager
async def another_site() -> AsyncIterator[str]:
    async def page(_request: web.Request) -> web.Response:
        return web.Response(text="<!doctype html><title>Another site</title>", content_type="text/html")

    app = web.Application()
    app.router.add_get("/", page)
    server = TestServer(app)
    await server.start_server()
    try:
        yield str(server.make_url("/")).rstrip("/")
    finally:
        await server.close()


async def test_a_page_of_an_allowed_site_reads_and_publishes_and_comes_back(world: World, tmp_path: Path) -> None:
    async with another_site() as site, browser(tmp_path / "profile") as chromium:
        allowed = (site,)
        async with world.domain("n0", "a", cors_origins=allowed) as a:
            port = int(a.web.url.rstrip("/").rpartition(":")[2])
            page = await chromium.page(site)
            await page.value(SCRIPT % a.web.url.rstrip("/"))
            await page.until("window.posted === 201 && window.texts.includes('from the page')")
        # EventSource comes back by itself, with the id of the last event that it has: nothing comes twice.
        async with world.domain("n0", "a", cors_origins=allowed, port=port) as a:
            await until(lambda: a.streams.open_streams == 1)
            name = {"name": "http://news.example/a?x=1&y=2"}
            answer = await world.http.post(
                a.url("/topics"), params=name, data="next", headers={"Content-Type": "text/plain"}
            )
            assert answer.status == 201
            await page.until("window.texts.at(-1) === 'next'")
            assert await page.value("window.texts.filter((text) => text === 'from the page').length") == 1


async def test_a_page_of_any_other_site_neither_reads_nor_publishes(world: World, tmp_path: Path) -> None:
    async with (
        another_site() as site,
        browser(tmp_path / "profile") as chromium,
        world.domain("n0", "a") as a,
    ):
        page = await chromium.page(site)
        await page.value(SCRIPT % a.web.url.rstrip("/"))
        await page.until("window.posted === 0 && window.failed > 0")
        assert await page.value("window.texts.length") == 0
        # A form, or a request that does not want to read the answer, needs no permission to be sent.
        await page.value(
            f"window.sent = null; fetch('{a.url('/topics')}?name=http://news.example/a',"
            "{ method: 'POST', mode: 'no-cors', body: 'x' }).finally(() => { window.sent = true; }); 0"
        )
        await page.until("window.sent")
        assert not any(type(event).__name__ == "CrossingPublished" for event in world.events)
