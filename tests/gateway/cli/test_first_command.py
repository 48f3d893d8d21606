"""The first command: hub and gateway start without argument or file, say where everything is, go to the background."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from gateway.operations.places import state_folder
from tests.waiting import until

PSPH = [sys.executable, "-m", "gateway.cli.main"]
GOES_ON = re.compile(r"kill (\d+) stops it")


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """An environment with a home of its own, of a short name; what is in the background there is ended."""
    tmp_path = tmp_path_factory.mktemp("h")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PSPH_", "XDG_"))}
    yield environment | {"HOME": str(tmp_path)}
    for log in tmp_path.glob("*.log"):
        for found in GOES_ON.finditer(log.read_text()):
            os.kill(int(found[1]), signal.SIGTERM)


def in_background(home: dict[str, str], name: str, *words: str) -> str:
    """What `psph NAME ... --wait-ready` says; it returns once the program serves."""
    log = Path(home["HOME"]) / f"{name}.log"
    with log.open("w") as out:
        code = subprocess.run(
            [*PSPH, name, *words, "--wait-ready"], env=home, stdout=out, stderr=out, timeout=60, check=False
        ).returncode
    assert code == 0, log.read_text()
    return log.read_text()


def read(url: str, body: bytes | None = None) -> str:
    with urlopen(url, data=body, timeout=10) as answer:  # noqa: S310 - the hub started here
        found: str = answer.read().decode()
        return found


async def test_a_hub_in_the_background_serves_when_the_command_returns(home: dict[str, str]) -> None:
    said = in_background(home, "hub", "--port", "0", "--admin", "127.0.0.1:0")
    hub = re.search(r"^hub at (\S+)$", said, re.MULTILINE)
    metrics = re.search(r"^dashboard at (\S+), metrics at (\S+)$", said, re.MULTILINE)
    assert hub is not None and metrics is not None
    assert f"data in {home['HOME']}/.local/state/psph/hub\n" in said
    body = urlencode({"hub.mode": "publish", "hub.url": "http://10.0.0.1/feed"}).encode()
    with pytest.raises(HTTPError) as refused:
        await asyncio.to_thread(read, hub[1], body)
    with refused.value as answer:
        assert answer.status == 403
    exported = await asyncio.to_thread(read, metrics[2])
    # A hub alone has the hub's half: its own numbers, and none of a network.
    assert 'psph_hub_requests_refused_total{status="403"} 1.0' in exported
    assert "psph_hub_subscriptions 0.0" in exported, "the canary is nobody's subscription"
    assert "psph_psirp" not in exported
    assert '"alone":true' in await asyncio.to_thread(read, f"{metrics[1]}api/snapshot")
    log = Path(home["HOME"]) / "hub.log"
    await until(lambda: "request refused" in log.read_text())
    assert (
        "psph hub: request refused of 127.0.0.1: this hub does not contact the topic http://10.0.0.1/feed"
        in log.read_text()
    )


def test_a_gateway_needs_no_file_either(home: dict[str, str]) -> None:
    said = in_background(home, "gateway", "--port", "0", "--allow-private")
    for pattern in (
        r"^hub at http://127\.0\.0\.1:\d+/$",
        r"^dashboard at http://127\.0\.0\.1:\d+/$",
        rf"^gateway gateway is up, its node at {re.escape(home['HOME'])}/\.local/state/psph/gateway/node\.sock$",
    ):
        assert re.search(pattern, said, re.MULTILINE), said


def test_what_cannot_start_says_so_and_does_not_go_to_the_background(home: dict[str, str]) -> None:
    words = [*PSPH, "hub", "--port", "70000", "--wait-ready"]
    done = subprocess.run(words, env=home, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (2, "psph hub: --port 70000: expected 0 to 65535\n")


@pytest.mark.parametrize("name", ["hub", "gateway"])
def test_a_port_in_use_is_named(name: str, home: dict[str, str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = [*PSPH, name, "--port", str(port)]
        done = subprocess.run(words, env=home, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert f"127.0.0.1:{port}" in done.stderr or f"127.0.0.1 port {port}" in done.stderr, done.stderr


def test_the_state_folder_is_where_xdg_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state_folder("hub") == tmp_path / "psph" / "hub"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")  # which the specification says is to be ignored
    monkeypatch.setenv("HOME", "/home/nobody")
    assert state_folder("hub") == Path("/home/nobody/.local/state/psph/hub")
