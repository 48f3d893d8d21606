"""A network of real namespaces and veth pairs, each node a process of its own. Needs root and `ip` (iproute2).

Names of namespaces and interfaces begin with a prefix that this process chose, and only what it made is removed.
"""

import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from psirp_stack.emulation.network import roles_of, socket_of
from psirp_stack.emulation.plan import GRAPH_FILE, NetworkPlan
from psirp_stack.links.impairment import Impairment
from storage.private import make_private_folder, write_private_file

STOP_SECONDS = 10.0
PERFECT = Impairment()
SECRET_FILE = "domain.secret"  # noqa: S105  (a file's name)


class NamespaceError(RuntimeError):
    """Namespaces cannot be made here; the message says why."""


class NamespaceNetwork:
    """Build it with `up`, take it down with `down`."""

    def __init__(self, plan: NetworkPlan, data: Path, run_node: Sequence[str] | None = None) -> None:
        """`run_node`: the command that runs a node, given its configuration file as last word."""
        if plan.placement is not None or plan.change is not None or plan.events or plan.workloads:
            raise NamespaceError("strategies, events and workloads are for a network of one process: leave out --netns")
        self.plan = plan
        self.data = data
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._run_node = run_node or [sys.executable, "-m", "gateway.cli.main", "node", "-c"]
        self._prefix = f"psph{os.getpid()}"
        self._made: list[str] = []
        self._cables: dict[frozenset[str], tuple[tuple[str, str], tuple[str, str]]] = {}
        """Node and interface at both ends, by the names of the nodes."""

    def namespace(self, node: str) -> str:
        return f"{self._prefix}-{self.plan.graph.names.index(node)}"

    def up(self, progress: Callable[[str], None] = lambda step: None) -> None:
        if os.geteuid() != 0:
            raise NamespaceError("network namespaces need root: run as root, or without --netns")
        if shutil.which("ip") is None:
            raise NamespaceError("the command `ip` is missing: install iproute2")
        try:
            for name in self.plan.graph.names:
                progress(f"namespace of {name}")
                self._ip("netns", "add", self.namespace(name))
                self._made.append(self.namespace(name))
                self._in(name, "link", "set", "lo", "up")
            interfaces = self._lay_cables(progress)
            make_private_folder(self.data, (*self.plan.graph.names, GRAPH_FILE, SECRET_FILE))
            self._make_secret()
            for name in self.plan.graph.names:
                progress(f"node {name}")
                self.start(name, interfaces[name])
        except BaseException:
            self.down()
            raise

    def start(self, name: str, interfaces: Sequence[tuple[str, Impairment]] | None = None) -> None:
        """Start a node's process; without `interfaces`, as it was started before."""
        path = self.data / f"{name}.toml"
        if interfaces is not None:
            path.write_text(_node_file(self.plan, self.data, name, interfaces))
        command = ["ip", "netns", "exec", self.namespace(name), *self._run_node, str(path)]
        self.processes[name] = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_let_signals_through,  # noqa: PLW1509  (no threads here)
        )

    def kill(self, name: str) -> None:
        """kill -9 of a node's process."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def cut(self, a: str, b: str) -> None:
        """Take a link down, as a cable that is pulled: both ends lose their carrier."""
        node, interface = self._end(a, b)
        self._in(node, "link", "set", interface, "down")

    def mend(self, a: str, b: str) -> None:
        node, interface = self._end(a, b)
        self._in(node, "link", "set", interface, "up")

    def shape(self, node: str, other: str, *discipline: str) -> None:
        """Put a queueing discipline of the kernel (the words of `tc`) in front of a link's end at `node`."""
        interface = self._end_at(node, other)
        self._ip("netns", "exec", self.namespace(node), "tc", "qdisc", "replace", "dev", interface, "root", *discipline)

    def give_address(self, node: str, other: str, address: str) -> None:
        """Let programs of others use a link too: an IP address for its end at `node`."""
        self._in(node, "address", "add", address, "dev", self._end_at(node, other))

    def run_in(self, node: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a program in a node's namespace; its output is read by the caller."""
        whole = ["ip", "netns", "exec", self.namespace(node), *command]
        return subprocess.Popen(whole, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)  # noqa: S603

    def _end_at(self, node: str, other: str) -> str:
        return next(interface for name, interface in self._cables[frozenset((node, other))] if name == node)

    def _end(self, a: str, b: str) -> tuple[str, str]:
        return self._cables[frozenset((a, b))][0]

    def down(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes.clear()
        for namespace in self._made:
            subprocess.run(["ip", "netns", "delete", namespace], check=False, capture_output=True)  # noqa: S603, S607
        self._made.clear()

    def _make_secret(self) -> None:
        """Nodes in namespaces have links like any others: sealed ones, with a secret of this network's own."""
        path = self.data / SECRET_FILE
        write_private_file(path, secrets.token_hex().encode() + b"\n")

    def _lay_cables(self, progress: Callable[[str], None]) -> dict[str, list[tuple[str, Impairment]]]:
        interfaces: dict[str, list[tuple[str, Impairment]]] = {name: [] for name in self.plan.graph.names}
        for a, b in self.plan.cables():
            progress(f"link {a} - {b}")
            first, second = f"v{len(interfaces[a])}", f"v{len(interfaces[b])}"
            self._ip(
                *("link", "add", first, "netns", self.namespace(a), "type", "veth"),
                *("peer", "name", second, "netns", self.namespace(b)),
            )
            self._in(a, "link", "set", first, "up")
            self._in(b, "link", "set", second, "up")
            self._cables[frozenset((a, b))] = ((a, first), (b, second))
            bad = self.plan.impairment(a, b)
            interfaces[a].append((first, bad))
            interfaces[b].append((second, bad))
        return interfaces

    def _in(self, node: str, *words: str) -> None:
        self._ip("-n", self.namespace(node), *words)

    def _ip(self, *words: str) -> None:
        done = subprocess.run(["ip", *words], check=False, capture_output=True, text=True)  # noqa: S603, S607
        if done.returncode:
            raise NamespaceError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def _let_signals_through() -> None:
    """Whoever builds a network may have blocked signals; its nodes must hear that they shall end."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _node_file(plan: NetworkPlan, folder: Path, name: str, interfaces: Sequence[tuple[str, Impairment]]) -> str:
    roles = ", ".join(f'"{role}"' for role in roles_of(plan, name))
    lines = [f'name = "{name}"', f"roles = [{roles}]", f'socket = "{socket_of(Path(), name)}"']
    if roles:
        lines.append(f'data = "{name}"')
    lines += ["[domain]", f"seed = {_quoted(plan.seed)}", f'secret_file = "{SECRET_FILE}"']
    if (graph_file := plan.write_graph(folder)) is not None:
        lines.append(f'graph_file = "{graph_file}"')
    lines += [f"rendezvous = {_names(plan.rendezvous)}", f"topology = {_names(plan.topology)}"]
    cache = plan.cache_of(name)
    if cache.bytes:
        lines += ["[cache]", f"bytes = {cache.bytes}", f"strategy = {_quoted(cache.strategy)}"]
    for interface, bad in interfaces:
        lines += ["[[links]]", f'ethernet = "{interface}"']
        if bad != PERFECT:
            keys = ("delay", "jitter", "loss", "duplication", "reorder", "bandwidth")
            parts = [*(f"{key} = {float(getattr(bad, key))}" for key in keys), f"queue = {bad.queue_limit}"]
            lines.append("impaired = { " + ", ".join(parts) + " }")
    return "\n".join(lines) + "\n"


def _names(names: Sequence[str]) -> str:
    return "[" + ", ".join(map(_quoted, names)) + "]"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
