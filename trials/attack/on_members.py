"""A member of the domain that turns bad: it knows the secret, has a node of its own and a key that nobody named.

Its node is a real one, at the place of the neighbour that the attacked gateway waits for. What it makes up goes into
the network as that node's own frames do. It stands at the end of a cable, so it sees nothing of what others say.
"""

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from psirp_stack.control.codes import Code, Function
from psirp_stack.control.messages import (
    Declare,
    KeepAlive,
    Message,
    UnpublishItem,
    UnpublishScope,
    UnsubscribeItem,
    encode,
)
from psirp_stack.node.api import Client, PsirpError
from psirp_stack.node.config import DomainFile, KeysFile, LinkFile, NodeFile, NodeRole, TimesFile
from psirp_stack.node.shell import RunningNode
from trials.attack.forgery import FAR_EPOCH, FEED_ITEM, forged_contents, huge_announcement, letter, orders, publication
from trials.attack.networks import KEYS, MEMBER, SHORT_LEASE
from trials.attack.places import HUB, ITEM, STRANGER, UNUSED_PORT
from trials.attack.stranger import Attack, Stranger, Victim

OTHERS = ("hub", "core", "far")
PAUSE = 0.02
JOIN_PATIENCE = 20.0
NUMBERS = 64
"""Of messages of others that are tried: their next one is among these, early in their life."""


class BadMember:
    """Its node, and what it knows of others."""

    def __init__(self, stranger: Stranger, node: RunningNode, socket: Path) -> None:
        self._stranger = stranger
        self.running = node
        self.socket = socket
        self._numbers = 0

    @classmethod
    async def join(cls, stranger: Stranger, roles: Sequence[NodeRole] = ()) -> "BadMember":
        if stranger.folder is None:
            raise ValueError("only a member can do this")
        folder = Path(tempfile.mkdtemp(prefix="psph-member-"))
        keys = stranger.folder / KEYS
        file = NodeFile(
            name=MEMBER,
            roles=tuple(roles),
            data="node",
            socket="node.sock",
            domain=DomainFile(secret_file=str(keys / "domain.secret"), key=str(keys / "domain.pub")),
            keys=KeysFile(signing=str(stranger.folder / MEMBER / f"{MEMBER}.key")),
            links=(LinkFile(udp=f"{STRANGER}:{UNUSED_PORT}", peer=f"{HUB}:{UNUSED_PORT}"),),
            times=TimesFile(lease=SHORT_LEASE),
        )
        running = await RunningNode.start(file, folder)
        member = cls(stranger, running, folder / file.socket if file.socket else folder)
        until = time.monotonic() + JOIN_PATIENCE
        while any(running.node.link_state.route_to(name) is None for name in OTHERS):
            if time.monotonic() > until:
                raise TimeoutError("the member does not get into the network")
            await asyncio.sleep(0.05)
        return member

    def filter_to(self, name: str) -> bytes:
        route = self.running.node.link_state.route_to(name)
        return bytes(32) if route is None else route.fid

    def life_of(self, name: str) -> int:
        """The number of its present life: everybody in the network knows it."""
        return self.running.node.link_state._database.origins[name].version[0]

    def say(self, frames: Sequence[bytes], what: str) -> None:
        self.running.node.forwarder.forward(frames, None, asyncio.get_running_loop().time())
        self._stranger.counts[what] += len(frames)

    def tell(self, to: str, function: Function, message: Message) -> None:
        """In its own name, as nodes do."""
        node, now = self.running.node, asyncio.get_running_loop().time()
        if node.courier.room(to):
            node.courier.send(to, function, encode(message), now)
            self._stranger.counts["messages"] += 1
        node.handle_timer(now)


async def role_claims(stranger: Stranger) -> None:
    """It says that it is rendezvous and topology manager, and gives orders as one."""
    member = await BadMember.join(stranger, (NodeRole.RENDEZVOUS, NodeRole.TOPOLOGY))
    try:
        while stranger.goes_on:
            for item in (ITEM, FEED_ITEM):
                for to, message in orders(item):
                    member.tell(to, Function.NODE, message)
            await stranger.pause(PAUSE)
        trusted = member.running.node.link_state.nodes_with  # what it believes of itself
        stranger.counts["roles claimed"] += len(NodeRole) if trusted is not None else 0
    finally:
        await member.running.close()


async def foreign_items(stranger: Stranger) -> None:
    """It publishes what others publish: asks for it, and forges publications, also of epochs far ahead and huge."""
    member = await BadMember.join(stranger)
    wall_ms = time.time_ns() // 1_000_000
    try:
        async with await Client.attach(member.socket, application="bad") as client:
            turn = 0
            while stranger.goes_on:
                turn += 1
                await _publish_as_oneself(stranger, client)
                fid = member.filter_to("far")
                for item, content in forged_contents().items():
                    for boot in (member.life_of("hub"), FAR_EPOCH >> 24):
                        for publisher in ("hub", "core", MEMBER):
                            frames = publication(item, content, publisher, "far", fid, boot, wall_ms)
                            member.say(frames, "forged publications")
                    huge = huge_announcement(item, "hub", fid, (member.life_of("hub") << 24) + turn, turn)
                    member.say(huge, "huge announcements")
                await stranger.pause(PAUSE)
    finally:
        await member.running.close()


async def _publish_as_oneself(stranger: Stranger, client: Client) -> None:
    try:
        async with asyncio.timeout(2.0):
            await client.publish(ITEM.sid, ITEM.rid, forged_contents()[ITEM])
    except PsirpError as error:
        stranger.counts[f"publishing: {error.code.name}"] += 1
        if error.code is not Code.NOT_ALLOWED:
            return
    except TimeoutError:
        stranger.counts["publishing: no answer"] += 1
    else:
        stranger.breach("a member published under an item whose policy names another key")


async def foreign_names(stranger: Stranger) -> None:
    """It writes other nodes' names under messages: withdraws, unsubscribes, begins new lives for them, gives orders."""
    member = await BadMember.join(stranger)
    sid, rid = bytes(ITEM.sid), bytes(ITEM.rid)
    feed_sid, feed_rid = bytes(FEED_ITEM.sid), bytes(FEED_ITEM.rid)
    try:
        turn = 0
        while stranger.goes_on:
            turn += 1
            for boot_of in (member.life_of, lambda name: FAR_EPOCH):
                number = turn % NUMBERS
                requests: list[tuple[str, Message]] = [
                    ("far", UnsubscribeItem(number, sid, rid)),
                    ("far", UnsubscribeItem(number, feed_sid, feed_rid)),
                    ("far", Declare(number, boot_of("far"), 0, 1, ())),
                    ("far", KeepAlive(number, boot_of("far"), 0)),
                    ("hub", UnpublishItem(number, sid, rid)),
                    ("hub", UnpublishScope(number, sid)),
                    ("hub", Declare(number, boot_of("hub"), 0, 1, ())),
                ]
                to_core = member.filter_to("core")
                for source, request in requests:
                    frame = letter(source, boot_of(source), number, "core", Function.RENDEZVOUS, request, to_core)
                    member.say([frame], "requests in others' names")
                for item in (ITEM, FEED_ITEM):
                    for to, order in orders(item):
                        frame = letter("core", boot_of("core"), number, to, Function.NODE, order, member.filter_to(to))
                        member.say([frame], "orders in others' names")
            await stranger.pause(PAUSE)
    finally:
        await member.running.close()


ATTACKS = (
    Attack("role-claims", "a member says that it has all roles, and gives orders", role_claims, Victim.MEMBERS),
    Attack(
        "foreign-items",
        "a member publishes what others publish: epochs of 2^62, 16 MiB in small segments",
        foreign_items,
        Victim.MEMBERS,
    ),
    Attack("foreign-names", "a member writes others' names under requests and orders", foreign_names, Victim.MEMBERS),
)
