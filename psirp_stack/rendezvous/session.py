"""One piece of work on the rendezvous' state: memberships change, and `finish` says once what that means.

An item is touched as often as the work likes; its match, its events and its row follow from how it was at the start and
how it is at the end. That is why a node's death gives one match per item, and a repeated request none.
"""

from dataclasses import dataclass

from psirp_stack.control.codes import CONTROL_PREFIX, Code
from psirp_stack.control.messages import ROOT_SCOPE, Match, ScopePolicy, ScopePublished, ScopeUnpublished, encode
from psirp_stack.rendezvous.config import RendezvousConfig
from psirp_stack.rendezvous.declarations import WHOLE_SCOPE, DeclaredRole, declaration_hash
from psirp_stack.rendezvous.outcome import OutcomeBuilder, RequestRefusedError
from psirp_stack.rendezvous.tables import ROOT, ItemRow, NodeLife, NodeRow, Phase, ScopeRow, Tables
from storage import Transaction

GONE_CHECK_INTERVAL = 1024
"""Generations between two looks at how many items are kept only for topology's sake."""
MAX_LIVES = 8
"""Rows of one node that are not emptied yet."""


@dataclass(slots=True)
class RendezvousState:
    """The single row of `rendezvous_state`."""

    generation: int
    answered: int
    scopes: int
    resync: int | None
    repeat: int | None
    repeat_above: int


class RendezvousSession(Tables):
    """The state, for the length of one transaction."""

    def __init__(self, tx: Transaction, config: RendezvousConfig, answered: int = 0) -> None:
        super().__init__(tx)
        self.config = config
        self.out = OutcomeBuilder()
        self._answered = answered
        self._state: RendezvousState | None = None
        self._touched: dict[int, ItemRow] = {}
        self._dirty_nodes: dict[int, NodeRow] = {}
        self._dirty_scopes: dict[int, ScopeRow] = {}
        self._maybe_idle: dict[int, ScopeRow] = {}

    @property
    def state(self) -> RendezvousState:
        if self._state is None:
            (row,) = self.tx.execute(
                "SELECT generation, answered, scopes, resync, repeat, repeat_above FROM rendezvous_state"
            )
            self._state = RendezvousState(*row)
        return self._state

    # Lives of nodes.

    def living(self, name: str, boot: int) -> NodeRow | None:
        """The row that speaks for the node: what it is declaring, or else what it has declared."""
        rows = [row for row in self.lives(name) if row.state != NodeLife.OVER and row.boot == boot]
        return rows[-1] if rows else None

    def begin_life(self, name: str, boot: int, state: NodeLife = NodeLife.CURRENT) -> NodeRow:
        lives = self.lives(name)
        if len(lives) >= MAX_LIVES:
            raise RequestRefusedError(
                Code.LIMIT_REACHED, f"{len(lives)} former states of {name} are still being withdrawn"
            )
        if not lives and self._too_many_nodes():
            raise RequestRefusedError(Code.LIMIT_REACHED, f"max_nodes: {self.config.max_nodes} nodes are known")
        return self.new_node(name, boot, state)

    def _too_many_nodes(self) -> bool:
        ((count,),) = self.tx.execute("SELECT count(*) FROM nodes")
        return bool(count >= self.config.max_nodes)

    def bind(self, row: NodeRow, key: bytes | None) -> None:
        """From now on only who has this key speaks for the node, also after a restart of the rendezvous."""
        if key is not None and row.key is None:
            row.key = key
            self.mark_node(row)

    def end_life(self, row: NodeRow) -> None:
        if row.state != NodeLife.OVER:
            row.state = NodeLife.OVER
            self.mark_node(row)
            self.out.background = True

    def end_former_lives(self, name: str, boot: int) -> None:
        for row in self.lives(name):
            if row.boot < boot:
                self.end_life(row)

    def forget_node(self, row: NodeRow) -> None:
        self._dirty_nodes.pop(row.no, None)
        self.delete_node(row)
        if not self.lives(row.name):
            self.tx.execute("DELETE FROM kept_events WHERE node = ?", (row.name,))

    def mark_node(self, row: NodeRow) -> None:
        self._dirty_nodes[row.no] = row

    def mark_scope(self, row: ScopeRow) -> None:
        self._dirty_scopes[row.no] = row

    def touch(self, item: ItemRow, *, changed: bool = True) -> None:
        item.changed = item.changed or changed
        self._touched[item.no] = item

    # Memberships.

    def join(self, life: NodeRow, role: DeclaredRole, sid: bytes, rid: bytes, key: bytes | None) -> bool:
        """Make the node a publisher or subscriber of an item. False when it was one. Changes nothing when refused."""
        check_item_ids(sid, rid)
        scope = self.scope(sid)
        item = None if scope is None else self.item(scope, rid)
        if item is not None and self.is_member(item, role, life):
            return False
        if scope is not None and self.child_scope_named(scope, rid) is not None:
            raise RequestRefusedError(Code.SCOPE_WITH_SAME_ID, "there is a scope with this id in this scope")
        if scope is not None and scope.present:
            self.check_allowed(scope, role, key)
        elif role is DeclaredRole.PUBLISHES and not self.config.create_scopes:
            raise RequestRefusedError(Code.FATHER_DOES_NOT_EXIST, "the scope is not there: publish it first")
        if life.items >= self.config.max_items_per_node:
            raise RequestRefusedError(Code.LIMIT_REACHED, f"max_items_per_node: {life.name} has {life.items} items")
        others = [] if item is None else self._boots_of_others(item, role, life)
        if item is not None and not others:
            self._check_room(item, role)
        if scope is None or not scope.present:
            scope = self.make_implicit(sid, present=role is DeclaredRole.PUBLISHES)
        if item is None:
            item = self.new_item(scope, rid)
        self.tx.execute(
            "INSERT INTO members (item, role, node, key) VALUES (?, ?, ?, ?)", (item.no, role, life.no, key)
        )
        life.items += 1
        life.digest ^= declaration_hash(role, sid, rid)
        self.mark_node(life)
        if not others:
            self._count(item, role, 1)
        # A node that began a new life has forgotten what topology told its former one: it has to be said again.
        self.touch(item, changed=life.boot not in others)
        return True

    def leave(self, life: NodeRow, role: DeclaredRole, item: ItemRow) -> bool:
        """End a membership. False when there was none."""
        if not self.tx.execute(
            "DELETE FROM members WHERE item = ? AND role = ? AND node = ? RETURNING 1", (item.no, role, life.no)
        ):
            return False
        scope = self.scope_by_number(item.scope)
        life.items -= 1
        life.digest ^= declaration_hash(role, scope.sid, item.rid)
        self.mark_node(life)
        changed = not self._boots_of_others(item, role, life)
        if changed:
            self._count(item, role, -1)
        self.touch(item, changed=changed)
        return True

    def _boots_of_others(self, item: ItemRow, role: DeclaredRole, life: NodeRow) -> list[int]:
        """Boots of other rows of the same node that have the same membership."""
        if len(self.lives(life.name)) < 2:
            return []
        return [row.boot for row in self.lives(life.name) if row.no != life.no and self.is_member(item, role, row)]

    @staticmethod
    def _count(item: ItemRow, role: DeclaredRole, step: int) -> None:
        if role is DeclaredRole.PUBLISHES:
            item.publishers += step
        else:
            item.subscribers += step

    def _check_room(self, item: ItemRow, role: DeclaredRole) -> None:
        publishes = role is DeclaredRole.PUBLISHES
        count = item.publishers if publishes else item.subscribers
        most = self.config.max_publishers_per_item if publishes else self.config.max_subscribers_per_item
        if count >= most:
            name = "max_publishers_per_item" if publishes else "max_subscribers_per_item"
            raise RequestRefusedError(Code.LIMIT_REACHED, f"{name}: the item has {count}")

    def check_allowed(self, scope: ScopeRow, role: DeclaredRole, key: bytes | None) -> None:
        if not allowed(scope.policy, role, key):
            who = "publishers" if role is DeclaredRole.PUBLISHES else "subscribers"
            if key is None:
                raise RequestRefusedError(
                    Code.BAD_SIGNATURE, f"the scope is restricted to certain {who}: a credential is needed"
                )
            raise RequestRefusedError(Code.NOT_ALLOWED, f"key {key.hex()[:16]}... is not among the scope's {who}")

    # Scopes that come and go with their use.

    def make_implicit(self, sid: bytes, *, present: bool) -> ScopeRow:
        """The scope with this id, made when there is none; under the root when it is to be present."""
        scope = self.scope(sid)
        if scope is None:
            self._check_scope_room()
            scope = self.new_scope(sid, present=False, implicit=True)
            self.state.scopes += 1
            self._maybe_idle[scope.no] = scope
        if present and not scope.present:
            scope.present = scope.implicit = True
            self.mark_scope(scope)
            self.add_edge(scope, self.scope_by_number(ROOT), None)
        return scope

    def make_scope(self, sid: bytes) -> ScopeRow:
        """A row for a scope that somebody asked for by name, not yet under any parent."""
        scope = self.scope(sid)
        if scope is None:
            self._check_scope_room()
            scope = self.new_scope(sid, present=True, implicit=False)
            self.state.scopes += 1
        scope.present, scope.implicit = True, False
        self.mark_scope(scope)
        return scope

    def _check_scope_room(self) -> None:
        if self.state.scopes >= self.config.max_scopes:
            raise RequestRefusedError(Code.LIMIT_REACHED, f"max_scopes: {self.state.scopes} scopes are known")

    def add_edge(self, child: ScopeRow, parent: ScopeRow, maker: str | None) -> None:
        self.tx.execute("INSERT INTO edges (child, parent, maker) VALUES (?, ?, ?)", (child.no, parent.no, maker))
        for name in self.watcher_names(parent, child.no, b"", True):
            self.out.say(name, ScopePublished(parent.sid, child.sid, True))

    def remove_edge(self, child: ScopeRow, parent: ScopeRow) -> None:
        self.tx.execute("DELETE FROM edges WHERE child = ? AND parent = ?", (child.no, parent.no))
        for name in self.watcher_names(parent, child.no, b"", True):
            self.out.say(name, ScopeUnpublished(parent.sid, child.sid, True))
        self._maybe_idle[parent.no] = parent

    def look_idle(self, scope: ScopeRow) -> None:
        """See at the end whether anybody still uses this scope."""
        self._maybe_idle[scope.no] = scope

    # The end.

    def finish(self) -> None:
        """Say and write what changed. Call once, when the work is done."""
        for item in self._touched.values():
            self._settle(item)
        self._drop_idle_scopes()
        self._keep_events()
        for node in self._dirty_nodes.values():
            self.save_node(node)
        for scope in self._dirty_scopes.values():
            self.save_scope(scope)
        self._save_state()

    def _keep_events(self) -> None:
        """Nobody repeats the request that an event for another node came from, so the event itself has to survive."""
        for node, message in self.out.to_nodes:
            if isinstance(message, ScopePublished | ScopeUnpublished):
                ((no,),) = self.tx.execute(
                    "INSERT INTO kept_events (node, message) VALUES (?, ?) RETURNING no", (node, encode(message))
                )
                self.out.kept.append(no)

    def _settle(self, item: ItemRow) -> None:
        scope = self.scope_by_number(item.scope)
        if (item.publishers > 0) != item.was_published:
            now_there = item.publishers > 0
            scope.published += 1 if now_there else -1
            self.mark_scope(scope)
            event = ScopePublished if now_there else ScopeUnpublished
            for name in self.watcher_names(scope, 0, item.rid, False):
                self.out.say(name, event(scope.sid, item.rid, False))
        forgotten = item.gone and item.generation > 0
        if item.changed and (item.was_matched or item.matched or forgotten):
            self.state.generation += 1
            item.generation = self.state.generation
            self.say_match(item, scope)
        if item.gone:
            self.look_idle(scope)
            if item.generation == 0:
                self.delete_item(item)
                return
            self._bound_gone_items(item.generation)
        self.save_item(item)

    def say_match(self, item: ItemRow, scope: ScopeRow) -> None:
        publishers, subscribers = self.members(item)
        self.out.matches.append(Match(scope.sid, item.rid, item.generation, publishers, subscribers, scope.policy))

    def _bound_gone_items(self, generation: int) -> None:
        if generation % GONE_CHECK_INTERVAL:
            return
        ((count,),) = self.tx.execute("SELECT count(*) FROM items WHERE publishers = 0 AND subscribers = 0")
        if count > self.config.max_gone_items:
            self.out.bounds.append("max_gone_items")
            self.tx.execute(
                "DELETE FROM items WHERE no IN (SELECT no FROM items WHERE publishers = 0 AND subscribers = 0"
                " ORDER BY generation LIMIT ?)",
                (count - self.config.max_gone_items,),
            )

    def _drop_idle_scopes(self) -> None:
        while self._maybe_idle:
            _, scope = self._maybe_idle.popitem()
            if scope.no == ROOT or (scope.present and not scope.implicit) or self._in_use(scope):
                continue
            for (parent,) in self.tx.execute("SELECT parent FROM edges WHERE child = ?", (scope.no,)):
                self.remove_edge(scope, self.scope_by_number(parent))
            self.delete_scope(scope)
            self._dirty_scopes.pop(scope.no, None)
            self.state.scopes -= 1

    def _in_use(self, scope: ScopeRow) -> bool:
        ((used,),) = self.tx.execute(
            "SELECT EXISTS (SELECT 1 FROM items WHERE scope = ?1) OR EXISTS (SELECT 1 FROM edges WHERE parent = ?1)"
            " OR EXISTS (SELECT 1 FROM watchers WHERE scope = ?1)",
            (scope.no,),
        )
        return bool(used)

    def _save_state(self) -> None:
        state = self._state
        if state is not None:
            self.tx.execute(
                "UPDATE rendezvous_state SET generation = ?, answered = max(answered, ?), scopes = ?, resync = ?,"
                " repeat = ?, repeat_above = ?",
                (
                    state.generation,
                    self._answered,
                    state.scopes,
                    state.resync,
                    state.repeat,
                    state.repeat_above,
                ),
            )

    # Watching scopes.

    def watch(self, life: NodeRow, sid: bytes, key: bytes | None) -> bool:
        """Tell the node of the scope's children from now on, and of those that are there."""
        check_not_reserved(sid)
        scope = self.scope(sid)
        if scope is not None and self._watches(life, scope):
            self.make_implicit(sid, present=True)  # somebody may have unpublished it since
            return False
        if scope is not None and scope.present:
            self.check_allowed(scope, DeclaredRole.SUBSCRIBES, key)
        if life.watches >= self.config.max_scopes_per_node:
            raise RequestRefusedError(
                Code.LIMIT_REACHED, f"max_scopes_per_node: {life.name} subscribes to {life.watches}"
            )
        if scope is not None:
            most = self.config.max_watchers_per_scope
            if len(self.tx.execute("SELECT 1 FROM watchers WHERE scope = ? LIMIT ?", (scope.no, most))) >= most:
                raise RequestRefusedError(Code.LIMIT_REACHED, f"max_watchers_per_scope: the scope has {most}")
        if scope is None or not scope.present:
            scope = self.make_implicit(sid, present=True)
        told = self._told_in_this_life(life, scope)
        self.tx.execute(
            "INSERT INTO watchers (scope, node, key, phase, after_no, after_rid) VALUES (?, ?, ?, ?, ?, ?)",
            (scope.no, life.no, key, *told),
        )
        if told[0] != Phase.DONE:
            self.out.background = True
        life.watches += 1
        life.digest ^= declaration_hash(DeclaredRole.WATCHES, sid, WHOLE_SCOPE)
        self.mark_node(life)
        return True

    def unwatch(self, life: NodeRow, scope: ScopeRow) -> bool:
        if not self.tx.execute("DELETE FROM watchers WHERE scope = ? AND node = ? RETURNING 1", (scope.no, life.no)):
            return False
        life.watches -= 1
        life.digest ^= declaration_hash(DeclaredRole.WATCHES, scope.sid, WHOLE_SCOPE)
        self.mark_node(life)
        self.look_idle(scope)
        return True

    def _watches(self, life: NodeRow, scope: ScopeRow) -> bool:
        return bool(self.tx.execute("SELECT 1 FROM watchers WHERE scope = ? AND node = ?", (scope.no, life.no)))

    def _told_in_this_life(self, life: NodeRow, scope: ScopeRow) -> tuple[int, int, bytes]:
        """A node that declares again what it watches already is not told a second time."""
        for other in self.lives(life.name):
            if other.no != life.no and other.boot == life.boot and other.state != NodeLife.OVER:
                rows = self.tx.execute(
                    "SELECT phase, after_no, after_rid FROM watchers WHERE scope = ? AND node = ?",
                    (scope.no, other.no),
                )
                if rows:
                    phase, after_no, after_rid = rows[0]
                    return phase, after_no, after_rid
        return Phase.SCOPES, -1, b""


def allowed(policy: ScopePolicy, role: DeclaredRole, key: bytes | None) -> bool:
    keys = policy.publishers if role is DeclaredRole.PUBLISHES else policy.subscribers
    return keys is None or key in keys


def check_not_reserved(sid: bytes) -> None:
    if sid.startswith(CONTROL_PREFIX):
        raise RequestRefusedError(Code.WRONG_IDS, "ids that begin with 31 bytes of ff belong to the network itself")


def check_item_ids(sid: bytes, rid: bytes) -> None:
    check_not_reserved(sid)
    if sid == ROOT_SCOPE:
        raise RequestRefusedError(Code.WRONG_IDS, "the root scope holds scopes only: an item needs a scope of its own")
    if rid == WHOLE_SCOPE:
        raise RequestRefusedError(Code.WRONG_IDS, "a Rid of zeros stands for a scope, not for an item")
