"""The systems that `psph bench ingest` compares, as processes, and the CPU that each of their parts takes."""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from perf.bench.family import BenchError
from perf.hub_process import PUBLISHER_TOKEN
from perf.processes import Part, ProcessFailedError, children, resident_with_children
from storage.private import write_private_file

BARE = "bare loop"
HUB = "hub"
GATEWAY = "gateway"
LOOP, STORE, THREADS, PARSERS, NODES = "loop", "store", "threads", "parsers", "nodes"
_DOMAIN = '[{0}domain]\nopen = true\nrendezvous = ["{1}"]\ntopology = ["{1}"]\n'


def hops(count: int) -> str:
    return f"crossing, {count} hop{'s' if count > 1 else ''}"


@dataclass(slots=True)
class IngestSystem:
    """`publish_at` and `subscribe_at`: addresses of hubs. `parts`: its processes, by what they are."""

    name: str
    publish_at: str
    subscribe_at: str
    parts: list[Part]

    def cpu(self) -> dict[str, float]:
        """Seconds so far, by stage: the event loops, the threads that write to stores, others, and parsers."""
        total: dict[str, float] = {}
        for part in self.parts:
            is_node = part.name.startswith("node")
            for stage, seconds in cpu_of(part.pid).items():
                place = NODES if is_node else stage
                total[place] = total.get(place, 0.0) + seconds
        return total

    def resident(self) -> int:
        """Bytes, of all processes."""
        return sum(resident_with_children(part.pid) for part in self.parts)


def cpu_of(pid: int) -> dict[str, float]:
    """By thread, as the kernel counts in nanoseconds; what its children took is the parsers'."""
    found = dict.fromkeys((LOOP, STORE, THREADS, PARSERS), 0.0)
    for thread, name, seconds in _threads(pid):
        stage = LOOP if thread == pid else STORE if name.startswith("storage") else THREADS
        found[stage] += seconds
    for child in children(pid):
        found[PARSERS] += sum(seconds for _, _, seconds in _threads(child))
    return found


def _threads(pid: int) -> Iterator[tuple[int, str, float]]:
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - names are enough
            with suppress(OSError):
                folder = Path(f"/proc/{pid}/task/{thread}")
                yield (
                    int(thread),
                    (folder / "comm").read_text(),
                    int((folder / "schedstat").read_text().split()[0]) / 1e9,
                )


class IngestSystems:
    """Starts processes below `folder`; `stack` ends them."""

    def __init__(self, folder: Path, stack: AsyncExitStack, traces: Path | None = None) -> None:
        """`traces`: gateways leave their parts of one run below it, which has its name."""
        self._traces = "" if traces is None else f'[traces]\ndirectory = "{traces}"\nrun = "{traces.name}"\n'
        self._folder = folder
        self._stack = stack
        self._tokens = folder / "publishers"
        write_private_file(self._tokens, f"{PUBLISHER_TOKEN}\n".encode())

    async def start(self, name: str) -> IngestSystem:
        folder = self._folder / name.replace(" ", "-").replace(",", "")
        folder.mkdir()
        if name == BARE:
            bare = Part(BARE, [str(folder)], "perf.bench.ingest_bare")
            address = await self._up(bare)
            return IngestSystem(name, address, address, [bare])
        if name == HUB:
            command = ["hub", "--port", "0", "--data", str(folder / "hub"), "--allow-private", "--no-canary"]
            hub = Part(HUB, [*command, "--publisher-token-file", str(self._tokens)])
            address = await self._up(hub)
            return IngestSystem(name, address, address, [hub])
        return await self._line(name, folder, 0 if name == GATEWAY else int(name.split()[1]))

    async def _line(self, name: str, folder: Path, count: int) -> IngestSystem:
        """Gateways at both ends of a line of nodes with so many links; without links, one gateway."""
        ports = free_udp_ports(2 * count)
        links: list[list[tuple[int, int]]] = [[] for _ in range(count + 1)]
        for number in range(count):
            here, there = ports[2 * number], ports[2 * number + 1]
            links[number].append((here, there))
            links[number + 1].append((there, here))
        middle = f"n{count // 2}"
        parts: list[Part] = []
        ends: list[str] = []
        for number, ends_of_links in enumerate(links):
            roles = '["rendezvous", "topology"]' if f"n{number}" == middle else "[]"
            is_end = number in (0, count)
            prefix = "node." if is_end else ""
            said = "".join(
                f'[[{prefix}links]]\nudp = "127.0.0.1:{here}"\npeer = "127.0.0.1:{there}"\n'
                for here, there in ends_of_links
            )
            file = folder / f"n{number}.toml"
            if is_end:
                file.write_text(
                    f'[gateway]\nname = "gate-{number}"\n[store]\npath = "gate-{number}"\n'
                    '[hub]\nlisten = "127.0.0.1:0"\nallow_private = true\ncanary = { enabled = false }\n'
                    f'publisher_tokens_file = "{self._tokens}"\n{self._traces}'
                    f'[node]\nname = "n{number}"\nroles = {roles}\n{_DOMAIN.format(prefix, middle)}{said}'
                )
                part = Part(f"gateway {number}", ["gateway", "-c", str(file)])
                ends.append(await self._up(part))
            else:
                own = f'name = "n{number}"\nroles = {roles}\ndata = "node-{number}"\n'
                file.write_text(f"{own}{_DOMAIN.format(prefix, middle)}{said}")
                part = Part(f"node {number}", ["node", "-c", str(file)])
                await self._up(part)
            parts.append(part)
        return IngestSystem(name, ends[0], ends[-1], parts)

    async def _up(self, part: Part) -> str:
        self._stack.push_async_callback(part.end)
        try:
            await part.start()
            return (await part.ready()).removeprefix("hub at ").strip()
        except ProcessFailedError as error:
            raise BenchError(str(error)) from None


def free_udp_ports(count: int) -> Sequence[int]:
    """Ports that are free now; links name those of both ends, so they cannot ask for port 0."""
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
