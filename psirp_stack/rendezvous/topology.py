"""The rendezvous' side of its talk with the topology manager: what was answered, and saying matches again."""

import msgspec

from psirp_stack.control.messages import MatchServed
from psirp_stack.rendezvous.session import RendezvousSession

Unserved = tuple[tuple[str, int], ...]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Unserved).decode


def note_served(session: RendezvousSession, served: MatchServed) -> None:
    """Keep what topology could not do, for `Explain`; forget items that are gone now that topology knows it."""
    item_of = (served.sid, served.rid)
    known = session.tx.execute("SELECT generation FROM unserved WHERE sid = ? AND rid = ?", item_of)
    if not known or known[0][0] <= served.generation:
        if served.unserved:
            _keep_report(session, served, new=not known)
        elif known:
            session.tx.execute("DELETE FROM unserved WHERE sid = ? AND rid = ?", item_of)
    scope = session.scope(served.sid)
    item = None if scope is None else session.item(scope, served.rid)
    if scope is not None and item is not None and item.gone and item.generation <= served.generation:
        session.delete_item(item)
        session.tx.execute("DELETE FROM unserved WHERE sid = ? AND rid = ?", item_of)
        session.look_idle(scope)


def _keep_report(session: RendezvousSession, served: MatchServed, *, new: bool) -> None:
    if new:
        ((count,),) = session.tx.execute("SELECT count(*) FROM unserved")
        if count >= session.config.max_unserved_reports:
            session.out.bounds.append("max_unserved_reports")
            return
    session.tx.execute(
        "INSERT INTO unserved (sid, rid, generation, report) VALUES (?, ?, ?, ?) ON CONFLICT (sid, rid) DO UPDATE"
        " SET generation = excluded.generation, report = excluded.report",
        (served.sid, served.rid, served.generation, _encode(served.unserved)),
    )


def unserved_of(session: RendezvousSession, sid: bytes, rid: bytes) -> Unserved:
    rows = session.tx.execute("SELECT report FROM unserved WHERE sid = ? AND rid = ?", (sid, rid))
    return _decode(rows[0][0]) if rows else ()


def begin_resync(session: RendezvousSession) -> None:
    """A topology manager began a life: all matches are said again, with generations above those of its former life."""
    session.state.resync = 0
    session.out.background = True


def resync_portion(session: RendezvousSession) -> None:
    after = session.state.resync
    if after is None:
        return
    rows = session.tx.execute(
        "SELECT no FROM items WHERE no > ? AND generation > 0 ORDER BY no LIMIT ?", (after, session.config.portion)
    )
    for (no,) in rows:
        item = session.item_by_number(no)
        item.was_matched = True  # also said when nobody is left: the former topology manager may have died over it
        session.touch(item)
    session.state.resync = rows[-1][0] if len(rows) == session.config.portion else None
    session.out.background = True


def begin_repeat(session: RendezvousSession) -> None:
    """The rendezvous began a life: what topology did not answer may never have left the former one."""
    state = session.state
    state.repeat = 0 if state.answered < state.generation else None
    state.repeat_above = state.answered


def repeat_portion(session: RendezvousSession) -> None:
    after = session.state.repeat
    if after is None:
        return
    # Most items were answered: the generation is looked at by the engine, and a portion is of those that were not.
    rows = session.tx.execute(
        "SELECT no FROM items WHERE no > ? AND generation > ? ORDER BY no LIMIT ?",
        (after, session.state.repeat_above, session.config.portion),
    )
    for (no,) in rows:
        item = session.item_by_number(no)
        session.say_match(item, session.scope_by_number(item.scope))
    session.state.repeat = rows[-1][0] if len(rows) == session.config.portion else None
    session.out.background = True
