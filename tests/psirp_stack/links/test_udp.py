"""UDP links: between processes on loopback, and what one end does with strangers, sizes and errors."""

import asyncio
import socket
from contextlib import ExitStack

import pytest
import uvloop

from psirp_stack.forwarder import Forwarder
from psirp_stack.forwarding_node import ForwardingNode, LoopScheduler
from psirp_stack.links.impairment import ImpairedLink, Impairment
from psirp_stack.links.sockets import RECEIVE_BUFFER_BYTES
from psirp_stack.links.udp import UdpAddress, UdpLink, bound_socket
from psirp_stack.wire.numbers import TTL_OFFSET
from tests.psirp_stack.frames import fid, frame, single_bit, table
from tests.psirp_stack.node_process import NodeProcess, hex_tags

LOOPBACK = UdpAddress("127.0.0.1", 0)


def address(sock: socket.socket) -> UdpAddress:
    return UdpAddress(*sock.getsockname()[:2])


def linked() -> tuple[UdpLink, UdpLink]:
    one, other = bound_socket(LOOPBACK), bound_socket(LOOPBACK)
    return UdpLink(one, address(other)), UdpLink(other, address(one))


def test_a_frame_crosses_three_processes() -> None:
    """A line of three nodes: 0 - 1 - 2. Loopback delivers in order, and no port is chosen before it is taken."""
    with ExitStack() as stack:
        ends = [stack.enter_context(bound_socket(LOOPBACK)) for _ in range(4)]
        ports = [[*end.getsockname()[:2]] for end in ends]

        def link(end: int, to: int, bit: int) -> dict[str, object]:
            return {"udp_fd": ends[end].fileno(), "peer": ports[to], "tags": hex_tags(single_bit(bit))}

        configurations = [
            {"links": {"1": link(0, 1, 1)}, "internal": hex_tags(single_bit(200))},
            {"links": {"0": link(1, 0, 2), "2": link(2, 3, 3)}, "internal": hex_tags(single_bit(201))},
            {"links": {"1": link(3, 2, 4)}, "internal": hex_tags(single_bit(202))},
        ]
        nodes = [
            stack.enter_context(NodeProcess(each, pass_fds=[end.fileno() for end in ends])) for each in configurations
        ]
        for node in nodes:
            node.wait_ready()
        there = frame(fid(1 << 1, 1 << 3, 1 << 202), payload=b"x" * 1300)
        for _ in range(20):
            nodes[0].originate(there)
        arrived = [nodes[2].delivered() for _ in range(20)]
        assert {got[TTL_OFFSET] for got in arrived} == {0xFC}, "one less at each of three nodes"
        assert {got[TTL_OFFSET + 1 :] for got in arrived} == {there[TTL_OFFSET + 1 :]}
        nodes[2].originate(frame(fid(1 << 4, 1 << 2, 1 << 200), payload=b"back"))
        assert nodes[0].delivered().endswith(b"back")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.sendto(there, ends[1].getsockname())
        nodes[0].originate(frame(fid(1 << 1, 1 << 3, 1 << 202), payload=b"last"))
        assert nodes[2].delivered().endswith(b"last"), "the stranger's frame before it was not forwarded"
        said = nodes[1].finish()
        assert said["links"]["0"]["from_strangers"] == 1
        assert said["statistics"]["forwarded"] == 22


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_node_forwards_between_udp_links_on_either_loop(new_loop: object) -> None:
    loop: asyncio.AbstractEventLoop = new_loop()  # type: ignore[operator]
    try:
        loop.run_until_complete(forward_between_links())
    finally:
        loop.close()


async def forward_between_links() -> None:
    loop = asyncio.get_running_loop()
    node = ForwardingNode(Forwarder(table(1, 2)), loop=loop)
    (left, node_left), (node_right, right) = linked(), linked()
    node.add_link(1, node_left)
    delayed = ImpairedLink(node_right, Impairment(delay=0.001), LoopScheduler(loop), seed=1)
    node.add_link(2, delayed)
    with pytest.raises(ValueError, match="link 2 already"):
        node.add_link(2, delayed)
    arrived = loop.create_future()
    right.on_receive(arrived.set_result)
    loop.add_reader(right.fileno(), right.drain)
    left.send(frame(fid(1 << 2), payload=b"through"))
    got = await asyncio.wait_for(arrived, 20)
    assert got[0].endswith(b"through")
    loop.remove_reader(right.fileno())
    node.close()
    assert not node.links
    left.close()
    right.close()


def test_strangers_are_dropped_and_counted() -> None:
    one, other = linked()
    got: list[bytes] = []
    other.on_receive(got.extend)
    with bound_socket(LOOPBACK) as stranger:
        stranger.sendto(b"intruder", (other.local.host, other.local.port))
        one.send(b"friend")
        assert other.drain() == 2
    assert got == [b"friend"]
    assert (other.counters.from_strangers, other.counters.received) == (1, 1)
    one.close()
    other.close()


def test_draining_stops_at_its_bound() -> None:
    one, other = linked()
    for _ in range(10):
        one.send(b"x")
    assert [other.drain(4), other.drain(4), other.drain(4), other.drain(4)] == [4, 4, 2, 0]
    one.close()
    other.close()


def test_oversized_closed_and_failing_sends_are_counted_not_raised() -> None:
    one, other = linked()
    assert not one.send(bytes(one.mtu + 1))
    one.close()
    assert not one.send(b"x")
    assert one.drain() == 0
    assert (one.counters.oversized, one.counters.after_close, one.counters.receive_errors) == (1, 1, 1)
    other.close()
    broadcast = UdpLink(bound_socket(LOOPBACK), UdpAddress("255.255.255.255", 9))
    assert not broadcast.send(b"x"), "refused by the kernel: broadcasting was not asked for"
    assert broadcast.counters.send_errors == 1
    broadcast.close()


def test_a_batch_is_sent_and_counted_frame_by_frame() -> None:
    one, other = linked()
    got: list[bytes] = []
    other.on_receive(got.extend)
    assert one.send_many([b"a", bytes(one.mtu + 1), b"b"]) == 2
    assert other.drain() == 2
    assert got == [b"a", b"b"]
    assert (one.counters.sent, one.counters.sent_bytes, one.counters.oversized) == (2, 2, 1)
    one.close()
    assert one.send_many([b"c", b"d"]) == 0
    assert one.counters.after_close == 2
    other.close()


def test_a_peer_that_is_gone_stops_nothing() -> None:
    one, other = linked()
    other.close()
    for _ in range(3):
        one.send(b"x")
        one.drain()
    assert one.counters.sent + one.counters.send_errors == 3
    one.close()


def test_a_datagram_longer_than_the_mtu_is_dropped_and_counted() -> None:
    one, other = bound_socket(LOOPBACK), bound_socket(LOOPBACK)
    small = UdpLink(other, address(one), mtu=50)
    one.sendto(bytes(51), other.getsockname())
    one.sendto(bytes(50), other.getsockname())
    got: list[bytes] = []
    small.on_receive(got.extend)
    small.drain()
    assert (got, small.counters.receive_errors) == ([bytes(50)], 1)
    one.close()
    small.close()


@pytest.mark.parametrize(("host", "port"), [("localhost", 1), ("127.0.0.1", 70_000), ("", 1)])
def test_addresses_are_checked(host: str, port: int) -> None:
    with pytest.raises(ValueError, match=r"address|port"):
        UdpAddress(host, port)


def test_ipv6() -> None:
    try:
        one, other = (bound_socket(UdpAddress("::1", 0)) for _ in range(2))
    except OSError as error:
        pytest.skip(f"no IPv6 on loopback: {error}")
    left, right = UdpLink(one, address(other)), UdpLink(other, address(one))
    assert left.send(b"six")
    assert right.drain() == 1
    assert right.counters.received == 1
    left.close()
    right.close()


def test_a_batch_of_one_size_crosses_as_pieces_and_arrives_as_frames() -> None:
    one, other = linked()
    got: list[bytes] = []
    other.on_receive(got.extend)
    batches = (
        [bytes((n,)) * 100 for n in range(70)],
        [b"a" * 1400, b"b" * 1400, b"c" * 50, b"d" * 50, b"e" * 60, b""],
        [b"x" * 1472] * 60,
        [b"s"],
    )
    sent = [frame for batch in batches for frame in batch]
    assert [one.send_many(batch) for batch in batches] == [len(batch) for batch in batches]
    while other.drain():
        pass
    assert got == sent
    assert (one.counters.sent, one.counters.sent_bytes) == (len(sent), sum(map(len, sent)))
    assert (other.counters.received, other.counters.received_bytes) == (len(sent), sum(map(len, sent)))
    one.close()
    other.close()


def test_a_kernel_that_takes_no_pieces_gets_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = linked()
    got: list[bytes] = []
    other.on_receive(got.extend)
    monkeypatch.setattr("psirp_stack.links.udp._UDP_SEGMENT", 9999)
    assert one.send_many([b"first", b"later"]) == 2
    assert one.send_many([b"again", b"andso"]) == 2
    while other.drain():
        pass
    assert got == [b"first", b"later", b"again", b"andso"]
    one.close()
    other.close()


def test_pieces_of_strangers_are_counted_by_frame() -> None:
    one, other = linked()
    stranger = UdpLink(bound_socket(LOOPBACK), other.local)
    stranger.send_many([b"x" * 20] * 8)
    while other.drain():
        pass
    assert (other.counters.from_strangers, other.counters.received) == (8, 0)
    for link in (one, other, stranger):
        link.close()


def test_the_kernel_is_asked_for_room_and_what_it_loses_is_counted() -> None:
    one, other = bound_socket(LOOPBACK), bound_socket(LOOPBACK)
    small = UdpLink(other, address(one), receive_buffer=1)
    roomy = UdpLink(one, address(small._socket))
    assert roomy.receive_buffer > 212_992, "more than the kernel gives by itself"
    assert (roomy.receive_buffer >= RECEIVE_BUFFER_BYTES) == (roomy.shortage is None)
    for _ in range(2_000):
        roomy.send(bytes(1400))
    while small.drain():
        pass
    assert small.counters.received + small.lost_in_kernel == 2_000
    assert small.lost_in_kernel > 0
    assert roomy.lost_in_kernel == 0
    roomy.close()
    small.close()
    assert small.lost_in_kernel == 0, "of a closed socket nothing is known"


def test_less_room_than_asked_for_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psirp_stack.links.sockets._grow", lambda *_: 1 << 18)
    one, other = linked()
    assert one.shortage is not None
    assert "256 KiB" in one.shortage
    assert "net.core.rmem_max=4194304" in one.shortage
    one.close()
    other.close()
