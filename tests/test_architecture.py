"""The import arrows of the architecture: packages import only what stands below them."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

ALLOWED: dict[str, set[str]] = {
    "storage": set(),
    "identifiers": {"storage"},
    "psirp_stack": {"identifiers", "storage"},
    "serving": set(),
    "exchange": {"identifiers", "storage"},
    "push_hub": {"identifiers", "storage", "serving", "exchange"},
    "perf": {"identifiers", "storage", "psirp_stack", "push_hub", "serving", "exchange"},
    "gateway": {"identifiers", "storage", "psirp_stack", "push_hub", "serving", "exchange"},
    "trials": {"identifiers", "storage", "psirp_stack", "push_hub", "serving", "exchange", "perf", "gateway"},
}
"""What each package may import of the others. Beyond this, only the command line may import `perf`."""

TOOLS_ONLY = {"scapy"}
TOOL_FOLDERS = ("psirp_stack/tools/", "trials/", "tests/")
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
    "psirp_stack/emulation/simulation.py",
    "serving/fairness.py",
    "push_hub/delivery/queue.py",
    "storage/backoff.py",
    "push_hub/delivery/breaker.py",
    "push_hub/intake/schedule.py",
    "push_hub/intake/queue.py",
    "exchange/model.py",
    "exchange/judging.py",
    "exchange/router.py",
    "gateway/envelope.py",
    "gateway/model.py",
    "psirp_stack/wire",
    "psirp_stack/filters",
    "push_hub/protocol",
    "identifiers/topic.py",
    "identifiers/naming.py",
    "identifiers/content.py",
    "identifiers/identifier.py",
]
IO_MODULES = {"asyncio", "socket", "time", "select", "threading", "aiohttp", "sqlite3"}


def imports_of(path: Path) -> set[str]:
    """Every module a file imports, at any depth of its code."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            found.add(node.module or "")
    return found


def top(module: str) -> str:
    return module.partition(".")[0]


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_imports_point_downwards(package: str) -> None:
    files = list((ROOT / package).rglob("*.py"))
    assert files
    for path in files:
        allowed = ALLOWED[package] | {package}
        if path.is_relative_to(ROOT / "gateway" / "cli"):
            allowed = allowed | {"perf"}
        wrong = {module for module in imports_of(path) if top(module) in ALLOWED and top(module) not in allowed}
        assert not wrong, f"{path.relative_to(ROOT)} may not import {', '.join(sorted(wrong))}"


def test_only_the_packet_tools_import_scapy() -> None:
    for package in ALLOWED:
        for path in (ROOT / package).rglob("*.py"):
            place = path.relative_to(ROOT).as_posix()
            if not place.startswith(TOOL_FOLDERS):
                assert not TOOLS_ONLY & {top(module) for module in imports_of(path)}, place


@pytest.mark.parametrize("place", SANS_IO)
def test_cores_do_no_io_and_read_no_clock(place: str) -> None:
    target = ROOT / place
    files = [target] if target.suffix == ".py" else list(target.rglob("*.py"))
    assert all(path.exists() for path in files), f"{place} has moved: say where"
    assert files
    for path in files:
        wrong = IO_MODULES & {top(module) for module in imports_of(path)}
        assert not wrong, f"{path.relative_to(ROOT)} imports {', '.join(sorted(wrong))}"


def test_only_serving_listens_for_http_in_what_is_shipped_as_a_service() -> None:
    """One way to open a port; small commands that serve a page for a moment are no service."""
    openers = {"AppRunner", "TCPSite", "create_server", "start_server"}
    for package in ("push_hub", "gateway"):
        for path in (ROOT / package).rglob("*.py"):
            if path.is_relative_to(ROOT / "gateway" / "cli") or path.name == "demo.py":
                continue
            names = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
            assert not names & openers, path.relative_to(ROOT)


def test_the_checks_can_fail(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden.py"
    hidden.write_text("def late():\n    from psirp_stack.wire import codec\n    import scapy.all\n")
    assert imports_of(hidden) == {"psirp_stack.wire", "scapy.all"}
