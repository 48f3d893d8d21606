"""Random well-formed messages, thousands of them, many at once: every one is answered, and nothing breaks.

`PSPH_FUZZ=1000000` makes it long.
"""

import os
import random
from collections import Counter
from concurrent.futures import Future
from pathlib import Path

import msgspec

from psirp_stack.authentication.signing import Signable, Signer
from psirp_stack.control.codes import Code, Function, control_scope
from psirp_stack.control.messages import (
    ROOT_SCOPE,
    Credential,
    Declaration,
    Declare,
    Explain,
    Explanation,
    KeepAlive,
    MatchServed,
    PublishItem,
    PublishScope,
    RendezvousRequest,
    Reply,
    ScopePolicy,
    SubscribeItem,
    SubscribeScope,
    TopologyStarted,
    UnpublishItem,
    UnpublishScope,
    UnsubscribeItem,
    UnsubscribeScope,
    decode,
    encode,
)
from psirp_stack.rendezvous import DeclaredRole, Rendezvous, RendezvousConfig, RequestOutcome
from psirp_stack.rendezvous.declarations import declarations_digest
from psirp_stack.rendezvous.events import RendezvousEvent, WorkFailed
from psirp_stack.rendezvous.schema import MIGRATIONS
from psirp_stack.rendezvous.session import allowed
from psirp_stack.rendezvous.tables import ROOT, NodeLife
from storage import Database
from tests.psirp_stack.rendezvous.rendezvous_support import NOW_MS, S, T, U, X, Y, ident, signer

MESSAGES = int(os.environ.get("PSPH_FUZZ", "4000"))
IN_FLIGHT = 50
LARGEST = (1 << 63) - 1
IDS = (ROOT_SCOPE, S, T, U, X, Y, ident(LARGEST), b"\xff" * 32, control_scope(Function.RENDEZVOUS))
NAMES = ("a", "b", "c", "d", "Z" * 64)
SIGNERS = [signer(n) for n in (1, 2)]


class Generator:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def id(self) -> bytes:
        return self.rng.choice(IDS) if self.rng.random() < 0.95 else self.rng.randbytes(32)

    def count(self) -> int:
        return self.rng.choice((0, 1, 2, 3, self.rng.randrange(LARGEST + 1), LARGEST))

    def policy(self) -> ScopePolicy | None:
        if self.rng.random() < 0.7:
            return None
        keys = tuple(one.key.hash for one in SIGNERS if self.rng.random() < 0.5)
        return ScopePolicy(
            keys if self.rng.random() < 0.5 else None,
            keys if self.rng.random() < 0.5 else None,
            self.rng.random() < 0.5,
        )

    def credential(self, signable: Signable, node: str) -> Credential | None:
        chance = self.rng.random()
        if chance < 0.6:
            return None
        if chance < 0.7:
            return Credential(self.rng.randbytes(32), self.count(), self.count(), self.rng.randbytes(64))
        by: Signer = self.rng.choice(SIGNERS)
        return by.credential(signable, node if chance < 0.95 else "other", NOW_MS)

    def declaration(self, node: str) -> Declaration:
        plain = Declaration(self.rng.randrange(4), self.id(), self.id())
        return Declaration(plain.role, plain.sid, plain.rid, self.credential(plain, node))

    def request(self, node: str, boot: int) -> RendezvousRequest:
        rng, number = self.rng, self.count()
        kind = rng.randrange(13)
        if kind < 2:
            scope = PublishScope(number, self.id(), self.id(), self.policy())
            return PublishScope(number, scope.sid, scope.parent, scope.policy, self.credential(scope, node))
        if kind < 3:
            return UnpublishScope(number, self.id(), self.id())
        if kind < 4:
            watched = SubscribeScope(number, self.id())
            return SubscribeScope(number, watched.sid, self.credential(watched, node))
        if kind < 5:
            return UnsubscribeScope(number, self.id())
        if kind < 6:
            item = PublishItem(number, self.id(), self.id())
            return PublishItem(number, item.sid, item.rid, self.credential(item, node))
        if kind < 7:
            wanted = SubscribeItem(number, self.id(), self.id())
            return SubscribeItem(number, wanted.sid, wanted.rid, self.credential(wanted, node))
        if kind < 8:
            return UnpublishItem(number, self.id(), self.id())
        if kind < 9:
            return UnsubscribeItem(number, self.id(), self.id())
        if kind < 10:
            return KeepAlive(number, rng.choice((boot, self.count())), self.count())
        if kind < 12:
            entries = tuple(self.declaration(node) for _ in range(rng.randrange(5)))
            parts = rng.choice((1, 1, 2, 3, self.count()))
            return Declare(number, rng.choice((boot, boot, self.count())), rng.choice((0, 0, 1, 2)), parts, entries)
        return Explain(number, self.id(), self.id())

    def topology(self) -> MatchServed | TopologyStarted:
        if self.rng.random() < 0.1:
            return TopologyStarted(self.count())
        unserved = tuple((name, self.rng.randrange(30)) for name in NAMES if self.rng.random() < 0.2)
        return MatchServed(self.id(), self.id(), self.count(), unserved)


def test_every_well_formed_message_is_answered(tmp_path: Path) -> None:
    make = Generator(3)
    rng = make.rng
    events: list[RendezvousEvent] = []
    config = RendezvousConfig(
        portion=3, lease=5, max_items_per_node=6, max_scopes_per_node=5, max_subscribers_per_item=2
    )
    rendezvous = Rendezvous.open(tmp_path / "fuzz.db", config, now=0.0, observer=events.append)
    under_way: list[tuple[RendezvousRequest | None, Future[RequestOutcome]]] = []
    codes: Counter[Code] = Counter()
    now = 0.0
    for step in range(MESSAGES):
        now += rng.random() * 0.02
        node, boot = rng.choice(NAMES), 1 + step // 200
        if rng.random() < 0.1:
            boot = LARGEST if node == NAMES[-1] else rng.choice((0, 1))
        chance = rng.random()
        if chance < 0.85:
            request = make.request(node, boot)
            assert decode(encode(request)) == request, "what is sent here could come over the wire"
            under_way.append((request, rendezvous.handle(node, boot, request, now, NOW_MS)))
        elif chance < 0.93:
            under_way.append((None, rendezvous.handle_topology(make.topology(), now)))
        elif (future := rendezvous.handle_timer(now)) is not None:
            under_way.append((None, future))
        if len(under_way) > IN_FLIGHT or step == MESSAGES - 1:
            for asked, done in under_way:
                codes.update(check(asked, done.result(20)))
            under_way.clear()
        if step % 1000 == 999:
            rendezvous.close()
            rendezvous = Rendezvous.open(tmp_path / "fuzz.db", config, now=now, observer=events.append)
    assert not [event for event in events if isinstance(event, WorkFailed)]
    reached = {Code.SUCCESS, Code.WRONG_IDS, Code.EXISTS, Code.NOT_ALLOWED, Code.BAD_SIGNATURE, Code.LIMIT_REACHED}
    assert reached <= set(codes), "the messages were too tame"
    while (due := rendezvous.next_timer()) is not None and due <= now:
        future = rendezvous.handle_timer(now)
        assert future is not None
        future.result(20)
    rendezvous.close()
    with Database.open(tmp_path / "fuzz.db", MIGRATIONS) as database:
        check_tables(database)


def check_tables(database: Database) -> None:
    """What is kept twice, to be fast, says the same twice; and nobody is where the policy does not let him be."""
    scopes = {
        no: (sid, present, policy)
        for no, sid, present, policy in database.read("SELECT no, sid, present, policy FROM scopes")
    }
    items = {row[0]: row[1:] for row in database.read("SELECT no, scope, rid, publishers, subscribers FROM items")}
    nodes = {row[0]: row[1:] for row in database.read("SELECT no, name, state, digest, items, watches FROM nodes")}
    members = database.read("SELECT item, role, node, key FROM members")
    watchers = database.read("SELECT scope, node, key FROM watchers")
    edges = database.read("SELECT child, parent FROM edges")
    assert members, "there is something to check"
    declared: dict[int, list[tuple[DeclaredRole, bytes, bytes]]] = {no: [] for no in nodes}
    for item, role, node, key in members:
        scope, rid, *_ = items[item]
        sid, present, policy = scopes[scope]
        declared[node].append((DeclaredRole(role), sid, rid))
        assert (
            not present
            or policy is None
            or allowed(msgspec.msgpack.decode(policy, type=ScopePolicy), DeclaredRole(role), key)
        )
    for scope, node, key in watchers:
        sid, present, policy = scopes[scope]
        declared[node].append((DeclaredRole.WATCHES, sid, ROOT_SCOPE))
        assert (
            not present
            or policy is None
            or allowed(msgspec.msgpack.decode(policy, type=ScopePolicy), DeclaredRole.SUBSCRIBES, key)
        )
    for no, (_, state, digest, item_count, watch_count) in nodes.items():
        assert state != NodeLife.OVER, "all former lives are emptied"
        assert digest == declarations_digest(declared[no])
        assert item_count + watch_count == len(declared[no])
    for no, (_, _, publishers, subscribers) in items.items():
        for role, count in ((DeclaredRole.PUBLISHES, publishers), (DeclaredRole.SUBSCRIBES, subscribers)):
            assert count == len({nodes[node][0] for item, kind, node, _ in members if (item, kind) == (no, role)})
    published = Counter(scope for scope, _, publishers, _ in items.values() if publishers)
    for no, count in database.read("SELECT no, published FROM scopes"):
        assert count == published[no]
    parents = Counter(child for child, _ in edges)
    assert all(bool(parents[no]) == bool(present) for no, (_, present, _) in scopes.items() if no != ROOT)
    ((known,),) = database.read("SELECT scopes FROM rendezvous_state")
    assert known == len(scopes) - 1


def check(asked: RendezvousRequest | None, outcome: RequestOutcome) -> list[Code]:
    for message in outcome:
        assert decode(encode(message)) == message
    for match in outcome.matches:
        assert decode(encode(match)) == match
    answers = [message for message in outcome if isinstance(message, Reply | Explanation)]
    if asked is None:
        assert answers == []
    else:
        assert [answer.number for answer in answers] == [asked.number]
    return [Code(answer.code) for answer in answers if isinstance(answer, Reply)]
