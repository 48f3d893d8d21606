"""The world of one attack: a hub, or two gateways and a node, in namespaces of their own, with an innocent user.

    hub:      router -- hub, user, stranger
    gateway:  the same, the hub being a gateway, and beside it

              hub ===== UDP ===== core ===== raw Ethernet ===== far          (far: the gateway of the other domain)

Both wires run through the namespace of the stranger, who hears and says on them what they like. The address guard is
on, so all addresses are ones that it takes for public.
"""

import asyncio
import json
import os
import signal
import sqlite3
from collections.abc import Sequence
from contextlib import AsyncExitStack, closing, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from trials.attack.namespaces import ROUTER, RoutedNamespaces
from trials.attack.networks import TrialDomain, configurations, make_domain, publisher_key
from trials.attack.places import (
    HUB,
    INSIDE,
    INSIDE_PORT,
    OTHER_HUB,
    PUBLISHER,
    READER,
    STRANGER,
    STRANGERS,
    WIRE_ENDS,
)
from trials.attack.stranger import Attack, Victim
from trials.settable_clock import SettableClock

START_PATIENCE = 60.0
STOP_PATIENCE = 20.0
ANSWER_PATIENCE = 30.0
LOG_SHOWN = 1500
OPEN = "--open"
"""Instead of options of the hub's command: a domain without a secret, where attacks are to succeed."""
PSPH = "gateway.cli.main"
SETTABLE = "trials.settable_clock"
ROWS = "SELECT (SELECT count(*) FROM subscriptions) + (SELECT count(*) FROM verifications)"


class WorldError(RuntimeError):
    """A process did not start, or ended although nobody asked it to."""


class NamespaceProcess:
    """One process in a namespace: lines to it and from it, its complaints in a file."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        self._command = command
        self._log = log
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=16 << 20,
            )

    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def alive(self) -> bool:
        return self._running.returncode is None

    async def line(self, patience: float = START_PATIENCE) -> str:
        stdout = self._running.stdout
        if stdout is None:
            raise WorldError(f"{self.name} has no output")
        try:
            async with asyncio.timeout(patience):
                line = await stdout.readline()
        except TimeoutError:
            raise WorldError(f"{self.name} said nothing for {patience:g} seconds\n{self.complaints}") from None
        if not line:
            raise WorldError(f"{self.name} ended by itself\n{self.complaints}")
        return line.decode().strip()

    async def rest(self) -> list[str]:
        """All that it said until its end and nobody read."""
        if self._running.stdout is None:
            return []
        return (await self._running.stdout.read()).decode().splitlines()

    async def say(self, text: str) -> None:
        stdin = self._running.stdin
        if stdin is None:
            raise WorldError(f"{self.name} has no input")
        with suppress(ConnectionError):  # it ended; whoever waits for its answer is told
            stdin.write(f"{text}\n".encode())
            await stdin.drain()

    @property
    def complaints(self) -> str:
        return self._log.read_text(errors="replace")[-LOG_SHOWN:]

    async def stop(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_PATIENCE):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    @property
    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise WorldError(f"{self.name} was not started")
        return self._process


class AttackWorld:
    """Use as `async with AttackWorld(...) as world`; everything in it is gone afterwards."""

    def __init__(self, folder: Path, attack: Attack) -> None:
        self._folder = folder
        self._attack = attack
        self._victim = attack.victim
        self._options = attack.options
        self._domain = TrialDomain.SIGNED if attack.victim is Victim.MEMBERS else TrialDomain.SEALED
        if OPEN in attack.options:
            self._domain = TrialDomain.OPEN
        self._stack = AsyncExitStack()
        self.namespaces = RoutedNamespaces(folder)
        self.victims: list[NamespaceProcess] = []
        self.data = folder / "data"

    async def __aenter__(self) -> Self:
        try:
            self._stack.enter_context(self.namespaces)
            self._inhabit()
            await self._run(ROUTER, "trials.attack.name_server")
            self._inside = await self._run(
                "hub", "trials.attack.inside", *(f"{address}:{INSIDE_PORT}" for address in INSIDE)
            )
            self.data.mkdir()
            sockets = await (self._start_hub() if self._victim is Victim.HUB else self._start_gateways())
            self.innocent = await self._run("user", "trials.attack.innocent", *sockets)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def phase(self, name: str) -> None:
        await self.innocent.say(name)

    async def felt(self, outstanding: float) -> dict[str, Any]:
        """End the innocent user's part, and say what it felt; what takes longer than these seconds is lost."""
        await self.innocent.say(f"end {outstanding}")
        found: dict[str, Any] = json.loads(await self.innocent.line(outstanding + ANSWER_PATIENCE))
        return found

    async def attack(self, name: str, seconds: float, patience: float) -> dict[str, Any]:
        words = [name, str(seconds)]
        if self._domain is TrialDomain.SIGNED or self._attack.sets_clock:
            words.append(str(self.data))
        process = NamespaceProcess(
            "the attack", self.namespaces.command("stranger", "trials.attack", *words), self._log("attack")
        )
        await process.start()
        try:
            found: dict[str, Any] = json.loads(await process.line(patience))
        finally:
            await process.stop()
        return found

    async def reached_inside(self) -> list[str]:
        """What reached the service that nobody may reach."""
        await self._inside.stop()
        return await self._inside.rest()

    @property
    def memory(self) -> int:
        """Bytes of all attacked processes and their children; what they share counts once."""
        return sum(proportional_size(pid) for one in self.victims if one.alive for pid in with_children(one.pid))

    @property
    def disk(self) -> int:
        """Bytes that the attacked ones have on disk."""
        total = 0
        for place, _, files in os.walk(self.data):
            for file in files:
                with suppress(FileNotFoundError):
                    total += (Path(place) / file).lstat().st_blocks * 512
        return total

    @property
    def rows(self) -> int:
        """Subscriptions, and requests for some, that the attacked one has on disk."""
        (store,) = (self.data / "hub").rglob("hub.sqlite")
        with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
            (found,) = connection.execute(ROWS).fetchone()
        return int(found)

    def _inhabit(self) -> None:
        spaces = self.namespaces
        spaces.inhabit("hub", [HUB])
        for address in INSIDE[:-1]:
            spaces.add_inner("hub", address)
        spaces.inhabit("user", [PUBLISHER, READER])
        spaces.inhabit("stranger", [STRANGER], [STRANGERS])
        if self._victim is not Victim.HUB:
            spaces.inhabit("far", [OTHER_HUB])
            spaces.inhabit("core", [CORE_ADDRESS])
            spaces.wire("hub", "core", "stranger")
            spaces.wire("core", "far", "stranger")
            spaces.address("hub", "core", f"{WIRE_ENDS[0]}/24")
            spaces.address("core", "hub", f"{WIRE_ENDS[1]}/24")

    async def _start_hub(self) -> list[str]:
        words = [
            "hub",
            "--host",
            HUB,
            "--port",
            "80",
            "--public-url",
            f"http://{HUB}/",
            "--data",
            str(self.data / "hub"),
        ]
        if self._attack.sets_clock:
            clock = SettableClock(self.data)
            self.victims.append(await self._run("hub", SETTABLE, str(clock.file), *words, *self._options))
        else:
            self.victims.append(await self._run("hub", PSPH, *words, *self._options))
        return []

    async def _start_gateways(self) -> list[str]:
        make_domain(self.data, self._domain)
        for name, file in configurations(self._domain, self._attack.sections).items():
            path = self.data / f"{name}.toml"
            path.write_text(file)
            self.victims.append(await self._run(name, PSPH, "node" if name == "core" else "gateway", "-c", str(path)))
        sockets = [str(self.data / name / "node.sock") for name in ("hub", "far")]
        return [*sockets, publisher_key(self.data)] if self._domain is TrialDomain.SIGNED else sockets

    async def _run(self, place: str, module: str, *words: str) -> NamespaceProcess:
        name = words[0] if module == PSPH else module
        log = self._log(f"{place}-{name}")
        process = NamespaceProcess(name, self.namespaces.command(place, module, *words), log)
        await process.start()
        self._stack.push_async_callback(process.stop)
        await process.line()
        return process

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"


CORE_ADDRESS = "9.30.0.1"


def with_children(pid: int) -> list[int]:
    found = [pid]
    for one in found:
        with suppress(FileNotFoundError, ProcessLookupError):
            found += [int(child) for child in Path(f"/proc/{one}/task/{one}/children").read_text().split()]
    return found


def proportional_size(pid: int) -> int:
    with suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
