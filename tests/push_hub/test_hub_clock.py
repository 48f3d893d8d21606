"""`psph hub` as a process whose machine's clock is set: retries come in time, and leases are as long as they were."""

import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from urllib.parse import parse_qs, urlencode, urlsplit
from urllib.request import Request, urlopen

import pytest

from trials.settable_clock import SettableClock

HOUR = 3600.0
IN_TIME = 20.0
"""Far longer than the first pause of a retry (5 s), far shorter than any step."""
TOPIC_TEXT = "version {}"


class World(ThreadingHTTPServer):
    """A topic at /topic, and a callback at /cb that says what it got and answers as it is told."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.version = 1
        self.answers: list[int] = []
        self.got: Queue[tuple[int, str]] = Queue()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def next_delivery(self) -> tuple[int, str]:
        return self.got.get(timeout=IN_TIME)


class Handler(BaseHTTPRequestHandler):
    server: World

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        text = query["hub.challenge"][0] if "hub.challenge" in query else TOPIC_TEXT.format(self.server.version)
        self._answer(200, text.encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        status = self.server.answers.pop(0) if self.server.answers else 200
        self._answer(status, b"")
        self.server.got.put((status, body))

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def world() -> Iterator[World]:
    with World() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@contextmanager
def hub(clock: SettableClock, data: Path) -> Iterator[str]:
    """A hub, killed at the end: what it knew of the clock must be on disk before that."""
    command = clock.command("hub", "--port", "0", "--data", str(data), "--allow-private", "--no-canary")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        match = re.fullmatch(r"hub at (http://127\.0\.0\.1:\d+/)\n", line)
        assert match, line
        yield match[1]
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()


def ask(hub: str, **fields: str) -> int:
    data = urlencode({f"hub.{name}": value for name, value in fields.items()}).encode()
    with urlopen(Request(hub, data=data), timeout=IN_TIME) as answer:  # noqa: S310 - the hub started here
        return int(answer.status)


def publish(hub: str, world: World) -> None:
    world.version += 1
    assert ask(hub, mode="publish", url=f"{world.url}/topic") == 204


@pytest.mark.parametrize("step", [-HOUR, HOUR, -240 * HOUR], ids=["an hour back", "an hour ahead", "ten days back"])
def test_retries_and_leases_survive_a_clock_that_is_set(tmp_path: Path, world: World, step: float) -> None:
    clock, data = SettableClock(tmp_path), tmp_path / "data"
    topic, callback = f"{world.url}/topic", f"{world.url}/cb"
    with hub(clock, data) as url:
        asked = ask(url, mode="subscribe", topic=topic, callback=callback, verify="sync", lease_seconds="300")
        assert asked == 204
        world.answers = [503]
        publish(url, world)
        assert world.next_delivery() == (503, "version 2")
        clock.set_by(step)  # while the retry waits
        assert world.next_delivery() == (200, "version 2")
        publish(url, world)  # the lease has not ended
        assert world.next_delivery() == (200, "version 3")
        world.answers = [503]
        publish(url, world)
        assert world.next_delivery() == (503, "version 4")
    clock.set_by(2 * step)  # and again while nothing runs
    with hub(clock, data) as url:
        assert world.next_delivery() == (200, "version 4")
        publish(url, world)
        assert world.next_delivery() == (200, "version 5")
