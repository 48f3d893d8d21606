"""Capturing: the topic filter, frames inside UDP, the command's bounds and errors, and a real interface when root."""

import io
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from gateway.cli.main import main
from identifiers import DEFAULT_NAMING, Topic
from psirp_stack.tools.capture import CaptureCounts, TopicFilter, capture, frame_in_udp
from psirp_stack.tools.pcap import LINKTYPE_USER0, PcapWriter, Record, read_pcap
from tests.psirp_stack.tools.test_dissect import ETHERNET, FRAMES, RECORDS, pcap
from tests.psirp_stack.wire.test_wire_codec import GOLDEN, RID, SID

NAMES = list(GOLDEN)
CHUNK, REQUEST = FRAMES[NAMES.index("data chunk")], FRAMES[NAMES.index("request for metadata")]


@pytest.mark.parametrize(
    ("wanted", "matches"),
    [
        (TopicFilter(), True),
        (TopicFilter(SID, RID), True),
        (TopicFilter(sid=SID), True),
        (TopicFilter(rid=RID), True),
        (TopicFilter(RID, SID), False),
        (TopicFilter(SID, bytes(32)), False),
    ],
)
def test_topic_filter(wanted: TopicFilter, matches: bool) -> None:
    assert wanted.matches(CHUNK) is matches
    assert wanted.matches(REQUEST) is matches


def test_frames_without_a_topic_or_malformed_match_no_topic() -> None:
    assert not TopicFilter(SID).matches(FRAMES[0])
    assert not TopicFilter(SID).matches(CHUNK[:100])
    assert TopicFilter().matches(CHUNK[:100])


def written(file: io.BytesIO) -> list[Record]:
    file.seek(0)
    return list(read_pcap(file))


def test_every_record_is_counted_and_the_limit_holds() -> None:
    file, counts = io.BytesIO(), CaptureCounts()
    other = Record(0, bytes(60), 60)
    capture([other, *RECORDS], PcapWriter(file), TopicFilter(SID, RID), 2, counts)
    assert counts == CaptureCounts(written=2, filtered_out=3, other_protocol=1)
    assert [record.data for record in written(file)] == [ETHERNET + CHUNK, ETHERNET + REQUEST]


def test_bare_frames_get_an_ethernet_header() -> None:
    file = io.BytesIO()
    capture([Record(1, CHUNK, len(CHUNK), LINKTYPE_USER0)], PcapWriter(file), TopicFilter(), 9, CaptureCounts())
    assert written(file) == [Record(1, bytes(12) + b"\xac\xdc" + CHUNK, 14 + len(CHUNK))]


MACS = {"src": "02:00:00:00:00:01", "dst": "02:00:00:00:00:02"}


@pytest.mark.parametrize(
    "network",
    [
        IP(src="10.0.0.1", dst="10.0.0.2"),
        IP(src="10.0.0.1", dst="10.0.0.2", options=b"\x01" * 4),
        IPv6(src="::1", dst="::1"),
    ],
    ids=["IPv4", "IPv4 with options", "IPv6"],
)
def test_frames_inside_udp(network: IP | IPv6) -> None:
    data = bytes(Ether(**MACS) / network / UDP(sport=4000, dport=5000) / Raw(CHUNK))
    for port in (4000, 5000):
        assert frame_in_udp(Record(3, data, len(data)), port) == Record(3, ETHERNET + CHUNK, 14 + len(CHUNK))
    assert frame_in_udp(Record(3, data, len(data)), 4001) is None
    for cut in range(50):
        short = frame_in_udp(Record(3, data[:cut], cut), 4000)
        assert short is None or len(short.data) < len(ETHERNET + CHUNK)


def test_directions_can_be_told_on_loopback_where_cards_have_no_addresses() -> None:
    def addresses(source: int, target: int) -> bytes:
        none = {"src": "00:00:00:00:00:00", "dst": "00:00:00:00:00:00"}
        ends = {"src": "127.0.0.1", "dst": "127.0.0.1"}
        data = bytes(Ether(**none) / IP(**ends) / UDP(sport=source, dport=target) / Raw(CHUNK))
        record = frame_in_udp(Record(3, data, len(data)), 4101)
        assert record is not None
        return record.data[:12]

    assert addresses(4101, 4102).hex(":") == "02:00:00:00:10:06:02:00:00:00:10:05"  # to, from
    assert addresses(4102, 4101).hex(":") == "02:00:00:00:10:05:02:00:00:00:10:06"


def test_command_filters_another_capture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "a.pcap", tmp_path / "b.pcap"
    source.write_bytes(pcap(RECORDS))
    arguments = ["capture", "--read", str(source), "--out", str(out)]
    assert main([*arguments, "--id", f"::{'aa' * 20}/::{'bb' * 20}"]) == 0
    assert "3 frames written, 3 of other topics" in capsys.readouterr().err
    assert written(io.BytesIO(out.read_bytes())) == RECORDS[3:]
    assert main([*arguments, "--sid", f"::{'aa' * 20}", "--count", "1"]) == 0
    assert written(io.BytesIO(out.read_bytes())) == RECORDS[3:4]


def test_command_filters_by_topic_url(tmp_path: Path) -> None:
    source, out = tmp_path / "a.pcap", tmp_path / "b.pcap"
    item = DEFAULT_NAMING.of_topic(Topic.parse("http://a.example/b"))
    of_topic = ETHERNET + CHUNK[:44] + bytes(item) + CHUNK[108:]
    source.write_bytes(pcap([*RECORDS, Record(9, of_topic, len(of_topic))]))
    assert main(["capture", "--read", str(source), "--out", str(out), "--topic", "http://a.example/b"]) == 0
    assert [record.data for record in written(io.BytesIO(out.read_bytes()))] == [of_topic]


def test_command_says_when_the_source_breaks_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "a.pcap", tmp_path / "b.pcap"
    source.write_bytes(pcap(RECORDS)[:-1])
    assert main(["capture", "--read", str(source), "--out", str(out)]) == 1
    assert "the file ends inside frame 6" in capsys.readouterr().err
    assert written(io.BytesIO(out.read_bytes())) == RECORDS[:-1]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--out", "x"], "give one of INTERFACE, --tap PATH and --read FILE"),
        (["lo", "--read", "a", "--out", "x"], "give one of INTERFACE"),
        (["lo", "--tap", "a", "--out", "x"], "give one of INTERFACE"),
        (["--tap", "a", "--out", "x", "--udp-port", "1"], "--udp-port goes with"),
        (["--tap", "/nonexistent/a", "--out", "x"], "No such file"),
        (["--tap", "a" * 101, "--out", "x"], "100 bytes at most"),
        (["lo", "--out", "x", "--count", "0"], "--count takes"),
        (["lo", "--out", "x", "--duration", "nan"], "--duration takes"),
        (["lo", "--out", "x", "--udp-port", "70000"], "--udp-port takes"),
        (["--read", "a", "--out", "x", "--duration", "1"], "does not go with --read"),
        (["lo", "--out", "x", "--id", "aa"], "'sid/rid'"),
        (["lo", "--out", "x", "--sid", "xy"], "hex digit"),
        (["lo", "--out", "x", "--topic", "gopher://a"], "gopher"),
        (["lo", "--out", "x", "--sid", "::", "--id", "::/::"], "in one way"),
        (["--read", "/nonexistent/a", "--out", "x"], "No such file"),
    ],
)
def test_command_refuses(arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capture", *arguments]) == 2
    assert reason in capsys.readouterr().err
    assert not Path("x").exists()


def test_command_will_not_write_over_its_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "a.pcap"
    source.write_bytes(pcap(RECORDS))
    assert main(["capture", "--read", str(source), "--out", str(source)]) == 2
    assert "is the file that is read" in capsys.readouterr().err
    assert source.read_bytes() == pcap(RECORDS)


def test_without_the_right_to_capture_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def refuse(*_: object) -> socket.socket:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(socket, "socket", refuse)
    assert main(["capture", "lo", "--out", str(tmp_path / "x")]) == 2
    assert "needs root or CAP_NET_RAW" in capsys.readouterr().err


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="a packet socket needs root")


@needs_root
def test_an_interface_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capture", "nonexistent0", "--out", str(tmp_path / "x")]) == 2
    assert "interface nonexistent0: No such device" in capsys.readouterr().err


def start_capture(*arguments: str) -> subprocess.Popen[str]:
    """A capture in a process of its own that has said it is listening."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway.cli.main", "capture", "lo", *arguments], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "capturing on lo\n"
    return process


@needs_root
def test_a_real_interface(tmp_path: Path) -> None:
    out = tmp_path / "x.pcap"
    unique = os.urandom(32)  # other tests may send on the loopback interface at the same time
    frame = CHUNK[:44] + unique + CHUNK[76:]
    process = start_capture("--out", str(out), "--sid", unique.hex(), "--count", "2", "--duration", "20")
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sender:
        sender.bind(("lo", 0))
        sender.send(ETHERNET[:12] + b"\x88\xb5" + frame)
        sender.send(ETHERNET + frame)
        sender.send(ETHERNET + frame + b"second")
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert errors.startswith("2 frames written")
    found = [record.data for record in written(io.BytesIO(out.read_bytes()))]
    assert found == [ETHERNET + frame, ETHERNET + frame + b"second"]


@needs_root
def test_frames_of_a_udp_link_on_a_real_interface(tmp_path: Path) -> None:
    out = tmp_path / "x.pcap"
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        receiver.bind(("127.0.0.1", 0))
        port = receiver.getsockname()[1]
        process = start_capture("--udp-port", str(port), "--out", str(out), "--count", "2", "--duration", "20")
        sender.sendto(CHUNK, ("127.0.0.1", port))
        sender.sendto(REQUEST, ("127.0.0.1", port))
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert errors.startswith("2 frames written")
    frames = [record.data[14:] for record in written(io.BytesIO(out.read_bytes()))]
    assert frames == [CHUNK, REQUEST]


@needs_root
def test_the_duration_ends_a_capture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "x.pcap"
    arguments = ["capture", "lo", "--sid", os.urandom(32).hex(), "--out", str(out), "--duration", "0.01"]
    worker = threading.Thread(target=main, args=(arguments,))
    worker.start()
    worker.join(timeout=20)
    assert not worker.is_alive()
    assert "0 frames written" in capsys.readouterr().err
    assert written(io.BytesIO(out.read_bytes())) == []
