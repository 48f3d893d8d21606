"""An application of a PSIRP network: it publishes an item at one node and subscribes to it at another.

    python examples/psirp_application.py

The network (a line of three nodes) is emulated in this very process. With a node that runs already, its socket is all
that is needed: `Client.attach(Path("var/net/n0.sock"))`.
"""

import asyncio
import tempfile
from pathlib import Path

from identifiers import Naming, Topic
from psirp_stack.emulation.network import EmulatedNetwork, socket_of
from psirp_stack.emulation.plan import plan
from psirp_stack.node.api import Client
from psirp_stack.node.attachment import ReceivedVersion


async def main(folder: Path) -> None:
    network = await EmulatedNetwork.start(plan({"generate": {"kind": "line", "nodes": 3}}, folder), folder)
    item = Naming().of_topic(Topic.parse("http://example.com/greeting"))
    print(f"{item.sid}/{item.rid}")
    came: asyncio.Queue[bytes] = asyncio.Queue()

    async def heard(publication: ReceivedVersion) -> None:
        print(f"n2 got {publication.content.decode()!r}", flush=True)
        came.put_nowait(publication.content)

    try:
        await network.settled()
        async with (
            await Client.attach(socket_of(folder, "n0")) as publisher,
            await Client.attach(socket_of(folder, "n2")) as subscriber,
        ):
            # Who publishes and who subscribes need not know each other, nor be there at the same time.
            await publisher.publish(item.sid, item.rid, b"hello")
            await subscriber.subscribe(item.sid, item.rid, heard)
            await came.get()
            await publisher.publish(item.sid, item.rid, b"and again")
            await came.get()
            why = await subscriber.explain(item.sid, item.rid)
            print(why.reason)
    finally:
        await network.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="psph-") as temporary:
        asyncio.run(main(Path(temporary)))
