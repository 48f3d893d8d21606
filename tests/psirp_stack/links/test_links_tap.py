"""Watching links: what a tap shows, that it never holds up a node, and a capture of links that no interface shows."""

import io
import itertools
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.cli.main import main
from psirp_stack.links.clock import VirtualClock
from psirp_stack.links.impairment import ImpairedLink, Impairment
from psirp_stack.links.in_process import pair
from psirp_stack.links.tap import HEADER, SocketTap, TappedLink
from psirp_stack.links.udp import UdpAddress, bound_socket
from psirp_stack.tools.pcap import Record, read_pcap
from psirp_stack.tools.tap import TapCapture, record_of
from tests.psirp_stack.frames import fid, frame, single_bit
from tests.psirp_stack.node_process import NodeProcess, hex_tags

NODE, NEIGHBOUR = bytes.fromhex("020000070001"), bytes.fromhex("020000070002")
ACDC = b"\xac\xdc"


def test_sent_and_received_frames_are_shown_and_refused_ones_are_not() -> None:
    near, far = pair(mtu=10)
    shown: list[tuple[bool, bytes]] = []
    tapped = TappedLink(near, lambda sent, data: shown.append((sent, data)))
    got: list[bytes] = []
    tapped.on_receive(got.extend)
    assert tapped.send(b"a")
    assert not tapped.send(bytes(11))
    assert tapped.send_many([b"b", bytes(11), b"c"]) == 2
    far.send(b"d")
    near.drain()
    assert shown == [(True, b"a"), (True, b"b"), (True, b"c"), (False, b"d")]
    assert got == [b"d"]
    assert (tapped.mtu, tapped.counters.sent) == (10, 3)
    tapped.on_receive(None)
    far.send(b"e")
    near.drain()
    assert len(shown) == 4
    tapped.close()
    assert not tapped.send(b"f")


def test_a_tap_around_an_impairment_shows_what_was_sent_inside_it_what_reached_the_carrier() -> None:
    clock = VirtualClock()
    near, _ = pair(scheduler=clock)
    outside: list[bytes] = []
    inside: list[bytes] = []
    carrier = TappedLink(near, lambda sent, data: inside.append(data))
    lossy = ImpairedLink(carrier, Impairment(loss=1.0), clock, seed=1)
    TappedLink(lossy, lambda sent, data: outside.append(data)).send(b"x")
    clock.run()
    assert (outside, inside) == ([b"x"], [])


def test_frames_reach_a_capture_with_their_time_link_and_way(tmp_path: Path) -> None:
    clock = itertools.count(1_000)
    tap = SocketTap(tmp_path / "tap", lambda: next(clock))
    near, far = pair()
    tapped = tap.watch(7, near)
    tapped.on_receive(lambda frames: None)
    tapped.send(b"nobody listens")
    with TapCapture(tmp_path / "tap") as capture:
        tapped.send(b"there")
        far.send(b"back")
        near.drain()
        records = list(itertools.islice(capture.records(lambda: False), 2))
    assert records == [
        Record(1_001, NEIGHBOUR + NODE + ACDC + b"there", 19),
        Record(1_002, NODE + NEIGHBOUR + ACDC + b"back", 18),
    ]
    assert (tap.counters.shown, tap.counters.unheard) == (2, 1)
    tapped.send(b"the capture has ended")
    assert tap.counters.unheard == 2
    assert not (tmp_path / "tap").exists()
    tap.close()


def test_a_slow_capture_costs_frames_and_no_time(tmp_path: Path) -> None:
    tap = SocketTap(tmp_path / "tap", lambda: 0)
    near, _ = pair(queue_limit=100_000)
    tapped = tap.watch(1, near)
    with TapCapture(tmp_path / "tap"):
        for _ in range(20_000):
            tapped.send(bytes(1400))
    assert tap.counters.unheard > 0
    assert tap.counters.shown + tap.counters.unheard == near.counters.sent == 20_000
    tap.close()


@pytest.mark.parametrize("datagram", [b"", bytes(HEADER.size - 1), b"\x02" + bytes(20)])
def test_what_no_tap_sent_is_passed_over(datagram: bytes, tmp_path: Path) -> None:
    assert record_of(datagram) is None
    with TapCapture(tmp_path / "tap") as capture, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(datagram, str(tmp_path / "tap"))
        stranger.sendto(HEADER.pack(0, 1, 5) + b"good", str(tmp_path / "tap"))
        assert next(capture.records(lambda: False)).time_ns == 5
        assert capture.malformed == 1


def test_a_stale_socket_is_replaced_a_living_one_and_a_file_are_not(tmp_path: Path) -> None:
    path = tmp_path / "tap"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(str(path))
    with TapCapture(path), pytest.raises(FileExistsError, match="another capture listens"):
        TapCapture(path)
    path.write_text("precious")
    with pytest.raises(FileExistsError, match="a file of that name"):
        TapCapture(path)
    assert path.read_text() == "precious"


def test_bounds_of_a_tap(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="100 at most"):
        SocketTap(Path("x" * 101), lambda: 0)
    tap = SocketTap(tmp_path / "tap", lambda: 0)
    with pytest.raises(ValueError, match="expected a number of 0 to 65535"):
        tap.watch(65_536, pair()[0])
    tap.close()


def test_the_udp_links_of_a_running_node_are_captured_by_the_command(tmp_path: Path) -> None:
    path, out = tmp_path / "tap", tmp_path / "x.pcap"
    with bound_socket(UdpAddress("127.0.0.1", 0)) as near, bound_socket(UdpAddress("127.0.0.1", 0)) as far:
        link = {"udp_fd": near.fileno(), "peer": [*far.getsockname()], "tags": hex_tags(single_bit(1))}
        configuration = {"links": {"7": link}, "internal": hex_tags(single_bit(200)), "tap": str(path)}
        with NodeProcess(configuration, pass_fds=[near.fileno()]) as node:
            node.wait_ready()
            command = [sys.executable, "-m", "gateway.cli.main", "capture", "--tap", str(path), "--out", str(out)]
            limits = ["--count", "2", "--duration", "30"]
            capture = subprocess.Popen([*command, *limits], stderr=subprocess.PIPE, text=True)
            assert capture.stderr is not None
            assert capture.stderr.readline() == f"capturing on {path}\n"
            node.originate(frame(fid(1 << 1), payload=b"there"))
            far.recv(2000)
            far.sendto(frame(fid(1 << 200), payload=b"back"), near.getsockname())
            assert node.delivered().endswith(b"back")
            assert capture.wait(timeout=30) == 0
            capture.stderr.close()
            assert node.finish()["tap"] == {"shown": 2, "unheard": 0}
    records = list(read_pcap(io.BytesIO(out.read_bytes())))
    assert [record.data[:12] for record in records] == [NEIGHBOUR + NODE, NODE + NEIGHBOUR]
    assert [record.data[14:] for record in records] == [
        frame(fid(1 << 1), ttl=254, payload=b"there"),
        frame(fid(1 << 200), payload=b"back"),
    ]
    assert main(["dissect", str(out)]) == 0
