"""Streams that select, in one domain and across two: what a reader asks for by content is all that it gets."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.selection import explained_selection
from identifiers import DEFAULT_NAMING, Topic
from tests.gateway.web_world import Domain, Reader, World, started_world

WIND = "http://sensors.example/wind"
NEWS = "http://news.example/feed"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with started_world(tmp_path) as world:
        yield world


async def post(world: World, domain: Domain, name: str, body: str, content_type: str, **query: str) -> None:
    params = {"name": name, **query}
    async with world.http.post(
        domain.url("/topics"), params=params, data=body, headers={"Content-Type": content_type}
    ) as answer:
        assert answer.status == 201, await answer.text()


async def measure(world: World, domain: Domain, speed: float, place: str = "roof") -> None:
    body = json.dumps({"speed": speed, "place": place})
    await post(world, domain, WIND, body, "application/json", profile="event")


def feed(*entries: tuple[str, str]) -> str:
    shown = "".join(
        f'<entry><id>urn:{title}</id><title>{title}</title><category term="{category}"/></entry>'
        for title, category in entries
    )
    return f'<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:feed</id><title>News</title>{shown}</feed>'


async def test_only_what_was_selected_comes_from_here_and_from_elsewhere(world: World) -> None:
    strong = {"name": WIND, "where": "speed >= 10 and place = 'roof'"}
    async with (
        world.domain("n0", "a") as a,
        world.domain("n2", "b") as b,
        world.http.get(a.url("/topics"), params=strong) as one,
        world.http.get(b.url("/topics"), params=strong) as other,
    ):
        readers = [Reader(one), Reader(other)]
        for reader in readers:
            await reader.block()
        for speed, place in ((4, "roof"), (14, "cellar"), (15, "roof"), (10, "roof"), (9.9, "roof")):
            await measure(world, b, speed, place)
        for reader in readers:
            assert [json.loads((await reader.next())[1]["text"])["speed"] for _ in range(2)] == [15, 10]
        item = DEFAULT_NAMING.of_topic(Topic.parse(WIND))
        assert await explained_selection(b.gateway.core.control, item) == [
            "1 subscriptions select from it, and the newest publication is for 0 of them",
            "not for 1, because of speed >= 10 (it is 9.9)",
        ]


async def test_entries_of_a_feed_are_selected_one_by_one(world: World) -> None:
    query = {"name": NEWS, "as": "entries", "where": "category = 'sport'"}
    async with world.domain("n0", "a") as a, world.http.get(a.url("/topics"), params=query) as answer:
        reader, atom = Reader(answer), "application/atom+xml"
        await reader.block()
        await post(world, a, NEWS, feed(("two", "weather"), ("one", "sport")), atom)
        await post(world, a, NEWS, feed(("four", "sport"), ("three", "weather"), ("one", "sport")), atom)
        assert [(await reader.next())[1]["title"] for _ in range(2)] == ["one", "four"]


async def test_what_is_no_selector_is_told(world: World) -> None:
    async with (
        world.domain("n0", "a") as a,
        world.http.get(a.url("/topics"), params={"name": WIND, "where": "speed > fast"}) as answer,
    ):
        assert answer.status == 400
        assert "expected a text in quotes or a number, found 'fast'" in await answer.text()
