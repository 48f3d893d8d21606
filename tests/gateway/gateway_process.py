"""Gateways and nodes as processes of their own, as an operator runs them: a file, a command, lines on its output."""

import asyncio
import re
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
START_PATIENCE = 90.0
"""A busy machine takes long to start an interpreter."""
_CHAT = re.compile(r"^chat page of (\S+) at (\S+)chat/$")


class Process:
    """A command of `psph` that says when it is up."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.lines: list[str] = []

    @classmethod
    async def start(cls, *words: str, up: str) -> "Process":
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway.cli.main", *words, cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )
        one = cls(process)
        assert process.stdout is not None
        try:
            async with asyncio.timeout(START_PATIENCE):
                while not (one.lines and up in one.lines[-1]):
                    line = await process.stdout.readline()
                    assert line, f"psph {' '.join(words)} ended; it said {one.lines}"
                    one.lines.append(line.decode().rstrip("\n"))
        except BaseException:
            await one.kill()
            raise
        return one

    @property
    def web(self) -> str:
        """The address that it printed for people, without the slash at the end."""
        found = [match[2] for line in self.lines if (match := _CHAT.match(line))]
        assert found, self.lines
        return found[0].rstrip("/")

    async def kill(self) -> None:
        """kill -9, wherever it is."""
        if self._process.returncode is None:
            self._process.kill()
            await self._process.communicate()

    async def stop(self) -> None:
        if self._process.returncode is None:
            self._process.terminate()
            try:
                async with asyncio.timeout(20):
                    await self._process.communicate()
            except TimeoutError:
                await self.kill()
                raise


@asynccontextmanager
async def running(*words: str, up: str) -> AsyncIterator[Process]:
    process = await Process.start(*words, up=up)
    try:
        yield process
    finally:
        await process.stop()


def gateway_file(folder: Path, domain: str, network: Sequence[str], port: int = 0) -> Path:
    """A configuration with a chat page; `network` are the lines of [network] or [node]."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "gateway.toml"
    lines = ["[gateway]", f'name = "{domain}"', f'domain = "{domain}"', "[store]", 'path = "data"', "[hub]"]
    lines += ['listen = "127.0.0.1:0"', "[hub.canary]", "enabled = false", "[web]"]
    lines += [f'listen = "127.0.0.1:{port}"', "anyone_may_publish = true", *network]
    file.write_text("\n".join(lines) + "\n")
    return file


def node_lines(name: str, roles: Sequence[str], links: Sequence[tuple[int, int]], *, within: str = "") -> list[str]:
    """The lines of a node on UDP links, each from one port of this machine to another; `within` a larger file."""
    quoted = ", ".join(f'"{role}"' for role in roles)
    header, prefix = ([f"[{within}]"], f"{within}.") if within else ([], "")
    lines = [*header, f'name = "{name}"', f"roles = [{quoted}]", f"[{prefix}domain]", 'seed = "psph test"']
    lines += [f'{role} = ["between"]' for role in ("rendezvous", "topology")]
    lines += [f"[{prefix}times]", "hello = 0.1"]
    for here, there in links:
        lines += [f"[[{prefix}links]]", f'udp = "127.0.0.1:{here}"', f'peer = "127.0.0.1:{there}"']
    return lines


def free_udp_ports(number: int) -> list[int]:
    """Ports that were free a moment ago, all different."""
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(number)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
