"""What may happen to a network in one process: links go and come back, become bad, nodes end and return."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from identifiers import Identifier
from psirp_stack.emulation.network import EmulatedNetwork, socket_of
from psirp_stack.emulation.plan import PlanError, plan
from psirp_stack.links.impairment import Impairment
from psirp_stack.node.api import Client
from psirp_stack.node.attachment import ReceivedVersion

SECONDS = 20.0
SID, RID = Identifier(b"\1" * 32), Identifier(b"\2" * 32)


@asynccontextmanager
async def network_of(document: dict[str, object], data: Path) -> AsyncIterator[EmulatedNetwork]:
    network = await EmulatedNetwork.start(plan(document, data), data)
    try:
        async with asyncio.timeout(SECONDS):
            await network.settled()
            yield network
    finally:
        await network.close()


class Listener:
    """Waits for contents, one by one."""

    def __init__(self) -> None:
        self._arrived: asyncio.Queue[bytes] = asyncio.Queue()

    def heard(self, publication: ReceivedVersion) -> None:
        self._arrived.put_nowait(publication.content)

    async def next(self) -> bytes:
        return await self._arrived.get()


RING: dict[str, object] = {
    "generate": {"kind": "ring", "nodes": 4},
    "roles": {"rendezvous": ["n0", "n2"]},
}


async def test_links_and_nodes_go_and_come_back_while_publications_arrive(tmp_path: Path) -> None:
    async with network_of(RING, tmp_path) as network:
        listener = Listener()
        async with (
            await Client.attach(socket_of(tmp_path, "n3")) as subscriber,
            await Client.attach(socket_of(tmp_path, "n1")) as publisher,
        ):
            await subscriber.subscribe(SID, RID, listener.heard)

            async def arrives(content: bytes) -> None:
                await publisher.publish(SID, RID, content)
                assert await listener.next() == content

            await arrives(b"at first")
            network.cut("n0", "n1")
            await arrives(b"by n2")
            network.mend("n1", "n0")
            network.cut("n2", "n3")
            await arrives(b"by n0")
            network.mend("n2", "n3")
            await network.kill("n0")
            assert "n0" not in network.nodes
            await arrives(b"n2 has the roles")
            network.cut("n2", "n3")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await arrives(b"nobody is between them")
            await network.revive("n0")
            assert await listener.next() == b"nobody is between them"
            await network.settled()


async def test_a_link_becomes_bad_and_good_again(tmp_path: Path) -> None:
    async with network_of({"links": [{"between": ["a", "b"]}]}, tmp_path) as network:
        listener = Listener()
        async with (
            await Client.attach(socket_of(tmp_path, "a")) as publisher,
            await Client.attach(socket_of(tmp_path, "b")) as subscriber,
        ):
            await subscriber.subscribe(SID, RID, listener.heard)
            await publisher.publish(SID, RID, b"0")
            assert await listener.next() == b"0"
            loop = asyncio.get_running_loop()
            for delay in (0.1, 0.0):
                network.impair("b", "a", Impairment(delay=delay))
                await network.settled()
                for turn in range(2):  # the first may wait behind frames that left under the former delay
                    began = loop.time()
                    await publisher.publish(SID, RID, b"%d %f" % (turn, delay))
                    await listener.next()
                assert (loop.time() - began > 0.1) is (delay > 0)


async def test_what_the_plan_does_not_have_is_refused(tmp_path: Path) -> None:
    async with network_of(RING, tmp_path) as network:
        with pytest.raises(ValueError, match="no link joins 'n0' and 'n2'"):
            network.cut("n0", "n2")
    with pytest.raises(PlanError, match="no node is named 'n9'"):
        plan(RING | {"roles": {"rendezvous": ["n0", "n9"]}}, tmp_path)
