"""The very commands of the compose file, as processes of its user in network namespaces with its addresses and names.

Each has a root of its own, read-only but for what the compose file mounts, and the capabilities that the compose file
grants. Prometheus itself is not here; its user asks what it would ask.
"""

import contextlib
import csv
import errno
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.documents.pages import commands_for
from tests.gateway.containers import confinement
from tests.gateway.containers.compose_files import RAW_ETHERNET, ROOT
from tests.gateway.containers.composed import ONCE, ORDER, REPORT, SCRAPER, Composed
from tests.psirp_stack.emulation.test_netns import why_not

pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.skipif(confinement.why_not() is not None, reason=str(confinement.why_not())),
]

NET_RAW = 1 << 13
"""linux/capability.h"""
CAPABILITY_SETS = ("CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb")
RAW = ("forwarder-1", "forwarder-2")
SPARK_PATIENCE = 240.0
SPARE = 2
"""A limit is to be so many times what is used here."""
SCRAPE = """
import sys, urllib.error, urllib.request
url, token = sys.argv[1], open(sys.argv[2]).read().strip()
try:
    print(urllib.request.urlopen(url, timeout=20).status)
except urllib.error.HTTPError as error:
    print(error.code)
request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
print(urllib.request.urlopen(request, timeout=20).read().decode())
"""


def begin(stack: contextlib.ExitStack, *over: Path) -> Composed:
    # Not in pytest's own directory: that is for root alone.
    folder = Path(tempfile.mkdtemp(prefix="psph-c-"))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)
    built = Composed(folder, stack, *over)
    stack.callback(built.down)
    built.build()
    return built


@pytest.fixture
def composed() -> Iterator[Composed]:
    with contextlib.ExitStack() as stack:
        yield begin(stack)


@pytest.fixture
def raw_ethernet() -> Iterator[Composed]:
    with contextlib.ExitStack() as stack:
        yield begin(stack, RAW_ETHERNET)


def scrape(composed: Composed) -> dict[str, tuple[int, str]]:
    """By gateway: the answer without a token, and the metrics that Prometheus' user gets as its file says."""
    (job,) = yaml.safe_load((ROOT / "deploy" / "compose" / "prometheus.yml").read_text())["scrape_configs"]
    token = job["authorization"]["credentials_file"]
    found = {}
    for target in job["static_configs"][0]["targets"]:
        words = ["python", "-c", SCRAPE, f"http://{target}{job['metrics_path']}", token]
        confined = composed.confine(composed.services[SCRAPER])
        done = subprocess.run(
            ["ip", "netns", "exec", composed.namespace(SCRAPER), *confined.command(words)],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stderr}\n{composed.story()}"
        refused, _, metrics = done.stdout.partition("\n")
        found[target.split(":")[0]] = int(refused), metrics
    return found


def status(process: int) -> dict[str, str]:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def writable_mounts(process: int) -> set[str]:
    """Where a process sees a file system that is not read-only."""
    mounts = [line.split() for line in Path(f"/proc/{process}/mountinfo").read_text().splitlines()]
    assert any(mount[4] == "/" for mount in mounts)
    return {mount[4] for mount in mounts if "ro" not in mount[5].split(",")}


def refusal(process: int, folder: str) -> int:
    """Why not even root, with all it may do, can make a file where a process sees this folder; 0 if it can."""
    path = f"/proc/{process}/root{folder.rstrip('/')}/psph-was-here"
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except OSError as error:
        return error.errno or -1
    Path(path).unlink()
    return 0


def check_locked_up(composed: Composed, name: str, capabilities: int) -> None:
    """Of a service that runs: its user, its capabilities, where it can write."""
    process, service = composed.pid(name), composed.services[name]
    state = status(process)
    assert set(state["Uid"].split()) == {"10001"}, name
    assert set(state["Gid"].split()) == {"10001"}, name
    assert state["Groups"] == "", name
    assert {kind: int(state[kind], 16) for kind in CAPABILITY_SETS} == dict.fromkeys(CAPABILITY_SETS, capabilities), (
        name
    )
    assert state["NoNewPrivs"] == "1", name
    assert service.said["read_only"] is True
    assert writable_mounts(process) == service.writable, name
    for folder in ("/", "/etc", "/usr/bin", "/opt/psph/bin", "/run", str(ROOT / "gateway")):
        assert refusal(process, folder) == errno.EROFS, (name, folder)
    for volume in service.volumes:
        if volume.read_only:
            parent = volume.target if volume.named else str(Path(volume.target).parent)
            assert refusal(process, parent) == errno.EROFS, (name, volume)
    assert service.writable, name
    for folder in service.writable:
        assert refusal(process, folder) == 0, (name, folder)


def check_limits(composed: Composed, name: str) -> None:
    state, service = status(composed.pid(name)), composed.services[name]
    used = int(state["VmHWM"].split()[0]) << 10
    assert used * SPARE < service.memory, f"{name}: {used >> 20} MiB of {service.memory >> 20}"
    assert int(state["Threads"]) * SPARE < service.said["pids_limit"], name


@pytest.mark.timeout(300)
def test_a_publication_crosses_from_the_feed_to_the_reader(composed: Composed) -> None:
    composed.up(*ONCE, *ORDER)
    (line,) = composed.heard("reader", "urn:psph:feed:")
    delivery = json.loads(line)
    assert "urn:psph:feed:" in delivery["content"]
    assert delivery["topic"] == "http://feed:8000/feed"
    tokens = composed.volume("tokens") / "viewers.tokens"
    assert tokens.stat().st_mode & 0o777 == 0o600
    for name, (refused, metrics) in scrape(composed).items():
        assert refused == 401, "nothing is told without the token"
        assert f'psph_info{{name="{name}"' in metrics
        assert tokens.read_text().strip() not in metrics
    for name in ORDER:
        check_locked_up(composed, name, 0)
        check_limits(composed, name)
    for module, there in (("aiohttp", True), ("scapy", False), ("pyspark", False), ("pyarrow", False)):
        words = composed.beside("gateway-a", ["python", "-c", f"import {module}"])
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60, cwd="/")
        assert (done.returncode == 0) is there, done.stderr
        assert there or "not in the image" in done.stderr
    assert list(composed.volume("traces").rglob("run.json")), "traced without pyarrow"
    codes = composed.down()
    assert set(codes.values()) == {0}, (codes, composed.story())


@pytest.mark.timeout(300)
def test_raw_ethernet_has_the_one_capability_it_needs(raw_ethernet: Composed) -> None:
    ((*words, end, build),) = commands_for(
        "tests/gateway/containers/test_container_processes.py::test_raw_ethernet_has_the_one_capability_it_needs",
        "docs/operations.md",
    )
    files = ["docker-compose.yml", str(RAW_ETHERNET.relative_to(ROOT))]
    assert (words, end, build) == (["docker", "compose", "-f", files[0], "-f", files[1]], "up", "--build")
    composed = raw_ethernet
    composed.up(*ONCE, *ORDER)
    composed.heard("reader", "urn:psph:feed:")
    for name in ORDER:
        check_locked_up(composed, name, NET_RAW if name in RAW else 0)
    composed.healthy("forwarder-2")
    codes = composed.down()
    assert set(codes.values()) == {0}, (codes, composed.story())


@pytest.mark.timeout(60)
def test_without_the_capability_there_is_no_raw_ethernet(raw_ethernet: Composed) -> None:
    """So the test above would fail if it were not granted, and the demonstration needs none."""
    composed = raw_ethernet
    plain = Composed(composed.folder, composed.stack).services["forwarder-1"]
    volumes = composed.services["forwarder-1"].said["volumes"]
    composed.services["forwarder-1"] = type(plain)("forwarder-1", {**plain.said, "volumes": volumes})
    composed.up("secret", "forwarder-1")
    assert composed.processes.pop("forwarder-1").wait(30) != 0
    for listener in composed.listeners:
        listener.join(10)
    assert re.search("(?i)raw|permi", composed.story())


def table(report: Path, name: str) -> list[dict[str, str]]:
    with (report / "tables" / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.timeout(400)
def test_spark_makes_a_report_of_what_the_gateways_traced(composed: Composed) -> None:
    pytest.importorskip("pyspark")
    ((*words, service),) = commands_for(
        "tests/gateway/containers/test_container_processes.py::test_spark_makes_a_report_of_what_the_gateways_traced",
        "docs/operations.md",
    )
    assert (words, service) == (["docker", "compose", "--profile", "spark", "run", "--rm"], REPORT)
    composed.up(*ONCE, *ORDER)
    deliveries = 3
    composed.heard("reader", "urn:psph:feed:", deliveries)
    assert set(composed.down().values()) == {0}, composed.story()
    composed.start(REPORT)
    composed.finished(REPORT, SPARK_PATIENCE)
    report = composed.volume("report") / "report"
    page = (report / "report.html").read_text()
    assert "gateway-a, gateway-b" in page, "one run, of both"
    assert {row["node"] for row in table(report, "nodes")} >= {"gateway-a", "gateway-b"}
    (ending,) = table(report, "endings")
    assert ending["run"] == "compose"
    assert int(ending["complete"]) >= deliveries
    (carried,) = (row for row in table(report, "latency") if (row["stage"], row["by"]) == ("carry", "all"))
    assert carried["domain"] == "psirp"
    assert int(carried["count"]) >= deliveries - 1, "the first may be older than the subscription"
    assert float(carried["least_ms"]) > 0
    assert {path.stat().st_uid for path in report.rglob("*")} == {10001}
