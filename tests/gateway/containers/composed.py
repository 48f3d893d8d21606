"""The services of the compose file, started in its order in network namespaces with its addresses and names."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.gateway.containers.compose_files import Service, image, services
from tests.gateway.containers.confinement import Confinement

ORDER = ("forwarder-1", "forwarder-2", "forwarder-3", "gateway-a", "gateway-b", "feed", "reader")
ONCE = ("tokens", "secret")
SCRAPER = "prometheus"
REPORT = "report"
PATIENCE = 90.0
PREFIX_BITS = 24


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode and "not permitted" in done.stderr:
        pytest.skip(f"this machine does not allow network namespaces: {done.stderr.strip()}")
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"


class Composed:
    """Each service is a confined process. What an engine would do otherwise is in methods of its own."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack, *over: Path) -> None:
        self.services = services(*over)
        self.folder = folder
        self.stack = stack
        self.mark = f"pc{os.getpid() % 100_000}"
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.confined: dict[str, Confinement] = {}
        self.said: dict[str, list[str]] = {name: [] for name in self.services}
        self.news = threading.Condition()
        self.listeners: list[threading.Thread] = []

    def namespace(self, name: str) -> str:
        return f"{self.mark}-{name}"

    def addresses(self) -> dict[str, str]:
        return {name: service.address for name, service in self.services.items() if service.address is not None}

    def build(self) -> None:
        """One switch, and a namespace for each service, with a cable to it if the service has a network."""
        switch = self.namespace("switch")
        self._namespace(switch)
        ip("-n", switch, "link", "add", "br0", "type", "bridge")
        ip("-n", switch, "link", "set", "br0", "up")
        addresses = self.addresses()
        for number, name in enumerate(self.services):
            inside = self.namespace(name)
            self._namespace(inside)
            ip("-n", inside, "link", "set", "lo", "up")
            if name not in addresses:
                continue
            ip("link", "add", "eth0", "netns", inside, "type", "veth", "peer", "name", f"p{number}", "netns", switch)
            ip("-n", switch, "link", "set", f"p{number}", "master", "br0", "up")
            ip("-n", inside, "address", "add", f"{addresses[name]}/{PREFIX_BITS}", "dev", "eth0")
            ip("-n", inside, "link", "set", "eth0", "up")

    def _namespace(self, name: str) -> None:
        ip("netns", "add", name)
        self.stack.callback(ip, "netns", "delete", name)

    def volume(self, name: str) -> Path:
        """Where the files of a named volume are. As it is in the image when it is new."""
        path = self.folder / "volumes" / name
        if not path.exists():
            path.mkdir(parents=True)
            path.chmod(0o750)
            os.chown(path, 10001, 10001)
        return path

    def start(self, name: str) -> None:
        service = self.services[name]
        process = subprocess.Popen(
            self.begin(service), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/"
        )
        self.processes[name] = process
        listener = threading.Thread(target=self._listen, args=(name, process), daemon=True)
        listener.start()
        self.listeners.append(listener)

    def begin(self, service: Service) -> list[str]:
        """What runs a service, and becomes it."""
        confined = self.confine(service)
        return ["ip", "netns", "exec", self.namespace(service.name), *confined.command(service.words(confined.image))]

    def confine(self, service: Service) -> Confinement:
        for volume in service.volumes:
            if volume.named:
                self.volume(volume.source)
        # In the place of Docker's name service.
        hosts = "127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in self.addresses().items())
        etc = {"hosts": hosts, "nsswitch.conf": "hosts: files\n"}
        target = service.said.get("build", {}).get("target", "gateway")
        root = self.folder / "roots" / f"{service.name}-{len(self.confined)}"
        self.confined[service.name] = Confinement(service, image(target), root, self.folder / "volumes", etc)
        return self.confined[service.name]

    def beside(self, name: str, words: Sequence[str]) -> list[str]:
        """One more command where a service runs."""
        return self.confined[name].enter(self.pid(name), words)

    def pid(self, name: str) -> int:
        """`ip netns exec`, unshare, chroot and setpriv become the program: the process is the service itself."""
        return self.processes[name].pid

    def _listen(self, name: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                with self.news:
                    self.said[name].append(line)
                    self.news.notify_all()

    def heard(self, name: str, text: str, times: int = 1) -> list[str]:
        """The first lines of a service with this text in them."""

        def found() -> list[str]:
            return [line for line in self.said[name] if text in line][:times]

        with self.news:
            assert self.news.wait_for(lambda: len(found()) == times, PATIENCE), self.story()
        return found()

    def story(self) -> str:
        return "\n".join(f"--- {name}\n{''.join(lines[-20:])}" for name, lines in self.said.items() if lines)

    def healthy(self, name: str) -> None:
        """Its health check, as compose asks it, until it says yes."""
        kind, *test = self.services[name].said["healthcheck"]["test"]
        assert kind == "CMD"
        deadline = time.monotonic() + PATIENCE
        while True:
            assert self.processes[name].poll() is None, self.story()
            done = subprocess.run(
                self.beside(name, test), capture_output=True, text=True, check=False, timeout=60, cwd="/"
            )
            if done.returncode == 0:
                return
            assert time.monotonic() < deadline, f"{name}: {done.stderr}\n{self.story()}"

    def finished(self, name: str, patience: float = PATIENCE) -> None:
        process = self.processes[name]
        assert process.wait(patience) == 0, self.story()
        del self.processes[name]

    def up(self, *names: str) -> None:
        """In the order given, each when what it depends on is there, as compose does."""
        for name in names:
            for other, how in self.services[name].said.get("depends_on", {}).items():
                if how["condition"] == "service_healthy":
                    self.healthy(other)
                else:
                    assert how["condition"] == "service_completed_successfully"
                    if other in self.processes:
                        self.finished(other)
            self.start(name)

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
