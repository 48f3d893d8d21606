"""Checks of the machine that a gateway runs on: ports, rights, clock, names. Each is tested on a machine that fails."""

import ctypes
import errno
import os
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import dns.exception
import dns.resolver

from gateway.admin.config import AdminConfig, is_loopback
from gateway.gateway import GatewayConfig
from gateway.operations.findings import Finding, bad, doubtful, good, unknown
from gateway.operations.stores import stores_below
from gateway.words import counted
from psirp_stack.node.config import LinkFile
from storage.private import OTHERS

PORTS = "ports"
ADMIN = "admin"
PERMISSIONS = "permissions"
CLOCK = "clock"
NAMES = "names"
SPACE = "space"

FUTURE_TOLERANCE = 120.0
"""Seconds that a file may be younger than now; clocks of network disks differ a little."""
LEAST_FREE_BYTES = 256 * 1024 * 1024
LOW_FREE_PART = 0.05
NAME_LIFETIME = 5.0
STA_UNSYNC = 0x40
ETHERTYPE = 0xACDC


@dataclass(frozen=True, slots=True)
class CheckedPort:
    what: str
    host: str
    number: int
    udp: bool = False

    def __str__(self) -> str:
        return f"{self.what} ({self.host} port {self.number}{', UDP' if self.udp else ''})"

    def collides(self, other: "CheckedPort") -> bool:
        """Whether both cannot be listened on: one of them may be all addresses of the machine."""
        if (self.number, self.udp) != (other.number, other.udp) or self.number == 0:
            return False
        hosts = {self.host, other.host}
        return len(hosts) == 1 or "::" in hosts or ("0.0.0.0" in hosts and not any(":" in host for host in hosts))  # noqa: S104


def ports_of(config: GatewayConfig) -> list[CheckedPort]:
    doors = [door for one in config.on for door in one.listening(one.of(config.protocols))]
    ports = [CheckedPort(door.what, door.host, door.port, door.udp) for door in doors]
    if config.web is not None:
        ports.append(CheckedPort("the web page", config.web.host, config.web.port))
    if config.admin is not None:
        ports.append(CheckedPort("the admin port", config.admin.host, config.admin.port))
    return ports


def check_ports(ports: Iterable[CheckedPort], *, running: bool) -> Iterator[Finding]:
    """With `running`, the gateway itself is expected to hold them."""
    ports = list(ports)
    for place, port in enumerate(ports):
        for other in ports[:place]:
            if port.collides(other):
                fix = f"give {port.what} or {other.what} another port in the configuration"
                yield bad(PORTS, f"{other} and {port} are the same: only one can have it", fix)
    for port in ports:
        trouble = _bind(port)
        if trouble is None:
            if running and port.number:
                yield bad(
                    PORTS, f"{port}: nobody listens, although the gateway runs", "look at what it says, restart it"
                )
            else:
                yield good(PORTS, f"{port}: free")
        elif trouble == errno.EADDRINUSE and running:
            yield good(PORTS, f"{port}: in use, as it should be while the gateway runs")
        elif trouble == errno.EADDRINUSE:
            flag = "-u" if port.udp else "-t"
            yield bad(
                PORTS, f"{port}: another program has it", f"find it with `ss -lpn {flag}`, or choose another port"
            )
        elif trouble == errno.EADDRNOTAVAIL:
            yield bad(
                PORTS, f"{port}: this machine has no such address", "choose one that `ip address` shows, or 0.0.0.0"
            )
        elif trouble in (errno.EACCES, errno.EPERM):
            yield bad(
                PORTS,
                f"{port}: ports below 1024 are not for this user",
                "choose a higher port and redirect, or give CAP_NET_BIND_SERVICE",
            )
        else:
            yield bad(PORTS, f"{port}: {os.strerror(trouble)}", "choose another address")


def check_admin(config: AdminConfig | None) -> Iterator[Finding]:
    """Tokens of the admin port must not be readable on the way."""
    if config is None or is_loopback(config.host):
        return
    if config.tls is None:
        fix = "set [admin.tls], or listen on 127.0.0.1 behind a proxy that speaks TLS"
        yield doubtful(ADMIN, f"{config.host} port {config.port}: tokens travel in the clear", fix)
    else:
        yield good(ADMIN, f"{config.host} port {config.port}: tokens travel encrypted")


def _bind(port: CheckedPort) -> int | None:
    family = socket.AF_INET6 if ":" in port.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM if port.udp else socket.SOCK_STREAM) as probe:
        if not port.udp:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((port.host, port.number))
            if not port.udp:
                probe.listen(1)
        except OSError as error:
            return error.errno or errno.EINVAL
    return None


def check_permissions(data: Path, links: Iterable[LinkFile]) -> Iterator[Finding]:
    place = _nearest(data)
    user = os.geteuid()
    if not place.is_dir():
        yield bad(
            PERMISSIONS, f"{place} is no directory", f"move it away, or set store.path to something else than {data}"
        )
    elif place != data and not os.access(place, os.W_OK | os.X_OK):
        fix = f"as root: install -d -o {user} {data}, and let the user pass through what is above it"
        yield bad(PERMISSIONS, f"{data}: not there, and user {user} may make nothing in {place}", fix)
    elif not os.access(place, os.R_OK | os.W_OK | os.X_OK):
        yield bad(PERMISSIONS, f"{place}: user {user} may not write there", f"as root: chown -R {user} {place}")
    else:
        yield good(PERMISSIONS, f"{data}: user {user} may write there")
        yield from _private(data)
    for link in links:
        if link.ethernet is not None:
            yield _ethernet(link.ethernet)


def _nearest(place: Path) -> Path:
    """The place itself, or what is there on the way to it and may be seen."""
    while not os.path.exists(place) and place != place.parent:  # noqa: PTH110  (Path.exists raises without rights)
        place = place.parent
    return place


def _private(data: Path) -> Iterator[Finding]:
    if not data.exists():
        return
    if data.stat().st_mode & OTHERS:
        yield doubtful(PERMISSIONS, f"{data}: others on this machine may look inside", f"chmod 700 {data}")
    try:
        foreign = [store.path for store in stores_below(data) if not os.access(store.path, os.R_OK | os.W_OK)]
    except OSError as error:
        yield bad(PERMISSIONS, f"{data}: {error}", f"as root: chown -R {os.geteuid()} {data}")
        return
    for path in foreign:
        yield bad(PERMISSIONS, f"{path}: not for user {os.geteuid()}", f"as root: chown -R {os.geteuid()} {data}")


def _ethernet(interface: str) -> Finding:
    try:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERTYPE)) as probe:
            probe.bind((interface, 0))
    except PermissionError:
        fix = (
            "give the program CAP_NET_RAW (in its unit with AmbientCapabilities=, in compose as "
            "deploy/compose/raw-ethernet.yml does it), or use UDP links"
        )
        return bad(PERMISSIONS, f"{interface}: raw Ethernet is not for this user", fix)
    except OSError as error:
        return bad(
            PERMISSIONS, f"{interface}: {error.strerror}", "name an interface that `ip link` shows, and that is up"
        )
    return good(PERMISSIONS, f"{interface}: raw Ethernet can be used")


def check_space(data: Path) -> Iterator[Finding]:
    place = _nearest(data)
    usage = shutil.disk_usage(place)
    text = f"{place}: {usage.free // (1024 * 1024):,} MiB free"
    fix = "free some, or lower limits.kept_bytes and limits.kept_age"
    if usage.free < LEAST_FREE_BYTES:
        yield bad(SPACE, text, fix)
    elif usage.free < usage.total * LOW_FREE_PART:
        yield doubtful(SPACE, text, fix)
    else:
        yield good(SPACE, text)


def kernel_synchronised() -> bool | None:
    """Whether the kernel says that something keeps its clock right; None where it does not say."""
    try:
        # struct timex is 208 bytes on 64-bit Linux; `status` is the int after modes, offset, freq and two errors.
        buffer = ctypes.create_string_buffer(256)
        if ctypes.CDLL(None, use_errno=True).adjtimex(buffer) < 0:
            return None
        return not int.from_bytes(buffer.raw[40:44], "little", signed=True) & STA_UNSYNC
    except (AttributeError, OSError):
        return None


def check_clock(
    data: Path, now: float, synchronised: Callable[[], bool | None] = kernel_synchronised
) -> Iterator[Finding]:
    """Leases, signatures and boot numbers need a clock that is about right and does not go back."""
    newest = max((store.path.stat().st_mtime for store in stores_below(data)), default=0.0) if data.exists() else 0.0
    if newest > now + FUTURE_TOLERANCE:
        yield bad(
            CLOCK,
            f"the store was last written {newest - now:,.0f} seconds in the future: the clock went back",
            "set the clock (chronyc makestep, or timedatectl set-ntp true) before the gateway starts",
        )
    state = synchronised()
    if state is None:
        yield unknown(CLOCK, "the kernel does not say whether its clock is kept right")
    elif state:
        yield good(CLOCK, "the kernel's clock is kept right")
    else:
        yield doubtful(
            CLOCK,
            "nothing that the kernel knows of keeps the clock right",
            "install chrony or enable systemd-timesyncd; in a container, on the host",
        )


def check_names(config: GatewayConfig, resolver: dns.resolver.Resolver | None = None) -> Iterator[Finding]:
    """The names that other machines need, as the name service of this machine knows them."""
    if resolver is None:
        try:
            resolver = dns.resolver.Resolver()
        except dns.exception.DNSException as error:
            yield bad(NAMES, f"no name server is configured ({error})", "put one into /etc/resolv.conf")
            return
    resolver.lifetime = NAME_LIFETIME
    host = urlsplit(config.hub.public_url).hostname if config.hub.public_url else None
    if host is None:
        yield unknown(NAMES, "hub.public_url is not set: subscribers elsewhere are told the listening address")
    else:
        yield from _address(host)
    for domain in dict.fromkeys((*config.zones, *([config.domain] if config.domain else []))):
        yield _service(domain, resolver, config.hub.port)


def _address(host: str) -> Iterator[Finding]:
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError as error:
        yield bad(NAMES, f"{host} (hub.public_url): {error.strerror}", "give it an address record, or correct the name")
        return
    yield good(NAMES, f"{host} is {', '.join(sorted(found))}")


def _service(domain: str, resolver: dns.resolver.Resolver, port: int) -> Finding:
    name = f"_psirp._tcp.{domain}"
    try:
        answer = resolver.resolve(name, "SRV")
    except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
        fix = f"add `{name}. IN SRV 0 0 {port or 8080} YOUR-HOST.`, if others are to find this gateway by its domain"
        return doubtful(NAMES, f"{name}: no service record", fix)
    except dns.exception.DNSException as error:
        text = f"{name}: the name service did not answer ({type(error).__name__})"
        return bad(NAMES, text, "look at /etc/resolv.conf, and whether port 53 is let through")
    return good(NAMES, f"{name}: {counted(len(answer), 'gateway')}")
