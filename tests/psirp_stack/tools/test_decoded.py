"""What payloads say: every control frame of a busy network is decoded, and the Wireshark dissector names the same."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.main import main
from psirp_stack.control import courier_wire, messages
from psirp_stack.control.codes import Function, ServiceRole
from psirp_stack.control.frames import build_control, has_control_scope
from psirp_stack.emulation.simulation import SimulatedNetwork
from psirp_stack.pull import messages as pull_messages
from psirp_stack.pull.service import VersionCacheConfig
from psirp_stack.tools.decoded import DecodedMessage, decode_payload
from psirp_stack.tools.pcap import Record
from psirp_stack.transport import messages as transport_messages
from psirp_stack.wire.numbers import FORWARDING_BYTES
from tests.psirp_stack.simulated import item, line, scope
from tests.psirp_stack.tools.test_dissect import ETHERNET, pcap
from tests.psirp_stack.tools.test_lua_dissector import SCRIPT

MOST = 3000


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Frames of a network in which something of everything happens, in their order, each once."""
    frames: dict[bytes, bytes] = {}

    def tap(_sender: str, _receiver: str, frame: bytes) -> None:
        frames.setdefault(frame[FORWARDING_BYTES:], frame)

    network = SimulatedNetwork(
        line(50),
        tmp_path_factory.mktemp("network"),
        tap=tap,
        roles={"n0": ServiceRole.RENDEZVOUS, "n1": ServiceRole.TOPOLOGY},
        settings=lambda given: replace(given, cache=VersionCacheConfig(1_000_000)),
    )
    try:
        network.run(5.0)
        one, other = network.application("n3"), network.application("n49")
        one.subscribe_scope(scope(1))
        other.subscribe(item(1))
        one.publish(item(1), b"content " * 500)
        network.run(2.0)
        network.application("n5").get(item(1))
        one.explain(item(1))
        network.run(1.0)
        one.detach()
        network.run(6.0)
    finally:
        network.close()
    return list(frames.values())[:MOST]


def names(message: DecodedMessage | None) -> list[str]:
    return [] if message is None else [message.name, *names(message.carries)]


def test_every_control_frame_of_a_busy_network_is_decoded(seen: list[bytes]) -> None:
    found = set()
    for frame in seen:
        decoded = decode_payload(frame)
        if has_control_scope(frame):
            assert decoded is not None, frame.hex()
        found.update(names(decoded))
        if decoded is not None:
            assert json.loads(json.dumps(decoded.as_document()))["name"] == decoded.name
            assert len(decoded.text) <= 300
    wanted = {"Hello", "LinkStateReceived", "Piece", "Received", "SubscribeItem", "PublishItem", "SubscribeScope"}
    wanted |= {"Reply", "ScopePublished", "Match", "StartPublish", "Served", "MatchServed", "Explain", "Explanation"}
    wanted |= {"Announcement", "Have", "SeekVersions", "VersionOffer", "FetchPieces", "VersionPiece", "wrapped frame"}
    assert wanted <= found


def test_link_states_are_shown_by_who_says_them() -> None:
    state = messages.LinkState("n1", 1, 2, 1, (("n2", 1500),))
    payload = messages.encode(messages.LinkStates((messages.AgedState(5, messages.encode(state)),)))
    decoded = decode_payload(build_control(b"\xff" * 32, Function.LINK_STATE, None, payload))
    assert decoded is not None
    assert decoded.about == "link state"
    states = decoded.fields["states"]
    assert isinstance(states, list)
    (aged,) = states
    assert isinstance(aged, dict)
    assert aged["state"] == {
        "origin": "n1",
        "boot": 1,
        "number": 2,
        "roles": 1,
        "neighbours": [["n2", 1500]],
        "part": 0,
        "parts": 1,
        "proof": None,
    }


@given(st.sampled_from(list(Function)), st.binary(max_size=80))
def test_what_is_no_message_is_shown_as_bytes(function: Function, payload: bytes) -> None:
    frame = build_control(bytes(31) + b"\0", function, "n1", payload)
    decoded = decode_payload(frame)
    assert decoded is None or decoded.name


def test_the_command_shows_messages(seen: list[bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.pcap"
    path.write_bytes(pcap([Record(0, ETHERNET + frame, 14 + len(frame)) for frame in seen[:40]]))
    assert main(["dissect", str(path), "--json"]) == 0
    shown = [json.loads(line)["message"] for line in capsys.readouterr().out.splitlines()]
    expected = [decode_payload(frame) for frame in seen[:40]]
    assert shown == [None if message is None else message.as_document() for message in expected]


def declared(module: object) -> dict[int, str]:
    """Numbers and names of the messages that a module declares."""
    found = {}
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, msgspec.Struct):
            tag = value.__struct_config__.tag
            if isinstance(tag, int):
                found[tag] = value.__name__
    return found


@pytest.mark.parametrize(
    ("table", "module"),
    [
        ("MESSAGES", messages),
        ("COURIER", courier_wire),
        ("TRANSPORT", transport_messages),
        ("PULLS", pull_messages),
    ],
)
def test_the_dissector_for_wireshark_knows_every_message(table: str, module: object) -> None:
    text = Path(SCRIPT).read_text(encoding="utf-8")
    found = re.search(rf"local {table} = {{(.*?)}}\n", text, re.DOTALL)
    assert found is not None
    listed = {int(number): name for number, name in re.findall(r'\[(\d+)\] = "(\w+)"', found[1])}
    assert listed == declared(module)


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
def test_wireshark_names_the_same_messages(seen: list[bytes], tmp_path: Path) -> None:
    path = tmp_path / "a.pcap"
    path.write_bytes(pcap([Record(0, ETHERNET + frame, 14 + len(frame)) for frame in seen]))
    command = ["tshark", "-X", f"lua_script:{SCRIPT}", "-r", str(path), "-T", "fields", "-E", "separator=|"]
    command += ["-E", "aggregator=+", "-e", "psirp.message.name"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "Lua" not in done.stderr
    for frame, shown in zip(seen, done.stdout.split("\n"), strict=False):
        decoded = decode_payload(frame)
        expected = [] if decoded is not None and decoded.name == "wrapped frame" else names(decoded)
        assert shown == "+".join(expected)
