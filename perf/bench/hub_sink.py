"""Callbacks that confirm every check: a process of its own, so that it does not take the hub's or the client's time.

    python -m perf.bench.hub_sink ADDRESSES

Listens on 127.0.0.1 ... 127.0.0.ADDRESSES at one free port and prints that port. Ends when its input does.
"""

import asyncio
import os
import sys
from urllib.parse import unquote

import uvloop

from perf.loopback import LoopbackRequest, Reply, Server, answer


def confirm(request: LoopbackRequest, reply: Reply) -> None:
    challenge = request.target.partition("hub.challenge=")[2].partition("&")[0]
    reply(answer(200, unquote(challenge).encode()))


async def serve(addresses: int) -> None:
    async with Server(confirm, addresses) as server:
        os.write(sys.stdout.fileno(), f"{server.port}\n".encode())
        # The parent's end of this pipe closes when it ends, however it ends.
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
