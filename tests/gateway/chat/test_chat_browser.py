"""Chat as people do it: two people, two browsers, two domains, and a network between them that neither sees."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gateway.demo import Demo
from tests.gateway.browser import Browser, Page, browser, why_not
from tests.gateway.chat.test_chat import HOSTILE
from tests.gateway.web_world import World, started_world

pytestmark = [pytest.mark.skipif(why_not() is not None, reason=str(why_not())), pytest.mark.timeout(240)]
PICTURES = "PSPH_TEST_PICTURES"
"""An environment variable: a folder to leave screenshots in, for people who want to look."""


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with started_world(tmp_path) as world:
        yield world


@pytest.fixture
async def browsers(tmp_path: Path) -> AsyncIterator[tuple[Browser, Browser]]:
    async with AsyncExitStack() as stack:
        both = await asyncio.gather(
            *(stack.enter_async_context(browser(tmp_path / f"profile {number}")) for number in (1, 2))
        )
        yield both[0], both[1]
        assert both[0].complaints + both[1].complaints == []


async def enter(page: Page, user: str, partner: str) -> None:
    await page.until("document.activeElement.id === 'user'")
    await page.write("#user", user)
    await page.press_enter()
    await page.until("document.activeElement.id === 'partner'")
    await page.write("#partner", partner)
    await page.press_enter()
    await page.until("document.activeElement.id === 'text'")
    await page.until("document.getElementById('connection').textContent === 'connected'")


async def say(page: Page, text: str) -> None:
    await page.write("#text", text)
    await page.press_enter()


TEXTS = "[...document.querySelectorAll('#messages .text')].map((one) => one.textContent)"


async def shows(page: Page, *texts: str) -> None:
    await page.until(f"JSON.stringify({TEXTS}) === JSON.stringify({list(texts)!r})")


async def pictures(page: Page, name: str) -> None:
    folder = os.environ.get(PICTURES)
    if folder is None:
        return
    for width, height, dark in ((1100, 700, False), (1100, 700, True), (390, 760, False), (390, 760, True)):
        await page.look(width, height, dark=dark)
        await page.picture(Path(folder) / f"chat-{name}-{width}-{'dark' if dark else 'light'}.png")


async def side_by_side(*pages: Page) -> None:
    """The picture of the README: `PSPH_TEST_PICTURES=docs/figures pytest -n 0 -k demonstration_has_pages FILE`."""
    folder = os.environ.get(PICTURES)
    if folder is None:
        return
    from PIL import Image

    parts = []
    for number, page in enumerate(pages):
        await page.look(580, 560)
        await page.picture(part := Path(folder) / f"chat-{number}.png")
        parts.append(Image.open(part).convert("RGB"))
        part.unlink()
    both = Image.new("RGB", (sum(part.width for part in parts) + 20, parts[0].height), "white")
    for number, part in enumerate(parts):
        both.paste(part, (number * (part.width + 20), 0))
    both.quantize(256, dither=Image.Dither.NONE).save(Path(folder) / "chat.png", optimize=True)


async def test_two_people_in_two_browsers_talk_across_the_network(
    world: World, browsers: tuple[Browser, Browser]
) -> None:
    async with world.domain("n0", "a") as a, world.domain("n2", "b") as b:
        alice, bob = [await one.page(where.web.url) for one, where in zip(browsers, (a, b), strict=True)]
        await pictures(alice, "welcome")
        await enter(alice, "alice", "bob@b.example")
        await enter(bob, "bob", "alice@a.example")
        assert await alice.value("document.getElementById('me').textContent") == "alice@a.example"
        await say(alice, "Hello Bob!")
        await shows(bob, "Hello Bob!")
        await alice.until("document.querySelector('#messages .mine .ticks.delivered')?.textContent === '✓✓'")
        await say(bob, "Hello Alice, I hear you.")
        await shows(alice, "Hello Bob!", "Hello Alice, I hear you.")
        await bob.until("document.querySelector('#messages .mine .ticks.delivered')")
        # What they wrote is in the history of a page that is loaded anew, under the same name.
        await alice.ask("Page.reload")
        await shows(alice, "Hello Bob!", "Hello Alice, I hear you.")
        await say(alice, "A longer text, to see how it is set: " + "words and words " * 12)
        await bob.until("document.querySelectorAll('#messages li').length === 3")
        await alice.until("document.querySelectorAll('#messages .ticks.delivered').length === 2")
        await pictures(bob, "talking")
        for width in (390, 1100):
            await bob.look(width, 760)
            assert not await bob.value("document.documentElement.scrollWidth > innerWidth"), f"too wide for {width}"


async def test_what_somebody_writes_is_never_run(world: World, browsers: tuple[Browser, Browser]) -> None:
    async with world.domain("n0", "a") as a, world.domain("n2", "b") as b:
        alice, bob = [await one.page(where.web.url) for one, where in zip(browsers, (a, b), strict=True)]
        await enter(alice, "alice", "bob@b.example")
        await enter(bob, "bob", "alice@a.example")
        hostile = HOSTILE.replace("\n", " ").replace("\t", " ")
        await say(alice, hostile)
        for page in (alice, bob):
            await page.until("document.querySelectorAll('#messages li').length === 1")
            assert await page.value(f"{TEXTS}[0]") == hostile
            assert await page.value("document.querySelectorAll('#messages :is(script, img, b)').length") == 0
            assert await page.value("document.title") != "owned"
        # And if a mistake put markup into the page after all, the page's policy would not let it run.
        assert "TrustedHTML" in await bob.value(
            "(() => { try { document.body.innerHTML = '<b>x</b>'; } catch (error) { return String(error); } })()"
        )
        browsers[1].complaints.clear()  # that was us


async def test_a_page_outlives_its_gateway(world: World, browsers: tuple[Browser, Browser]) -> None:
    async with world.domain("n2", "b") as b:
        async with world.domain("n0", "a") as a:
            port = int(a.web.url.rstrip("/").rpartition(":")[2])
            alice, bob = [await one.page(where.web.url) for one, where in zip(browsers, (a, b), strict=True)]
            await enter(alice, "alice", "bob@b.example")
            await enter(bob, "bob", "alice@a.example")
            await say(bob, "one")
            await shows(alice, "one")
        await alice.until("document.getElementById('connection').classList.contains('lost')")
        await say(bob, "two, while you were away")
        async with world.domain("n0", "a", port=port):
            await shows(alice, "one", "two, while you were away")
            await alice.until("document.getElementById('connection').textContent === 'connected'")
            await say(alice, "three")
            await shows(bob, "one", "two, while you were away", "three")


async def test_the_demonstration_has_pages_that_work(tmp_path: Path, browsers: tuple[Browser, Browser]) -> None:
    async with Demo(tmp_path / "demo", lambda arrival: None) as demo:
        addresses = [demo.addresses[f"domain {domain}, chat"] for domain in "AB"]
        alice, bob = [await one.page(url) for one, url in zip(browsers, addresses, strict=True)]
        await enter(alice, "alice", "bob@b.example")
        await enter(bob, "bob", "alice@a.example")
        said = []
        for page, other, text in (
            (alice, bob, "Hello Bob, is the new feed on your side already?"),
            (bob, alice, "Yes, it came while you were typing. Your hub never asked mine."),
            (alice, bob, "Five nodes between us, and neither page knows."),
            (bob, alice, "Only the two ticks: it is on disk at your gateway."),
        ):
            said.append(text)
            await say(page, text)
            await shows(other, *said)
        for page in (alice, bob):
            await page.until("document.querySelectorAll('#messages .mine .ticks.delivered').length === 2")
        await side_by_side(alice, bob)
