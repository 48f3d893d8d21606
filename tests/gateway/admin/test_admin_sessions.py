"""Sessions of every protocol on the admin port and by `psph sessions`: seen, paused, resumed, rewound, ended."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.main import main
from gateway.protocols.chat.protocol import ChatProtocol
from gateway.protocols.rest.protocol import RestProtocol
from tests.gateway.admin.admin_world import AdminWorld, admin_world
from tests.waiting import until

ANA, BOB = "ana@a.example", "bob@a.example"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[AdminWorld]:
    async with admin_world(tmp_path) as world:
        yield world


async def act(world: AdminWorld, action: str, status: int = 200, **body: str) -> Any:
    async with world.http.post(f"{world.admin.url}api/sessions/{action}", json=body) as answer:
        assert answer.status == status, await answer.text()
        return (await answer.json())["done"] if status == 200 else await answer.text()


async def psph(world: AdminWorld, *words: str) -> int:
    return await asyncio.to_thread(main, ["sessions", *words, "--admin", world.admin.url])


async def test_subscribers_of_all_protocols_are_sessions_that_can_be_managed(
    world: AdminWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    await world.subscribe()
    chat = world.a.core.protocol(ChatProtocol).adapter
    rest = world.a.core.protocol(RestProtocol).adapter
    assert chat is not None
    assert rest is not None
    for name in ("ana", "bob"):
        await chat.claim(name)
    await chat.open(ANA, BOB)
    await chat.open(BOB, ANA)
    async with rest.stream(world.blog.topic, "127.0.0.1") as stream:
        rows = {(row["protocol"], row["who"]): row for row in await world.get("/api/sessions")}
        assert set(rows) == {("psirp", ""), ("websub", "hub"), ("chat", ANA), ("chat", BOB), ("rest", stream.who)}
        assert [key for key, row in rows.items() if not row["durable"]] == [("rest", stream.who)]
        shown = (await world.get("/api/snapshot"))["sessions"]
        assert [(row["protocol"], row["who"]) for row in shown] == list(rows)
        assert (await world.get("/api/topic", topic=world.blog.topic))["said"] == ["1 open streams follow it"]
        shown = await world.get("/api/session", protocol="rest", who=stream.who)
        assert [one["name"] for one in shown["interests"]] == [world.blog.topic]
        assert "ends with its connection" in await act(world, "pause", 409, protocol="rest", who=stream.who)
        assert await act(world, "end", protocol="rest", who=stream.who)
        assert await stream.next(0.0) is None
        assert stream.forbidden

    # What is said while a session is paused waits for it.
    assert await psph(world, "pause", "chat", ANA) == 0
    assert await psph(world, "pause", "chat", ANA) == 1
    await chat.say(BOB, ANA, "are you there?", "m1")
    capsys.readouterr()

    async def waits() -> bool:
        shown = await world.get("/api/session", protocol="chat", who=ANA)
        return {one["name"]: one["waiting"] for one in shown["interests"]}[BOB] == 1

    await until(waits)
    assert not chat.store.history(ANA, BOB, 1 << 50, 10)
    assert await psph(world, "show", "chat", ANA) == 0
    assert "1 waiting" in capsys.readouterr().out
    assert await psph(world, "resume", "chat", ANA) == 0
    await until(lambda: chat.store.history(ANA, BOB, 1 << 50, 10))

    # One more time from the beginning: the message is known by its id, and there once.
    assert await psph(world, "rewind", "chat", ANA, BOB, "--from", "all") == 0
    assert await psph(world, "rewind", "chat", ANA, BOB, "--from", "the beginning") == 2
    assert "says no place to begin" in capsys.readouterr().err
    assert await psph(world, "rewind", "chat", ANA, "eva@a.example") == 1
    assert len(chat.store.history(ANA, BOB, 1 << 50, 10)) == 1

    assert await psph(world, "end", "chat", ANA) == 0
    assert await psph(world, "end", "chat", ANA) == 1
    assert chat.store.partners(ANA) == []
    for protocol, who, said in (("websub", "hub", "one by one"), ("psirp", "", "stop the gateway")):
        assert said in await act(world, "end", 409, protocol=protocol, who=who)
    capsys.readouterr()
    assert await psph(world, "--json") == 0
    left = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["protocol"], row["who"]) for row in left] == [("chat", BOB), ("psirp", ""), ("websub", "hub")]
    (last,) = await world.get("/api/sessions", protocol="psirp", who="")
    assert (last["protocol"], last["who"]) == ("websub", "hub")
    done = [line["action"] for line in map(json.loads, world.admin.audit.path.read_text().splitlines())]
    assert done.count("pause") == 5  # asked and done, asked and nothing to do, asked and refused


async def test_what_is_not_there_is_told(world: AdminWorld, capsys: pytest.CaptureFixture[str]) -> None:
    await world.get("/api/session", 404, protocol="chat", who="nobody")
    assert not await act(world, "end", protocol="chat", who="nobody")
    assert "pause, resume, rewind, end" in await act(world, "dance", 404, protocol="chat", who="nobody")
    assert await psph(world, "pause") == 2
    assert "psph sessions lists them" in capsys.readouterr().err
    assert await asyncio.to_thread(main, ["sessions", "--admin", "http://127.0.0.1:9/"]) == 2
    assert "no admin port at http://127.0.0.1:9" in capsys.readouterr().err
