"""Capture files and their dissection: round trips, both formats, and readable words for everything broken."""

import io
import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.l2 import Ether
from scapy.utils import EDecimal, PcapNgWriter, RawPcapReader
from scapy.utils import PcapWriter as ScapyPcapWriter

from gateway.cli.main import main
from psirp_stack.tools.dissect import dissect
from psirp_stack.tools.pcap import LINKTYPE_USER0, PcapError, PcapWriter, Record, read_pcap
from psirp_stack.wire.codec import Frame, build
from psirp_stack.wire.numbers import HeaderType
from tests.psirp_stack.wire.test_wire_codec import GOLDEN
from tests.psirp_stack.wire.wire_strategies import frames

ETHERNET = bytes.fromhex("020000000002020000000001acdc")
SECOND = 1_000_000_000
FRAMES = [bytes.fromhex(text) for _, text in GOLDEN.values()]
RECORDS = [
    Record(1_700_000_000 * SECOND + number * 1_000, ETHERNET + frame, 14 + len(frame))
    for number, frame in enumerate(FRAMES)
]


def pcap(records: list[Record]) -> bytes:
    file = io.BytesIO()
    writer = PcapWriter(file)
    for record in records:
        writer.write(record)
    return file.getvalue()


def pcapng(path: Path) -> bytes:
    writer = PcapNgWriter(str(path))
    for record in RECORDS:
        packet = Ether(record.data)
        packet.time = EDecimal(record.time_ns) / SECOND
        writer.write(packet)
    writer.close()
    return path.read_bytes()


def read(data: bytes) -> list[Record]:
    return list(read_pcap(io.BytesIO(data)))


def test_pcap_round_trip() -> None:
    assert read(pcap(RECORDS)) == RECORDS


def test_scapy_reads_what_we_write(tmp_path: Path) -> None:
    path = tmp_path / "a.pcap"
    path.write_bytes(pcap(RECORDS))
    with RawPcapReader(str(path)) as reader:
        found = [(data, meta.sec * SECOND + meta.usec) for data, meta in reader]
    assert found == [(record.data, record.time_ns) for record in RECORDS]


@pytest.mark.parametrize("endian", ["<", ">"])
def test_we_read_what_scapy_writes(tmp_path: Path, endian: str) -> None:
    path = tmp_path / "a.pcap"
    writer = ScapyPcapWriter(str(path), linktype=1, endianness=endian)
    writer.write_header(None)
    for record in RECORDS:
        writer.write_packet(record.data, sec=record.time_ns // SECOND, usec=record.time_ns % SECOND // 1000)
    writer.close()
    assert read(path.read_bytes()) == RECORDS


def test_pcapng(tmp_path: Path) -> None:
    assert read(pcapng(tmp_path / "a.pcapng")) == RECORDS


def pcapng_block(endian: str, kind: int, body: bytes) -> bytes:
    length = struct.pack(f"{endian}I", 12 + len(body))
    return struct.pack(f"{endian}I", kind) + length + body + length


@pytest.mark.parametrize("endian", ["<", ">"])
def test_pcapng_by_hand(endian: str) -> None:
    section = pcapng_block(endian, 0x0A0D0D0A, struct.pack(f"{endian}IHHq", 0x1A2B3C4D, 1, 0, -1))
    resolution = struct.pack(f"{endian}HHB3x", 9, 1, 9)  # nanoseconds
    interface = pcapng_block(endian, 1, struct.pack(f"{endian}HHI", 1, 0, 0) + resolution)
    enhanced = pcapng_block(endian, 6, struct.pack(f"{endian}IIIII", 0, 1, 5, 3, 90) + b"abc\0")
    simple = pcapng_block(endian, 3, struct.pack(f"{endian}I", 4) + b"wxyz")
    unknown = pcapng_block(endian, 77, b"????")
    assert read(section + interface + unknown + enhanced + simple) == [
        Record(2**32 + 5, b"abc", 90),
        Record(0, b"wxyz", 4),
    ]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a capture file: begins with nothing"),
        (b"GIF89a", "not a capture file: begins with 47494638"),
        (pcap([])[:20], "the file ends in its header"),
        (pcap(RECORDS[:2])[:-1], r"ends inside frame 2: 60 bytes expected, 59 there"),
        (pcap(RECORDS[:1]) + b"\0" * 5, "ends in the header of frame 2"),
        (pcap([]) + struct.pack("<IIII", 0, 0, 0xFFFFFFFF, 0), "frame 1 claims 4294967295 bytes"),
        (pcap([])[:-4] + struct.pack("<I", 101), "link type 101: only Ethernet"),
        (b"\x0a\x0d\x0d\x0a" + b"\x1c\0\0\0" + b"oops", "byte order mark"),
        (b"\x0a\x0d\x0d\x0a" + struct.pack("<II", 5, 0x1A2B3C4D), "block 1 claims 5 bytes"),
        (b"\x0a\x0d\x0d\x0a" + struct.pack("<II", 28, 0x1A2B3C4D), "ends inside block 1"),
    ],
)
def test_broken_files_say_what_is_wrong(data: bytes, reason: str) -> None:
    with pytest.raises(PcapError, match=reason):
        read(data)


@given(st.data())
def test_damaged_files_never_raise_anything_else(draw: st.DataObject) -> None:
    section = pcapng_block("<", 0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
    interface = pcapng_block("<", 1, struct.pack("<HHI", 1, 0, 0) + struct.pack("<HHB3x", 9, 1, 9))
    packet = pcapng_block("<", 6, struct.pack("<IIIII", 0, 1, 5, 56, 56) + RECORDS[0].data)
    data = bytearray(draw.draw(st.sampled_from([pcap(RECORDS), section + interface + packet * 3])))
    for _ in range(draw.draw(st.integers(1, 6))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    cut = draw.draw(st.integers(0, len(data)))
    try:
        for frame in dissect(read_pcap(io.BytesIO(bytes(data[:cut])))):
            assert frame.headers or frame.error
    except PcapError as error:
        assert str(error)


@given(frames())
def test_every_field_is_shown(frame: Frame) -> None:
    data = build(frame)
    (shown,) = dissect([Record(5, ETHERNET + data, 14 + len(data))])
    assert shown.error is None
    assert (shown.source, shown.destination) == ("02:00:00:00:00:01", "02:00:00:00:00:02")
    assert shown.payload == (frame.payload or b"")
    following = [header.type for header in frame.headers[1:]]
    following.append(HeaderType.NONE if frame.payload is None else HeaderType.PAYLOAD)
    for header, found, next_type in zip(frame.headers, shown.headers, following, strict=True):
        values = ((field.name, getattr(header, field.name)) for field in header.LAYOUT)
        expected = {name: value.hex() if isinstance(value, bytes) else value for name, value in values}
        assert dict(found.fields) == {"type": header.type, "next": next_type, **expected}
        assert found.kind == header.NAME


def test_a_broken_frame_shows_the_headers_before_the_break() -> None:
    data = ETHERNET + FRAMES[3][:100]
    (shown,) = dissect([Record(0, data, 170)])
    assert [header.kind for header in shown.headers] == ["forwarding"]
    assert shown.error == (
        "byte 42: rendezvous header cut short: 112 bytes expected, 58 there (the capture kept 114 of 170 bytes)"
    )


def test_other_protocols_are_passed_over_and_bare_frames_read() -> None:
    other = Record(0, bytes(12) + b"\x08\x00" + bytes(40), 54)
    bare = Record(0, FRAMES[0], len(FRAMES[0]), LINKTYPE_USER0)
    shown = list(dissect([other, RECORDS[0], bare]))
    assert [(frame.number, frame.source is None) for frame in shown] == [(2, False), (3, True)]


def test_command_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.pcap"
    path.write_bytes(pcap([*RECORDS, Record(0, ETHERNET + b"\x09", 15)]))
    assert main(["dissect", str(path), "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == len(RECORDS) + 1
    chunk = lines[3]
    assert [header["header"] for header in chunk["headers"]] == ["forwarding", "rendezvous"]
    assert chunk["headers"][1]["sid"] == "00" * 12 + "aa" * 20
    assert (chunk["payload"], chunk["payload_bytes"], chunk["error"]) == ("0001", 2, None)
    assert lines[-1]["error"] == "byte 0: forwarding header cut short: 42 bytes expected, 1 there"


def test_command_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.pcap"
    path.write_bytes(pcap([*RECORDS, Record(2**70, ETHERNET + b"[red]", 19)])[:-2])
    assert main(["dissect", str(path)]) == 1
    output = capsys.readouterr()
    assert "publish data" in output.out
    assert f"{len(RECORDS)} PSIRP frames, 0 malformed" in output.out
    assert "the file ends inside frame 7" in output.err
    path.write_bytes(pcap([Record(0, ETHERNET + b"[red]", 19)]))
    assert main(["dissect", str(path)]) == 0
    assert "malformed: byte 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [([], "which FILE"), (["/nonexistent/a.pcap"], "No such file"), (["a", "--count", "-1"], "--count takes")],
)
def test_command_refuses(arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dissect", *arguments]) == 2
    assert reason in capsys.readouterr().err


def test_command_names_the_wireshark_dissector(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dissect", "--wireshark"]) == 0
    assert Path(capsys.readouterr().out.strip()).is_file()
