"""What is asked of a network without a rendezvous is refused; who wants to waits, and is served after it healed."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from identifiers import Identifier
from psirp_stack.control.codes import Code
from psirp_stack.forwarding_node import LoopScheduler
from psirp_stack.links.in_process import pair
from psirp_stack.node.api import Client, PsirpError
from psirp_stack.node.config import DomainFile, NodeFile, NodeRole, TimesFile
from psirp_stack.node.intents import IntentConfig
from psirp_stack.node.shell import RunningNode
from tests.psirp_stack.simulated import scope

SID, RID = Identifier(scope(3)), Identifier(scope(4))
LEAF = NodeFile(
    name="leaf",
    socket="leaf.sock",
    domain=DomainFile(rendezvous=("core",), topology=("core",)),
    times=TimesFile(hello=0.05, lease=5.0),
)
CORE = msgspec.structs.replace(
    LEAF, name="core", socket="core.sock", data="core", roles=(NodeRole.RENDEZVOUS, NodeRole.TOPOLOGY)
)


@dataclass
class Halves:
    """Two nodes that do not hear each other before `heal`."""

    leaf: RunningNode
    core: RunningNode

    def heal(self) -> None:
        carriers = pair(scheduler=LoopScheduler(asyncio.get_running_loop()))
        self.leaf.add_link(1, carriers[0])
        self.core.add_link(1, carriers[1])


@pytest.fixture
async def halves(tmp_path: Path) -> AsyncIterator[Halves]:
    made = Halves(await RunningNode.start(LEAF, tmp_path), await RunningNode.start(CORE, tmp_path))
    made.leaf.node.intents.config = IntentConfig(wait_for_rendezvous=0.05)
    yield made
    await made.leaf.close()
    await made.core.close()


async def test_a_refused_subscription_is_asked_again_and_served_after_healing(halves: Halves, tmp_path: Path) -> None:
    got = asyncio.Queue[bytes]()
    reasons = asyncio.Queue[str]()
    async with await Client.attach(tmp_path / "leaf.sock") as b, await Client.attach(tmp_path / "core.sock") as a:
        await a.publish(SID, RID, b"while cut off")
        listening = asyncio.ensure_future(
            b.subscribe(SID, RID, lambda one: got.put(one.content), not_now=reasons.put_nowait)
        )
        async with asyncio.timeout(20):
            assert "rendezvous" in await reasons.get()
            halves.heal()
            await listening
            assert await got.get() == b"while cut off"
            await a.publish(SID, RID, b"healed")
            assert await got.get() == b"healed"


async def test_who_does_not_want_to_wait_is_told_at_once(halves: Halves, tmp_path: Path) -> None:
    async with await Client.attach(tmp_path / "leaf.sock") as client:
        with pytest.raises(PsirpError) as refused:
            await client.subscribe(SID, RID, lambda _: None)
        assert refused.value.code is Code.NO_RENDEZVOUS


async def test_two_who_wait_for_one_item_share_the_request(halves: Halves, tmp_path: Path) -> None:
    got = asyncio.Queue[tuple[int, bytes]]()
    reasons = asyncio.Queue[str]()
    async with await Client.attach(tmp_path / "leaf.sock") as b, await Client.attach(tmp_path / "core.sock") as a:
        await a.publish(SID, RID, b"x")
        async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            for number in (1, 2):
                listener = lambda one, number=number: got.put((number, one.content))  # noqa: E731
                tasks.create_task(b.subscribe(SID, RID, listener, not_now=reasons.put_nowait))
            await reasons.get()
            await reasons.get()
            halves.heal()
            assert {await got.get(), await got.get()} == {(1, b"x"), (2, b"x")}


async def test_what_was_not_published_is_not_withdrawn(halves: Halves, tmp_path: Path) -> None:
    async with (
        await Client.attach(tmp_path / "core.sock") as client,
        await Client.attach(tmp_path / "core.sock") as other,
    ):
        with pytest.raises(PsirpError) as refused:
            await client.unpublish(SID, RID)
        assert refused.value.code is Code.ITEM_DOES_NOT_EXIST
        await other.publish(SID, RID, b"of another application")
        with pytest.raises(PsirpError):
            await client.unpublish(SID, RID)
        await other.unpublish(SID, RID)
        with pytest.raises(PsirpError):
            await other.unpublish(SID, RID)


async def test_a_withdrawal_is_done_when_the_node_was_started_again(tmp_path: Path) -> None:
    node = await RunningNode.start(CORE, tmp_path)
    async with await Client.attach(tmp_path / "core.sock") as client:
        await client.publish(SID, RID, b"x")
        await node.close()
        node = await RunningNode.start(CORE, tmp_path)
        async with asyncio.timeout(20):
            await client.unpublish(SID, RID)
    await node.close()
