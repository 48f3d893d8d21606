"""`docker run psph hub` without any file: what the image says is enough; and what says what is in it."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from gateway import __version__
from tests.documents.pages import ROOT
from tests.gateway.containers.dockerfile_rules import stages
from tests.gateway.containers.image_packages import absent_from_the_gateway

FINAL = stages((ROOT / "Dockerfile").read_text())[-1]


def said(word: str) -> dict[str, str]:
    """NAME=VALUE of the final stage's instructions of this kind."""
    text = " ".join(rest for kind, rest in FINAL.steps if kind == word)
    return {name: value.strip('"') for name, value in re.findall(r'([\w.]+)=("[^"]*"|\S+)', text)}


def test_a_hub_in_the_image_listens_where_its_port_leads_and_keeps_its_data_in_the_volume(tmp_path: Path) -> None:
    image = said("ENV")
    assert image["XDG_STATE_HOME"] == next(rest for kind, rest in FINAL.steps if kind == "VOLUME")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PSPH_", "XDG_"))}
    hub = subprocess.Popen(
        [sys.executable, "-m", "gateway.cli.main", "hub", "--port", "0", "--no-canary"],
        env=environment | {"PSPH_HOST": image["PSPH_HOST"], "XDG_STATE_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert hub.stdout is not None
        assert hub.stdout.readline().startswith("hub at http://0.0.0.0:")
        assert hub.stdout.readline() == f"data in {tmp_path}/psph/hub\n"
    finally:
        hub.send_signal(signal.SIGTERM)
        hub.communicate(timeout=60)
    assert hub.returncode == 0


def test_the_image_is_labelled_with_what_it_is() -> None:
    labels = {name.rpartition(".")[2]: value for name, value in said("LABEL").items()}
    assert (labels["title"], labels["version"], labels["licenses"]) == ("psph", __version__, "MIT")
    assert FINAL.base.startswith(labels["name"].removeprefix("docker.io/library/") + "@sha256:")


def test_the_list_of_what_is_in_it_names_all_and_nothing_else() -> None:
    words = [sys.executable, str(ROOT / ".ci" / "sbom")]
    text, again = (subprocess.run(words, capture_output=True, text=True, check=True).stdout for _ in range(2))
    assert text == again
    document = json.loads(text)
    assert (document["bomFormat"], document["specVersion"], document["version"]) == ("CycloneDX", "1.5", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}", document["serialNumber"])
    assert document["metadata"]["component"]["version"] == __version__
    components = {one["name"]: one for one in document["components"]}
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    versions = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pins.items()}
    for name, one in components.items():
        assert one["purl"] == one["bom-ref"] == f"pkg:pypi/{name}@{versions[name]}"
        assert one["externalReferences"][0]["hashes"], name
    assert {"aiohttp", "multidict", "pycurl", "uvloop", "cryptography"} <= set(components)
    assert not {"pytest", "pyspark", "scapy", "mkdocs"} & set(components)
    assert not absent_from_the_gateway() & set(components)
    references = {document["metadata"]["component"]["bom-ref"], *(one["bom-ref"] for one in components.values())}
    assert {one["ref"] for one in document["dependencies"]} == references
    assert {needed for one in document["dependencies"] for needed in one["dependsOn"]} <= references


def test_version_says_what_it_stands_on() -> None:
    def version(*words: str) -> str:
        command = [sys.executable, "-m", "gateway.cli.main", "version", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert version() == f"psph {__version__}\n"
    document = json.loads(version("--json"))
    assert document["psph"] == __version__
    assert document["formats"].keys() == {"frames", "envelope", "traces"}
    assert {"websub", "psirp", "rest", "chat"} <= set(document["protocols"])
    assert "aiohttp" in document["libraries"]
