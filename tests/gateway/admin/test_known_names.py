"""From ids back to names: what a gateway has come across, after restarts too, and all below a place."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.cli.main import main
from gateway.names import FILE_NAME, KnownNames
from identifiers import DEFAULT_NAMING, HashName, Naming, Topic
from tests.gateway.admin.admin_world import AdminWorld, admin_world
from tests.waiting import until


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[AdminWorld]:
    async with admin_world(tmp_path) as world:
        yield world


async def test_names_are_noted_once_and_outlive_a_restart(tmp_path: Path) -> None:
    complaints: list[str] = []
    path = tmp_path / FILE_NAME
    names = KnownNames(path, DEFAULT_NAMING, complaints.append, together=0.001)
    asked = ["http://a.example/x", "https://a.example/x", "http://b.a.example/y", "http://a.example.org/z"]
    for name in (*asked, *asked, "ana@a.example", "nonsense", "http://[nonsense"):
        names.note(name)
    item = DEFAULT_NAMING.of_topic(Topic.parse(asked[0]))
    await until(lambda: names.of_item(item) == "https://a.example/x")
    assert names.below("a.example", 9) == ["https://a.example/x", "http://b.a.example/y"]
    assert names.below("a.example", 1) == ["https://a.example/x"]
    names.note("http://late.example/")
    await names.stop()
    again = KnownNames(path, DEFAULT_NAMING, complaints.append)
    assert again.below("http://late.example/", 9) == ["http://late.example/"]
    await again.stop()
    # Ids of another naming are others: the names come again.
    other = KnownNames(path, Naming(hash_name=HashName.SHA256), complaints.append)
    assert other.below("example", 9) == []
    await other.stop()
    assert complaints == []


async def test_there_is_a_bound_and_what_is_left_out_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.names.WAITING", 2)
    names = KnownNames(tmp_path / FILE_NAME, DEFAULT_NAMING, lambda _: None, together=0.001)
    for number in range(5):
        names.note(f"http://{number}.example/")
    assert names.left_out == 3
    await until(lambda: names.of_item(DEFAULT_NAMING.of_topic(Topic.parse("http://0.example/"))))
    names.note("http://4.example/")
    await until(lambda: len(names.below("example", 9)) == 3)
    await names.stop()


async def test_dashboard_and_command_use_them(world: AdminWorld, capsys: pytest.CaptureFixture[str]) -> None:
    await world.subscribe()
    item = DEFAULT_NAMING.of_topic(Topic.parse(world.blog.topic))
    names = world.a.core.names
    assert names is not None
    await until(lambda: names.of_item(item) == world.blog.topic)
    assert await world.get("/api/names", item=str(item)) == [world.blog.topic]
    await world.get("/api/names", 400, item="no ids")
    await world.get("/api/names", 400, below="http://")
    port = ("--admin", world.admin.url)
    assert await asyncio.to_thread(main, ["id", "--reverse", str(item), *port]) == 0
    assert await asyncio.to_thread(main, ["id", "--below", "127.0.0.1", *port]) == 0
    assert capsys.readouterr().out.splitlines() == [world.blog.topic, world.blog.topic]
    assert await asyncio.to_thread(main, ["id", "--reverse", "::01/::02", *port]) == 1
    assert (await world.get("/api/topics", q="127.0.0.1"))[0]["topic"] == world.blog.topic
