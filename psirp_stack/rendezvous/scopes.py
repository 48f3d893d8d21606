"""Requests about scopes: a directed acyclic graph under the root, and nodes that want to hear of a scope's children."""

from psirp_stack.control.codes import Code
from psirp_stack.control.messages import (
    OPEN_SCOPE,
    ROOT_SCOPE,
    DeclarationRefused,
    PublishScope,
    ScopePublished,
    UnpublishScope,
)
from psirp_stack.rendezvous.declarations import WHOLE_SCOPE, DeclaredRole
from psirp_stack.rendezvous.outcome import RequestRefusedError
from psirp_stack.rendezvous.session import RendezvousSession, allowed, check_not_reserved
from psirp_stack.rendezvous.tables import NodeLife, NodeRow, Phase, ScopeRow

NOT_FOUND = (Code.SCOPE_DOES_NOT_EXIST, Code.ITEM_DOES_NOT_EXIST, Code.DOES_NOT_EXIST)


def publish_scope(session: RendezvousSession, node: str, request: PublishScope, key: bytes | None) -> None:
    check_not_reserved(request.sid)
    check_not_reserved(request.parent)
    if request.sid == ROOT_SCOPE:
        raise RequestRefusedError(Code.WRONG_IDS, "the id of zeros is the root scope, which is always there")
    if request.policy is not None and key is None:
        raise RequestRefusedError(Code.BAD_SIGNATURE, "a policy needs a credential: its key will own the scope")
    parent = session.scope(request.parent)
    if parent is None or not parent.present:
        raise RequestRefusedError(Code.FATHER_DOES_NOT_EXIST, "the parent scope is not there: publish it first")
    scope = session.scope(request.sid)
    if scope is None or not scope.present:
        _check_new_branch(session, node, None, parent, request.sid, key)
        scope = session.make_scope(request.sid)
        scope.owner = key
        session.add_edge(scope, parent, node)
        _govern(session, scope, request)
        return
    makers = session.tx.execute("SELECT maker FROM edges WHERE child = ? AND parent = ?", (scope.no, parent.no))
    mine = bool(makers) and makers[0][0] == node
    claimable = scope.owner is None and (scope.implicit or mine)
    if request.policy is not None and scope.owner != key and not claimable:
        raise RequestRefusedError(Code.NOT_ALLOWED, "only the key that made a scope may change its policy")
    if not makers:
        _check_new_branch(session, node, scope, parent, request.sid, key)
        session.add_edge(scope, parent, node)
    elif makers[0][0] is None:
        session.tx.execute("UPDATE edges SET maker = ? WHERE child = ? AND parent = ?", (node, scope.no, parent.no))
    elif not mine and (key is None or key != scope.owner):
        raise RequestRefusedError(Code.EXISTS, f"node {makers[0][0]} has published this scope here")
    if claimable and key is not None:
        scope.owner = key
    scope.implicit = False
    session.mark_scope(scope)
    _govern(session, scope, request)


def _check_new_branch(
    session: RendezvousSession, node: str, scope: ScopeRow | None, parent: ScopeRow, sid: bytes, key: bytes | None
) -> None:
    config = session.config
    session.check_allowed(parent, DeclaredRole.PUBLISHES, key)
    item = session.item(parent, sid)
    if item is not None and item.publishers:
        raise RequestRefusedError(Code.ITEM_WITH_SAME_ID, "there is an item with this id in the parent scope")
    most = config.max_scopes_per_node
    if len(session.tx.execute("SELECT 1 FROM edges WHERE maker = ? LIMIT ?", (node, most))) >= most:
        raise RequestRefusedError(Code.LIMIT_REACHED, f"max_scopes_per_node: {node} made {most}")
    if scope is None:
        return
    parents = session.tx.execute("SELECT count(*) FROM edges WHERE child = ?", (scope.no,))[0][0]
    if parents >= config.max_parents_per_scope:
        raise RequestRefusedError(Code.LIMIT_REACHED, f"max_parents_per_scope: the scope has {parents} parents")
    above = session.tx.execute(
        "WITH RECURSIVE above (no) AS (SELECT ? UNION SELECT e.parent FROM edges e JOIN above ON e.child = above.no"
        " LIMIT ?) SELECT no FROM above",
        (parent.no, config.max_ancestors + 1),
    )
    if (scope.no,) in above:
        raise RequestRefusedError(Code.WRONG_IDS, "the parent lies below the scope: that would be a circle")
    if len(above) > config.max_ancestors:
        raise RequestRefusedError(Code.LIMIT_REACHED, f"max_ancestors: more than {config.max_ancestors} scopes above")


def _govern(session: RendezvousSession, scope: ScopeRow, request: PublishScope) -> None:
    """Put a policy in force. Who was let in by the former one is looked at again, the first portion at once."""
    if request.policy is None or request.policy == scope.policy:
        return
    scope.policy = request.policy
    scope.recheck = b""
    session.mark_scope(scope)
    recheck_portion(session, scope)


def unpublish_scope(session: RendezvousSession, node: str, request: UnpublishScope, key: bytes | None) -> None:
    if request.sid == ROOT_SCOPE:
        raise RequestRefusedError(Code.WRONG_IDS, "the root scope stays")
    scope = session.scope(request.sid)
    if scope is None or not scope.present:
        raise RequestRefusedError(Code.SCOPE_DOES_NOT_EXIST, "the scope is not there")
    parent = session.scope(request.parent)
    edges = session.tx.execute("SELECT parent, maker FROM edges WHERE child = ?", (scope.no,))
    makers: dict[int, str | None] = dict(edges)
    if parent is None or parent.no not in makers:
        raise RequestRefusedError(Code.DOES_NOT_EXIST, "the scope does not lie under this parent")
    if scope.owner is not None and key != scope.owner and makers[parent.no] != node:
        raise RequestRefusedError(Code.NOT_ALLOWED, "only the key that made a scope may unpublish it")
    last = len(edges) == 1
    if last and session.tx.execute("SELECT 1 FROM edges WHERE parent = ? LIMIT 1", (scope.no,)):
        raise RequestRefusedError(Code.NOT_EMPTY, "there are scopes in it: unpublish them first")
    if last and scope.published:
        raise RequestRefusedError(Code.NOT_EMPTY, f"{scope.published} items in it have publishers")
    session.remove_edge(scope, parent)
    if last:
        scope.present = scope.implicit = False
        scope.owner, scope.policy, scope.recheck = None, OPEN_SCOPE, None
        session.mark_scope(scope)
        session.look_idle(scope)


def subscribe_scope(session: RendezvousSession, life: NodeRow, sid: bytes, key: bytes | None) -> bool:
    if not session.watch(life, sid, key):
        return False
    scope = session.scope(sid)
    if scope is not None:
        tell_portion(session, scope, life)
    return True


def tell_portion(session: RendezvousSession, scope: ScopeRow, life: NodeRow) -> None:
    """Tell a watcher of the next children that were there when it came: scopes by number, then items by Rid."""
    rows = session.tx.execute(
        "SELECT phase, after_no, after_rid FROM watchers WHERE scope = ? AND node = ?", (scope.no, life.no)
    )
    if not rows:
        return
    phase, after_no, after_rid = rows[0]
    room = session.config.portion
    if life.state == NodeLife.OVER:
        phase = Phase.DONE
    if phase == Phase.SCOPES:
        children = session.tx.execute(
            "SELECT s.no, s.sid FROM edges e JOIN scopes s ON s.no = e.child WHERE e.parent = ? AND e.child > ?"
            " ORDER BY e.child LIMIT ?",
            (scope.no, after_no, room),
        )
        for no, sid in children:
            session.out.say(life.name, ScopePublished(scope.sid, sid, True))
            after_no = no
        if len(children) < room:
            phase = Phase.ITEMS
            room -= len(children)
    if phase == Phase.ITEMS:
        items = session.tx.execute(
            "SELECT rid, publishers FROM items WHERE scope = ? AND rid > ? ORDER BY rid LIMIT ?",
            (scope.no, after_rid, room),
        )
        for rid, publishers in items:
            if publishers:
                session.out.say(life.name, ScopePublished(scope.sid, rid, False))
            after_rid = rid
        if len(items) < room:
            phase = Phase.DONE
    session.tx.execute(
        "UPDATE watchers SET phase = ?, after_no = ?, after_rid = ? WHERE scope = ? AND node = ?",
        (phase, after_no, after_rid, scope.no, life.no),
    )
    if phase != Phase.DONE:
        session.out.background = True


def recheck_portion(session: RendezvousSession, scope: ScopeRow) -> None:
    """Hold the next items of a scope against its policy: who may not be there leaves, and matches are said again."""
    if scope.recheck is None:
        return
    if scope.recheck == b"":
        _recheck_watchers(session, scope)
    items = session.tx.execute(
        "SELECT no, rid FROM items WHERE scope = ? AND rid > ? ORDER BY rid LIMIT ?",
        (scope.no, scope.recheck, session.config.portion),
    )
    for no, rid in items:
        item = session.item_by_number(no)
        for role, node, key in session.tx.execute("SELECT role, node, key FROM members WHERE item = ?", (no,)):
            if not allowed(scope.policy, DeclaredRole(role), key):
                life = session.node(node)
                session.leave(life, DeclaredRole(role), item)
                _say_withdrawn(session, life, DeclaredRole(role), scope.sid, rid)
        session.touch(item)
        scope.recheck = rid
    if len(items) < session.config.portion:
        scope.recheck = None
    else:
        session.out.background = True
    session.mark_scope(scope)


def _recheck_watchers(session: RendezvousSession, scope: ScopeRow) -> None:
    for node, key in session.tx.execute("SELECT node, key FROM watchers WHERE scope = ?", (scope.no,)):
        if not allowed(scope.policy, DeclaredRole.SUBSCRIBES, key):
            life = session.node(node)
            session.unwatch(life, scope)
            _say_withdrawn(session, life, DeclaredRole.WATCHES, scope.sid, WHOLE_SCOPE)


def _say_withdrawn(session: RendezvousSession, life: NodeRow, role: DeclaredRole, sid: bytes, rid: bytes) -> None:
    if life.state != NodeLife.OVER:
        reason = "the scope's policy has changed"
        session.out.refuse(life.name, DeclarationRefused(role, sid, rid, Code.NOT_ALLOWED, reason))
