"""The very commands of the compose file, as processes of its user in network namespaces with its addresses and names.

What Docker would mount is in a directory of the test: its paths, /data, /etc/psph and /run/psph, are replaced in
commands and configuration files; nothing else is. Prometheus itself is not here; its user asks what it would ask.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.psirp_stack.test_netns import why_not

ROOT = Path(__file__).parents[2]
ORDER = ("forwarder-1", "forwarder-2", "forwarder-3", "gateway-a", "gateway-b", "feed", "reader")
ONCE = "tokens"
SCRAPER = "prometheus"
PATIENCE = 90.0
PREFIX_BITS = 24

pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed"),
]


SCRAPE = """
import sys, urllib.error, urllib.request
url, token = sys.argv[1], open(sys.argv[2]).read().strip()
try:
    print(urllib.request.urlopen(url, timeout=20).status)
except urllib.error.HTTPError as error:
    print(error.code)
request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
print(urllib.request.urlopen(request, timeout=20).read().decode())
"""


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode and "not permitted" in done.stderr:
        pytest.skip(f"this machine does not allow network namespaces: {done.stderr.strip()}")
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"


class Composed:
    """The services of the compose file."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.services: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
        self.folder = folder
        self.stack = stack
        self.mark = f"pc{os.getpid() % 100_000}"
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.said: dict[str, list[str]] = {name: [] for name in (ONCE, *ORDER)}
        self.news = threading.Condition()
        self.listeners: list[threading.Thread] = []

    def address(self, name: str) -> str:
        return str(self.services[name]["networks"]["psph"]["ipv4_address"])

    def namespace(self, name: str) -> str:
        return f"{self.mark}-{name}"

    def build(self) -> None:
        """One switch, and a namespace with a cable to it for each service."""
        switch = self.namespace("switch")
        self._namespace(switch)
        ip("-n", switch, "link", "add", "br0", "type", "bridge")
        ip("-n", switch, "link", "set", "br0", "up")
        assert self.services[ONCE]["network_mode"] == "none"
        self._namespace(self.namespace(ONCE))
        connected = (*ORDER, SCRAPER)
        hosts = "127.0.0.1 localhost\n" + "".join(f"{self.address(name)} {name}\n" for name in connected)
        for number, name in enumerate(connected):
            inside = self.namespace(name)
            self._namespace(inside)
            # What `ip netns exec` puts in the place of /etc/hosts, as Docker's name service would answer.
            etc = Path("/etc/netns") / inside
            etc.mkdir(parents=True)
            self.stack.callback(shutil.rmtree, etc)
            (etc / "hosts").write_text(hosts)
            (etc / "nsswitch.conf").write_text("hosts: files\n")
            ip("link", "add", "eth0", "netns", inside, "type", "veth", "peer", "name", f"p{number}", "netns", switch)
            ip("-n", switch, "link", "set", f"p{number}", "master", "br0", "up")
            ip("-n", inside, "address", "add", f"{self.address(name)}/{PREFIX_BITS}", "dev", "eth0")
            ip("-n", inside, "link", "set", "eth0", "up")
            ip("-n", inside, "link", "set", "lo", "up")

    def _namespace(self, name: str) -> None:
        ip("netns", "add", name)
        self.stack.callback(ip, "netns", "delete", name)

    def place(self, name: str, text: str) -> str:
        """With the mount points of a service replaced by where they are here."""
        for target, here in self.mounts(name).items():
            text = text.replace(target, str(here))
        return text

    def mounts(self, name: str) -> dict[str, Path]:
        own = self.folder / name
        found = {"/data": own / "data", "/etc/psph": own / "etc"}
        for volume in self.services[name].get("volumes", []):
            source, target, *_ = volume.split(":")
            if not source.startswith("."):
                found[target] = self.folder / "volumes" / source
        return found

    def as_service(self, name: str, words: list[str]) -> list[str]:
        user, group = self.services[name]["user"].split(":")
        assert self.services[name]["cap_drop"] == ["ALL"]
        return [
            "ip", "netns", "exec", self.namespace(name),
            "setpriv", "--reuid", user, "--regid", group, "--clear-groups", "--no-new-privs",
            "--bounding-set", "-all", "--inh-caps", "-all", "--ambient-caps", "-all", *words,
        ]  # fmt: skip

    def start(self, name: str) -> None:
        service = self.services[name]
        own = self.folder / name
        (own / "etc").mkdir(parents=True)
        data = self.mounts(name)["/data"]
        data.mkdir(parents=True)
        data.chmod(0o750)  # as it is in the image
        os.chown(data, *map(int, service["user"].split(":")))
        for volume in service.get("volumes", []):
            source, target, *how = volume.split(":")
            if source.startswith("."):
                assert how == ["ro"]
                placed = Path(self.place(name, target))
                placed.write_text(self.place(name, (ROOT / source).read_text()))
        command = [self.place(name, word) for word in service["command"]]
        program = service.get("entrypoint", [sys.executable, "-m", "gateway.cli.main"])
        process = subprocess.Popen(
            self.as_service(name, [*program, *command]),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=data, env=self.environment(),
        )  # fmt: skip
        self.processes[name] = process
        listener = threading.Thread(target=self._listen, args=(name, process), daemon=True)
        listener.start()
        self.listeners.append(listener)

    @staticmethod
    def environment() -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def _listen(self, name: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                with self.news:
                    self.said[name].append(line)
                    self.news.notify_all()

    def heard(self, name: str, text: str) -> str:
        """The first line of a service with this text in it."""

        def found() -> str | None:
            return next((line for line in self.said[name] if text in line), None)

        with self.news:
            assert self.news.wait_for(lambda: found() is not None, PATIENCE), self.story()
        line = found()
        assert line is not None
        return line

    def story(self) -> str:
        return "\n".join(f"--- {name}\n{''.join(lines[-20:])}" for name, lines in self.said.items())

    def healthy(self, name: str) -> None:
        """Its health check, as compose asks it, until it says yes."""
        test = self.services[name]["healthcheck"]["test"]
        assert test[:2] == ["CMD", "python"]
        words = self.as_service(name, [sys.executable, *(self.place(name, word) for word in test[2:])])
        deadline = time.monotonic() + PATIENCE
        while True:
            done = subprocess.run(
                words, capture_output=True, text=True, check=False, timeout=60, env=self.environment()
            )
            if done.returncode == 0:
                return
            assert time.monotonic() < deadline, f"{name}: {done.stderr}\n{self.story()}"

    def finished(self, name: str) -> None:
        assert self.processes.pop(name).wait(PATIENCE) == 0, self.story()

    def needed(self, name: str) -> None:
        """Wait for what a service depends on, as compose does."""
        for other, how in self.services[name].get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                self.healthy(other)
            else:
                assert how["condition"] == "service_completed_successfully"
                if other in self.processes:
                    self.finished(other)

    def scrape(self) -> dict[str, tuple[int, str]]:
        """By gateway: the answer without a token, and the metrics that Prometheus' user gets as its file says."""
        (job,) = yaml.safe_load((ROOT / "deploy" / "compose" / "prometheus.yml").read_text())["scrape_configs"]
        token = self.place(SCRAPER, job["authorization"]["credentials_file"])
        found = {}
        for target in job["static_configs"][0]["targets"]:
            words = [sys.executable, "-c", SCRAPE, f"http://{target}{job['metrics_path']}", token]
            done = subprocess.run(
                self.as_service(SCRAPER, words), capture_output=True, text=True, check=False, timeout=60,
                env=self.environment(),
            )  # fmt: skip
            assert done.returncode == 0, f"{done.stderr}\n{self.story()}"
            refused, _, metrics = done.stdout.partition("\n")
            found[target.split(":")[0]] = int(refused), metrics
        return found

    def down(self) -> dict[str, int]:
        codes = {}
        for process in reversed(self.processes.values()):
            process.send_signal(signal.SIGTERM)
        for name, process in self.processes.items():
            try:
                codes[name] = process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                codes[name] = process.wait()
        self.processes.clear()
        for listener in self.listeners:
            listener.join(10)
        return codes


@pytest.fixture
def composed() -> Iterator[Composed]:
    with contextlib.ExitStack() as stack:
        # Not in pytest's own directory: that is for root alone.
        folder = Path(tempfile.mkdtemp(prefix="psph-c-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        built = Composed(folder, stack)
        stack.callback(built.down)
        built.build()
        yield built


@pytest.mark.timeout(300)
def test_a_publication_crosses_from_the_feed_to_the_reader(composed: Composed) -> None:
    composed.start(ONCE)
    for name in ORDER:
        composed.needed(name)
        composed.start(name)
    line = composed.heard("reader", "urn:psph:feed:")
    delivery = json.loads(line)
    assert "urn:psph:feed:" in delivery["content"]
    assert delivery["topic"] == "http://feed:8000/feed"
    tokens = composed.mounts("gateway-a")["/run/psph"] / "viewers.tokens"
    assert tokens.stat().st_mode & 0o777 == 0o600
    for name, (refused, metrics) in composed.scrape().items():
        assert refused == 401, "nothing is told without the token"
        assert f'psph_info{{name="{name}"' in metrics
        assert tokens.read_text().strip() not in metrics
    for name, process in composed.processes.items():
        # `ip netns exec` and setpriv become the program: this is its own state.
        status = dict(entry.split(":", 1) for entry in Path(f"/proc/{process.pid}/status").read_text().splitlines())
        assert set(status["Uid"].split()) == {"10001"}, name
        assert all(int(status[kind].strip(), 16) == 0 for kind in ("CapEff", "CapPrm", "CapBnd", "CapAmb")), name
        assert status["NoNewPrivs"].strip() == "1"
    codes = composed.down()
    assert set(codes.values()) == {0}, (codes, composed.story())
