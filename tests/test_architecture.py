"""The import arrows of the architecture: packages import only what stands below them."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.source_tree import ROOT, Module, modules_at, read_module, read_modules

MODULES = read_modules()

ALLOWED: dict[str, set[str]] = {
    "storage": set(),
    "identifiers": {"storage"},
    "psirp_stack": {"identifiers", "storage"},
    "serving": {"storage"},
    "exchange": {"identifiers", "storage"},
    "push_hub": {"identifiers", "storage", "serving", "exchange"},
    "perf": {"identifiers", "storage", "psirp_stack", "push_hub", "serving", "exchange"},
    "gateway": {"identifiers", "storage", "psirp_stack", "push_hub", "serving", "exchange"},
    "trials": {"identifiers", "storage", "psirp_stack", "push_hub", "serving", "exchange", "perf", "gateway"},
}
"""What each package may import of the others. Beyond this, only the command line may import `perf`."""

TOOLS_ONLY = {"scapy"}
TOOL_FOLDERS = ("psirp_stack/tools/", "trials/", "tests/")
SAYS_SANS_IO = re.compile(r"\b(sans-I/O|no I/O)\b", re.IGNORECASE)
SANS_IO = [
    "psirp_stack/forwarder.py",
    "psirp_stack/forwarding_rules.py",
    "psirp_stack/forwarding_memory.py",
    "psirp_stack/graph.py",
    "psirp_stack/control",
    "psirp_stack/topology",
    "psirp_stack/transport",
    "psirp_stack/sealing",
    "psirp_stack/authentication",
    "psirp_stack/rendezvous/session.py",
    "psirp_stack/rendezvous/requests.py",
    "psirp_stack/rendezvous/scopes.py",
    "psirp_stack/rendezvous/leases.py",
    "psirp_stack/node/core.py",
    "psirp_stack/node/request_table.py",
    "psirp_stack/node/publishing.py",
    "psirp_stack/node/subscribing.py",
    "psirp_stack/node/intents.py",
    "psirp_stack/node/attachment.py",
    "serving/fairness.py",
    "push_hub/delivery/queue.py",
    "storage/backoff.py",
    "push_hub/delivery/breaker.py",
    "push_hub/intake/schedule.py",
    "push_hub/intake/queue.py",
    "exchange/model.py",
    "exchange/judging.py",
    "exchange/router.py",
    "gateway/protocols/psirp/envelope.py",
    "gateway/model.py",
    "psirp_stack/wire",
    "psirp_stack/filters",
    "push_hub/protocol",
    "identifiers/namespaces.py",
    "identifiers/topic.py",
    "identifiers/naming.py",
    "identifiers/content.py",
    "identifiers/identifier.py",
]
"""Cores beside the modules that say in their docstring that they are one."""
NOT_SANS_IO = {"psirp_stack/authentication/files.py", "psirp_stack/control/grant_files.py", "trials/crash/__init__.py"}
"""Files in the folders above, and a docstring that speaks of another module."""
READS_NO_CLOCK = ["psirp_stack/emulation/simulation.py"]
"""It has stores of its own, but time only passes when it is told."""

CLOCKS_AND_LOOPS = {"asyncio", "select", "selectors", "signal", "socket", "time"}
IO_MODULES = CLOCKS_AND_LOOPS | {
    "aiohttp",
    "concurrent",
    "dns.asyncquery",
    "dns.asyncresolver",
    "dns.query",
    "dns.resolver",
    "fcntl",
    "logging",
    "multiprocessing",
    "os",
    "pathlib",
    "pycurl",
    "queue",
    "shutil",
    "sqlite3",
    "ssl",
    "subprocess",
    "tempfile",
    "threading",
    "urllib.request",
}
HANDED_IN = {
    "concurrent.futures": {"Future"},
    "storage": {"Migration", "Row", "StorageError", "Transaction", "Value"},
}
"""What a core may be handed by its shell, or says: it starts nothing."""
CLOCK_CALLS = {("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today"), ("date", "today")}


def imported_by(module: Module) -> set[str]:
    """Every module that one imports, at any depth of its code."""
    return {found.module for found in module.imports}


@cache
def calls_for_io(module: Module) -> list[str]:
    """Built-in ways to the disk and to the clock, which need no import that tells."""
    found = []
    for node in ast.walk(module.tree):
        match node:
            case ast.Call(func=ast.Name(id="open")):
                found.append("open()")
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=name)) if (owner, name) in CLOCK_CALLS:
                found.append(f"{owner}.{name}()")
    return found


def ways_to_io(start: str, modules: dict[str, Module]) -> list[str]:
    """How a module reaches a socket, clock, disk, thread or event loop through the project's own modules.

    A package above an imported module does not count: what it gathers for its users is not what the module asked for.
    """
    came_from: dict[str, str | None] = {start: None}
    waiting, ways = [start], []

    def way(name: str) -> str:
        step = came_from[name]
        return name if step is None else f"{way(step)} -> {name}"

    while waiting:
        name = waiting.pop(0)
        ways += [f"{way(name)}: {call}" for call in calls_for_io(modules[name])]
        for found in modules[name].imports:
            if found.for_types or (found.names and found.names <= HANDED_IN.get(found.module, set())):
                continue
            full = {f"{found.module}.{imported}" for imported in found.names}
            ways += [
                f"{way(name)} -> {reached}"
                for reached in sorted({found.module, top(found.module)} | full)
                if reached in IO_MODULES and reached not in modules
            ]
            parts = sorted(full & modules.keys())
            if found.module in modules and len(parts) < max(1, len(found.names)):
                parts.append(found.module)
            for part in parts:
                if part not in came_from:
                    came_from[part] = name
                    waiting.append(part)
    return ways


def top(module: str) -> str:
    return module.partition(".")[0]


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_imports_point_downwards(package: str) -> None:
    modules = modules_at(package, MODULES)
    assert modules
    for module in modules:
        allowed = ALLOWED[package] | {package}
        if module.path.is_relative_to(ROOT / "gateway" / "cli"):
            allowed = allowed | {"perf"}
        wrong = {name for name in imported_by(module) if top(name) in ALLOWED and top(name) not in allowed}
        assert not wrong, f"{module.name} may not import {', '.join(sorted(wrong))}"


def test_only_the_packet_tools_import_scapy() -> None:
    for module in MODULES.values():
        if not module.path.relative_to(ROOT).as_posix().startswith(TOOL_FOLDERS):
            assert not TOOLS_ONLY & {top(name) for name in imported_by(module)}, module.name


def test_cores_reach_no_socket_clock_disk_thread_or_loop() -> None:
    cores = {module.name for module in MODULES.values() if SAYS_SANS_IO.search(module.docstring)}
    for place in SANS_IO:
        found = modules_at(place, MODULES)
        assert found, f"{place} has moved: say where"
        cores |= {module.name for module in found}
    for place in NOT_SANS_IO:
        [exception] = modules_at(place, MODULES)
        cores.remove(exception.name)
    ways = [way for core in sorted(cores) for way in ways_to_io(core, MODULES)]
    assert not ways, "\n".join(ways)


def test_the_simulation_reads_no_clock() -> None:
    for place in READS_NO_CLOCK:
        [module] = modules_at(place, MODULES)
        assert not CLOCKS_AND_LOOPS & {top(name) for name in imported_by(module)}


def test_only_serving_listens_for_http_in_what_is_shipped_as_a_service() -> None:
    """One way to open a port; small commands that serve a page for a moment are no service."""
    openers = {"AppRunner", "TCPSite", "create_server", "start_server"}
    for package in ("push_hub", "gateway"):
        for module in modules_at(package, MODULES):
            if module.name.startswith("gateway.cli.") or module.name == "gateway.demo":
                continue
            names = {node.attr for node in ast.walk(module.tree) if isinstance(node, ast.Attribute)}
            assert not names & openers, module.name


CORE_OF_THE_GATEWAY = [
    "exchange",
    "gateway/core.py",
    "gateway/control.py",
    "gateway/converters",
    "gateway/model.py",
    "gateway/sections.py",
    "gateway/access",
    "gateway/web",
    "gateway/protocols/descriptor.py",
]
PROTOCOLS = "gateway.protocols."
NOT_A_PROTOCOL = {"gateway.protocols.descriptor", "gateway.protocols.listed"}


def protocol_labels() -> set[str]:
    folder = ROOT / "gateway" / "protocols"
    return {path.name for path in folder.iterdir() if (path / "protocol.py").exists()}


def protocols_named(module: Module, labels: set[str]) -> set[str]:
    """Protocols that a module imports, or names in a string that the program looks at."""
    imports = {name for name in imported_by(module) if name.startswith(PROTOCOLS) and name not in NOT_A_PROTOCOL}
    strings = {node.value for node in ast.walk(module.tree) if isinstance(node, ast.Constant)}
    return imports | {label for label in labels if label in strings}


def test_the_core_names_no_protocol() -> None:
    labels = protocol_labels()
    assert {"websub", "rest", "chat", "psirp"} <= labels
    for place in CORE_OF_THE_GATEWAY:
        found = modules_at(place, MODULES)
        assert found, f"{place} has moved: say where"
        for module in found:
            assert not protocols_named(module, labels), module.name


def test_no_protocol_imports_another() -> None:
    labels = protocol_labels()
    for label in labels:
        for module in modules_at(f"gateway/protocols/{label}", MODULES):
            others = {
                name
                for name in imported_by(module)
                for other in labels - {label}
                if name.startswith(f"{PROTOCOLS}{other}")
            }
            assert not others, module.name


def test_the_check_of_the_core_can_fail(tmp_path: Path) -> None:
    path = tmp_path / "core.py"
    path.write_text('from gateway.protocols.chat.store import ChatStore\nif name == "rest": ...\n')
    assert protocols_named(read_module(path, tmp_path), {"rest", "chat"}) == {"gateway.protocols.chat.store", "rest"}


def public_classes(modules: dict[str, Module]) -> dict[str, list[str]]:
    """The modules that make a class of each name."""
    found: dict[str, list[str]] = {}
    for module in modules.values():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(module.name)
    return found


def test_one_class_name_means_one_thing() -> None:
    twice = {name: places for name, places in public_classes(MODULES).items() if len(places) > 1}
    assert not twice


def test_the_checks_can_fail(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden.py"
    hidden.write_text("def late():\n    from psirp_stack.wire import codec\n    import scapy.all\n")
    assert imported_by(read_module(hidden, tmp_path)) == {"psirp_stack.wire", "scapy.all"}


def test_the_check_of_cores_finds_what_is_far_away(tmp_path: Path) -> None:
    files = {
        "core": "from typing import TYPE_CHECKING\nfrom house import near\nif TYPE_CHECKING:\n    import ssl\n",
        "near": "from concurrent.futures import Future\ndef late():\n    from house.far import there\n",
        "far": "import socket\nfrom datetime import datetime\nthere = datetime.now()\nhere = open('x')\n",
        "__init__": "import threading\n",
    }
    (tmp_path / "house").mkdir()
    for name, text in files.items():
        (tmp_path / "house" / f"{name}.py").write_text(text)
    modules = read_modules(tmp_path, ("house",))
    way = "house.core -> house.near -> house.far"
    assert sorted(ways_to_io("house.core", modules)) == [
        f"{way} -> socket",
        f"{way}: datetime.now()",
        f"{way}: open()",
    ]
    assert ways_to_io("house", modules) == ["house -> threading"]


def test_the_check_of_class_names_can_fail(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text("class Same:\n    class Inner: ...\nclass _Own: ...\n")
    modules = {name: read_module(tmp_path / f"{name}.py", tmp_path) for name in ("one", "two")}
    assert public_classes(modules) == {"Same": ["one", "two"]}


# What ARCHITECTURE.md says has a test.

PROMISE = re.compile(r"(?<![\w-])(not|never|only)(?![\w-])", re.IGNORECASE)
HELD = re.compile(r"^\| (?P<said>.+) \| `(?P<file>[\w/]+\.py)::(?P<test>\w+)` \|$", re.MULTILINE)


def promises(text: str) -> list[str]:
    """Its sentences with «not», «never» or «only»; a line of a block, a table or a list begins a new one."""
    pieces = re.split(r"\n(?=[|#`-]|\d+\.|\w+/|\n)|(?<=[.:;])\s", text)
    return [" ".join(piece.split()) for piece in pieces if PROMISE.search(piece)]


def test_what_the_architecture_promises_has_its_test() -> None:
    said, _, holds = (ROOT / "ARCHITECTURE.md").read_text().partition("## What holds it")
    held = {found["said"]: found for found in HELD.finditer(holds)}
    for promise in promises(said):
        assert any(words in promise for words in held), f"name the test that holds: {promise}"
    for words, found in held.items():
        assert any(words in promise for promise in promises(said)), f"nobody says any more: {words}"
        path = ROOT / found["file"]
        assert path.is_file(), found["file"]
        assert re.search(rf"^(async )?def {found['test']}\(", path.read_text(), re.MULTILINE), found["test"]


def test_promises_are_found() -> None:
    text = "One. It never\nlies: GPL-2.0-only is no promise.\n- Only this; that.\na/   x (not y)\nb/  z\n"
    assert promises(text) == ["It never lies:", "- Only this;", "a/ x (not y)"]
