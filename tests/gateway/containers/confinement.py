"""A process as an engine would confine it, without one: a root of its own that is read-only, one user, few rights.

The root has the system's programs and this Python with the project, all read-only, in the place of an image, and what
the compose file mounts, where it mounts it. Needs root.
"""

import os
import shlex
import shutil
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.gateway.containers.compose_files import ROOT, Image, Service
from tests.gateway.containers.image_packages import absent_from_the_gateway

SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
DEVICES = ("null", "zero", "full", "random", "urandom")
SETTINGS = ("ssl", "alternatives", "fonts", "java-*", "ld.so.cache", "localtime")
"""Of /etc; the rest of it is written here."""
PASSWD = "root:x:0:0:root:/root:/bin/sh\npsph:x:10001:10001::/data:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n"
GROUP = "root:x:0:\npsph:x:10001:\nnogroup:x:65534:\n"
ABSENT = "/opt/psph/absent"
"""Modules that stand before those which are installed here and not in the image, and cannot be imported."""
TOOLS = ("setpriv", "unshare", "nsenter", "mount", "chroot")


def why_not() -> str | None:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"not installed: {', '.join(missing)}" if missing else None


def python_folders() -> list[Path]:
    """Where this Python, its packages and the project are; none of them inside another or in the system's folders."""
    executable = Path(sys.executable)
    found = {ROOT, Path(sys.prefix), Path(sys.base_prefix), *(Path(entry) for entry in sys.path if entry)}
    while executable.is_symlink():
        executable = executable.parent / executable.readlink()
        found.add(executable.parent.parent)
    known = [Path("/", name) for name in SYSTEM]
    for folder in sorted({path.resolve() for path in found} | {path.absolute() for path in found}):
        if folder.is_dir() and not any(folder.is_relative_to(other) for other in known):
            known.append(folder)
    return known[len(SYSTEM) :]


def rights(service: Service) -> list[str]:
    """What Docker leaves a service: root has the capabilities it is given, others have none at all."""
    kept = "".join(f",+{name.lower()}" for name in sorted(service.capabilities))
    words = ["setpriv", f"--reuid={service.user}", f"--regid={service.group}", "--clear-groups"]
    words += [f"--bounding-set=-all{kept}", "--inh-caps=-all", "--ambient-caps=-all"]
    return [*words, "--no-new-privs"] if "no-new-privileges:true" in service.said["security_opt"] else words


class Confinement:
    """One service's root, made below `folder`; `volumes` says where the named ones are."""

    def __init__(self, service: Service, image: Image, folder: Path, volumes: Path, etc: Mapping[str, str]) -> None:
        self.service = service
        self.image = image
        self.root = folder
        self._mounts: list[tuple[str, str]] = []
        """Words for `mount` before the target, and the target."""
        self._read_only: list[str] = []
        self._hidden: list[str] = []
        """Mount points that are covered by another mount before they are needed, so they are made once more."""
        self.root.mkdir(parents=True)
        for target, options in service.tmpfs.items():
            self._folder(target)
            # Docker adds these to what is said.
            added = "nosuid,nodev" if "exec" in options.split(",") else "nosuid,nodev,noexec"
            self._mounts.append((f"-t tmpfs -o {options},{added} tmpfs", target))
        self._system()
        self._settings({"passwd": PASSWD, "group": GROUP, **etc})
        self._programs()
        for volume in service.volumes:
            source = volumes / volume.source if volume.named else ROOT / volume.source
            self._bind(source, volume.target, read_only=volume.read_only)

    def command(self, words: Sequence[str]) -> list[str]:
        """To be run by root in a mount namespace of its own: becomes the service's program."""
        lines = ["set -eu", "mount --make-rprivate /", f"mount --bind {self._at('/')} {self._at('/')}"]
        for how, target in self._mounts:
            lines += [f"mkdir -p {self._at(target)}"] if target in self._hidden else []
            lines.append(f"mount {how} {self._at(target)}")
        lines += [f"mount -o remount,bind,ro {self._at(target)}" for target in (*self._read_only, "/")]
        hostname = self.service.said.get("hostname", self.service.name)
        lines.append(f"echo {shlex.quote(hostname)} > /proc/sys/kernel/hostname")
        inside = [*rights(self.service), "sh", "-c", 'cd "$0" && exec "$@"', self.image.folder, *words]
        lines.append(shlex.join(["exec", "env", "-i", *self._environment(), "chroot", str(self.root), *inside]))
        return ["unshare", "--mount", "--uts", "sh", "-c", "\n".join(lines)]

    def enter(self, process: int, words: Sequence[str]) -> list[str]:
        """One more command beside a service that runs, with its rights."""
        space = ["nsenter", f"--target={process}", "--mount", "--net", "--root", f"--wd=/proc/{process}/cwd"]
        return ["env", "-i", *self._environment(), *space, *rights(self.service), *words]

    def _environment(self) -> list[str]:
        path = self.image.environment["PATH"].replace("$PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
        said = {
            **self.image.environment,
            "PATH": path,
            "HOME": self.image.folder,
            "PYTHONPATH": os.pathsep.join(filter(None, (ABSENT, *sys.path))),
        }
        return [f"{name}={value}" for name, value in said.items()]

    def _at(self, target: str) -> str:
        return shlex.quote(str(self.root) + target.rstrip("/"))

    def _folder(self, target: str) -> Path:
        place = self.root / target.lstrip("/")
        place.mkdir(parents=True, exist_ok=True)
        return place

    def _bind(self, source: Path, target: str, *, read_only: bool) -> None:
        if source.is_dir():
            self._folder(target)
            if any(Path(target).is_relative_to(other) for other in self.service.tmpfs):
                self._hidden.append(target)
        else:
            self._folder(str(Path(target).parent)).joinpath(Path(target).name).touch()
        self._mounts.append((f"--bind {shlex.quote(str(source))}", target))
        if read_only:
            self._read_only.append(target)

    def _system(self) -> None:
        for name in SYSTEM:
            path = Path("/", name)
            if path.is_symlink():
                (self.root / name).symlink_to(path.readlink())
            elif path.is_dir():
                self._bind(path, str(path), read_only=True)
        for folder in python_folders():
            self._bind(folder, str(folder), read_only=True)
        self._bind(Path("/proc"), "/proc", read_only=True)
        for name in DEVICES:
            path = Path("/dev", name)
            assert stat.S_ISCHR(path.stat().st_mode)
            self._bind(path, str(path), read_only=True)
        (self.root / "dev" / "fd").symlink_to("/proc/self/fd")

    def _settings(self, written: Mapping[str, str]) -> None:
        for pattern in SETTINGS:
            for path in Path("/etc").glob(pattern):
                self._bind(path, str(path), read_only=True)
        for name, text in written.items():
            (self._folder("/etc") / name).write_text(text)

    def _programs(self) -> None:
        """The image's psph and python."""
        folder = self._folder(self.image.environment["PATH"].split(":")[0])
        for name, words in (("python", [sys.executable]), ("psph", [sys.executable, "-m", "gateway.cli.main"])):
            (folder / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
            (folder / name).chmod(0o755)
        absent = self._folder(ABSENT)
        if self.image.target == "gateway":
            for name in absent_from_the_gateway():
                (absent / f"{name}.py").write_text(f"raise ModuleNotFoundError('not in the image', name={name!r})\n")
        for target in ("/run", self.image.folder):
            self._folder(target)
