"""Does the gateway's node find the rendezvous? Asked of the one that runs, or of one started for the question."""

import asyncio
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from gateway.gateway import GatewayConfig
from gateway.operations.findings import Finding, bad, doubtful, good
from gateway.protocols.psirp.protocol import SOCKET_NAME
from gateway.words import counted
from psirp_stack.authentication.keys import KeyFileError
from psirp_stack.graph import GraphError
from psirp_stack.links.udp import UdpAddress, UdpLink, bound_socket
from psirp_stack.node.api import Client, NotAttachedError, PsirpError
from psirp_stack.node.config import OPEN_DOMAIN, NodeConfigError, NodeFile, NodeRole, unprotected_links
from psirp_stack.node.shell import RunningNode
from storage import StorageError

LINKS = "links"
BUFFERS = "buffers"
RENDEZVOUS = "rendezvous"
PATIENCE = 5.0
LOOK_EVERY = 0.05


def check_links(node: NodeFile | None) -> Iterator[Finding]:
    """Can strangers speak on a link?"""
    leaving = [link for link in node.links if link.leaves_the_machine] if node is not None else []
    if node is None or not leaving:
        return
    if unprotected_links(node):
        fix = "make a secret with `psph keys setup`, name it as node.domain.secret_file, and leave node.domain.open out"
        yield bad(LINKS, OPEN_DOMAIN, fix)
    else:
        yield good(LINKS, f"{counted(len(leaving), 'link')} to other machines, sealed with the domain's secret")


def check_buffers(node: NodeFile | None) -> Iterator[Finding]:
    """Does the kernel give links the room they ask for?"""
    if node is None or not node.links:
        return
    here = UdpAddress("127.0.0.1", 0)
    probe = UdpLink(bound_socket(here), here)
    try:
        if probe.shortage is None:
            yield good(BUFFERS, f"links get {probe.receive_buffer >> 10} KiB to receive")
        else:
            yield doubtful(BUFFERS, probe.shortage, "raise both limits with sysctl, and keep them in /etc/sysctl.d")
    finally:
        probe.close()


async def check_rendezvous(config: GatewayConfig, *, running: bool, patience: float = PATIENCE) -> Finding:
    socket = config.network.attach or config.data / SOCKET_NAME
    node = config.network.node
    if node is not None and not running:
        return await _with_own_node(node, patience)
    try:
        async with asyncio.timeout(patience):
            client = await Client.attach(socket, application="psph doctor")
    except (NotAttachedError, TimeoutError, OSError) as error:
        what = (
            "start that node (`psph node`), or correct network.attach"
            if config.network.attach
            else "restart the gateway"
        )
        return bad(RENDEZVOUS, f"no node answers at {socket} ({error or 'too slow'})", what)
    async with client:
        return await _ask(client, patience)


async def _with_own_node(node: NodeFile, patience: float) -> Finding:
    """As the gateway would start it, but with an empty store that is thrown away."""
    if NodeRole.RENDEZVOUS in node.roles:
        return good(RENDEZVOUS, "this gateway's node is the rendezvous itself")
    with tempfile.TemporaryDirectory(prefix="psph-doctor-") as folder:
        socket = Path(folder) / SOCKET_NAME
        alone = msgspec.structs.replace(node, data=None)
        try:
            running = await RunningNode.start(alone, Path(folder))
        except (OSError, NodeConfigError, GraphError, KeyFileError, StorageError) as error:
            return bad(RENDEZVOUS, f"the node cannot be started: {error}", "correct what it says, and look again")
        try:
            await running.listen(socket)
            async with await Client.attach(socket, application="psph doctor") as client:
                return await _ask(client, patience)
        finally:
            await running.close()


class _LinkAccount(msgspec.Struct):
    neighbour: str | None = None


class _Account(msgspec.Struct):
    """What is of interest here of a node's account of itself."""

    rendezvous: tuple[str, ...] = ()
    links: tuple[_LinkAccount, ...] = ()


async def _ask(client: Client, patience: float) -> Finding:
    deadline = time.monotonic() + patience
    while True:
        try:
            async with asyncio.timeout(patience):
                document = await client.status()
            account = msgspec.json.decode(document, type=_Account)
        except (PsirpError, NotAttachedError, TimeoutError, msgspec.DecodeError) as error:
            return bad(RENDEZVOUS, f"the node does not say how it is ({error or 'too slow'})", "restart it")
        if account.rendezvous:
            return good(RENDEZVOUS, f"the rendezvous is {account.rendezvous[0]!r}, and there is a way to it")
        if time.monotonic() >= deadline:
            break
        await asyncio.sleep(LOOK_EVERY)
    if not any(link.neighbour for link in account.links):
        fix = (
            "look whether the neighbours run, and whether udp, peer, seed and secret_file agree at both ends of a link"
        )
        return bad(RENDEZVOUS, "no neighbour answers on any link", fix)
    fix = 'start the node with roles = ["rendezvous"], or look at the links between it and here'
    return bad(RENDEZVOUS, "neighbours answer, but none knows a rendezvous", fix)
