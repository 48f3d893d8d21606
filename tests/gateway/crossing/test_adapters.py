"""A protocol that the gateway has never heard of is put behind it, by nothing but an adapter."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from exchange.model import Draft, Interest, LogEntry, OriginId, Profile, SessionKey
from gateway.control import Control
from gateway.model import ItemSubscription, RefusedError
from identifiers import DEFAULT_NAMING, ItemId
from tests.gateway.web_world import World, started_world
from tests.waiting import until

PREFIX = "pigeon:"


class PigeonLoft:
    """Messages on paper: `pigeon:TOWN/LOFT` names a loft, and whoever waits there gets what is brought."""

    name = "pigeons"
    hears_own = False
    keeps_rules = False

    def __init__(self, control: Control) -> None:
        self._control = control
        self.brought: dict[str, list[str]] = {}
        self.storms = 0
        control.add(self)

    def item_of(self, what: str) -> ItemId:
        town, separator, loft = what.removeprefix(PREFIX).partition("/")
        if not what.startswith(PREFIX) or not separator:
            raise RefusedError(f"{what!r} is no loft: expected {PREFIX}TOWN/LOFT")
        return ItemId(DEFAULT_NAMING.of_seed(town), DEFAULT_NAMING.of_seed(loft))

    async def deliver(self, key: SessionKey, entry: LogEntry, interests: Sequence[Interest]) -> None:
        if entry.draft.content_type != "text/paper":
            raise RefusedError("not written on paper")
        if self.storms:
            self.storms -= 1
            raise OSError("a storm")
        for interest in interests:
            self.brought.setdefault(interest.where, []).append(entry.draft.body.decode())

    async def wait_at(self, who: str, loft: str, perch: str) -> ItemSubscription:
        return await self._control.subscribe(self, who, loft, perch)

    async def go_home(self, who: str, loft: str) -> bool:
        return await self._control.unsubscribe(self, who, loft)

    async def send(self, loft: str, text: str) -> OriginId:
        draft = Draft(self.item_of(loft), loft, Profile.MESSAGE, "text/paper", text.encode())
        return (await self._control.publish(self, draft)).origin


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with started_world(tmp_path) as world:
        yield world


LOFT = "pigeon:madrid/old-tower"


async def test_another_protocol_gets_and_publishes_across_the_network(world: World) -> None:
    async with world.domain("n0", "a") as a, world.domain("n2", "b") as b:
        here, there = PigeonLoft(a.gateway.control), PigeonLoft(b.gateway.control)
        subscription = await here.wait_at("ana", LOFT, "left perch")
        await here.wait_at("eva", LOFT, "right perch")
        assert subscription.item == here.item_of(LOFT)
        await there.send(LOFT, "one")
        await there.send(LOFT, "two")
        await until(lambda: here.brought.get("right perch") == ["one", "two"])
        assert here.brought == {"left perch": ["one", "two"], "right perch": ["one", "two"]}
        # And the other way round, at the same time.
        back = "pigeon:uppsala/mill"
        await there.wait_at("olof", back, "roof")
        await here.send(back, "three")
        await until(lambda: there.brought == {"roof": ["three"]})


async def test_it_has_what_every_protocol_has_trying_again_and_letting_go(world: World) -> None:
    async with world.domain("n0", "a") as a, world.domain("n2", "b") as b:
        here, there = PigeonLoft(a.gateway.control), PigeonLoft(b.gateway.control)
        await here.wait_at("ana", LOFT, "perch")
        here.storms = 1
        await there.send(LOFT, "through the storm")
        await until(lambda: here.brought == {"perch": ["through the storm"]})
        assert await here.go_home("ana", LOFT)
        assert not await here.go_home("ana", LOFT)
        assert not a.gateway.psirp.follows(here.item_of(LOFT))
        with pytest.raises(RefusedError, match="no loft"):
            await here.wait_at("ana", "http://madrid/", "perch")


async def test_its_subscriptions_are_as_durable_as_any(world: World) -> None:
    async with world.domain("n2", "b") as b:
        there = PigeonLoft(b.gateway.control)
        async with world.domain("n0", "a") as a:
            here = PigeonLoft(a.gateway.control)
            await here.wait_at("ana", LOFT, "perch")
            await there.send(LOFT, "one")
            await until(lambda: here.brought)
        await there.send(LOFT, "two")
        await there.send(LOFT, "three")
        async with world.domain("n0", "a") as a:
            here = PigeonLoft(a.gateway.control)
            await until(lambda: here.brought == {"perch": ["two", "three"]})


async def test_two_adapters_cannot_share_a_name(world: World) -> None:
    async with world.domain("n0", "a") as a:
        PigeonLoft(a.gateway.control)
        with pytest.raises(ValueError, match="already"):
            PigeonLoft(a.gateway.control)
