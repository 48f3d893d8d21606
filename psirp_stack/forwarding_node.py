"""A forwarder on its links, driven by an event loop; and the same as a process of its own.

The shell is thin: it watches the links' descriptors, reads the clock once a batch and hands frames to the forwarder.

As a process, `python -m psirp_stack.forwarding_node` reads one JSON object a line on its standard input: first the
configuration, then `{"originate": HEX}` for each frame to send. It writes `{"ready": true}` when its links are open,
`{"delivered": HEX}` for each frame that is for this node, and its counters when its input ends.

    {"links": {"1": {"ethernet": "veth0", "tags": [HEX, ...]}, "2": {"udp_fd": 5, "peer": ["127.0.0.1", 4000],
     "tags": [...]}}, "incoming": {"1": [HEX, ...]}, "internal": [HEX, ...]}
"""

import asyncio
import json
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, TextIO

from psirp_stack.forwarder import Forwarder
from psirp_stack.forwarding_model import ForwardingTable, LinkNumber, Tags
from psirp_stack.links.ethernet import EthernetLink
from psirp_stack.links.interface import DEFAULT_BATCH, BatchLink, Link
from psirp_stack.links.udp import UdpAddress, UdpLink

READ_BYTES = 1 << 16


class LoopScheduler:
    """An asyncio loop as the scheduler that links ask for time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now(self) -> float:
        return self._loop.time()

    def call_at(self, when: float, action: Callable[[], object]) -> asyncio.TimerHandle:
        return self._loop.call_at(when, action)


class ForwardingNode:
    """One node: its forwarder, its links, and what they tell each other."""

    def __init__(
        self,
        forwarder: Forwarder,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        deliver: Callable[[bytes], object] | None = None,
        batch: int = DEFAULT_BATCH,
    ) -> None:
        self.forwarder = forwarder
        self.links: dict[LinkNumber, Link] = {}
        self._loop = loop if loop is not None else asyncio.get_running_loop()
        self._batch = batch
        self._watched: dict[LinkNumber, int] = {}
        forwarder.deliver_to(deliver)

    def add_link(self, number: LinkNumber, link: Link) -> None:
        """Start to use a link. It is the node's from now on and closed with it."""
        if number in self.links:
            raise ValueError(f"this node has a link {number} already")
        self.links[number] = link
        self.forwarder.attach(number, link.send, link.send_many if isinstance(link, BatchLink) else None)
        link.on_receive(partial(self._received, number))
        carrier = getattr(link, "link", link)  # an impaired link is watched through the carrier that it wraps
        if isinstance(carrier, (EthernetLink, UdpLink)):
            self._watched[number] = carrier.fileno()
            self._loop.add_reader(carrier.fileno(), carrier.drain, self._batch)

    def remove_link(self, number: LinkNumber) -> None:
        link = self.links.pop(number)
        self.forwarder.detach(number)
        descriptor = self._watched.pop(number, None)
        if descriptor is not None:
            self._loop.remove_reader(descriptor)
        link.on_receive(None)
        link.close()

    def originate(self, frame: bytes) -> None:
        """Send a frame of this node's own."""
        self.forwarder.forward((frame,), None, self._loop.time())

    def close(self) -> None:
        for number in list(self.links):
            self.remove_link(number)

    def _received(self, number: LinkNumber, frames: Sequence[bytes]) -> None:
        self.forwarder.forward(frames, number, self._loop.time())


def _tags(given: Sequence[str]) -> Tags:
    return tuple(int(tag, 16) for tag in given)


def _open_link(given: Mapping[str, Any]) -> Link:
    if "ethernet" in given:
        return EthernetLink(given["ethernet"])
    if "udp_fd" in given:
        host, port = given["peer"]
        return UdpLink(socket.socket(fileno=given["udp_fd"]), UdpAddress(host, port))
    raise ValueError("a link needs either `ethernet` or `udp_fd`")


async def run_process(commands: int, report: TextIO) -> None:
    """Be a node as the first line read from the descriptor `commands` says, until that input ends."""
    loop = asyncio.get_running_loop()

    def tell(**said: object) -> None:
        report.write(json.dumps(said) + "\n")
        report.flush()

    unread = bytearray()
    while b"\n" not in unread:
        read = os.read(commands, READ_BYTES)
        if not read:
            raise EOFError("the input ended before the configuration")
        unread += read
    configuration, _, rest = bytes(unread).partition(b"\n")
    unread[:] = rest
    given = json.loads(configuration)
    links = {int(number): link for number, link in given["links"].items()}
    table = ForwardingTable(
        {number: _tags(link["tags"]) for number, link in links.items()},
        _tags(given["internal"]),
        {int(number): _tags(tags) for number, tags in given.get("incoming", {}).items()},
    )
    node = ForwardingNode(Forwarder(table), deliver=lambda frame: tell(delivered=frame.hex()))
    try:
        for number, link in links.items():
            node.add_link(number, _open_link(link))
        ended = loop.create_future()

        def read_commands() -> None:
            read = os.read(commands, READ_BYTES)
            unread.extend(read)
            *lines, rest = bytes(unread).split(b"\n")
            unread[:] = rest
            for line in lines:
                node.originate(bytes.fromhex(json.loads(line)["originate"]))
            if not read and not ended.done():
                ended.set_result(None)

        loop.add_reader(commands, read_commands)
        tell(ready=True)
        await ended
        loop.remove_reader(commands)
        tell(
            statistics=asdict(node.forwarder.statistics),
            links={number: asdict(link.counters) for number, link in node.links.items()},
        )
    finally:
        node.close()


if __name__ == "__main__":
    asyncio.run(run_process(sys.stdin.fileno(), sys.stdout))
