"""An application in the node's own process: the same API, and no socket between."""

import asyncio
from pathlib import Path

import pytest

from identifiers import Identifier
from psirp_stack.node.api import Client, NotAttachedError
from psirp_stack.node.config import NodeFile, NodeRole, TimesFile
from psirp_stack.node.shell import RunningNode
from tests.psirp_stack.simulated import scope
from tests.waiting import until

SID, RID = Identifier(scope(3)), Identifier(scope(4))
FILE = NodeFile(
    name="alone",
    roles=(NodeRole.RENDEZVOUS, NodeRole.TOPOLOGY),
    data="data",
    times=TimesFile(hello=0.1, lease=5.0),
)


async def test_it_does_what_one_at_the_socket_does_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_socket(*_: object, **__: object) -> None:
        raise AssertionError("a socket lies between")

    monkeypatch.setattr(asyncio, "open_unix_connection", no_socket)
    node = await RunningNode.start(FILE, tmp_path)
    try:
        async with await Client.beside(node) as one, await Client.beside(node) as two:
            got: list[bytes] = []
            subscription = await one.subscribe(SID, RID, lambda publication: got.append(publication.content))
            for number in range(200):  # more than there is room for at once
                await two.publish(SID, RID, b"%d" % number)
            await until(lambda: len(got) == 200)
            assert got == [b"%d" % number for number in range(200)]
            await until(lambda: two.is_wanted(SID, RID))
            await one.unsubscribe(subscription)
            await until(lambda: not two.is_wanted(SID, RID))
        await until(lambda: not node.node.request_table.applications)
    finally:
        await node.close()


async def test_a_client_that_outlives_its_node_waits_and_can_be_closed(tmp_path: Path) -> None:
    node = await RunningNode.start(FILE, tmp_path)
    client = await Client.beside(node)
    await node.close()
    asked = asyncio.create_task(client.advertise(SID, RID))
    await asyncio.sleep(0)
    await client.close()
    with pytest.raises(NotAttachedError):
        await asked
