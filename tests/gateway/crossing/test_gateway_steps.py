"""docs/gateway-steps.md names a test for every step of the specification, and these are the tests of two of them."""

import ast
import asyncio
import re
from pathlib import Path

import pytest

from identifiers import DEFAULT_NAMING, Topic
from psirp_stack.control.messages import KeepAlive, RendezvousRequest
from psirp_stack.emulation.network import socket_of
from psirp_stack.node.api import Client
from psirp_stack.node.attachment import ReceivedVersion
from psirp_stack.node.intents import SubscriptionIntents
from tests.gateway.crossing.test_crossing import Publisher, Subscriber, World, feed, world
from tests.waiting import until

__all__ = ["world"]
ROOT = Path(__file__).parents[3]
ROW = re.compile(r"^\| ([A-Z]\d+) \| ([^|]+) \| ([^|]*) \|$", re.MULTILINE)
NAME = re.compile(r"`([\w/]+\.py)::(test_\w+)`")
STEPS = {"R": 2, "L": 5, "I": 7, "F": 8, "B": 10, "C": 3, "A": 3}


def rows() -> dict[str, list[tuple[str, str]]]:
    found = ROW.findall((ROOT / "docs" / "gateway-steps.md").read_text(encoding="utf-8"))
    assert len({step for step, *_ in found}) == len(found), "a step stands there twice"
    return {step: NAME.findall(shown) for step, _, shown in found}


def test_every_step_is_there() -> None:
    assert list(rows()) == [f"{letter}{number}" for letter, count in STEPS.items() for number in range(1, count + 1)]


@pytest.mark.parametrize("step", [f"{letter}{n}" for letter, count in STEPS.items() for n in range(1, count + 1)])
def test_every_test_that_a_step_names_exists(step: str) -> None:
    named = rows()[step]
    assert named, f"{step} has no test"
    for file, name in named:
        tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
        functions = {one.name for one in tree.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert name in functions, f"{step}: {file} has no {name}"


async def test_later_versions_need_no_rendezvous(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """F6: from the publisher's ping to the callback, nobody asks the rendezvous anything."""
    asked: list[RendezvousRequest] = []
    hand_out = SubscriptionIntents.next_message

    def noted(self: SubscriptionIntents, now: float) -> RendezvousRequest | None:
        message = hand_out(self, now)
        if message is not None and not isinstance(message, KeepAlive):
            asked.append(message)
        return message

    monkeypatch.setattr(SubscriptionIntents, "next_message", noted)
    async with (
        Publisher() as publisher,
        Subscriber() as subscriber,
        world.gateway("n3", "a") as a,
        world.gateway("n0", "b") as b,
    ):
        await world.subscribe(a, publisher.topic, subscriber.callback)
        await world.ping(b, publisher.topic)
        await until(lambda: subscriber.received)
        assert asked, "the first version needs a match"
        asked.clear()
        for number in range(2, 7):
            publisher.body = feed(f"version {number}")
            await world.ping(b, publisher.topic)
            await until(lambda number=number: len(subscriber.received) == number)  # type: ignore[misc]
        assert asked == []


async def test_what_is_published_under_the_printed_ids_arrives_nowhere_and_under_ours_it_does(world: World) -> None:
    """I7: the original subscribes to h("news") and publishes under h("news.feedpsirp.com")."""
    listens, publishes = DEFAULT_NAMING.of_seed("news"), DEFAULT_NAMING.of_seed("news.feedpsirp.com")
    path = DEFAULT_NAMING.of_seed("a")
    ours = DEFAULT_NAMING.of_topic(Topic.parse("http://news.feedpsirp.com/b"))
    heard: asyncio.Queue[ReceivedVersion] = asyncio.Queue()
    async with (
        await Client.attach(socket_of(world.data / "net", "n0"), application="b") as b,
        await Client.attach(socket_of(world.data / "net", "n3"), application="a") as a,
    ):
        await a.subscribe(listens, path, heard.put)
        await b.publish(publishes, path, b"under the printed ids")
        assert not (await a.explain(listens, path)).publishers
        assert not (await b.explain(publishes, path)).subscribers
        await a.subscribe(ours.sid, ours.rid, heard.put)
        await b.publish(ours.sid, ours.rid, b"under ours")
        async with asyncio.timeout(20):
            first = await heard.get()
        assert first.content == b"under ours"
        assert heard.empty()
