"""What must not be reached: a service on addresses of the attacked machine itself. Complains of every request.

python -m trials.attack.inside ADDRESS:PORT...
"""

import asyncio
import sys

from perf.loopback import Connection, LoopbackRequest, Reply, answer


def reached(request: LoopbackRequest, reply: Reply) -> None:
    sys.stdout.write(f"{request.method} {request.target} for {request.header('Host')}\n")
    sys.stdout.flush()
    reply(answer(200, b"a secret of the inside"))


async def main(places: list[str]) -> None:
    loop = asyncio.get_running_loop()
    for place in places:
        host, _, port = place.rpartition(":")
        await loop.create_server(lambda: Connection(reached), host, int(port))
    sys.stdout.write("listening\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
