"""Carriers say at once when they go down, or that somebody says the other end is not there."""

import asyncio
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Callable

import pytest
import uvloop

from psirp_stack.links.in_process import pair
from psirp_stack.links.interface import CarrierState
from psirp_stack.links.interface_states import InterfaceStates, states_in
from psirp_stack.links.udp import UdpAddress, UdpLink, bound_socket
from tests.psirp_stack.emulation.test_netns import ip, why_not

LOOPBACK = UdpAddress("127.0.0.1", 0)


def test_both_ends_of_a_link_in_process_hear_that_it_is_cut() -> None:
    one, other = pair()
    heard: list[tuple[str, CarrierState]] = []
    one.on_carrier(lambda state: heard.append(("one", state)))
    other.on_carrier(lambda state: heard.append(("other", state)))
    one.close()
    one.close()
    assert sorted(heard, key=str) == [("one", CarrierState.DOWN), ("other", CarrierState.DOWN)]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_udp_port_that_nobody_listens_on_is_doubtful(host: str) -> None:
    gone = bound_socket(UdpAddress(host, 0))
    peer = UdpAddress(*gone.getsockname()[:2])
    gone.close()
    link = UdpLink(bound_socket(UdpAddress(host, 0)), peer)
    heard: list[CarrierState] = []
    link.on_carrier(heard.append)
    try:
        for _ in range(3):
            link.send(b"is anybody there?")
            poll = select.poll()
            poll.register(link.fileno(), select.POLLIN)
            for _ in range(100):
                if not poll.poll(50):
                    break
                link.drain()
            else:
                pytest.fail("the socket never becomes quiet again")
        assert set(heard) == {CarrierState.DOUBTFUL}
    finally:
        link.close()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_peer_that_was_not_there_yet_is_heard_when_it_comes(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def meet() -> None:
        loop = asyncio.get_running_loop()
        late = bound_socket(UdpAddress("127.0.0.1", 0))
        there = UdpAddress(*late.getsockname()[:2])
        late.close()
        link = UdpLink(bound_socket(UdpAddress("127.0.0.1", 0)), there)
        doubts: asyncio.Queue[CarrierState] = asyncio.Queue()
        frames: asyncio.Queue[list[bytes]] = asyncio.Queue()
        link.on_carrier(doubts.put_nowait)
        link.on_receive(frames.put_nowait)
        loop.add_reader(link.fileno(), link.drain)
        for _ in range(3):
            link.send(b"is anybody there?")
            assert await doubts.get() is CarrierState.DOUBTFUL
        peer = UdpLink(bound_socket(there), link.local)
        for word in (b"now", b"there", b"is"):
            peer.send(word)
            assert await frames.get() == [word]
        loop.remove_reader(link.fileno())
        link.close()
        peer.close()
        assert link.fileno() == -1

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(asyncio.wait_for(meet(), 30))


def test_what_the_kernel_writes_of_interfaces_is_read() -> None:
    def message(kind: int, index: int, flags: int, size: int = 32) -> bytes:
        head = struct.pack("=IHHII", size, kind, 0, 0, 0) + struct.pack("=BxHiII", 0, 1, index, flags, 0)
        return head.ljust(-(-size // 4) * 4, b"\0")

    up = 0x1 | 0x10000
    data = message(16, 3, up, 45) + message(16, 4, 0x1) + message(17, 5, up) + message(20, 6, up) + message(16, 7, up)
    states = [(3, CarrierState.UP), (4, CarrierState.DOWN), (5, CarrierState.DOWN), (7, CarrierState.UP)]
    assert states_in(data) == states
    for length in range(len(data)):
        assert states_in(data[:length]) == states[: len(states_in(data[:length]))]
    assert states_in(bytes(200)) == []


WATCHER = """
import select, sys
from psirp_stack.links.interface_states import InterfaceStates
states = InterfaceStates()
states.watch("here", lambda state: print(state.name, flush=True))
print("ready", flush=True)
while sys.stdin in select.select([states.fileno(), sys.stdin], [], [])[0] or states.drain() is None:
    if select.select([sys.stdin], [], [], 0)[0]:
        break
"""


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_an_interface_whose_other_end_goes_down_is_told() -> None:
    name = f"psph-carrier-{socket.gethostname()[:8]}-{id(WATCHER) % 10_000}"
    ip("netns", "add", name)
    try:
        ip("-n", name, "link", "add", "here", "type", "veth", "peer", "name", "there")
        for end in ("here", "there"):
            ip("-n", name, "link", "set", end, "up")
        with subprocess.Popen(
            ["ip", "netns", "exec", name, sys.executable, "-c", WATCHER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as watcher:
            assert watcher.stdout is not None
            assert watcher.stdin is not None
            assert watcher.stdout.readline() == "ready\n"
            ip("-n", name, "link", "set", "there", "down")
            assert watcher.stdout.readline() == "DOWN\n"
            ip("-n", name, "link", "set", "there", "up")
            assert watcher.stdout.readline() == "UP\n"
            ip("-n", name, "link", "del", "here")
            assert watcher.stdout.readline() == "DOWN\n"
            watcher.stdin.close()
    finally:
        ip("netns", "del", name)


def test_nothing_is_told_of_interfaces_that_do_not_change() -> None:
    states = InterfaceStates()
    states.watch("lo", lambda state: pytest.fail(state.name))
    states.drain()
    states.close()
