"""The compose file, alone or with others over it, and what it and the image say of a service, as values."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.gateway.containers.dockerfile_rules import stages

ROOT = Path(__file__).parents[3]
COMPOSE = ROOT / "docker-compose.yml"
RAW_ETHERNET = ROOT / "deploy" / "compose" / "raw-ethernet.yml"
UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
JOINED = ("cap_add", "cap_drop", "tmpfs")
"""Lists that compose puts together when one file lies over another; other lists are replaced."""


@dataclass(frozen=True, slots=True)
class Volume:
    source: str
    """A name, or a path of the repository with ./ in front."""
    target: str
    read_only: bool

    @property
    def named(self) -> bool:
        return not self.source.startswith(".")


@dataclass(frozen=True, slots=True)
class Image:
    """What a container has from its image."""

    target: str
    entrypoint: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str


class Service:
    """One service of the compose file."""

    def __init__(self, name: str, said: Mapping[str, Any]) -> None:
        self.name = name
        self.said = said
        user, group = said["user"].split(":")
        self.user, self.group = int(user), int(group)
        assert said["cap_drop"] == ["ALL"]
        self.capabilities = frozenset(said.get("cap_add", []))
        self.volumes = tuple(_volume(text) for text in said.get("volumes", []))
        self.tmpfs: dict[str, str] = dict(_halves(text) for text in said.get("tmpfs", []))

    @property
    def writable(self) -> set[str]:
        """Where something may be written."""
        return {volume.target for volume in self.volumes if not volume.read_only} | set(self.tmpfs)

    @property
    def memory(self) -> int:
        limit = self.said["mem_limit"]
        return int(limit[:-1]) * UNITS[limit[-1]]

    @property
    def address(self) -> str | None:
        """None for a service without a network."""
        if self.said.get("network_mode") == "none":
            return None
        return str(self.said["networks"]["psph"]["ipv4_address"])

    def words(self, image: Image) -> list[str]:
        """The whole command."""
        return [*self.said.get("entrypoint", image.entrypoint), *self.said["command"]]


def _halves(text: str) -> tuple[str, str]:
    first, _, second = text.partition(":")
    return first, second


def _volume(text: str) -> Volume:
    source, target, *how = text.split(":")
    assert how in ([], ["ro"])
    return Volume(source, target, bool(how))


def services(*over: Path) -> dict[str, Service]:
    document = yaml.safe_load(COMPOSE.read_text())["services"]
    for path in over:
        for name, said in yaml.safe_load(path.read_text())["services"].items():
            document[name] = _merged(document[name], said)
    return {name: Service(name, said) for name, said in document.items()}


def _merged(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """As the Compose specification merges a service: volumes by where they are mounted."""
    found = under | over
    for key in JOINED:
        if key in under and key in over:
            found[key] = [*under[key], *over[key]]
    if "volumes" in over:
        targets = {_volume(text).target: text for text in (*under.get("volumes", []), *over["volumes"])}
        found["volumes"] = list(targets.values())
    return found


def image(target: str) -> Image:
    (stage,) = (stage for stage in stages((ROOT / "Dockerfile").read_text()) if stage.name == target)
    steps = dict(stage.steps)
    environment = dict(re.findall(r"(\w+)=(\S+)", steps["ENV"]))
    return Image(target, tuple(json.loads(steps["ENTRYPOINT"])), environment, steps["WORKDIR"])
