"""A node on an event loop: links, clock, store and the socket for applications. Thin: every decision is in `core`."""

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from psirp_stack.authentication.files import load_key_pair, load_public_key, load_trusted
from psirp_stack.authentication.signing import Signer
from psirp_stack.authentication.verifying import SignatureVerifier
from psirp_stack.control.codes import ServiceRole
from psirp_stack.control.grant_files import load_grant
from psirp_stack.control.link_state_settings import LinkStateConfig
from psirp_stack.control.role_grants import GrantError, RoleHolder, RoleTrust, describe_roles
from psirp_stack.control.tag_source import DerivedTags, PlacedTags, TagSource
from psirp_stack.edge_list_file import read_edges
from psirp_stack.forwarding_model import LinkNumber
from psirp_stack.forwarding_node import LoopScheduler
from psirp_stack.graph import Graph
from psirp_stack.links.account import account_of, carrier_of, sealed_in
from psirp_stack.links.ethernet import EthernetLink
from psirp_stack.links.impairment import ImpairedLink, Impairment
from psirp_stack.links.interface import DEFAULT_BATCH, BatchLink, CarrierState, Link, TellingLink
from psirp_stack.links.interface_states import InterfaceStates
from psirp_stack.links.queued import QueuedLink
from psirp_stack.links.sealed import SealedLink
from psirp_stack.links.udp import DEFAULT_MTU, UdpAddress, UdpLink, bound_socket
from psirp_stack.node.applications import Application
from psirp_stack.node.attachment import Asked, Consumed, Told
from psirp_stack.node.config import (
    OPEN_DOMAIN,
    LinkFile,
    NodeConfigError,
    NodeFile,
    NodeRole,
    check_protection,
    read_secret,
    unprotected_links,
)
from psirp_stack.node.core import Node
from psirp_stack.node.intents import IntentConfig
from psirp_stack.node.node_queues import NodeQueues
from psirp_stack.node.server import AttachmentServer
from psirp_stack.node.settings import NodeObserver, NodeSettings
from psirp_stack.node.signatures import NodeSignatures
from psirp_stack.node.version_store import TRANSPORT_TABLES, on_disk
from psirp_stack.pull.service import VersionCacheConfig
from psirp_stack.rendezvous import Rendezvous, RendezvousConfig
from psirp_stack.sealing.channel import SealConfig
from psirp_stack.sealing.keys import DomainKeys
from psirp_stack.transport.config import TransportConfig
from psirp_stack.transport.versions import RetentionLimits, VersionsFor, in_memory
from storage import Database
from storage.memory import MIB, MemoryBudget
from storage.private import make_private_folder, write_private_file
from storage.queues import QueueObserver, watch_queue

Result = TypeVar("Result")

LIFE_NAME = "life"
VERSIONS_NAME = "versions.sqlite"
RENDEZVOUS_NAME = "rendezvous.sqlite"

KEEP_ALIVES_A_LEASE = 3.5
SILENT_HELLOS = 3
"""Hellos that a neighbour leaves out before a sealed link asks whether it has begun a new life."""
ON_REQUEST_ABOVE = 4096
"""Bytes up to which a version is sent at once: asking for it would take a round trip more."""
LIVES_PER_SECOND = 100
"""Resolution of the boot number: hundredths of a second since the epoch, and more than the one before."""
ROLES = {NodeRole.RENDEZVOUS: ServiceRole.RENDEZVOUS, NodeRole.TOPOLOGY: ServiceRole.TOPOLOGY}


class RunningNode:
    """One node on the running event loop. Start it with `RunningNode.start`, end it with `close`."""

    def __init__(
        self,
        settings: NodeSettings,
        *,
        versions_for: VersionsFor,
        rendezvous: Rendezvous | None = None,
        signatures: NodeSignatures | None = None,
        observer: NodeObserver | None = None,
        close_stores: tuple[Callable[[], object], ...] = (),
        queues: QueueObserver | None = None,
    ) -> None:
        """`queues` is told of every stay in a queue, and of links that come and go."""
        self._tell_queue = queues
        self._queues = None if queues is None else NodeQueues(queues, observer)
        if self._queues is not None:
            settings, observer = replace(settings, tell_sending=True), self._queues.observe
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._close_stores = close_stores
        self._links: dict[LinkNumber, Link] = {}
        self._watched: list[int] = []
        self._telling: list[TellingLink] = []
        self._interfaces: InterfaceStates | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None
        self._server: AttachmentServer | None = None
        self._closed = False
        self.warnings: list[str] = []
        """What an operator should know of this node as it was started."""
        self.node = Node(
            settings,
            now=self._loop.time(),
            rng=random.Random(),  # noqa: S311  (jitter, not a secret)
            wall_ms=lambda _: int(time.time() * 1000),
            when_done=self._when_done,
            versions_for=versions_for,
            rendezvous=rendezvous,
            signatures=signatures,
            observer=observer,
        )
        self._arm()

    @classmethod
    async def start(
        cls,
        file: NodeFile,
        folder: Path,
        observer: NodeObserver | None = None,
        change: Callable[[NodeSettings], NodeSettings] = lambda given: given,
        queues: QueueObserver | None = None,
    ) -> "RunningNode":
        """Open stores, links and socket as the configuration says; paths in it are relative to `folder`.

        `change` is an experiment's word on what the file does not say.
        """
        check_protection(file)
        secret = None if file.domain.secret_file is None else read_secret(folder / file.domain.secret_file)
        domain = None if secret is None else DomainKeys.of(secret)
        silence = max(SealConfig().silence, SILENT_HELLOS * file.times.hello)
        tags, fixed = _tags(file, folder)
        boot = next_boot(None if file.data is None else folder / file.data)
        lease = file.times.lease
        settings = NodeSettings(
            name=file.name,
            boot=boot,
            tags=tags,
            roles=sum(ROLES[role] for role in set(file.roles)),
            fixed=fixed,
            link_state=LinkStateConfig(hello_interval=file.times.hello),
            intents=IntentConfig(keep_alive=lease / KEEP_ALIVES_A_LEASE),
            cache=VersionCacheConfig(file.cache.bytes, file.cache.strategy),
            transport=within(memory_of(file), transport_beside(file.cache.bytes)),
        )
        signer, holder = _proofs(file, folder)
        settings = replace(settings, trust=_trust(file, folder), holder=holder)
        verifier = (
            SignatureVerifier(load_trusted(folder / file.keys.trusted)) if file.keys.trusted is not None else None
        )
        signatures = NodeSignatures(file.name, signer, verifier, require_signatures=file.keys.require_signatures)
        limits = RetentionLimits(file.retention.count, file.retention.bytes, file.retention.age)
        closing: list[Callable[[], object]] = []
        loop = asyncio.get_running_loop()
        rendezvous = None
        if NodeRole.RENDEZVOUS in file.roles:
            if file.data is None:
                raise NodeConfigError("data: a node with the rendezvous role needs a directory for its store")
            store = folder / file.data / RENDEZVOUS_NAME
            open_it = partial(Rendezvous.open, store, RendezvousConfig(lease=lease), now=loop.time(), verifier=verifier)
            rendezvous = await loop.run_in_executor(None, open_it)
            closing.append(rendezvous.close)
        versions_for = in_memory(boot, limits)
        if file.data is not None:
            kept = Database.open(folder / file.data / VERSIONS_NAME, TRANSPORT_TABLES, queues=queues)
            versions_for = on_disk(kept, boot, limits)
            closing.append(kept.close)
        running = cls(
            change(settings),
            versions_for=versions_for,
            rendezvous=rendezvous,
            signatures=signatures,
            observer=observer,
            close_stores=tuple(closing),
            queues=queues,
        )
        try:
            for number, link in enumerate(file.links, start=1):
                running.add_link(number, _open_link(link, number, loop, domain, SealConfig(silence=silence)))
            if unprotected_links(file):
                running.warnings.append(OPEN_DOMAIN)
            if file.socket is not None:
                await running.listen(folder / file.socket)
        except BaseException:
            await running.close()
            raise
        return running

    async def listen(self, path: Path) -> None:
        """Let applications attach at a Unix socket."""
        self._server = AttachmentServer(self, path)
        await self._server.start()

    def add_link(self, number: LinkNumber, link: Link) -> None:
        """Start to use a link. It is the node's from now on and closed with it."""
        self._links[number] = link
        if isinstance(queued := link.link if isinstance(link, ImpairedLink) else link, QueuedLink):
            queued.follow(watch_queue(f"link/{number}", self._tell_queue))
        link.on_receive(partial(self._received, number))
        carrier = carrier_of(link)
        if isinstance(carrier, TellingLink):
            carrier.on_carrier(partial(self._carrier_is, number))
            self._telling.append(carrier)
        if isinstance(carrier, EthernetLink):
            self._watch_interface(carrier.interface, number)
        if isinstance(carrier, (EthernetLink, UdpLink)):
            self._watched.append(carrier.fileno())
            self._loop.add_reader(carrier.fileno(), carrier.drain, DEFAULT_BATCH)
        many = link.send_many if isinstance(link, BatchLink) else None
        account = partial(account_of, link)
        if (shortage := account().shortage) is not None:
            self.warnings.append(f"link {number}: {shortage}")
        self.node.add_link(number, link.send, link.mtu, self._loop.time(), send_many=many, account=account)
        if (seal := sealed_in(link)) is not None:
            seal.when_proved(partial(self._proved, number))
        self._arm()

    def remove_link(self, number: LinkNumber) -> None:
        """Use a link no more, and close it."""
        link = self._links.pop(number)
        carrier = carrier_of(link)
        if isinstance(carrier, TellingLink):
            carrier.on_carrier(None)
            self._telling.remove(carrier)
        if isinstance(carrier, (EthernetLink, UdpLink)):
            self._watched.remove(carrier.fileno())
            self._loop.remove_reader(carrier.fileno())
        link.on_receive(None)
        link.close()
        self.node.remove_link(number, self._loop.time())
        self._arm()

    def link(self, number: LinkNumber) -> Link:
        return self._links[number]

    async def close(self) -> None:
        """Let applications go, close links and stores. What was acknowledged is on disk already."""
        if self._closed:
            return
        self._closed = True
        if self._server is not None:
            await self._server.close()
        if self._timer is not None:
            self._timer.cancel()
        for descriptor in self._watched:
            self._loop.remove_reader(descriptor)
        for carrier in self._telling:
            carrier.on_carrier(None)
        if self._interfaces is not None:
            self._loop.remove_reader(self._interfaces.fileno())
            self._interfaces.close()
        for link in self._links.values():
            link.on_receive(None)
            link.close()
        for close in self._close_stores:
            await self._loop.run_in_executor(None, close)

    # For applications.

    def attach(self, name: str, tell: Callable[[Told], None]) -> Application | None:
        return self.node.attach(name, tell)

    def detach(self, application: Application) -> None:
        if not self._closed:
            self.node.detach(application, self._loop.time())
            self._arm()

    def ask(self, application: Application, request: Asked | Consumed) -> None:
        if not self._closed:
            self.node.ask(application, request, self._loop.time())
            self._arm()

    # What the loop calls.

    def _received(self, number: LinkNumber, frames: "list[bytes]") -> None:
        if self._queues is None:
            self.node.receive(number, frames, self._loop.time())
        else:
            self._queues.forwarded(frames, partial(self.node.receive, number, frames, self._loop.time()))
        self._arm()

    def _proved(self, number: LinkNumber) -> None:
        self.node.neighbour_proved(number, self._loop.time())
        self._arm()

    def _carrier_is(self, number: LinkNumber, state: CarrierState) -> None:
        # Not at once: a carrier may say so while the node is sending.
        self._loop.call_soon(self._tell_carrier, number, state)

    def _tell_carrier(self, number: LinkNumber, state: CarrierState) -> None:
        if not self._closed:
            self.node.carrier_is(number, state, self._loop.time())
            self._arm()

    def _watch_interface(self, interface: str, number: LinkNumber) -> None:
        if self._interfaces is None:
            self._interfaces = InterfaceStates()
            self._loop.add_reader(self._interfaces.fileno(), self._interfaces.drain)
        self._interfaces.watch(interface, partial(self._carrier_is, number))

    def _when_done(self, promise: Future[Result], then: Callable[[], None]) -> None:
        def kept() -> None:
            if not self._closed:
                self.node.at(self._loop.time())
                then()
                self._arm()

        promise.add_done_callback(lambda _: self._soon(kept))

    def _soon(self, action: Callable[[], None]) -> None:
        if threading.get_ident() == self._thread:
            self._loop.call_soon(action)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(action)

    def _arm(self) -> None:
        """Wake when the node next has something to do."""
        when = self.node.next_timer()
        if when == self._timer_at or self._closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = when
        self._timer = None if when is None else self._loop.call_at(when, self._tick)

    def _tick(self) -> None:
        self._timer_at = None
        self.node.handle_timer(self._loop.time())
        self._arm()


def transport_beside(cache_bytes: int) -> TransportConfig:
    """Where nodes keep versions, those who come late ask for what is large: the nearest node that has it answers."""
    return TransportConfig(on_request_above=ON_REQUEST_ABOVE) if cache_bytes else TransportConfig()


def memory_of(file: NodeFile) -> MemoryBudget:
    return MemoryBudget() if file.memory_mb is None else MemoryBudget(file.memory_mb * MIB)


def within(memory: MemoryBudget, config: TransportConfig) -> TransportConfig:
    """What arrives by one link, or from one source, is a part of what may be held, and leaves others room."""
    held = min(memory.arriving, config.reassembly_bytes)
    return replace(
        config,
        max_pending_bytes=min(memory.sent, config.max_pending_bytes),
        reassembly_bytes=held,
        reassembly_bytes_per_link=min(config.reassembly_bytes_per_link, held * 3 // 4),
        reassembly_bytes_per_source=min(config.reassembly_bytes_per_source, held // 2),
    )


def next_boot(data: Path | None) -> int:
    """A number for this life, higher than that of every life before, also when the clock went back."""
    boot = int(time.time() * LIVES_PER_SECOND)
    if data is None:
        return boot
    make_private_folder(data, (LIFE_NAME, VERSIONS_NAME, RENDEZVOUS_NAME))
    life = data / LIFE_NAME
    if life.exists():
        boot = max(boot, int(life.read_text()) + 1)
    write_private_file(life, f"{boot}\n".encode())
    return boot


def _tags(file: NodeFile, folder: Path) -> tuple[TagSource, Graph | None]:
    seed = file.domain.seed.encode()
    if file.domain.graph_file is None:
        return DerivedTags(seed), None
    graph = read_edges(folder / file.domain.graph_file)
    return PlacedTags(graph, seed), graph


def _trust(file: NodeFile, folder: Path) -> RoleTrust:
    named = {ServiceRole.RENDEZVOUS: file.domain.rendezvous, ServiceRole.TOPOLOGY: file.domain.topology}
    return RoleTrust(named, None if file.domain.key is None else load_public_key(folder / file.domain.key))


def _proofs(file: NodeFile, folder: Path) -> tuple[Signer | None, RoleHolder | None]:
    """What this node signs with, and its proof that it may have its roles."""
    if file.keys.signing is None:
        return None, None
    key = load_key_pair(folder / file.keys.signing)
    signer = Signer(key, int(time.time() * 1000))
    if file.keys.grant is None:
        return signer, None
    grant = load_grant(folder / file.keys.grant)
    if grant.node != file.name:
        raise NodeConfigError(f"keys.grant: the grant is for {grant.node!r}, and this node is {file.name!r}")
    missing = sum(ROLES[role] for role in set(file.roles)) & ~grant.roles
    if missing:
        raise NodeConfigError(f"keys.grant: not for the role of {describe_roles(missing)}")
    try:
        return signer, RoleHolder(grant, key)
    except GrantError as error:
        raise NodeConfigError(f"keys.grant: {error}") from None


def _open_link(
    file: LinkFile,
    number: int,
    loop: asyncio.AbstractEventLoop,
    domain: DomainKeys | None,
    config: SealConfig,
) -> Link:
    """The carrier, sealed if the domain has a secret, queued, then as bad as wanted."""
    link: Link
    if file.ethernet is not None:
        link = EthernetLink(file.ethernet)
    else:
        local, peer = file.udp_ends()
        link = UdpLink(bound_socket(UdpAddress(*local)), UdpAddress(*peer), mtu=file.mtu or DEFAULT_MTU)
    if domain is not None:
        link = SealedLink(link, domain, LoopScheduler(loop), os.urandom, config)
    link = QueuedLink(link, LoopScheduler(loop))
    if file.impaired is None:
        return link
    bad = file.impaired
    impairment = Impairment(bad.delay, bad.jitter, bad.loss, bad.duplication, bad.reorder, bad.bandwidth, bad.queue)
    return ImpairedLink(link, impairment, LoopScheduler(loop), bad.seed + number)
