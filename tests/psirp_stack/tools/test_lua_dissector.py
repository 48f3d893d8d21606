"""The Wireshark dissector shows the fields the codec parses, and refuses what it refuses, as seen by tshark."""

import json
import random
import shutil
import subprocess
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import pytest

from psirp_stack.tools.pcap import Record
from psirp_stack.wire.codec import (
    HEADER_CLASSES,
    AuthenticationHeader,
    ForwardingHeader,
    Frame,
    Header,
    MetadataHeader,
    RendezvousHeader,
    WireError,
    build,
    parse,
)
from psirp_stack.wire.numbers import RENDEZVOUS_TYPES, HeaderType
from tests.psirp_stack.tools.test_dissect import ETHERNET, FRAMES, pcap

TSHARK = shutil.which("tshark")
pytestmark = pytest.mark.skipif(TSHARK is None, reason="tshark is not installed")

SCRIPT = str(files("psirp_stack.tools").joinpath("psirp.lua"))
CLASSES = tuple(dict.fromkeys(HEADER_CLASSES.values()))
NAMES = [
    *(f"psirp.{cls.NAME}.{name}" for cls in CLASSES for name in ("type", "next", *(f.name for f in cls.LAYOUT))),
    "psirp.payload",
    "psirp.padding",
    "psirp.error",
]


def random_frames(count: int) -> list[Frame]:
    """Valid frames of all shapes. Seeded, because one run of tshark takes a second: no property test here."""
    draw = random.Random(20)
    made = []
    for _ in range(count):
        others: list[Header] = [
            RendezvousHeader(
                draw.choice(sorted(RENDEZVOUS_TYPES)),
                draw.randbytes(32),
                draw.randbytes(32),
                draw.randbytes(32),
                draw.getrandbits(64),
                reserved=draw.randbytes(5),
            ),
            MetadataHeader(
                draw.randbytes(32),
                draw.randbytes(32),
                draw.randbytes(32),
                draw.randbytes(32),
                draw.getrandbits(64),
                draw.getrandbits(64),
                draw.getrandbits(8),
                draw.getrandbits(8),
                draw.randbytes(4),
            ),
            AuthenticationHeader(
                draw.randbytes(32),
                draw.getrandbits(64),
                draw.getrandbits(64),
                draw.getrandbits(64),
                draw.getrandbits(8),
                draw.randbytes(5),
                draw.randbytes(64),
            ),
        ]
        chosen = draw.sample(others, draw.randint(0, 3))
        forwarding = ForwardingHeader(
            draw.randbytes(32), draw.getrandbits(8), draw.getrandbits(8), reserved=draw.randbytes(5)
        )
        payload = draw.randbytes(draw.randint(1, 40)) if draw.random() < 0.7 else None
        made.append(Frame((forwarding, *chosen), payload, b"" if payload or chosen else bytes(4)))
    return made


def malformed_frames() -> list[bytes]:
    whole = FRAMES[-1]
    cuts = [whole[:length] for length in (0, 1, 41, 42, 100, 169, 170, 281, 282, 400)]
    steering = (0, 1, 4, 42, 43, 170 + 106)
    wrong_bytes = [whole[:at] + bytes([value]) + whole[at + 1 :] for at in steering for value in (0x02, 0x08, 0x7F)]
    twice = b"\x01\x04" + bytes(40) + b"\x04\x02" + bytes(110) + b"\x02\x00" + bytes(110)
    return [*cuts, *wrong_bytes, twice, b"\x01\x01" + bytes(40) + whole]


@dataclass(frozen=True, slots=True)
class Shown:
    values: dict[str, str]


def run_tshark(frames: list[bytes], directory: Path) -> list[Shown]:
    path = directory / "frames.pcap"
    path.write_bytes(pcap([Record(0, ETHERNET + frame, 14 + len(frame)) for frame in frames]))
    assert TSHARK is not None
    command = [TSHARK, "-X", f"lua_script:{SCRIPT}", "-r", str(path), "-T", "fields", "-E", "separator=|"]
    for name in NAMES:
        command += ["-e", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "Lua" not in done.stderr
    return [Shown(dict(zip(NAMES, line.split("|"), strict=True))) for line in done.stdout.splitlines()]


def expected_values(frame: Frame) -> dict[str, int | str]:
    following = [header.type for header in frame.headers[1:]]
    following.append(HeaderType.NONE if frame.payload is None else HeaderType.PAYLOAD)
    values: dict[str, int | str] = {}
    for header, next_type in zip(frame.headers, following, strict=True):
        prefix = f"psirp.{header.NAME}."
        values[prefix + "type"] = int(header.type)
        values[prefix + "next"] = int(next_type)
        for field in header.LAYOUT:
            value = getattr(header, field.name)
            values[prefix + field.name] = value.hex() if isinstance(value, bytes) else value
    if frame.payload:
        values["psirp.payload"] = frame.payload.hex()
    if frame.padding:
        values["psirp.padding"] = frame.padding.hex()
    return values


def test_every_field_has_the_codecs_value(tmp_path: Path) -> None:
    sent = random_frames(60)
    kinds = {header.type for frame in sent for header in frame.headers}
    assert kinds == set(HEADER_CLASSES)
    shown = run_tshark([build(frame) for frame in sent], tmp_path)
    assert len(shown) == len(sent)
    for frame, found in zip(sent, shown, strict=True):
        expected = expected_values(frame)
        for name in NAMES:
            text = found.values[name]
            wanted = expected.get(name)
            if isinstance(wanted, int):
                assert int(text, 0) == wanted, name
            else:
                assert text == (wanted or ""), name


def test_it_refuses_what_the_codec_refuses_in_the_same_words(tmp_path: Path) -> None:
    sent = malformed_frames()
    shown = run_tshark(sent, tmp_path)
    assert len(shown) == len(sent)
    for frame, found in zip(sent, shown, strict=True):
        try:
            parse(frame)
            error = ""
        except WireError as problem:
            error = str(problem)
        assert found.values["psirp.error"] == error, json.dumps(frame.hex())


def test_the_list_shows_topics_in_words(tmp_path: Path) -> None:
    path = tmp_path / "frames.pcap"
    path.write_bytes(pcap([Record(0, ETHERNET + FRAMES[3], 14 + len(FRAMES[3]))]))
    assert TSHARK is not None
    command = [TSHARK, "-X", f"lua_script:{SCRIPT}", "-r", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "PSIRP" in done.stdout
    assert "publish data ::aaaaaaaa…aaaaaaaa/::bbbbbbbb…bbbbbbbb" in done.stdout
