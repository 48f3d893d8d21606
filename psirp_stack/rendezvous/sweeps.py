"""Background work in portions: what is due is in the tables, so a crash only means that it goes on later."""

from psirp_stack.rendezvous.declarations import DeclaredRole
from psirp_stack.rendezvous.scopes import recheck_portion, tell_portion
from psirp_stack.rendezvous.session import RendezvousSession
from psirp_stack.rendezvous.tables import NodeLife, NodeRow
from psirp_stack.rendezvous.topology import repeat_portion, resync_portion


def sweep(session: RendezvousSession) -> None:
    """Do one portion of the first kind of work that is due. The outcome says whether to come again."""
    tx = session.tx
    if rows := tx.execute("SELECT no FROM scopes WHERE recheck IS NOT NULL LIMIT 1"):
        recheck_portion(session, session.scope_by_number(rows[0][0]))
        session.out.background = True
    elif rows := tx.execute("SELECT scope, node FROM watchers WHERE phase < 2 LIMIT 1"):
        tell_portion(session, session.scope_by_number(rows[0][0]), session.node(rows[0][1]))
        session.out.background = True
    elif session.state.repeat is not None:
        repeat_portion(session)
    elif session.state.resync is not None:
        resync_portion(session)
    elif rows := tx.execute("SELECT no FROM nodes WHERE state = 2 LIMIT 1"):
        empty_portion(session, session.node(rows[0][0]))
        session.out.background = True
    session.out.say_refused(0)


def empty_portion(session: RendezvousSession, life: NodeRow) -> None:
    """Withdraw the next declarations of a life that is over; when none is left, the life is forgotten."""
    room = session.config.portion
    members = session.tx.execute("SELECT item, role FROM members WHERE node = ? LIMIT ?", (life.no, room))
    for item, role in members:
        session.leave(life, DeclaredRole(role), session.item_by_number(item))
    room -= len(members)
    if room:
        watched = session.tx.execute("SELECT scope FROM watchers WHERE node = ? LIMIT ?", (life.no, room))
        for (scope,) in watched:
            session.unwatch(life, session.scope_by_number(scope))
        if len(watched) < room:
            session.forget_node(life)


def end_lease(session: RendezvousSession, name: str, boot: int) -> None:
    """A node said nothing for too long."""
    for row in session.lives(name):
        if row.boot <= boot and row.state != NodeLife.OVER:
            session.end_life(row)
