"""A forwarder on its links, driven by an event loop; and the same as a process of its own.

The shell is thin: it watches the links' descriptors, reads the clock once a batch and hands frames to the forwarder.

As a process, `python -m psirp_stack.forwarding_node` reads one JSON object a line on its standard input: first the
configuration (see `psirp_stack.forwarding_configuration`), then `{"originate": HEX}` for each frame to send. It writes
`{"ready": true}` when its links are open, `{"delivered": HEX}` for each frame that is for this node, `{"refused":
REASON}` for a line it cannot use, and its counters when its input ends. A configuration that cannot be used gives
`{"error": REASON}` and exit code 2.
"""

import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import TextIO

from psirp_stack.forwarder import Forwarder
from psirp_stack.forwarding_configuration import (
    ConfigurationError,
    EthernetCarrier,
    LinkConfiguration,
    UdpCarrier,
    configuration_of,
)
from psirp_stack.forwarding_model import LinkNumber
from psirp_stack.links.account import carrier_of
from psirp_stack.links.clock import Scheduler
from psirp_stack.links.ethernet import EthernetLink
from psirp_stack.links.impairment import ImpairedLink, Impairment
from psirp_stack.links.interface import DEFAULT_BATCH, BatchLink, Link
from psirp_stack.links.queued import QueuedLink
from psirp_stack.links.tap import SocketTap
from psirp_stack.links.udp import UdpLink

MAX_LINE_BYTES = 1 << 20
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
        carrier = carrier_of(link)
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


def open_link(given: LinkConfiguration, scheduler: Scheduler, seed: int) -> Link:
    match given.carrier:
        case EthernetCarrier(interface):
            carrier: Link = EthernetLink(interface)
        case UdpCarrier(descriptor, peer):
            carrier = UdpLink(socket.socket(fileno=descriptor), peer)
    queued = QueuedLink(carrier, scheduler)
    return queued if given.impairment == Impairment() else ImpairedLink(queued, given.impairment, scheduler, seed)


class NodeProcess:
    """A node whose configuration and frames come as lines on a descriptor, and which reports on another."""

    def __init__(self, commands: int, report: TextIO) -> None:
        self._commands = commands
        self._report = report
        self._unread = bytearray()
        self._ended = asyncio.get_running_loop().create_future()

    async def run(self) -> int:
        """Be a node until the input ends; the exit code is 2 when the configuration cannot be used."""
        loop = asyncio.get_running_loop()
        tap: SocketTap | None = None
        node: ForwardingNode | None = None
        try:
            configuration = configuration_of(json.loads(self._first_line()))
            node = ForwardingNode(
                Forwarder(configuration.table), deliver=lambda frame: self._tell(delivered=frame.hex())
            )
            tap = None if configuration.tap is None else SocketTap(configuration.tap, time.time_ns)
            for number, given in configuration.links.items():
                link = open_link(given, LoopScheduler(loop), seed=number)
                node.add_link(number, link if tap is None else tap.watch(number, link))
        except (ValueError, OSError) as error:
            self._tell(error=str(error))
            if node is not None:
                node.close()
            return 2
        try:
            loop.add_reader(self._commands, self._read_commands, node)
            self._tell(ready=True)
            await self._ended
            loop.remove_reader(self._commands)
            self._tell(
                statistics=asdict(node.forwarder.statistics),
                links={number: asdict(link.counters) for number, link in node.links.items()},
                tap=None if tap is None else asdict(tap.counters),
            )
        finally:
            node.close()
            if tap is not None:
                tap.close()
        return 0

    def _first_line(self) -> bytes:
        while b"\n" not in self._unread:
            read = os.read(self._commands, READ_BYTES)
            if not read or len(self._unread) > MAX_LINE_BYTES:
                raise ConfigurationError(f"expected one line of at most {MAX_LINE_BYTES} bytes with the configuration")
            self._unread += read
        line, _, rest = bytes(self._unread).partition(b"\n")
        self._unread[:] = rest
        return line

    def _read_commands(self, node: ForwardingNode) -> None:
        read = os.read(self._commands, READ_BYTES)
        self._unread += read
        *lines, rest = bytes(self._unread).split(b"\n")
        self._unread[:] = rest
        for line in lines:
            self._obey(node, line)
        if len(rest) > MAX_LINE_BYTES:
            self._unread.clear()
            self._tell(refused=f"a line of more than {MAX_LINE_BYTES} bytes")
        if not read and not self._ended.done():
            self._ended.set_result(None)

    def _obey(self, node: ForwardingNode, line: bytes) -> None:
        try:
            match json.loads(line):
                case {"originate": str(digits)}:
                    node.originate(bytes.fromhex(digits))
                case _:
                    raise ValueError('expected {"originate": HEX}')
        except (ValueError, RecursionError) as error:
            self._tell(refused=str(error))

    def _tell(self, **said: object) -> None:
        self._report.write(json.dumps(said) + "\n")
        self._report.flush()


async def run_process(commands: int, report: TextIO) -> int:
    return await NodeProcess(commands, report).run()


if __name__ == "__main__":
    sys.exit(asyncio.run(run_process(sys.stdin.fileno(), sys.stdout)))
