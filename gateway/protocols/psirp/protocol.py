"""The PSIRP network as a protocol of the gateway: a node of its own, or one that runs already."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from exchange.model import SessionKey
from gateway.model import NetworkError, RefusedError
from gateway.protocols.descriptor import (
    Figure,
    ListeningDoor,
    LiveSetting,
    ProtocolDescriptor,
    ProtocolHost,
    RunningProtocol,
)
from gateway.protocols.psirp.adapter import NETWORK, PsirpAdapter
from gateway.protocols.psirp.exports import ExportStore
from gateway.protocols.psirp.network import PsirpNetwork
from gateway.protocols.psirp.scope_keys import ScopeKeys
from gateway.sections import SectionError, Sections, place_of
from identifiers import Identifier, ItemId
from psirp_stack.authentication.keys import KeyFileError
from psirp_stack.node.api import Client
from psirp_stack.node.config import NodeConfigError, NodeFile, read_secret
from psirp_stack.node.config import check as check_node
from psirp_stack.node.shell import RunningNode
from push_hub.health import Check
from storage.memory import MIB

SOCKET_NAME = "node.sock"
"""Applications of the group may attach to the node."""
PROBE_ITEM = ItemId(Identifier(bytes(31) + b"\x01"), Identifier(bytes(31) + b"\x02"))
"""Nobody's: the rendezvous says that it does not know it, which is all that is wanted."""
DEADLINE = 3.0


@dataclass(frozen=True, slots=True)
class PsirpConfig:
    """With `attach`, the node is one that runs already; otherwise the gateway runs its own."""

    node: NodeFile | None = None
    attach: Path | None = None
    scope_keys: ScopeKeys = field(default_factory=ScopeKeys)
    """What is sealed from gateway to gateway."""


class NetworkSection(Struct, frozen=True, forbid_unknown_fields=True):
    attach: Annotated[str, Meta(min_length=1)] | None = None
    """The socket of a node that runs already. Without it, the gateway runs the node of [node]."""
    sealed_file: Annotated[str, Meta(min_length=1)] | None = None
    """What is sealed from gateway to gateway, and with which keys."""


def psirp_config(sections: Sections) -> PsirpConfig:
    section = sections.read("network", NetworkSection)
    node = _node(sections)
    attach = None if section.attach is None else sections.path(section.attach)
    if (node is None) == (attach is None):
        raise SectionError("network.attach", "expected either this, or a section [node], and not both")
    if section.sealed_file is None:
        return PsirpConfig(node, attach)
    try:
        return PsirpConfig(node, attach, ScopeKeys.load(sections.path(section.sealed_file)))
    except KeyFileError as error:
        raise SectionError("network.sealed_file", str(error)) from None


def _node(sections: Sections) -> NodeFile | None:
    """The gateway's own node, with paths that no longer depend on where the file is."""
    given = sections.raw("node")
    if given is None:
        return None
    try:
        node = check_node(given)
    except NodeConfigError as error:
        key, what = place_of(str(error).removeprefix("configuration: "))
        raise SectionError(f"node.{key}" if key else "node", what) from None
    if node.socket is not None:
        raise SectionError("node.socket", "a gateway's own node listens beside the store: leave this out")
    if node.memory_mb is not None:
        raise SectionError("node.memory_mb", "a gateway and its own node share gateway.memory_mb: leave this out")
    domain, keys = node.domain, node.keys
    for key, name in (
        ("node.domain.graph_file", domain.graph_file),
        ("node.keys.signing", keys.signing),
        ("node.keys.trusted", keys.trusted),
        ("node.keys.grant", keys.grant),
        ("node.domain.key", domain.key),
    ):
        if name is not None and not sections.path(name).exists():
            raise SectionError(key, f"{sections.path(name)} is not there")
    if domain.secret_file is not None:
        try:
            read_secret(sections.path(domain.secret_file))
        except NodeConfigError as error:
            raise SectionError("node.domain.secret_file", str(error)) from None

    def absolute(name: str | None) -> str | None:
        return None if name is None else str(sections.path(name).absolute())

    return msgspec.structs.replace(
        node,
        # Without a store of its own, a node that is killed would forget what was acknowledged to publishers.
        data=absolute(node.data) or str((sections.data / "node").absolute()),
        memory_mb=sections.memory.total // MIB,
        domain=msgspec.structs.replace(
            domain,
            secret_file=absolute(domain.secret_file),
            graph_file=absolute(domain.graph_file),
            key=absolute(domain.key),
        ),
        keys=msgspec.structs.replace(
            keys, signing=absolute(keys.signing), trusted=absolute(keys.trusted), grant=absolute(keys.grant)
        ),
    )


@dataclass(frozen=True, slots=True)
class _Parts:
    client: Client
    exports: ExportStore
    network: PsirpNetwork
    adapter: PsirpAdapter


class PsirpProtocol(RunningProtocol[PsirpConfig]):
    def __init__(self, config: PsirpConfig, host: ProtocolHost) -> None:
        super().__init__(config, host)
        self.node: RunningNode | None = None
        self._parts: _Parts | None = None

    @property
    def socket(self) -> Path:
        """Where its node listens: for `psph explain`, and other applications."""
        return self.config.attach or self.host.data / SOCKET_NAME

    @property
    def client(self) -> Client:
        return self._attached.client

    @property
    def exports(self) -> ExportStore:
        return self._attached.exports

    @property
    def network(self) -> PsirpNetwork:
        return self._attached.network

    @property
    def adapter(self) -> PsirpAdapter:
        return self._attached.adapter

    @property
    def _attached(self) -> _Parts:
        if self._parts is None:
            raise RuntimeError("the gateway is not running")
        return self._parts

    async def prepare(self) -> None:
        config, host = self.config, self.host
        if config.attach is None:
            if config.node is None:
                raise ValueError("a gateway needs a node of its own, or one to attach to")
            self.node = await RunningNode.start(config.node, host.data, host.observer, queues=host.queues)
            await self.node.listen(self.socket)
            client = await Client.beside(self.node, application=host.name)
        else:
            client = await Client.attach(self.socket, application=host.name)
        exports = ExportStore(host.database)
        network = PsirpNetwork(client, host.access.admits, config.scope_keys)
        control = host.control
        adapter = PsirpAdapter(control.exchange, network, exports, control.config.sweep_every, host.observer)
        control.add_source(adapter)
        self._parts = _Parts(client, exports, network, adapter)

    async def start(self) -> None:
        await self.adapter.start()

    async def stop(self) -> None:
        parts, self._parts = self._parts, None
        if parts is not None:
            await parts.adapter.stop()
            await parts.client.close()
        node, self.node = self.node, None
        if node is not None:
            await node.close()

    async def end_session(self, key: SessionKey) -> bool:
        raise RefusedError("this is the way into the network for all that enters here: pause it, or stop the gateway")

    def take_up(self, config: PsirpConfig) -> None:
        super().take_up(config)
        self.network.scope_keys = config.scope_keys

    async def health(self) -> Sequence[Check]:
        try:
            async with asyncio.timeout(DEADLINE):
                await self.network.explain(PROBE_ITEM)
        except TimeoutError:
            return (Check("rendezvous", False, f"no answer within {DEADLINE:g} seconds"),)
        except NetworkError as error:
            return (Check("rendezvous", False, str(error)[:200]),)
        return (Check("rendezvous", True, "answers"),)

    def figures(self) -> Iterable[Figure]:
        yield Figure("unreadable", "Versions no gateway made.", self.network.unreadable, counts=True)
        times = self.client.reattachments
        yield Figure("reattachments", "Times the node was attached anew.", times, counts=True)

    def warnings(self) -> Sequence[str]:
        return () if self.node is None else self.node.warnings


def _links(config: PsirpConfig) -> Iterable[ListeningDoor]:
    for number, link in enumerate(config.node.links if config.node is not None else (), start=1):
        if link.udp is not None:
            host, port = link.udp_ends()[0]
            yield ListeningDoor(f"link {number} of the node", host, port, udp=True)


PSIRP = ProtocolDescriptor(
    label=NETWORK,
    title="the information-centric network, between the gateways of all domains",
    sections={"network": NetworkSection, "node": None},
    configured=psirp_config,
    make=PsirpProtocol,
    listening=_links,
    # What is sealed does not become open under its users: the last entry goes at a restart.
    live=(LiveSetting("scope_keys", may_end=False),),
)
