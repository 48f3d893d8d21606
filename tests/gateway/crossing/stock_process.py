"""A stock publisher or subscriber as a process of its own, to be run inside a network namespace.

python -m tests.gateway.crossing.stock_process publisher HUB
    prints its topic; then a line of hex is a new document
python -m tests.gateway.crossing.stock_process subscriber HUB TOPIC
    prints `subscribed`, then a JSON line for each delivery
"""

import asyncio
import json
import sys

from tests.gateway.crossing.stock_subscriber import StockPublisher, StockSubscriber


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def publisher(hub: str) -> None:
    reader = asyncio.StreamReader(limit=16 * 1024 * 1024)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with StockPublisher(b"nothing yet", "text/plain") as stock:
        stock.hub = hub
        say(stock.topic)
        while line := await reader.readline():
            content_type, _, body = line.decode().strip().partition(" ")
            stock.content_type = content_type
            await stock.publish(bytes.fromhex(body))
            say("taken")


async def subscriber(hub: str, topic: str) -> None:
    async with StockSubscriber() as stock:
        await stock.ask(hub, topic)
        say("subscribed" if stock.denied is None else f"denied {stock.denied}")
        number = 0
        while True:
            await stock.arrived(number + 1)
            taken = stock.taken[number]
            number += 1
            said = {"type": taken.content_type, "body": taken.body.hex(), "hub": taken.hub, "topic": taken.topic}
            say(json.dumps(said))


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    asyncio.run(publisher(*words) if what == "publisher" else subscriber(*words))
