"""The compose file's services in containers of rootful podman, from an image that the Dockerfile makes.

No registry is asked: in the place of the Dockerfile's base image is one of Debian packages with the same name. The
build has no network; what pip installs is fetched before, with this machine's own settings. Everything is kept below
one folder, and goes with it.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.gateway.containers.compose_files import ROOT, Service
from tests.gateway.containers.composed import Composed
from tests.gateway.containers.dockerfile_rules import stages

WISH = "PSPH_PODMAN"
TOOLS = ("podman", "crun", "conmon", "mmdebstrap")
# As in the image that is meant, which has apt, and libstdc++ through it.
BASE_PACKAGES = "apt,python3,python3-venv,python3-pip,python-is-python3,passwd,ca-certificates"
PIP_CONF = "[global]\nno-index = true\nfind-links = /wheels\n"
SOURCES = Path("/etc/apt/sources.list.d/debian.sources")
# crun does not take a machine that has cgroups of version 1 with controllers of version 2 beside them.
WITHOUT_HYBRID_CGROUPS = 'umount /sys/fs/cgroup/unified 2>/dev/null || true; exec "$@"'
# podman asks for more than a machine without CAP_SYS_RESOURCE may give.
LIMITS = ("--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096")
PIECE_SECONDS = 400


def why_not() -> str | None:
    if not os.environ.get(WISH):
        return f"takes a minute or two and 500 MB: set {WISH}=1 to build the image with podman"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"not installed: {', '.join(missing)} (Debian packages)" if missing else None


class Podman:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def words(self, *words: str) -> list[str]:
        storage = [f"--root={self.folder / 'storage'}", f"--runroot={self.folder / 'run'}", "--cgroup-manager=cgroupfs"]
        return ["unshare", "--mount", "sh", "-c", WITHOUT_HYBRID_CGROUPS, "sh", "podman", *storage, *words]

    def run(self, *words: str) -> str:
        return _run(self.words(*words))

    def make_base(self) -> None:
        (name,) = {stage.base for stage in stages(self._dockerfile.read_text()) if ":" in stage.base}
        tar = self.folder / "base.tar"
        suite = name.rpartition("-")[2]
        mirror = [str(SOURCES)] if SOURCES.exists() else []
        _run(["mmdebstrap", "--variant=essential", f"--include={BASE_PACKAGES}", suite, str(tar), *mirror])
        self.run("import", str(tar), f"docker.io/library/{name}")
        tar.unlink()

    def build(self, tag: str, target: str, requirement: str = ".") -> None:
        wheels = self.folder / "wheels"
        fetch = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
        _run([*fetch, f"--wheel-dir={wheels}", "-c", "constraints.txt", requirement, "hatchling"])
        settings = self.folder / "pip.conf"
        settings.write_text(PIP_CONF)
        volumes = [f"--volume={settings}:/etc/pip.conf:ro", f"--volume={wheels}:/wheels:ro"]
        words = ["build", "--format=docker", "--network=none", "--pull=never", *volumes, f"--target={target}"]
        self.run(*words, "--tag", tag, f"--file={self._dockerfile}", str(ROOT))

    @property
    def _dockerfile(self) -> Path:
        """The Dockerfile without the digest of its base, which a stand-in cannot have."""
        path = self.folder / "Dockerfile"
        path.write_text(re.sub(r"@sha256:[0-9a-f]{64}", "", (ROOT / "Dockerfile").read_text()))
        return path

    def inside(self, image: str, script: str) -> str:
        """What a shell prints in a container of an image, as the image is, without a network."""
        return self.run("run", "--rm", "--network=none", "--read-only", *LIMITS, "--entrypoint=sh", image, "-c", script)

    def clear(self) -> None:
        with contextlib.suppress(AssertionError):
            self.run("rm", "--all", "--force", "--time=1")
        with contextlib.suppress(AssertionError):
            self.run("rmi", "--all", "--force")


def _run(words: Sequence[str]) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=PIECE_SECONDS, check=False, cwd=ROOT)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


class Contained(Composed):
    """What the compose file says of a service, in podman's words. Networks are the namespaces of before."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack, podman: Podman) -> None:
        super().__init__(folder, stack)
        self.podman = podman

    def begin(self, service: Service) -> list[str]:
        said = service.said
        options = [f"--name={self.namespace(service.name)}", f"--user={said['user']}", *LIMITS]
        options += [f"--network=ns:/run/netns/{self.namespace(service.name)}"]
        options += ["--read-only", "--read-only-tmpfs=false"] if said["read_only"] else []
        options += [f"--cap-drop={name}" for name in said["cap_drop"]]
        options += [f"--security-opt={name.partition(':')[0]}" for name in said["security_opt"]]
        options += [f"--memory={said['mem_limit']}", f"--pids-limit={said['pids_limit']}"]
        options += [f"--tmpfs={text}" for text in said["tmpfs"]]
        options += [f"--add-host={name}:{address}" for name, address in self.addresses().items()]
        for volume in service.volumes:
            source = f"{self.mark}-{volume.source}" if volume.named else str(ROOT / volume.source)
            options.append(f"--volume={source}:{volume.target}:{'ro' if volume.read_only else 'rw'}")
        options += [f"--hostname={said['hostname']}"] if "hostname" in said else []
        program, *first = said.get("entrypoint", [""])
        options += [f"--entrypoint={program}"] if program else []
        return self.podman.words("run", *options, said["image"], *first, *said["command"])

    def beside(self, name: str, words: Sequence[str]) -> list[str]:
        return self.podman.words("exec", self.namespace(name), *words)

    def pid(self, name: str) -> int:
        return int(self.podman.run("inspect", "--format={{.State.Pid}}", self.namespace(name)))
