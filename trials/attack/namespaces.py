"""Network namespaces that lead to each other and nowhere else: a router in the middle, wires through third hands."""

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from trials.attack.places import NAME_SERVER

ROUTER = "router"


class NoNamespacesError(RuntimeError):
    """They cannot be made here; the text says why."""


def why_not() -> str | None:
    """Why there can be no namespaces here; None: there can."""
    if os.geteuid() != 0:
        return "needs root to make network namespaces"
    if shutil.which("ip") is None:
        return "needs the `ip` command (Debian package iproute2)"
    return None


def run_ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=20, check=False)  # noqa: S603, S607
    if done.returncode:
        raise NoNamespacesError(f"ip {' '.join(words)}: {done.stderr.strip()}")


class RoutedNamespaces:
    """Each inhabitant has its addresses and a cable to the router, and looks names up there."""

    def __init__(self, folder: Path) -> None:
        self._prefix = f"attack{secrets.token_hex(3)}"
        self._made: list[str] = []
        self._resolver = folder / "resolv.conf"
        self._resolver.write_text(f"nameserver {NAME_SERVER}\noptions timeout:2 attempts:2\n")

    def __enter__(self) -> Self:
        if (reason := why_not()) is not None:
            raise NoNamespacesError(reason)
        try:
            self._make(ROUTER)
            self._in(ROUTER, "addr", "add", f"{NAME_SERVER}/32", "dev", "lo")
            self._set(ROUTER, "ip_forward")
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def inhabit(self, name: str, addresses: Iterable[str], networks: Iterable[str] = ()) -> None:
        """`networks`: every address of these is this inhabitant's as well; they come by way of the first address."""
        addresses = list(addresses)
        self._make(name)
        far = ("netns", self.name(name), "type", "veth", "peer", "name", name, "netns", self.name(ROUTER))
        run_ip("link", "add", "eth0", *far)
        self._in(ROUTER, "link", "set", name, "up")
        self._in(name, "link", "set", "eth0", "up")
        for address in addresses:
            self._in(name, "addr", "add", f"{address}/32", "dev", "eth0")
            self._in(ROUTER, "route", "add", f"{address}/32", "dev", name)
        self._in(name, "route", "add", "default", "via", NAME_SERVER, "dev", "eth0", "onlink", "src", addresses[0])
        for network in networks:
            self._in(name, "route", "add", "local", network, "dev", "lo")
            self._in(ROUTER, "route", "add", network, "via", addresses[0], "dev", name, "onlink")

    def add_inner(self, name: str, address: str) -> None:
        """An address that only this inhabitant has."""
        self._in(name, "addr", "add", f"{address}/32", "dev", "lo")

    def wire(self, one: str, other: str, through: str) -> None:
        """A cable between two, in the hands of a third: what comes in at one end goes out at the other, and is heard.

        In the ends' namespaces the interface is called like the other end; in between `ONE-OTHER` is the bridge.
        """
        bridge = f"{one}-{other}"
        run_ip("-n", self.name(through), "link", "add", bridge, "type", "bridge", "forward_delay", "0")
        for end, far in ((one, other), (other, one)):
            run_ip("link", "add", far, "netns", self.name(end), "type", "veth",
                   "peer", "name", f"{bridge}-{end}", "netns", self.name(through))  # fmt: skip
            self._in(through, "link", "set", f"{bridge}-{end}", "master", bridge, "up")
            self._in(end, "link", "set", far, "up")
        self._in(through, "link", "set", bridge, "up")

    def address(self, name: str, interface: str, address: str) -> None:
        """Of an end of a wire, with the length of its prefix."""
        self._in(name, "addr", "add", address, "dev", interface)

    def command(self, name: str, module: str, *words: str) -> list[str]:
        """What runs a Python module there, with the names of this world."""
        enter = ["ip", "netns", "exec", self.name(name)]
        bind = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
        return [*enter, "sh", "-c", bind, str(self._resolver), sys.executable, "-m", module, *words]

    def name(self, inhabitant: str) -> str:
        return f"{self._prefix}-{inhabitant}"

    def _make(self, name: str) -> None:
        run_ip("netns", "add", self.name(name))
        self._made.append(self.name(name))
        self._in(name, "link", "set", "lo", "up")

    def _in(self, name: str, *words: str) -> None:
        run_ip("-n", self.name(name), *words)

    def _set(self, name: str, switch: str) -> None:
        script = f"echo 1 > /proc/sys/net/ipv4/{switch}"
        run_ip("netns", "exec", self.name(name), "sh", "-c", script)

    def _remove(self) -> None:
        for namespace in reversed(self._made):
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)  # noqa: S603, S607
        self._made.clear()
