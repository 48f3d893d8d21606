"""A real gateway process: reloads on SIGHUP, stops on SIGTERM in bounded time with its stores checkpointed."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import ClientSession

from gateway.config import check
from gateway.gateway import Gateway
from gateway.operations.lifetime import bounded
from gateway.operations.reload import ReloadPlan, apply_reload, in_force, plan_reload
from push_hub.hub import DATABASE_NAME as HUB_NAME

BASE = """[store]
path = "data"
[hub]
listen = "127.0.0.1:0"
allow_private = true
stop_grace = {grace}
publisher_tokens_file = "tokens"
[hub.canary]
enabled = false
[node]
name = "a"
roles = ["rendezvous", "topology"]
"""
SECRET = "very-secret-token"


class Process:
    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self.process = process
        self.folder = folder
        self.url = ""
        self.said: list[str] = []

    async def line(self, beginning: str) -> str:
        """The next line of its output that begins so."""
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            while line := (await self.process.stdout.readline()).decode():
                self.said.append(line)
                if line.startswith(beginning):
                    return line
        raise AssertionError(f"it never said {beginning!r}: {self.said}")

    def configure(self, *more: str, grace: float = 1.0) -> None:
        (self.folder / "gateway.toml").write_text(BASE.format(grace=grace) + "".join(f"{line}\n" for line in more))

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


@asynccontextmanager
async def gateway(folder: Path, grace: float = 1.0) -> AsyncIterator[Process]:
    (folder / "tokens").touch(mode=0o600)
    (folder / "tokens").write_text(f"{SECRET}\n")
    (folder / "gateway.toml").write_text(BASE.format(grace=grace))
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway.cli.main", "gateway", "-c", str(folder / "gateway.toml"),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    process = Process(started, folder)
    try:
        process.url = (await process.line("hub at ")).split()[2]
        await process.line("gateway ")
        yield process
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()


async def test_it_stops_in_bounded_time_and_leaves_whole_stores(tmp_path: Path) -> None:
    async with gateway(tmp_path) as process:
        # A client that keeps its connection and never finishes its request.
        slow = socket.create_connection(("127.0.0.1", int(process.url.rstrip("/").rpartition(":")[2])))
        slow.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
        assert list((tmp_path / "data").rglob("*.sqlite-wal")), "there is something to checkpoint"
        process.signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            assert await process.process.wait() == 0
        slow.close()
    assert (tmp_path / "data" / "hub" / HUB_NAME).exists()
    assert not list((tmp_path / "data").rglob("*-wal")), "everything is in the stores themselves"


async def test_sighup_changes_what_can_be_changed_and_says_what_cannot(tmp_path: Path) -> None:
    async with gateway(tmp_path) as process, ClientSession() as http:
        ping = {"hub.mode": "publish", "hub.url": "http://127.0.0.1:1/feed"}
        async with http.post(process.url, data=ping) as answer:
            assert answer.status == 204
        process.configure("[access]", 'default = "deny"', "[limits]", "fetches = 7", "requests_per_client = 100.0")
        process.signal(signal.SIGHUP)
        line = await process.line("reloaded")
        assert "access" in line
        assert "hub.server.per_client" in line
        assert "hub.intake.max_fetches" in await process.line("needs a restart")
        async with http.post(process.url, data=ping) as answer:
            assert answer.status == 403
        process.configure("[access]", 'default = "perhaps"')
        process.signal(signal.SIGHUP)
        assert "access.default" in await process.line("psph gateway: not reloaded")
        async with http.post(process.url, data=ping) as answer:
            assert answer.status == 403, "a configuration that cannot be used changes nothing"
        (tmp_path / "tokens").write_text("another-token\n")
        process.configure()
        process.signal(signal.SIGHUP)
        assert "hub.server.publisher_tokens" in await process.line("reloaded")
        async with http.post(process.url, data=ping) as answer:
            assert answer.status == 204
        process.signal(signal.SIGTERM)
        assert await process.process.wait() == 0
        assert not [line for line in process.said if SECRET in line or "another-token" in line]


def test_what_waits_is_said_again_and_what_changed_is_not(tmp_path: Path) -> None:
    def config(**limits: object) -> object:
        return check({"node": {"name": "a"}, "limits": limits}, tmp_path)

    before, after = config(), config(fetches=7, requests_per_topic=5.0)
    first = plan_reload(before, after)
    assert first.changed == ("hub.server.per_topic",)
    assert first.waiting == ("hub.intake.max_fetches",)
    again = plan_reload(in_force(before, after), after)
    assert again.changed == ()
    assert again.waiting == first.waiting
    assert plan_reload(after, after).lines() == ["reloaded: nothing has changed, certificates were looked at"]
    moved = replace(after, data=tmp_path / "elsewhere")
    assert plan_reload(after, moved).waiting == ("data",)


def test_stopping_that_takes_too_long_ends_the_process() -> None:
    """In a process of its own, whose event loop is held up for good."""
    import subprocess

    code = (
        "import sys, threading\n"
        "from gateway.operations.lifetime import bounded\n"
        "with bounded(0.2, lambda line: print(line, file=sys.stderr)):\n"
        "    threading.Event().wait(60)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert "longer than 0.2 seconds" in done.stderr


def test_stopping_in_time_ends_nothing() -> None:
    left: list[int] = []
    with bounded(60, pytest.fail, left.append):
        assert os.getpid()
    assert not left


async def test_tokens_that_are_taken_away_open_nothing_any_more(tmp_path: Path) -> None:
    def write(name: str, *tokens: str) -> None:
        (tmp_path / name).touch(mode=0o600)
        (tmp_path / name).write_text("".join(f"{token}\n" for token in tokens))

    document: dict[str, object] = {
        "store": {"path": "data"},
        "hub": {"listen": "127.0.0.1:0", "canary": {"enabled": False}},
        "node": {"name": "a", "roles": ["rendezvous", "topology"]},
        "admin": {
            "listen": "127.0.0.1:0",
            "viewer_tokens_file": "viewers",
            "operator_tokens_file": "operators",
        },
        "web": {"listen": "127.0.0.1:0", "publish_tokens_file": "rest"},
    }
    write("viewers", "viewer-one")
    write("operators", "operator-one")
    write("rest", "rest-one")
    before = check(document, tmp_path)
    running = Gateway(before)
    await running.start()
    try:
        assert running.admin is not None
        assert running.web is not None
        admin, rest = running.admin.url, f"{running.web.url}topics?name=https://news.example/"
        async with ClientSession() as http:

            async def status(method: str, url: str, token: str) -> int:
                async with http.request(method, url, headers={"Authorization": f"Bearer {token}"}, data=b"") as answer:
                    return answer.status

            assert await status("GET", f"{admin}metrics", "viewer-one") == 200
            assert await status("GET", f"{admin}api/audit", "operator-one") == 200
            assert await status("POST", rest, "rest-one") == 201
            looking = await http.get(f"{admin}api/stream", headers={"Authorization": "Bearer viewer-one"})
            write("viewers", "viewer-two")
            write("operators", "operator-two")
            write("rest", "rest-two")
            after = check(document, tmp_path)
            names = ("admin.operator_tokens", "admin.viewer_tokens", "web.tokens")
            assert apply_reload(running, before, after) == ReloadPlan(names, ())
            assert plan_reload(in_force(before, after), after) == ReloadPlan((), ())
            async with asyncio.timeout(20):
                await looking.content.read()  # it ends
            for token, there in (("one", False), ("two", True)):
                assert (await status("GET", f"{admin}metrics", f"viewer-{token}") == 200) is there
                assert (await status("GET", f"{admin}api/audit", f"operator-{token}") == 200) is there
                assert (await status("POST", rest, f"rest-{token}") == 201) is there
            # Without any, everybody on this machine would be an operator: that needs a restart.
            for section, keys in (
                ("admin", ("viewer_tokens_file", "operator_tokens_file")),
                ("web", ("publish_tokens_file",)),
            ):
                for key in keys:
                    del document[section][key]  # type: ignore[attr-defined]
            assert apply_reload(running, after, check(document, tmp_path)) == ReloadPlan((), names)
            assert await status("GET", f"{admin}metrics", "viewer-one") == 401
            assert await status("GET", f"{admin}metrics", "viewer-two") == 200
            assert await status("POST", rest, "nothing") == 403
    finally:
        await running.stop()
