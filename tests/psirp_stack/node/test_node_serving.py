"""A node that was told who serves an item before it subscribed: nobody tells it again."""

import asyncio
from pathlib import Path

import pytest

from identifiers import DEFAULT_NAMING
from psirp_stack.emulation.network import EmulatedNetwork, socket_of
from psirp_stack.emulation.plan import plan
from psirp_stack.node.api import Client
from psirp_stack.node.attachment import ReceivedVersion
from psirp_stack.node.config import TimesFile

ITEM = DEFAULT_NAMING.of_user("alice@example.com")


async def test_who_leaves_and_comes_back_unnoticed_still_gets_what_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a quick restart: rendezvous and topology see the same subscriber as before, and say nothing."""
    network = await EmulatedNetwork.start(
        plan({"generate": {"kind": "line", "nodes": 3}}, tmp_path), tmp_path, TimesFile(hello=0.1)
    )
    arrived: asyncio.Queue[ReceivedVersion] = asyncio.Queue()
    try:
        await network.settled()
        async with (
            asyncio.timeout(30),
            await Client.attach(socket_of(tmp_path, "n0"), application="publisher") as publisher,
            await Client.attach(socket_of(tmp_path, "n2"), application="subscriber") as subscriber,
        ):
            await publisher.publish(ITEM.sid, ITEM.rid, b"one")
            first = await subscriber.subscribe(ITEM.sid, ITEM.rid, arrived.put_nowait)
            assert (await arrived.get()).content == b"one"
            monkeypatch.setattr(network.nodes["n2"].node.intents, "leave", lambda *_: None)
            await subscriber.unsubscribe(first)
            monkeypatch.undo()
            await publisher.publish(ITEM.sid, ITEM.rid, b"two")
            await subscriber.subscribe(ITEM.sid, ITEM.rid, arrived.put_nowait)
            await publisher.publish(ITEM.sid, ITEM.rid, b"three")
            contents = [(await arrived.get()).content]
            while contents[-1] != b"three":
                contents.append((await arrived.get()).content)
    finally:
        await network.close()
