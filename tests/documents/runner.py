"""Runs a page of the documentation: writes its files, runs its commands in order, compares what it says they print.

`pages.py` says how a page marks its blocks. A page has a folder of its own. Variables that a block sets are there in
the next ones, as in the reader's shell. A line that ends in `&` is started and goes on: one that serves (`READY`)
is waited for until it says that it does, any other has to end well by itself before its block is over.

Three things are not as they are written. Ports are replaced by free ones. `psph` is `short.py`, which is psph with
measurements made small. And programs that cannot be run inside a test have a stand-in (`stand_ins.py`).
"""

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from tests.documents.pages import ROOT, Block, blocks, command, covered_by, lines

PORTS = re.compile(r"((?:127\.0\.0\.1|localhost):|--port |--udp-port |http\.server |listen-on port )(\d{4,5})\b")
GOES_ON = re.compile(r"^(?P<command>.*[^&\s])\s*&\s*(?:#.*)?$")
PATIENCE = 240.0
READY = {
    ("psph", "gateway"): "is up",
    ("psph", "node"): "is up",
    ("psph", "net", "up"): "applications attach",
    ("psph", "hub"): "hub at",
    ("psph", "mqtt"): "MQTT at",
    ("psph", "feed"): "feed at",
    ("psph", "pub"): "56657273696f6e",
    ("psph", "demo"): "reached domain",
    ("python3",): "Serving",
    ("curl",): "following",
    ("named",): "running",
}
"""What serves, and what it prints when it does."""
StandIn = Callable[["PageRun", str], str]


def alike(text: str) -> list[str]:
    """Lines without what differs from run to run."""
    text = re.sub(r"[0-9a-f]{12,}", "H", text)
    return [" ".join(re.sub(r"\d[\d,.:]*", "N", line).split()) for line in text.splitlines() if line.strip()]


def says_when_ready(text: str) -> str | None:
    found = command(text)
    return next((said for words, said in READY.items() if found and found.words[: len(words)] == words), None)


class Background:
    """A process that goes on, and what it has said."""

    def __init__(self, words: list[str], folder: Path, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            words, cwd=folder, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self._said: list[str] = []
        self._ended = False
        self._news = threading.Condition()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                with self._news:
                    self._said.append(line)
                    self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    @property
    def said(self) -> str:
        with self._news:
            return "".join(self._said)

    def until(self, text: str) -> None:
        with self._news:
            self._news.wait_for(lambda: self._ended or any(text in line for line in self._said), PATIENCE)
            assert any(text in line for line in self._said), f"never said {text!r}:\n{''.join(self._said)}"

    def end(self) -> str:
        """Wait until it ends by itself."""
        code = self.process.wait(PATIENCE)
        self._listener.join(10)
        assert code == 0, f"{self.process.args} ended with {code}:\n{self.said}"
        return self.said

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        self._listener.join(10)


class PageRun:
    def __init__(self, page: Path, folder: Path, stand_ins: dict[str, StandIn] | None = None) -> None:
        self.page = page
        self.blocks = blocks(page)
        self.folder = folder / "page"
        self.left_out: list[str] = []
        """Blocks that this machine cannot run, with the reason."""
        self.background: list[Background] = []
        self._stand_ins = stand_ins or {}
        self._ports: dict[str, str] = {}
        self._namespace: str | None = None
        self._variables = folder / "variables"
        self._variables.touch()
        self.folder.mkdir()
        programs = folder / "bin"
        programs.mkdir()
        (programs / "psph").write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.documents.short "$@"\n')
        (programs / "psph").chmod(0o755)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "PSPH_"))},
            "PATH": os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"], "/usr/sbin"]),
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "COLUMNS": "160",
        }

    def run(self) -> int:
        """How many blocks of commands were run."""
        for block in self.blocks:
            if "file" in block.options:
                (self.folder / block.options["file"]).write_text(self.ported(block.body))
        ran, said = 0, ""
        try:
            if any("root" in block.options for block in self.blocks) and os.geteuid() == 0:
                self._enter_namespace()
            for block in self.blocks:
                if block.shell and covered_by(block, self.page) is None:
                    why_not = self._why_not(block)
                    if why_not is not None:
                        self.left_out.append(f"{why_not}: {block.body.strip()}")
                        said = ""
                        continue
                    ran += 1
                    said = self._run(block)
                elif block.language == "text" and "output" in block.options and (said or not self.left_out):
                    told = str.splitlines if block.options["output"] == "exact" else alike
                    missing = set(told(self.ported(block.body))) - set(told(said))
                    assert not missing, f"the page shows {missing}, and this was printed:\n{said}"
        finally:
            self.stop()
        return ran

    def stop(self) -> None:
        for one in reversed(self.background):
            one.stop()
        self.background.clear()
        if self._namespace is not None:
            subprocess.run(["ip", "netns", "delete", self._namespace], check=False)
            self._namespace = None

    def shell(self, script: str, *, expected: int = 0) -> str:
        whole = f"set -ae\n. {self._variables}\n{self.ported(script)}\nexport -p > {self._variables}"
        process = subprocess.Popen(
            self._where(["sh", "-c", whole]), cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            out, _ = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the shell and what it started
            process.communicate()
            raise AssertionError(f"{script}\ndid not end in {PATIENCE:g} seconds") from None
        assert process.returncode == expected, f"{script}\nended with {process.returncode}:\n{out}"
        return out

    def ported(self, text: str) -> str:
        text = text.replace(".venv/bin/", "")
        return PORTS.sub(lambda match: f"{match[1]}{self._port(match[2])}", text)

    def _run(self, block: Block) -> str:
        if "background" in block.options:
            one = self._start(block.body.strip())
            one.until(block.options["background"])
            return one.said
        said: list[str] = []
        finite: list[Background] = []
        expected = int(block.options.get("fails", "0"))
        steps = self._steps(block.body)
        for number, (kind, text) in enumerate(steps):
            if kind == "goes on":
                one = self._start(text)
                found = command(text.split("|")[-1])
                ready = [
                    word for words, word in READY.items() if found is not None and found.words[: len(words)] == words
                ]
                if ready:
                    one.until(ready[0])
                    said.append(one.said)
                else:
                    finite.append(one)
            elif kind == "stand-in":
                said.append(self._stand_ins[text.split()[0]](self, text))
            else:
                said.append(self.shell(text, expected=expected if number == len(steps) - 1 else 0))
        said += [one.end() for one in finite]
        return "".join(said)

    def _steps(self, script: str) -> list[tuple[str, str]]:
        steps: list[tuple[str, str]] = []
        for line in lines(script):
            goes_on = GOES_ON.match(line)
            if line.split()[0] in self._stand_ins:
                steps.append(("stand-in", line))
            elif goes_on:
                steps.append(("goes on", goes_on["command"]))
            elif steps and steps[-1][0] == "script":
                steps[-1] = ("script", f"{steps[-1][1]}\n{line}")
            else:
                steps.append(("script", line))
        return steps

    def _start(self, text: str) -> Background:
        whole = f"set -a\n. {self._variables}\nexec {self.ported(text)}"
        one = Background(self._where(["sh", "-c", whole]), self.folder, self.environment)
        self.background.append(one)
        return one

    def _why_not(self, block: Block) -> str | None:
        if "root" in block.options and self._namespace is None:
            return "needs root, and the command `ip`"
        for program in filter(None, block.options.get("needs", "").split(",")):
            if shutil.which(program, path=self.environment["PATH"]) is None:
                return f"{program} is not installed"
        return None

    def _enter_namespace(self) -> None:
        if shutil.which("ip") is None:
            return
        name = f"psphdoc{secrets.token_hex(3)}"
        if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0:
            self._namespace = name
            subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)

    def _where(self, words: list[str]) -> list[str]:
        return words if self._namespace is None else ["ip", "netns", "exec", self._namespace, *words]

    def _port(self, number: str) -> str:
        while number not in self._ports:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp, socket.socket() as tcp:
                udp.bind(("127.0.0.1", 0))
                free = udp.getsockname()[1]
                # One that UDP has free may be in use with TCP.
                with contextlib.suppress(OSError):
                    tcp.bind(("127.0.0.1", free))
                    self._ports[number] = str(free)
        return self._ports[number]
