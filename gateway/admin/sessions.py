"""Sessions for people: who is subscribed by which protocol, how far each is, and what an operator can do about it."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from exchange.exchange import Exchange
from exchange.model import InterestStanding, SessionInfo, SessionKey, Start
from gateway.admin.access import AdminRole, Caller
from gateway.admin.administered import Administered
from gateway.admin.audit import AuditError, AuditLog
from gateway.model import RefusedError
from gateway.telemetry.plain import without_keys
from serving.answers import HttpError

if TYPE_CHECKING:
    from gateway.gateway import Gateway

PAGE = 200
INTERESTS_SHOWN = 200
FIRST = SessionKey("", "")


class SessionRow(msgspec.Struct, frozen=True):
    protocol: str
    who: str
    state: str
    durable: bool
    """It outlives its connection and this process."""
    subscriptions: int
    behind: int
    """Items of which it has not taken all."""
    since: float
    """When it came or went."""


class InterestRow(msgspec.Struct, frozen=True):
    name: str
    sid: str | None
    rid: str | None
    """None: everything that enters here."""
    where: str
    until: float | None
    cursor: int | None
    waiting: int | None
    """Publications that it has not taken."""
    convert: str


class SessionDetail(msgspec.Struct, frozen=True):
    row: SessionRow
    interests: list[InterestRow]
    more: int


class SessionsAsked(msgspec.Struct, forbid_unknown_fields=True):
    """The body of an action on a session."""

    protocol: str
    who: str
    name: str = ""
    """One of its subscriptions, for `rewind`."""
    start: str = ""
    """From where on, for `rewind`: current, all, a number, an origin or a time."""


class SessionsView:
    def __init__(self, gateway: Administered, audit: AuditLog) -> None:
        self._gateway = gateway
        self._audit = audit
        self._acts: dict[str, Callable[[Gateway, SessionKey, SessionsAsked], Awaitable[bool]]] = {
            "pause": _pause,
            "resume": _resume,
            "rewind": _rewind,
            "end": _end,
        }

    async def rows(self, after: SessionKey = FIRST, limit: int = PAGE) -> list[SessionRow]:
        """In the order of protocols and names, behind one."""
        joined = self._gateway.joined
        if joined is None:
            return []
        behind = joined.exchange.behind()
        return [_row(info, behind[info.key]) for info in await joined.exchange.listing(after, min(limit, PAGE))]

    async def detail(self, key: SessionKey, role: AdminRole) -> SessionDetail:
        """Raises `HttpError`."""
        exchange = self._joined().exchange
        info = await exchange.session(key)
        if info is None:
            raise HttpError(404, "there is no such session: GET /api/sessions lists them")
        standings = {one.interest.name: one for one in await exchange.standing(key, INTERESTS_SHOWN)}
        interests = await exchange.interests(key)
        shown = [
            InterestRow(
                one.name,
                None if one.item is None else str(one.item.sid),
                None if one.item is None else str(one.item.rid),
                one.where if role is AdminRole.OPERATOR else without_keys(one.where),
                one.until if one.until < FOREVER_SHOWN else None,
                *_place(standings.get(one.name)),
                one.convert,
            )
            for one in interests[:INTERESTS_SHOWN]
        ]
        return SessionDetail(_row(info, exchange.behind()[key]), shown, max(0, len(interests) - len(shown)))

    async def act(self, caller: Caller, action: str, asked: SessionsAsked) -> bool:
        """Whether there was something to do. Raises `HttpError`."""
        act = self._acts.get(action)
        if act is None:
            raise HttpError(404, f"there is no such action: {', '.join(self._acts)}")
        joined = self._joined()
        about = f"{asked.protocol} {asked.who}"[:500]
        try:
            await self._audit.note(caller, action, asked.name, about, "asked")
            did = await act(joined, SessionKey(asked.protocol, asked.who), asked)
            await self._audit.note(caller, action, asked.name, about, "done" if did else "nothing to do")
        except AuditError as error:
            raise HttpError(503, str(error)) from error
        except RefusedError as error:
            raise HttpError(409, str(error)) from error
        except ValueError as error:
            raise HttpError(400, f"start: {error}") from None
        return did

    def _joined(self) -> "Gateway":
        joined = self._gateway.joined
        if joined is None:
            raise HttpError(404, "this hub runs alone: it has subscribers, and no sessions of other protocols")
        return joined


FOREVER_SHOWN = 1e11


async def _durable(exchange: Exchange, key: SessionKey) -> SessionInfo | None:
    info = await exchange.session(key)
    if info is not None and not info.durable:
        raise RefusedError("this session ends with its connection: it cannot be away")
    return info


async def _pause(gateway: "Gateway", key: SessionKey, _: SessionsAsked) -> bool:
    info = await _durable(gateway.exchange, key)
    if info is None or info.state != "live":
        return False
    await gateway.exchange.leave(key)
    return True


async def _resume(gateway: "Gateway", key: SessionKey, _: SessionsAsked) -> bool:
    info = await _durable(gateway.exchange, key)
    if info is None or info.state == "live":
        return False
    await gateway.exchange.come(key)
    return True


async def _rewind(gateway: "Gateway", key: SessionKey, asked: SessionsAsked) -> bool:
    return await gateway.exchange.begin_again(key, asked.name, Start.parse(asked.start))


async def _end(gateway: "Gateway", key: SessionKey, _: SessionsAsked) -> bool:
    if await gateway.exchange.session(key) is None:
        return False
    protocol = gateway.core.protocols.get(key.reader)
    return await (gateway.exchange.end(key) if protocol is None else protocol.end_session(key))


def _row(info: SessionInfo, behind: int) -> SessionRow:
    return SessionRow(
        info.key.reader, info.key.who, info.state.value, info.durable, info.interests, behind, info.changed
    )


def _place(standing: InterestStanding | None) -> tuple[int | None, int | None]:
    return (None, None) if standing is None else (standing.cursor, standing.waiting)
