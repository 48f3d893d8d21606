"""A process of this machine that a measurement or a crash run starts, kills and starts again."""

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

START_PATIENCE = 60.0
STOP_PATIENCE = 30.0
STDERR_KEPT = 4000


class ProcessFailedError(Exception):
    """A process did something that nobody asked of it: ended by itself, or did not start or stop."""


def children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def resident(pid: int) -> int:
    """Bytes of memory of a process; 0 when it is gone."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def resident_with_children(pid: int) -> int:
    return sum(map(resident, (pid, *children(pid))))


class Part:
    """One process that can be killed and started again on the same data."""

    def __init__(self, name: str, command: list[str], module: str = "gateway.cli.main") -> None:
        self.name = name
        self._module = module
        self.complaints: list[str] = []
        """What it wrote to stderr, in any of its lives."""
        self._command = command
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            self._module,
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def ready(self) -> str:
        """Wait until it says that it is up, and in which words."""
        process = self._running
        if process.stdout is None:
            raise ProcessFailedError(f"{self.name} has no output")
        try:
            async with asyncio.timeout(START_PATIENCE):
                line = await process.stdout.readline()
        except TimeoutError:
            raise ProcessFailedError(f"{self.name} was not up within {START_PATIENCE:g} seconds") from None
        if not line:
            _, errors = await process.communicate()
            said = errors.decode(errors="replace")[-STDERR_KEPT:]
            raise ProcessFailedError(f"{self.name} ended by itself with {process.returncode}: {said}")
        return line.decode(errors="replace")

    @property
    def pid(self) -> int:
        return self._running.pid

    async def kill(self) -> None:
        """kill -9, and wait for the end."""
        process = self._running
        if process.returncode is not None:
            raise ProcessFailedError(f"{self.name} had ended by itself with {process.returncode}")
        process.kill()
        _, errors = await process.communicate()
        self._note(errors)

    async def stop(self) -> None:
        """SIGTERM, and a graceful end is expected."""
        process = self._running
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_PATIENCE):
                _, errors = await process.communicate()
        except TimeoutError:
            raise ProcessFailedError(f"{self.name} did not stop within {STOP_PATIENCE:g} seconds") from None
        self._note(errors)
        if process.returncode != 0:
            said = errors.decode(errors="replace")[-STDERR_KEPT:]
            raise ProcessFailedError(f"{self.name} stopped with {process.returncode}: {said}")

    async def end(self) -> None:
        """Whatever happened, leave no process behind."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.communicate()

    def _note(self, errors: bytes) -> None:
        if errors.strip():
            self.complaints.append(errors.decode(errors="replace")[-STDERR_KEPT:])

    @property
    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise ProcessFailedError(f"{self.name} was not started")
        return self._process
