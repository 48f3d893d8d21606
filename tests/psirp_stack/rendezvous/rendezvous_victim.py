"""A rendezvous that is killed: `python -m tests.psirp_stack.rendezvous.rendezvous_victim FILE SEED BOOT`.

Sends itself random requests without waiting, and writes a line for each that was answered: what a node would know.
"""

import random
import sys
import threading
from pathlib import Path

from psirp_stack.control.messages import PublishItem, RendezvousRequest, SubscribeItem, UnpublishItem, UnsubscribeItem
from psirp_stack.rendezvous import Rendezvous
from tests.psirp_stack.rendezvous.rendezvous_support import ident

ITEMS = 40
SCOPE = ident(5)


def requests(seed: int) -> "list[tuple[str, RendezvousRequest]]":
    rng = random.Random(seed)
    kinds = (PublishItem, SubscribeItem, UnpublishItem, UnsubscribeItem)
    return [
        (f"n{rng.randrange(5)}", rng.choice(kinds)(number, SCOPE, ident(100 + rng.randrange(ITEMS))))
        for number in range(1, 20_000)
    ]


def main(path: Path, seed: int, boot: int) -> None:
    rendezvous = Rendezvous.open(path, now=0.0)
    room = threading.Semaphore(64)
    for position, (node, request) in enumerate(requests(seed)):
        room.acquire()

        def answered(_: object, position: int = position) -> None:
            sys.stdout.write(f"{position}\n")
            sys.stdout.flush()
            room.release()

        rendezvous.handle(node, boot, request, 0.0, 0).add_done_callback(answered)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
