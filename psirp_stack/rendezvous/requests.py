"""What each request does to the state. Runs inside a transaction; the only effects are rows and the session's outcome.

A request says how things shall be. One that was done before (a repeat after a crash) succeeds again and does nothing.
"""

from dataclasses import dataclass

from psirp_stack.control.codes import Code
from psirp_stack.control.messages import (
    MAX_LISTED,
    OPEN_SCOPE,
    Declaration,
    DeclarationRefused,
    Declare,
    Explain,
    Explanation,
    ItemList,
    KeepAlive,
    ListItems,
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
from psirp_stack.rendezvous.declarations import WHOLE_SCOPE, DeclaredRole
from psirp_stack.rendezvous.outcome import RequestRefusedError
from psirp_stack.rendezvous.scopes import NOT_FOUND, publish_scope, subscribe_scope, unpublish_scope
from psirp_stack.rendezvous.session import RendezvousSession
from psirp_stack.rendezvous.tables import NodeLife, NodeRow
from psirp_stack.rendezvous.topology import unserved_of
from psirp_stack.wire.numbers import ID_BYTES

MAX_PARTS = 65_536


@dataclass(frozen=True, slots=True)
class Proof:
    """What came of checking a credential: the key hash that was proved, or why not."""

    key: bytes | None = None
    refusal: str | None = None


NO_PROOF = Proof()


@dataclass(frozen=True, slots=True)
class Asked:
    """A request with all that is known about it."""

    node: str
    boot: int
    request: RendezvousRequest
    sender: Proof = NO_PROOF
    """The key that the node proved to have, if it did."""
    entries: tuple[Proof, ...] = ()
    """For `Declare`: the same for each entry."""
    refusals: tuple[str, ...] = ()
    """For `Explain`: what was refused lately."""
    former: tuple[str, ...] = ()
    """For `Explain`: who published the item, or was subscribed to it, lately."""


_ANSWERED_BY_ITSELF = (Explain, ListItems)
"""Requests whose answer, when they are done, is more than a reply."""


def decide(session: RendezvousSession, asked: Asked) -> Code:
    """Do a request and put the reply into the session's outcome; returns its code."""
    try:
        _check_boot(session, asked)
        code, reason = _do(session, asked)
    except RequestRefusedError as refused:
        code, reason = refused.code, refused.reason
        if code in NOT_FOUND and _was_done_before(session, asked):
            code, reason = Code.SUCCESS, "done before"
    session.out.say_refused(asked.request.number if isinstance(asked.request, Declare) else 0)
    if not isinstance(asked.request, _ANSWERED_BY_ITSELF) or code is not Code.SUCCESS:
        session.out.reply(asked.node, asked.request.number, code, reason)
    return code


def _check_boot(session: RendezvousSession, asked: Asked) -> None:
    if isinstance(asked.request, Explain):
        return
    newest = max((row.boot for row in session.lives(asked.node)), default=asked.boot)
    if newest > asked.boot:
        raise RequestRefusedError(
            Code.OUT_OF_STEP, f"life {asked.boot} of {asked.node} is over: life {newest} is known"
        )


def _was_done_before(session: RendezvousSession, asked: Asked) -> bool:
    life = session.living(asked.node, asked.boot)
    return life is not None and asked.request.number <= life.last_number


def _do(session: RendezvousSession, asked: Asked) -> tuple[Code, str]:
    node, boot, request = asked.node, asked.boot, asked.request
    if isinstance(request, Explain):
        return _explain(session, asked, request)
    key = _proved(asked.sender)
    match request:
        case Declare():
            return _declare(session, asked, request)
        case KeepAlive():
            session.end_former_lives(node, boot)
            return _keep_alive(session, node, boot, request)
    session.end_former_lives(node, boot)
    life = session.living(node, boot) or session.begin_life(node, boot)  # refused here, nothing is half done
    session.bind(life, key)
    changed = True
    match request:
        case PublishScope():
            publish_scope(session, node, request, key)
        case UnpublishScope():
            unpublish_scope(session, node, request, key)
        case SubscribeScope():
            changed = subscribe_scope(session, life, request.sid, key)
        case ListItems():
            _list_items(session, node, request, key)
            changed = False
        case UnsubscribeScope():
            _unsubscribe_scope(session, node, boot, request)
        case PublishItem():
            changed = session.join(life, DeclaredRole.PUBLISHES, request.sid, request.rid, key)
        case SubscribeItem():
            changed = session.join(life, DeclaredRole.SUBSCRIBES, request.sid, request.rid, key)
        case UnpublishItem():
            _leave_item(session, node, boot, DeclaredRole.PUBLISHES, request.sid, request.rid)
        case UnsubscribeItem():
            _leave_item(session, node, boot, DeclaredRole.SUBSCRIBES, request.sid, request.rid)
    if changed:
        life.last_number = max(life.last_number, request.number)
        session.mark_node(life)
    return Code.SUCCESS, ""


def _proved(proof: Proof) -> bytes | None:
    if proof.refusal is not None:
        raise RequestRefusedError(Code.BAD_SIGNATURE, proof.refusal)
    return proof.key


def _rows(session: RendezvousSession, node: str, boot: int) -> list[NodeRow]:
    """All rows that stand for what the node declares in this life: two while it declares everything anew."""
    return [row for row in session.lives(node) if row.boot == boot and row.state != NodeLife.OVER]


def _leave_item(session: RendezvousSession, node: str, boot: int, role: DeclaredRole, sid: bytes, rid: bytes) -> None:
    scope = session.scope(sid)
    if scope is None:
        raise RequestRefusedError(Code.SCOPE_DOES_NOT_EXIST, "the scope is not there")
    item = session.item(scope, rid)
    if item is None or item.gone:
        raise RequestRefusedError(Code.ITEM_DOES_NOT_EXIST, "nobody publishes or subscribes to this item")
    left = [session.leave(row, role, item) for row in _rows(session, node, boot)]
    if not any(left):
        verb = "publish" if role is DeclaredRole.PUBLISHES else "subscribe to"
        raise RequestRefusedError(Code.DOES_NOT_EXIST, f"{node} does not {verb} this item")


def _unsubscribe_scope(session: RendezvousSession, node: str, boot: int, request: UnsubscribeScope) -> None:
    scope = session.scope(request.sid)
    if scope is None:
        raise RequestRefusedError(Code.SCOPE_DOES_NOT_EXIST, "the scope is not there")
    left = [session.unwatch(row, scope) for row in _rows(session, node, boot)]
    if not any(left):
        raise RequestRefusedError(Code.DOES_NOT_EXIST, f"{node} does not subscribe to this scope")


def _keep_alive(session: RendezvousSession, node: str, boot: int, request: KeepAlive) -> tuple[Code, str]:
    if request.boot != boot:
        return Code.OUT_OF_STEP, f"the message is of life {boot}, what it says of life {request.boot}"
    life = session.living(node, boot)
    known = 0 if life is None else life.digest
    if known != request.digest:
        count = 0 if life is None else life.items + life.watches
        return Code.OUT_OF_STEP, f"{count} other declarations of {node} are known here: declare everything again"
    return Code.SUCCESS, ""


def _declare(session: RendezvousSession, asked: Asked, request: Declare) -> tuple[Code, str]:
    node, boot = asked.node, asked.boot
    if request.boot != boot or not request.part < request.parts <= MAX_PARTS:
        return (
            Code.WRONG_IDS,
            f"part {request.part} of {request.parts} of life {request.boot} in a message of life {boot}",
        )
    life = _declaring(session, node, boot, request)
    session.bind(life, asked.sender.key)
    refused = 0
    first: RequestRefusedError | None = None
    for entry, proof in zip(request.entries, asked.entries, strict=True):
        try:
            _declare_one(session, life, entry, proof)
        except RequestRefusedError as error:
            refused += 1
            first = first or error
            session.out.refuse(node, DeclarationRefused(entry.role, entry.sid, entry.rid, error.code, error.reason))
    if request.part == life.next_part:
        life.next_part += 1
    if life.state == NodeLife.DECLARING and life.next_part == life.parts:
        life.state = NodeLife.CURRENT
        for row in session.lives(node):
            if row.no != life.no:
                session.end_life(row)
    life.last_number = max(life.last_number, request.number)
    session.mark_node(life)
    if first is None:
        return Code.SUCCESS, ""
    return first.code, f"{refused} of {len(request.entries)} declarations refused, the first: {first.reason}"


def _declaring(session: RendezvousSession, node: str, boot: int, request: Declare) -> NodeRow:
    """The row that this part goes into: a new one for part 0, the one that waits for it, or the one that had it."""
    rows = _rows(session, node, boot)
    if request.part == 0:
        for row in rows:
            if row.state == NodeLife.DECLARING:
                session.end_life(row)
        life = session.begin_life(node, boot, NodeLife.DECLARING)
        life.parts = request.parts
        return life
    life_or_none = rows[-1] if rows else None
    if life_or_none is None or life_or_none.parts != request.parts or request.part > life_or_none.next_part:
        raise RequestRefusedError(Code.OUT_OF_STEP, f"part {request.part} without those before it: begin with part 0")
    return life_or_none


def _declare_one(session: RendezvousSession, life: NodeRow, entry: Declaration, proof: Proof) -> None:
    key = _proved(proof)
    if entry.role == DeclaredRole.WATCHES:
        if entry.rid != WHOLE_SCOPE:
            raise RequestRefusedError(Code.WRONG_IDS, "the Rid of a declaration about a scope is zero")
        subscribe_scope(session, life, entry.sid, key)
    elif entry.role in (DeclaredRole.PUBLISHES, DeclaredRole.SUBSCRIBES):
        session.join(life, DeclaredRole(entry.role), entry.sid, entry.rid, key)
    else:
        raise RequestRefusedError(Code.UNKNOWN_REQUEST, f"there is no role {entry.role}")


def _list_items(session: RendezvousSession, node: str, request: ListItems, key: bytes | None) -> None:
    scope = session.scope(request.sid)
    if scope is None or not scope.present:
        raise RequestRefusedError(Code.SCOPE_DOES_NOT_EXIST, "the scope is not there")
    session.check_allowed(scope, DeclaredRole.SUBSCRIBES, key)
    last = request.prefix + b"\xff" * (ID_BYTES - len(request.prefix))
    rows = session.tx.execute(
        "SELECT rid FROM items WHERE scope = ? AND rid > ? AND rid >= ? AND rid <= ? AND publishers > 0"
        " ORDER BY rid LIMIT ?",
        (scope.no, request.after, request.prefix, last, MAX_LISTED + 1),
    )
    rids = tuple(rid for (rid,) in rows)
    session.out.say(node, ItemList(request.number, rids[:MAX_LISTED], len(rids) > MAX_LISTED))


def _explain(session: RendezvousSession, asked: Asked, request: Explain) -> tuple[Code, str]:
    scope = session.scope(request.sid)
    item = None if scope is None else session.item(scope, request.rid)
    publishers, subscribers = ((), ()) if item is None else session.members(item)
    session.out.say(
        asked.node,
        Explanation(
            request.number,
            scope_exists=scope is not None and scope.present,
            item_exists=bool(publishers),
            publishers=publishers,
            subscribers=subscribers,
            policy=OPEN_SCOPE if scope is None else scope.policy,
            refusals=asked.refusals,
            unserved=unserved_of(session, request.sid, request.rid),
            former=asked.former,
        ),
    )
    return Code.SUCCESS, ""
