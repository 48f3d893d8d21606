"""Runs a page of the documentation: writes its files, runs its commands in order, compares what it says they print.

What a fenced block is for stands behind its language:

    toml file=NAME              a file of the page, written before anything runs
    sh                          commands, run in order; they must succeed
    sh fails=N                  the same, and the last ends with code N
    sh background=TEXT          a command that goes on; the next block waits until it has printed TEXT
    sh covered=PATH::TEST       not run here: the named test does the same
    text output                 what the block before prints; numbers, ids and times may differ

Ports of 127.0.0.1 are replaced by free ones, so that a page can be run on any machine.
"""

import os
import re
import shlex
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
PORT = re.compile(r"127\.0\.0\.1:(\d{4,5})")
PATIENCE = 90.0
SHELLS = ("sh", "console", "bash", "shell")


@dataclass(frozen=True, slots=True)
class Block:
    language: str
    body: str
    options: dict[str, str] = field(default_factory=dict)


def blocks(page: Path) -> list[Block]:
    found = []
    for match in FENCE.finditer(page.read_text(encoding="utf-8")):
        language, *words = shlex.split(match["info"]) or [""]
        options = {name: value for name, _, value in (word.partition("=") for word in words)}
        found.append(Block(language, match["body"], options))
    return found


def covered_by(block: Block) -> str | None:
    """Which test stands for a block, when one does; it must exist."""
    name = block.options.get("covered")
    if name is not None:
        path, _, test = name.partition("::")
        assert f"def {test}(" in (ROOT / path).read_text(), f"{name} is no test"
    return name


def alike(text: str) -> list[str]:
    """Lines without what differs from run to run."""
    text = re.sub(r"[0-9a-f]{12,}", "H", text)
    return [" ".join(re.sub(r"\d[\d,.:]*", "N", line).split()) for line in text.splitlines() if line.strip()]


class PageRun:
    def __init__(self, page: Path, folder: Path) -> None:
        self.blocks = blocks(page)
        self.folder = folder
        self.ports: dict[str, str] = {}
        self.background: list[tuple[subprocess.Popen[str], threading.Thread]] = []
        binaries = Path(sys.executable).parent
        self.environment = {
            **os.environ,
            "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
            "PYTHONUNBUFFERED": "1",
        }

    def run(self) -> int:
        """How many blocks of commands were run."""
        for block in self.blocks:
            if "file" in block.options:
                (self.folder / block.options["file"]).write_text(self._ported(block.body))
        ran = 0
        said = ""
        try:
            for block in self.blocks:
                if block.language in SHELLS and covered_by(block) is None:
                    ran += 1
                    said = self._background(block) if "background" in block.options else self._foreground(block)
                elif block.language == "text" and "output" in block.options:
                    missing = set(alike(block.body)) - set(alike(said))
                    assert not missing, f"the page shows {missing}, and this was printed:\n{said}"
        finally:
            self.stop()
        return ran

    def stop(self) -> None:
        for process, _ in reversed(self.background):
            process.terminate()
        for process, listener in reversed(self.background):
            process.wait(30)
            listener.join(10)
        self.background.clear()

    def _foreground(self, block: Block) -> str:
        done = subprocess.run(
            ["sh", "-e", "-c", self._ported(block.body)],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        expected = int(block.options.get("fails", "0"))
        assert done.returncode == expected, f"{block.body}ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def _background(self, block: Block) -> str:
        process = subprocess.Popen(
            ["sh", "-c", f"exec {self._ported(block.body)}"],
            cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        said: list[str] = []
        news = threading.Condition()

        def listen() -> None:
            assert process.stdout is not None
            with process.stdout:
                for line in process.stdout:
                    with news:
                        said.append(line)
                        news.notify_all()

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        self.background.append((process, listener))
        with news:
            wanted = block.options["background"]
            assert news.wait_for(lambda: any(wanted in line for line in said), PATIENCE), f"{block.body}{''.join(said)}"
            return "".join(said)

    def _ported(self, text: str) -> str:
        return PORT.sub(lambda match: f"127.0.0.1:{self._port(match[1])}", text)

    def _port(self, number: str) -> str:
        if number not in self.ports:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp, socket.socket() as tcp:
                udp.bind(("127.0.0.1", 0))
                tcp.bind(("127.0.0.1", udp.getsockname()[1]))
                self.ports[number] = str(udp.getsockname()[1])
        return self.ports[number]
