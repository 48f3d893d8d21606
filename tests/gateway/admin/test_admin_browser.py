"""The dashboard as people use it, in a real browser: mouse, keyboard, a phone, light and dark."""

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.admin.config import AdminConfig
from identifiers import Topic
from tests.gateway.admin.admin_world import AdminWorld, admin_world
from tests.gateway.browser import Browser, Page, browser, why_not
from tests.waiting import until

pytestmark = [pytest.mark.skipif(why_not() is not None, reason=str(why_not())), pytest.mark.timeout(240)]
PICTURES = "PSPH_TEST_PICTURES"
"""An environment variable: a folder to leave screenshots in, for people who want to look."""
PHONE, DESK = (390, 844), (1280, 900)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[AdminWorld]:
    async with admin_world(tmp_path) as world:
        await world.subscribe()
        await world.publish()
        await until(lambda: world.admin.telemetry.delivered.total)
        yield world


@pytest.fixture
async def chromium(tmp_path: Path) -> AsyncIterator[Browser]:
    async with browser(tmp_path / "profile") as one:
        yield one
        assert one.complaints == []


async def press(page: Page, key: str, code: str, number: int, text: str = "") -> None:
    named = {"key": key, "code": code, "windowsVirtualKeyCode": number}
    await page.ask("Input.dispatchKeyEvent", type="keyDown", text=text, **named)
    await page.ask("Input.dispatchKeyEvent", type="keyUp", **named)


async def opened(chromium: Browser, world: AdminWorld) -> Page:
    page = await chromium.page(world.admin.url)
    await page.look(*DESK)
    await page.until("document.getElementById('ready').textContent === 'ready'")
    await page.until("document.querySelectorAll('#topics tbody tr').length === 1")
    return page


async def test_it_shows_the_network_and_lights_up_the_way_of_a_topic(chromium: Browser, world: AdminWorld) -> None:
    page = await opened(chromium, world)
    assert await page.value("document.querySelectorAll('#network circle').length") == 3
    assert await page.value("document.querySelectorAll('#network line').length") == 2
    assert await page.value("document.querySelectorAll('#network line.lit').length") == 0
    assert "rendezvous" in await page.value("document.getElementById('network').textContent")
    await page.click("#topics tbody button")
    await page.until("document.querySelectorAll('#network line.lit').length === 2")
    await page.until("document.querySelectorAll('#detail .steps li').length >= 6")
    shown = await page.value("document.getElementById('detail').innerText")
    for words in (
        "gateway-a",
        "gateway-b",
        "the publisher pinged",
        "published in the network",
        "delivered, status 200",
    ):
        assert words in shown
    assert await page.value("document.querySelectorAll('#network line.false').length") == 0
    # A filter with a false positive, as the gateway would say it.
    await page.value(
        "import('./picture.js').then(({Picture}) => { const p = new Picture(document.getElementById('network'));"
        "p.show({name: 'a', nodes: ['a', 'b', 'c'], links: [['a', 'b'], ['b', 'c']],"
        " rendezvous: [], topology: [], doubted: []});"
        "p.light([{publisher: 'a', subscribers: ['b'], links: [['a', 'b']], mistaken: [['b', 'c']]}]); })"
    )
    await page.until("document.querySelectorAll('#network line.false').length === 1")
    assert await page.value("document.querySelectorAll('#network line.lit').length") == 1
    colour = "getComputedStyle(document.querySelector('#network line.{}')).stroke"
    colours = {await page.value(colour.format(kind)) for kind in ("lit", "false")}
    assert len(colours) == 2, "mistaken links have a colour of their own"


async def test_it_shows_latency_of_both_domains_matches_drops_and_events(chromium: Browser, world: AdminWorld) -> None:
    page = await opened(chromium, world)
    titles = await page.value("[...document.querySelectorAll('#charts h3')].map((one) => one.textContent).join()")
    assert {"PuSH delivery", "PuSH intake", "PSIRP crossing", "PSIRP export"} <= set(titles.split(","))
    await page.until("document.getElementById('node').innerText.includes('1 of 1 wanted items')")
    shown = await page.value("document.getElementById('node').innerText")
    assert "rendezvous matches for this gateway" in shown
    assert "known to n1" in shown, "the rendezvous is elsewhere, and it says where"
    assert "dropped" in shown
    assert "FanoutFinished" in await page.value("document.getElementById('events').innerText")


async def search(page: Page, text: str) -> None:
    await page.value("document.getElementById('query').value = ''; document.activeElement.blur()")
    await press(page, "/", "Slash", 191, "/")
    await page.until("document.activeElement.id === 'query'")
    await page.ask("Input.insertText", text=text)
    await page.press_enter()


async def act(page: Page, action: str) -> None:
    """Press a button wherever it has moved to: the page around it is live."""
    await page.until(f"document.querySelector('[data-action={action}]:enabled')?.checkVisibility()")
    await page.value(f"document.querySelector('[data-action={action}]').click()")


async def test_a_topic_is_found_by_its_address_and_by_its_id(chromium: Browser, world: AdminWorld) -> None:
    page = await opened(chromium, world)
    item = world.a.config.naming.of_topic(Topic.parse(world.blog.topic))
    for text in (world.blog.topic, str(item.sid), str(item.rid)):
        await search(page, text)
        await page.until("!document.getElementById('detail').hidden")
        assert world.blog.topic in await page.value("document.getElementById('detail').innerText"), text
        await press(page, "Escape", "Escape", 27)
        await page.until("document.getElementById('detail').hidden")
    await search(page, "nowhere.example")
    await page.until("document.querySelectorAll('#topics tbody tr').length === 0")


async def test_an_operator_acts_on_a_topic_and_its_callbacks(chromium: Browser, world: AdminWorld) -> None:
    page = await opened(chromium, world)
    await page.click("#topics tbody button")
    await page.until("document.querySelector('[data-action=fetch]')")
    await page.value("window.asked = []; window.confirm = (text) => window.asked.push(text)")
    fetched = world.admin.telemetry.counted["PingsStored"]
    await act(page, "fetch")
    await until(lambda: world.admin.telemetry.counted["PingsStored"] > fetched)
    confirmed = world.admin.telemetry.counted["IntentConfirmed"]
    await act(page, "verify")
    await until(lambda: world.admin.telemetry.counted["IntentConfirmed"] > confirmed)
    # A delivery that failed waits for its next try, until somebody says «now».
    world.reader.answers = [500]
    before = len(world.reader.received)
    await world.publish(arrives=False)
    await page.until("document.querySelector('[data-action=retry]:enabled')")
    await page.until("document.getElementById('detail').innerText.includes('500')")
    assert len(world.reader.received) == before
    await act(page, "retry")
    await until(lambda: len(world.reader.received) == before + 1)
    await act(page, "unsubscribe")
    await until(lambda: not world.a.hub.subscriptions.count(world.blog.topic))
    assert await page.value("window.asked.length") == 2, "what may end a subscription is asked for first"


async def test_it_is_live(chromium: Browser, world: AdminWorld) -> None:
    page = await opened(chromium, world)
    before = world.admin.telemetry.delivered.total
    await world.publish()
    await until(lambda: world.admin.telemetry.delivered.total > before)
    delivered = "[...document.querySelectorAll('#tiles div')].find((one) => one.innerText.startsWith('delivered'))"
    await page.until(f"{delivered}.querySelector('dd').textContent === '{before + 1}'")
    await page.until("document.querySelector('#charts polyline') && document.querySelector('#charts rect')")


async def test_everything_is_done_by_keyboard(chromium: Browser, world: AdminWorld) -> None:
    page = await opened(chromium, world)
    await press(page, "/", "Slash", 191, "/")
    await page.until("document.activeElement.id === 'query'")
    await page.ask("Input.insertText", text="feed")
    await page.press_enter()
    await page.until("!document.getElementById('detail').hidden && document.querySelector('[data-action=pause]')")
    await page.until("document.activeElement.id === 'detail-title'")
    for _ in range(12):
        await press(page, "Tab", "Tab", 9)
        if await page.value("document.activeElement.dataset.action") == "pause":
            break
    await page.press_enter()
    number = world.a.hub.subscriptions.page(world.blog.topic, 0, 1, 0.0)[0].id
    await until(lambda: world.a.hub.delivery.is_paused(number))
    await page.until("document.querySelector('[data-action=resume]')")
    await page.until("document.getElementById('message').textContent === 'paused'")
    await page.click("[data-action=resume]")
    await until(lambda: not world.a.hub.delivery.is_paused(number))
    await press(page, "Escape", "Escape", 27)
    await page.until("document.getElementById('detail').hidden")


@pytest.mark.parametrize("dark", [False, True])
async def test_it_fits_a_phone_in_light_and_dark(chromium: Browser, world: AdminWorld, dark: bool) -> None:
    page = await opened(chromium, world)
    await page.click("#topics tbody button")
    await page.until("document.querySelectorAll('#detail .steps li').length >= 6")
    for width, height in (DESK, PHONE):
        await page.look(width, height, dark=dark)
        await page.until(f"innerWidth === {width}")
        assert await page.value("document.documentElement.scrollWidth <= innerWidth")
        await page.value("scrollTo(0, 0)")
        folder = os.environ.get(PICTURES)
        if folder:
            await page.picture(Path(folder) / f"dashboard-{width}-{'dark' if dark else 'light'}.png")
    ground = await page.value("getComputedStyle(document.body).backgroundColor")
    shade = sum(map(int, ground.removeprefix("rgb(").removesuffix(")").split(",")))
    assert (shade < 3 * 60) is dark


async def test_a_token_opens_it_and_a_viewer_has_no_buttons(chromium: Browser, tmp_path: Path) -> None:
    config = AdminConfig(viewer_tokens=("look-at-this-gateway",), operator_tokens=("act-on-this-gateway",))
    async with admin_world(tmp_path / "other", config) as world:
        await world.subscribe()
        await world.publish()
        page = await chromium.page(world.admin.url)
        await page.look(*DESK)
        await page.until("document.activeElement.id === 'token'")
        await page.ask("Input.insertText", text="wrong")
        await page.press_enter()
        await page.until("document.getElementById('message').textContent.includes('not known')")
        await page.write("#token", "look-at-this-gateway")
        await page.press_enter()
        await page.until("document.getElementById('about').textContent.includes('viewer')")
        await page.click("#topics tbody button")
        await page.until("document.querySelectorAll('#detail .steps li').length")
        assert await page.value("document.querySelectorAll('[data-action]').length") == 0
        # The page's own script was given nothing to leave behind.
        assert "look-at-this-gateway" not in await page.value("document.documentElement.outerHTML + location.href")
        assert json.dumps(await page.value("document.cookie")) == '""'
