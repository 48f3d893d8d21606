"""Two gateways and the network between them, as processes that an operator would run: `psph gateway`, `psph node`.

gate-a ---- f1 ---- gate-b        every link is a pair of UDP ports on loopback; either forwarder may be away and
    |  \\    |   /    |            there still is a way
    |     core      |             core is rendezvous and topology manager
    +------ f2 -----+

Each gateway manages a zone whose topics have their hub elsewhere: `stock`, which knows nothing of gateways. Subscribers
of the other domain get these topics only by bootstrapping.
"""

import json
import secrets
import socket
from contextlib import ExitStack
from pathlib import Path

from perf.processes import Part

LINKS = (
    ("gate-a", "f1"),
    ("gate-a", "f2"),
    ("gate-b", "f1"),
    ("gate-b", "f2"),
    ("core", "f1"),
    ("core", "f2"),
)
GATEWAYS = ("gate-a", "gate-b")
NODES = ("core", "f1", "f2")
HELLO = 0.2
DOMAIN = 'domain = { rendezvous = ["core"], topology = ["core"] }\n'
LEASE = 3.0
STOCK = "stock"
ZONES = {"gate-a": "bookspsirp.org", "gate-b": "feedspsirp.com"}
"""What each gateway manages."""
REQUEST_LEASE = 12
"""Seconds that a gateway asks another zone's manager for: renewed often, and over when it is away for long."""
UPSTREAM_LEASE = 12
"""Seconds that the stock hub grants."""


def host_in(zone: str) -> str:
    """Where the zone's topics are. The gateways are told in their configuration that it is this machine."""
    return f"news.{zone}"


class GatewayProcesses:
    """All processes, their configurations written to `folder`."""

    def __init__(self, folder: Path) -> None:
        host = _own_address()
        free = iter(free_ports(host, 2 * len(LINKS) + len(GATEWAYS) + 1))
        links: dict[str, list[str]] = {name: [] for name in (*GATEWAYS, *NODES)}
        for one, other in LINKS:
            ports = next(free), next(free)
            for name, (own, peer) in ((one, ports), (other, ports[::-1])):
                links[name].append(f'{{ udp = "{host}:{own}", peer = "{host}:{peer}" }}')
        hosts = ", ".join(f'"{host_in(zone)}" = "127.0.0.1"' for zone in ZONES.values())
        self.hubs: dict[str, str] = {}
        self.all: dict[str, Part] = {}
        for name in (*NODES, *GATEWAYS):
            inside = f"links = [{', '.join(links[name])}]\n"
            times = f"times = {{ hello = {HELLO}, lease = {LEASE} }}\n{DOMAIN}"
            file = folder / f"{name}.toml"
            if name in GATEWAYS:
                address = f"{host}:{next(free)}"
                self.hubs[name] = f"http://{address}/"
                file.write_text(
                    f"[gateway]\nname = {json.dumps(name)}\nzones = {json.dumps([ZONES[name]])}\n"
                    f"[store]\npath = {json.dumps(name)}\n[bootstrapping]\nlease = {REQUEST_LEASE}\n"
                    f'[hub]\nlisten = "{address}"\nallow_private = true\ncanary = {{ enabled = false }}\n'
                    f"hosts = {{ {hosts} }}\n"
                    f"[node]\nname = {json.dumps(name)}\n{inside}{times}"
                )
            else:
                roles = '["rendezvous", "topology"]' if name == "core" else "[]"
                file.write_text(
                    f'name = "{name}"\nroles = {roles}\ndata = "{name}"\nsocket = "{name}.sock"\n{inside}{times}'
                )
            self.all[name] = Part(name, ["gateway" if name in GATEWAYS else "node", "-c", str(file)])
        address = f"{host}:{next(free)}"
        self.stock_hub = f"http://{address}/"
        self.stock_data = folder / f"{STOCK}.sqlite"
        command = [address, str(self.stock_data), str(UPSTREAM_LEASE)]
        self.all[STOCK] = Part(STOCK, command, "trials.crash.stock_hub")

    async def start(self) -> None:
        for part in self.all.values():
            await part.start()
        for part in self.all.values():
            await part.ready()

    async def stop(self) -> None:
        for name in (*GATEWAYS, STOCK, *NODES):
            await self.all[name].stop()

    async def end(self) -> None:
        for part in self.all.values():
            await part.end()


def _own_address() -> str:
    """An address of loopback for this run alone: a killed process must find its port free again, and connections that
    others make meanwhile come from 127.0.0.1."""
    return f"127.{1 + secrets.randbelow(254)}.{secrets.randbelow(256)}.{1 + secrets.randbelow(254)}"


def free_ports(host: str, count: int) -> list[int]:
    """Ports that nobody has now, for UDP and TCP alike; held all at once so that none comes twice."""
    with ExitStack() as stack:
        ports: list[int] = []
        while len(ports) < count:
            tcp = stack.enter_context(socket.socket())
            tcp.bind((host, 0))
            udp = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
            try:
                udp.bind(tcp.getsockname())
            except OSError:
                continue
            ports.append(tcp.getsockname()[1])
        return ports
