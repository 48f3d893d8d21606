"""The rendezvous against a model of plain dictionaries: random requests, deaths, new lives, restarts of either side."""

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from psirp_stack.control.codes import Code
from psirp_stack.control.messages import (
    ROOT_SCOPE,
    Declaration,
    Declare,
    KeepAlive,
    PublishItem,
    PublishScope,
    RendezvousRequest,
    SubscribeItem,
    SubscribeScope,
    UnpublishItem,
    UnpublishScope,
    UnsubscribeItem,
    UnsubscribeScope,
)
from psirp_stack.rendezvous import DeclaredRole, RendezvousConfig, declarations_digest
from tests.psirp_stack.rendezvous.rendezvous_model import Item, Model
from tests.psirp_stack.rendezvous.rendezvous_support import Desk, S, T, U, X

EXAMPLES = int(os.environ.get("PSPH_EXAMPLES", "12"))
LEASE = 30.0
NODES = ("a", "b", "c")
SCOPES = (S, T, U)
RIDS = (X, T)
"""T is a scope as well: the two may meet under one parent."""

nodes = st.sampled_from(NODES)
sids = st.sampled_from(SCOPES)
parents = st.sampled_from((ROOT_SCOPE, *SCOPES))
items = st.tuples(sids, st.sampled_from(RIDS))
item_roles = st.sampled_from((DeclaredRole.PUBLISHES, DeclaredRole.SUBSCRIBES))
declarations = st.one_of(
    st.builds(lambda role, item: (role, *item), item_roles, items),
    sids.map(lambda sid: (DeclaredRole.WATCHES, sid, ROOT_SCOPE)),
)
crashes = st.booleans()


class RendezvousMachine(RuleBasedStateMachine):
    @initialize(portion=st.sampled_from((1, 2, 256)))
    def start(self, portion: int) -> None:
        # In memory where there is such a folder: this is about what is in the store, not about the disk.
        place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108
        self.folder = Path(tempfile.mkdtemp(prefix="rendezvous-model-", dir=place))
        self.request_table = Desk(self.folder / "rendezvous.db", RendezvousConfig(lease=LEASE, portion=portion))
        self.model = Model()
        self.boots = dict.fromkeys(NODES, 1)
        self.told: dict[tuple[str, bytes], set[bytes]] = {}
        self.generations: dict[Item, int] = {}
        self.seen = 0

    def ask(self, node: str, request: RendezvousRequest, expected: Code, crash: bool) -> None:
        assert self.request_table.code(node, request, self.boots[node]) is expected
        if crash:
            self.request_table.restart()
        self.check()

    @rule(node=nodes, sid=sids, parent=parents, crash=crashes)
    def publish_scope(self, node: str, sid: bytes, parent: bytes, crash: bool) -> None:
        expected = self.model.publish_scope(node, sid, parent)
        self.ask(node, PublishScope(self.request_table.number(), sid, parent), expected, crash)

    @rule(node=nodes, sid=sids, parent=parents, crash=crashes)
    def unpublish_scope(self, node: str, sid: bytes, parent: bytes, crash: bool) -> None:
        expected = self.model.unpublish_scope(sid, parent)
        self.ask(node, UnpublishScope(self.request_table.number(), sid, parent), expected, crash)

    @rule(node=nodes, sid=sids, crash=crashes)
    def subscribe_scope(self, node: str, sid: bytes, crash: bool) -> None:
        self.ask(node, SubscribeScope(self.request_table.number(), sid), self.model.watch(node, sid), crash)

    @rule(node=nodes, sid=sids, crash=crashes)
    def unsubscribe_scope(self, node: str, sid: bytes, crash: bool) -> None:
        self.ask(node, UnsubscribeScope(self.request_table.number(), sid), self.model.unwatch(node, sid), crash)

    @rule(node=nodes, role=item_roles, item=items, times=st.sampled_from((1, 1, 2)), crash=crashes)
    def join(self, node: str, role: DeclaredRole, item: Item, times: int, crash: bool) -> None:
        number = self.request_table.number()
        request = PublishItem(number, *item) if role is DeclaredRole.PUBLISHES else SubscribeItem(number, *item)
        for _ in range(times):
            self.ask(node, request, self.model.join(node, role, item), crash)

    @rule(node=nodes, role=item_roles, item=items, crash=crashes)
    def leave(self, node: str, role: DeclaredRole, item: Item, crash: bool) -> None:
        number = self.request_table.number()
        request = UnpublishItem(number, *item) if role is DeclaredRole.PUBLISHES else UnsubscribeItem(number, *item)
        expected = self.model.leave(node, role, item)
        self.ask(node, request, expected, crash)
        if expected is Code.SUCCESS:
            self.ask(node, request, Code.SUCCESS, False)  # repeated, as after a crash: its wish is fulfilled

    @rule(node=nodes, entries=st.lists(declarations, max_size=6), parts=st.integers(1, 3), crash=crashes)
    def declare(self, node: str, entries: list[tuple[DeclaredRole, bytes, bytes]], parts: int, crash: bool) -> None:
        self.model.declare(node, entries)
        size = -(-len(entries) // parts) or 1
        for part in range(parts):
            chosen = tuple(Declaration(*entry) for entry in entries[part * size : (part + 1) * size])
            self.request_table.ask(
                node, Declare(self.request_table.number(), self.boots[node], part, parts, chosen), self.boots[node]
            )
            if crash:
                self.request_table.restart()
        self.check()

    @rule(node=nodes)
    def fall_silent(self, node: str) -> None:
        """All others keep their leases."""
        self.request_table.run(until=self.request_table.now + LEASE * 0.7)
        for other in NODES:
            if other != node:
                self.keep_alive(other)
        self.request_table.run(until=self.request_table.now + LEASE * 0.4)
        self.model.declare(node, [])
        self.check()
        for other in NODES:
            self.keep_alive(other)

    @rule(node=nodes, crash=crashes)
    def begin_a_new_life(self, node: str, crash: bool) -> None:
        self.boots[node] += 1
        self.model.declare(node, [])
        self.ask(node, KeepAlive(self.request_table.number(), self.boots[node], 0), Code.SUCCESS, crash)

    @rule(node=nodes)
    def keep_alive(self, node: str) -> None:
        digest = declarations_digest(self.model.declared(node))
        self.ask(node, KeepAlive(self.request_table.number(), self.boots[node], digest), Code.SUCCESS, False)
        self.ask(node, KeepAlive(self.request_table.number(), self.boots[node], digest ^ 1), Code.OUT_OF_STEP, False)

    @rule(crash=crashes)
    def topology_restarts(self, crash: bool) -> None:
        before = len(self.request_table.matches)
        self.request_table.topology_started()
        if crash:
            self.request_table.restart()
        self.request_table.run()
        said = {(match.sid, match.rid) for match in self.request_table.matches[before:]}
        matched = {item for item in self.model.members if self.is_matched(item)}
        assert said >= matched
        self.check()

    def is_matched(self, item: Item) -> bool:
        return bool(self.model.of(item, DeclaredRole.PUBLISHES) and self.model.of(item, DeclaredRole.SUBSCRIBES))

    def check(self) -> None:
        self.request_table.run()
        self.check_matches()
        for sid in SCOPES:
            for rid in RIDS:
                known = self.request_table.explain(sid, rid)
                publishers = self.model.of((sid, rid), DeclaredRole.PUBLISHES)
                assert set(known.publishers) == publishers
                assert set(known.subscribers) == self.model.of((sid, rid), DeclaredRole.SUBSCRIBES)
                assert known.scope_exists is self.model.present(sid)
                assert known.item_exists is bool(publishers)
        self.check_what_watchers_were_told()

    def check_matches(self) -> None:
        for match in self.request_table.matches[self.seen :]:
            item = match.sid, match.rid
            assert match.generation > self.generations.get(item, 0)
            self.generations[item] = match.generation
        self.seen = len(self.request_table.matches)
        for item in {*self.generations, *self.model.members}:
            last = self.request_table.last_match(*item)
            if last is not None:
                matched = bool(last.publishers and last.subscribers)
                assert matched is self.is_matched(item)
                if matched:
                    assert set(last.publishers) == self.model.of(item, DeclaredRole.PUBLISHES)
                    assert set(last.subscribers) == self.model.of(item, DeclaredRole.SUBSCRIBES)
            else:
                assert not self.is_matched(item)

    def check_what_watchers_were_told(self) -> None:
        for node in NODES:
            for sign, parent, child in self.request_table.scope_events(node):
                known = self.told.setdefault((node, parent), set())
                assert (child in known) is (sign == "-"), "told twice, or taken back what was not told"
                known.symmetric_difference_update({child})
            for sid in SCOPES:
                if node in self.model.watchers.get(sid, set()):
                    assert self.told.get((node, sid), set()) == self.model.children(sid)
                else:
                    self.told.pop((node, sid), None)

    def teardown(self) -> None:
        if hasattr(self, "desk"):
            self.request_table.close()
            shutil.rmtree(self.folder, ignore_errors=True)


TestRendezvousMachine = RendezvousMachine.TestCase
TestRendezvousMachine.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=25, deadline=None, derandomize=True, print_blob=False
)
