"""Runs a page of the documentation: writes its files, runs its commands in order, compares what it says they print.

`pages.py` says how a page marks its blocks. A page has a folder of its own. A block is given to a shell as one, as when
a reader pastes it: what has to serve before the next line must say so itself (`psph ... --wait-ready`), nothing waits
for it here. What a line leaves with `&` has to end well by itself before its block is over; what goes on in the
background is ended with the page. Variables that a block sets are there in the next ones.

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
from types import SimpleNamespace

from tests.documents.pages import ROOT, Block, blocks, covered_by, lines
from tests.waiting import until_so

PORTS = re.compile(
    r"((?:127\.0\.0\.1|localhost):|--port |--udp-port |http\.server |listen-on port |SRV \d+ \d+ )(\d{4,5})\b"
)
GOES_ON = re.compile(r"^(?P<command>.*[^&\s])\s*&\s*(?:#.*)?$")
MARK = "PAGE_OF_THE_DOCUMENTATION"
"""In the environment of all that a page starts: which page that is."""
WENT_ON = re.compile(r"in the background: kill (\d+) stops it")
PATIENCE = 240.0
StandIn = Callable[["PageRun", str], str]


def alike(text: str) -> list[str]:
    """Lines without what differs from run to run."""
    text = re.sub(r"[0-9a-f]{12,}", "H", text)
    return [" ".join(re.sub(r"\d[\d,.:]*", "N", line).split()) for line in text.splitlines() if line.strip()]


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


class Detached:
    """A process that went to the background by itself (`--wait-ready`); it says more where its command has said it."""

    def __init__(self, pid: int, log: Path) -> None:
        self.process = SimpleNamespace(pid=pid, args=Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "))
        self._log = log

    @property
    def said(self) -> str:
        return self._log.read_text()

    def until(self, text: str) -> None:
        self._wait(lambda: text in self.said, f"never said {text!r}")

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGTERM)
        self._wait(lambda: not self._runs(), "does not end")

    def _runs(self) -> bool:
        try:
            return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    def _wait(self, holds: Callable[[], bool], complaint: str) -> None:
        until_so(holds, min(PATIENCE, 60), f"{self.process.args} {complaint}:\n{self.said}")


class PageRun:
    def __init__(self, page: Path, folder: Path, stand_ins: dict[str, StandIn] | None = None) -> None:
        self.page = page
        self.blocks = blocks(page)
        self.folder = folder / "page"
        self.left_out: list[str] = []
        """Blocks that this machine cannot run, with the reason."""
        self.background: list[Background | Detached] = []
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
            "EXAMPLES": str(ROOT / "examples"),
            MARK: secrets.token_hex(16),
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
        for environment in Path("/proc").glob("[0-9]*/environ"):  # what never became ready, in a session of its own
            with contextlib.suppress(OSError):
                if self.environment[MARK].encode() in environment.read_bytes():
                    os.kill(int(environment.parent.name), signal.SIGKILL)
        if self._namespace is not None:
            subprocess.run(["ip", "netns", "delete", self._namespace], check=False)
            self._namespace = None

    def shell(self, script: str, *, expected: int = 0) -> str:
        """Run lines as one; what they leave in the background with `&` has to end well."""
        kept: list[str] = []
        for line in lines(self.ported(script)):
            kept.append(line)
            if GOES_ON.match(line):
                kept.append('_left="$_left $!"')
        whole = "\n".join(
            ["set -ae", f". {self._variables}", "_left=", *kept, "for _one in $_left; do wait $_one; done"]
        )
        log = self.folder.parent / f"log-{len(list(self.folder.parent.glob('log-*')))}"
        with log.open("w") as out:
            process = subprocess.Popen(
                self._where(["bash", "-c", f"{whole}\nexport -p > {self._variables}"]),
                cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip
        try:
            code = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the shell and what it started
            process.wait()
            raise AssertionError(f"{script}\ndid not end in {PATIENCE:g} seconds:\n{log.read_text()}") from None
        finally:
            self.background += [Detached(int(found[1]), log) for found in WENT_ON.finditer(log.read_text())]
        assert code == expected, f"{script}\nended with {code}:\n{log.read_text()}"
        return log.read_text()

    def ported(self, text: str) -> str:
        text = text.replace(".venv/bin/", "")
        return PORTS.sub(lambda match: f"{match[1]}{self._port(match[2])}", text)

    def _run(self, block: Block) -> str:
        if "background" in block.options:
            one = self._start(block.body.strip())
            one.until(block.options["background"])
            return one.said
        said: list[str] = []
        expected = int(block.options.get("fails", "0"))
        steps = self._steps(block.body, alone=expected != 0)
        for number, (is_stand_in, text) in enumerate(steps):
            if is_stand_in:
                said.append(self._stand_ins[text.split()[0]](self, text))
            else:
                said.append(self.shell(text, expected=expected if number == len(steps) - 1 else 0))
        return "".join(said)

    def _steps(self, script: str, *, alone: bool) -> list[tuple[bool, str]]:
        """The block as one, but for what has a stand-in; `alone`: the last line by itself, because it is to fail."""
        steps: list[tuple[bool, str]] = []
        found = lines(script)
        for number, line in enumerate(found):
            is_stand_in = line.split()[0] in self._stand_ins
            last_alone = alone and number == len(found) - 1
            if steps and not is_stand_in and not steps[-1][0] and not last_alone:
                steps[-1] = (False, f"{steps[-1][1]}\n{line}")
            else:
                steps.append((is_stand_in, line))
        return steps

    def _start(self, text: str) -> Background:
        whole = f"set -a\n. {self._variables}\nexec {self.ported(text)}"
        one = Background(self._where(["bash", "-c", whole]), self.folder, self.environment)
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
