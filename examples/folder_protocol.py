"""A protocol of one's own behind a gateway: what is published under some topics becomes files in a folder.

In the gateway's file, with this module where Python finds it (`PYTHONPATH=examples psph gateway -c gateway.toml`):

    [gateway]
    protocols = ["folder_protocol:FOLDER"]

    [folder]
    path = "news"
    topics = ["http://blog.example/feed"]

It hears what comes by any other protocol, here or through the network, and goes on after a restart where it was.
CONTRIBUTING.md says what else a protocol may do.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from exchange.model import Interest, LogEntry, SessionKey
from gateway.model import RefusedError
from gateway.protocols.descriptor import ProtocolDescriptor, ProtocolHost, RunningProtocol
from gateway.sections import SectionError, Sections
from identifiers import ItemId, Naming, Topic, TopicError


class FolderSection(Struct, frozen=True, forbid_unknown_fields=True):
    """Its keys in the gateway's file."""

    path: str = ""
    topics: tuple[str, ...] = ()


@dataclass(frozen=True)
class FolderConfig:
    path: Path
    topics: tuple[str, ...]


def folder_config(sections: Sections) -> FolderConfig | None:
    section = sections.read("folder", FolderSection)
    if not section.path:
        return None  # the protocol is off
    for topic in section.topics:
        try:
            Topic.parse(topic)
        except TopicError as error:
            raise SectionError("folder.topics", f"{topic!r}: {error}") from None
    return FolderConfig(sections.path(section.path), section.topics)


class FolderAdapter:
    """One session for each topic; the exchange hands it what it lacks, and keeps how far it is."""

    name = "folder"
    hears_own = False
    keeps_rules = False

    def __init__(self, path: Path, naming: Naming) -> None:
        self._path = path
        self._naming = naming
        self.written = 0

    def item_of(self, what: str) -> ItemId:
        try:
            return self._naming.of_topic(Topic.parse(what))
        except TopicError as error:
            raise RefusedError(str(error)) from None

    async def deliver(self, key: SessionKey, entry: LogEntry, interests: Sequence[Interest]) -> None:
        # Any exception but RefusedError is «again, later», for this session alone.
        name = f"{entry.position:06}-{hashlib.sha256(entry.draft.name.encode()).hexdigest()[:8]}"
        (self._path / name).write_bytes(entry.draft.body)
        self.written += 1


class FolderProtocol(RunningProtocol[FolderConfig]):
    def __init__(self, config: FolderConfig, host: ProtocolHost) -> None:
        super().__init__(config, host)
        self.adapter = FolderAdapter(config.path, host.naming)

    async def start(self) -> None:
        self.config.path.mkdir(parents=True, exist_ok=True)
        self.host.control.add(self.adapter)
        for topic in self.config.topics:
            await self.host.control.subscribe(self.adapter, f"reader of {topic}", topic)

    def panel(self) -> list[tuple[str, str | int]]:
        return [("files written", self.adapter.written)]


FOLDER = ProtocolDescriptor(
    label="folder",
    title="files in a folder",
    sections={"folder": FolderSection},
    configured=folder_config,
    make=FolderProtocol,
)
