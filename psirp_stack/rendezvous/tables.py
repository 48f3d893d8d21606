"""Typed access to the tables inside one piece of work: rows are read once, changed as objects, written at the end."""

from dataclasses import dataclass, field
from enum import IntEnum

import msgspec

from psirp_stack.control.messages import OPEN_SCOPE, ScopePolicy
from psirp_stack.rendezvous.declarations import DeclaredRole
from storage import Row, Transaction

_encode = msgspec.msgpack.Encoder().encode
_decode_policy = msgspec.msgpack.Decoder(ScopePolicy).decode

ROOT = 0
"""The number of the root scope."""


class NodeLife(IntEnum):
    """State of a row of `nodes`."""

    CURRENT = 0
    DECLARING = 1
    """Being filled by the parts of a `Declare`, to replace the current row."""
    OVER = 2
    """Being emptied."""


class Phase(IntEnum):
    """How far a watcher was told of what was there when it came."""

    SCOPES = 0
    ITEMS = 1
    DONE = 2


@dataclass(slots=True)
class NodeRow:
    no: int
    name: str
    boot: int
    state: int
    digest: int
    items: int
    watches: int
    last_number: int
    """The highest number of a request that changed something: one that comes with a lower number is a repeat."""
    parts: int
    next_part: int
    key: bytes | None = None
    """The hash of the key that the node has proved to have."""


@dataclass(slots=True)
class ScopeRow:
    no: int
    sid: bytes
    present: bool
    """False: only waiting subscriptions know this id."""
    implicit: bool
    """Made by use, goes with its last use."""
    owner: bytes | None
    policy: ScopePolicy
    published: int
    """Items in it that have a publisher."""
    recheck: bytes | None
    """The Rid up to which memberships were checked against a changed policy."""


@dataclass(slots=True)
class ItemRow:
    no: int
    scope: int
    rid: bytes
    generation: int
    publishers: int
    subscribers: int
    was_published: bool = field(init=False)
    was_matched: bool = field(init=False)
    changed: bool = False
    """Its publishers or subscribers are others than at the start of this work, or began a new life."""

    def __post_init__(self) -> None:
        self.was_published = self.publishers > 0
        self.was_matched = self.matched

    @property
    def matched(self) -> bool:
        return self.publishers > 0 and self.subscribers > 0

    @property
    def gone(self) -> bool:
        return self.publishers == 0 and self.subscribers == 0


NODE_COLUMNS = "no, name, boot, state, digest, items, watches, last_number, parts, next_part, key"
SCOPE_COLUMNS = "no, sid, present, implicit, owner, policy, published, recheck"
ITEM_COLUMNS = "no, scope, rid, generation, publishers, subscribers"


class Tables:
    """Rows by what they are asked for. The same row is always the same object."""

    def __init__(self, tx: Transaction) -> None:
        self.tx = tx
        self._nodes: dict[int, NodeRow] = {}
        self._lives: dict[str, list[NodeRow]] = {}
        self._scopes: dict[int, ScopeRow] = {}
        self._scope_numbers: dict[bytes, int | None] = {}
        self._items: dict[int, ItemRow] = {}
        self._item_numbers: dict[tuple[int, bytes], int | None] = {}

    # Nodes.

    def lives(self, name: str) -> list[NodeRow]:
        """All rows of a node, oldest first."""
        known = self._lives.get(name)
        if known is None:
            rows = self.tx.execute(f"SELECT {NODE_COLUMNS} FROM nodes WHERE name = ? ORDER BY no", (name,))  # noqa: S608
            known = self._lives[name] = [self._nodes.setdefault(row[0], NodeRow(*row)) for row in rows]
        return known

    def node(self, no: int) -> NodeRow:
        if no not in self._nodes:
            ((name,),) = self.tx.execute("SELECT name FROM nodes WHERE no = ?", (no,))
            self.lives(name)
        return self._nodes[no]

    def new_node(self, name: str, boot: int, state: NodeLife) -> NodeRow:
        lives = self.lives(name)
        ((no,),) = self.tx.execute(
            "INSERT INTO nodes (name, boot, state, digest, items, watches, last_number, parts, next_part)"
            " VALUES (?, ?, ?, 0, 0, 0, 0, 0, 0) RETURNING no",
            (name, boot, state),
        )
        row = self._nodes[no] = NodeRow(no, name, boot, state, 0, 0, 0, 0, 0, 0)
        lives.append(row)
        return row

    def save_node(self, row: NodeRow) -> None:
        self.tx.execute(
            "UPDATE nodes SET state = ?, digest = ?, items = ?, watches = ?, last_number = ?, parts = ?, next_part = ?,"
            " key = ? WHERE no = ?",
            (row.state, row.digest, row.items, row.watches, row.last_number, row.parts, row.next_part, row.key, row.no),
        )

    def delete_node(self, row: NodeRow) -> None:
        self.tx.execute("DELETE FROM nodes WHERE no = ?", (row.no,))
        self._nodes.pop(row.no, None)
        self._lives[row.name] = [other for other in self.lives(row.name) if other.no != row.no]

    # Scopes.

    def scope(self, sid: bytes) -> ScopeRow | None:
        if sid not in self._scope_numbers:
            rows = self.tx.execute(f"SELECT {SCOPE_COLUMNS} FROM scopes WHERE sid = ?", (sid,))  # noqa: S608
            self._scope_numbers[sid] = self._keep_scope(rows[0]).no if rows else None
        no = self._scope_numbers[sid]
        return None if no is None else self._scopes[no]

    def scope_by_number(self, no: int) -> ScopeRow:
        known = self._scopes.get(no)
        if known is None:
            (row,) = self.tx.execute(f"SELECT {SCOPE_COLUMNS} FROM scopes WHERE no = ?", (no,))  # noqa: S608
            known = self._keep_scope(row)
        return known

    def _keep_scope(self, row: Row) -> ScopeRow:
        no, sid, present, implicit, owner, policy, published, recheck = row
        known = OPEN_SCOPE if policy is None else _decode_policy(policy)
        scope = self._scopes.get(no)
        if scope is None:
            scope = self._scopes[no] = ScopeRow(
                no, sid, bool(present), bool(implicit), owner, known, published, recheck
            )
        self._scope_numbers[sid] = no
        return scope

    def new_scope(self, sid: bytes, *, present: bool, implicit: bool) -> ScopeRow:
        ((no,),) = self.tx.execute(
            "INSERT INTO scopes (sid, present, implicit, owner, policy, published, recheck)"
            " VALUES (?, ?, ?, NULL, NULL, 0, NULL) RETURNING no",
            (sid, present, implicit),
        )
        row = self._scopes[no] = ScopeRow(no, sid, present, implicit, None, OPEN_SCOPE, 0, None)
        self._scope_numbers[sid] = no
        return row

    def save_scope(self, row: ScopeRow) -> None:
        policy = None if row.policy == OPEN_SCOPE else _encode(row.policy)
        self.tx.execute(
            "UPDATE scopes SET present = ?, implicit = ?, owner = ?, policy = ?, published = ?, recheck = ?"
            " WHERE no = ?",
            (row.present, row.implicit, row.owner, policy, row.published, row.recheck, row.no),
        )

    def delete_scope(self, row: ScopeRow) -> None:
        self.tx.execute("DELETE FROM scopes WHERE no = ?", (row.no,))
        del self._scopes[row.no]
        self._scope_numbers[row.sid] = None

    def child_scope_named(self, scope: ScopeRow, identifier: bytes) -> ScopeRow | None:
        """The scope with this id directly under another."""
        child = self.scope(identifier)
        if child is None or not self.tx.execute(
            "SELECT 1 FROM edges WHERE child = ? AND parent = ?", (child.no, scope.no)
        ):
            return None
        return child

    # Items and who belongs to them.

    def item(self, scope: ScopeRow, rid: bytes) -> ItemRow | None:
        key = (scope.no, rid)
        if key not in self._item_numbers:
            rows = self.tx.execute(f"SELECT {ITEM_COLUMNS} FROM items WHERE scope = ? AND rid = ?", key)  # noqa: S608
            self._item_numbers[key] = self._items.setdefault(rows[0][0], ItemRow(*rows[0])).no if rows else None
        no = self._item_numbers[key]
        return None if no is None else self._items[no]

    def item_by_number(self, no: int) -> ItemRow:
        if no not in self._items:
            (row,) = self.tx.execute(f"SELECT {ITEM_COLUMNS} FROM items WHERE no = ?", (no,))  # noqa: S608
            item = self._items[no] = ItemRow(*row)
            self._item_numbers[item.scope, item.rid] = no
        return self._items[no]

    def new_item(self, scope: ScopeRow, rid: bytes) -> ItemRow:
        ((no,),) = self.tx.execute(
            "INSERT INTO items (scope, rid, generation, publishers, subscribers) VALUES (?, ?, 0, 0, 0) RETURNING no",
            (scope.no, rid),
        )
        row = self._items[no] = ItemRow(no, scope.no, rid, 0, 0, 0)
        self._item_numbers[scope.no, rid] = no
        return row

    def save_item(self, row: ItemRow) -> None:
        self.tx.execute(
            "UPDATE items SET generation = ?, publishers = ?, subscribers = ? WHERE no = ?",
            (row.generation, row.publishers, row.subscribers, row.no),
        )

    def delete_item(self, row: ItemRow) -> None:
        self.tx.execute("DELETE FROM items WHERE no = ?", (row.no,))
        del self._items[row.no]
        self._item_numbers[row.scope, row.rid] = None

    def is_member(self, item: ItemRow, role: DeclaredRole, node: NodeRow) -> bool:
        return bool(
            self.tx.execute("SELECT 1 FROM members WHERE item = ? AND role = ? AND node = ?", (item.no, role, node.no))
        )

    def members(self, item: ItemRow) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of publishers and of subscribers. A node of which two lives are known counts once."""
        rows = self.tx.execute(
            "SELECT m.role, n.name FROM members m JOIN nodes n ON n.no = m.node WHERE m.item = ?", (item.no,)
        )
        names: tuple[set[str], set[str]] = (set(), set())
        for role, name in rows:
            names[role].add(name)
        return tuple(sorted(names[0])), tuple(sorted(names[1]))

    def watcher_names(self, scope: ScopeRow, child_no: int, child_rid: bytes, is_scope: bool) -> list[str]:
        """Nodes to tell of a child of this scope now: those which are not going to hear of it in their turn anyway."""
        rows = self.tx.execute(
            "SELECT n.name, w.phase, w.after_no, w.after_rid FROM watchers w JOIN nodes n ON n.no = w.node"
            " WHERE w.scope = ? AND n.state < 2",
            (scope.no,),
        )
        names = set()
        for name, phase, after_no, after_rid in rows:
            if is_scope:
                told = phase > Phase.SCOPES or child_no <= after_no
            else:
                told = phase == Phase.DONE or (phase == Phase.ITEMS and child_rid <= after_rid)
            if told:
                names.add(name)
        return sorted(names)
