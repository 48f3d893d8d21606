"""A real hub in a process of its own, as an operator would run it: `psph hub`."""

import asyncio
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from storage.private import write_private_file

START_PATIENCE = 60.0
STOP_PATIENCE = 30.0
STDERR_KEPT = 4000
# These open the diagnostics and fat pings of a hub that lives for seconds on loopback.
OPERATOR_TOKEN = "operator"  # noqa: S105
PUBLISHER_TOKEN = "publisher"  # noqa: S105


class HubProcessError(Exception):
    """The hub did something that nobody asked of it: ended by itself, or did not start or stop."""


class HubProcess:
    """Start with `HubProcess.start`; then wait for `listening`, and end it with `kill` or `stop`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.started_at = time.monotonic()
        self.url = ""

    @classmethod
    async def start(cls, data: Path, options: Sequence[str] = ()) -> "HubProcess":
        """`data` is made if needed; beside it are files with the operator's and the publisher's token."""
        command = [sys.executable, "-m", "gateway.cli.main", "hub", "--port", "0", "--allow-private"]
        command += ["--data", str(data), "--operator-token-file", str(_token_beside(data, "operator", OPERATOR_TOKEN))]
        command += ["--publisher-token-file", str(_token_beside(data, "publisher", PUBLISHER_TOKEN)), *options]
        return await cls.run(command)

    @classmethod
    async def run(cls, command: Sequence[str]) -> "HubProcess":
        """Any program that says where it listens like the hub does, and ends at SIGTERM."""
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def listening(self) -> bool:
        """Wait until the hub says where it listens. False when it was killed before that."""
        if self._process.stdout is None:
            raise HubProcessError("the hub has no output")
        try:
            async with asyncio.timeout(START_PATIENCE):
                line = (await self._process.stdout.readline()).decode()
        except TimeoutError:
            self.kill()
            raise HubProcessError(f"the hub did not listen within {START_PATIENCE:g} seconds") from None
        if not line.startswith("hub at "):
            return False
        self.url = line.removeprefix("hub at ").strip()
        return True

    def kill(self) -> None:
        """kill -9, now. Does nothing when it has ended already."""
        if self._process.returncode is None:
            self._process.kill()

    async def killed(self) -> None:
        """Wait for the end. Raises `HubProcessError` when it was not our kill -9 that ended it."""
        _, errors = await self._process.communicate()
        if self._process.returncode != -signal.SIGKILL:
            said = errors.decode(errors="replace")[-STDERR_KEPT:]
            raise HubProcessError(f"the hub ended by itself with {self._process.returncode}: {said}")

    async def stop(self, *, may_complain: bool = False) -> None:
        """SIGTERM, and a graceful end is expected, without a word if it was given no reason for one."""
        if self._process.returncode is None:
            self._process.terminate()
        try:
            async with asyncio.timeout(STOP_PATIENCE):
                _, errors = await self._process.communicate()
        except TimeoutError:
            self.kill()
            await self._process.wait()
            raise HubProcessError(f"the hub did not stop within {STOP_PATIENCE:g} seconds") from None
        if self._process.returncode != 0 or (errors and not may_complain):
            said = errors.decode(errors="replace")[-STDERR_KEPT:]
            raise HubProcessError(f"the hub stopped with {self._process.returncode}: {said}")


def _token_beside(data: Path, whose: str, token: str) -> Path:
    data.mkdir(parents=True, exist_ok=True)
    file = data.parent / f"{data.name}.{whose}"
    write_private_file(file, token.encode())
    return file
