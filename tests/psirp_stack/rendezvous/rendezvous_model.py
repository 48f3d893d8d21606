"""What the rendezvous should do, in plain dictionaries: no portions, no lives, no store."""

from dataclasses import dataclass, field

from psirp_stack.control.codes import Code
from psirp_stack.control.messages import ROOT_SCOPE
from psirp_stack.rendezvous import DeclaredRole

Item = tuple[bytes, bytes]


@dataclass
class Model:
    edges: dict[bytes, dict[bytes, str | None]] = field(default_factory=dict)
    """The parents of each scope that is there, and which node put it under each."""
    implicit: set[bytes] = field(default_factory=set)
    members: dict[Item, dict[DeclaredRole, set[str]]] = field(default_factory=dict)
    watchers: dict[bytes, set[str]] = field(default_factory=dict)

    def present(self, sid: bytes) -> bool:
        return sid == ROOT_SCOPE or sid in self.edges

    def known(self, sid: bytes) -> bool:
        return self.present(sid) or bool(self.watchers.get(sid)) or any(self.who(item) for item in self.items(sid))

    def items(self, sid: bytes) -> list[Item]:
        return [item for item in self.members if item[0] == sid]

    def who(self, item: Item) -> set[str]:
        return set().union(*self.members.get(item, {}).values())

    def of(self, item: Item, role: DeclaredRole) -> set[str]:
        return self.members.get(item, {}).get(role, set())

    def children(self, sid: bytes) -> set[bytes]:
        scopes = {child for child, parents in self.edges.items() if sid in parents}
        return scopes | {
            rid for scope, rid in self.members if scope == sid and self.of((scope, rid), DeclaredRole.PUBLISHES)
        }

    def above(self, sid: bytes) -> set[bytes]:
        found = {sid}
        for parent in self.edges.get(sid, {}):
            found |= self.above(parent)
        return found

    def publish_scope(self, node: str, sid: bytes, parent: bytes) -> Code:
        if not self.present(parent):
            return Code.FATHER_DOES_NOT_EXIST
        parents = self.edges.get(sid)
        if parents is not None and parent in parents:
            if parents[parent] not in (None, node):
                return Code.EXISTS
        else:
            if self.of((parent, sid), DeclaredRole.PUBLISHES):
                return Code.ITEM_WITH_SAME_ID
            if parents is not None and sid in self.above(parent):
                return Code.WRONG_IDS
        self.edges.setdefault(sid, {})[parent] = node
        self.implicit.discard(sid)
        return Code.SUCCESS

    def unpublish_scope(self, sid: bytes, parent: bytes) -> Code:
        if not self.present(sid):
            return Code.SCOPE_DOES_NOT_EXIST
        if parent not in self.edges[sid]:
            return Code.DOES_NOT_EXIST
        if len(self.edges[sid]) == 1:
            if self.children(sid):
                return Code.NOT_EMPTY
            del self.edges[sid]
            self.implicit.discard(sid)
        else:
            del self.edges[sid][parent]
        self.drop_idle()
        return Code.SUCCESS

    def watch(self, node: str, sid: bytes) -> Code:
        self._use(sid)
        self.watchers.setdefault(sid, set()).add(node)
        return Code.SUCCESS

    def unwatch(self, node: str, sid: bytes) -> Code:
        if not self.known(sid):
            return Code.SCOPE_DOES_NOT_EXIST
        if node not in self.watchers.get(sid, set()):
            return Code.DOES_NOT_EXIST
        self.watchers[sid].remove(node)
        self.drop_idle()
        return Code.SUCCESS

    def join(self, node: str, role: DeclaredRole, item: Item) -> Code:
        if node in self.of(item, role):
            return Code.SUCCESS
        if item[0] in self.edges.get(item[1], {}):
            return Code.SCOPE_WITH_SAME_ID
        if role is DeclaredRole.PUBLISHES:
            self._use(item[0])
        self.members.setdefault(item, {}).setdefault(role, set()).add(node)
        return Code.SUCCESS

    def leave(self, node: str, role: DeclaredRole, item: Item) -> Code:
        if not self.known(item[0]):
            return Code.SCOPE_DOES_NOT_EXIST
        if not self.who(item):
            return Code.ITEM_DOES_NOT_EXIST
        if node not in self.of(item, role):
            return Code.DOES_NOT_EXIST
        self.members[item][role].remove(node)
        self.drop_idle()
        return Code.SUCCESS

    def declared(self, node: str) -> set[tuple[DeclaredRole, bytes, bytes]]:
        found = {
            (role, *item) for item, roles in self.members.items() for role, names in roles.items() if node in names
        }
        return found | {
            (DeclaredRole.WATCHES, sid, ROOT_SCOPE) for sid, names in self.watchers.items() if node in names
        }

    def declare(self, node: str, entries: list[tuple[DeclaredRole, bytes, bytes]]) -> None:
        """What is new first, then what is old goes: nothing that stays is touched in between."""
        kept = set()
        for role, sid, rid in entries:
            code = self.watch(node, sid) if role is DeclaredRole.WATCHES else self.join(node, role, (sid, rid))
            if code is Code.SUCCESS:
                kept.add((role, sid, rid))
        # What was declared before counts only if it is declared again, also where it would now be refused.
        for role, sid, rid in self.declared(node) - kept:
            (self.watchers[sid] if role is DeclaredRole.WATCHES else self.members[sid, rid][role]).remove(node)
        self.drop_idle()

    def _use(self, sid: bytes) -> None:
        if not self.present(sid):
            self.edges[sid] = {ROOT_SCOPE: None}
            self.implicit.add(sid)

    def drop_idle(self) -> None:
        while idle := [sid for sid in self.implicit if not self._used(sid)]:
            for sid in idle:
                del self.edges[sid]
                self.implicit.remove(sid)

    def _used(self, sid: bytes) -> bool:
        inside = any(sid in parents for parents in self.edges.values())
        return inside or bool(self.watchers.get(sid)) or any(self.who(item) for item in self.items(sid))
